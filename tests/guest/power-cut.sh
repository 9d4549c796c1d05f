# SPDX-License-Identifier: Apache-2.0 OR MIT
# Power cuts of the disk below a volume in a directory (file://), alone and below a write cache: the
# page cache is lost. The program power-cut does it (lab/e2e). Sourced by run.sh.
for module in dm_mod ext4 xfs overlay; do
    guest-modprobe $module || bad "no module $module"
done
# In memory of the guest, so that it costs little; what the cut keeps is what has arrived there.
guest-modprobe brd rd_nr=1 rd_size=$((320 << 10)) || bad "no module brd"
cp /share/power-cut /tmp/power-cut
power_cut() { # power_cut WHAT OPTIONS
    local what=$1 seed=$((RANDOM + 1))
    shift
    if MILLPOND_BIN=$program /tmp/power-cut /dev/ram0 --seed $seed "$@" >/tmp/out 2>&1; then
        ok "$what: $(cat /tmp/out)"
    else
        bad "$what, seed $seed: $(tail -40 /tmp/out)"
    fi
}
# A disk that refuses everything is no news.
dmesg -n 1
power_cut "$rounds power cuts of ext4 below a volume" --cuts "$rounds"
power_cut "of ext4 below a write cache and its volume" --cuts "$rounds" --cache
power_cut "of xfs below both" --cuts "$rounds" --cache --file-system xfs
power_cut "without syncs a loss is seen" --cuts 1 --no-sync
dmesg -n 4
rmmod brd
