#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The tools of dm-cache in thin-provisioning-tools 0.9.0 read metadata of version 2, which keeps
# the dirty bits apart and is what LVM makes where the kernel can, as if no block were dirty:
# cache_dump prints dirty="false" for each, cache_check finds nothing, and cache_writeback copies
# 0 of 0 blocks and exits with 0. Whoever takes the origin for whole then has lost what was dirty.
# The same tools have written that file themselves, and read version 1 right.
#
# Seen with thin-provisioning-tools 0.9.0-2 of Debian 12, 2026-11-29; the blocks 0 and 2 of the
# cache are dirty, 1 is clean:
#   version 1: dumped true false true, exit 0 with 2/2 copied
#   version 2: dumped false false false, exit 0 with 0/0 copied
# 1.1.0-4 of Debian 13 dumps the same file of version 2 as true false true (by hand, not by this
# script): the bits are on the media.
#
# Needs bash, apt-get with Debian 12's package lists (apt-get update), dpkg. Exit 0: as seen.
set -eu
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT

mkdir -p "$T/debs/partial" "$T/tree"
: >"$T/status"
apt-get -qq -y -o Dir::State::status="$T/status" -o Dir::Cache::archives="$T/debs" \
    -o Debug::NoLocking=1 -o APT::Sandbox::User=root --no-install-recommends --download-only \
    install thin-provisioning-tools=0.9.0-2 >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
lib=$T/tree/usr/lib/x86_64-linux-gnu sbin=$T/tree/usr/sbin
export LD_LIBRARY_PATH=$lib:$T/tree/lib/x86_64-linux-gnu

cat >"$T/cache.xml" <<'END'
<superblock uuid="" block_size="64" nr_cache_blocks="8" policy="smq" hint_width="4">
  <mappings>
    <mapping cache_block="0" origin_block="3" dirty="true"/>
    <mapping cache_block="1" origin_block="5" dirty="false"/>
    <mapping cache_block="2" origin_block="6" dirty="true"/>
  </mappings>
  <hints>
    <hint cache_block="0" data="AAAAAA=="/>
    <hint cache_block="1" data="AAAAAA=="/>
    <hint cache_block="2" data="AAAAAA=="/>
  </hints>
</superblock>
END
for version in 1 2; do
    truncate -s 4M "$T/metadata.$version"
    truncate -s 256K "$T/fast"
    truncate -s 512K "$T/origin"
    "$sbin/cache_restore" -i "$T/cache.xml" -o "$T/metadata.$version" --metadata-version "$version"
    "$sbin/cache_check" -q "$T/metadata.$version"
    dumped=$("$sbin/cache_dump" "$T/metadata.$version" | grep -o 'dirty="[a-z]*"' |
        cut -d '"' -f 2 | xargs)
    status=0
    "$sbin/cache_writeback" --no-metadata-update --metadata-device "$T/metadata.$version" \
        --origin-device "$T/origin" --fast-device "$T/fast" >"$T/log" 2>&1 || status=$?
    copied=$(grep -oE '[0-9]+/[0-9]+ blocks' "$T/log" | cut -d ' ' -f 1)
    echo "version $version: dumped $dumped, exit $status with $copied copied"
done | tee "$T/seen"
diff "$T/seen" - <<'END'
version 1: dumped true false true, exit 0 with 2/2 copied
version 2: dumped false false false, exit 0 with 0/0 copied
END
echo "as seen: dirty blocks of metadata of version 2 are not seen"
