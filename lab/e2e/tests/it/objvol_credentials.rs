// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of a bucket that change while a volume is in use: the volume goes on by itself once its
//! provider gives out the new one, and no byte is lost; until then it says what is wrong.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use e2e::bucket::{Bucket, FAR_EXPIRY, PAST_EXPIRY};
use e2e::daemon::set_environment;
use e2e::stamp::{BLOCK_BYTES, Order, Stamps, Written};
use e2e::test_bed::TestBed;
use e2e::{clock, pause};
use tempfile::NamedTempFile;

const BLOCKS: u64 = 512;

fn table() -> String {
    let sectors = BLOCKS * BLOCK_BYTES as u64 / 512;
    format!("0 {sectors} objvol s3://bucket/disks/one 2 segment_size 128K")
}

/// Waits until something is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = clock() + 50.0;
    while !is_so() {
        assert!(clock() < give_up, "never {what}");
        pause(Duration::from_millis(20));
    }
}

fn state(bed: &TestBed) -> String {
    bed.verb(&["get", "vol", "state"]).trim_end().to_owned()
}

/// The volume waits, and says why.
fn wait_until_refused(bed: &TestBed) {
    wait_until("refused", || state(bed) == "refused");
    let shown = bed.verb(&["show", "vol"]);
    assert!(shown.contains("AccessDenied"), "{shown}");
}

/// Has a client write beside `meanwhile`, which may wait for answers. The client sees no error.
fn write_beside(bed: &TestBed, area: &mut Stamps, meanwhile: impl FnOnce(&dyn Fn(u64))) {
    let (answers, is_over) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let mut client = bed.connect("vol");
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut written = Written::default();
            area.write(&mut client, &mut written, |w| {
                answers.store(w.writes, Ordering::Relaxed);
                is_over.load(Ordering::Relaxed) == 1
            })
        });
        let more = |count: u64| {
            let end = answers.load(Ordering::Relaxed) + count;
            wait_until("answered", || answers.load(Ordering::Relaxed) >= end);
        };
        meanwhile(&more);
        is_over.store(1, Ordering::Relaxed);
        writer.join().unwrap().unwrap();
    });
}

/// After a kill the volume has what was flushed, and a state that it had.
fn is_whole_after_a_kill(mut bed: TestBed, mut area: Stamps) {
    bed.kill();
    bed.start_again();
    let mut client = bed.connect("vol");
    area.check_order(|at, data| client.read(at, data), Order::Writes).unwrap();
    let found = area.check(|at, data| client.read(at, data)).unwrap();
    assert!(found.owed > BLOCKS / 4, "too little to prove: {found:?}");
}

/// A volume of a provider's keys.
fn with_provider(bucket: &Bucket, token: &NamedTempFile) -> (TestBed, Stamps) {
    let variables = bucket.variables_of_provider(token.path()).unwrap();
    let bed = TestBed::start_in(&variables, "", &[], &[("vol", &table())]);
    let area = Stamps::new(0..BLOCKS, 9);
    area.lay(&mut bed.connect("vol")).unwrap();
    (bed, area)
}

#[test]
fn a_key_that_was_taken_back_is_asked_for_again() {
    let (bucket, token) = (Bucket::start().unwrap(), NamedTempFile::new().unwrap());
    bucket.offer("first", FAR_EXPIRY);
    bucket.accept(&["first"]);
    let (bed, mut area) = with_provider(&bucket, &token);
    write_beside(&bed, &mut area, |more| {
        more(200);
        bucket.accept(&["second"]);
        wait_until_refused(&bed);
        bucket.offer("second", FAR_EXPIRY);
        more(400);
    });
    assert_eq!(state(&bed), "open");
    // Without a client, too.
    bucket.accept(&["third"]);
    wait_until_refused(&bed);
    bucket.offer("third", FAR_EXPIRY);
    wait_until("open", || state(&bed) == "open");
    assert!(bed.daemon().is_running());
    is_whole_after_a_kill(bed, area);
}

#[test]
fn a_key_is_replaced_before_it_expires() {
    let (bucket, token) = (Bucket::start().unwrap(), NamedTempFile::new().unwrap());
    bucket.offer("first", PAST_EXPIRY);
    bucket.accept(&["first"]);
    let (bed, mut area) = with_provider(&bucket, &token);
    write_beside(&bed, &mut area, |more| {
        more(200);
        bucket.accept(&["first", "second"]);
        bucket.offer("second", PAST_EXPIRY);
        wait_until("signed with the new key", || bucket.done_by_offered() > 2);
        // What was signed before has arrived by then.
        more(200);
        bucket.accept(&["second"]);
        more(200);
    });
    assert_eq!(bucket.refused(), 0);
    is_whole_after_a_kill(bed, area);
}

#[test]
fn keys_in_variables_need_another_daemon() {
    let bucket = Bucket::start().unwrap();
    let bed = TestBed::start_in(&bucket.variables(), "", &[], &[("vol", &table())]);
    let mut area = Stamps::new(0..BLOCKS, 9);
    area.lay(&mut bed.connect("vol")).unwrap();
    write_beside(&bed, &mut area, |more| more(400));
    bucket.accept(&["second"]);
    wait_until_refused(&bed);
    let mut variables = bucket.variables();
    "second".clone_into(&mut variables[2].1);
    set_environment(bed.dir(), &variables).unwrap();
    is_whole_after_a_kill(bed, area);
}
