# SPDX-License-Identifier: Apache-2.0 OR MIT
# Live upgrades under fio, and under a file system: no client of a block device sees an error. Those
# of `ram` end with the process; it is left behind by force. Sourced by run.sh.
[ -e /dev/ublk-control ] || guest-modprobe ublk_drv
guest-modprobe ext4 || bad "no module ext4"
make_pond
mkdir -p mnt
start --config pond.toml || return
refused "a device in the memory of the process is named" "--force ram" mp upgrade
# pauses: from the stop of the old process to the last block device that the new one has taken over
pauses() {
    awk 'function at(t) { split($1, t, /[T:Z]/); return (t[2] * 60 + t[3]) * 60 + t[4] }
    function end() { if (last) printf "%d\n", (last - from) * 1000; last = 0 }
    /handed over to the successor/ {
        end(); match($0, /pause_ms=[0-9]+/)
        from = at() - substr($0, RSTART + 9, RLENGTH - 9) / 1000
    }
    /block device taken over/ { if (from) last = at() }
    END { end() }' /tmp/daemon.now | sort -n | awk '{all[NR] = $1}
        END {print NR " upgrades: " all[int((NR + 1) / 2)] " ms (p50), " all[int(NR * 0.99 + 0.5)] \
            " ms (p99), " all[NR] " ms (max)"}'
}
upgrade_by_force() { upgrade --force ram; }
over "$rounds" upgrades upgrade_by_force plain=$plain wc=$wc || return
refused "a successor that does not start leaves the daemon" "does not come up" \
    mp upgrade --force ram --binary /bin/false
check "the same process answers" test "$daemon" = "$(cat /run/millpond/lock)"
# It comes far, and finds no room for its devices: the block devices go on.
printf '#!/bin/bash\nexec %s "$@" --memory 1M\n' "$program" >small && chmod +x small
refused "a successor without memory leaves the daemon" "memory" \
    mp upgrade --force ram --binary /tmp/small
check "the same process answers" test "$daemon" = "$(cat /run/millpond/lock)"
fio_verify plain $plain 8M --bs=4k-64k
fio_verify wc $wc 8M --bs=4k-64k --fsync=32

check "mkfs.ext4" mkfs.ext4 -q -F $wc
check "mount" mount -t ext4 $wc mnt
seq 300000 >numbers
(for nth in 1 2 3 4; do cp numbers mnt/$nth && sync -f mnt/$nth || exit 1; done) &
writer=$!
for _ in 1 2 3; do
    sleep "0.$((RANDOM % 9 + 1))"
    upgrade_by_force || return
done
wait $writer && ok "a file system is written over 3 upgrades" || bad "the file system had an error"
check "umount" umount mnt
check "fsck.ext4" fsck.ext4 -f -n $wc
check "mount again" mount -t ext4 $wc mnt
same() { for nth in 1 2 3 4; do cmp numbers mnt/$nth || return 1; done; }
check "the files are as they were" same
check "umount again" umount mnt
say "pauses of block devices: $(pauses)"
crash
start --config pond.toml || return
check "what a kill after it leaves is whole" fsck.ext4 -f -n $wc
check "an orderly end" stop
