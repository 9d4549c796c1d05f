#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds rublk (GPL-2.0-or-later), the server for block devices of the kernel that comes from the
# author of the kernel's driver, into a directory, unless it is there; prints its path. Needs cargo,
# crates.io and libclang.
#
#   scripts/rublk.sh DIR
#
# Exit codes: 0 it is there, 1 it can't be built here.
set -eu
version=0.2.15
dir=$(realpath -m "$1")
if [ ! -x "$dir/bin/rublk" ]; then
    libclang=$(find /usr/lib/llvm-*/lib /usr/lib64 /usr/lib -maxdepth 1 \
        \( -name 'libclang.so*' -o -name 'libclang-[0-9]*.so*' \) 2>/dev/null | head -1)
    if [ -z "$libclang" ]; then
        echo "rublk: needs libclang: Debian's packages libclang1-14 and libclang-common-14-dev," \
            "or newer ones" >&2
        exit 1
    fi
    # Without OpenCL.
    LIBCLANG_PATH=$(dirname "$libclang") cargo install --quiet rublk --version $version \
        --no-default-features --root "$dir" --target-dir "$dir/target" >&2 || exit 1
    rm -rf "$dir/target"
fi
echo "$dir/bin/rublk"
