#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Installs, uses, upgrades, removes and purges the package of `make deb` in a Debian of its own,
# which systemd-nspawn boots. The steps are in scripts/try-deb-inside.sh.
#
#   scripts/try-deb.sh [PROGRAM]     as root; the program is that of `make build` by default
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || { echo "try-deb: root only: it boots a system" >&2; exit 2; }
for tool in systemd-nspawn mmdebstrap; do
    command -v $tool >/dev/null && continue
    echo "try-deb: needs $tool: apt install systemd-container mmdebstrap" >&2
    exit 2
done
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
program=${1:-$target/release/millpond}
base=$target/try-deb/debian
rm -f "$target"/debian/*.deb
scripts/deb.sh "$program"
first=$(echo "$target"/debian/*.deb)
version=$(dpkg-deb --field "$first" Version)
# Another program for the second package: one more section.
next=$target/debian/millpond-next
printf next >"$target/debian/next"
objcopy --add-section .next="$target/debian/next" "$program" "$next"
scripts/deb.sh "$next" "$version+next"

# Once: a minute, and 350 MiB from a Debian mirror.
if [ ! -d "$base" ]; then
    mkdir -p "${base%/*}"
    mmdebstrap --variant=apt --include=systemd,systemd-sysv,dbus,libnbd-bin bookworm "$base.part"
    mv "$base.part" "$base"
fi
# The first unit of the booted system runs the steps and ends the system with their outcome.
cat >"$base/etc/systemd/system/try-deb.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh /try/try-deb-inside.sh
StandardOutput=tty
StandardError=tty
UNIT
mkdir -p "$base/etc/systemd/system/default.target.wants"
ln -sf ../try-deb.service "$base/etc/systemd/system/default.target.wants/try-deb.service"
ln -sf /dev/null "$base/etc/systemd/system/console-getty.service"
cp scripts/try-deb-inside.sh "$target/debian"
# A copy of the system, which is gone afterwards.
exec timeout 300 systemd-nspawn --quiet --register=no --keep-unit --ephemeral --directory="$base" \
    --bind-ro="$target/debian:/try" --boot systemd.show_status=no </dev/null
