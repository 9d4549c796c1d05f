#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Runs the tests of volumes on object stores against stores that others have written.
#
#   scripts/test-s3.sh               moto, and versitygw where there is a Go toolchain
#   scripts/test-s3.sh moto          that one; or versitygw
#   MILLPOND_TEST_S3=s3://BUCKET/PREFIX scripts/test-s3.sh
#                                    the store of AWS_ENDPOINT_URL, or AWS itself, with the
#                                    credentials of the other AWS_ variables. The objects of the
#                                    tests stay there: delete the prefix afterwards
#
# Exit status: 0 all passed, or a named skip; 1 a test failed; 2 usage.
set -euo pipefail
cd "$(dirname "$0")/.."

place=target/s3
# One that is free now.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
say() { printf 'test-s3: %s\n' "$*"; }
die() { printf 'test-s3: %s\n' "$*" >&2; exit "${2:-1}"; }
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    server=
}
trap stop EXIT

tests() { cargo test --workspace --all-features --locked --test e2e stores; }

# Waits until the server answers anything.
await() {
    local tries
    for tries in $(seq 300); do
        ! curl -s -o "$place/answer" "http://127.0.0.1:$port/" || return 0
        kill -0 "$server" 2>/dev/null || die "$1 has ended: $(tail -n 3 "$place/$1.log")"
        sleep 0.1
    done
    die "$1 does not answer after $((tries / 10)) s"
}

# Tests the store at the port as $1.
test_here() {
    await "$1"
    say "$1: tests of volumes"
    MILLPOND_TEST_S3=s3://bucket/tests AWS_ENDPOINT_URL="http://127.0.0.1:$port" \
        AWS_ALLOW_HTTP=true AWS_ACCESS_KEY_ID=millpond AWS_SECRET_ACCESS_KEY=a-secret-of-length \
        tests
    stop
}

moto() {
    local program
    program=$(type -P moto_server || printf '%s' "$place/moto/bin/moto_server")
    [ -x "$program" ] || die "no moto: scripts/setup.sh s3 installs it"
    "$program" -p "$port" >"$place/moto.log" 2>&1 &
    server=$!
    await moto
    curl -s -o "$place/answer" -X PUT "http://127.0.0.1:$port/bucket"
    test_here moto
}

versitygw() {
    local program
    program=$(type -P versitygw || printf '%s' "$place/bin/versitygw")
    if [ ! -x "$program" ]; then
        say "skipped: versitygw (it takes a Go toolchain; scripts/setup.sh s3 builds it)"
        return
    fi
    rm -rf "$place/versitygw" && mkdir -p "$place/versitygw/bucket"
    "$program" --access millpond --secret a-secret-of-length --port "127.0.0.1:$port" \
        posix "$place/versitygw" >"$place/versitygw.log" 2>&1 &
    server=$!
    test_here versitygw
}

mkdir -p "$place"
if [ -n "${MILLPOND_TEST_S3:-}" ]; then
    say "$MILLPOND_TEST_S3: tests of volumes"
    tests
    exit
fi
[ $# -gt 0 ] || set -- moto versitygw
for store; do
    case $store in
    moto | versitygw) "$store" ;;
    *) die "usage: scripts/test-s3.sh [moto] [versitygw]" 2 ;;
    esac
done
