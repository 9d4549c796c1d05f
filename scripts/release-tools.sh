#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Brings what `make release` builds with, into target/release-tools: cargo-zigbuild with a compiler
# of C that has the symbols of old versions of glibc, and cargo-generate-rpm. Of the system it
# installs nothing; it names what is missing there.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# Other versions make other bytes.
ZIGBUILD=0.24.1
ZIG=0.17.1
GENERATE_RPM=0.21.1
tools=$PWD/target/release-tools

missing=
for program in unshare:util-linux cc:gcc strip:binutils objcopy:binutils dpkg-deb:dpkg \
    python3:python3-venv \
    rpm:rpm rpm2cpio:rpm2cpio cpio:cpio mmdebstrap:mmdebstrap nbdcopy:libnbd-bin; do
    command -v "${program%:*}" >/dev/null || missing="$missing ${program#*:}"
done
if [ -n "$missing" ]; then
    echo "release-tools: missing on this machine: apt install$missing" >&2
    exit 2
fi
if [ "$("$tools/bin/zig" version 2>/dev/null)" != "$ZIG" ] ||
    ! "$tools/bin/cargo-zigbuild" --version 2>/dev/null | grep -qF "$ZIGBUILD"; then
    echo "release-tools: cargo-zigbuild $ZIGBUILD and zig $ZIG, into $tools (100 MB)"
    rm -rf "$tools/python" "$tools/packages"
    python3 -m venv "$tools/python"
    # Not among the packages of this python: its version would be in the paths of sources that zig
    # compiles, and with them in the program's debug information.
    "$tools/python/bin/pip" install --quiet --target "$tools/packages" \
        "cargo-zigbuild==$ZIGBUILD" "ziglang==$ZIG"
    mkdir -p "$tools/bin"
    ln -sfn ../packages/bin/cargo-zigbuild "$tools/bin/cargo-zigbuild"
    ln -sfn ../packages/ziglang/zig "$tools/bin/zig"
fi
if ! "$tools/bin/cargo-generate-rpm" --version 2>/dev/null | grep -qF "$GENERATE_RPM"; then
    echo "release-tools: cargo-generate-rpm $GENERATE_RPM, into $tools (minutes)"
    cargo install --quiet --locked --root "$tools" "cargo-generate-rpm@$GENERATE_RPM"
fi
