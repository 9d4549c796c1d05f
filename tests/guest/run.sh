#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: the scripts of this folder that are named, one after the other. Prints a line
# for each check; the exit status is 0 when all hold. ROUNDS: of kills or upgrades, or of a bench.
#
#   run.sh PROGRAM ROUNDS PART[=ROUNDS]...
here=$(dirname "$0")
parts=("${@:3}")
# Read once: the shared folder is slow.
cp "$1" /tmp/millpond
program=/tmp/millpond
cd /tmp || exit 1
. "$here/lib.sh"
. "$here/daemon.sh"

say "Linux $(uname -r)"
for part in "${parts[@]}"; do
    rounds=$2
    [ "${part#*=}" = "$part" ] || rounds=${part#*=}
    say "--- $part"
    . "$here/${part%%=*}.sh"
    # What has failed is kept as it is.
    [ $failed = 0 ] || break
done
dmesg | grep -E '(ublk|virtio).*(WARN|BUG)|Call Trace' && bad "the kernel complains"
[ $failed = 0 ] || keep_pond
say "done"
exit $failed
