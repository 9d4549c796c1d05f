// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The read cache under fio, over a disk with one head behind an NBD server: reads as of a file
//! server, before and after, and after a kill; over an origin that takes 5 ms for a request:
//! beside verified writes.
use std::time::Duration;

use e2e::fio::{Fio, Measured};
use e2e::origin::{Kind, Origin, Transport};
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// A cache of 16 MiB over 64 MiB that take 5 ms a request.
fn bed(options: &str) -> TestBed {
    let sectors = 64 * MIB / 512;
    let slow = format!("0 {sectors} delay ./origin.img 0 5");
    let words = options.split_whitespace().count();
    let wc = format!("0 {sectors} writecache s slow ./cache.img 4096 {words} {options}");
    let files = [("origin.img", 64 * MIB), ("cache.img", 16 * MIB)];
    TestBed::start(&files, &[("slow", &slow), ("wc", &wc)])
}

fn zipf(bed: &TestBed, reads: u64) -> Measured {
    let fio = Fio::new(bed.dir(), &bed.uri("wc")).with(["--rw=randread", "--iodepth=16"]);
    let fio = fio.with(["--random_distribution=zipf:1.1", "--size=64m", "--norandommap"]);
    fio.with([&format!("--number_ios={reads}"), "--randseed=5"]).run(LIMIT).unwrap()
}

#[test]
fn reads_that_come_again_are_served_by_the_cache() {
    if !clients(&["fio", "nbdkit"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = std::fs::File::create(dir.path().join("origin.img")).unwrap();
    image.set_len(64 * MIB).unwrap();
    let origin = Origin::start(Kind::NbdkitDisk, Transport::Unix, dir.path());
    let wc = format!("0 - writecache s {} ./cache.img 4096 0", origin.uri("timeout=60s"));
    let mut bed = TestBed::start(&[("cache.img", 16 * MIB)], &[("wc", &wc)]);
    let before = zipf(&bed, 1000);
    assert_eq!(bed.attribute("wc", "read_admitted"), 0);
    bed.verb(&["set", "wc", "read_cache", "1"]);
    zipf(&bed, 10_000);
    let after = zipf(&bed, 1000);
    println!(
        "zipf 1.1, depth 16: {:.0} IOPS, p50 {:.0} us; with the read cache {:.0} IOPS, {:.0} us",
        before.read_iops, before.read_p50_us, after.read_iops, after.read_p50_us
    );
    assert!(before.read_p50_us > 2000.0, "{before:?}");
    assert!(after.read_p50_us < before.read_p50_us / 2.0, "{before:?} {after:?}");
    assert!(after.read_iops > 2.0 * before.read_iops, "{before:?} {after:?}");
    assert!(bed.attribute("wc", "read_hit_percent") > 30);
    // What was admitted is there after a kill.
    bed.kill();
    bed.start_again();
    assert!(bed.attribute("wc", "clean_blocks") > 100);
    bed.verb(&["set", "wc", "read_cache", "1"]);
    let warm = zipf(&bed, 1000);
    assert!(warm.read_p50_us < before.read_p50_us / 2.0, "{before:?} {warm:?}");
}

#[test]
fn verified_writes_beside_admitted_reads_stay_right() {
    if !clients(&["fio"]) {
        return;
    }
    let options = "read_cache 1 autocommit_time 50 high_watermark 30 low_watermark 10";
    let mut bed = bed(options);
    let (dir, uri) = (bed.dir().to_owned(), bed.uri("wc"));
    let fio = |rw: &str| Fio::new(&dir, &uri).with([rw, "--size=16m", "--iodepth=16"]);
    let readers = fio("--rw=randread").with(["--random_distribution=zipf:1.1", "--norandommap"]);
    let readers = readers.with(["--time_based", "--runtime=6s", "--randseed=5"]).start().unwrap();
    let writes = || fio("--rw=randwrite").with(["--verify=crc32c", "--end_fsync=1"]);
    while readers.is_running() {
        writes().run(LIMIT).unwrap();
    }
    readers.wait(LIMIT).unwrap();
    assert!(bed.attribute("wc", "read_admitted") > 0);
    assert_eq!(bed.attribute("wc", "error"), 0);
    bed.kill();
    bed.start_again();
    writes().with(["--verify_only"]).run(LIMIT).unwrap();
    assert_eq!(bed.attribute("wc", "checksum_errors"), 0);
}
