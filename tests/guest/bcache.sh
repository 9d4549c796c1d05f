# SPDX-License-Identifier: Apache-2.0 OR MIT
# The kernel's bcache (cache_mode writeback) beside a write cache that reads, too (read_cache), by
# turns on the same virtio disks under the same jobs: 16,384 blocks are written and written back;
# then 49,152 reads by zipf 1.1 over 256 MiB before a cache of 64 MiB, twice, the second time with
# what is in it. Sourced by run.sh. The columns are those of kernel.sh.
for module in virtio_blk ublk_drv dm_mod bcache; do
    guest-modprobe $module 2>/dev/null
done
command -v make-bcache >/dev/null ||
    { bad "needs make-bcache (scripts/setup.sh bench-kernel installs it)"; return; }
[ -e /sys/fs/bcache/register ] || { bad "no bcache in this kernel"; return; }
. "$here/measure.sh"
find_disks || return
start || return

small=
make_small() { # $small: 64 MiB of the cache device
    empty_cache
    dmsetup create --noudevsync small --table "0 131072 linear $fast 0" && small=$(node small)
}
remove_small() { dmsetup remove --noudevsync small; }
zipf_reads() { # zipf_reads WHO WHERE: cold, then with what the cache has
    local pass
    for pass in cold warm; do
        # shellcheck disable=SC2086
        measure "$1-zipf-$pass" job 8 randread --size=${area}m --io_size=192m --norandommap \
            --random_distribution=zipf:1.1 $2 || return
        echo "$1-zipf-$pass-iops $(cat /tmp/iops)" >>$figures
    done
}

set_of= # the folder of the cache set
bcache=/sys/block/bcache0/bcache
attach() { # attach CACHE BUCKET: /dev/bcache0 is there, before an empty cache
    local uuid
    dd if=/dev/zero of="$slow" bs=1M count=1 oflag=direct status=none
    make-bcache -C "$1" --bucket "$2" --block 4k >/tmp/out 2>&1 &&
        make-bcache -B "$slow" --block 4k >>/tmp/out 2>&1 ||
        { bad "make-bcache: $(cat /tmp/out)"; return 1; }
    uuid=$(bcache-super-show "$1" | awk '$1 == "cset.uuid" {print $2}')
    set_of=/sys/fs/bcache/$uuid
    echo "$1" >/sys/fs/bcache/register && within 5 test -e "$set_of" &&
        echo "$slow" >/sys/fs/bcache/register && within 5 test -e $bcache &&
        echo "$uuid" >$bcache/attach && echo writeback >$bcache/cache_mode &&
        echo 0 >$bcache/writeback_running || { bad "bcache does not start"; return 1; }
    # No request goes around the cache because the cache device is slow here.
    echo 0 >"$set_of/congested_read_threshold_us"
    echo 0 >"$set_of/congested_write_threshold_us"
}
detach() {
    echo 1 >$bcache/stop
    within 20 test ! -e /sys/block/bcache0 || { bad "bcache0 does not stop"; return 1; }
    echo 1 >"$set_of/stop"
    within 20 test ! -e "$set_of" || bad "the cache set does not stop"
}
is_clean() { [ "$(cat $bcache/state)" = clean ]; }
write_back() { # all of it, as fast as it can
    echo 0 >$bcache/writeback_percent && echo 1 >$bcache/writeback_running || return 1
    within 120 is_clean || { echo "it is $(cat $bcache/state)"; return 1; }
}
kernel_bcache() {
    empty_cache
    attach "$fast" 256k || return
    echo 0 >$bcache/sequential_cutoff
    fill_and_flush bcache "$(block_device /dev/bcache0)" write_back
    detach && make_small && attach "$small" 32k || return
    zipf_reads bcache "$(block_device /dev/bcache0)"
    detach && remove_small
}

ours() {
    local table="0 $((area * 2048)) writecache s $slow" rest="high_watermark 99 low_watermark 98"
    empty_cache
    mp create wc --ublk --table "$table $fast 4096 6 $rest read_cache 1" >/tmp/out 2>&1 ||
        { bad "$(cat /tmp/out)"; return; }
    fill_and_flush millpond "$(block_device /run/millpond/dev/wc)" mp message wc 0 flush
    mp remove wc
    make_small
    mp create wc --ublk --table "$table $small 4096 2 read_cache 1" >/tmp/out 2>&1 ||
        { bad "$(cat /tmp/out)"; return; }
    zipf_reads millpond "$(block_device /run/millpond/dev/wc)"
    mp remove wc
    remove_small
}

for round in $(seq "$rounds"); do
    order="kernel_bcache ours"
    [ $((round % 2)) = 1 ] || order="ours kernel_bcache"
    for who in $order; do
        [ $failed = 0 ] || break 2
        $who
    done
    say "round $round of $rounds is done"
done
stop
print_figures
