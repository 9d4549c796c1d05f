#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# mkfs.xfs refuses a device that holds something, unless it has -f, and scripts count on that. It
# knows bcache, and takes both caches of the device mapper for blank: the metadata of dm-cache with
# a dirty block in them, and a superblock of dm-writecache, are overwritten without -f and without
# a word, because libblkid, which it asks, names neither. mke2fs overwrites bcache, too, where it
# has no terminal to ask at. While such a cache is mapped the kernel keeps others away; after a
# boot without its table nobody does, and what was dirty is gone.
#
# Seen with xfsprogs 6.1.0-1, e2fsprogs 1.47.0-2+b2, libblkid1 2.38.1-5+deb12u3, bcache-tools
# 1.0.8-4 and thin-provisioning-tools 0.9.0-2 of Debian 12, 2026-11-30; exit codes:
#   bcache, cache: mkfs.xfs 1, mke2fs 0
#   bcache, origin: mkfs.xfs 1, mke2fs 0
#   dm-cache metadata: mkfs.xfs 0, mke2fs 0
#   dm-writecache: mkfs.xfs 0, mke2fs 0
#
# Needs bash, apt-get with Debian 12's package lists, dpkg. Exit 0: as seen.
set -eu
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT

mkdir -p "$T/debs/partial" "$T/tree"
: >"$T/status"
apt-get -qq -y -o Dir::State::status="$T/status" -o Dir::Cache::archives="$T/debs" \
    -o Debug::NoLocking=1 -o APT::Sandbox::User=root --no-install-recommends --download-only \
    install xfsprogs=6.1.0-1 e2fsprogs=1.47.0-2+b2 libblkid1=2.38.1-5+deb12u3 \
    bcache-tools=1.0.8-4 thin-provisioning-tools=0.9.0-2 >/dev/null
for deb in "$T"/debs/*.deb; do
    case $deb in */libc6_*) ;; *) dpkg -x "$deb" "$T/tree" ;; esac
done
with() { LD_LIBRARY_PATH=$T/tree/usr/lib/x86_64-linux-gnu:$T/tree/lib/x86_64-linux-gnu "$@"; }
for name in bcache-cache bcache-origin dm-cache dm-writecache; do
    truncate -s 400M "$T/$name"
done

with "$T/tree/usr/sbin/make-bcache" -C "$T/bcache-cache" >/dev/null 2>&1
with "$T/tree/usr/sbin/make-bcache" -B "$T/bcache-origin" >/dev/null 2>&1
cat >"$T/cache.xml" <<'END'
<superblock uuid="" block_size="128" nr_cache_blocks="16" policy="smq" hint_width="4">
  <mappings><mapping cache_block="0" origin_block="3" dirty="true"/></mappings>
  <hints></hints>
</superblock>
END
with "$T/tree/usr/sbin/cache_restore" -q -i "$T/cache.xml" -o "$T/dm-cache"
# As drivers/md/dm-writecache.c has it: magic, version 1, blocks of 4096 bytes, 1000 of them, and
# the number of commits, 1.
printf '\x21\x93\x48\x23\x01\0\0\0\0\x10\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0\x01\0\0\0\0\0\0\0' |
    dd of="$T/dm-writecache" conv=notrunc status=none

# try NAME WHAT: how the two end on a copy of it.
try() {
    local xfs=0 ext4=0
    cp --sparse=always "$T/$2" "$T/copy"
    with "$T/tree/sbin/mkfs.xfs" -q "$T/copy" </dev/null >/dev/null 2>&1 || xfs=$?
    cp --sparse=always "$T/$2" "$T/copy"
    with "$T/tree/sbin/mke2fs" -q -t ext4 "$T/copy" </dev/null >/dev/null 2>&1 || ext4=$?
    echo "$1: mkfs.xfs $xfs, mke2fs $ext4"
}
{
    try 'bcache, cache' bcache-cache
    try 'bcache, origin' bcache-origin
    try 'dm-cache metadata' dm-cache
    try 'dm-writecache' dm-writecache
} | tee "$T/seen"
diff "$T/seen" - <<'END'
bcache, cache: mkfs.xfs 1, mke2fs 0
bcache, origin: mkfs.xfs 1, mke2fs 0
dm-cache metadata: mkfs.xfs 0, mke2fs 0
dm-writecache: mkfs.xfs 0, mke2fs 0
END
echo "as seen: mkfs.xfs asks before it overwrites bcache, and not the caches of the device mapper"
