// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What later programs have written to a volume: what this one may not know is refused by name
//! before the epoch is taken, and what it may ignore is in nothing that it writes (OV-O10).
use std::rc::Rc;

use format::Later;
use format::objvol::{Manifest, OWNERS, Owner, parse_manifest_name, parse_place_name};
use objvol::{Depth, Health};

use crate::fixture::{Fixture, options};

/// A volume that was written, and closed.
fn written() -> Fixture {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 7).unwrap();
    fixture.run(async move { volume.close().await }).unwrap();
    fixture
}

impl Fixture {
    /// The name and the bytes of the newest object of a folder.
    fn newest_of(&self, folder: &str) -> (String, Rc<[u8]>) {
        let name = self.names(folder).pop().unwrap();
        let object = self.bucket.borrow_mut().object(&name).unwrap();
        (name, object)
    }

    fn manifest(&self) -> (String, Manifest) {
        let (name, object) = self.newest_of("manifest/");
        let uuid = Manifest::volume_uuid(&object).unwrap();
        let epoch = parse_manifest_name(&name).unwrap();
        (name, Manifest::decode(&object, &uuid, epoch).unwrap())
    }

    fn owner(&self) -> (String, Owner) {
        let (name, object) = self.newest_of(OWNERS);
        let uuid = self.manifest().1.identity.uuid;
        let place = parse_place_name(OWNERS, &name).unwrap();
        (name, Owner::decode(&object, &uuid, place).unwrap())
    }

    fn force(&self, name: &str, object: Vec<u8>) {
        self.bucket.borrow_mut().force(name, Some(object));
    }

    /// The volume is refused with this, and nothing was written.
    fn assert_refused(&self, what: &str) {
        let before = self.names("");
        let refusal = self.try_open(options("b", None)).unwrap_err().chain();
        assert!(refusal.contains(what), "{refusal}");
        assert_eq!(self.names(""), before, "something was written");
    }
}

fn said(ro_compat: u64, compat: u64) -> Option<Later> {
    Some(Later { ro_compat, compat, room: b"who, and where".to_vec() })
}

/// Sets a bit of `incompat`, and the checksum.
fn with_incompat(mut object: Vec<u8>, at: usize) -> Vec<u8> {
    object[at] |= 4;
    object[12..16].fill(0);
    let crc = format::checksum(&object);
    object[12..16].copy_from_slice(&crc.to_le_bytes());
    object
}

#[test]
fn what_may_not_be_ignored_is_refused_before_the_epoch_is_taken() {
    let later = "it uses features of a later version of millpond";
    for (ro_compat, bits) in [(2, "(ro_compat 0x2)"), (0, "(incompat 0x4)")] {
        let fixture = written();
        let (name, manifest) = fixture.manifest();
        let object = Manifest { later: said(ro_compat, 1), ..manifest.clone() }.encode();
        let object = if ro_compat == 0 { with_incompat(object, 104) } else { object };
        fixture.force(&name, object);
        fixture.assert_refused(&format!("{name}: {later} {bits}"));
        fixture.force(&name, manifest.encode());
        let (name, owner) = fixture.owner();
        let object = Owner { later: said(ro_compat, 1), ..owner.clone() }.encode();
        let object = if ro_compat == 0 { with_incompat(object, 96) } else { object };
        fixture.force(&name, object);
        fixture.assert_refused(&format!("{name}: {later} {bits}"));
        fixture.force(&name, owner.encode());
        let volume = fixture.try_open(options("b", None)).unwrap();
        assert_eq!(fixture.read(&volume, 0, 8), Ok(vec![7; 8]));
    }
}

#[test]
fn what_may_be_ignored_is_in_nothing_that_is_written() {
    let fixture = written();
    let (name, manifest) = fixture.manifest();
    fixture.force(&name, Manifest { later: said(0, 1), ..manifest.clone() }.encode());
    let (name, owner) = fixture.owner();
    fixture.force(&name, Owner { later: said(0, 5), ..owner }.encode());
    let volume = fixture.try_open(options("b", None)).unwrap();
    assert_eq!(fixture.read(&volume, 0, 8), Ok(vec![7; 8]));
    let (_, next) = fixture.manifest();
    assert!(next.identity.place > manifest.identity.place);
    assert_eq!((next.later, fixture.owner().1.later), (None, None));
    assert_eq!(fixture.check(Depth::Data).health(), Health::Sound, "with the epoch of before");
}

#[test]
fn a_sealed_volume_is_refused_by_name() {
    let fixture = written();
    let (name, object) = fixture.newest_of("manifest/");
    fixture.force(&name, [b"MPOVENVL", &object[8..]].concat());
    fixture.assert_refused("the volume is sealed, by a later version of millpond, with a key");
}
