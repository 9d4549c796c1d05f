#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The steps of scripts/try-release.sh in a root where nothing of millpond is: it is installed,
# serves a write cache as its own user, is killed, upgraded under a client, and removed.
#
#   try-release-inside.sh tarball|deb|rpm VERSION
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive HOME=/run
kind=$1 version=$2
run=/run/millpond state=/var/lib/millpond
uri="nbd+unix:///data?socket=$run/nbd.sock"
table="0 131072 writecache s $state/origin.img $state/cache.img 4096 0"
prefix=/usr
step() { step=$1; echo "try-release: $kind: $1"; }
trap 'status=$?; [ $status = 0 ] || echo "try-release: $kind: FAILED: $step"; exit $status' EXIT

# As docs/service.md says; there is no systemd here.
install_file() {
    case $kind in
    tarball)
        tar -C /usr/local --strip-components=1 -xf "/try/$1.tarball"
        getent passwd millpond >/dev/null ||
            useradd --system --user-group --home-dir $state --shell /usr/sbin/nologin millpond
        install -d -m 700 -o millpond -g millpond $state
        install -d -m 711 -o millpond -g millpond $run
        ;;
    deb) dpkg -i "/try/$1.deb" >/dev/null ;;
    # Its dependencies are files of a system of rpms: their names are none here.
    rpm) rpm -U --nodeps "/try/$1.rpm" ;;
    esac
}

pid() { cat $run/lock; }
start() {
    setpriv --reuid=millpond --regid=millpond --init-groups --no-new-privs --bounding-set=-all \
        $prefix/bin/millpond --run-dir $run daemon >>/run/log 2>&1 &
    tries=0
    until millpond --run-dir $run show >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { cat /run/log; return 1; }
        sleep 0.1
    done
}
is_intact() { nbdcopy "$uri" /run/read && cmp -n 1048576 /run/read /run/data; }

step 'install'
! command -v millpond >/dev/null || exit 1
install_file first
[ $kind != tarball ] || prefix=/usr/local
hash -r
[ "$(command -v millpond)" = $prefix/bin/millpond ]
echo "glibc $(ldd --version | sed -n '1s/.* //p'), $(stat -c %s $prefix/bin/millpond) bytes"
millpond version 2>/dev/null | grep -F "$version"
[ "$(stat -c '%a %U' $state)" = '700 millpond' ]
for file in lib/systemd/system/millpond.service lib/udev/millpond-export \
    lib/sysusers.d/millpond.conf share/bash-completion/completions/millpond \
    share/zsh/site-functions/_millpond; do
    [ -s "$prefix/$file" ]
done
find $prefix/share/man -name 'millpond-create.1*' | grep -q .
grep -q "ExecStart=$prefix/bin/millpond" $prefix/lib/systemd/system/millpond.service
# The licences, and a page that the configuration names; Debian's roots leave out documents.
if [ $kind != deb ]; then
    grep -q '^== tokio ' $prefix/share/doc/millpond/libraries.txt
    [ -s $prefix/share/doc/millpond/LICENSE-APACHE ]
    [ -s $prefix/share/doc/millpond/docs/config.md ]
fi
[ $kind != rpm ] || rpm -V --nodeps millpond
if [ $kind != tarball ]; then
    millpond daemon --config /etc/millpond.toml --check-config
    echo '# mine' >>/etc/millpond.toml
fi

step 'serve a write cache, without root'
truncate -s 64M $state/origin.img
truncate -s 16M $state/cache.img
chown millpond: $state/*.img
head -c 1048576 /dev/urandom >/run/data
start
millpond --run-dir $run create data --table "$table"
[ "$(stat -c %U "/proc/$(pid)")" = millpond ]
nbdcopy /run/data "$uri"
is_intact

step 'a kill loses nothing'
kill -KILL "$(pid)"
start
millpond --run-dir $run create data --table "$table"
is_intact

step 'the next version takes over under a client'
head -c 1048576 /dev/urandom >/run/data
mkfifo /run/pipe
{ head -c 524288 /run/data; sleep 3; tail -c +524289 /run/data; } >/run/pipe &
nbdcopy - "$uri" </run/pipe &
client=$!
sleep 1
before=$(pid)
cp $prefix/bin/millpond /run/former
install_file next
! cmp -s $prefix/bin/millpond /run/former || exit 1
[ "$(pid)" = "$before" ]
[ $kind = tarball ] || tail -n 1 /etc/millpond.toml | grep -qx '# mine'
millpond --run-dir $run upgrade
[ "$(pid)" != "$before" ]
cmp "/proc/$(pid)/exe" $prefix/bin/millpond
wait $client
is_intact

step 'after a kill the next version has all, and writes it back'
kill -KILL "$(pid)"
start
millpond --run-dir $run create data --table "$table"
is_intact
millpond --run-dir $run flush data
millpond --run-dir $run remove data
millpond --run-dir $run stop
cmp -n 1048576 $state/origin.img /run/data

step 'remove'
case $kind in
tarball) (cd /usr/local && tar -tf /try/next.tarball | grep -v '/$' | cut -d / -f 2- | xargs rm) ;;
deb) dpkg -r millpond >/dev/null ;;
rpm) rpm -e --nodeps millpond ;;
esac
# Until it is purged a Debian package leaves its configuration and the masks of its units, links.
[ -z "$(find /usr /etc -name '*millpond*' ! -name 'millpond.toml*' -type f)" ]
[ -e $state/origin.img ]
