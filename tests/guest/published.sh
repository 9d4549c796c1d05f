# SPDX-License-Identifier: Apache-2.0 OR MIT
# The published procedure for a write cache (tests/e2e/src/published/cache.rs), smaller, and through
# the block device: fill it by random writes, flush it, compare. Sourced by run.sh.
#
#   dmsetup create mycache --table '0 N writecache s ORIGIN CACHE 4096 0'
#   fio --rw=randwrite --bs=4k --iodepth=20 --direct=1 --filename=/dev/millpond/mycache ...
#   time dmsetup message mycache 0 flush
mib=64
[ -e /dev/ublk-control ] || guest-modprobe ublk_drv
rm -f ./*.img
truncate -s ${mib}M origin.img
truncate -s 34M cache.img
ln -sf $program dmsetup
start --ublk || return
check "dmsetup create" ./dmsetup create mycache --table \
    "0 $((mib * 2048)) writecache s /tmp/origin.img /tmp/cache.img 4096 0"
mycache=/dev/millpond/mycache
procedure() { # procedure FILE OPTIONS: the published job, on a block device or its origin
    local file=$1
    shift
    fio --name=published --filename="$file" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k \
        --iodepth=20 --size=${mib}M --randseed=1 --verify=crc32c --verify_fatal=1 "$@"
}
check "fio fills it" procedure $mycache --do_verify=0
[ "$(mp get mycache dirty_blocks)" -gt 0 ] && ok "blocks are dirty" || bad "no block is dirty"
check "message flush" ./dmsetup message mycache 0 flush
[ "$(mp get mycache dirty_blocks)" = 0 ] && ok "none after it" || bad "blocks are dirty after it"
served=$(sha256sum <$mycache)
check "dmsetup remove" ./dmsetup remove mycache
[ "$served" = "$(sha256sum <origin.img)" ] && ok "the origin has what was served" ||
    bad "the origin has other data"
check "fio verifies the origin" procedure origin.img --verify_only
stop
