// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Volumes on object stores under real clients: in a directory, and in a bucket over HTTP that
//! loses requests and answers, does some twice or late, and refuses others.
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use e2e::bucket::{Bucket, Faults};
use e2e::fio::Fio;
use e2e::mounted::{file, fuse};
use e2e::pause;
use e2e::process::{output, run};
use e2e::stamp::{BLOCK_BYTES, Order, Random, Stamps, Written};
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 1024;
const SECTORS: u64 = BLOCKS * BLOCK_BYTES as u64 / 512;
const LIMIT: Duration = Duration::from_secs(120);
/// Small segments and a short grace time, so that garbage is collected during a test.
const OPTIONS: &str = "4 segment_size 256K grace 1s";

/// A volume `vol` in a directory.
fn in_directory(options: &str, sectors: u64) -> (tempfile::TempDir, TestBed) {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
    let table = format!("0 {sectors} objvol file://{} {OPTIONS}", dir.path().display());
    let bed = TestBed::start_with(options, &[], &[("vol", &table)]);
    (dir, bed)
}

/// A volume `vol` in a bucket, and what stands above it.
fn in_bucket(bucket: &Bucket, above: &[(&str, &str)]) -> TestBed {
    in_bucket_beside(bucket, 16 * MIB, above)
}

/// The same beside a disk `cache.img` of so many bytes.
fn in_bucket_beside(bucket: &Bucket, cache_bytes: u64, above: &[(&str, &str)]) -> TestBed {
    let table = format!("0 {SECTORS} objvol s3://bucket/disks/one {OPTIONS}");
    let devices: Vec<_> = std::iter::once(("vol", &*table)).chain(above.iter().copied()).collect();
    TestBed::start_in(&bucket.variables(), "", &[("cache.img", cache_bytes)], &devices)
}

fn get(bed: &TestBed, device: &str, attribute: &str) -> String {
    bed.verb(&["get", device, attribute]).trim_end().to_owned()
}

/// Kills the daemon again and again while a client writes: what a flush covered is there.
pub(crate) fn kills_undo_nothing_flushed(bed: &mut TestBed, device: &str, rounds: u64) {
    let mut area = Stamps::new(0..BLOCKS, 1);
    let mut random = Random::new(5);
    area.lay(&mut bed.connect(device)).unwrap();
    let (mut written, mut owed) = (Written::default(), 0);
    for round in 0..rounds {
        let mut client = bed.connect(device);
        let answers = &AtomicU64::new(0);
        let kill_at = 100 + random.below(400);
        std::thread::scope(|scope| {
            let (area, written) = (&mut area, &mut written);
            let writer = scope.spawn(move || {
                let before = written.writes;
                area.write(&mut client, written, |w| {
                    answers.fetch_max(w.writes - before, Ordering::Relaxed);
                    false
                })
            });
            while answers.load(Ordering::Relaxed) < kill_at {
                assert!(!writer.is_finished(), "the client has failed");
                pause(Duration::from_micros(500));
            }
            bed.kill();
            let ended = writer.join().unwrap().unwrap_err();
            assert!(!ended.to_string().contains("the server says"), "{ended}");
        });
        bed.start_again();
        let mut client = bed.connect(device);
        if device == "vol" {
            let ordered = area.check_order(|at, data| client.read(at, data), Order::Writes);
            ordered.unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        let found = area.check(|at, data| client.read(at, data));
        owed += found.unwrap_or_else(|e| panic!("round {round}: {e}")).owed;
    }
    eprintln!("{written:?}, {owed} owed");
    assert!(written.flushes >= rounds && owed > BLOCKS / 4, "too little to prove: {owed} owed");
}

#[test]
fn kills_undo_nothing_flushed_in_a_directory() {
    let (_dir, mut bed) = in_directory("", SECTORS);
    kills_undo_nothing_flushed(&mut bed, "vol", 4);
    assert_eq!(get(&bed, "vol", "state"), "open");
    assert_eq!(get(&bed, "vol", "fence"), "none");
    // Each opening is an epoch; the first manifest is that of the volume's making.
    assert_eq!(get(&bed, "vol", "epoch"), "6");
}

#[test]
fn kills_and_a_bad_bucket_undo_nothing_flushed() {
    let bucket = Bucket::start().unwrap();
    let mut bed = in_bucket(&bucket, &[]);
    bucket.set_faults(Faults::some());
    kills_undo_nothing_flushed(&mut bed, "vol", 4);
    assert!(bucket.faults_met() > 50, "{} faults", bucket.faults_met());
    assert!(bed.attribute("vol", "repeated_requests") > 0);
}

/// Kills of a daemon with a cache of these options over a bad bucket.
fn kills_of_a_cache(bucket: &Bucket, cache_bytes: u64, options: &str) -> TestBed {
    let wc = format!("0 {SECTORS} writecache s vol ./cache.img 4096 {options}");
    let mut bed = in_bucket_beside(bucket, cache_bytes, &[("wc", &wc)]);
    bucket.set_faults(Faults::some());
    kills_undo_nothing_flushed(&mut bed, "wc", 4);
    assert!(bucket.faults_met() > 20, "{} faults", bucket.faults_met());
    assert_eq!(bed.attribute("wc", "error"), 0);
    bed
}

#[test]
fn a_cache_over_a_bad_bucket_loses_nothing_to_kills() {
    let bucket = Bucket::start().unwrap();
    kills_of_a_cache(&bucket, 16 * MIB, "5 ordered high_watermark 40 low_watermark 20");
}

/// The same of a cache that is smaller than the volume, and that blocks enter when they are read.
#[test]
fn a_cache_of_reads_over_a_bad_bucket_loses_nothing() {
    let options = "7 ordered high_watermark 40 low_watermark 20 read_cache 1";
    let bucket = Bucket::start().unwrap();
    let mut bed = kills_of_a_cache(&bucket, 3 * MIB, options);
    // In no order, since a stream is not admitted.
    let read = |bed: &TestBed| -> Vec<Vec<u8>> {
        let mut client = bed.connect("wc");
        let places = (0..BLOCKS).map(|n| n * 389 % BLOCKS * BLOCK_BYTES as u64);
        let block = places.map(|at| {
            let mut data = vec![0; BLOCK_BYTES];
            client.read(at, &mut data).unwrap();
            data
        });
        block.collect()
    };
    let found = read(&bed);
    assert!(read(&bed) == found, "what was admitted differs");
    assert!(bed.attribute("wc", "read_admitted") > 0, "no block was admitted");
    bed.kill();
    bed.start_again();
    assert!(read(&bed) == found, "what was admitted differs after a kill");
}

/// Through the table of the volume: epochs of a client that flushes after each write share a PUT.
#[test]
fn many_flushes_above_an_ordered_cache_share_an_object() {
    let bucket = Bucket::start().unwrap();
    let table = format!("0 {SECTORS} writecache s vol ./cache.img 4096 1 ordered");
    let bed = in_bucket(&bucket, &[("wc", &table)]);
    let mut client = bed.connect("wc");
    for block in 0..200 {
        client.write(block * 4096, &[1; 4096]).unwrap();
        client.flush().unwrap();
    }
    bed.verb(&["flush", "wc"]);
    assert_eq!(bed.attribute("wc", "dirty_blocks"), 0);
    let (flushes, together) =
        (bed.attribute("wc", "origin_flushes"), bed.attribute("wc", "epochs_together"));
    assert!(together > 100 && flushes < 100, "{flushes} flushes, {together} epochs together");
}

#[test]
fn fio_verifies_a_volume_over_a_bad_bucket() {
    if !clients(&["fio"]) {
        return;
    }
    let bucket = Bucket::start().unwrap();
    let mut bed = in_bucket(&bucket, &[]);
    bucket.set_faults(Faults::some());
    let (dir, uri) = (bed.dir().to_owned(), bed.uri("vol"));
    let fio = |seed: u64| {
        let fio = Fio::new(&dir, &uri).with(["--rw=randwrite", "--size=4m", "--iodepth=8"]);
        fio.with(["--bsrange=512-64k", "--bs_unaligned=0", "--verify=crc32c", "--fsync=40"])
            .with([&format!("--randseed={seed}"), "--end_fsync=1"])
    };
    for seed in 0..3 {
        fio(seed).run(LIMIT).unwrap();
    }
    bed.kill();
    bed.start_again();
    fio(2).with(["--verify_only"]).run(LIMIT).unwrap();
    assert!(bucket.faults_met() > 10, "{} faults", bucket.faults_met());
}

#[test]
fn overwritten_data_leave_the_bucket() {
    let bucket = Bucket::start().unwrap();
    let bed = in_bucket(&bucket, &[]);
    let mut client = bed.connect("vol");
    let data = vec![7; MIB as usize];
    for round in 0..40u64 {
        client.write(round % 4 * MIB, &data).unwrap();
        client.flush().unwrap();
    }
    bed.verb(&["message", "vol", "0", "checkpoint"]);
    let stored = || bucket.objects().iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
    let give_up = e2e::clock() + 60.0;
    while stored() > 8 * MIB {
        assert!(e2e::clock() < give_up, "{} bytes are stored", stored());
        pause(Duration::from_millis(200));
    }
    let mut back = vec![0; MIB as usize];
    for at in 0..4 {
        client.read(at * MIB, &mut back).unwrap();
        assert!(back == data, "{at}");
    }
    assert!(bed.attribute("vol", "delete_requests") > 50);
    let metrics = bed.verb(&["status", "vol"]);
    assert!(metrics.contains(" objvol open "), "{metrics}");
}

#[test]
fn a_file_system_passes_its_check_after_a_kill() {
    if !fuse() || !clients(&["mkfs.ext4", "e2fsck", "debugfs"]) {
        return;
    }
    let (_dir, mut bed) = in_directory("fuse = './mount'", 64 * MIB / 512);
    let device = file(&bed, "vol");
    let shown = device.to_str().unwrap().to_owned();
    output("mkfs.ext4", &["-q", "-F", &shown]).unwrap();
    let data = bed.path("data");
    std::fs::write(&data, vec![0x5a; 9 * MIB as usize]).unwrap();
    let write = format!("write {} data", data.display());
    output("debugfs", &["-w", "-R", &write, &shown]).unwrap();
    bed.verb(&["flush", "vol"]);
    bed.kill();
    // What the killed daemon leaves is a mount that nobody serves.
    let mount = bed.mount();
    let _ = run(Command::new("umount").arg("-lq").arg(&mount), LIMIT);
    bed.start_again();
    output("e2fsck", &["-fn", &shown]).unwrap();
    let back = bed.path("back");
    output("debugfs", &["-R", &format!("dump data {}", back.display()), &shown]).unwrap();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&data).unwrap());
}

#[test]
fn a_volume_is_made_where_nothing_is_and_nowhere_else() {
    let bucket = Bucket::start().unwrap();
    let bed = in_bucket(&bucket, &[]);
    assert!(bed.daemon().log().contains("nothing was there: a volume of"), "it tells so");
    let refused = |args: &[&str]| {
        let ended = bed.daemon().try_verb(args).unwrap();
        assert_ne!(ended.code, 0, "{args:?}");
        (ended.code, ended.stderr)
    };
    // The device has it; another size; another one by mkvol.
    let same = format!("0 {SECTORS} objvol s3://bucket/disks/one/");
    let (code, text) = refused(&["create", "again", "--table", &same]);
    assert!(code == 4 && text.contains("is the volume of device vol"), "{text}");
    let (code, text) = refused(&["mkvol", "s3://bucket/disks/one", "4M"]);
    assert!(code == 1 && text.contains("a volume takes an empty prefix"), "{text}");
    bed.verb(&["remove", "vol"]);
    let (_, text) = refused(&["create", "vol", "--table", "0 8K objvol s3://bucket/disks/one"]);
    assert!(text.contains(&format!("the volume has {SECTORS} sectors, not 16")), "{text}");
    // Made by the verb, opened with its length.
    let made = bed.verb(&["mkvol", "s3://bucket/disks/two", "8M", "--segment-size", "64K"]);
    assert!(made.contains("0 16384 objvol s3://bucket/disks/two"), "{made}");
    bed.verb(&["create", "two", "--table", "0 8M objvol s3://bucket/disks/two"]);
    assert_eq!(get(&bed, "two", "stored_segment_size"), "65536");
    // Above both there is something else.
    let (_, text) = refused(&["create", "top", "--table", "0 8M objvol s3://bucket/disks"]);
    assert!(text.contains("something lies there, one/manifest/"), "{text}");
    assert_eq!(refused(&["mkvol", "s3://bucket", "4M"]).0, 2);
    assert_eq!(refused(&["mkvol", "file:///nowhere/at/all", "4M"]).0, 3);
}

#[test]
fn a_bucket_that_overwrites_needs_a_single_writer() {
    let bucket = Bucket::start().unwrap();
    let bed = TestBed::start_in(&bucket.variables(), "", &[], &[]);
    bucket.ignore_conditions();
    let table = "0 8M objvol s3://bucket/disks/one";
    let ended = bed.daemon().try_verb(&["create", "vol", "--table", table]).unwrap();
    assert!(ended.code == 1 && ended.stderr.contains("no conditional writes"), "{}", ended.stderr);
    let ended = bed.daemon().try_verb(&["mkvol", "s3://bucket/disks/one", "8M"]).unwrap();
    assert!(ended.code == 1 && ended.stderr.contains("single_writer"), "{}", ended.stderr);
    assert_eq!(bucket.objects(), []);
    bed.verb(&["create", "vol", "--table", &format!("{table} 1 single_writer")]);
    let mut client = bed.connect("vol");
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
}

#[test]
fn wrong_credentials_are_refused_with_the_reason() {
    let bucket = Bucket::start().unwrap();
    let mut variables = bucket.variables();
    variables[2].1 = "somebody".into();
    let bed = TestBed::start_in(&variables, "", &[], &[]);
    let table = "0 8M objvol s3://bucket/disks/one";
    let ended = bed.daemon().try_verb(&["create", "vol", "--table", table]).unwrap();
    assert!(ended.code == 1 && ended.stderr.contains("AccessDenied"), "{}", ended.stderr);
}

/// The cache is killed with data that the volume does not have: nobody writes behind its back.
#[test]
fn a_volume_waits_for_the_cache_that_it_has_recorded() {
    let bucket = Bucket::start().unwrap();
    let table = format!(
        "0 {SECTORS} writecache s vol ./cache.img 4096 4 high_watermark 100 low_watermark 100"
    );
    let mut bed = in_bucket(&bucket, &[("wc", &table)]);
    bed.connect("wc").write(0, &[7; 4096]).unwrap();
    bed.connect("wc").flush().unwrap();
    let recorded = get(&bed, "vol", "cache");
    assert!(recorded.contains("cache.img since "), "{recorded}");
    bed.verb(&["remove", "wc"]);
    assert_eq!(get(&bed, "vol", "state"), "reserved");
    bed.connect("vol").write(0, &[1; 4096]).unwrap_err();
    let shown = bed.verb(&["show", "vol"]);
    assert!(shown.contains("may hold newer data"), "{shown}");
    bed.kill();
    bed.start_again();
    let mut back = [0; 4096];
    bed.connect("wc").read(0, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    bed.verb(&["uncache", "wc"]);
    assert_eq!(
        (get(&bed, "vol", "state"), get(&bed, "vol", "cache")),
        ("open".into(), "none".into())
    );
    bed.connect("wc").write(0, &[8; 4096]).unwrap();
}
