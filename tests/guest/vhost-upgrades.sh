# SPDX-License-Identifier: Apache-2.0 OR MIT
# Live upgrades of the daemon of the host (host.sh) that serves a disk of the guest: the guest sees
# no error, and qemu connects to nobody. Sourced by run.sh.
guest-modprobe virtio_blk || bad "no module virtio_blk"
within 20 test -b $vda || { bad "no disk"; return; }
host_upgrade() { ask upgrade; }
over "$rounds" upgrades host_upgrade vda=$vda || return
ask connected-once && ok "qemu has one connection all the time"
