# SPDX-License-Identifier: Apache-2.0 OR MIT
# A file system on a guarded write cache (guard_origin), served as a block device: it grows while it
# is mounted, its origin alone is nothing to the tools, also after a kill, and is the file system
# once the guard is taken away. Sourced by run.sh.
[ -e /dev/ublk-control ] || guest-modprobe ublk_drv
guest-modprobe ext4 || bad "no module ext4"
rm -f ./*.img
mkdir -p mnt
truncate -s 48M origin.img
truncate -s 16M cache.img
cat >guard.toml <<'C'
ublk = true
[[device]]
name = "wc"
table = "0 - writecache s ./origin.img ./cache.img 4096 1 guard_origin"
C
hidden() { # hidden WHEN: nothing of the file system is found on the origin
    if blkid -p origin.img >/tmp/out 2>&1; then bad "$1 blkid finds $(cat /tmp/out)"; return; fi
    if fsck.ext4 -fn origin.img >/tmp/out 2>&1; then bad "$1 fsck finds $(cat /tmp/out)"; return; fi
    ok "$1 the origin is nothing to blkid and fsck"
}

start --config guard.toml || return
check "mkfs.ext4" mkfs.ext4 -q -F $wc
check "mount" mount $wc mnt
seq 100000 >numbers
cp numbers mnt/before
check "fsync" sync -f mnt/before
hidden "while it is mounted"
truncate -s 96M origin.img
check "resize" mp resize wc
[ "$(sectors wc)" = 196608 ] && ok "the kernel has the new size" || bad "size $(sectors wc)"
check "resize2fs of a mounted file system" resize2fs /dev/ublkb"$(block wc | tr -dc 0-9)"
blocks=$(stat -f -c %b mnt)
[ "$blocks" -gt 18000 ] && ok "the file system has grown" || bad "it has $blocks blocks"
head -c 50M /dev/urandom >mnt/large || bad "the new room is no room"
cp numbers mnt/after
check "sync" sync -f mnt/after
sum=$(sha256sum <mnt/large)
[ "$(mp get wc guarded_ranges)" = 2 ] && ok "both ranges are guarded" ||
    bad "guarded ranges: $(mp get wc guarded_ranges)"
hidden "after the growth"

crash
hidden "after a kill"
start --config guard.toml || return
check "the files are there" sh -c 'cmp numbers mnt/before && cmp numbers mnt/after'
echo 3 >/proc/sys/vm/drop_caches
[ "$(sha256sum <mnt/large)" = "$sum" ] && ok "and a large one" || bad "the large file changed"
check "umount" umount mnt
check "fsck.ext4" fsck.ext4 -f -n $wc
check "uncache" mp uncache wc
stop
check "the origin is the file system" fsck.ext4 -f -n origin.img
check "blkid finds it" sh -c 'blkid -p origin.img | grep -q ext4'
rm -f origin.img cache.img numbers
