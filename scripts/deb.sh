#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Makes a Debian package of what `make install` installs: target/debian/millpond_VERSION_ARCH.deb.
#
#   scripts/deb.sh PROGRAM [VERSION]     the built program; the version is that of Cargo.toml
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

program=$(realpath "$1")
version=${2:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
arch=$(dpkg --print-architecture)
out=$(realpath -m "${CARGO_TARGET_DIR:-target}/debian")
root=$out/root
# Times of files in the package: that of the commit, so that the same source makes the same
# package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

# What of the system the program is linked with.
dependencies() {
    mkdir -p "$out/debian"
    printf 'Source: millpond\n\nPackage: millpond\nArchitecture: any\n' >"$out/debian/control"
    (cd "$out" && dpkg-shlibdeps -O root/usr/bin/millpond) | sed 's/^shlibs:Depends=//'
}

mkdir -p "$out"
rm -rf "$root" "$out/debian"
make --no-print-directory --silent install PROGRAM="$program" PREFIX=/usr DESTDIR="$root"
install -D -m 644 packaging/millpond.toml "$root/etc/millpond.toml"
doc=$root/usr/share/doc/millpond
install -m 644 packaging/debian/copyright LICENSE-MIT "$doc"
scripts/libraries.sh >"$doc/libraries.txt"
maintainer=$(git log -1 --format='%an <%ae>')
date=$(date -u -R -d "@$SOURCE_DATE_EPOCH")
{
    printf 'millpond (%s) unstable; urgency=medium\n\n' "$version"
    printf '  * CHANGELOG.md.gz has the changes.\n\n -- %s  %s\n' "$maintainer" "$date"
} >"$doc/changelog"
gzip -9 -n "$doc/changelog" "$doc/CHANGELOG.md" "$doc/libraries.txt" "$root"/usr/share/man/man?/*

mkdir "$root/DEBIAN"
printf '/etc/millpond.toml\n' >"$root/DEBIAN/conffiles"
install -m 755 packaging/debian/{postinst,prerm,postrm} "$root/DEBIAN"
depends=$(dependencies)
# Of each file whole KiB, and one of each folder, as dpkg-gencontrol counts: what a file system
# makes of them differs from one to the next.
size=$(find "$root" -path "$root/DEBIAN" -prune -o -type f -printf '%s\n' -o -printf '1\n' |
    awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
sed -e "s|@VERSION@|$version|; s|@ARCH@|$arch|; s|@SIZE@|$size|; s|@MAINTAINER@|$maintainer|" \
    -e "s|@DEPENDS@|$depends|" packaging/debian/control.in >"$root/DEBIAN/control"
dpkg-deb --root-owner-group --build "$root" "$out/millpond_${version}_$arch.deb"
