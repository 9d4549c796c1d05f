#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Brings a Debian-like machine to the point where `make demo` and `make test` run.
# Idempotent: installs only what is missing, says what and why, and does nothing the second time.
#
#   scripts/setup.sh          programs for the end-to-end tests, compiler check
#   scripts/setup.sh lint     rustfmt and clippy only
#   scripts/setup.sh deb      for make try-deb
#   scripts/setup.sh guest    for make guest
#   scripts/setup.sh bench-kernel  the same, and what make bench-kernel needs besides
#   scripts/setup.sh s3       what make test-s3 needs besides: moto; versitygw where Go is there
#   scripts/setup.sh peers    what bench-peers compares with besides
#   scripts/setup.sh fuzz     for make fuzz; exit status 3 where there is no nightly toolchain
set -euo pipefail
cd "$(dirname "$0")/.."

# mkfs.ext4 and losetup live in sbin, which is not on every user's path.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# command | packages that may hold it, first choice first | why
# (qemu-storage-daemon has moved between packages from one Debian release to the next.)
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
mdadm               | mdadm                           | a guarded origin that is in a RAID
curl                | curl                            | control API, as anyone would use it
jq                  | jq                              | reading JSON in scripts
python3             | python3                         | scripted protocol clients in tests
valgrind            | valgrind                        | bench-noclone: instructions and allocations
systemd-analyze     | systemd                         | the sandbox of the systemd unit
dpkg-shlibdeps      | dpkg-dev                        | make deb: what the program is linked with
strip               | binutils                        | make deb: the program without symbols
chromium            | chromium chromium-browser       | end-to-end tests: pages of HTML
promtool            | prometheus                      | tests of the alerts for Prometheus
tmux                | tmux                            | a terminal for the test of top
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

# Only `make bench-peers`. Its package may start a server of its own, which serves nothing.
NEEDED_FOR_PEERS='
nbd-server          | nbd-server                      | a peer to compare with
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

# The first of "a b c" that apt knows; a choice may be several packages, joined by +.
choose() {
    local choice first
    for choice in $1; do
        first=${choice%%+*}
        if apt-cache show "$first" >/dev/null 2>&1; then
            printf '%s\n' "$choice" | tr '+' '\n'
            return
        fi
    done
    printf '%s\n' "${1%% *}" | tr '+' '\n'
}

# The choices after the first one, for a program that its usual package did not bring.
later_choices() { case $1 in *' '*) printf '%s' "${1#* }" ;; esac; }

# Installs what is missing of $1.
install_programs() {
    local missing line command packages why list
    missing=$(missing_programs "$1")
    if [ -z "$missing" ]; then
        return
    fi
    say "missing programs:"
    while IFS='|' read -r command packages why; do
        say "  $(printf '%s' "$command" | trim) ($(printf '%s' "$why" | trim))," \
            "from package $(printf '%s' "$packages" | trim)"
    done <<<"$missing"
    list=$(while IFS= read -r line; do
        printf '%s' "$line" | cut -d'|' -f2 | trim | sed 's/ .*//; s/+/\n/g'
        printf '\n'
    done <<<"$missing" | sort -u | tr '\n' ' ')
    if ! have apt-get; then
        die "no apt-get here: please install them with this system's package manager"
    fi
    if [ "$(id -u)" != 0 ]; then
        have sudo || die "not root and no sudo: as root run: apt-get install $list"
        if ! sudo -n true 2>/dev/null && [ ! -t 0 ]; then
            die "sudo wants a password and there is no terminal: as root run: apt-get install $list"
        fi
    fi
    say "apt-get update, then install (no recommended packages)"
    apt update >/dev/null || say "apt-get update failed; going on with the lists that are there"
    list=$(while IFS='|' read -r command packages why; do
        choose "$(printf '%s' "$packages" | trim)"
    done <<<"$missing" | sort -u | tr '\n' ' ')
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
    missing=$(missing_programs "$1" | cut -d'|' -f1 | trim | tr '\n' ' ')
    [ -z "$missing" ] || die "still missing after installation: $missing"
    say "installed: $list"
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
        say "adding the toolchain's component $component (make lint needs it)"
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
        python3 -c 'import ensurepip' 2>/dev/null ||
            apt install --no-install-recommends python3-venv
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

check_nightly() {
    if ! have rustup || ! rustup run nightly rustc --version >/dev/null 2>&1; then
        say "no nightly toolchain: fuzzing is not possible here" \
            "('rustup toolchain install nightly' brings one)"
        exit 3
    fi
    install_programs "$NEEDED_TO_FUZZ"
}

case "${1:-all}" in
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
fuzz)
    check_rust
    check_nightly
    ;;
*)
    printf 'usage: scripts/setup.sh [all|lint|deb|guest|bench-kernel|s3|peers|fuzz]\n' >&2
    exit 2
    ;;
esac
say "nothing (more) to do for '${1:-all}'"
