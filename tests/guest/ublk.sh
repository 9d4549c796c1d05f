# SPDX-License-Identifier: Apache-2.0 OR MIT
# Block devices of the kernel, as clients see them. Sourced by run.sh.
refused "without the driver the error says what to do" "modprobe ublk_drv" \
    mp daemon --ublk
for module in ublk_drv ext4 xfs; do
    guest-modprobe $module || bad "no module $module"
done
make_pond
ln -sf $program dmsetup
mkdir -p mnt
start --config pond.toml || return
ok "the daemon starts"
check "root has links in /dev" test -b /dev/millpond/plain -a -b /dev/millpond/wc
sizes="$(sectors plain) $(sectors wc)"
[ "$sizes" = "131072 655360" ] && ok "sizes" || bad "sizes: $sizes"
limits="$(queue wc logical_block_size) $(queue wc physical_block_size) $(queue wc fua)"
[ "$limits" = "512 4096 1" ] && ok "limits of the cache" || bad "limits of the cache: $limits"
largest=$(for name in plain ram wc; do queue $name max_hw_sectors_kb; done | paste -sd" ")
[ "$largest" = "256 256 1024" ] && ok "the kernel copies data of the first two devices" ||
    bad "largest requests: $largest KiB"
several=$(grep -c 'block device made.* several_at_once=true' /tmp/daemon.now)
[ "$several" = 2 ] && ok "and their requests are taken several at a time" ||
    bad "$several devices take several requests at a time"
[ "$(queue wc write_cache)" = "write back" ] && ok "volatile cache" || bad "volatile cache"
mp ublk >/tmp/list
grep -Eq 'wc +live +[0-9]+ +1 +yes' /tmp/list && grep -Eq 'ram +live +[0-9]+ +2 +no' /tmp/list &&
    ok "devices in memory are made without recovery" || bad "recovery: $(cat /tmp/list)"

mp clients >/tmp/list
grep -Eq 'ublk[0-9]+ +wc +/dev/ublkb[0-9]' /tmp/list && ok "clients" || bad "$(cat /tmp/list)"
lock=$(sed -n 's/^VmLck:[^0-9]*\([0-9]*\).*/\1/p' /proc/$daemon/status)
! grep -E 'IO_FLUSHER|mlockall' /tmp/daemon.now && [ "$lock" -gt 0 ] &&
    ok "$lock kB of the daemon are locked" || bad "memory"

all_flush && ok "both cores are IO flushers" || bad "a core is no IO flusher"
counts="$(queues plain) $(queues wc) $(queues ram)"
[ "$counts" = "2 1 2" ] && ok "a queue for each core that has the device" ||
    bad "queues: $counts"
for core in 0 1; do
    before=$(served_by $core)
    fio_verify plain $plain 4M --bs=4k --cpus_allowed="$(processors plain $core)"
    served=$(($(served_by $core) - before))
    [ $served -ge 2000 ] && ok "core $core serves the queue of its processor: $served requests" ||
        bad "core $core served $served of 2048 requests"
done

refused "a device that is served is not given up" "serves it" mp ublk --give-up plain
fio_verify plain $plain 16M --bs=4k-64k
fio_verify wc $wc 16M --bs=4k-64k --fsync=32
file_system ext4 $wc
file_system xfs $wc
discards $plain
check "mount" mount $wc mnt
refused "a device that is mounted is not removed" "is open" mp remove wc
check "umount" umount mnt

metrics=$(curl -s --unix-socket /run/millpond/control.sock http://millpond/metrics)
grep -q 'millpond_ublk_write_bytes_total [1-9]' <<<"$metrics" &&
    grep -q 'millpond_ublk_block_devices 3' <<<"$metrics" && ok "metrics" ||
    bad "metrics: $(grep ublk <<<"$metrics")"

# The attribute.
exec 7<$plain
check "doors without ublk" mp set plain doors nbd
sleep 2
[ -b $plain ] && ok "who has it open keeps it" || bad "an open device is gone"
exec 7<&-
within 20 test ! -e $plain && ok "then it goes" || bad "it stays"
check "doors with ublk" mp set plain doors nbd,ublk
check "it is there again" test -b $plain

# A table that core 0 alone has, and back, under fio: queues stay where they are.
fio_begin plain $plain 12M --bs=4k-64k --fsync=32 --rate=2M
writer=$!
for table in "delay /tmp/plain.img 0 1" "linear /tmp/plain.img 0"; do
    sleep 1
    check "load $table" ./dmsetup reload plain --table "0 131072 $table"
    check "suspend and resume" eval "./dmsetup suspend plain && ./dmsetup resume plain"
done
fio_end plain $writer "fio verifies plain over reloads"
check "the queues stay" test "$(queues plain)" = 2

# Another size, while it is open.
exec 7<$plain
check "resize" mp resize plain 96M
exec 7<&-
[ "$(sectors plain)" = 196608 ] && ok "the kernel has the new size" || bad "size $(sectors plain)"

# The names are in the kernel, too; and so is the number of queues.
crash
rm -rf /run/millpond/dev
start --config pond.toml --cores 1
check "a device is found again without its link" cmp -n 65536 $plain plain.img
[ "$(queues plain) $(queues wc)" = "2 1" ] && ok "one core takes two queues over" ||
    bad "queues: $(queues plain) $(queues wc)"
before=$(served_by 0)
fio_verify plain $plain 4M --bs=4k --cpus_allowed="$(processors plain 1)"
[ $(($(served_by 0) - before)) -ge 2000 ] && ok "and serves both" || bad "it does not serve both"

# A device whose daemon does not come back.
crash
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
exec 7<$wc
check "remove --deferred" mp remove --deferred wc
[ "$(head -c 512 <&7 | wc -c)" = 512 ] && ok "it is there while it is open" || bad "it is gone"
exec 7<&-
within 20 test ! -e $wc && ok "and goes when it is closed" || bad "it stays"
refused "its device is gone, too" "no such device" mp info wc
test ! -e /dev/millpond/wc && ok "its links are gone" || bad "links stay"
check "create --ublk" mp create again --ublk --table '0 131072 linear /tmp/plain.img 0'
check "rename" mp rename again other
within 20 test -b /run/millpond/dev/other
check "the link follows" test -b /run/millpond/dev/other -a ! -e /run/millpond/dev/again
check "remove" mp remove other
test ! -e /run/millpond/dev/other && ok "its link is gone" || bad "the link stays"
stop
left=$(ls /dev/ublkb* 2>/dev/null)
[ -z "$left" ] && ok "an orderly end leaves no block device" || bad "left: $left"

# A daemon that was not started for block devices; and a device that core 0 alone has.
start --cores 2
check "create --ublk" mp create late --ublk --table '0 131072 delay /tmp/plain.img 0 0'
all_flush && ok "both cores are IO flushers then" || bad "a core is no IO flusher then"
[ "$(queues late)" = 1 ] && ok "a device of core 0 has one queue" || bad "queues: $(queues late)"
check "read" cmp -n 65536 /run/millpond/dev/late plain.img
stop

# An orderly end while a file system is mounted: its clients wait for the next daemon.
start --config pond.toml
check "mkfs.ext4 again" mkfs.ext4 -q -F $wc
check "mount again" mount $wc mnt
seq 100000 >numbers
cp numbers mnt/numbers
sync
check "an orderly end of the daemon" stop
dd if=mnt/numbers iflag=direct bs=1M status=none 2>/tmp/dd.out | cmp - numbers &
reader=$!
sleep 1
kill -0 $reader 2>/dev/null && ok "a reader waits for the next one" ||
    bad "the reader does not wait"
start --config pond.toml
wait $reader && ok "a mount outlives an orderly end" || bad "mount lost: $(cat /tmp/dd.out)"
check "umount after it" umount mnt
check "fsck after it" fsck.ext4 -f -n $wc
stop
