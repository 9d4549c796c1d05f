#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches the newest Linux of Debian's backports with the package client into a directory and
# unpacks it; prints the directory of its modules. Needs apt-get and dpkg-deb, and no root.
#
#   scripts/guest-kernel.sh DIR [SUITE]
#
# Exit codes: 0 it is there, 1 the archive is not to be had, or has no such kernel.
set -eu
dir=$(realpath -m "$1")
suite=${2:-trixie-backports}

modules() { ls -d "$dir"/unpacked/usr/lib/modules/*/ 2>/dev/null | sed 's|/$||' | tail -1; }
found=$(modules)
if [ -n "$found" ]; then
    echo "$found"
    exit 0
fi
mkdir -p "$dir"/lists/partial "$dir"/cache/archives/partial "$dir"/unpacked
mirror=$(grep -rhE '^(URIs:|deb )' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    grep -oE 'https?://[^ ]+debian/?( |$)' | head -1 | tr -d ' ')
if [ -z "$mirror" ]; then
    echo "guest-kernel: no archive of Debian in the package client's list" >&2
    exit 1
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror $suite main" >"$dir/sources.list"
options=(-o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=-
    -o APT::Sandbox::User= -o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir/cache")
# The client waits for no lock of the system: it has folders of its own.
apt-get "${options[@]}" update -qq >&2
image=$(apt-cache "${options[@]}" search --names-only '^linux-image-[0-9.]+.*-amd64$' |
    awk '{print $1}' | grep -vE 'cloud|-rt-|-dbg|unsigned' | sort -V | tail -1)
[ -n "$image" ] || { echo "guest-kernel: no kernel in $suite of $mirror" >&2; exit 1; }
version=${image#linux-image-}
cd "$dir"
# Newer packages keep kernel and modules apart; older ones have both in one.
parts=("linux-binary-$version" "linux-modules-$version" "linux-base-$version")
if ! apt-get "${options[@]}" download -qq "${parts[@]}" >&2; then
    apt-get "${options[@]}" download -qq "$image" >&2
fi
for package in ./*.deb; do
    dpkg-deb -x "$package" unpacked
    rm "$package"
done
found=$(modules)
# Without this index no module is found.
depmod -b "$dir/unpacked/usr" "$(basename "$found")"
rm -rf "$dir/lists" "$dir/cache"
echo "$found"
