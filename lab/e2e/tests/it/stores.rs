// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Volumes in stores that others have written: s3s-fs, which checks signatures and keeps objects as
//! files; or the store that the environment names (`make test-s3`), a bucket of a provider, too.
//!
//! ```text
//!   MILLPOND_TEST_S3=s3://BUCKET/PREFIX  and AWS_...  ─▶ that one
//!   otherwise                                         ─▶ s3s-fs in this process, one request at a
//!                                                        time: it looks and creates in two steps
//! ```
use std::sync::Arc;
use std::time::Duration;

use e2e::fio::Fio;
use e2e::mounted::{file, fuse};
use e2e::process::output;
use e2e::test_bed::{TestBed, clients};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use crate::objvol::kills_undo_nothing_flushed;
use crate::objvol_writers::fight;

/// Where a store is that is to be tested in place of our own server.
const GIVEN: &str = "MILLPOND_TEST_S3";
const LIMIT: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
const KEY: [&str; 2] = ["millpond", "a secret of some length"];

/// A prefix of its own in a store.
struct Store {
    url: String,
    variables: Vec<(&'static str, String)>,
    /// Ends when it is dropped.
    #[expect(dead_code, reason = "it works by being there")]
    server: Option<(Runtime, TempDir)>,
}

impl Store {
    fn of(test: &str) -> Store {
        match std::env::var(GIVEN) {
            Ok(url) => {
                // A name that no run before has had.
                let unique = tempfile::Builder::new().prefix(test).tempdir().unwrap();
                let name = unique.path().file_name().unwrap().to_str().unwrap();
                Store { url: format!("{url}/{name}"), variables: Vec::new(), server: None }
            }
            Err(_) => Store::start(test),
        }
    }

    fn start(test: &str) -> Store {
        let dir = tempfile::Builder::new().prefix("millpond-e2e-s3-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bucket")).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(dir.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY[0], KEY[1]));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(serve(listener, Arc::new(Mutex::new(service.build()))));
        Store {
            url: format!("s3://bucket/{test}"),
            variables: vec![
                ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
                ("AWS_ALLOW_HTTP", "true".into()),
                ("AWS_ACCESS_KEY_ID", KEY[0].into()),
                ("AWS_SECRET_ACCESS_KEY", KEY[1].into()),
            ],
            server: Some((runtime, dir)),
        }
    }

    /// A daemon with a volume `vol` of so many bytes.
    fn volume(&self, config: &str, bytes: u64, options: &str) -> TestBed {
        let table = format!("0 {} objvol {} {options}", bytes / 512, self.url);
        TestBed::start_in(&self.variables, config, &[], &[("vol", &table)])
    }

    fn assert_sound(&self, bed: &TestBed) {
        let checked = bed.daemon().try_verb(&["check", &self.url]).unwrap();
        assert_eq!(checked.code, 0, "{}{}", checked.stdout, checked.stderr);
    }
}

async fn serve(listener: TcpListener, service: Arc<Mutex<S3Service>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = service.clone();
        let one_at_a_time = service_fn(move |request| {
            let service = service.clone();
            async move { hyper::service::Service::call(&*service.lock().await, request).await }
        });
        let builder = hyper::server::conn::http1::Builder::new();
        let connection = builder.serve_connection(TokioIo::new(stream), one_at_a_time);
        tokio::spawn(async move { drop(connection.await) });
    }
}

#[test]
fn kills_undo_nothing_flushed_in_a_store() {
    let store = Store::of("kills");
    let mut bed = store.volume("", 4 * MIB, "4 segment_size 256K grace 1s");
    kills_undo_nothing_flushed(&mut bed, "vol", 3);
    store.assert_sound(&bed);
}

#[test]
fn fio_verifies_a_volume_in_a_store() {
    if !clients(&["fio"]) {
        return;
    }
    let store = Store::of("fio");
    let mut bed = store.volume("", 16 * MIB, "4 segment_size 1M grace 1s");
    let (dir, uri) = (bed.dir().to_owned(), bed.uri("vol"));
    let fio = || {
        let fio = Fio::new(&dir, &uri).with(["--rw=randwrite", "--size=8m", "--iodepth=16"]);
        fio.with(["--bsrange=4k-64k", "--verify=crc32c", "--fsync=64", "--end_fsync=1"])
    };
    fio().run(LIMIT).unwrap();
    bed.kill();
    bed.start_again();
    fio().with(["--verify_only"]).run(LIMIT).unwrap();
    store.assert_sound(&bed);
}

#[test]
fn a_file_system_in_a_store_passes_its_check() {
    if !fuse() || !clients(&["mkfs.ext4", "e2fsck", "debugfs"]) {
        return;
    }
    let store = Store::of("ext4");
    let bed = store.volume("fuse = './mount'", 64 * MIB, "");
    let device = file(&bed, "vol");
    let shown = device.to_str().unwrap().to_owned();
    output("mkfs.ext4", &["-q", "-F", &shown]).unwrap();
    let data = bed.path("data");
    std::fs::write(&data, vec![0x5a; 9 * MIB as usize]).unwrap();
    output("debugfs", &["-w", "-R", &format!("write {} data", data.display()), &shown]).unwrap();
    bed.verb(&["flush", "vol"]);
    output("e2fsck", &["-fn", &shown]).unwrap();
    store.assert_sound(&bed);
}

#[test]
fn of_two_daemons_with_one_store_one_loses_cleanly() {
    let store = Store::of("writers");
    let beds = [(); 2].map(|()| TestBed::start_in(&store.variables, "", &[], &[]));
    fight(&beds, &store.url, 3);
    store.assert_sound(&beds[0]);
}

#[test]
fn more_objects_than_a_page_of_a_listing_are_found() {
    let store = Store::of("pages");
    let mut bed = store.volume("", 8 * MIB, "4 segment_size 4K gc_threshold 0");
    let data: Vec<u8> =
        (0..8 * MIB / 4096).flat_map(|n| [u8::try_from(n % 251).unwrap(); 4096]).collect();
    let mut client = bed.connect("vol");
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    bed.kill();
    bed.start_again();
    let mut back = vec![0; data.len()];
    bed.connect("vol").read(0, &mut back).unwrap();
    assert!(back == data);
    store.assert_sound(&bed);
}
