#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The steps of scripts/try-deb.sh, inside the booted system: they end it, with their outcome.
set -eu
export DEBIAN_FRONTEND=noninteractive HOME=/run
first=$(find /try -name 'millpond_*.deb' ! -name '*next*')
work=/run/try-deb
mkdir $work
second=$(find /try -name 'millpond_*next*.deb')
uri='nbd+unix:///data?socket=/run/millpond/nbd.sock'
state=/var/lib/millpond

end() {
    if [ "$1" = 0 ]; then
        echo 'try-deb: passed'
    else
        journalctl --no-pager -u millpond || true
        echo "try-deb: FAILED: $step"
    fi
    systemctl exit "$1"
}
step() { step=$1; echo "try-deb: $(cut -d ' ' -f 1 /proc/uptime) $1"; }
trap 'end 1' EXIT

pid() { systemctl show -P MainPID millpond; }
# Every file of the system but caches, logs and the package manager's own.
all_files() {
    find / -xdev \( -path /dev -o -path /proc -o -path /run -o -path /sys -o -path /tmp \
        -o -path /try -o -path /root -o -path /var/log -o -path /var/cache \
        -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/tmp \) \
        -prune -o -printf '%p %m %u\n' | grep -v '^/etc/[a-z]*- ' | sort
    cksum /etc/passwd /etc/group /etc/shadow /etc/gshadow
}
is_intact() { nbdcopy "$uri" $work/read && cmp -n 1048576 $work/read $work/data; }

all_files >$work/before
step 'install: the service runs, with the configuration of the package'
dpkg -i "$first" >/dev/null
systemctl is-active millpond
systemctl is-enabled millpond
[ "$(systemctl is-enabled millpond.socket)" = disabled ]
[ "$(stat -c '%a %U' $state)" = '700 millpond' ]
[ "$(stat -c '%U' /proc/"$(pid)")" = millpond ]
millpond ls

step 'a write cache of the configuration, created by a reload'
truncate -s 64M $state/origin.img
truncate -s 16M $state/cache.img
chown millpond: $state/*.img
cat >/etc/millpond.toml <<CONFIG
[[device]]
name = "data"
table = "0 131072 writecache s $state/origin.img $state/cache.img 4096 0"
CONFIG
millpond daemon --config /etc/millpond.toml --check-config
systemctl reload millpond
head -c 1048576 /dev/urandom >$work/data
nbdcopy --flush $work/data "$uri"
is_intact
millpond show

step 'a restart, and a kill, lose nothing'
systemctl restart millpond
is_intact
before=$(pid)
kill -KILL "$before"
while [ "$(pid)" = 0 ] || [ "$(pid)" = "$before" ] || ! systemctl is-active --quiet millpond; do
    sleep 0.2
done
is_intact

step 'the socket of systemd: a client starts the daemon, and finds it after each end'
systemctl stop millpond
systemctl enable --now millpond.socket
[ "$(stat -c '%a %U %G' /run/millpond/nbd.sock)" = '660 millpond millpond' ]
is_intact
systemctl is-active millpond
systemctl restart millpond
is_intact
systemctl stop millpond
[ -S /run/millpond/nbd.sock ]
is_intact

step 'an upgrade leaves the daemon running and the configuration as it is'
mkfifo $work/pipe
before=$(pid)
cp /etc/millpond.toml $work/config
dpkg -i "$second" | grep millpond:
[ "$(dpkg-query -W -f '${Version}' millpond)" = "$(dpkg-deb -f "$second" Version)" ]
[ "$(pid)" = "$before" ]
systemctl is-enabled millpond.socket
readlink "/proc/$before/exe" | grep -q deleted
cmp /etc/millpond.toml $work/config
is_intact

step 'a reload hands over to the new program, under a client'
# The watchdog looks at the new process, too.
mkdir -p /run/systemd/system/millpond.service.d
printf '[Service]\nWatchdogSec=4s\n' >/run/systemd/system/millpond.service.d/watchdog.conf
systemctl daemon-reload
{ head -c 524288 $work/data; sleep 3; tail -c +524289 $work/data; } >$work/pipe &
nbdcopy --flush - "$uri" <$work/pipe &
client=$!
restarts=$(systemctl show -P NRestarts millpond)
sleep 1
systemctl reload millpond
[ "$(pid)" != "$before" ]
[ ! -e "/proc/$before" ]
readlink "/proc/$(pid)/exe" | grep -qx /usr/bin/millpond
wait $client
is_intact
upgraded=$(pid)
systemctl reload millpond
[ "$(pid)" = "$upgraded" ]
sleep 9
[ "$(pid)" = "$upgraded" ]
[ "$(systemctl show -P NRestarts millpond)" = "$restarts" ]
is_intact

step 'the new process is the one that systemd starts again, and ends'
kill -KILL "$upgraded"
while [ "$(pid)" = 0 ] || [ "$(pid)" = "$upgraded" ] ||
    ! systemctl is-active --quiet millpond; do
    sleep 0.2
done
is_intact
rm -r /run/systemd/system/millpond.service.d
systemctl daemon-reload
systemctl restart millpond
is_intact

step 'the drop-in for disks: the service starts with it'
mkdir -p /etc/systemd/system/millpond.service.d
cp /usr/share/doc/millpond/disks.conf /etc/systemd/system/millpond.service.d
systemctl daemon-reload
systemctl restart millpond
is_intact
rm -r /etc/systemd/system/millpond.service.d

step 'a removal ends the daemon; configuration and data stay'
dpkg -r millpond >/dev/null
[ ! -e /usr/bin/millpond ]
[ ! -e /run/millpond ]
cmp /etc/millpond.toml $work/config
dpkg -i "$second" >/dev/null
is_intact

step 'a purge removes the configuration, and keeps files of devices'
dpkg -P millpond | tee $work/purge
grep -q "$state has files of devices" $work/purge
[ ! -e /etc/millpond.toml ]
[ -e $state/cache.img ]
getent passwd millpond >/dev/null

step 'the last purge leaves nothing'
rm $state/*.img
dpkg -i "$second" >/dev/null
systemctl is-active --quiet millpond
dpkg -P millpond >/dev/null
all_files >$work/after
diff $work/before $work/after
trap - EXIT
end 0
