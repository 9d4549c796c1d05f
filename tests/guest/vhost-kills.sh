# SPDX-License-Identifier: Apache-2.0 OR MIT
# Kills of the daemon of the host (host.sh) that serves a disk of the guest: the guest sees no
# error, and reads what it wrote. Sourced by run.sh and vhost-user.sh.
guest-modprobe virtio_blk || bad "no module virtio_blk"
within 20 test -b $vda || { bad "no disk"; return; }
host_kill() { ask kill; }
over "$rounds" kills host_kill vda=$vda
