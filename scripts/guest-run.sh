#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Boots a kernel under qemu with this machine's / as its read-only root, runs one script there, and
# ends with the script's exit status. Nothing is built or installed; the guest has no network.
#
#   scripts/guest-run.sh KERNEL MODULES SHARE SECONDS SCRIPT [ARGS] [-- QEMU-ARGS]
#
# KERNEL: a vmlinuz. MODULES: its folder with modules.dep, or the files for it. SHARE: a folder that
# the guest may write, /share there, and from which the script runs. SECONDS: after which the guest
# is killed. Its memory can be shared with a server of vhost-user.
# In the guest / is an overlay of memory, /tmp and /run are memory; `guest-modprobe NAME` loads a
# module of that kernel. Needs qemu-system-x86, busybox-static, cpio, kmod, xz-utils, zstd.
# GUEST_QEMU: the program, if not the qemu-system-x86_64 of the path.
# Exit codes: the script's; 125: the guest did not end in time.
set -eu
kernel=$(realpath "$1")
modules=$(realpath "$2")
share=$(realpath "$3")
seconds=$4
script=$(realpath "$5")
shift 5
args=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    args+=("$1")
    shift
done
[ $# = 0 ] || shift
version=$(basename "$modules")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The index of the modules, beside links to them where the folder has none.
mkdir -p "$work/index/lib/modules" "$share"
if [ -e "$modules/modules.dep.bin" ]; then
    ln -s "$modules" "$work/index/lib/modules/$version"
else
    cp -rs "$modules" "$work/index/lib/modules/$version"
    depmod -b "$work/index" "$version"
fi
rm -rf "$share/.index"
mkdir "$share/.index"
cp -L "$work/index/lib/modules/$version"/modules.* "$share/.index/"

# What the first root needs to reach the real one, in an order in which it can be loaded.
ram=$work/ram
mkdir -p "$ram"/{bin,proc,sys,dev,modules,newroot,lower,share,upper}
cp "$(command -v busybox)" "$ram/bin/busybox"
for module in virtio_pci 9pnet_virtio 9p overlay; do
    modprobe -S "$version" -d "$work/index" --show-depends "$module" 2>/dev/null
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
    name=$(basename "$file")
    case $file in
    *.xz) xz -dc "$file" >"$ram/modules/${name%.xz}" && echo "${name%.xz}" ;;
    *.zst) zstd -qdc "$file" >"$ram/modules/${name%.zst}" && echo "${name%.zst}" ;;
    *) cp -L "$file" "$ram/modules/$name" && echo "$name" ;;
    esac
done >"$ram/modules/order"
cat >"$ram/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /lower
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share
mount -t tmpfs upper /upper
mkdir /upper/changed /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changed,workdir=/upper/work root /newroot
for dir in proc sys dev; do mount --move /$dir /newroot/$dir; done
mount -t tmpfs tmp /newroot/tmp
mount -t tmpfs run /newroot/run
mkdir -p /newroot/share /newroot/run/lower
mount --move /share /newroot/share
mount --bind /lower /newroot/run/lower
exec switch_root /newroot /bin/bash /share/.guest-init
INIT
chmod +x "$ram/init"
(cd "$ram" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

rm -f "$share/.exit"
[ "$script" -ef "$share/$(basename "$script")" ] || cp "$script" "$share/"
printf '%q ' "$(basename "$script")" "${args[@]}" >"$share/.guest-args"
cat >"$share/.guest-init" <<INIT
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/tmp LC_ALL=C
ln -sfn /proc/self/fd /dev/fd
mkdir -p /run/bin /run/index/lib/modules /dev/pts
mount -t devpts devpts /dev/pts
ip link set lo up 2>/dev/null
cp -rs "/run/lower$modules" /run/index/lib/modules/$version
cp -f /share/.index/modules.* /run/index/lib/modules/$version/
printf '#!/bin/sh\nexec modprobe -d /run/index -S $version "\$@"\n' >/run/bin/guest-modprobe
chmod +x /run/bin/guest-modprobe
cd /tmp
eval "bash /share/\$(cat /share/.guest-args)"
echo \$? >/share/.exit
sync
echo o >/proc/sysrq-trigger
sleep 30
INIT
# Emulation works everywhere. GUEST_ACCEL=kvm is some twenty times faster where it works.
# GUEST_CPUS: its processors, 2 by default.
# GUEST_ICOUNT=N: the guest's time passes by 2^N ns for each instruction of either processor, and
# what it measures does not depend on what else this machine does, but for disks: while one works
# the clock leaps by the time that it really takes. Beside other work these leaps are minutes: ticks
# add some hundredths of them to the CPU, and the kernel complains of tasks that wait. A copy by a
# string instruction counts as many as it has repetitions there: GUEST_CPU=max,-erms,-fsrm copies
# words.
accel=(-accel "${GUEST_ACCEL:-tcg,thread=multi}")
[ -z "${GUEST_ICOUNT:-}" ] ||
    accel=(-accel tcg,thread=single -icount "shift=$GUEST_ICOUNT,align=off,sleep=off")
timeout --foreground -k 5 "$seconds" "${GUEST_QEMU:-qemu-system-x86_64}" "${accel[@]}" \
    -cpu "${GUEST_CPU:-max}" -smp "${GUEST_CPUS:-2}" -m 2048 \
    -object memory-backend-memfd,id=memory,size=2048M,share=on -numa node,memdev=memory \
    -nographic -no-reboot -nodefaults -serial stdio -kernel "$kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on" \
    -device virtio-rng-pci \
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev local,id=share,path="$share",security_model=none,multidevs=remap \
    -device virtio-9p-pci,fsdev=share,mount_tag=share "$@" </dev/null || true
if [ -e "$share/.exit" ]; then
    exit "$(cat "$share/.exit")"
fi
echo "guest-run: the guest did not start, or did not end within $seconds s" >&2
exit 125
