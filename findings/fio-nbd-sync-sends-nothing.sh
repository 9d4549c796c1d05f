#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# fio's engine `nbd` takes `sync=1` and `sync=dsync` without a word and sends neither FUA nor FLUSH:
# a comparison of synchronous writes by it measures cached ones. `fsync=N` sends FLUSHes, one for
# almost each write at depth 16 instead of one for N, and `fdatasync=N` is an error. `end_fsync=1`
# is what ends a job durably.
#
# Seen with fio 3.33-3 and nbdkit 1.32.5-1 of Debian 12, 2026-11-29 (16 writes of 4 KiB; as nbdkit's
# filter `log` counts the requests that arrive):
#   sync=1: exit 0, 16 writes, 0 with FUA, 0 FLUSH
#   sync=dsync: exit 0, 16 writes, 0 with FUA, 0 FLUSH
#   fsync=4: exit 0, 16 writes, 0 with FUA, 3 FLUSH
#   fsync=4 iodepth=16: exit 0, 16 writes, 0 with FUA, 16 FLUSH (14 to 16, by the run)
#   end_fsync=1: exit 0, 16 writes, 0 with FUA, 1 FLUSH
#   fdatasync=4: exit 1
#
# Needs bash, apt-get with Debian 12's package lists, dpkg. Exit 0: as seen.
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
    install fio=3.33-3 nbdkit=1.32.5-1 >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
lib=$T/tree/usr/lib/x86_64-linux-gnu bin=$T/tree/usr/bin
export LD_LIBRARY_PATH=$lib:$T/tree/lib/x86_64-linux-gnu

"$bin/nbdkit" -U "$T/s" -f --filter="$lib/nbdkit/filters/nbdkit-log-filter.so" \
    "$lib/nbdkit/plugins/nbdkit-memory-plugin.so" 1M logfile="$T/log" &
started+=($!)
for _ in $(seq 100); do [ -S "$T/s" ] && break; sleep 0.1; done
# job OPTION...: runs 16 writes with these options and prints what arrived.
job() {
    local status=0 name=$*
    local before
    before=$(wc -l <"$T/log")
    "$bin/fio" --name=job --ioengine=nbd --uri="nbd+unix:///?socket=$T/s" --rw=write --bs=4k \
        --size=64k "${@/#/--}" >"$T/out" 2>&1 || status=$?
    # The end of a request has a line with dots before its name, and is not counted.
    local lines
    lines=$(tail -n "+$((before + 1))" "$T/log" || true)
    [ "$status" = 0 ] || { echo "$name: exit $status"; return; }
    count() { grep -cE "$1" <<<"$lines"; }
    local writes fua
    writes=$(count ' Write id=') || true
    fua=$(count ' Write id=.* fua=1') || true
    echo "$name: exit 0, $writes writes, $fua with FUA, $(count ' Flush id=') FLUSH"
}
for options in sync=1 sync=dsync fsync=4 'fsync=4 iodepth=16' end_fsync=1 fdatasync=4; do
    # shellcheck disable=SC2086 # the options are words
    job $options || true
done | tee "$T/seen"
sed -E 's/ (1[0-6]|[5-9]) FLUSH/ 5 to 16 FLUSH/' "$T/seen" | diff - /dev/fd/3 3<<'END'
sync=1: exit 0, 16 writes, 0 with FUA, 0 FLUSH
sync=dsync: exit 0, 16 writes, 0 with FUA, 0 FLUSH
fsync=4: exit 0, 16 writes, 0 with FUA, 3 FLUSH
fsync=4 iodepth=16: exit 0, 16 writes, 0 with FUA, 5 to 16 FLUSH
end_fsync=1: exit 0, 16 writes, 0 with FUA, 1 FLUSH
fdatasync=4: exit 1
END
echo "as seen: sync=1 and sync=dsync send no FUA and no FLUSH"
