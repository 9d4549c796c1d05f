// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A volume, step by step: what it refuses, what it costs, what it survives.
use block::{ErrorKind, Nanos, Sector, Status};
use objvol::{Fault, Geometry, OpenOptions};

use crate::fixture::{Fixture, SECTORS, options};
use crate::increments::layer_names;

const HOUR: Nanos = Nanos::from_secs(3600);

#[test]
fn what_was_closed_is_there_when_it_is_opened_again() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    assert_eq!(fixture.read(&volume, 0, SECTORS).unwrap(), vec![0; 1024]);
    fixture.write(&volume, 10, 100, 1).unwrap();
    fixture.write(&volume, 50, 3, 2).unwrap();
    fixture.discard(&volume, 51, 1).unwrap();
    let found = fixture.read(&volume, 9, 102).unwrap();
    assert_eq!((found[0], found[1], found[41], found[42], found[43]), (0, 1, 2, 0, 2));
    fixture.run(async move { volume.close().await }).unwrap();
    let volume = fixture.open("a", None);
    assert_eq!(fixture.read(&volume, 9, 102).unwrap(), found);
}

#[test]
fn a_fenced_volume_refuses_all_and_says_by_whom() {
    let fixture = Fixture::new();
    let old = fixture.open("a", None);
    fixture.write(&old, 0, 8, 1).unwrap();
    fixture.flush(&old).unwrap();
    let new = fixture.try_open(OpenOptions { opened_at: 77, ..options("b", None) }).unwrap();
    fixture.write(&old, 0, 8, 2).unwrap();
    assert_eq!(fixture.flush(&old), Err(Status::Stale), "its segment met a seal");
    assert_eq!(fixture.read(&old, 0, 1), Err(Status::Stale));
    assert_eq!(fixture.write(&old, 0, 1, 3), Err(Status::Stale));
    assert_eq!(fixture.discard(&old, 0, 1), Err(Status::Stale));
    fixture.sleep(Nanos::from_secs(1));
    let fence = old.status().fence.unwrap();
    assert_eq!((fence.epoch, fence.host.as_str(), fence.opened_at), (3, "b", 77));
    let closing = old.clone();
    let error = fixture.run(async move { closing.close().await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.chain().contains("fenced by epoch 3, host b, at 77"), "{}", error.chain());
    assert_eq!(fixture.read(&new, 0, 1).unwrap(), [1]);
}

#[test]
fn an_idle_writer_notices_that_it_was_fenced() {
    let fixture = Fixture::new();
    let old = fixture.open("a", None);
    let _new = fixture.open("b", None);
    assert_eq!(fixture.read(&old, 0, 1).unwrap(), [0]);
    fixture.sleep(Nanos::from_secs(6));
    assert_eq!(fixture.read(&old, 0, 1), Err(Status::Stale));
}

#[test]
fn a_volume_of_another_host_takes_take_over_unless_clean() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    let plain = |host| OpenOptions { take_over: false, ..options(host, None) };
    let error = fixture.try_open(plain("b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.chain().contains("host a has the volume open"), "{}", error.chain());
    assert_eq!(fixture.names("manifest/").len(), 2, "a refusal changes nothing");
    fixture.run(async move { volume.close().await }).unwrap();
    let volume = fixture.try_open(plain("b")).unwrap();
    drop(volume);
    fixture.try_open(plain("b")).expect("a host opens its own volume after a crash");
}

#[test]
fn wrong_prefixes_and_sizes_are_refused() {
    let fixture = Fixture::new();
    let geometry = Geometry { sectors: Sector(8), segment_bytes: 4096, window: 1 };
    assert_eq!(fixture.create(&geometry).unwrap_err().kind(), ErrorKind::Exists);
    let wrong = OpenOptions { sectors: Some(Sector(8)), ..options("a", None) };
    let error = fixture.try_open(wrong).unwrap_err();
    assert!(error.chain().contains("the volume has 1024 sectors, not 8"), "{}", error.chain());
    fixture.bucket.borrow_mut().force("manifest/0000000000000001", None);
    assert_eq!(fixture.try_open(options("a", None)).unwrap_err().kind(), ErrorKind::NotFound);
    fixture.bucket.borrow_mut().force("somebody's", Some(vec![1]));
    assert_eq!(fixture.create(&geometry).unwrap_err().kind(), ErrorKind::Exists);
    for wrong in [
        Geometry { sectors: Sector(0), ..geometry.clone() },
        Geometry { segment_bytes: 4097, ..geometry.clone() },
        Geometry { segment_bytes: 32 << 20, ..geometry.clone() },
        Geometry { window: 0, ..geometry.clone() },
    ] {
        assert_eq!(fixture.create(&wrong).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_store_without_conditional_writes_is_refused() {
    let fixture = Fixture::new();
    fixture.bucket.borrow_mut().set_overwrites();
    let before = fixture.names("");
    let error = fixture.try_open(options("a", None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert_eq!(fixture.names(""), before, "nothing is left");
    let alone = OpenOptions { single_writer: true, ..options("a", None) };
    let volume = fixture.try_open(alone.clone()).unwrap();
    fixture.write(&volume, 0, 8, 1).unwrap();
    fixture.flush(&volume).unwrap();
    drop(volume);
    let volume = fixture.try_open(alone).unwrap();
    assert_eq!(fixture.read(&volume, 0, 8).unwrap(), [1; 8]);
}

#[test]
fn a_map_beyond_its_memory_takes_no_more_writes() {
    let fixture = Fixture::new();
    let small = OpenOptions { map_memory: 10 * 24, ..options("a", None) };
    let volume = fixture.try_open(small).unwrap();
    for n in 0..10 {
        fixture.write(&volume, n * 4, 1, 1).unwrap();
    }
    assert_eq!(fixture.write(&volume, 80, 1, 1), Err(Status::NoSpace));
    fixture.write(&volume, 36, 1, 2).unwrap(); // no entry more
    fixture.discard(&volume, 0, 8).unwrap();
    fixture.write(&volume, 80, 1, 1).unwrap();
    fixture.flush(&volume).unwrap();
}

/// Each hole in an extent makes two of it: a client that trims could take any memory.
#[test]
fn a_map_beyond_its_memory_takes_no_more_holes() {
    let fixture = Fixture::new();
    let small = OpenOptions { map_memory: 10 * 24, ..options("a", None) };
    let volume = fixture.try_open(small).unwrap();
    fixture.write(&volume, 0, 64, 1).unwrap();
    let mut hole = 1;
    while volume.status().extents < 10 {
        fixture.discard(&volume, hole, 1).unwrap();
        hole += 4;
    }
    assert_eq!(fixture.discard(&volume, 50, 1), Err(Status::NoSpace));
    assert_eq!(fixture.read(&volume, 50, 1).unwrap(), [1]);
    // No entry more, and fewer.
    fixture.discard(&volume, 63, 1).unwrap();
    fixture.discard(&volume, 0, 12).unwrap();
    fixture.discard(&volume, 50, 1).unwrap();
}

#[test]
fn flushes_that_wait_together_cost_one_segment() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 4, 1).unwrap();
    let before = fixture.bucket.borrow().counts().puts;
    let device: std::rc::Rc<dyn block::BlockDevice> = volume.clone();
    fixture.run(async move {
        let flushes: Vec<_> =
            (0..8).map(|_| reactor::flush(&*device, block::Class::Foreground)).collect();
        for flush in flushes {
            flush.await.unwrap();
        }
    });
    assert_eq!(fixture.bucket.borrow().counts().puts, before + 1);
    fixture.flush(&volume).unwrap();
    assert_eq!(fixture.bucket.borrow().counts().puts, before + 1, "there is nothing new");
}

#[test]
fn neighbours_are_read_by_one_request_and_a_discard_is_small() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..8 {
        fixture.write(&volume, 100 - n * 2, 1, 1).unwrap();
    }
    fixture.flush(&volume).unwrap();
    let before = fixture.bucket.borrow().counts();
    assert_eq!(
        fixture.read(&volume, 86, 15).unwrap(),
        [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    );
    assert_eq!(fixture.bucket.borrow().counts().gets, before.gets + 1);
    fixture.discard(&volume, 0, SECTORS).unwrap();
    fixture.flush(&volume).unwrap();
    assert_eq!(fixture.bucket.borrow().counts().puts, before.puts + 1);
    let last = fixture.names("segment/").pop().unwrap();
    assert_eq!(fixture.bucket.borrow_mut().object(&last).unwrap().len(), 512);
    assert_eq!(volume.status().extents, 0);
}

#[test]
fn an_outage_of_an_hour_costs_no_byte() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap();
    let until = fixture.world.borrow().now() + HOUR;
    fixture.bucket.borrow_mut().set_outage(until);
    // Until the window and the gathered segment are full: 5 of 8 KiB.
    for n in 0..4 {
        fixture.write(&volume, 8 + n * 16, 16, 2).unwrap();
    }
    assert!(fixture.world.borrow().now() < until, "writes need no store while there is room");
    fixture.write(&volume, 200, 128, 3).unwrap();
    assert!(fixture.world.borrow().now() >= until, "a writer waits for the store");
    fixture.flush(&volume).unwrap();
    drop(volume);
    let volume = fixture.open("a", None);
    assert_eq!(fixture.read(&volume, 0, 8).unwrap(), [1; 8]);
    assert_eq!(fixture.read(&volume, 8, 64).unwrap(), [2; 64]);
    assert_eq!(fixture.read(&volume, 200, 128).unwrap(), [3; 128]);
}

#[test]
fn garbage_is_collected_and_deleted() {
    let fixture = Fixture::new();
    let busy = OpenOptions { checkpoint_every: 8, gc_threshold: 60, ..options("a", None) };
    let volume = fixture.try_open(busy).unwrap();
    fixture.write(&volume, 900, 1, 9).unwrap();
    for round in 0..30 {
        for n in 0..20 {
            fixture.write(&volume, n * 16, 16, round).unwrap();
        }
        fixture.flush(&volume).unwrap();
        fixture.sleep(Nanos::from_secs(2));
    }
    fixture.sleep(Nanos::from_secs(20));
    // 600 segments were written; 20 are live.
    let left = fixture.names("segment/").len();
    assert!(left < 60, "{left} segments");
    assert_eq!(fixture.names("checkpoint/").len(), layer_names(&fixture).len());
    drop(volume);
    let volume = fixture.open("a", None);
    assert_eq!(fixture.read(&volume, 0, 320).unwrap(), [29; 320]);
    assert_eq!(fixture.read(&volume, 900, 1).unwrap(), [9]);
}

/// Objects of segments, and their bytes.
fn sent(fixture: &Fixture) -> (usize, u64) {
    let names = fixture.names("segment/");
    let mut bucket = fixture.bucket.borrow_mut();
    let bytes = names.iter().map(|name| bucket.object(name).unwrap().len() as u64).sum();
    (names.len(), bytes)
}

#[test]
fn of_writes_between_two_flushes_the_last_is_sent() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    let before = sent(&fixture).1;
    for n in 0..100 {
        fixture.write(&volume, n % 4 * 4, 4, u8::try_from(n).unwrap()).unwrap();
    }
    assert_eq!(fixture.read(&volume, 0, 5).unwrap(), [96, 96, 96, 96, 97]);
    fixture.flush(&volume).unwrap();
    assert_eq!(sent(&fixture).1 - before, (1 + 4 * 4) * 512, "a head, and four writes");
    // What was sent stays as it is.
    fixture.write(&volume, 0, 4, 200).unwrap();
    fixture.flush(&volume).unwrap();
    assert_eq!(sent(&fixture).1 - before, (2 + 5 * 4) * 512);
    let volume = fixture.open("b", None);
    let wanted: Vec<u8> = [200, 97, 98, 99].into_iter().flat_map(|byte| [byte; 4]).collect();
    assert_eq!(fixture.read(&volume, 0, 16).unwrap(), wanted);
}

/// Writes over sectors of which a later write or discard has changed some, in one segment: its
/// sectors, and what the next opening finds. One of the writes replaces another.
fn after_writes_over_each_other(fault: Option<Fault>) -> (u64, Vec<u8>) {
    let fixture = Fixture::new();
    let volume = fixture.open("a", fault);
    let before = sent(&fixture).1;
    let write = |at, len, byte| fixture.write(&volume, at, len, byte).unwrap();
    write(0, 2, 1);
    write(1, 1, 2);
    write(0, 2, 3);
    write(4, 2, 4);
    fixture.discard(&volume, 4, 2).unwrap();
    write(4, 2, 5);
    write(8, 4, 6);
    fixture.discard(&volume, 9, 1).unwrap();
    write(10, 2, 7);
    write(8, 1, 8);
    write(4, 2, 9);
    assert_eq!(fixture.read(&volume, 0, 12).unwrap(), [3, 3, 0, 0, 9, 9, 0, 0, 8, 0, 7, 7]);
    fixture.flush(&volume).unwrap();
    let sectors = (sent(&fixture).1 - before) / 512;
    let volume = fixture.open("b", None);
    (sectors, fixture.read(&volume, 0, 12).unwrap())
}

#[test]
fn what_a_later_write_has_changed_is_not_replaced() {
    let (sectors, found) = after_writes_over_each_other(None);
    assert_eq!(sectors, 1 + 2 + 1 + 2 + 2 + 2 + 4 + 2 + 1);
    assert_eq!(found, [3, 3, 0, 0, 9, 9, 0, 0, 8, 0, 7, 7]);
    let (_, found) = after_writes_over_each_other(Some(Fault::ReplaceOverNewer));
    assert_eq!(found[..2], [3, 2], "the fault shows");
}

/// While the window is full, and the gathered segment too, such a write does not wait.
#[test]
fn a_write_over_one_that_waits_needs_no_room() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    let now = || fixture.world.borrow().now();
    let back = now() + HOUR;
    fixture.bucket.borrow_mut().set_outage(back);
    // Four segments in flight, and one that is gathered.
    for n in 0..10 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
    }
    fixture.write(&volume, 72, 8, 2).unwrap();
    fixture.write(&volume, 64, 8, 3).unwrap();
    assert!(now() < back, "nothing has waited");
    fixture.write(&volume, 0, 8, 4).unwrap();
    assert!(now() >= back, "what is in flight is not replaced");
    fixture.flush(&volume).unwrap();
    let volume = fixture.open("b", None);
    let wanted = [[4; 8].as_slice(), &[1; 56], &[3; 8], &[2; 8]].concat();
    assert_eq!(fixture.read(&volume, 0, 80).unwrap(), wanted);
}
