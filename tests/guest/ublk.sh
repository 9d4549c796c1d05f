#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: millpond's block devices of the kernel, as clients see them. Prints a line for
# each check; the exit status is 0 when all hold.
#
#   ublk.sh PROGRAM KILLS
set -u
program=$1
kills=$2
export MILLPOND_RUN_DIR=/run/millpond
failed=0
daemon=

say() { read -r up _ </proc/uptime && echo "[$up] $*"; }
ok() { say "ok: $*"; }
bad() { say "FAILED: $*"; failed=1; }
check() { # check WHAT COMMAND...: the command succeeds
    local what=$1
    shift
    if "$@" >/tmp/out 2>&1; then ok "$what"; else bad "$what: $* said: $(tail -5 /tmp/out)"; fi
}
refused() { # refused WHAT WORDS COMMAND...: the command fails, and says WORDS
    local what=$1 words=$2
    shift 2
    if "$@" >/tmp/out 2>&1; then
        bad "$what: $* succeeded"
    elif grep -q -- "$words" /tmp/out; then
        ok "$what"
    else
        bad "$what: $* said: $(tail -5 /tmp/out)"
    fi
}
mp() { "$program" "$@"; }
start() { # start OPTIONS: starts the daemon and waits until it is ready
    "$program" daemon "$@" >>/tmp/daemon.log 2>&1 &
    daemon=$!
    for _ in $(seq 600); do
        mp ls >/dev/null 2>&1 && return 0
        kill -0 $daemon 2>/dev/null || break
        sleep 0.1
    done
    bad "the daemon does not start: $(tail -3 /tmp/daemon.log)"
    return 1
}
stop() { kill "$daemon" && wait "$daemon"; }
sectors() { cat "/sys/class/block/$(basename "$(readlink "/run/millpond/dev/$1")")/size"; }
queue() { cat "/sys/class/block/$(basename "$(readlink "/run/millpond/dev/$1")")/queue/$2"; }
fio_verify() { # fio_verify DEVICE SIZE OPTIONS
    local device=$1 size=$2
    shift 2
    fio --name=verify --filename="$device" --size="$size" --rw=randwrite --bs=4k-64k \
        --ioengine=libaio --direct=1 --iodepth=16 --output=/tmp/fio.out \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 "$@"
}

say "Linux $(uname -r)"
refused "without the driver the error says what to do" "modprobe ublk_drv" \
    mp daemon --ublk
for module in ublk_drv ext4; do
    guest-modprobe $module || { bad "no module $module"; exit 1; }
done

cd /tmp || exit 1
truncate -s 128M origin.img
truncate -s 64M cache.img
truncate -s 96M plain.img
mkdir mnt
cat >pond.toml <<'C'
ublk = true
[[device]]
name = "plain"
table = "0 131072 linear ./plain.img 0"
[[device]]
name = "wc"
table = "0 262144 writecache s ./origin.img ./cache.img 4096 0"
[[device]]
name = "ram"
table = "0 65536 linear mem:32M 0"
C
start --config pond.toml || exit 1
ok "the daemon starts"
plain=/run/millpond/dev/plain
wc=/run/millpond/dev/wc
check "root has links in /dev" test -b /dev/millpond/plain -a -b /dev/millpond/wc
sizes="$(sectors plain) $(sectors wc)"
[ "$sizes" = "131072 262144" ] && ok "sizes" || bad "sizes: $sizes"
limits="$(queue wc logical_block_size) $(queue wc physical_block_size) $(queue wc fua)"
[ "$limits" = "512 4096 1" ] && ok "limits of the cache" || bad "limits of the cache: $limits"
[ "$(queue wc write_cache)" = "write back" ] && ok "volatile cache" || bad "volatile cache"
mp ublk >/tmp/list
grep -Eq 'wc +live +[0-9]+ +yes' /tmp/list && grep -Eq 'ram +live +[0-9]+ +no' /tmp/list &&
    ok "devices in memory are made without recovery" || bad "recovery: $(cat /tmp/list)"

refused "a device that is served is not given up" "serves it" mp ublk --give-up plain
check "fio verifies a plain device" fio_verify $plain 16M
check "fio verifies a cache" fio_verify $wc 16M --fsync=32
# A file system, and discards of it.
check "mkfs.ext4" mkfs.ext4 -q -F $wc
check "mount" mount $wc mnt
seq 100000 >mnt/numbers
cp mnt/numbers mnt/copy
check "fsync" sync -f mnt/numbers
refused "a device that is mounted is not removed" "is open" mp remove wc
check "fstrim" fstrim mnt
check "umount" umount mnt
check "fsck" fsck.ext4 -f -n $wc
yes | head -c 1048576 >pattern
check "write" dd if=pattern of=$plain bs=1M count=1 oflag=direct status=none
check "discard" blkdiscard -f -o 0 -l 524288 $plain
cmp -s -n 524288 $plain /dev/zero && cmp -s -i 524288 -n 524288 $plain pattern &&
    ok "a discarded range reads as zeroes, the rest as before" || bad "discard"
check "zeroes" blkdiscard -f -z -o 524288 -l 524288 $plain
cmp -s -n 1048576 $plain /dev/zero && ok "zeroes are read" || bad "zeroes"

# Another size, while it is open.
exec 7<$plain
check "resize" mp resize plain 96M
exec 7<&-
[ "$(sectors plain)" = 196608 ] && ok "the kernel has the new size" || bad "size $(sectors plain)"

# Kills under fio: no client sees an error, and nothing that it was told is lost.
for device in $plain $wc; do
    fio_verify $device 48M --fsync=64 --time_based=0 --rate=6M >/tmp/fio.said 2>&1 &
    fio=$!
    done_kills=0
    for _ in $(seq "$kills"); do
        sleep 1.5
        kill -0 $fio 2>/dev/null || break
        kill -9 $daemon
        wait $daemon 2>/dev/null
        # One that dies while it takes the devices over.
        "$program" daemon --config pond.toml >>/tmp/daemon.log 2>&1 &
        daemon=$!
        sleep "$((RANDOM % 3)).$((RANDOM % 10))"
        kill -9 $daemon
        wait $daemon 2>/dev/null
        start --config pond.toml || break
        done_kills=$((done_kills + 1))
    done
    if wait $fio; then
        ok "fio verifies $(basename $device) over $done_kills kills"
    else
        said=$(cat /tmp/fio.said /tmp/fio.out | grep -v '^ ' | head -20)
        bad "fio after $done_kills kills: $said"
    fi
    [ $done_kills -gt 0 ] || bad "fio ended before a kill"
done
# The names are in the kernel, too.
kill -9 $daemon
wait $daemon 2>/dev/null
rm -rf /run/millpond/dev
start --config pond.toml
check "a device is found again without its link" cmp -n 65536 $plain plain.img

# A device whose daemon does not come back.
kill -9 $daemon
wait $daemon 2>/dev/null
dd if=$plain of=/dev/null bs=4k count=1 iflag=direct >/tmp/dd.out 2>&1 &
reader=$!
sleep 1
kill -0 $reader 2>/dev/null && ok "a reader waits for the daemon" || bad "the reader does not wait"
check "give-up" mp ublk --give-up plain
wait $reader && bad "the reader got data from nobody" || ok "then its request fails"
start --config pond.toml
check "and the name has a new block device" cmp -n 65536 $plain plain.img

# Removals.
exec 7<$plain
refused "an open device is not removed" "is open" mp remove plain
check "but by force" mp remove --force plain
dd if=/dev/fd/7 of=/dev/null bs=4k count=1 2>/dev/null && bad "read of a removed device" ||
    ok "who has it open gets errors"
exec 7<&-
check "remove" mp remove wc
test ! -e $wc -a ! -e /dev/millpond/wc && ok "its links are gone" || bad "links stay"
check "create --ublk" mp create again --ublk --table '0 131072 linear /tmp/plain.img 0'
check "rename" mp rename again other
for _ in $(seq 50); do [ -b /run/millpond/dev/other ] && break; sleep 0.1; done
check "the link follows" test -b /run/millpond/dev/other -a ! -e /run/millpond/dev/again
stop
left=$(ls /dev/ublkb* 2>/dev/null)
[ -z "$left" ] && ok "an orderly end leaves no block device" || bad "left: $left"

# An orderly end while a file system is mounted: its clients wait for the next daemon.
start --config pond.toml
check "mkfs.ext4 again" mkfs.ext4 -q -F $wc
check "mount again" mount $wc mnt
seq 100000 >mnt/numbers
cp mnt/numbers mnt/copy
sync
stop
echo 3 >/proc/sys/vm/drop_caches
(cmp mnt/numbers mnt/copy && echo same >/tmp/same) &
reader=$!
start --config pond.toml
wait $reader
said=$(cat /tmp/same 2>/dev/null)
[ "$said" = same ] && ok "a mount outlives an orderly end" || bad "mount lost"
check "umount after it" umount mnt
check "fsck after it" fsck.ext4 -f -n $wc
stop
dmesg | grep -E 'ublk.*(WARN|BUG)|Call Trace' && bad "the kernel complains"
if [ $failed != 0 ]; then
    echo "--- log of the daemon"
    tail -60 /tmp/daemon.log
fi
say "done"
exit $failed
