// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments without live data go when nobody needs them, whether or not anybody writes (OV-G4).
use std::rc::Rc;

use block::Nanos;
use objvol::{OpenOptions, Volume};

use crate::fixture::{Fixture, SECTORS, options};

/// Those of a daemon, with a short grace time.
fn usual(host: &str) -> OpenOptions {
    OpenOptions {
        checkpoint_every: 256,
        checkpoint_worth: 32,
        gc_threshold: 75,
        grace: Nanos::from_secs(1),
        ..options(host, None)
    }
}

const SEGMENT_BYTES: u64 = 8192;

impl Fixture {
    /// Bytes of the segments in the bucket; seals are none.
    fn stored(&self) -> u64 {
        let names = self.names("segment/");
        let mut bucket = self.bucket.borrow_mut();
        let bytes = names.iter().map(|name| bucket.object(name).unwrap().len() as u64);
        bytes.filter(|bytes| *bytes >= 512).sum()
    }

    fn fill(&self, volume: &Rc<Volume>, sectors: u64, byte: u8) {
        for at in (0..sectors).step_by(8) {
            self.write(volume, at, 8, byte).unwrap();
        }
        self.flush(volume).unwrap();
    }
}

#[test]
fn discarded_data_go_though_nobody_writes() {
    let fixture = Fixture::new();
    let volume = fixture.try_open(usual("a")).unwrap();
    fixture.fill(&volume, SECTORS, 7);
    assert!(fixture.stored() >= SECTORS * 512);
    fixture.discard(&volume, 0, SECTORS).unwrap();
    fixture.flush(&volume).unwrap();
    fixture.sleep(Nanos::from_secs(10));
    assert!(fixture.stored() <= 2 * SEGMENT_BYTES, "{} bytes are left", fixture.stored());
    // It comes to rest.
    fixture.sleep(Nanos::from_secs(100));
    let puts = fixture.bucket.borrow().counts().puts;
    fixture.sleep(Nanos::from_secs(1000));
    assert_eq!(fixture.bucket.borrow().counts().puts, puts);
    assert_eq!(fixture.read(&volume, 0, 8), Ok(vec![0; 8]));
}

#[test]
fn a_single_dead_segment_goes_once_nobody_writes() {
    let fixture = Fixture::new();
    let volume = fixture.try_open(usual("a")).unwrap();
    fixture.fill(&volume, 16, 7);
    fixture.fill(&volume, 16, 8);
    let before = fixture.stored();
    fixture.sleep(Nanos::from_secs(60));
    assert!(fixture.stored() < before, "{} of {before} bytes are left", fixture.stored());
    assert_eq!(fixture.read(&volume, 0, 16), Ok(vec![8; 16]));
}

/// Who writes a block every few seconds does not pay a checkpoint for each.
#[test]
fn a_slow_writer_pays_few_checkpoints() {
    let fixture = Fixture::new();
    let volume = fixture.try_open(usual("a")).unwrap();
    let puts = fixture.bucket.borrow().counts().puts;
    for nth in 0..100 {
        fixture.fill(&volume, 8, nth);
        fixture.sleep(Nanos::from_secs(3));
    }
    let puts = fixture.bucket.borrow().counts().puts - puts;
    assert!(puts <= 115, "{puts} PUTs for 100 writes");
}

#[test]
fn a_region_that_is_rewritten_takes_a_bounded_space() {
    let fixture = Fixture::new();
    let volume = fixture.try_open(usual("a")).unwrap();
    let (live, slack) = (SECTORS / 4 * 512, 10 * SEGMENT_BYTES);
    for round in 0..30 {
        fixture.fill(&volume, SECTORS / 4, round);
        fixture.sleep(Nanos::from_secs(4));
        let stored = fixture.stored();
        // At most 2.7 times, and what was overwritten meanwhile.
        assert!(stored <= live * 27 / 10 + slack, "round {round}: {stored} bytes for {live}");
    }
    assert_eq!(fixture.read(&volume, 0, 8), Ok(vec![29; 8]));
}

/// The list of a closing checkpoint was nobody's.
#[test]
fn what_an_epoch_before_has_left_goes() {
    for is_closed in [true, false] {
        let fixture = Fixture::new();
        let volume = fixture.try_open(usual("a")).unwrap();
        fixture.fill(&volume, SECTORS, 7);
        fixture.discard(&volume, 0, SECTORS).unwrap();
        fixture.flush(&volume).unwrap();
        if is_closed {
            let closing = volume.clone();
            fixture.run(async move { closing.close().await }).unwrap();
        }
        assert!(fixture.stored() >= SECTORS * 512);
        let volume = fixture.try_open(usual("b")).unwrap();
        fixture.sleep(Nanos::from_secs(60));
        assert!(fixture.stored() <= 4 * SEGMENT_BYTES, "{} bytes are left", fixture.stored());
        // Nothing needs what has gone.
        fixture.write(&volume, 8, 8, 9).unwrap();
        fixture.flush(&volume).unwrap();
        let again = fixture.try_open(usual("c")).unwrap();
        assert_eq!(fixture.read(&again, 0, 16), Ok([[0; 8], [9; 8]].concat()));
    }
}
