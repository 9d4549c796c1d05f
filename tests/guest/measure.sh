# SPDX-License-Identifier: Apache-2.0 OR MIT
# Jobs of fio that are measured, with what they do to two virtio disks: what kernel.sh and bcache.sh
# share. Sourced by both.
figures=/tmp/figures
area=256 # MiB of the origin
dirty=64 # MiB that fio writes to fill a cache: 16,384 blocks
disk() { # disk SERIAL: the virtio disk of it
    local at
    for at in /sys/block/vd*; do
        [ "$(cat "$at/serial" 2>/dev/null)" = "$1" ] && echo "/dev/${at##*/}" && return 0
    done
    return 1
}
slow= fast=
find_disks() { # the two of scripts/guest.sh: $slow and $fast
    within 5 disk cache && within 5 disk origin ||
        { bad "no disks of serial origin and cache: scripts/guest.sh makes them"; return 1; }
    slow=$(disk origin)
    fast=$(disk cache)
    rm -f $figures
}

# counts DISK: reads, sectors read, writes, sectors written so far
counts() { awk '{print $1, $3, $5, $7}' "/sys/block/${1##*/}/stat"; }
busy() { awk '$1 == "cpu" {print ($2 + $3 + $4 + $7 + $8)}' /proc/stat; } # in 1/100 s
now() { read -r up _ </proc/uptime && echo "$up"; }
# measure WHAT COMMAND...: its seconds and CPU, and what it did to each disk, as a line of
# $figures: WHAT, s, CPU s, and of the origin and of the cache reads, sectors, writes, sectors
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
# job DEPTH RW OPTIONS: fio's requests a second, and the time within which 99 % of them end in ms,
# are in /tmp/iops
job() {
    local depth=$1 rw=$2
    shift 2
    fio --name=kernel --rw="$rw" --bs=4k --iodepth="$depth" --randseed=7 --output-format=terse \
        --terse-version=3 "$@" >/tmp/terse || return 1
    awk -F';' '$1 == 3 {
        p99 = $8 ? $30 : $71
        sub(/.*=/, "", p99)
        print $8 + $49, p99 / 1000
    }' /tmp/terse >/tmp/iops
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
median_of() { # median_of WHAT COLUMN
    grep "^$1 " $figures | cut -d' ' -f"$2" | sort -n |
        awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}
print_figures() { # a line for each job: medians over the rounds
    local what iops p99 row column
    say "                            time    CPU 4 KiB IOPS      p99" \
        "   reads sectors  writes sectors   reads sectors  writes sectors"
    say "                               s      s                  ms    of the origin" \
        "                     of the cache, or of zram's disk"
    for what in $(cut -d' ' -f1 $figures | grep -v -e '-iops$' | awk '!seen[$1]++'); do
        iops=- p99=-
        if grep -q "^$what-iops " $figures; then
            iops=$(median_of "$what-iops" 2)
            p99=$(median_of "$what-iops" 3)
        fi
        row=
        for column in 4 5 6 7 8 9 10 11; do row="$row $(median_of "$what" $column)"; done
        # shellcheck disable=SC2086
        say "$(printf '%-24s %7s %6s %10s %8s  %7s %7s %7s %7s  %7s %7s %7s %7s' "$what" \
            "$(median_of "$what" 2)" "$(median_of "$what" 3)" "$iops" "$p99" $row)"
    done
}
