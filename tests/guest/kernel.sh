# SPDX-License-Identifier: Apache-2.0 OR MIT
# The kernel's own dm-writecache, zram and dm-linear beside ours, by turns on the same virtio disks
# under the same jobs: requests and sectors at each disk, requests a second, seconds of CPU. Ours
# are served by block devices of the kernel (ublk), and by NBD. Sourced by run.sh.
#
# $rounds is the number of rounds. In an emulated machine absolute times mean little, and vector
# instructions cost more than elsewhere; counts of requests and sectors are what they are. With
# GUEST_ICOUNT times are instructions of the guest.
for module in virtio_blk ublk_drv dm_mod dm_writecache zram lz4 lz4_compress; do
    guest-modprobe $module 2>/dev/null
done
. "$here/measure.sh"
find_disks || return
start || return

options="high_watermark 99 low_watermark 98"
writecache() {
    local table="0 $((area * 2048)) writecache s $slow $fast 4096" ours_only=
    [ "$1" != ublk-sorted ] || ours_only=" gap_fill 0"
    table="$table $((4 + $(wc -w <<<"$ours_only"))) $options$ours_only"
    empty_cache
    case $1 in
    kernel)
        dmsetup create --noudevsync kernel_wc --table "$table" || { bad "dm-writecache"; return; }
        fill_and_flush writecache-kernel "$(block_device "$(node kernel_wc)")" \
            dmsetup message kernel_wc 0 flush
        dmsetup remove --noudevsync kernel_wc
        ;;
    ublk | ublk-sorted)
        mp create wc --ublk --table "$table" >/tmp/out 2>&1 || { bad "$(cat /tmp/out)"; return; }
        fill_and_flush "writecache-$1" "$(block_device /run/millpond/dev/wc)" mp message wc 0 flush
        mp remove wc
        ;;
    nbd)
        mp create wc --table "$table" >/tmp/out 2>&1 || { bad "$(cat /tmp/out)"; return; }
        fill_and_flush writecache-nbd "$(export_of wc)" mp message wc 0 flush
        mp remove wc
        ;;
    esac
}

# Pages that do not compress, written back when all of them are idle.
ram=96
fill_and_write_back() { # fill_and_write_back WHO WHERE IDLE...
    local who=$1 where=$2
    shift 2
    # shellcheck disable=SC2086
    measure "$who-fill" job 16 randwrite --size=${ram}m --refill_buffers \
        --buffer_compress_percentage=0 $where || return
    echo "$who-fill-iops $(cat /tmp/iops)" >>$figures
    measure "$who-writeback" "$@"
}
idle_pages() { # idle_pages FOLDER: of the kernel's attributes
    echo all >"$1/idle" && echo idle >"$1/writeback"
}
# What a block device of ours costs before anything is compressed: the bound of filling by one.
ublk_null() {
    mp create null --ublk --table "0 $((ram * 2048)) linear null:${ram}M 0" >/tmp/out 2>&1 ||
        { bad "$(cat /tmp/out)"; return; }
    # shellcheck disable=SC2046
    measure null-ublk-fill job 16 randwrite --size=${ram}m --refill_buffers \
        --buffer_compress_percentage=0 $(block_device /run/millpond/dev/null)
    echo "null-ublk-fill-iops $(cat /tmp/iops)" >>$figures
    mp remove null
}
our_idle_pages() { mp set z idle all && mp set z writeback idle; }
compressed() {
    case $1 in
    kernel)
        local at=/sys/block/zram0
        [ -e $at ] || { bad "no zram0"; return; }
        echo lz4 >$at/comp_algorithm
        echo "$fast" >$at/backing_dev || { bad "zram0 takes no backing device"; return; }
        echo ${ram}M >$at/disksize
        fill_and_write_back zram-kernel "$(block_device /dev/zram0)" idle_pages $at
        echo 1 >$at/reset
        ;;
    *)
        local door=() where
        [ "$1" = nbd ] || door=(--ublk)
        mp create z "${door[@]}" --table "0 $((ram * 2048)) zram lz4 2 backing_dev $fast" \
            >/tmp/out 2>&1 || { bad "$(cat /tmp/out)"; return; }
        where=$(export_of z)
        [ "$1" = nbd ] || where=$(block_device /run/millpond/dev/z)
        fill_and_write_back "zram-$1" "$where" our_idle_pages
        mp remove z
        ;;
    esac
}

linear() {
    local table="0 $((area * 2048)) linear $slow 0" where
    case $1 in
    kernel)
        dmsetup create --noudevsync kernel_linear --table "$table" || { bad "dm-linear"; return; }
        where=$(block_device "$(node kernel_linear)")
        ;;
    ublk) mp create l --ublk --table "$table" && where=$(block_device /run/millpond/dev/l) ;;
    nbd) mp create l --table "$table" && where=$(export_of l) ;;
    esac
    for depth in 1 32; do
        # shellcheck disable=SC2086
        measure "linear-$1-$depth" job $depth randread --size=${area}m --io_size=16m $where
        echo "linear-$1-$depth-iops $(cat /tmp/iops)" >>$figures
    done
    if [ "$1" = kernel ]; then dmsetup remove --noudevsync kernel_linear; else mp remove l; fi
}

for round in $(seq "$rounds"); do
    order="kernel ublk nbd"
    [ $((round % 2)) = 1 ] || order="nbd ublk kernel"
    for what in writecache compressed linear; do
        for who in $order; do
            # The same without bytes between dirty blocks, as dm-writecache writes back.
            [ "$what $who" != "writecache ublk" ] || writecache ublk-sorted
            [ $failed = 0 ] || break 3
            $what "$who"
        done
    done
    [ $failed = 0 ] || break
    ublk_null
    say "round $round of $rounds is done"
done
stop
print_figures
