#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Servers that stand in for S3 in tests disagree about ranges that readers of footers and probes
# of existence send. RFC 9110, 14.1.2: a suffix longer than the object is the whole object, and an
# object of no bytes has no satisfiable range. gofakes3 refuses a suffix that is longer than the
# object with 416, so a reader that asks for "the last 64 KiB" fails on each small object; s3rver
# answers `bytes=-3` with the first four bytes, `bytes=0-0` with the whole object, and for an
# object of no bytes promises a byte that never comes. All with status 206, so a client that
# trusts it has wrong data. Compare Content-Range with what was asked.
#
# Seen with moto 5.2.5 (PyPI), gofakes3 v1.2.0 (Go), s3rver 3.7.1 (npm), 2026-11-29; the object is
# `abcde`, another one is empty:
#   moto      -3: 206 cde    -99: 206 abcde  0-0: 206 a      empty 0-0: 416
#   gofakes3  -3: 206 cde    -99: 416        0-0: 206 a      empty 0-0: 416
#   s3rver    -3: 206 abcd   -99: 206 abcde  0-0: 206 abcde  empty 0-0: 206 cut
#
# Needs bash, python3 with venv and pip, go, node with npm. Exit 0: as seen.
set -eu
T=$(mktemp -d)
started=()
end() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    chmod -R u+w "$T"
    rm -rf "$T"
}
trap end EXIT

python3 -m venv "$T/venv"
"$T/venv/bin/pip" -q install 'moto[server,s3]==5.2.5' 2>/dev/null
npm --silent --prefix "$T/npm" install s3rver@3.7.1 >/dev/null 2>&1
mkdir "$T/go" "$T/data"
cat >"$T/go/main.go" <<'END'
package main

import (
    "net/http"
    "os"

    "github.com/johannesboyne/gofakes3"
    "github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
    panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], gofakes3.New(s3mem.New()).Server()))
}
END
(
    cd "$T/go"
    export GOPATH=$T/gopath
    go mod init probe
    go get github.com/johannesboyne/gofakes3@v1.2.0
    go build -o server .
) >/dev/null 2>&1

cat >"$T/probe.py" <<'END'
import http.client, sys
name, port = sys.argv[1], int(sys.argv[2])
# moto wants a name of a key, and takes any; the others serve everybody.
KEY = 'Credential=S3RVER/20261129/us-east-1/s3/aws4_request'
HEADERS = {'Authorization': f'AWS4-HMAC-SHA256 {KEY}, SignedHeaders=host, Signature=00'}
HEADERS = HEADERS if name == 'moto' else {}

def ask(method, path, body=None, **more):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=20)
    connection.request(method, path, body, HEADERS | more)
    answer = connection.getresponse()
    try:
        data = answer.read().decode()
    except http.client.IncompleteRead:
        data = 'cut'
    return f'{answer.status} {data}' if answer.status < 300 else str(answer.status)

ask('PUT', '/bucket')
ask('PUT', '/bucket/object', b'abcde')
ask('PUT', '/bucket/empty', b'')
parts = [f'{r}: ' + ask('GET', '/bucket/object', Range=f'bytes={r}') for r in ('-3', '-99', '0-0')]
parts.append('empty 0-0: ' + ask('GET', '/bucket/empty', Range='bytes=0-0'))
print(name, *parts, sep=' | ')
END

# A port that is free now; three of them differ.
port() {
    python3 -c 'import socket
free = socket.socket()
free.bind(("127.0.0.1", 0))
print(free.getsockname()[1])'
}
# serve NAME COMMAND...: the server of that command, asked once it listens on $port.
serve() {
    local name=$1
    shift
    "$@" >"$T/$name.log" 2>&1 &
    started+=($!)
    for _ in $(seq 150); do
        if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            python3 "$T/probe.py" "$name" "$port"
            return
        fi
        sleep 0.2
    done
    echo "$name does not start"
}
{
    port=$(port)
    serve moto "$T/venv/bin/moto_server" -H 127.0.0.1 -p "$port"
    port=$(port)
    serve gofakes3 "$T/go/server" "$port"
    port=$(port)
    serve s3rver "$T/npm/node_modules/.bin/s3rver" -a 127.0.0.1 -p "$port" -d "$T/data"
} >"$T/seen"
cat "$T/seen"
diff "$T/seen" - <<'END'
moto | -3: 206 cde | -99: 206 abcde | 0-0: 206 a | empty 0-0: 416
gofakes3 | -3: 206 cde | -99: 416 | 0-0: 206 a | empty 0-0: 416
s3rver | -3: 206 abcd | -99: 206 abcde | 0-0: 206 abcde | empty 0-0: 206 cut
END
echo "as seen: the three servers disagree about suffixes, one byte, and empty objects"
