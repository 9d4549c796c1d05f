# SPDX-License-Identifier: Apache-2.0 OR MIT
# Kills under fio: no client of a block device sees an error, and nothing that it was told is lost.
# Sourced by run.sh.
[ -e /dev/ublk-control ] || guest-modprobe ublk_drv
make_pond
start --config pond.toml || return
over "$rounds" kills kill_twice plain=$plain wc=$wc || return
stop
