// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots: a few steps in the right order, and writers that fight for a volume while they make
//! and delete snapshots that others read.
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Flags, Nanos, Op, Sector, Status};
use objvol::{Fault, OpenOptions, SnapshotDevice, Volume, snapshots};
use sim::seeds;

use crate::bucket::Connection;
use crate::fixture::{Fixture, SECTORS, options};
use crate::increments::layer_names;
use crate::takeover;

/// Segments of the first writer of a fixture.
const EPOCH_2: &str = "segment/0000000000000002/";

fn make(fixture: &Fixture, volume: &Rc<Volume>, name: &str) -> Result<(), Error> {
    let (volume, name) = (volume.clone(), name.to_owned());
    fixture.run(async move { volume.create_snapshot(&name, 1_700_000_000).await.map(drop) })
}

fn delete(fixture: &Fixture, volume: &Rc<Volume>, name: &str) -> Result<(), Error> {
    let (volume, name) = (volume.clone(), name.to_owned());
    fixture.run(async move { volume.delete_snapshot(&name).await })
}

fn try_open(fixture: &Fixture, name: &str) -> Result<Rc<SnapshotDevice>, Error> {
    let (store, name) = (Rc::new(Connection::new(&fixture.bucket)), name.to_owned());
    fixture.run(async move { SnapshotDevice::open(store, &name, &options("reader", None)).await })
}

fn io(fixture: &Fixture, snapshot: &Rc<SnapshotDevice>, op: Op, buf: &Buf) -> Result<(), Status> {
    let (device, bufs): (Rc<dyn BlockDevice>, _) = (snapshot.clone(), buf.all().into());
    let range = (Sector(0), Sector(buf.len() as u64 / 512));
    let class = Class::Normal;
    fixture.run(async move { reactor::io(&*device, op, Flags::empty(), class, range, bufs).await })
}

/// The first byte of each of the first sectors.
fn read(fixture: &Fixture, snapshot: &Rc<SnapshotDevice>, len: usize) -> Result<Vec<u8>, Status> {
    let buf = Buf::alloc(len * 512);
    io(fixture, snapshot, Op::Read, &buf)?;
    Ok(buf.read(|data| data.chunks(512).map(|sector| sector[0]).collect()))
}

fn checkpoint(fixture: &Fixture, volume: &Rc<Volume>) {
    let volume = volume.clone();
    fixture.run(async move { volume.checkpoint().await }).unwrap();
}

/// Overwrites the first sectors, and lets what is garbage then be deleted.
fn overwrite(fixture: &Fixture, volume: &Rc<Volume>, byte: u8) {
    fixture.write(volume, 0, 8, byte).unwrap();
    checkpoint(fixture, volume);
    fixture.sleep(Nanos::from_secs(5));
}

#[test]
fn a_snapshot_keeps_what_is_overwritten_after_it() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap(); // no flush: it has completed
    make(&fixture, &volume, "one").unwrap();
    overwrite(&fixture, &volume, 2);
    make(&fixture, &volume, "two").unwrap();
    overwrite(&fixture, &volume, 3);
    fixture.discard(&volume, 0, 4).unwrap();
    checkpoint(&fixture, &volume);
    fixture.sleep(Nanos::from_secs(5));

    let puts = fixture.bucket.borrow().counts().puts;
    let (one, two) = (try_open(&fixture, "one").unwrap(), try_open(&fixture, "two").unwrap());
    assert_eq!(read(&fixture, &one, 9), Ok([[1; 8].as_slice(), &[0]].concat()));
    assert_eq!(read(&fixture, &two, 8), Ok(vec![2; 8]));
    assert_eq!(fixture.bucket.borrow().counts().puts, puts, "a reader writes nothing");
    assert_eq!(fixture.read(&volume, 0, 8), Ok(vec![0, 0, 0, 0, 3, 3, 3, 3]));
    let status = volume.status();
    assert_eq!((status.snapshots, status.retained_bytes > 8192), (2, true));

    // The writer has gone, and another one has come: nothing changes.
    let taker = fixture.open("b", None);
    overwrite(&fixture, &taker, 4);
    assert_eq!(read(&fixture, &one, 8), Ok(vec![1; 8]));
    let again = try_open(&fixture, "one").unwrap();
    assert_eq!(read(&fixture, &again, 8), Ok(vec![1; 8]));
    assert_eq!(again.snapshot().created_at, 1_700_000_000);
    assert_eq!(again.limits().capacity, Sector(SECTORS));
}

#[test]
fn a_snapshot_takes_no_writes() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    make(&fixture, &volume, "empty").unwrap();
    let snapshot = try_open(&fixture, "empty").unwrap();
    assert_eq!(io(&fixture, &snapshot, Op::Write, &Buf::zeroed(512)), Err(Status::ReadOnly));
    assert!(snapshot.is_stale());
    assert_eq!(read(&fixture, &snapshot, 8), Ok(vec![0; 8]));
}

#[test]
fn names_are_taken_once_and_free_after_a_deletion() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap();
    make(&fixture, &volume, "x").unwrap();
    assert_eq!(make(&fixture, &volume, "x").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(make(&fixture, &volume, "x/y").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(delete(&fixture, &volume, "y").unwrap_err().kind(), ErrorKind::NotFound);
    // An opening knows it from the log, or from a checkpoint.
    let taker = fixture.open("b", None);
    assert_eq!(make(&fixture, &taker, "x").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(make(&fixture, &volume, "z").unwrap_err().kind(), ErrorKind::Busy, "fenced");
    assert_eq!(delete(&fixture, &volume, "x").unwrap_err().kind(), ErrorKind::Busy, "fenced");
    delete(&fixture, &taker, "x").unwrap();
    fixture.write(&taker, 0, 8, 2).unwrap();
    make(&fixture, &taker, "x").unwrap();
    assert_eq!(read(&fixture, &try_open(&fixture, "x").unwrap(), 8), Ok(vec![2; 8]));
}

#[test]
fn a_deletion_frees_what_nobody_else_needs() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    let objects = |folder: &str| fixture.names(folder).len();
    overwrite(&fixture, &volume, 1);
    make(&fixture, &volume, "one").unwrap();
    make(&fixture, &volume, "same").unwrap();
    overwrite(&fixture, &volume, 2);
    make(&fixture, &volume, "two").unwrap();
    overwrite(&fixture, &volume, 3);
    // Those of the snapshots, and what makes the newest: that of `two`, and increments behind it.
    assert_eq!((objects("checkpoint/"), layer_names(&fixture).len()), (5, 3));
    let open = try_open(&fixture, "one").unwrap();
    for (name, others) in [("one", 1), ("two", 1)] {
        delete(&fixture, &volume, name).unwrap();
        fixture.sleep(Nanos::from_secs(5));
        assert_eq!(objects("checkpoint/"), layer_names(&fixture).len() + others, "{name}");
        let same = try_open(&fixture, "same").unwrap();
        assert_eq!(read(&fixture, &same, 8), Ok(vec![1; 8]));
    }
    assert_eq!(read(&fixture, &open, 8), Ok(vec![1; 8]), "its data are those of `same`");
    delete(&fixture, &volume, "same").unwrap();
    fixture.sleep(Nanos::from_secs(5));
    overwrite(&fixture, &volume, 4);
    assert_eq!((objects("checkpoint/"), objects(EPOCH_2)), (layer_names(&fixture).len(), 1));
    assert_eq!(volume.status().retained_bytes, 0);
    assert_eq!(read(&fixture, &open, 8), Err(Status::Stale));
    assert!(open.is_deleted());
    let e = try_open(&fixture, "one").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert!(e.to_string().contains("there is no snapshot one; there are: none"), "{e}");
}

#[test]
fn a_reader_finds_the_list_without_a_writer() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    make(&fixture, &volume, "b").unwrap();
    make(&fixture, &volume, "a").unwrap();
    fixture.run(async move { volume.close().await }).unwrap();
    let store = Rc::new(Connection::new(&fixture.bucket));
    let there = fixture.run(async move { snapshots(store, &options("r", None)).await }).unwrap();
    let names: Vec<&str> = there.iter().map(|snapshot| &*snapshot.name).collect();
    assert_eq!(names, ["a", "b"]);
    let other = OpenOptions { sectors: Some(Sector(8)), ..options("r", None) };
    let store = Rc::new(Connection::new(&fixture.bucket));
    let opened = fixture.run(async move { SnapshotDevice::open(store, "a", &other).await });
    let e = opened.unwrap_err();
    assert!(e.to_string().contains("snapshot a has 1024 sectors, not 8"), "{e}");
}

#[test]
fn a_damaged_snapshot_is_an_error_of_its_reads_only() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap();
    make(&fixture, &volume, "x").unwrap();
    let snapshot = try_open(&fixture, "x").unwrap();
    let first = fixture.names(EPOCH_2).remove(0);
    fixture.bucket.borrow_mut().force(&first, None);
    assert_eq!(read(&fixture, &snapshot, 8), Err(Status::Io));
    assert!(!snapshot.is_deleted());
    let name = fixture.names("checkpoint/").remove(0);
    fixture.bucket.borrow_mut().force(&name, None);
    let e = try_open(&fixture, "x").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(e.to_string().contains("its checkpoint has gone"), "{e}");
}

pub(crate) fn simulate(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    takeover::simulate_with(seed, fault, Some(&Rc::default()), 0)
}

#[test]
fn snapshots_keep_their_contents_whoever_writes() {
    seeds::run(300, |seed| simulate(seed, None));
}
