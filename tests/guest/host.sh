#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The host's side of vhost-user.sh: serves a disk to the guest, and does what the guest asks for in
# the shared folder. At SIGTERM it ends the daemon in order, and its exit status is the daemon's.
#
#   host.sh PROGRAM DIR SHARE
#
# DIR is an empty folder: its sockets have short paths there. DIR/ready appears when the disk is
# served, DIR/log is the daemon's.
set -u
program=$1
dir=$2
share=$3
export MILLPOND_RUN_DIR=$dir/run
daemon=

begin() {
    began=$(wc -l <"$dir/log")
    "$program" daemon --config "$dir/host.toml" >>"$dir/log" 2>&1 &
    daemon=$!
}
is_gone() { [ ! -e "/proc/$daemon" ]; }
end_of_daemon() { # one that has taken over is no child of this script
    for _ in $(seq 600); do
        is_gone && return 0
        sleep 0.1
    done
    return 1
}
ready() { [ -e "$dir/run/control.sock" ] && "$program" ls >/dev/null 2>&1; }
start() {
    begin
    for _ in $(seq 300); do
        ready && return 0
        kill -0 "$daemon" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
# Whether the daemon has not begun to listen, or the queues of the guest run. qemu 7.2 says nothing
# to any later daemon when one dies between its connection and the answer to its first message
# (docs/vhost-user.md).
is_no_handshake() {
    tail -n "+$((began + 1))" "$dir/log" | grep -q "device created" || return 0
    "$program" clients -o json 2>/dev/null | grep -q '"queues_by_core"'
}
crash() { # at any moment but that
    for _ in $(seq 600); do
        is_no_handshake && break
        sleep 0.05
    done
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null
    end_of_daemon
}
upgrade() {
    "$program" upgrade || return 1
    daemon=$(cat "$dir/run/lock")
}
kill_twice() { # the second one dies at any moment of its start
    crash
    begin
    sleep "0.$((RANDOM % 10))"
    crash
    start
}
end() {
    kill "$daemon"
    wait "$daemon" && exit 0
    end_of_daemon && tail -1 "$dir/log" | grep -q "all devices are settled"
    exit $?
}
trap end TERM

touch "$dir/log"
truncate -s 320M "$dir/origin.img"
truncate -s 64M "$dir/cache.img"
cat >"$dir/host.toml" <<'C'
vhost_user = "./vm"
[[device]]
name = "vm"
table = "0 - writecache s ./origin.img ./cache.img 4096 0"
C
start || exit 1
touch "$dir/ready"
while sleep 0.1; do
    [ -e "$share/ask" ] || continue
    read -r word <"$share/ask"
    rm "$share/ask"
    case $word in
    kill) kill_twice ;;
    upgrade) upgrade ;;
    connected-once) [ "$(grep -c "front end connected" "$dir/log")" = 1 ] ;;
    grow) truncate -s 384M "$dir/origin.img" && "$program" resize vm ;;
    *) false ;;
    esac >>"$dir/log" 2>&1
    if [ $? = 0 ]; then echo done; else echo failed; fi >"$share/.answer"
    mv "$share/.answer" "$share/answer"
done
