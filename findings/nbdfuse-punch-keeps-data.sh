#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# A hole that is punched into the file of nbdfuse reads as the old data, where the server ignores
# TRIM: nbdfuse sends a TRIM for FALLOC_FL_PUNCH_HOLE and answers success, although the system
# call promises zeroes and TRIM promises nothing. qemu-nbd announces TRIM and ignores it unless it
# has `--discard=unmap`. So `fallocate -p`, a loop device's discard, or mke2fs on such a file take
# zeroes for granted that are not there. `fallocate -z` becomes WRITE_ZEROES, and is right.
#
# Seen with libnbd-bin 1.14.2-1 and qemu-utils 1:7.2+dfsg-7+deb12u18+b3 of Debian 12, 2026-11-29:
#   punched: fallocate 0, zero bytes of the first 65536: 0
#   zeroed: fallocate 0, zero bytes of the next 65536: 65536
#
# Needs bash, apt-get with Debian 12's package lists, dpkg, FUSE with fusermount3, and fallocate.
# Exit 0: as seen.
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
    install libnbd-bin=1.14.2-1 'qemu-utils=1:7.2+dfsg-7+deb12u18+b3' >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
lib=$T/tree/usr/lib/x86_64-linux-gnu bin=$T/tree/usr/bin
export LD_LIBRARY_PATH=$lib:$T/tree/lib/x86_64-linux-gnu

head -c 128K /dev/zero | tr '\0' '\132' >"$T/disk"
"$bin/qemu-nbd" -f raw -t -k "$T/s" "$T/disk" &
started+=($!)
for _ in $(seq 100); do [ -S "$T/s" ] && break; sleep 0.1; done
mkdir "$T/m"
"$bin/nbdfuse" "$T/m/disk" "nbd+unix:///?socket=$T/s" &
started+=($!)
for _ in $(seq 100); do [ -f "$T/m/disk" ] && break; sleep 0.1; done
unmount() {
    env -u LD_LIBRARY_PATH fusermount3 -u "$T/m" || true
    end
}
trap unmount EXIT

# zeroes SKIP: how many of the 64 KiB from that block of 64 KiB on are zero.
zeroes() { dd if="$T/m/disk" bs=64K skip="$1" count=1 2>/dev/null | tr -d '\132' | wc -c; }
punched=0 zeroed=0
fallocate --punch-hole --offset 0 --length 64K "$T/m/disk" || punched=$?
fallocate --zero-range --offset 64K --length 64K "$T/m/disk" || zeroed=$?
first="punched: fallocate $punched, zero bytes of the first 65536: $(zeroes 0)"
second="zeroed: fallocate $zeroed, zero bytes of the next 65536: $(zeroes 1)"
printf '%s\n' "$first" "$second"
[ "$first" = 'punched: fallocate 0, zero bytes of the first 65536: 0' ]
[ "$second" = 'zeroed: fallocate 0, zero bytes of the next 65536: 65536' ]
echo "as seen: a punched hole keeps its data"
