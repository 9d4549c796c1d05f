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
disk() { # disk SERIAL: the virtio disk of it
    local at
    for at in /sys/block/vd*; do
        [ "$(cat "$at/serial" 2>/dev/null)" = "$1" ] && echo "/dev/${at##*/}" && return 0
    done
    return 1
}
within 5 disk cache && within 5 disk origin ||
    { bad "no disks of serial origin and cache: scripts/guest.sh makes them"; return; }
slow=$(disk origin)
fast=$(disk cache)
area=256 # MiB of the origin
dirty=64 # MiB that fio writes: 16,384 blocks
start || return

# counts DISK: reads, sectors read, writes, sectors written so far
counts() { awk '{print $1, $3, $5, $7}' "/sys/block/${1##*/}/stat"; }
busy() { awk '$1 == "cpu" {print ($2 + $3 + $4 + $7 + $8)}' /proc/stat; } # in 1/100 s
now() { read -r up _ </proc/uptime && echo "$up"; }
# measure WHAT COMMAND...: its seconds and CPU, and what it did to each disk, as a line of
# $figures: WHAT, s, CPU s, and of the origin and of the cache reads, sectors, writes, sectors
figures=/tmp/figures
measure() {
    local what=$1 from_slow from_fast from_busy from
    shift
    sync
    from_slow=$(counts "$slow") from_fast=$(counts "$fast") from_busy=$(busy) from=$(now)
    "$@" >/tmp/out 2>&1 || { bad "$what: $* said: $(tail -5 /tmp/out)"; return 1; }
    echo "$what $from $(now) $from_busy $(busy)" \
        "$from_slow $(counts "$slow") $from_fast $(counts "$fast")" |
        awk '{printf "%s %.2f %.2f", $1, $3 - $2, ($5 - $4) / 100
            for (k = 6; k <= 9; k++) printf " %d", $(k + 4) - $k
            for (k = 14; k <= 17; k++) printf " %d", $(k + 4) - $k
            print ""}' >>$figures
}
job() { # job DEPTH RW OPTIONS: fio's requests a second are in /tmp/iops
    local depth=$1 rw=$2
    shift 2
    fio --name=kernel --rw="$rw" --bs=4k --iodepth="$depth" --randseed=7 --output-format=terse \
        --terse-version=3 "$@" >/tmp/terse || return 1
    awk -F';' '$1 == 3 {print $8 + $49}' /tmp/terse >/tmp/iops
}
# Where the job finds the device: a block device, or an export.
block_device() { echo "--filename=$1 --ioengine=libaio --direct=1"; }
export_of() { echo "--ioengine=nbd --uri=nbd+unix:///$1?socket=$MILLPOND_RUN_DIR/nbd.sock"; }
node() { echo "/dev/dm-$(dmsetup info -c --noheadings -o minor "$1")"; }
empty_cache() { dd if=/dev/zero of="$fast" bs=1M count=16 oflag=direct status=none; }

# fill_and_flush WHO WHERE FLUSH...: a cache gets dirty blocks, and writes them back.
fill_and_flush() {
    local who=$1 where=$2
    shift 2
    # shellcheck disable=SC2086
    measure "$who-fill" job 20 randwrite --size=${area}m --io_size=${dirty}m $where || return
    echo "$who-fill-iops $(cat /tmp/iops)" >>$figures
    measure "$who-flush" "$@"
}
options="4 high_watermark 99 low_watermark 98"
writecache() {
    local table="0 $((area * 2048)) writecache s $slow $fast 4096 $options"
    empty_cache
    case $1 in
    kernel)
        dmsetup create --noudevsync kernel_wc --table "$table" || { bad "dm-writecache"; return; }
        fill_and_flush writecache-kernel "$(block_device "$(node kernel_wc)")" \
            dmsetup message kernel_wc 0 flush
        dmsetup remove --noudevsync kernel_wc
        ;;
    ublk)
        mp create wc --ublk --table "$table" >/tmp/out 2>&1 || { bad "$(cat /tmp/out)"; return; }
        fill_and_flush writecache-ublk "$(block_device /run/millpond/dev/wc)" mp message wc 0 flush
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

rm -f $figures
for round in $(seq "$rounds"); do
    order="kernel ublk nbd"
    [ $((round % 2)) = 1 ] || order="nbd ublk kernel"
    for what in writecache compressed linear; do
        for who in $order; do
            [ $failed = 0 ] || break 3
            $what "$who"
        done
    done
    say "round $round of $rounds is done"
done
stop

# A line for each job: medians over the rounds.
median_of() { # median_of WHAT COLUMN
    grep "^$1 " $figures | cut -d' ' -f"$2" | sort -n |
        awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}
say "                            time    CPU 4 KiB IOPS    reads sectors  writes sectors    reads" \
    "sectors  writes sectors"
say "                               s      s               of the origin" \
    "                     of the cache, or of zram's disk"
for what in $(cut -d' ' -f1 $figures | grep -v -e '-iops$' | awk '!seen[$1]++'); do
    iops=-
    if grep -q "^$what-iops " $figures; then iops=$(median_of "$what-iops" 2); fi
    row=
    for column in 4 5 6 7 8 9 10 11; do row="$row $(median_of "$what" $column)"; done
    # shellcheck disable=SC2086
    say "$(printf '%-24s %7s %6s %10s  %7s %7s %7s %7s  %7s %7s %7s %7s' "$what" \
        "$(median_of "$what" 2)" "$(median_of "$what" 3)" "$iops" $row)"
done
