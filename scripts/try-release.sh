#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Tries what target/release-VERSION has, each file in a fresh root of its own, without a network and
# without an engine of containers: checksums and signature; then the program is installed from the
# tarball, the Debian package and the rpm, serves, is killed, and is upgraded under a client. The
# steps in the roots are in scripts/try-release-inside.sh. The image of the Containerfile is made
# instruction by instruction, and replaced by a newer one.
#
#   scripts/try-release.sh VERSION [tarball|deb|rpm|image]...     as root; all of them by default
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

version=$1
shift
[ "$(id -u)" = 0 ] || { echo "try-release: root only: it installs packages in roots" >&2; exit 2; }
for tool in mmdebstrap nbdcopy objcopy rpm rpm2cpio; do
    command -v $tool >/dev/null || { echo "try-release: needs $tool" >&2; exit 2; }
done
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
release=$target/release-$version
try=$target/try-release
next=$try/next
say() { echo "try-release: $*"; }
[ -e "$release/SHA256SUMS" ] || { say "no $release: make release-build first" >&2; exit 2; }

# A Debian of a release, as a tar file: made once, in a minute.
base() {
    [ -e "$try/$1.tar" ] || {
        mkdir -p "$try"
        mmdebstrap --quiet --variant=minbase --include=libnbd-bin,rpm "$1" "$try/$1.part.tar"
        mv "$try/$1.part.tar" "$try/$1.tar"
    }
    rm -rf --one-file-system "${try:?}/system"
    mkdir -p "$try/system"
    tar -xf "$try/$1.tar" -C "$try/system"
}

# Runs a command in the root; all its processes end with it.
inside() {
    unshare --mount --pid --net --fork --kill-child sh -euc '
        root=$1; shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" "$@"' sh "$try/system" "$@"
}

# The program once more, as the next version: with one more section.
make_next() {
    rm -rf "$next" "$next-work"
    mkdir -p "$next-work"
    tar -xf "$release"/millpond-*-linux.tar.gz -C "$next-work"
    printf next >"$next-work/section"
    objcopy --add-section .next="$next-work/section" "$next-work"/millpond-*/bin/millpond \
        "$next-work/millpond"
    ! cmp -s "$next-work"/millpond-*/bin/millpond "$next-work/millpond" || exit 1
    RELEASE_TOOLS=$target/release-tools cargo run --quiet --locked -p xtask -- release package \
        "$version+next" "$next" "$next-work/millpond" >"$next-work/log" 2>&1 ||
        { cat "$next-work/log"; exit 1; }
}

check_sums() {
    say "checksums${1:+ and signature}"
    (cd "$release" && sha256sum --quiet --strict --check SHA256SUMS)
    local name
    for name in "$release"/*; do
        case ${name##*/} in
        SHA256SUMS*) ;;
        *) grep -qF "  ${name##*/}" "$release/SHA256SUMS" || { say "no sum of $name"; exit 1; } ;;
        esac
    done
    # Whose key it is, a reader has to know from elsewhere; that it is the key of KEY, is seen here.
    [ ! -e "$release/SHA256SUMS.sig" ] ||
        ssh-keygen -Y check-novalidate -n millpond-release -s "$release/SHA256SUMS.sig" \
            <"$release/SHA256SUMS"
}

# What rpm's own tools say of the rpm, and what is in it.
check_rpm() {
    local file out=$try/rpm
    file=$(echo "$release"/*.rpm)
    rpm --checksig --nosignature "$file"
    [ "$(rpm -qp --queryformat '%{NAME} %{VERSION} %{LICENSE}' "$file")" = \
        "millpond $version Apache-2.0 OR MIT" ]
    [ "$(rpm -qp --configfiles "$file")" = /etc/millpond.toml ]
    rpm -qp --requires "$file" >"$try/requires"
    grep -q '^libc.so.6(GLIBC_2' "$try/requires"
    rm -rf "$out"
    mkdir -p "$out"
    # rpm2cpio compares the length with a field that this rpm need not have, and ends with 1 then.
    # cpio ends with an error where the archive does.
    (cd "$out" && { rpm2cpio "$file" || true; } | cpio --quiet -idm)
    cmp "$out/usr/bin/millpond" <(tar -xOf "$release"/millpond-*-linux.tar.gz \
        --wildcards '*/bin/millpond')
    (cd "$out" && find . -type f | sed 's/^\.//' | sort) >"$try/unpacked"
    rpm -qpl "$file" | sort | diff - "$try/unpacked"
}

try_package() {
    local kind=$1 pattern
    case $kind in
    tarball) pattern='*-linux.tar.gz' ;;
    deb) pattern='*.deb' ;;
    rpm) pattern='*.rpm' && check_rpm ;;
    esac
    base bullseye
    mkdir "$try/system/try"
    # shellcheck disable=SC2086 # a pattern
    cp "$release"/$pattern "$try/system/try/first.$kind"
    # shellcheck disable=SC2086
    cp "$next"/$pattern "$try/system/try/next.$kind"
    cp scripts/try-release-inside.sh "$try/system/try"
    inside sh -c 'mount -t tmpfs tmpfs /run && exec sh /try/try-release-inside.sh "$@"' sh \
        "$kind" "$version"
}

# The words of a JSON array.
words() { printf '%s' "$1" | tr -d '[]",'; }

# Makes the image of a Containerfile in the root: each instruction, in order.
make_image() {
    local folder=$1 instruction rest
    user=root workdir=/ entrypoint='' command=''
    while read -r instruction rest; do
        case $instruction in
        '' | '#'*) ;;
        FROM)
            case $rest in
            *debian:11*) base bullseye ;;
            *debian:12*) base bookworm ;;
            *) say "no root for $rest" && exit 1 ;;
            esac
            ;;
        ADD)
            mkdir -p "$try/system${rest#* }"
            tar -xf "$folder/${rest%% *}" -C "$try/system${rest#* }" --no-same-owner
            ;;
        RUN) inside sh -ec "$rest" ;;
        WORKDIR) workdir=$rest ;;
        USER) user=$rest ;;
        ENTRYPOINT) entrypoint=$(words "$rest") ;;
        CMD) command=$(words "$rest") ;;
        STOPSIGNAL) ;;
        *) say "no such instruction: $instruction" && exit 1 ;;
        esac
    done <"$folder/Containerfile"
}

# Runs the image with the two folders that outlive it. Sets `container`, a process to end it by.
run_image() {
    local line="cd $workdir && exec setpriv --reuid=$user --regid=$user --init-groups"
    line="$line --no-new-privs --bounding-set=-all $entrypoint $command"
    unshare --mount --pid --net --fork --kill-child sh -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount --bind "$2/run" "$1/run/millpond"
        mount --bind "$2/state" "$1/var/lib/millpond"
        exec chroot "$1" sh -c "$3"' sh "$try/system" "$try/kept" "$line" &
    container=$!
    local tries=0
    until client show >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] && kill -0 $container || { say "the image does not serve"; exit 1; }
        sleep 0.1
    done
}

# Kills the first process of the image, and all with it. The end of unshare would not: whoever
# becomes another user is no longer killed with the parent.
kill_image() {
    kill -KILL "$(tr -d ' ' <"/proc/$container/task/$container/children")"
    wait "$container" || true
    container=
}

client() { "$try/system/usr/local/bin/millpond" --run-dir "$try/kept/run" "$@"; }

try_image() {
    local uri="nbd+unix:///data?socket=$try/kept/run/nbd.sock" state=/var/lib/millpond
    # As the daemon sees them: a relative path would be the client's.
    local table="0 131072 writecache s $state/origin.img $state/cache.img 4096 0"
    say "image: each instruction of the Containerfile"
    make_image "$release"
    # A named volume begins as a copy of what the image has there.
    rm -rf "$try/kept"
    install -d -m 711 -o 970 -g 970 "$try/kept/run"
    cp -a "$try/system/var/lib/millpond" "$try/kept/state"
    [ "$(stat -c '%a %u' "$try/kept/state")" = '700 970' ]
    truncate -s 64M "$try/kept/state/origin.img"
    truncate -s 16M "$try/kept/state/cache.img"
    chown --reference="$try/kept/state" "$try"/kept/state/*.img
    head -c 1048576 /dev/urandom >"$try/data"
    say "image: serves as user $user, and is killed"
    run_image
    client version | grep -F "$version"
    client create data --table "$table"
    nbdcopy "$try/data" "$uri"
    kill_image
    ! client show >/dev/null 2>&1 || { say "a killed image serves"; exit 1; }
    say "image: the next one has what no client flushed"
    make_image "$next"
    run_image
    client create data --table "$table"
    nbdcopy "$uri" "$try/read"
    cmp -n 1048576 "$try/read" "$try/data"
    client stop
    wait $container
    container=
}

container=
end() {
    local status=$?
    [ -z "$container" ] || kill_image 2>/dev/null || true
    [ $status = 0 ] || say "FAILED"
    exit $status
}
trap end EXIT
check_sums
make_next
for kind in "${@:-tarball deb rpm image}"; do
    # shellcheck disable=SC2086 # words
    for one in $kind; do
        case $one in
        tarball | deb | rpm) try_package "$one" ;;
        image) try_image ;;
        *) say "no kind '$one'" >&2 && exit 2 ;;
        esac
    done
done
rm -rf --one-file-system "${try:?}/system" "$try/kept" "$try/rpm" "$next" "$next-work"
say "passed"
