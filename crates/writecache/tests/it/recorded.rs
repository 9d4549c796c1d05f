// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An origin that records the cache above it (WC-OR1 to WC-OR5).
use std::rc::Rc;

use block::{BlockDevice, Error, Nanos, Sector, Status, Target};
use format::Superblock;
use sim::Machine;
use writecache::{Fault, WriteCache};

use crate::common::recorded::{Record, RecordingOrigin};
use crate::common::{Fixture, config, expect, fill, flush, number, put, suspend};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

fn fixture(options: &str, fault: Option<Fault>) -> Fixture {
    let mut fixture = Fixture::small(options);
    fixture.config.plant(fault);
    fixture
}

/// A life of the cache over the origin with this record, which ends by a kill.
fn life<T: 'static>(
    fixture: &Fixture,
    record: &Rc<Record>,
    work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
) -> Result<T, Error> {
    let origin = RecordingOrigin::over(fixture.leaf(fixture.origin), record);
    let (cache, sectors) = (fixture.leaf(fixture.cache), fixture.sectors);
    let target = WriteCache::new("wc", fixture.config.clone(), origin, cache, sectors).unwrap();
    let done = fixture.life_of(target, work);
    record.end_life();
    done
}

fn uuid(fixture: &Fixture) -> [u8; 16] {
    let Superblock { uuid, .. } = fixture.superblock();
    uuid
}

/// Whether the record names the cache when the first write is acknowledged.
fn is_recorded_first(fault: Option<Fault>) -> bool {
    let (fixture, record) = (fixture(MANUAL, fault), Rc::new(Record::default()));
    record.delay.set(Nanos::from_secs(1));
    let seen = record.clone();
    let first = life(&fixture, &record, async move |cache| {
        put(&*cache, 3, 1).await.unwrap();
        seen.cache.get()
    });
    first.unwrap() == Some(uuid(&fixture))
}

#[test]
fn a_cache_is_recorded_before_its_first_write() {
    assert!(is_recorded_first(None));
    assert!(!is_recorded_first(Some(Fault::RecordedLate)), "the fault shows");
}

#[test]
fn a_suspended_cache_has_left_and_comes_again() {
    let (fixture, record) = (fixture(MANUAL, None), Rc::new(Record::default()));
    let direct = RecordingOrigin::over(fixture.leaf(fixture.origin), &record);
    let seen = record.clone();
    let done = life(&fixture, &record, async move |cache| {
        fill(&*cache, 0..10, 1).await;
        suspend(&cache).await;
        assert!(!seen.is_attached() && seen.cache.get().is_some());
        assert_eq!(put(&*direct, 0, 9).await, Err(Status::ReadOnly));
        cache.clone().resume().await.unwrap();
        assert!(seen.is_attached());
        cache.clone().write_back().await.unwrap();
        expect(&*direct, 0..10, 1).await;
        drop(cache);
    });
    done.unwrap();
    // A killed one comes again, too.
    let done = life(&fixture, &record, async |cache| fill(&*cache, 0..10, 2).await);
    done.unwrap();
    let (seen, machine) = (record.clone(), Machine::boot(&fixture.world, 1));
    assert_eq!(seen.cache.get(), Some(uuid(&fixture)));
    machine.kill();
}

/// What the origin has of a block when the record ends; `None` if it does not end.
fn after_a_release(fault: Option<Fault>) -> Option<bool> {
    let (fixture, record) = (fixture(MANUAL, fault), Rc::new(Record::default()));
    let released = life(&fixture, &record, async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
        cache.clone().release_origin().await
    });
    released.unwrap().unwrap();
    let has_all =
        (0..10).all(|block| fixture.origin_block(block) == crate::common::pattern(block, 1));
    record.cache.get().is_none().then_some(has_all)
}

#[test]
fn the_record_ends_when_the_origin_has_everything() {
    assert_eq!(after_a_release(None), Some(true));
    let with_fault = after_a_release(Some(Fault::ReleasedHeld));
    assert_eq!(with_fault, Some(false), "the fault shows");
}

/// As another table takes its place: the guard is written to the origin, which the cache has left.
#[test]
fn a_suspended_cache_with_a_guard_is_released() {
    let guarded = format!("{MANUAL} guard_origin");
    let (fixture, record) = (Fixture::new(64, 512, &guarded), Rc::new(Record::default()));
    let seen = record.clone();
    let done = life(&fixture, &record, async move |cache| {
        fill(&*cache, 0..10, 1).await;
        cache.clone().empty().await.unwrap();
        suspend(&cache).await;
        assert!(!seen.is_attached());
        cache.clone().release_origin().await.unwrap();
        assert!(seen.cache.get().is_none() && !seen.is_attached());
    });
    done.unwrap();
    let restored = (0..10).all(|n| fixture.origin_block(n) == crate::common::pattern(n, 1));
    assert!(restored, "the origin has its blocks, those below the guard, too");
}

#[test]
fn a_release_takes_no_cache_that_is_suspended_with_blocks() {
    let (fixture, record) = (fixture(MANUAL, None), Rc::new(Record::default()));
    let refused = life(&fixture, &record, async |cache| {
        fill(&*cache, 0..10, 1).await;
        suspend(&cache).await;
        cache.clone().release_origin().await.unwrap_err().to_string()
    });
    let refused = refused.unwrap();
    assert!(refused.contains("holds 10 blocks, so its origin is not given back"), "{refused}");
    assert_eq!(record.cache.get(), Some(uuid(&fixture)));
}

/// Why a cache with dirty blocks does not open after its origin has got another lineage.
fn after_a_lineage(fault: Option<Fault>) -> Result<(), String> {
    let (fixture, record) = (fixture(MANUAL, fault), Rc::new(Record::default()));
    let filled = life(&fixture, &record, async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
    });
    filled.unwrap();
    record.lineage.set(1);
    record.cache.set(None);
    let before = fixture.image();
    let opened = life(&fixture, &record, async |cache| {
        cache.clone().write_back().await.unwrap();
    });
    let Err(e) = opened else { return Ok(()) };
    assert!(fixture.image() == before && record.cache.get().is_none(), "nothing was changed");
    // The way out.
    let adopting = Fixture { config: config(4096, &format!("{MANUAL} adopt_origin")), ..fixture };
    let done = life(&adopting, &record, async |cache| expect(&*cache, 0..10, 1).await);
    done.unwrap();
    Err(e.chain())
}

#[test]
fn what_belongs_to_another_lineage_is_refused() {
    let why = after_a_lineage(None).unwrap_err();
    for part in ["of another origin", "volume of lineage 1", "adopt_origin"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(after_a_lineage(Some(Fault::LineageUnchecked)), Ok(()));
}

#[test]
fn a_cache_that_the_origin_does_not_take_is_not_opened() {
    let (fixture, record) = (fixture(MANUAL, None), Rc::new(Record::default()));
    life(&fixture, &record, async |cache| fill(&*cache, 0..10, 1).await).unwrap();
    let own = record.cache.replace(Some([7; 16]));
    let before = fixture.image();
    let refused = life(&fixture, &record, async |_| ()).unwrap_err().chain();
    assert!(refused.contains("another cache belongs to it"), "{refused}");
    record.cache.set(own);
    record.is_closed.set(true);
    let refused = life(&fixture, &record, async |_| ()).unwrap_err().chain();
    assert!(refused.contains("it is not open, and has to record this cache"), "{refused}");
    assert!(fixture.image() == before);
    record.is_closed.set(false);
    life(&fixture, &record, async |_| ()).unwrap();
}

#[test]
fn a_cache_without_a_uuid_is_refused() {
    let (fixture, record) = (fixture("format dm", None), Rc::new(Record::default()));
    life_without_record(&fixture);
    let refused = life(&fixture, &record, async |_| ()).unwrap_err().chain();
    assert!(refused.contains("in the kernel's format, which has no UUID"), "{refused}");
    assert_eq!(record.cache.get(), None);
}

fn life_without_record(fixture: &Fixture) {
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..2, 1).await;
        flush(&*cache).await;
        number(&cache, "dirty_blocks")
    });
    assert_eq!(done.unwrap(), 2);
}

/// A guard is put on the origin, and completed after a kill, by a cache that is attached.
#[test]
fn a_guard_on_a_recording_origin_is_settled() {
    let options = format!("{MANUAL} guard_origin");
    let (fixture, record) = (fixture(&options, None), Rc::new(Record::default()));
    assert!(fixture.sectors > Sector(1024));
    for version in 1..4 {
        let done = life(&fixture, &record, async move |cache| {
            fill(&*cache, 0..10, version).await;
            cache.clone().write_back().await.unwrap();
            fill(&*cache, 0..10, version + 1).await;
            flush(&*cache).await;
        });
        done.unwrap();
    }
    life(&fixture, &record, async |cache| expect(&*cache, 0..10, 4).await).unwrap();
    let origin: Rc<dyn BlockDevice> = fixture.leaf(fixture.origin);
    assert_eq!(origin.limits().capacity, fixture.sectors);
}
