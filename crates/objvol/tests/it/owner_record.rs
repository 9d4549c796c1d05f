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

type Answer = fn() -> StoreError;

/// A store that fails while it is told to.
struct Failing {
    store: Connection,
    bucket: BucketRef,
    /// Owner records have this answer, although they land a minute later.
    refuses: Rc<Cell<Option<Answer>>>,
    /// Manifests can't be listed.
    is_deaf: Rc<Cell<bool>>,
}

impl Failing {
    fn new(fixture: &Fixture) -> Failing {
        let (bucket, store) = (fixture.bucket.clone(), Connection::new(&fixture.bucket));
        Failing { store, bucket, refuses: Rc::default(), is_deaf: Rc::default() }
    }
}

impl ObjectStore for Failing {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>> {
        let Some(answer) = self.refuses.get().filter(|_| name.starts_with("owner/")) else {
            return self.store.put_absent(name, object);
        };
        let late = Nanos::from_secs(60);
        object.read(|object| self.bucket.borrow_mut().land_later(name, object, late));
        Box::pin(async move { Err(answer()) })
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        self.store.get(name, range)
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        if self.is_deaf.get() && prefix.starts_with("manifest/") {
            return Box::pin(async { Err(StoreError::Unknown) });
        }
        self.store.list(prefix, after)
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        self.store.delete(name)
    }
}

/// A release fails, its record lands late, and the cache goes on: does the next opening know it?
fn knows_the_cache_after_a_late_release(fault: Option<Fault>) -> bool {
    let fixture = Fixture::new();
    let store = Rc::new(Failing::new(&fixture));
    let refuses = store.refuses.clone();
    let volume = fixture.run(Volume::open(store, options("a", fault))).unwrap();
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    refuses.set(Some(|| StoreError::Denied("403".into())));
    assert_eq!(release(&fixture, &volume).unwrap_err().kind(), ErrorKind::Denied);
    refuses.set(None);
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

/// An end gives up on the store, the cache goes on with the next opening, and then the record of
/// that end lands, which gives the host up: may another host open the volume unasked?
fn another_host_opens_after_a_late_end(fault: Option<Fault>) -> bool {
    let fixture = Fixture::new();
    let store = Rc::new(Failing::new(&fixture));
    let refuses = store.refuses.clone();
    let patience = Some(Nanos::from_secs(10));
    let volume = Volume::open(store, OpenOptions { patience, ..options("a", None) });
    let volume = fixture.run(volume).unwrap();
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    refuses.set(Some(|| StoreError::Unknown));
    let closing = volume.clone();
    let closed = fixture.run(async move { closing.close().await });
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Io);

    let volume = fixture.open("a", fault);
    attach(&fixture, &volume, cache(0xab, &volume)).unwrap();
    fixture.write(&volume, 0, 8, 5).unwrap();
    let before = fixture.names("owner/");
    fixture.sleep(Nanos::from_secs(100));
    assert_eq!(fixture.names("owner/").len(), before.len() + 1, "it has landed");
    fixture.write(&volume, 0, 8, 6).unwrap();
    fixture.flush(&volume).unwrap();
    let unasked = OpenOptions { take_over: false, ..options("b", None) };
    match fixture.try_open(unasked) {
        Ok(_) => true,
        Err(e) => {
            assert!(e.to_string().contains("host a has the volume open"), "{e}");
            let other = fixture.open("b", None);
            assert_eq!(fixture.read(&other, 0, 1), Ok(vec![6]));
            assert_eq!(fixture.write(&other, 0, 8, 7), Err(Status::ReadOnly));
            false
        }
    }
}

#[test]
fn an_end_that_lands_late_does_not_count() {
    assert!(!another_host_opens_after_a_late_end(None));
    let fault = Some(Fault::OwnerRecordKept);
    assert!(another_host_opens_after_a_late_end(fault), "the fault shows");
}

/// The look behind a record has no answer, somebody else has the volume, and the cache tries again:
/// may it go on?
fn goes_on_unlooked(fault: Option<Fault>) -> bool {
    let fixture = Fixture::new();
    let store = Rc::new(Failing::new(&fixture));
    let is_deaf = store.is_deaf.clone();
    let patience = Some(Nanos::from_secs(3));
    let volume = Volume::open(store, OpenOptions { patience, ..options("a", fault) });
    let volume = fixture.run(volume).unwrap();
    is_deaf.set(true);
    let other = fixture.open("b", None);
    let e = attach(&fixture, &volume, cache(0xab, &volume)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{}", e.chain());
    is_deaf.set(false);
    fixture.write(&other, 0, 8, 1).unwrap();
    match attach(&fixture, &volume, cache(0xab, &volume)) {
        Ok(()) => true,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Busy, "{}", e.chain());
            assert!(e.chain().contains("host b"), "{}", e.chain());
            false
        }
    }
}

#[test]
fn a_record_without_a_look_does_not_count() {
    assert!(!goes_on_unlooked(None));
    assert!(goes_on_unlooked(Some(Fault::UnlookedKept)), "the fault shows");
}
