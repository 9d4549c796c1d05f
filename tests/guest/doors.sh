# SPDX-License-Identifier: Apache-2.0 OR MIT
# 4 KiB requests to block devices of the kernel, ours beside those of rublk, by turns: requests a
# second, and for each request the server's wake-ups and system calls. Sourced by run.sh. Servers
# run on processor 0, fio on processor 1. With GUEST_ICOUNT time is the instructions of both, and
# only ratios mean something.
#
# $rounds is the number of rounds.
rublk=/share/rublk
[ -x $rublk ] || { bad "no rublk: scripts/guest.sh takes it from RUBLK"; return; }
[ -e /dev/ublk-control ] || guest-modprobe ublk_drv
mib=256
seconds=1
truncate -s ${mib}M ours.img theirs.img
# No block is made while it is measured.
for file in ours.img theirs.img; do
    dd if=/dev/urandom of=$file bs=1M count=$mib conv=notrunc status=none
done
cp $rublk /tmp/rublk
rublk=/tmp/rublk
cat >/tmp/doors.toml <<C
ublk = true
[[device]]
name = "null"
table = "0 $((mib * 2048)) linear null:${mib}M 0"
[[device]]
name = "file"
table = "0 $((mib * 2048)) linear ./ours.img 0"
C
start --config doors.toml || return
ours_pid=$daemon

peer() { # peer NUMBER TARGET OPTIONS: rublk makes /dev/ublkbNUMBER; its process is $!
    local number=$1
    shift
    $rublk add "$@" -n "$number" -q 1 -d 128 --foreground >>/tmp/rublk.log 2>&1 &
    within 20 test -b "/dev/ublkb$number" || { bad "rublk: $(tail -3 /tmp/rublk.log)"; return 1; }
}
peer 20 null || return
theirs_null=$!
peer 21 loop -f /tmp/theirs.img || return
theirs_file=$!
# Their queues may have chosen other processors.
for pid in $ours_pid $theirs_null $theirs_file; do taskset -apc 0 "$pid" >/dev/null; done
say "$($rublk --version | tail -1)"

# run DEVICE JOB DEPTH: prints requests a second, and requests.
run() {
    [ -b "$1" ] || { bad "$1 is gone: $(tail -3 /tmp/rublk.log)"; return 1; }
    taskset -c 1 fio --name=doors --filename="$1" --rw="$2" --iodepth="$3" --bs=4k --direct=1 \
        --ioengine=io_uring --time_based --runtime=$seconds --size=${mib}M --randrepeat=0 \
        --output-format=terse --terse-version=3 | awk -F';' \
        '$1 == 3 {print $8 + $49, ($6 + $47) / 4}'
}
sleeps() { grep -H '^voluntary_ctxt' /proc/"$1"/task/*/status; }
# The kernel counts: a tracer that stops a server would end rublk.
trace=/sys/kernel/tracing/events/raw_syscalls/sys_enter
mount -t tracefs tracefs /sys/kernel/tracing
calls() { # calls PID RUN...: system calls of a request
    local pid=$1 ios
    shift
    echo hist:keys=common_pid >$trace/trigger
    ios=$(run "$@" | cut -d' ' -f2)
    cat $trace/hist >/tmp/calls
    echo '!hist:keys=common_pid' >$trace/trigger
    awk -v ios="$ios" -v threads=" $(ls "/proc/$pid/task" | paste -sd' ') " \
        '/common_pid/ && index(threads, " " $3 " ") {n += $NF} END {printf "%.2f", n / ios}' \
        /tmp/calls
}
median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

for backing in null file; do
    theirs=$theirs_null number=20
    [ $backing = null ] || { theirs=$theirs_file number=21; }
    for job in "randread 1" "randread 32" "randwrite 32"; do
        rm -f /tmp/ratios /tmp/ours.* /tmp/theirs.*
        for round in $(seq "$rounds"); do
            for who in $([ $((round % 2)) = 1 ] && echo ours theirs || echo theirs ours); do
                pid=$ours_pid device=/run/millpond/dev/$backing
                [ $who = ours ] || { pid=$theirs device=/dev/ublkb$number; }
                sleeps "$pid" >/tmp/before
                # shellcheck disable=SC2086
                read -r iops ios < <(run $device $job) || return
                # Threads that end meanwhile are left out.
                sleeps "$pid" | awk -F'[:\t]' -v ios="$ios" \
                    'NR == FNR {before[$1] = $NF; next} {n += $NF - before[$1]}
                    END {printf "%.2f\n", n / ios}' /tmp/before - >>/tmp/$who.woken
                echo "$iops" >>/tmp/$who.iops
            done
            awk -v a="$(tail -1 /tmp/ours.iops)" -v b="$(tail -1 /tmp/theirs.iops)" \
                'BEGIN {printf "%.3f\n", a / b}' >>/tmp/ratios
        done
        # shellcheck disable=SC2086
        say "$backing, $job: ours $(median </tmp/ours.iops), rublk $(median </tmp/theirs.iops)," \
            "ratio $(median </tmp/ratios) ($(sort -n /tmp/ratios | sed -n '1p;$p' | paste -sd-));" \
            "wake-ups $(median </tmp/ours.woken), $(median </tmp/theirs.woken);" \
            "system calls $(calls "$ours_pid" /run/millpond/dev/$backing $job)," \
            "$(calls "$theirs" /dev/ublkb$number $job)"
    done
done
$rublk del -n 20 >/dev/null
$rublk del -n 21 >/dev/null
stop
