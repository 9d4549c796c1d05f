#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# `qemu-img convert` ends a copy to an NBD server with a FLUSH, and exits with 0 and without a word
# when the server answers it with an error: the server says that data are lost, and the copy is
# taken for whole. So does qemu-io for what it flushes at its end, and fio's engine `nbd` for every
# FLUSH of `fsync=N` and `end_fsync=1`, with "err= 0". One would expect that whoever sends a FLUSH
# looks at its answer. nbdcopy does with `--flush`, without which it sends none, and so do a FLUSH
# that qemu-io is asked for and fsync on nbdfuse. After qemu-img, ask for one more: a server may
# tell of a loss once only, and then that one succeeds, too.
#
# Seen with qemu-utils 1:7.2+dfsg-7+deb12u18+b3, libnbd-bin 1.14.2-1, fio 3.33-3 and nbdkit 1.32.5-1
# of Debian 12, 2026-11-30; each FLUSH fails with EIO, each write succeeds:
#   qemu-img convert: exit 0, 1 FLUSH
#   qemu-img convert -t writeback: exit 0, 1 FLUSH
#   qemu-io, write: exit 0, 1 FLUSH
#   qemu-io, write and flush: exit 1, 2 FLUSH
#   fio end_fsync=1: exit 0, 1 FLUSH
#   nbdcopy: exit 0, 0 FLUSH
#   nbdcopy --flush: exit 1, 1 FLUSH
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
    install fio=3.33-3 libnbd-bin=1.14.2-1 nbdkit=1.32.5-1 \
    'qemu-utils=1:7.2+dfsg-7+deb12u18+b3' >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
lib=$T/tree/usr/lib/x86_64-linux-gnu bin=$T/tree/usr/bin
tools=$lib:$T/tree/lib/x86_64-linux-gnu

# A disk of zeroes that takes every write and has lost it when it is asked to flush.
: >"$T/flushes"
cat >"$T/disk" <<'END'
#!/bin/sh
case $1 in
get_size) echo 4M ;;
pread) head -c "$3" /dev/zero ;;
pwrite) cat >/dev/null ;;
can_write | can_flush) ;;
flush)
    echo flush >>"$FLUSHES"
    echo 'EIO lost' >&2
    exit 1
    ;;
*) exit 2 ;;
esac
END
chmod +x "$T/disk"
FLUSHES=$T/flushes LD_LIBRARY_PATH=$tools "$bin/nbdkit" -U "$T/s" -f \
    "$lib/nbdkit/plugins/nbdkit-sh-plugin.so" "$T/disk" 2>"$T/server" &
started+=($!)
for _ in $(seq 100); do [ -S "$T/s" ] && break; sleep 0.1; done
uri="nbd+unix:///?socket=$T/s"
head -c 64K /dev/urandom >"$T/image"

# try NAME COMMAND...: prints how it ends, and how many FLUSHes have come.
try() {
    local name=$1 status=0 before after
    shift
    before=$(wc -l <"$T/flushes")
    LD_LIBRARY_PATH=$tools "$bin/$1" "${@:2}" >"$T/out" 2>&1 || status=$?
    # A client's last request may still be on its way.
    sleep 0.5
    after=$(wc -l <"$T/flushes")
    echo "$name: exit $status, $((after - before)) FLUSH"
}
{
    try 'qemu-img convert' qemu-img convert -n -f raw -O raw "$T/image" "$uri"
    try 'qemu-img convert -t writeback' \
        qemu-img convert -n -t writeback -f raw -O raw "$T/image" "$uri"
    try 'qemu-io, write' qemu-io -t writeback -f raw -c 'write 0 64k' "$uri"
    try 'qemu-io, write and flush' qemu-io -t writeback -f raw -c 'write 0 64k' -c flush "$uri"
    try 'fio end_fsync=1' fio --name=job --ioengine=nbd --uri="$uri" --rw=write --bs=4k \
        --size=64k --end_fsync=1
    try 'nbdcopy' nbdcopy "$T/image" "$uri"
    try 'nbdcopy --flush' nbdcopy --flush "$T/image" "$uri"
} | tee "$T/seen"
diff "$T/seen" - <<'END'
qemu-img convert: exit 0, 1 FLUSH
qemu-img convert -t writeback: exit 0, 1 FLUSH
qemu-io, write: exit 0, 1 FLUSH
qemu-io, write and flush: exit 1, 2 FLUSH
fio end_fsync=1: exit 0, 1 FLUSH
nbdcopy: exit 0, 0 FLUSH
nbdcopy --flush: exit 1, 1 FLUSH
END
echo "as seen: qemu-img convert and fio succeed although their FLUSH has failed"
