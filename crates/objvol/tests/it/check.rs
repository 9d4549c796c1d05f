// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Check and repair: each damage is found, and named; a repair gives up what it has cut off, and
//! nothing else; nobody writes behind it.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, ErrorKind, Flags, Nanos, Op, Sector, Status};
use objvol::{
    Depth, Fault, Health, OpenOptions, SnapshotDevice, Volume, VolumeReport, check, repair,
};
use sim::seeds;

use crate::bucket::{Connection, Lies};
use crate::fixture::{Fixture, options};
use crate::increments::objects;

/// Segments of the first writer of a fixture.
const EPOCH_2: &str = "segment/0000000000000002/";

fn try_repair(fixture: &Fixture, fault: Option<Fault>) -> Result<(), block::Error> {
    let store = Connection::new(&fixture.bucket);
    fixture.run(async move { repair(Rc::new(store), options("surgeon", fault)).await })
}

/// One segment for each write: write `n` fills the 8 sectors from `8 n` on with `n + 1`.
fn write_segments(fixture: &Fixture, volume: &Rc<Volume>, writes: std::ops::Range<u64>) {
    for n in writes {
        fixture.write(volume, n * 8, 8, u8::try_from(n + 1).unwrap()).unwrap();
        fixture.flush(volume).unwrap();
    }
}

/// What a volume must hold of such writes.
fn expected(written: std::ops::Range<u64>, all: u64) -> Vec<u8> {
    let byte = |n: u64| if written.contains(&n) { u8::try_from(n + 1).unwrap() } else { 0 };
    (0..all).flat_map(|n| [byte(n); 8]).collect()
}

fn delete(fixture: &Fixture, name: &str) {
    fixture.bucket.borrow_mut().force(name, None);
}

/// Changes a byte of an object.
fn spoil(fixture: &Fixture, name: &str, at: usize) {
    let mut bucket = fixture.bucket.borrow_mut();
    let mut object = bucket.object(name).unwrap().to_vec();
    object[at] ^= 1;
    bucket.force(name, Some(object));
}

/// Six segments of a volume whose writer goes on, with a checkpoint behind the second.
fn written() -> (Fixture, Rc<Volume>) {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    write_segments(&fixture, &volume, 0..2);
    let checkpointed = volume.clone();
    fixture.run(async move { checkpointed.checkpoint().await }).unwrap();
    write_segments(&fixture, &volume, 2..6);
    (fixture, volume)
}

#[test]
fn a_volume_in_use_is_checked_and_its_writer_goes_on() {
    let (fixture, volume) = written();
    let report = fixture.check(Depth::Data);
    assert_eq!((report.health(), &report.notes), (Health::Sound, &Vec::new()), "{report:?}");
    assert_eq!((report.segments.count, report.replayed, report.extents), (6, 4, 6));
    assert_eq!((report.live_bytes, report.checked_bytes), (6 * 4096, 6 * 4096));
    assert_eq!((report.epoch, report.host.as_str()), (2, "a"));
    assert_eq!(report.owner.map(|owner| owner.host), Some("a".to_owned()));
    write_segments(&fixture, &volume, 6..8);
    assert_eq!(fixture.check(Depth::Metadata).replayed, 6);
}

fn assert_cut(report: &VolumeReport, names: &str, cut_off: u64) {
    assert_eq!(report.health(), Health::Broken, "{report:?}");
    assert!(report.damage[0].contains(names), "{:?}", report.damage);
    assert_eq!(report.cut_off, cut_off, "{report:?}");
}

/// What is cut off is given up, all before it is there; the writer that goes on meets a seal.
fn repair_keeps(fixture: &Fixture, old: &Rc<Volume>, kept: std::ops::Range<u64>) {
    let error = fixture.try_open(options("b", None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.chain().contains("`millpond check`"), "{}", error.chain());
    try_repair(fixture, None).unwrap();
    let report = fixture.check(Depth::Data);
    assert_eq!(report.health(), Health::Sound, "{report:?}");
    fixture.write(old, 0, 8, 99).unwrap_or(());
    assert_eq!(fixture.flush(old), Err(Status::Stale), "the old writer goes on");
    let volume = fixture.open("b", None);
    assert_eq!(fixture.read(&volume, 0, 48).unwrap(), expected(kept, 6));
    write_segments(fixture, &volume, 7..9);
    drop(volume);
    let volume = fixture.open("c", None);
    assert_eq!(fixture.read(&volume, 56, 16).unwrap(), [[8; 8], [9; 8]].concat());
}

#[test]
fn history_ends_at_a_missing_segment() {
    let (fixture, volume) = written();
    delete(&fixture, &fixture.names(EPOCH_2)[3]);
    assert_cut(&fixture.check(Depth::Metadata), "segment 2.4 is missing", 2);
    repair_keeps(&fixture, &volume, 0..3);
}

#[test]
fn history_ends_at_an_unreadable_segment() {
    let (fixture, volume) = written();
    spoil(&fixture, &fixture.names(EPOCH_2)[3], 70);
    assert_cut(&fixture.check(Depth::Metadata), "segment/0000000000000002/0000000000000004", 3);
    repair_keeps(&fixture, &volume, 0..3);
}

#[test]
fn epochs_behind_the_damage_are_cut_off_too() {
    let (fixture, _) = written();
    let volume = fixture.open("b", None);
    write_segments(&fixture, &volume, 6..8);
    delete(&fixture, &fixture.names(EPOCH_2)[4]);
    let report = fixture.check(Depth::Metadata);
    assert_cut(&report, "segment 2.5 is missing", 3);
    repair_keeps(&fixture, &volume, 0..4);
}

#[test]
fn an_unreadable_checkpoint_gives_way_to_the_one_before() {
    let fixture = Fixture::new();
    let slow = OpenOptions { grace: Nanos::from_secs(3600), ..options("a", None) };
    let volume = fixture.try_open(slow).unwrap();
    for from in [0, 3] {
        write_segments(&fixture, &volume, from..from + 3);
        let checkpointed = volume.clone();
        fixture.run(async move { checkpointed.checkpoint().await }).unwrap();
    }
    let names = fixture.names("checkpoint/");
    assert_eq!(names.len(), 2);
    spoil(&fixture, &names[1], 200);
    assert_cut(&fixture.check(Depth::Metadata), &names[1], 0);
    repair_keeps(&fixture, &volume, 0..6);
}

/// What lies between the checkpoint of the newest snapshot and the damaged one was garbage, and has
/// been deleted: the volume becomes what the snapshot was, and older snapshots stay.
#[test]
fn an_unreadable_checkpoint_gives_way_to_that_of_a_snapshot() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for (name, writes) in [("old", 0..2), ("new", 2..4)] {
        write_segments(&fixture, &volume, writes);
        let taken = volume.clone();
        fixture.run(async move { taken.create_snapshot(name, 1).await }).unwrap();
    }
    write_segments(&fixture, &volume, 4..6);
    let checkpointed = volume.clone();
    fixture.run(async move { checkpointed.checkpoint().await }).unwrap();
    fixture.sleep(Nanos::from_secs(5)); // those between are deleted
    let names = fixture.names("checkpoint/");
    assert_eq!(names.len(), 4, "of the snapshots, the increment behind `new`, and the newest");
    spoil(&fixture, &names[3], 200);
    let report = fixture.check(Depth::Metadata);
    assert_eq!((report.health(), objects(&report)), (Health::Broken, 2), "{report:?}");
    assert!(report.damage[0].contains(&names[3]), "{:?}", report.damage);
    assert_eq!((report.replayed, report.cut_off), (2, 0), "the increment loses nothing");
    spoil(&fixture, &names[2], 200);
    let report = fixture.check(Depth::Metadata);
    assert!(report.damage[1].contains(&names[2]), "{:?}", report.damage);
    repair_keeps(&fixture, &volume, 0..4);
    let report = fixture.check(Depth::Data);
    let snapshots = report.snapshots.iter().map(|of| (&*of.snapshot.name, &of.damage));
    assert_eq!(snapshots.collect::<Vec<_>>(), [("old", &None)]);
    let store = Rc::new(Connection::new(&fixture.bucket));
    let found = fixture.run(async move {
        let snapshot = SnapshotDevice::open(store, "old", &options("r", None)).await.unwrap();
        let buf = Buf::alloc(48 * 512);
        let all = buf.all().into();
        reactor::read(&*snapshot, Class::Normal, Sector(0), all).await.unwrap();
        buf.read(|data| data.chunks(512).map(|sector| sector[0]).collect::<Vec<u8>>())
    });
    assert_eq!(found, expected(0..2, 6));
}

/// The snapshot's place lies behind the damage: it goes with what is cut off, and its data stay
/// out of the way.
#[test]
fn a_repair_gives_up_snapshots_that_damage_has_cut_off() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    write_segments(&fixture, &volume, 0..4);
    let taken = volume.clone();
    fixture.run(async move { taken.create_snapshot("x", 1).await }).unwrap();
    write_segments(&fixture, &volume, 4..6);
    for name in fixture.names("checkpoint/") {
        delete(&fixture, &name);
    }
    delete(&fixture, &fixture.names(EPOCH_2)[2]);
    let report = fixture.check(Depth::Metadata);
    assert_eq!(report.health(), Health::Broken, "{report:?}");
    repair_keeps(&fixture, &volume, 0..2);
    assert_eq!(fixture.check(Depth::Data).snapshots, []);
}

#[test]
fn a_lost_segment_below_the_checkpoint_costs_its_sectors_only() {
    let (fixture, volume) = written();
    fixture.write(&volume, 3, 2, 77).unwrap();
    fixture.flush(&volume).unwrap();
    delete(&fixture, &fixture.names(EPOCH_2)[0]);
    let report = fixture.check(Depth::Metadata);
    assert_eq!(report.health(), Health::Lossy, "{report:?}");
    let lost: Vec<_> = report.lost.iter().map(|lost| (lost.start.0, lost.len.0)).collect();
    assert_eq!(lost, [(0, 3), (5, 3)]);
    assert!(report.lost[0].why.contains("segment 2.1 is missing"), "{:?}", report.lost);
    let volume = fixture.open("b", None);
    assert_eq!(fixture.read(&volume, 0, 1), Err(Status::Io));
    assert_eq!(fixture.read(&volume, 3, 2).unwrap(), [77, 77]);
    fixture.write(&volume, 0, 8, 5).unwrap();
    fixture.flush(&volume).unwrap();
    assert_eq!(fixture.check(Depth::Data).health(), Health::Sound);
}

#[test]
fn data_that_changed_are_found_by_their_checksums() {
    let (fixture, _volume) = written();
    spoil(&fixture, &fixture.names(EPOCH_2)[4], 512 + 5);
    assert_eq!(fixture.check(Depth::Metadata).health(), Health::Sound);
    let report = fixture.check(Depth::Data);
    assert_eq!(report.health(), Health::Lossy);
    let lost: Vec<_> = report.lost.iter().map(|lost| (lost.start.0, lost.len.0)).collect();
    assert_eq!(lost, [(32, 8)]);
}

#[test]
fn a_repair_is_refused_where_an_opening_is() {
    let (fixture, _volume) = written();
    let store = Connection::new(&fixture.bucket);
    let plain = OpenOptions { take_over: false, ..options("surgeon", None) };
    let error = fixture.run(async move { repair(Rc::new(store), plain).await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
}

/// Whether a writer that goes on behind a repair has a flush acknowledged, which no opening will
/// ever find. It looks for a successor each few seconds, so `after` makes a difference.
fn writes_behind_a_repair(after: Nanos, fault: Option<Fault>) -> bool {
    let (fixture, volume) = written();
    fixture.sleep(after);
    delete(&fixture, &fixture.names(EPOCH_2)[3]);
    try_repair(&fixture, fault).unwrap();
    fixture.write(&volume, 0, 8, 99).is_ok() && fixture.flush(&volume).is_ok()
}

#[test]
fn a_repair_that_seals_nothing_is_caught() {
    let moments = || (0..10).map(|step| Nanos::from_millis(step * 500));
    assert!(moments().any(|after| writes_behind_a_repair(after, Some(Fault::SkipSeal))));
    assert!(!moments().any(|after| writes_behind_a_repair(after, None)));
}

#[test]
fn a_check_finds_what_of_a_snapshot_is_missing() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap();
    let taken = volume.clone();
    fixture.run(async move { taken.create_snapshot("x", 1).await }).unwrap();
    fixture.write(&volume, 0, 8, 2).unwrap();
    // The map goes on from the checkpoint of this one.
    let taken = volume.clone();
    fixture.run(async move { taken.create_snapshot("y", 1).await }).unwrap();
    fixture.flush(&volume).unwrap();
    fixture.sleep(Nanos::from_secs(5)); // what is garbage is deleted
    let report = fixture.check(Depth::Data);
    let names: Vec<&str> = report.snapshots.iter().map(|of| &*of.snapshot.name).collect();
    assert_eq!((report.health(), names), (Health::Sound, vec!["x", "y"]));
    let segment = fixture.names("segment/0000000000000002/").remove(0);
    let object = fixture.bucket.borrow_mut().object(&segment).unwrap().to_vec();
    fixture.bucket.borrow_mut().force(&segment, None);
    let report = fixture.check(Depth::Metadata);
    assert_eq!(report.health(), Health::Lossy);
    assert_eq!(report.snapshots[0].damage.as_deref(), Some("segment 2.1 is missing"));
    assert_eq!(report.lost, [], "the volume does not need it any more");
    fixture.bucket.borrow_mut().force(&segment, Some(object));
    let checkpoint = fixture.names("checkpoint/").remove(0);
    fixture.bucket.borrow_mut().force(&checkpoint, None);
    let damage = fixture.check(Depth::Metadata).snapshots.remove(0).damage.unwrap();
    assert_eq!(damage, format!("{checkpoint} is missing"));
}

/// A writer that collects garbage, and checks beside it: damage is found where there is none?
fn check_beside_a_writer(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let fixture = Fixture::of_seed(seed);
    fixture.bucket.borrow_mut().set_lies(Lies { slow: 200, throttled: 100, ..Lies::default() });
    // With less the volume changes too fast for a check.
    let grace = Nanos::from_secs(8);
    let busy = OpenOptions { checkpoint_every: 6, gc_threshold: 80, grace, ..options("a", None) };
    let volume = fixture.try_open(busy).map_err(|error| error.chain())?;
    let store = Rc::new(Connection::new(&fixture.bucket));
    fixture.run(async move {
        let ends = Rc::new(Cell::new(false));
        let (device, ended): (Rc<dyn BlockDevice>, _) = (volume.clone(), ends.clone());
        reactor::spawn(async move {
            while !ended.get() {
                let at = reactor::random() % 60 * 8;
                let data = Buf::copy_of(&[7; 4096]).all().into();
                let range = (Sector(at), Sector(8));
                let (flags, class) = (Flags::FUA, Class::Normal);
                let _ = reactor::io(&*device, Op::Write, flags, class, range, data).await;
            }
        });
        let mut found = Ok(());
        for _ in 0..6 {
            reactor::sleep(Nanos::from_secs(3)).await;
            let checked = check(store.clone(), &options("c", fault), Depth::Data, &|_, _| ()).await;
            let report = checked.map_err(|error| error.chain())?;
            if report.health() != Health::Sound {
                found = Err(format!("{:?} {:?}", report.damage, report.lost));
                break;
            }
        }
        ends.set(true);
        found
    })
}

#[test]
fn a_check_beside_a_writer_finds_no_damage() {
    seeds::run(40, |seed| check_beside_a_writer(seed, None));
}

#[test]
fn a_check_that_believes_its_first_look_is_caught() {
    let simulate = |seed| check_beside_a_writer(seed, Some(Fault::CheckOnce));
    assert!(seeds::first_failure(0..200, simulate).is_some());
}
