// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write cache over a bucket that is out of reach: verbs that write back wait for no store that
//! does not come, say why, and leave the cache as it was.
use std::process::Command;
use std::time::Duration;

use e2e::bucket::{Bucket, Faults};
use e2e::process::{Ended, Job};
use e2e::test_bed::TestBed;
use e2e::{clock, pause};

const MIB: usize = 1 << 20;
const SECTORS: usize = 8 * MIB / 512;
/// No request comes to the bucket.
const AWAY: Faults = Faults {
    lost_request: 1000,
    lost_answer: 0,
    doubled: 0,
    late: 0,
    conflict: 0,
    internal: 0,
    throttled: 0,
    slow: 0,
};

/// A cache `wc` with a dirty MiB over a bucket that is away, and a client that is connected to it.
fn dirty_over_nothing(bucket: &Bucket) -> TestBed {
    let vol = format!("0 {SECTORS} objvol s3://bucket/disks/one");
    let marks = "4 high_watermark 90 low_watermark 80";
    let wc = format!("0 {SECTORS} writecache s vol ./cache.img 4096 {marks}");
    let files = [("cache.img", 16 * MIB as u64)];
    let bed = TestBed::start_in(&bucket.variables(), "", &files, &[("vol", &vol), ("wc", &wc)]);
    let mut client = bed.connect("wc");
    client.write(0, &vec![7; MIB]).unwrap();
    client.flush().unwrap();
    bucket.set_faults(AWAY);
    bed
}

/// The device goes on with its cache; and without it once the bucket is there again.
fn goes_on(bed: &TestBed, bucket: &Bucket) {
    assert_eq!(bed.attribute("wc", "dirty_blocks"), 256);
    let mut client = bed.connect("wc");
    client.write(MIB as u64, &vec![8; MIB]).unwrap();
    client.flush().unwrap();
    bucket.set_faults(Faults::default());
    bed.verb(&["uncache", "wc"]);
    let mut data = vec![0; 2 * MIB];
    bed.connect("vol").read(0, &mut data).unwrap();
    assert!(data[..MIB].iter().all(|byte| *byte == 7) && data[MIB..].iter().all(|byte| *byte == 8));
}

fn begin(command: &mut Command) -> Job {
    Job::start(command).unwrap()
}

fn end(job: Job) -> Ended {
    let ended = job.wait(Duration::from_secs(120)).unwrap();
    assert_eq!(ended.code, 1, "{ended:?}");
    ended
}

/// Until the drain of the verb runs.
fn wait_until_draining(bed: &TestBed, is_draining: bool) {
    let give_up = clock() + 30.0;
    while (bed.attribute("wc", "drain_active") == 1) != is_draining {
        assert!(clock() < give_up, "it is not draining: {}", !is_draining);
        pause(Duration::from_millis(20));
    }
}

#[test]
fn uncache_gives_up_on_a_store_that_is_away() {
    let bucket = Bucket::start().unwrap();
    let bed = dirty_over_nothing(&bucket);
    let ended = end(begin(&mut bed.daemon().command(&["uncache", "wc"])));
    for words in ["256 of 256 blocks are left", "vol: the store does not answer: "] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    goes_on(&bed, &bucket);
}

#[test]
fn flush_and_removal_give_up_on_a_store_that_is_away() {
    let bucket = Bucket::start().unwrap();
    let bed = dirty_over_nothing(&bucket);
    let verbs: [&[_]; 3] =
        [&["flush", "wc"], &["message", "wc", "0", "flush"], &["remove", "--drain", "wc"]];
    let jobs = verbs.map(|verb| begin(&mut bed.daemon().command(verb)));
    let ended = jobs.map(end);
    for ended in &ended {
        assert!(ended.stderr.contains("256 of 256 blocks are left"), "{}", ended.stderr);
    }
    // The first of them stops the writeback, and so the others, which may not know why yet.
    let why = "vol: the store does not answer: ";
    assert!(ended.iter().any(|ended| ended.stderr.contains(why)), "{ended:?}");
    goes_on(&bed, &bucket);
}

#[test]
fn uncache_over_nothing_ends_by_a_signal() {
    let bucket = Bucket::start().unwrap();
    let bed = dirty_over_nothing(&bucket);
    let job = begin(&mut bed.daemon().command(&["uncache", "wc"]));
    wait_until_draining(&bed, true);
    job.signal(rustix::process::Signal::INT).unwrap();
    assert!(end(job).stderr.contains("drain stopped: 256 of 256 blocks are left"));
    // A client that is killed is missed, too.
    let job = begin(&mut bed.daemon().command(&["uncache", "wc"]));
    wait_until_draining(&bed, true);
    drop(job);
    wait_until_draining(&bed, false);
    goes_on(&bed, &bucket);
}
