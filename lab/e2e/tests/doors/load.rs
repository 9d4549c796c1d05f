// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's own verification, over a cache that is smaller than what is written to it.
use std::time::Duration;

use e2e::fio::Fio;
use e2e::stamp::{Stamps, Written};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// Three jobs, each with a connection and 40 MiB of its own.
fn three_jobs(fio: Fio) -> Fio {
    fio.with(["--rw=randwrite", "--numjobs=3", "--offset_increment=40m", "--size=40m"]).with([
        "--iodepth=16",
        "--verify=crc32c",
        "--end_fsync=1",
        "--randseed=3",
    ])
}

/// The dirty blocks of the cache once nothing is written back any more.
fn dirty_for_good(bed: &TestBed) -> u64 {
    // Writeback goes on down to the low watermark, and would do so after the count.
    for watermark in ["high_watermark", "low_watermark"] {
        bed.verb(&["set", "wc", watermark, "100"]);
    }
    let give_up = clock() + LIMIT.as_secs_f64();
    loop {
        let dirty = bed.attribute("wc", "dirty_blocks");
        pause(Duration::from_millis(100));
        let ends = bed.attribute("wc", "writeback_blocks") == 0;
        if ends && bed.attribute("wc", "dirty_blocks") == dirty {
            return dirty;
        }
        assert!(clock() < give_up, "writeback does not end");
    }
}

const WRITES: u64 = 3 * 40 * MIB / 4096;

#[test]
fn fio_verifies_what_went_through_a_cache_a_quarter_its_size() {
    if !clients(&["fio", "nbdcopy"]) {
        return;
    }
    let mut bed = TestBed::with_cache(128 * MIB, 32 * MIB, "no_guard");
    let dir = bed.dir().to_owned();
    let done = three_jobs(Fio::new(&dir, &bed.uri("wc"))).run(LIMIT).unwrap();
    assert_eq!((done.writes, done.reads), (WRITES, WRITES));
    assert!(bed.attribute("wc", "origin_writes") > 0, "writeback went on meanwhile");
    let dirty = dirty_for_good(&bed);
    assert!(dirty > 0, "something is left to be recovered");

    bed.terminate();
    bed.start_again();
    // Its own count at the opening: with the watermarks of the table writeback goes on at once.
    let opened = format!(" s: {dirty} dirty blocks, ");
    assert!(bed.daemon().log().contains(&opened), "{dirty} blocks were dirty");
    let verify = three_jobs(Fio::new(&dir, &bed.uri("wc"))).with(["--verify_only"]);
    assert_eq!(verify.run(LIMIT).unwrap().reads, WRITES);

    bed.verb(&["message", "wc", "0", "flush"]);
    assert_eq!(bed.attribute("wc", "dirty_blocks"), 0);
    assert_eq!(bed.attribute("wc", "error"), 0);
    let served = bed.path("served.img");
    let to = served.to_str().unwrap();
    e2e::process::output("nbdcopy", &[&bed.uri("wc"), to]).unwrap();
    let origin = bed.path("origin.img");
    assert!(std::fs::read(&served).unwrap() == std::fs::read(&origin).unwrap());
    // The origin alone holds it all, seen without a daemon.
    bed.terminate();
    let verify = three_jobs(Fio::on_file(&dir, &origin)).with(["--verify_only"]);
    assert_eq!(verify.run(LIMIT).unwrap().reads, WRITES);
}

#[test]
fn sigterm_under_load_loses_no_acknowledged_write() {
    if !clients(&["fio"]) {
        return;
    }
    let mut bed = TestBed::with_cache(64 * MIB, 16 * MIB, "");
    let fio = Fio::new(bed.dir(), &bed.uri("wc"))
        .with(["--rw=randwrite", "--iodepth=32", "--time_based", "--runtime=60"])
        .with(["--offset=32m", "--size=32m"])
        .start()
        .unwrap();
    let mut stamps = Stamps::new(0..8 * MIB / 4096, 5);
    let mut client = bed.connect("wc");
    stamps.lay(&mut client).unwrap();
    let mut written = Written::default();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| stamps.write(&mut client, &mut written, |_| false));
        bed.wait_until_dirty();
        pause(Duration::from_secs(1));
        assert!(fio.is_running() && !writer.is_finished(), "the load goes on");
        bed.terminate();
        writer.join().unwrap().unwrap_err();
    });
    fio.wait_failed(LIMIT).unwrap();
    assert!(written.writes > 100, "{written:?}");
    bed.start_again();
    stamps.all_durable(); // an orderly end commits what it has answered
    let mut client = bed.connect("wc");
    let found = stamps.check(|at, data| client.read(at, data)).unwrap();
    assert_eq!(found.older, 0, "{found:?}");
}
