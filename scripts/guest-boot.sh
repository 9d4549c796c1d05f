#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Firmware under qemu boots from a vhost-user disk of the program, and writes and reads it, while
# the daemon is killed.
#
#   scripts/guest-boot.sh PROGRAM QEMU RECONNECT KILLS
#
# RECONNECT is that property of QEMU's character devices.
# Needs as and ld. Exit codes: 0 all checks hold, 1 one does not.
set -eu
cd "$(dirname "$0")/.."
program=$(realpath "$1")
qemu=$2
reconnect=$3
kills=$4
work=$(mktemp -d)
mkdir "$work/share" "$work/host"
as --32 -o "$work/boot.o" tests/guest/boot-sector.S
ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o "$work/host/origin.img" "$work/boot.o"

tests/guest/host.sh "$program" "$work/host" "$work/share" &
host=$!
vm=
end() {
    [ -z "$vm" ] || kill "$vm" 2>/dev/null || :
    kill $host 2>/dev/null || :
    wait $host || :
    rm -rf "$work"
}
trap end EXIT
fail() {
    echo "guest-boot: FAILED: $*: the serial line has '$(tail -c 200 "$work/serial")'" >&2
    tail -n 20 "$work/host/log" "$work/said" >&2
    exit 1
}
within() { # within SECONDS COMMAND...: the command succeeds by then
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}
passes() { tr -dc . <"$work/serial" | wc -c; }
has_passed() { [ "$(passes)" -ge "$1" ]; }

touch "$work/serial" "$work/said"
within 60 test -e "$work/host/ready" || fail "no daemon"
"$qemu" -accel "${GUEST_ACCEL:-tcg}" -m 256 -nodefaults -display none -no-reboot \
    -object memory-backend-memfd,id=memory,size=256M,share=on -numa node,memdev=memory \
    -serial "file:$work/serial" \
    -chardev "socket,id=vm,path=$work/host/vm/vm.sock,$reconnect" \
    -device vhost-user-blk-pci,chardev=vm,num-queues=1,bootindex=0 >"$work/said" 2>&1 &
vm=$!
within 60 has_passed 5 || fail "the firmware does not boot from the disk"
for nth in $(seq "$kills"); do
    echo kill >"$work/share/.ask" && mv "$work/share/.ask" "$work/share/ask"
    within 60 test -e "$work/share/answer" || fail "kill $nth"
    [ "$(cat "$work/share/answer")" = done ] || fail "kill $nth"
    rm "$work/share/answer"
    within 60 has_passed $(($(passes) + 5)) || fail "the firmware waits after kill $nth"
done
! grep -q X "$work/serial" || fail "a request failed, or read other data than were written"
"$qemu" --version | head -1
echo "guest-boot: ok: firmware boots, writes and reads over $kills kills: $(passes) passes"
