// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner record in a calm world: what it lets whom do, and what it says.
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, CacheAbove, Error, ErrorKind, LocalFuture, Nanos, Status};
use objvol::{Fault, Listing, ObjectStore, OpenOptions, StoreError, Volume, repair};

use crate::bucket::{BucketRef, Connection};
use crate::fixture::{Fixture, options};

const UUID: [u8; 16] = [0xab; 16];
const NEW_OPTION: &str = "without_cache abababababababababababababababab";

fn cache(uuid: u8, volume: &Volume) -> CacheAbove {
    CacheAbove { uuid: [uuid; 16], device: "/dev/nvme0n1p3".into(), origin: volume.identity() }
}

fn attach(fixture: &Fixture, volume: &Rc<Volume>, cache: CacheAbove) -> Result<(), Error> {
    let volume = volume.clone();
    fixture.run(async move { volume.attach(&cache, 1_700_000_009).await })
}

fn release(fixture: &Fixture, volume: &Rc<Volume>) -> Result<(), Error> {
    let volume = volume.clone();
    fixture.run(async move { volume.release(UUID).await })
}

fn close(fixture: &Fixture, volume: &Rc<Volume>) {
    let volume = volume.clone();
    fixture.run(async move { volume.close().await }).unwrap();
}

fn without_cache(host: &str, fault: Option<Fault>) -> OpenOptions {
    OpenOptions { without_cache: Some(UUID), ..options(host, fault) }
}

#[test]
fn only_the_recorded_cache_changes_a_volume() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap();
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    fixture.write(&volume, 0, 8, 2).unwrap();
    close(&fixture, &volume);

    let volume = fixture.open("b", None);
    assert_eq!(fixture.read(&volume, 0, 1), Ok(vec![2]));
    assert_eq!(fixture.write(&volume, 0, 8, 3), Err(Status::ReadOnly));
    assert_eq!(fixture.discard(&volume, 0, 8), Err(Status::ReadOnly));
    let why = volume.status().reservation.unwrap();
    for words in ["on a:/dev/nvme0n1p3, attached at 1700000009", NEW_OPTION, "writes are refused"] {
        assert!(why.contains(words), "{why}");
    }
    let e = attach(&fixture, &volume, cache(7, &volume)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy);
    assert!(e.to_string().contains("is not the one that belongs to the volume"), "{e}");
    assert_eq!(fixture.write(&volume, 0, 8, 3), Err(Status::ReadOnly));

    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    fixture.write(&volume, 0, 8, 4).unwrap();
    volume.leave([7; 16]);
    fixture.write(&volume, 0, 8, 5).unwrap();
    volume.leave(UUID);
    assert_eq!(fixture.write(&volume, 0, 8, 6), Err(Status::ReadOnly));
    release(&fixture, &volume).unwrap();
    fixture.write(&volume, 0, 8, 7).unwrap();
    assert_eq!(volume.status().cache, None);
    close(&fixture, &volume);
    fixture.write(&fixture.open("c", None), 0, 8, 8).unwrap();
}

#[test]
fn a_cache_is_given_up_by_its_name_only_and_never_applied() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    let before = cache(0xab, &volume);
    attach(&fixture, &volume, before.clone()).unwrap();
    let other = OpenOptions { without_cache: Some([7; 16]), ..options("b", None) };
    let volume = fixture.try_open(other).unwrap();
    assert_eq!(fixture.write(&volume, 0, 8, 1), Err(Status::ReadOnly), "another one");
    assert_eq!(volume.identity(), before.origin);

    let volume = fixture.try_open(without_cache("b", None)).unwrap();
    assert_eq!(volume.given_up().unwrap().uuid, UUID);
    assert_ne!(volume.identity(), before.origin);
    fixture.write(&volume, 0, 8, 1).unwrap();
    let e = attach(&fixture, &volume, before.clone()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().contains(&before.origin), "{e}");
    // The option would give it up again.
    let e = attach(&fixture, &volume, cache(0xab, &volume)).unwrap_err();
    assert!(e.to_string().contains("take `without_cache` out of it first"), "{e}");
    // An option that stays does nothing more.
    let lineage = volume.identity();
    let volume = fixture.try_open(without_cache("b", None)).unwrap();
    assert_eq!((volume.identity(), volume.given_up()), (lineage, None));
    attach(&fixture, &volume, cache(7, &volume)).unwrap();
}

#[test]
fn a_repair_has_a_lineage_of_its_own() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    let before = volume.identity();
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    close(&fixture, &volume);
    let store = Connection::new(&fixture.bucket);
    fixture.run(async move { repair(Rc::new(store), options("a", None)).await }).unwrap();
    let volume = fixture.open("a", None);
    assert_ne!(volume.identity(), before);
    assert_eq!(volume.status().cache.unwrap().uuid, UUID, "it may still hold newer data");
}

/// What the next opening finds of data that a cache has written before it released the volume.
fn after_a_release(fault: Option<Fault>) -> Vec<u8> {
    let fixture = Fixture::new();
    let volume = fixture.open("a", fault);
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    fixture.write(&volume, 0, 8, 9).unwrap();
    release(&fixture, &volume).unwrap();
    let next = fixture.open("b", None);
    fixture.write(&next, 8, 8, 1).unwrap();
    fixture.read(&next, 0, 1).unwrap()
}

#[test]
fn a_record_ends_when_everything_is_durable() {
    assert_eq!(after_a_release(None), [9]);
    assert_eq!(after_a_release(Some(Fault::ReleaseUnflushed)), [0], "the fault shows");
}

/// A store that refuses owner records while it is told to, although they land later.
struct Refusing {
    store: Connection,
    bucket: BucketRef,
    refuses: Rc<Cell<bool>>,
}

impl ObjectStore for Refusing {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>> {
        if !self.refuses.get() || !name.starts_with("owner/") {
            return self.store.put_absent(name, object);
        }
        let late = Nanos::from_secs(60);
        object.read(|object| self.bucket.borrow_mut().land_later(name, object, late));
        Box::pin(async { Err(StoreError::Denied("403".into())) })
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        self.store.get(name, range)
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        self.store.list(prefix, after)
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        self.store.delete(name)
    }
}

/// A release fails, its record lands late, and the cache goes on: does the next opening know it?
fn knows_the_cache_after_a_late_release(fault: Option<Fault>) -> bool {
    let fixture = Fixture::new();
    let refuses = Rc::new(Cell::new(false));
    let (bucket, store) = (fixture.bucket.clone(), Connection::new(&fixture.bucket));
    let store = Rc::new(Refusing { store, bucket, refuses: refuses.clone() });
    let volume = fixture.run(Volume::open(store, options("a", fault))).unwrap();
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    refuses.set(true);
    assert_eq!(release(&fixture, &volume).unwrap_err().kind(), ErrorKind::Denied);
    refuses.set(false);
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    fixture.sleep(Nanos::from_secs(100));
    fixture.open("b", None).status().cache.is_some()
}

#[test]
fn a_release_that_lands_late_does_not_count() {
    assert!(knows_the_cache_after_a_late_release(None));
    let fault = Some(Fault::UnsettledKept);
    assert!(!knows_the_cache_after_a_late_release(fault), "the fault shows");
}
