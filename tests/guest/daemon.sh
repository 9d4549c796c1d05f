# SPDX-License-Identifier: Apache-2.0 OR MIT
# A daemon in the guest that serves block devices. Sourced by run.sh.
export MILLPOND_RUN_DIR=/run/millpond
daemon=
plain=/run/millpond/dev/plain
wc=/run/millpond/dev/wc

mp() { "$program" "$@"; }
begin() { # begin OPTIONS: starts the daemon
    cat /tmp/daemon.now >>/tmp/daemon.log 2>/dev/null
    "$program" daemon "$@" >/tmp/daemon.now 2>&1 &
    daemon=$!
}
start() { # start OPTIONS: starts the daemon and waits until it is ready
    begin "$@"
    for _ in $(seq 1200); do
        grep -q '^millpond: ready' /tmp/daemon.now && return 0
        kill -0 $daemon 2>/dev/null || break
        sleep 0.1
    done
    bad "the daemon does not start: $(tail -3 /tmp/daemon.now)"
    return 1
}
is_gone() { [ ! -e "/proc/$daemon" ]; }
stop() {
    kill "$daemon" || return 1
    # One that has taken over is no child of this script.
    if wait "$daemon" 2>/dev/null; then return 0; fi
    within 60 is_gone && tail -1 /tmp/daemon.now | grep -q "all devices are settled"
}
crash() {
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null
    within 60 is_gone
}
upgrade() { # upgrade OPTIONS: another process takes over
    local before=$daemon
    if ! mp upgrade "$@" >/tmp/upgrade.out 2>&1; then
        bad "upgrade: $(tail -3 /tmp/upgrade.out)"
        return 1
    fi
    daemon=$(cat /run/millpond/lock)
    [ "$daemon" != "$before" ] || { bad "no other process took over"; return 1; }
}
# Kills the daemon, and then one that takes the devices over, at any moment of its start; each time
# another number of cores serves the queues that the first one has made.
kill_twice() {
    crash
    begin --config pond.toml --cores $((RANDOM % 3 + 1))
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    crash
    start --config pond.toml --cores $((RANDOM % 3 + 1))
}
block() { basename "$(readlink "/run/millpond/dev/$1")"; }
sectors() { cat "/sys/class/block/$(block "$1")/size"; }
queue() { cat "/sys/class/block/$(block "$1")/queue/$2"; }
processors() { cat "/sys/class/block/$(block "$1")/mq/$2/cpu_list"; }
queues() { find "/sys/class/block/$(block "$1")/mq/" -mindepth 1 -maxdepth 1 | wc -l; }
metric() { # metric NAME: its value, 0 when it is not there
    curl -s --unix-socket /run/millpond/control.sock http://millpond/metrics >/tmp/metrics
    awk -v name="$1" '$1 == name {value = $2} END {print value + 0}' /tmp/metrics
}
served_by() { metric "millpond_ublk_core_requests_total{core=\"$1\"}"; }
# all_flush: the kernel writes to no device to find memory for any thread that serves
# (PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE, which PR_SET_IO_FLUSHER sets).
all_flush() {
    local task flags cores=0
    for task in /proc/$daemon/task/*; do
        case $(cat "$task/comm" 2>/dev/null) in core*) ;; *) continue ;; esac
        flags=$(sed 's/.*) //' "$task/stat" | cut -d' ' -f7)
        [ $((flags & 0x180000)) = $((0x180000)) ] || return 1
        cores=$((cores + 1))
    done
    [ $cores = 2 ]
}

# Three devices in memory of the guest, and their configuration: each of the two cores has the first
# two itself.
make_pond() {
    rm -f /tmp/*.img
    truncate -s 320M /tmp/origin.img
    truncate -s 64M /tmp/cache.img
    truncate -s 96M /tmp/plain.img
    cat >/tmp/pond.toml <<'C'
ublk = true
cores = 2
memory = "1G"
[[device]]
name = "plain"
table = "0 131072 linear ./plain.img 0"
[[device]]
name = "ram"
table = "0 65536 linear mem:32M 0"
[[device]]
name = "wc"
table = "0 655360 writecache s ./origin.img ./cache.img 4096 0"
C
}

# After a failure: what the daemon has said and stored.
keep_pond() {
    mkdir -p "$evidence"
    cat /tmp/daemon.now >>/tmp/daemon.log 2>/dev/null
    cp /tmp/daemon.log "$evidence/"
    dmesg >"$evidence/dmesg"
    kill -9 "$daemon" 2>/dev/null
    cp --sparse=always /tmp/*.img /run/millpond/{journal,buffer}-* "$evidence/" 2>/dev/null
    echo "--- log of the daemon"
    tail -60 /tmp/daemon.log
}
