#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Brings a Debian-like machine to the point where `make test` runs: says what is missing, where it
# comes from and why, and asks. With SETUP=yes it installs without a question; where nobody can be
# asked, nothing is installed, and the exit status is 1. It does nothing the second time.
#
#   scripts/setup.sh          programs for the end-to-end tests, compiler check
#   scripts/setup.sh rust     a look at the compiler only, for make demo; installs nothing
#   scripts/setup.sh smoke    for make smoke
#   scripts/setup.sh lint     rustfmt and clippy only
#   scripts/setup.sh deb      for make try-deb
#   scripts/setup.sh guest    for make guest
#   scripts/setup.sh bench-kernel  the same, and what make bench-kernel needs besides
#   scripts/setup.sh s3       what make test-s3 needs besides: moto; versitygw where Go is there
#   scripts/setup.sh peers    what bench-peers compares with besides
#   scripts/setup.sh workflows  actionlint, which make lint-workflows runs
#   scripts/setup.sh fuzz     for make fuzz; exit status 3 where there is no nightly toolchain
set -euo pipefail
cd "$(dirname "$0")/.."

# Programs that are unpacked and not installed; the Makefile has this folder on its path, too.
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")
# mkfs.ext4 and losetup live in sbin, which is not on every user's path.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$tools"

# command | packages that may hold it, first choice first | why
# (qemu-storage-daemon has moved between packages from one Debian release to the next.)
# unpack:PACKAGE is downloaded, and the program taken out of it: its installation would start a
# service, or hook into the boot.
NEEDED='
cc                  | gcc+libc6-dev                   | the linker of every Rust build
fio                 | fio                             | load and verification over NBD
qemu-io             | qemu-utils                      | end-to-end tests: a real NBD client
qemu-img            | qemu-utils                      | end-to-end tests: convert, compare
qemu-storage-daemon | qemu-system-common qemu-utils   | bench-nbd: a peer to compare with
nbdcopy             | libnbd-bin                      | end-to-end tests: a real NBD client
nbdinfo             | libnbd-bin                      | end-to-end tests: what an export offers
nbdkit              | nbdkit                          | bench-nbd: a peer to compare with
fusermount3         | fuse3                           | FUSE export for others than root
losetup             | mount util-linux                | end-to-end tests: block devices out of files
mkfs.ext4           | e2fsprogs                       | file systems on our devices
mkfs.xfs            | xfsprogs                        | file systems on our devices
mkfs.btrfs          | btrfs-progs                     | a guarded origin with it
sgdisk              | gdisk                           | a guarded origin with a partition table
mdadm               | unpack:mdadm                    | a guarded origin that is in a RAID
curl                | curl                            | control API, as anyone would use it
jq                  | jq                              | reading JSON in scripts
python3             | python3                         | scripted protocol clients in tests
valgrind            | valgrind                        | bench-noclone: instructions and allocations
systemd-analyze     | systemd                         | the sandbox of the systemd unit
dpkg-shlibdeps      | dpkg-dev                        | make deb: what the program is linked with
strip               | binutils                        | make deb: the program without symbols
chromium            | chromium chromium-browser       | end-to-end tests: pages of HTML
promtool            | unpack:prometheus               | tests of the alerts for Prometheus
tmux                | tmux                            | a terminal for the test of top
'

# Enough for `make smoke`.
NEEDED_FOR_SMOKE='
cc                  | gcc+libc6-dev                   | the linker of every Rust build
fio                 | fio                             | load and verification over NBD
qemu-io             | qemu-utils                      | a real NBD client
nbdinfo             | libnbd-bin                      | what an export offers
fusermount3         | fuse3                           | FUSE export for others than root
'

# Only `make try-deb`.
NEEDED_FOR_DEB='
mmdebstrap          | mmdebstrap                      | a Debian to install the package in
'

# Only `make guest`.
NEEDED_FOR_GUEST='
qemu-system-x86_64  | qemu-system-x86                 | the machine that the guest sees
busybox             | busybox-static                  | the first programs of the guest
cpio                | cpio                            | its first root
depmod              | kmod                            | the modules of its kernel
xz                  | xz-utils                        | the same, compressed
zstd                | zstd                            | the same, compressed
strip               | binutils                        | a small program: the guest reads it slowly
as                  | binutils                        | a boot sector
ld                  | binutils                        | the same
fio                 | fio                             | load and verification
mkfs.ext4           | e2fsprogs                       | a file system on a device
mkfs.xfs            | xfsprogs                        | another one
blkdiscard          | util-linux                      | discards and zeroes
dmsetup             | dmsetup                         | disks whose power is cut
curl                | curl                            | the metrics
'

# Only `make bench-kernel`.
NEEDED_FOR_BENCH_KERNEL='
make-bcache         | bcache-tools                    | a driver of the kernel to compare with
'

# Only `make bench-peers`.
NEEDED_FOR_PEERS='
nbd-server          | unpack:nbd-server               | a peer to compare with
nbdfuse             | libnbd-bin                      | a peer to compare with
'

# Only `make fuzz`.
NEEDED_TO_FUZZ='
c++                 | g++                             | libFuzzer is compiled from C++
'

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() {
    command -v "$1" >/dev/null 2>&1 || return
    # The guest's first root has no libraries.
    [ "$1" != busybox ] || ! ldd "$(command -v busybox)" >/dev/null 2>&1
}
trim() { sed 's/^[[:space:]]*//; s/[[:space:]]*$//'; }

# Of the lines of $1 those whose command is not there.
missing_programs() {
    local line command
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        command=$(printf '%s' "$line" | cut -d'|' -f1 | trim)
        have "$command" || printf '%s\n' "$line"
    done <<<"$1"
}

# Runs apt-get, as root or through sudo.
apt() {
    if [ "$(id -u)" = 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" </dev/null
    else
        sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
    fi
}

# The first of "a b c" that is one of the packages $2; a choice may be several, joined by +.
choose() {
    local choice
    for choice in $1; do
        case " $2 " in
        *" ${choice%%+*} "*)
            printf '%s\n' "$choice" | tr '+' '\n'
            return
            ;;
        esac
    done
    printf '%s\n' "${1%% *}" | tr '+' '\n'
}

# The choices after the first one, for a program that its usual package did not bring.
later_choices() { case $1 in *' '*) printf '%s' "${1#* }" ;; esac; }

# Ends the script unless somebody wants what $1 describes.
consent() {
    local answer
    case "${SETUP:-}" in
    yes) return ;;
    '') ;;
    *) die "SETUP is '$SETUP': yes is allowed, or nothing at all" ;;
    esac
    if [ ! -t 0 ]; then
        die "nothing was installed: there is nobody to ask. Run it again with SETUP=yes, as in" \
            "SETUP=yes scripts/setup.sh $part, or by hand: $1"
    fi
    read -r -p "setup: do this now: $1? [y/N] " answer
    case $answer in
    y | Y | yes) ;;
    *) die "nothing was installed. With SETUP=yes nobody is asked; by hand: $1" ;;
    esac
}

# Takes program $1 out of Debian's package $2, without installing it.
unpack_program() {
    local dir file
    dir=$(mktemp -d)
    (cd "$dir" && apt-get -q download "$2" >/dev/null) || die "could not download package $2"
    dpkg-deb -x "$dir"/*.deb "$dir/root"
    file=$(find "$dir/root" -path "*bin/$1" -type f -perm -u+x | head -n 1)
    [ -n "$file" ] || die "package $2 has no program $1"
    mkdir -p "$tools"
    cp "$file" "$tools/$1"
    rm -rf "$dir"
    say "$1: in $tools, out of package $2, which is not installed"
}

# The words of the second column of $1, first choices only; those to unpack if $2 is unpack.
first_choices() {
    local command packages why package
    while IFS='|' read -r command packages why; do
        [ -n "$command" ] || continue
        package=$(printf '%s' "$packages" | trim | sed 's/ .*//; s/+/ /g')
        case $package in
        unpack:*) [ "$2" != unpack ] || printf '%s\n' "${package#unpack:}" ;;
        *) [ "$2" = unpack ] || printf '%s\n' $package ;;
        esac
    done <<<"$1" | sort -u | tr '\n' ' ' | trim
}

# Installs what is missing of $1.
install_programs() {
    local missing line command packages why list unpacked how
    missing=$(missing_programs "$1")
    if [ -z "$missing" ]; then
        return
    fi
    say "missing programs:"
    while IFS='|' read -r command packages why; do
        packages=$(printf '%s' "$packages" | trim)
        say "  $(printf '%s' "$command" | trim) ($(printf '%s' "$why" | trim))," \
            "from package ${packages#unpack:}"
    done <<<"$missing"
    list=$(first_choices "$missing" install)
    unpacked=$(first_choices "$missing" unpack)
    if ! have apt-get; then
        die "no apt-get here: please install them with this system's package manager"
    fi
    how=
    [ -z "$list" ] || how="apt-get install --no-install-recommends $list"
    [ -z "$unpacked" ] ||
        how="${how:+$how, and }unpack, without installation, into $tools: $unpacked"
    consent "$how"
    if [ "$(id -u)" != 0 ] && [ -n "$list" ]; then
        have sudo || die "not root and no sudo: as root run: apt-get install $list"
        if ! sudo -n true 2>/dev/null && [ ! -t 0 ]; then
            die "sudo wants a password and there is no terminal: as root run: apt-get install $list"
        fi
    fi
    say "apt-get update, then install (no recommended packages)"
    apt update >/dev/null || say "apt-get update failed; going on with the lists that are there"
    [ -z "$list" ] || install_packages "$missing"
    missing_programs "$1" | while IFS='|' read -r command packages why; do
        packages=$(printf '%s' "$packages" | trim)
        case $packages in
        unpack:*) unpack_program "$(printf '%s' "$command" | trim)" "${packages#unpack:}" ;;
        esac
    done
    missing=$(missing_programs "$1" | cut -d'|' -f1 | trim | tr '\n' ' ')
    [ -z "$missing" ] || die "still missing after installation: $missing"
    say "done: $how"
}

# Installs the packages of the lines $1.
install_packages() {
    local line command packages why list known
    # Asked once: apt reads its lists anew each time.
    # shellcheck disable=SC2046 # a list of words
    known=$(apt-cache show $(printf '%s' "$1" | cut -d'|' -f2 | tr '+' ' ') 2>/dev/null |
        sed -n 's/^Package: //p' | tr '\n' ' ') || true
    list=$(while IFS='|' read -r command packages why; do
        packages=$(printf '%s' "$packages" | trim)
        case $packages in
        unpack:*) ;;
        *) choose "$packages" "$known" ;;
        esac
    done <<<"$1" | sort -u | tr '\n' ' ')
    # shellcheck disable=SC2086 # a list of words
    apt install --no-install-recommends $list || die "could not install: $list"
    # A program may live elsewhere on this release: try the other packages named for it.
    missing_programs "$1" | while IFS='|' read -r command packages why; do
        for line in $(later_choices "$(printf '%s' "$packages" | trim)"); do
            say "$(printf '%s' "$command" | trim) was not in its usual package, trying $line"
            # shellcheck disable=SC2086,SC2046
            apt install --no-install-recommends $(printf '%s' "$line" | tr '+' ' ') || true
            ! have "$(printf '%s' "$command" | trim)" || break
        done
    done
}

# Is version $1 at least version $2?
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

check_rust() {
    local minimum found
    minimum=$(sed -n 's/^rust-version *= *"\([^"]*\)".*/\1/p' Cargo.toml | head -n 1)
    if ! have cargo || ! have rustc; then
        die "no Rust toolchain on PATH: install rustc and cargo $minimum or newer" \
            "(https://rustup.rs, then 'rustup toolchain install stable')"
    fi
    found=$(rustc --version | cut -d' ' -f2)
    if ! at_least "${found%%-*}" "$minimum"; then
        die "rustc is $found, millpond needs at least $minimum: run 'rustup update stable'" \
            "(Debian's own rustc package may be too old; see https://rustup.rs)"
    fi
}

# rustfmt and clippy are components that a minimal toolchain lacks.
check_component() {
    local program=$1 component=$2
    if cargo "$program" --version >/dev/null 2>&1; then
        return
    fi
    if have rustup; then
        say "missing: the toolchain's component $component (make lint needs it)"
        consent "rustup component add $component"
        if rustup component add "$component"; then
            return
        fi
    fi
    die "cargo $program is missing and could not be added: install the component $component" \
        "('rustup component add $component', or your distribution's package rust$component)"
}

# Object stores of others for `make test-s3`, below target/s3.
install_stores() {
    if ! have moto_server && [ ! -x target/s3/moto/bin/moto_server ]; then
        say "moto: an environment of Python in target/s3/moto"
        if ! python3 -c 'import ensurepip' 2>/dev/null; then
            consent "apt-get install --no-install-recommends python3-venv"
            apt install --no-install-recommends python3-venv
        fi
        mkdir -p target/s3
        python3 -m venv target/s3/moto
        target/s3/moto/bin/pip install --quiet 'moto[s3,server]==5.2.*'
    fi
    if have versitygw || [ -x target/s3/bin/versitygw ]; then
        return
    fi
    if have go; then
        say "versitygw: go install (minutes)"
        GOBIN="$PWD/target/s3/bin" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
    else
        say "no Go toolchain: versitygw is skipped"
    fi
}

install_actionlint() {
    ! have actionlint || return 0
    have go || die "no actionlint, and no Go toolchain to build it: https://github.com/rhysd/actionlint"
    say "actionlint: go install into $tools"
    GOBIN="$tools" go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
}

check_nightly() {
    if ! have rustup || ! rustup run nightly rustc --version >/dev/null 2>&1; then
        say "no nightly toolchain: fuzzing is not possible here" \
            "('rustup toolchain install nightly' brings one)"
        exit 3
    fi
    install_programs "$NEEDED_TO_FUZZ"
}

part=${1:-all}
case "$part" in
rust)
    check_rust
    have cc || die "no C compiler, which links every Rust program: install gcc and libc6-dev"
    exit 0 # says nothing: not everybody needs more
    ;;
smoke)
    install_programs "$NEEDED_FOR_SMOKE"
    check_rust
    ;;
all)
    install_programs "$NEEDED"
    check_rust
    ;;
lint)
    check_rust
    check_component fmt rustfmt
    check_component clippy clippy
    ;;
guest)
    install_programs "$NEEDED_FOR_GUEST"
    ;;
bench-kernel)
    install_programs "$NEEDED_FOR_GUEST$NEEDED_FOR_BENCH_KERNEL"
    ;;
deb)
    install_programs "$NEEDED"
    install_programs "$NEEDED_FOR_DEB"
    ;;
s3)
    install_programs "$NEEDED"
    check_rust
    install_stores
    ;;
peers)
    install_programs "$NEEDED"
    install_programs "$NEEDED_FOR_PEERS"
    check_rust
    ;;
workflows)
    install_actionlint
    ;;
fuzz)
    check_rust
    check_nightly
    ;;
*)
    printf 'usage: scripts/setup.sh [%s]\n' >&2 \
        'all|rust|smoke|lint|deb|guest|bench-kernel|s3|peers|workflows|fuzz'
    exit 2
    ;;
esac
say "nothing (more) to do for '$part'"
