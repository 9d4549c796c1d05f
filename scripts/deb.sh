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

# The packages with the libraries that the program is linked with. dpkg-shlibdeps would take the
# libraries of this machine, not those that the program needs: it names a newer glibc.
dependencies() {
    local program=$root/usr/bin/millpond library glibc='' others=''
    for library in $(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }'); do
        case $library in
        ld-linux* | lib[cm].so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libutil.so.1)
            glibc=$(objdump -p "$program" | sed -n 's/.* GLIBC_\([0-9.]*\)$/\1/p' | sort -V |
                tail -n 1)
            ;;
        libgcc_s.so.1) others=', libgcc-s1' ;;
        *) echo "deb: no package is known to have $library" >&2 && return 1 ;;
        esac
    done
    [ -n "$glibc" ] || { echo "deb: $program needs no glibc" >&2 && return 1; }
    printf 'libc6 (>= %s)%s' "$glibc" "$others"
}

mkdir -p "$out"
rm -rf "$root"
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
