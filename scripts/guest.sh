#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches a kernel into target/guest if it is not there, boots it, and runs a test of tests/guest/
# with the program.
#
#   scripts/guest.sh TEST PROGRAM [ARGS]
#
# Exit codes: the test's; 125: the guest did not end in time; 77: something that is needed is not to
# be had, and standard error says what.
set -eu
cd "$(dirname "$0")/.."
test=$1
program=$(realpath "$2")
shift 2
skip() {
    echo "guest: $*" >&2
    exit 77
}
for needed in qemu-system-x86_64 busybox cpio depmod modprobe xz zstd fio mkfs.ext4 blkdiscard; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$needed" >/dev/null || skip "needs $needed"
done
PATH=$PATH:/usr/sbin:/sbin
dir=${CARGO_TARGET_DIR:-target}/guest
modules=$(scripts/guest-kernel.sh "$dir" | tail -1) || skip "the package archive is not to be had"
kernel=$(find "$dir/unpacked" -name 'vmlinuz*' | head -1)
[ -n "$kernel" ] || skip "the package has no kernel"
# The program is read from the shared folder: it may lie where the guest's root has none.
mkdir -p "$dir/share"
cp "$program" "$dir/share/millpond"
exec scripts/guest-run.sh "$kernel" "$modules" "$dir/share" "${GUEST_SECONDS:-900}" \
    "$test" /share/millpond "$@"
