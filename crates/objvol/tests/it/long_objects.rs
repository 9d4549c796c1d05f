// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects under the names of a volume that are longer than any that it writes (OV-R4): somebody
//! else writes to the bucket.
use std::rc::Rc;
use std::sync::Arc;

use block::{Budget, ErrorKind};
use objvol::{Depth, Health, OpenOptions, Volume};

use crate::bucket::Connection;
use crate::fixture::{Fixture, options};

const MIB: usize = 1 << 20;

/// A volume that was written, with a checkpoint, and closed.
fn written() -> Fixture {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 7).unwrap();
    let closing = volume.clone();
    fixture.run(async move { closing.close().await }).unwrap();
    fixture
}

impl Fixture {
    /// Zeroes behind the newest object of a folder, to this length; returns its name.
    fn lengthen(&self, folder: &str, bytes: usize) -> String {
        let name = self.names(folder).pop().unwrap();
        let mut object = self.bucket.borrow_mut().object(&name).unwrap().to_vec();
        object.resize(bytes, 0);
        self.bucket.borrow_mut().force(&name, Some(object));
        name
    }

    /// Opens the volume with this memory; what was read, and how it ended.
    fn open_within(&self, memory: u64) -> (u64, Result<Rc<Volume>, block::Error>) {
        let options = options("b", None);
        let counts = options.counts.clone();
        let store = Rc::new(Connection::new(&self.bucket));
        let opened = self.run(async move {
            reactor::set_memory(Arc::new(Budget::new(memory, "--memory")));
            Volume::open(store, options).await
        });
        (counts.get_bytes.get(), opened)
    }
}

#[test]
fn long_records_are_not_read_to_their_end() {
    for folder in ["manifest/", "owner/"] {
        let fixture = written();
        fixture.lengthen(folder, 4 * MIB);
        let (read, opened) = fixture.open_within(u64::MAX);
        assert!(read < MIB as u64 / 4, "{folder}: {read} bytes: {opened:?}");
        // What follows a record that is whole means nothing.
        assert_eq!(fixture.read(&opened.unwrap(), 0, 8), Ok(vec![7; 8]), "{folder}");
    }
}

#[test]
fn a_checkpoint_longer_than_any_is_damage_and_not_read() {
    let fixture = written();
    let name = fixture.lengthen("checkpoint/", 70 * MIB);
    let (read, opened) = fixture.open_within(u64::MAX);
    let e = opened.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    let why = format!("{name}: it has {} bytes, and a checkpoint within map_memory", 70 * MIB);
    assert!(e.to_string().contains(&why), "{e}");
    assert!(read < 2 * MIB as u64, "{read} bytes");
    let report = fixture.check(Depth::Metadata);
    assert_eq!(report.health(), Health::Broken);
    assert!(report.damage[0].contains(&why), "{:?}", report.damage);
}

#[test]
fn a_long_checkpoint_needs_memory_that_is_counted() {
    let fixture = written();
    let name = fixture.lengthen("checkpoint/", 4 * MIB);
    let (read, opened) = fixture.open_within(16 * MIB as u64);
    let e = opened.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoMemory, "{e}");
    assert!(e.to_string().contains(&name) && e.to_string().contains("--memory"), "{e}");
    assert!(read < 2 * MIB as u64, "{read} bytes");
    // With more memory it is read, and is damage.
    let e = fixture.open_within(64 * MIB as u64).1.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
}

#[test]
fn a_listing_needs_memory_that_is_counted() {
    let fixture = written();
    for nth in 0..1000 {
        let name = format!("manifest/x{nth:0200}");
        fixture.bucket.borrow_mut().force(&name, Some(vec![1]));
    }
    let e = fixture.open_within(64 << 10).1.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoMemory, "{e}");
    assert!(e.to_string().contains("a listing needs"), "{e}");
}

/// The head states its length, and is read by that.
#[test]
fn a_segment_that_states_a_long_head_is_not_read_to_its_end() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 7).unwrap();
    fixture.flush(&volume).unwrap();
    let name = fixture.names("segment/").pop().unwrap();
    let mut object = fixture.bucket.borrow_mut().object(&name).unwrap().to_vec();
    object.resize(8 * MIB, 0);
    // `head_bytes` of the byte map.
    object[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
    fixture.bucket.borrow_mut().force(&name, Some(object));
    let (read, opened) = fixture.open_within(u64::MAX);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Io);
    assert!(read < 4 * MIB as u64, "{read} bytes");
}

/// The refusal names the option; with more of it such a checkpoint is read.
#[test]
fn more_map_memory_takes_a_longer_checkpoint() {
    let fixture = written();
    fixture.lengthen("checkpoint/", 64 * MIB + 512);
    let open = |map_memory| {
        let options = OpenOptions { map_memory, ..options("b", None) };
        fixture.try_open(options).unwrap_err().to_string()
    };
    assert!(open(0).contains("map_memory"), "{}", open(0));
    assert!(!open(1 << 20).contains("map_memory"), "{}", open(1 << 20));
}
