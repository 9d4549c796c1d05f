# SPDX-License-Identifier: Apache-2.0 OR MIT
# The published procedures (docs/published.md), smaller, and through the links of block devices.
# Sourced by run.sh.
[ -e /dev/ublk-control ] || guest-modprobe ublk_drv
for module in ext4 xfs; do guest-modprobe $module || bad "no module $module"; done
rm -f ./*.img
ln -sf $program dmsetup
mkdir -p mnt
start --ublk --cores 2 || return

# The write cache: fill it by random writes, flush it, compare (lab/e2e/src/published/cache.rs).
mib=64
truncate -s ${mib}M origin.img
truncate -s 34M cache.img
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
rm origin.img cache.img

# Linear (lab/e2e/src/published/linear.rs): what is written to either is what the other reads;
# then reads of 512 bytes by 12 jobs, on each in turns. A block device of the memory itself is a
# linear one, too.
check "dmsetup create raw" ./dmsetup create raw --table "0 65536 linear mem:32M 0"
check "dmsetup create linear" ./dmsetup create linear --table "0 65536 linear /dev/mapper/raw 0"
sums() { # sums FILE SUM OPTIONS: sectors that contain their own position
    local file=$1 sum=$2
    shift 2
    fio --name=sums --filename="/dev/millpond/$file" --bs=256k --direct=1 --size=32m \
        --verify="$sum" --verify_interval=512 "$@"
}
for turn in "raw linear crc32c" "linear raw xxhash"; do
    read -r to from sum <<<"$turn"
    check "fio writes $to" sums "$to" "$sum" --rw=write --do_verify=0
    check "fio verifies it by $from" sums "$from" "$sum" --rw=read --verify_fatal=1
done
reads() { # reads NAME: reads a second
    fio --name=reads --filename="/dev/millpond/$1" --ioengine=psync --iodepth=1 --rw=read --bs=512 \
        --direct=1 --numjobs=12 --thread --time_based --runtime=1 --size=32m --group_reporting \
        --output-format=terse --terse-version=3 | awk -F';' '$1 == 3 {print $8}'
}
for round in 1 2 3; do
    raw=$(reads raw) linear=$(reads linear)
    [ "$linear" -gt 0 ] && ok "round $round: $linear reads/s to $raw" || bad "no reads"
done
check "dmsetup remove linear" ./dmsetup remove linear
check "dmsetup remove raw" ./dmsetup remove raw

# File systems on a stack (lab/e2e/src/published/filesystem.rs); then the cache goes, while the
# disk stays: all data must be on the stripes.
tree_sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum --); }
disk=/dev/millpond/disk
mkdir -p tree
for nth in $(seq 60); do
    mkdir -p "tree/$((nth % 7))" && head -c $((RANDOM * 8)) /dev/urandom >"tree/$((nth % 7))/$nth"
done
tar -cf tree.tar tree
sums_before=$(tree_sums tree)
for kind in ext4 xfs; do
    truncate -s 160M a.img b.img
    truncate -s 32M cache.img
    check "dmsetup create stripes" ./dmsetup create stripes --table \
        "0 655360 striped 2 128 /tmp/a.img 0 /tmp/b.img 0"
    check "dmsetup create cached" ./dmsetup create cached --table \
        "0 655360 writecache s /dev/mapper/stripes /tmp/cache.img 4096 0"
    check "dmsetup create disk" ./dmsetup create disk --table "0 655360 linear /dev/mapper/cached 0"
    case $kind in
    ext4) check "mkfs.ext4" mkfs.ext4 -q -F $disk ;;
    xfs) check "mkfs.xfs" mkfs.xfs -q -f $disk ;;
    esac
    check "mount" mount -t $kind $disk mnt
    check "cp" cp tree.tar mnt/
    check "tar" tar -xf mnt/tree.tar -C mnt
    check "umount" umount mnt
    found_clean() {
        case $kind in
        ext4) fsck.ext4 -f -n $disk ;;
        xfs) xfs_repair -n $disk ;;
        esac
    }
    check "it is clean" found_clean
    check "message flush" ./dmsetup message cached 0 flush
    check "suspend" ./dmsetup suspend disk
    check "load" ./dmsetup load disk --table "0 655360 linear /dev/mapper/stripes 0"
    check "resume" ./dmsetup resume disk
    check "remove cached" ./dmsetup remove cached
    check "it is clean without the cache" found_clean
    check "mount again" mount -t $kind $disk mnt
    [ "$(tree_sums mnt/tree)" = "$sums_before" ] && cmp tree.tar mnt/tree.tar &&
        ok "$kind has what was written" || bad "$kind has other files"
    check "umount again" umount mnt
    check "remove disk" ./dmsetup remove disk
    check "remove stripes" ./dmsetup remove stripes
    rm a.img b.img cache.img
done
stop
