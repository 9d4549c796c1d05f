# SPDX-License-Identifier: Apache-2.0 OR MIT
# A disk of the guest that a daemon of the host serves by vhost-user (host.sh). Sourced by run.sh.
vda_has() { [ "$(cat /sys/block/vda/size)" = "$1" ]; }

for module in virtio_blk ext4 xfs; do
    guest-modprobe $module || bad "no module $module"
done
within 20 test -b $vda || { bad "no disk"; return; }
check "size" vda_has 655360
[ "$(cat /sys/block/vda/serial)" = vm ] && ok "its id is the name" || bad "its id is another"
cache=$(cat /sys/block/vda/queue/write_cache)
[ "$cache" = "write back" ] && ok "volatile cache" || bad "cache: $cache"
ahead=$(cat /sys/block/vda/queue/read_ahead_kb)
[ "$ahead" = 256 ] && ok "read-ahead of 256 KiB" || bad "read-ahead: $ahead KiB"
fio_verify vda $vda 16M --bs=4k-64k --fsync=32
file_system ext4 $vda
file_system xfs $vda
discards $vda
ask grow && within 20 vda_has 786432 && ok "the new size is seen" || bad "size"
. "$here/vhost-kills.sh"
