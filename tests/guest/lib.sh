# SPDX-License-Identifier: Apache-2.0 OR MIT
# What the scripts of the guest share: lines for checks, file systems, discards, and fio over kills.
# Sourced by run.sh.
set -u
failed=0
# What failed checks leave here is kept on the host: logs, fio's output, wrong blocks, images.
evidence=/share/failed

say() { read -r up _ </proc/uptime && echo "[$up] $*"; }
ok() { say "ok: $*"; }
bad() {
    say "FAILED: $*"
    failed=1
}
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
within() { # within SECONDS COMMAND...: the command succeeds by then
    local tries=$(($1 * 10))
    shift
    for _ in $(seq $tries); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

# fio_begin NAME DEVICE SIZE OPTIONS: fio writes SIZE and verifies it, in the background as $!.
# Each run has a seed of its own, so that it takes no block of a run before for one of its own.
fio_begin() {
    local name=$1 device=$2 size=$3 seed=$((RANDOM * 32768 + RANDOM))
    shift 3
    mkdir -p "/tmp/fio/$name"
    (
        cd "/tmp/fio/$name" && rm -f ./* && echo "seed $seed" >said
        exec fio --name=verify --filename="$device" --size="$size" --randseed="$seed" \
            --rw=randwrite --ioengine=libaio --direct=1 --iodepth=16 --verify=crc32c \
            --verify_fatal=1 --verify_dump=1 --verify_state_save=0 "$@" >>said 2>&1
    ) &
}
fio_end() { # fio_end NAME PID WHAT
    if wait "$2"; then
        ok "$3"
        return 0
    fi
    bad "$3: $(cat "/tmp/fio/$1/said")"
    mkdir -p "$evidence" && cp -r "/tmp/fio/$1" "$evidence/fio-$1"
    return 1
}
fio_verify() { # fio_verify NAME DEVICE SIZE OPTIONS
    fio_begin "$@"
    fio_end "$1" $! "fio verifies $1"
}

slowest() { # slowest NAME: of fio's requests, in ms
    awk '$1 == "lat" && /max=/ {
        unit = $2; max = $0; sub(/.*max=[ ]*/, "", max)
        ms = max + 0; if (max ~ /^[0-9.]+k/) ms *= 1000; if (max ~ /^[0-9.]+M/) ms *= 1000000
        if (unit ~ /nsec/) ms /= 1000000; else if (unit ~ /usec/) ms /= 1000
        if (ms > most) most = ms
    } END {printf "%d", most}' "/tmp/fio/$1/said"
}

# over COUNT WHAT COMMAND NAME=DEVICE...: fio writes all devices at once and verifies them, again
# and again, while COMMAND does WHAT (`kills`, `upgrades`) to the daemon, COUNT times in all. In
# every other run blocks are written several times: a write that comes late, or twice, shows.
over() {
    local count=$1 what=$2 command=$3 all=0 runs=0 before word at job
    shift 3
    while [ $all -lt "$count" ]; do
        runs=$((runs + 1))
        before=$all
        job=(12M --bs=4k --norandommap --serialize_overlap=1 --io_size=20M)
        [ $((runs % 2)) = 1 ] || job=(20M --bs=4k-64k)
        local pids=()
        for word; do
            fio_begin "${word%%=*}" "${word#*=}" "${job[@]}" --fsync=64 --rate=4M
            pids+=($!)
        done
        while [ $all -lt "$count" ]; do
            sleep "0.$((RANDOM % 9 + 1))"
            for at in "${pids[@]}"; do kill -0 "$at" 2>/dev/null || break 2; done
            "$command" || return 1
            all=$((all + 1))
        done
        at=0
        for word; do
            word=${word%%=*}
            fio_end "$word" "${pids[$at]}" "fio verifies $word over $((all - before)) $what" ||
                return 1
            say "slowest request to $word: $(slowest "$word") ms"
            at=$((at + 1))
        done
        [ $all -gt $before ] || { bad "fio ended before one of the $what"; return 1; }
    done
    ok "$all $what in $runs runs of fio"
}

# The host serves vda by vhost-user.
vda=/dev/vda
ask() { # ask WORD: host.sh does it
    rm -f /share/answer
    echo "$*" >/share/.ask && mv /share/.ask /share/ask
    within 120 test -e /share/answer
    [ "$(cat /share/answer)" = done ] || { bad "the host did not: $*"; return 1; }
}

file_system() { # file_system KIND DEVICE: made, mounted, used, trimmed, and found clean
    local kind=$1 device=$2
    mkdir -p /tmp/mnt
    case $kind in
    ext4) check "mkfs.ext4" mkfs.ext4 -q -F "$device" ;;
    xfs) check "mkfs.xfs" mkfs.xfs -q -f "$device" ;;
    esac
    check "mount of $kind" mount -t "$kind" "$device" /tmp/mnt
    seq 100000 >/tmp/mnt/numbers
    cp /tmp/mnt/numbers /tmp/mnt/copy
    check "fsync" sync -f /tmp/mnt/numbers
    rm /tmp/mnt/copy
    check "fstrim" fstrim /tmp/mnt
    check "umount" umount /tmp/mnt
    case $kind in
    ext4) check "fsck.ext4" fsck.ext4 -f -n "$device" ;;
    xfs) check "xfs_repair" xfs_repair -n "$device" ;;
    esac
    check "mount again" mount -t "$kind" "$device" /tmp/mnt
    check "the file is as it was" sh -c 'seq 100000 | cmp - /tmp/mnt/numbers'
    check "umount again" umount /tmp/mnt
}

discards() { # discards DEVICE: its first MiB, one half discarded and the other zeroed
    local device=$1
    yes | head -c 1048576 >/tmp/pattern
    check "write" dd if=/tmp/pattern of="$device" bs=1M count=1 oflag=direct status=none
    check "discard" blkdiscard -f -o 0 -l 524288 "$device"
    if cmp -s -n 524288 "$device" /dev/zero && cmp -s -i 524288 -n 524288 "$device" /tmp/pattern
    then
        ok "a discarded range reads as zeroes, the rest as before"
    else
        bad "discard"
    fi
    check "zeroes" blkdiscard -f -z -o 524288 -l 524288 "$device"
    if cmp -s -n 1048576 "$device" /dev/zero; then ok "zeroes are read"; else bad "zeroes"; fi
}
