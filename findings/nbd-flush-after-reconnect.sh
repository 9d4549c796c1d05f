#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# qemu's NBD client with `reconnect-delay`, and nbdkit's filter `retry` before its plugin `nbd`,
# send a FLUSH again on a new connection. The new server has lost what the old one had
# acknowledged and not flushed, and knows nothing of it: the FLUSH succeeds, and the data are
# gone. One would expect an error of that FLUSH, as a disk gives that has lost its cache: whoever
# reconnects by itself has to remember which acknowledged writes no FLUSH has covered.
#
# Seen with qemu-utils 1:7.2+dfsg-7+deb12u18+b3 and nbdkit 1.32.5-1 of Debian 12, 2026-11-29, for
# both clients (qemu-io 7.2.22):
#   qemu: written, lost, exit status with the FLUSH: 1 1 0
#   nbdkit-retry: written, lost, exit status with the FLUSH: 1 1 0
#   qemu-without: written, lost, exit status with the FLUSH: 1 1 1
# Without `reconnect-delay` qemu's FLUSH fails: the third line is the control.
#
# Needs bash, apt-get with Debian 12's package lists (apt-get update), dpkg. Exit 0: as seen.
set -eu
T=$(mktemp -d)
started=()
end() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$T"
}
trap end EXIT

mkdir -p "$T/debs/partial" "$T/tree"
: >"$T/status"
apt-get -qq -y -o Dir::State::status="$T/status" -o Dir::Cache::archives="$T/debs" \
    -o Debug::NoLocking=1 -o APT::Sandbox::User=root --no-install-recommends --download-only \
    install nbdkit=1.32.5-1 'qemu-utils=1:7.2+dfsg-7+deb12u18+b3' >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
lib=$T/tree/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib:$T/tree/lib/x86_64-linux-gnu
nbdkit=$T/tree/usr/bin/nbdkit plugins=$lib/nbdkit/plugins filters=$lib/nbdkit/filters

# serve SOCKET ARGUMENT...: starts an nbdkit, waits for its socket, leaves its process in $server.
serve() {
    local socket=$1
    shift
    rm -f "$socket"
    "$nbdkit" -U "$socket" -f "$@" 2>>"$T/log" &
    server=$!
    started+=("$server")
    for _ in $(seq 100); do [ -S "$socket" ] && return; sleep 0.1; done
    echo "nbdkit does not start" >&2
    exit 2
}
# A server whose data are in memory: what kill -9 takes was acknowledged, and never flushed.
volatile() { serve "$T/a.sock" "$plugins/nbdkit-memory-plugin.so" 1M; }

# try NAME SOCKET OPTIONS: writes, replaces the volatile server, flushes; then a new client reads.
# qemu-io says nothing of a FLUSH that fails but by its exit status, which is the last of $outcome.
try() {
    "$T/tree/usr/bin/qemu-io" --image-opts "driver=nbd,server.type=unix,server.path=$2$3" \
        -c 'write -P 0x5a 0 64k' -c 'sleep 3000' -c flush >"$T/$1" 2>&1 &
    local client=$! status=0
    started+=("$client")
    sleep 1.5
    kill -9 "$volatile"
    wait "$volatile" 2>/dev/null || true
    volatile
    volatile=$server
    wait "$client" || status=$?
    "$T/tree/usr/bin/qemu-io" -f raw "nbd+unix:///?socket=$T/a.sock" -c 'read -P 0x5a 0 64k' \
        >"$T/$1.read" 2>&1 || true
    local wrote lost
    wrote=$(grep -c '^wrote 65536' "$T/$1") || true
    lost=$(grep -c 'verification failed' "$T/$1.read") || true
    outcome="$wrote $lost $status"
    echo "$1: written, lost, exit status with the FLUSH: $outcome"
}

volatile
volatile=$server
try qemu "$T/a.sock" ,reconnect-delay=10
[ "$outcome" = '1 1 0' ]
serve "$T/b.sock" --filter="$filters/nbdkit-retry-filter.so" "$plugins/nbdkit-nbd-plugin.so" \
    socket="$T/a.sock" retries=5 retry-delay=1
try nbdkit-retry "$T/b.sock" ''
[ "$outcome" = '1 1 0' ]
try qemu-without "$T/a.sock" ''
[ "$outcome" = '1 1 1' ]
echo "as seen: a FLUSH after a reconnection succeeds although its data are lost"
