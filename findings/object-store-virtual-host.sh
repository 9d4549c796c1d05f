#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The crate object_store, with an endpoint of its own and `virtual_hosted_style_request`, sends the
# name of the bucket nowhere: not in the host, as the option's name says, and not in the path. A
# server that looks for a bucket in the path then takes the first part of the object's name for it:
# data go to another bucket, whose name may well exist, and the same volume opened without the
# option is another one. The endpoint has to begin with the bucket already; nothing checks that.
#
# Seen with object_store 0.14.2 (reqwest 0.13.5), 2026-11-29: PUT of `disks/one` to bucket `pond`:
#   path style: host 127.0.0.1 path /pond/disks/one
#   virtual hosted style: host 127.0.0.1 path /disks/one
#
# Needs bash, cargo, python3; two minutes of building. Exit 0: as seen.
set -eu
T=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait 2>/dev/null || true; rm -rf "$T"' EXIT

mkdir "$T/src"
cat >"$T/Cargo.toml" <<'END'
[package]
name = "probe"
version = "0.0.0"
edition = "2021"
[dependencies]
reqwest = { version = "=0.13.5", default-features = false, features = ["rustls-no-provider"] }
rustls = { version = "0.23", default-features = false, features = ["std", "ring"] }
tokio = { version = "1", features = ["rt", "macros"] }
[dependencies.object_store]
version = "=0.14.2"
default-features = false
features = ["aws-base", "reqwest", "ring"]
END
cat >"$T/src/main.rs" <<'END'
use object_store::{ObjectStoreExt, aws::AmazonS3Builder, path::Path};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    rustls::crypto::ring::default_provider().install_default().expect("the first one");
    let endpoint = std::env::args().nth(1).expect("an endpoint is given");
    for hosted in [false, true] {
        let builder = AmazonS3Builder::new().with_endpoint(&endpoint).with_allow_http(true);
        let builder = builder.with_bucket_name("pond").with_region("us-east-1");
        let builder = builder.with_access_key_id("a").with_secret_access_key("b");
        let store = builder.with_virtual_hosted_style_request(hosted).build();
        let put = store.expect("all is set").put(&Path::from("disks/one"), "x".into()).await;
        put.expect("the server takes everything");
    }
}
END
cat >"$T/server.py" <<'END'
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *words):
        pass
    def do_PUT(self):
        self.rfile.read(int(self.headers['Content-Length']))
        print('host', self.headers['Host'].split(':')[0], 'path', self.path, flush=True)
        self.send_response(200)
        self.send_header('ETag', '"e"')
        self.send_header('Content-Length', '0')
        self.end_headers()

server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
with open(sys.argv[1], 'w') as file:
    file.write(str(server.server_port))
server.serve_forever()
END
(cd "$T" && cargo build -q --target-dir "$T/target")
python3 "$T/server.py" "$T/port" >"$T/seen" &
server=$!
for _ in $(seq 50); do [ -s "$T/port" ] && break; sleep 0.1; done
"$T/target/debug/probe" "http://127.0.0.1:$(cat "$T/port")"
sed -e '1s/^/path style: /' -e '2s/^/virtual hosted style: /' "$T/seen" | tee "$T/said"
diff "$T/said" - <<'END'
path style: host 127.0.0.1 path /pond/disks/one
virtual hosted style: host 127.0.0.1 path /disks/one
END
echo "as seen: the bucket is in no part of the request"
