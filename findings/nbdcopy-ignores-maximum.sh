#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# nbdcopy asks a server for its block sizes and then sends requests of 256 KiB, also where the
# server has announced a smaller maximum: the copy fails with EINVAL. One would expect a client of
# the same project as the protocol's reference server to keep to the maximum, as qemu-img does
# here. Until then `--request-size` is the way; fio's engine `nbd` and nbdfuse send what they are
# asked to, too. A server that has a maximum below 256 KiB loses its copies to this.
#
# Seen with libnbd-bin 1.14.2-1, nbdkit 1.32.5-1 and qemu-utils 1:7.2+dfsg-7+deb12u18+b3 of Debian
# 12, 2026-11-29 (a maximum of 65536 bytes is announced):
#   nbdcopy: exit 1, nbdcopy --request-size=65536: exit 0, qemu-img convert: exit 0
# and nbdkit says: count 262144 is larger than maximum size 65536
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
    install libnbd-bin=1.14.2-1 nbdkit=1.32.5-1 'qemu-utils=1:7.2+dfsg-7+deb12u18+b3' >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
lib=$T/tree/usr/lib/x86_64-linux-gnu bin=$T/tree/usr/bin
export LD_LIBRARY_PATH=$lib:$T/tree/lib/x86_64-linux-gnu

"$bin/nbdkit" -U "$T/s" -f --filter="$lib/nbdkit/filters/nbdkit-blocksize-policy-filter.so" \
    "$lib/nbdkit/plugins/nbdkit-pattern-plugin.so" 1M \
    blocksize-maximum=64K blocksize-error-policy=error 2>"$T/log" &
started+=($!)
for _ in $(seq 100); do [ -S "$T/s" ] && break; sleep 0.1; done
uri="nbd+unix:///?socket=$T/s"
announced=$("$bin/nbdinfo" "$uri" | sed -n 's/.*block_size_maximum: //p')
plain=0 small=0 qemu=0
"$bin/nbdcopy" "$uri" "$T/one" 2>/dev/null || plain=$?
"$bin/nbdcopy" --request-size=65536 "$uri" "$T/two" || small=$?
"$bin/qemu-img" convert -f raw -O raw "$uri" "$T/three" || qemu=$?
says=$(grep -o 'count 262144 is larger than maximum size 65536' "$T/log" | head -n 1)
line="nbdcopy: exit $plain, nbdcopy --request-size=65536: exit $small, qemu-img convert: exit $qemu"
printf 'announced maximum: %s\n%s\nnbdkit: %s\n' "$announced" "$line" "$says"
[ "$announced" = 65536 ]
[ "$line" = 'nbdcopy: exit 1, nbdcopy --request-size=65536: exit 0, qemu-img convert: exit 0' ]
[ -n "$says" ]
cmp "$T/two" "$T/three"
echo "as seen: nbdcopy does not keep to the maximum that it was told"
