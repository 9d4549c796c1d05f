// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that go around the cache: who sends them there, what makes them durable, and that the
//! cache never hides them; and cleaner mode, which empties the cache.

use std::rc::Rc;

use crate::common::recording::RecordingDevice;
use crate::common::stalled::StalledDevice;
use crate::common::{
    self, BLOCK, Fixture, expect, fields, fill, flush, get, number, pattern, put, put_with, say,
};
use block::{BlockDevice, Flags, Nanos, Op, Status, Target};
use sim::{Faults, Machine};
use writecache::{Fault, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

async fn millis(n: u64) {
    reactor::sleep(Nanos::from_millis(n)).await;
}

async fn set(cache: &Rc<WriteCache>, name: &str, value: &str) {
    cache.clone().set_attribute(name.to_owned(), value.to_owned()).await.unwrap();
}

/// A machine with an open cache whose devices are watched.
struct Watched {
    cache: Rc<WriteCache>,
    origin: Rc<RecordingDevice>,
    device: Rc<RecordingDevice>,
    machine: Machine,
}

impl Watched {
    fn new(fixture: &Fixture) -> Watched {
        let machine = Machine::boot(&fixture.world, 1);
        let (origin, device) = (
            RecordingDevice::over(fixture.leaf(fixture.origin)),
            RecordingDevice::over(fixture.leaf(fixture.cache)),
        );
        let (o, d) = (origin.clone(), device.clone());
        let cache = WriteCache::new("wc", fixture.config.clone(), o, d, fixture.sectors).unwrap();
        let target = cache.clone();
        machine.block_on(async move { target.resume().await.unwrap() }).unwrap();
        origin.take();
        device.take();
        Watched { cache, origin, device, machine }
    }

    fn run(
        &self,
        work: impl AsyncFnOnce(Rc<WriteCache>, Rc<RecordingDevice>, Rc<RecordingDevice>) + 'static,
    ) {
        let (cache, origin, device) =
            (self.cache.clone(), self.origin.clone(), self.device.clone());
        self.machine.block_on(work(cache, origin, device)).unwrap();
    }
}

#[test]
fn with_cleaner_uncached_writes_go_around_the_rest_is_written() {
    // The kernel's session: 16 blocks written, `cleaner`, 4 more written.
    let fixture = Fixture::new(1024, 2048, MANUAL);
    let inner = fixture.clone();
    let session = fixture.life(async move |cache| {
        fill(&*cache, 0..16, 1).await;
        flush(&*cache).await;
        let total = fields(&cache)[1];
        say(&cache, "cleaner").await.unwrap();
        fill(&*cache, 100..104, 1).await;
        assert_eq!(fields(&cache)[6..], [20, 0, 0, 4, 16, 0, 1, 0], "writes, ..., around, ...");
        millis(1000).await;
        assert_eq!(fields(&cache)[..4], [0, total, total, 0], "error, total, free, writeback");
        for name in ["dirty_blocks", "clean_blocks", "uncommitted_blocks"] {
            assert_eq!(number(&cache, name), 0, "{name}");
        }
        expect(&*cache, 0..16, 1).await;
        expect(&*cache, 100..104, 1).await;
        assert!((0..16).chain(100..104).all(|b| inner.origin_block(b) == pattern(b, 1)));
        assert!(!cache.table().contains("cleaner"), "{}", cache.table());
    });
    session.unwrap();
}

#[test]
fn with_cleaner_a_dirty_block_is_overwritten_in_the_cache() {
    // As the option: then nothing is flushed at suspend, as nothing was asked for.
    let fixture = Fixture::small(&format!("{MANUAL} cleaner"));
    let mut filled = fixture.clone();
    filled.config = common::config(4096, MANUAL);
    let dirty = filled.life(async |cache| {
        fill(&*cache, 0..4, 1).await;
        flush(&*cache).await;
    });
    dirty.unwrap();
    let fields = fixture.life(async |cache| {
        fill(&*cache, 2..6, 2).await;
        let counted = fields(&cache);
        expect(&*cache, 0..2, 1).await;
        expect(&*cache, 2..6, 2).await;
        flush(&*cache).await;
        counted
    });
    assert_eq!(fields.unwrap()[6..11], [4, 0, 2, 2, 0], "writes, hits, around, allocated");
    let after = fixture.life(async |cache| {
        expect(&*cache, 0..2, 1).await;
        expect(&*cache, 2..6, 2).await;
    });
    after.unwrap();
}

#[test]
fn with_cleaner_blocks_are_written_back_in_ascending_order() {
    let fixture = Fixture::new(1024, 2048, MANUAL);
    let w = Watched::new(&fixture);
    w.run(async |cache, origin, _| {
        for block in (0..150).map(|n| n * 389 % 1024) {
            assert_eq!(put(&*cache, block, 1).await, Ok(()));
        }
        say(&cache, "cleaner").await.unwrap();
        millis(1000).await;
        let starts: Vec<u64> = origin.take_written_blocks().iter().map(|r| r.start).collect();
        assert!(starts.len() > 100 && starts.is_sorted(), "{starts:?}");
        assert_eq!(number(&cache, "dirty_blocks"), 0);
    });
}

#[test]
fn after_cleaner_the_cache_hides_no_newer_data_of_the_origin() {
    let fixture = Fixture::small(MANUAL);
    let emptied = fixture.life(async |cache| {
        fill(&*cache, 0..16, 1).await;
        say(&cache, "cleaner").await.unwrap();
        millis(1000).await;
    });
    emptied.unwrap();
    fixture.world.borrow_mut().poke(fixture.origin, common::at(3), &pattern(3, 9));
    fixture.life(async |cache| expect(&*cache, 3..4, 9).await).unwrap();
}

#[test]
fn cleaner_is_taken_back_by_the_attribute() {
    let fixture = Fixture::small(MANUAL);
    let around = fixture.life(async |cache| {
        say(&cache, "CLEANER").await.unwrap();
        assert_eq!(cache.clone().get_attribute("cleaner".to_owned()).await.unwrap(), "1");
        fill(&*cache, 0..2, 1).await;
        set(&cache, "cleaner", "0").await;
        fill(&*cache, 2..4, 1).await;
        expect(&*cache, 0..4, 1).await;
        fields(&cache)[9]
    });
    assert_eq!(around.unwrap(), 2);
}

#[test]
fn with_metadata_only_data_go_around_unless_cached() {
    let fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
    let fields = fixture.life(async |cache| {
        for block in 0..4 {
            assert_eq!(put_with(&*cache, Flags::META, block, 1).await, Ok(()));
        }
        // Over two of them and two more.
        fill(&*cache, 2..6, 2).await;
        let long: Vec<u8> = (1..7).flat_map(|b| pattern(b, 3)).collect();
        let data = block::Buf::copy_of(&long);
        let at = common::at(1);
        let class = block::Class::Normal;
        reactor::write(&*cache, Flags::empty(), class, at, data.into()).await.unwrap();
        expect(&*cache, 0..1, 1).await;
        expect(&*cache, 1..7, 3).await;
        fields(&cache)
    });
    // Written 4 + 4 + 6; hits 2 + 3 uncommitted; around 2 + 3; allocated 4.
    assert_eq!(fields.unwrap()[6..11], [14, 5, 0, 5, 4]);
    assert_eq!(fixture.origin_block(6), pattern(6, 3));
    assert_eq!(fixture.origin_block(1), vec![0; BLOCK]);
}

#[test]
fn a_flush_flushes_the_origin_only_after_writes_around() {
    let fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
    let w = Watched::new(&fixture);
    w.run(async |cache, origin, device| {
        let flushes = |recorder: &RecordingDevice| {
            recorder.take().iter().filter(|(op, _)| *op == Op::Flush).count()
        };
        put_with(&*cache, Flags::META, 0, 1).await.unwrap();
        flush(&*cache).await;
        assert_eq!((flushes(&origin), flushes(&device)), (0, 1), "nothing went around");
        put(&*cache, 9, 1).await.unwrap();
        assert_eq!((flushes(&origin), flushes(&device)), (0, 0), "no flush yet");
        flush(&*cache).await;
        assert_eq!((flushes(&origin), flushes(&device)), (1, 0), "one went around");
        flush(&*cache).await;
        assert_eq!((flushes(&origin), flushes(&device)), (0, 0), "nothing new");
        put_with(&*cache, Flags::FUA, 10, 1).await.unwrap();
        assert_eq!(origin.take_write_flags().pop(), Some(Flags::FUA));
        assert_eq!((flushes(&origin), flushes(&device)), (0, 0), "durable as it is");
    });
}

/// A block is clean, then cleaner mode begins, and the block is written by FUA while the cache
/// device takes its time; then the power goes. Returns what the block reads as, and what the
/// origin holds of it.
fn fua_around_a_clean_copy(fault: Option<Fault>) -> (Vec<u8>, Vec<u8>) {
    let mut fixture = Fixture::small("high_watermark 0 low_watermark 0 autocommit_time 1");
    fixture.config.plant(fault);
    let machine = Machine::boot(&fixture.world, 1);
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let (origin, slow) = (fixture.leaf(fixture.origin), device.clone());
    let config = fixture.config.clone();
    let cache = WriteCache::new("wc", config, origin, device, fixture.sectors).unwrap();
    let work = async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 7..8, 1).await;
        flush(&*cache).await;
        millis(1000).await;
        assert_eq!(number(&cache, "clean_blocks"), 1);
        assert_eq!(number(&cache, "uncommitted_blocks"), 0);
        slow.hold(|_| true);
        let later = slow.clone();
        reactor::spawn(async move {
            millis(1000).await;
            later.release();
        });
        set(&cache, "cleaner", "1").await;
        put_with(&*cache, Flags::FUA, 7, 2).await.unwrap();
        slow.release(); // what is still held goes with the power
    };
    machine.block_on(work).unwrap();
    machine.power_cut();
    let mut later = fixture.clone();
    later.config.plant(None);
    let read = later.life(async |cache| get(&*cache, 7).await.unwrap());
    (read.unwrap(), fixture.origin_block(7))
}

#[test]
fn a_clean_copy_does_not_come_back_over_what_went_around_it() {
    let (read, origin) = fua_around_a_clean_copy(None);
    assert!(read == pattern(7, 2), "the old version came back");
    assert!(origin == pattern(7, 2));
    // And the test can fail: the origin has the new version, but the log still knows the copy.
    let (read, origin) = fua_around_a_clean_copy(Some(Fault::AroundBeforeDrop));
    assert!(read == pattern(7, 1), "the fault made no difference");
    assert!(origin == pattern(7, 2));
}

#[test]
fn writes_around_are_durable_after_a_suspend_or_a_flush() {
    for word in ["flush", "suspend"] {
        let fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
        let w = Watched::new(&fixture);
        w.run(async move |cache, _, _| {
            fill(&*cache, 0..8, 1).await;
            match word {
                "flush" => say(&cache, "flush").await.map(drop).unwrap(),
                _ => common::suspend(&cache).await,
            }
        });
        let Watched { cache, machine, .. } = w;
        drop(cache);
        machine.power_cut();
        assert!((0..8).all(|b| fixture.origin_block(b) == pattern(b, 1)), "{word}");
    }
}

#[test]
fn a_flush_after_a_restart_covers_writes_around_before_a_kill() {
    let fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
    fixture.life(async |cache| fill(&*cache, 0..8, 1).await).unwrap();
    let w = Watched::new(&fixture);
    w.run(async |cache, _, _| {
        expect(&*cache, 0..8, 1).await;
        flush(&*cache).await;
    });
    let Watched { cache, machine, .. } = w;
    drop(cache);
    machine.power_cut();
    assert!((0..8).all(|b| fixture.origin_block(b) == pattern(b, 1)));
}

#[test]
fn an_origin_error_of_a_write_around_fails_only_that_write() {
    let fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
    let inner = fixture.clone();
    let outcome = fixture.life(async move |cache| {
        let faults = |write_error_per_mille| {
            let faults = Faults { write_error_per_mille, ..Faults::default() };
            inner.world.borrow_mut().set_faults(inner.origin, faults);
        };
        faults(1000);
        assert_eq!(put(&*cache, 0, 1).await, Err(Status::Io));
        put_with(&*cache, Flags::META, 1, 1).await.unwrap();
        faults(0);
        put(&*cache, 0, 2).await.unwrap();
        flush(&*cache).await;
        expect(&*cache, 0..1, 2).await;
        fields(&cache)[0]
    });
    assert_eq!(outcome.unwrap(), 0);
}

/// Milliseconds after the last direct write until blocks above the watermark are written back.
fn pause_of(options: &str, then: &'static [(&'static str, &'static str)]) -> Option<u64> {
    let fixture = Fixture::new(1024, 2048, options);
    let w = Watched::new(&fixture);
    let first = Rc::new(std::cell::Cell::new(None));
    let result = first.clone();
    w.run(async move |cache, origin, _| {
        put(&*cache, 1000, 1).await.unwrap();
        let start = reactor::now();
        for block in 0..32 {
            put_with(&*cache, Flags::META, block, 1).await.unwrap();
        }
        origin.take();
        for (name, value) in then {
            set(&cache, name, value).await;
        }
        for _ in 0..10_000 {
            millis(1).await;
            if !origin.take_written_blocks().is_empty() {
                result.set(Some((reactor::now().0 - start.0) / 1_000_000));
                return;
            }
        }
    });
    first.get()
}

#[test]
fn writeback_pauses_after_a_direct_write_for_so_long() {
    let options = "metadata_only high_watermark 0 low_watermark 0";
    let soon = pause_of(&format!("{options} pause_writeback 0"), &[]);
    assert!(soon.unwrap() < 10, "{soon:?}");
    let half = pause_of(&format!("{options} pause_writeback 500"), &[]);
    assert!((499..520).contains(&half.unwrap()), "{half:?}");
    let default = pause_of(options, &[]);
    assert!((2999..3020).contains(&default.unwrap()), "{default:?}");
}

#[test]
fn a_pause_ends_for_a_flush_and_for_blocks_that_are_old() {
    let options = "metadata_only high_watermark 0 low_watermark 0 pause_writeback 8000";
    let cleaner = pause_of(options, &[("cleaner", "1")]);
    assert!(cleaner.unwrap() < 20, "{cleaner:?}");
    let shorter = pause_of(options, &[("pause_writeback", "0")]);
    assert!(shorter.unwrap() < 20, "{shorter:?}");
    let old = pause_of(&format!("{options} max_age 1600"), &[]);
    assert!((1499..1600).contains(&old.unwrap()), "{old:?}");
}

#[test]
fn a_pause_does_not_hold_up_flush_or_suspend() {
    let fixture =
        Fixture::small("metadata_only high_watermark 0 low_watermark 0 pause_writeback 60000");
    let waited = fixture.life(async |cache| {
        let start = reactor::now();
        put(&*cache, 200, 1).await.unwrap();
        put_with(&*cache, Flags::META, 1, 1).await.unwrap();
        say(&cache, "flush").await.unwrap();
        put_with(&*cache, Flags::META, 2, 1).await.unwrap();
        common::suspend(&cache).await;
        (reactor::now().0 - start.0) / 1_000_000
    });
    assert!(waited.unwrap() < 100);
}

#[test]
fn a_pause_slows_no_writer_of_the_cache() {
    // Direct writes all the time, and more metadata than the cache holds.
    let fixture = Fixture::new(1024, 1024, "metadata_only pause_writeback 60000");
    let done = fixture.life(async |cache| {
        let total = number(&cache, "total_blocks");
        let start = reactor::now();
        for n in 0..4 * total {
            put(&*cache, 1000, n).await.unwrap();
            put_with(&*cache, Flags::META, n * 7 % 900, n).await.unwrap();
        }
        assert!(number(&cache, "origin_writes") > 0);
        (reactor::now().0 - start.0) / 1_000_000 < 60_000
    });
    assert!(done.unwrap());
}

#[test]
fn with_fua_writeback_is_durable_without_an_origin_flush() {
    let cost = |fua: bool| {
        let mut fixture = Fixture::small(MANUAL);
        fixture.config.tuning.fua = fua;
        let w = Watched::new(&fixture);
        let (origin, cache) = (w.origin.clone(), w.cache.clone());
        w.run(async |cache, _, _| {
            fill(&*cache, 0..40, 1).await;
            say(&cache, "flush").await.unwrap();
        });
        assert_eq!(number(&cache, "dirty_blocks"), 0);
        let flags = origin.take_write_flags();
        let with_fua = flags.iter().filter(|f| f.contains(Flags::FUA)).count();
        assert!(with_fua == if fua { flags.len() } else { 0 }, "{flags:?}");
        drop(cache);
        let Watched { cache, machine, .. } = w;
        drop(cache);
        machine.power_cut();
        assert!((0..40).all(|b| fixture.origin_block(b) == pattern(b, 1)));
        origin.take().iter().filter(|(op, _)| *op == Op::Flush).count()
    };
    assert_eq!(cost(true), 0);
    assert_eq!(cost(false), 1);
}

#[test]
fn the_devices_atomic_unit_is_no_larger_than_the_origins() {
    let fixture = Fixture::small("");
    let atomic = fixture.life(async |cache| cache.limits().atomic_write_unit_bytes);
    assert_eq!(atomic.unwrap(), 512);
}
