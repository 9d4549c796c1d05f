#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches the qemu of a release of Debian with the package client into a directory, with the
# libraries that it needs, and prints the path of a program that runs it. This machine's packages
# stay as they are. Needs apt-get and dpkg-deb, and no root.
#
#   scripts/guest-qemu.sh DIR SUITE
#
# Exit codes: 0 it is there, 1 the archive is not to be had, or has no such release.
set -eu
dir=$(realpath -m "$1")
suite=$2
qemu=$dir/qemu-system-x86_64
if [ -x "$qemu" ]; then
    echo "$qemu"
    exit 0
fi
mkdir -p "$dir"/{lists,cache/archives}/partial "$dir"/{state,unpacked}
mirror=$(grep -rhE '^(URIs:|deb )' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    grep -oE 'https?://[^ ]+debian/?( |$)' | head -1 | tr -d ' ')
if [ -z "$mirror" ]; then
    echo "guest-qemu: no archive of Debian in the package client's list" >&2
    exit 1
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror $suite main" >"$dir/sources.list"
: >"$dir/state/status" # nothing is installed: all that qemu needs is fetched, its C library too
options=(-o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=-
    -o APT::Sandbox::User= -o APT::Install-Recommends=false -o Debug::NoLocking=true
    -o "Dir::State=$dir/state" -o "Dir::State::lists=$dir/lists"
    -o "Dir::State::status=$dir/state/status" -o "Dir::Cache=$dir/cache")
apt-get "${options[@]}" update -qq >&2
apt-get "${options[@]}" install -qq --yes --download-only qemu-system-x86 >&2
for package in "$dir"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$dir/unpacked"
done
rm -rf "$dir/lists" "$dir/cache" "$dir/state"
root=$dir/unpacked/usr
# Up to Debian 12 the C library is not below usr.
loader=$(find "$dir/unpacked" -name ld-linux-x86-64.so.2 | head -1)
libraries=$root/lib/x86_64-linux-gnu
cat >"$qemu.new" <<RUN
#!/bin/sh
export QEMU_MODULE_DIR=$libraries/qemu
exec $loader --library-path $libraries:$dir/unpacked/lib/x86_64-linux-gnu \\
    $root/bin/qemu-system-x86_64 -L $root/share/qemu -L $root/share/seabios \\
    -L $root/lib/ipxe/qemu "\$@"
RUN
chmod +x "$qemu.new"
"$qemu.new" --version >&2
mv "$qemu.new" "$qemu"
echo "$qemu"
