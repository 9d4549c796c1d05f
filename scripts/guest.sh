#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches a kernel into target/guest if it is not there, boots it, and runs scripts of tests/guest/
# there with the program, while the program serves a disk to the guest by vhost-user.
#
#   scripts/guest.sh [--or-skip] PROGRAM ROUNDS PART[=ROUNDS]...
#
# PART: ublk, ublk-guard, ublk-kills, ublk-upgrades, published, power-cut (the program of that name
# is beside PROGRAM), vhost-upgrades, vhost-kills, vhost-user, doors, kernel and bcache (RUBLK is
# the program that doors compares with); and boot: no Linux, but firmware that uses such a disk.
# ROUNDS: of kills, upgrades or cuts, or of a bench.
# GUEST_QEMU_SUITE: a release of Debian whose qemu is fetched and used, if not this machine's.
# --or-skip: where something that is needed is not to be had, one line says so, and that is no
# failure.
# Exit codes: 0 all checks hold; 1 one does not; 77 something that is needed is not to be had, and
# standard error says what; 125 the guest did not end in time.
set -eu
cd "$(dirname "$0")/.."
skip_status=77
if [ "$1" = --or-skip ]; then
    skip_status=0
    shift
fi
program=$(realpath "$1")
rounds=$2
shift 2
skip() {
    case $skip_status in
    0) echo "SKIPPED: the guest with Linux 7 was NOT booted: $*" >&2 ;;
    *) echo "guest: $*" >&2 ;;
    esac
    exit $skip_status
}
PATH=$PATH:/usr/sbin:/sbin
for needed in qemu-system-x86_64 busybox cpio depmod modprobe xz zstd strip as ld fio mkfs.ext4 \
    fsck.ext4 mkfs.xfs xfs_repair blkdiscard blkid resize2fs dmsetup curl; do
    command -v "$needed" >/dev/null || skip "needs $needed (scripts/setup.sh guest installs it)"
done
# The first root of the guest has no libraries.
! ldd "$(command -v busybox)" >/dev/null 2>&1 ||
    skip "needs a static busybox (scripts/setup.sh guest installs it)"
dir=${CARGO_TARGET_DIR:-target}/guest
export GUEST_QEMU=qemu-system-x86_64
if [ -n "${GUEST_QEMU_SUITE:-}" ]; then
    GUEST_QEMU=$(scripts/guest-qemu.sh "$dir/qemu-$GUEST_QEMU_SUITE" "$GUEST_QEMU_SUITE" | tail -1)
    [ -n "$GUEST_QEMU" ] || skip "the qemu of $GUEST_QEMU_SUITE is not to be had"
fi
# Newer versions of qemu have the pause before a new connection in milliseconds.
reconnect=reconnect=1
version=$("$GUEST_QEMU" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
[ "$version" -lt 10 ] || reconnect=reconnect-ms=1000
parts=()
for part; do
    if [ "${part%=*}" = boot ]; then
        kills=${part#boot}
        kills=${kills#=}
        scripts/guest-boot.sh "$program" "$GUEST_QEMU" "$reconnect" "${kills:-$rounds}"
    else
        parts+=("$part")
    fi
done
[ ${#parts[@]} -gt 0 ] || exit 0
set -- "${parts[@]}"
modules=$(scripts/guest-kernel.sh "$dir" | tail -1) || skip "the package archive is not to be had"
[ -n "$modules" ] || skip "the package archive is not to be had"
kernel=$(find "$dir/unpacked" -name 'vmlinuz*' | head -1)
[ -n "$kernel" ] || skip "the package has no kernel"

# What the guest reads is in the shared folder: this one may lie where the guest's root has none.
share=$dir/share
rm -rf "$share"
mkdir -p "$share"
cp tests/guest/*.sh "$share/"
strip -o "$share/millpond" "$program"
case " $* " in
*" power-cut"*) strip -o "$share/power-cut" "$(dirname "$program")/power-cut" ;;
esac
[ -z "${RUBLK:-}" ] || strip -o "$share/rublk" "$RUBLK"
work=$(mktemp -d)
tests/guest/host.sh "$program" "$work" "$(realpath "$share")" &
host=$!
trap 'kill $host 2>/dev/null || :; wait $host 2>/dev/null || :; rm -rf "$work"' EXIT
until [ -e "$work/ready" ]; do
    kill -0 $host 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
# Two more disks for what compares drivers of the kernel; host.sh has images of other names.
disks=()
case " $* " in
*" kernel "* | *" bcache "*)
    for disk in origin cache; do
        image=$work/bench-$disk.img
        truncate -s 512M "$image"
        disks+=(-drive "file=$image,format=raw,if=none,id=$disk,cache=none,aio=native"
            -device "virtio-blk-pci,drive=$disk,serial=$disk")
    done
    ;;
esac
began=$SECONDS
status=0
scripts/guest-run.sh "$kernel" "$modules" "$share" "${GUEST_SECONDS:-900}" tests/guest/run.sh \
    /share/millpond "$rounds" "$@" \
    -- -chardev "socket,id=vm,path=$work/vm/vm.sock,$reconnect" \
    -device vhost-user-blk-pci,chardev=vm,num-queues=2 "${disks[@]}" || status=$?
echo "guest: ended with $status after $((SECONDS - began)) s"
kill $host
wait $host || { echo "guest: FAILED: the host's daemon ended with $?"; status=1; }
if [ $status != 0 ]; then
    mkdir -p "$share/failed"
    cp "$work/log" "$share/failed/host.log"
    tail -30 "$work/log"
    echo "guest: what is left of it: $share/failed"
    [ $status = 125 ] || status=1
fi
exit $status
