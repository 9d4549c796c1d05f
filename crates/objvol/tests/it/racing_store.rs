// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores that let two writers at the same moment create one object (OV-O6, OV-O9).
use std::rc::Rc;

use block::{Error, ErrorKind, Nanos};
use format::objvol::{Manifest, Owner, Place, manifest_name, place_name};
use objvol::{Geometry, OpenOptions, Volume, create};

use crate::bucket::Connection;
use crate::fixture::{Fixture, options};

/// The probe created an object twice, one after the other, and such a store refuses the second. Two
/// openers had one epoch, and flushed data of one were lost.
#[test]
fn a_store_that_looks_first_and_writes_later_is_refused() {
    for writes_after in [50, 300] {
        let fixture = Fixture::new();
        fixture.bucket.borrow_mut().set_looks_first(Nanos::from_millis(writes_after));
        let before = fixture.names("");
        let e = fixture.try_open(options("a", None)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotSupported, "{e}");
        assert!(e.to_string().contains("`single_writer`"), "{e}");
        assert_eq!(fixture.names(""), before, "nothing is left");
        // The way out.
        let alone = OpenOptions { single_writer: true, ..options("a", None) };
        let volume = fixture.try_open(alone).unwrap();
        fixture.write(&volume, 0, 8, 1).unwrap();
        fixture.flush(&volume).unwrap();
    }
}

/// Changes an object as soon as it is there; `work` runs beside.
fn with_another_writer<T: 'static>(
    fixture: &Fixture,
    name: String,
    change: impl Fn(&[u8]) -> Vec<u8> + 'static,
    work: impl Future<Output = Result<T, Error>> + 'static,
) -> Error {
    let bucket = fixture.bucket.clone();
    let outcome = fixture.run(async move {
        reactor::spawn(async move {
            loop {
                let there = bucket.borrow_mut().object(&name);
                if let Some(object) = there {
                    return bucket.borrow_mut().force(&name, Some(change(&object)));
                }
                reactor::sleep(Nanos(1000)).await;
            }
        });
        work.await
    });
    outcome.err().expect("another writer has the record")
}

const PLACE: Place = Place { epoch: 2, sequence: 1 };

fn other_manifest(object: &[u8], epoch: u64) -> Vec<u8> {
    let uuid = Manifest::volume_uuid(object).unwrap();
    let mut manifest = Manifest::decode(object, &uuid, epoch).unwrap();
    manifest.identity.nonce ^= 1;
    manifest.encode()
}

/// No probe finds every such store: the last of two writers has the records, and the first learns
/// it.
#[test]
fn an_opening_whose_records_are_not_its_own_fails() {
    for is_owner in [false, true] {
        let fixture = Fixture::new();
        let name = if is_owner { place_name("owner/", PLACE) } else { manifest_name(2) };
        let change = move |object: &[u8]| {
            if !is_owner {
                return other_manifest(object, 2);
            }
            let uuid = object[16..32].try_into().unwrap();
            let mut owner = Owner::decode(object, &uuid, PLACE).unwrap();
            owner.identity.nonce ^= 1;
            owner.encode()
        };
        let store = Rc::new(Connection::new(&fixture.bucket));
        let open = Volume::open(store, options("a", None));
        let e = with_another_writer(&fixture, name.clone(), change, open);
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        assert!(e.to_string().contains(&name), "{e}");
        // The next one is alone.
        fixture.open("a", None);
    }
}

#[test]
fn of_two_that_make_a_volume_one_learns_that_it_is_not_its_own() {
    let fixture = Fixture::new();
    fixture.names("").iter().for_each(|name| fixture.bucket.borrow_mut().force(name, None));
    let store = Rc::new(Connection::new(&fixture.bucket));
    let make = async move {
        let geometry = Geometry::new(block::Sector(1024));
        create(store, &geometry, &options("a", None)).await
    };
    let change = |object: &[u8]| other_manifest(object, 1);
    let e = with_another_writer(&fixture, manifest_name(1), change, make);
    assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
}
