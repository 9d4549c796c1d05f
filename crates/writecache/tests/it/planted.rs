// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bugs that shipped elsewhere, planted again, where a few steps in the right order show them. Each
//! test says what must hold, and that it does not with the bug. `docs/mutations.md` tells of them
//! all, and a test here holds it to that.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::common::stalled::StalledDevice;
use crate::common::{
    BLOCK, Fixture, at, config, fill, flush, get, number, pattern, put, put_with, say, suspend,
};
use crate::guard::{GUARDED, formatted};
use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector, Target};
use sim::{Faults, Machine};
use writecache::{Fault, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Everything is written back at once.
const EAGER: &str = "high_watermark 0 low_watermark 0 autocommit_time 1";
/// A cache device with the smallest log there is, 16 units, and 24 slots.
const TINY_KIB: u64 = 440;

/// The promise holds, and is broken by the fault.
fn is_found(fault: Option<Fault>, promise: impl Fn(Option<Fault>) -> bool) {
    assert!(promise(None), "it does not hold as it is");
    assert!(!promise(fault), "{fault:?} was not found");
}

fn fixture(blocks: u64, cache_kib: u64, options: &str, fault: Option<Fault>) -> Fixture {
    let mut fixture = Fixture::new(blocks, cache_kib, options);
    fixture.config.plant(fault);
    fixture
}

/// A cache on devices that may hold writes back.
struct Rig {
    fixture: Fixture,
    origin: Rc<StalledDevice>,
    device: Rc<StalledDevice>,
}

impl Rig {
    fn over(fixture: &Fixture) -> Rc<Rig> {
        let (origin, device) = (fixture.leaf(fixture.origin), fixture.leaf(fixture.cache));
        Rc::new(Rig {
            fixture: fixture.clone(),
            origin: StalledDevice::over(origin),
            device: StalledDevice::over(device),
        })
    }

    fn target(&self) -> Rc<WriteCache> {
        let (origin, device) = (self.origin.clone(), self.device.clone());
        let Fixture { config, sectors, .. } = self.fixture.clone();
        WriteCache::new("wc", config, origin, device, sectors).unwrap()
    }

    /// A life of the machine that ends in a power cut.
    fn life<T: 'static>(
        self: Rc<Rig>,
        work: impl AsyncFnOnce(Rc<Rig>, Rc<WriteCache>) -> T + 'static,
    ) -> T {
        let machine = Machine::boot(&self.fixture.world, 1);
        let target = self.target();
        let done = machine.block_on(async move {
            target.clone().resume().await.unwrap();
            work(self, target).await
        });
        machine.power_cut();
        done.expect("no power cut was planned")
    }
}

async fn pause_ms(ms: u64) {
    reactor::sleep(Nanos::from_millis(ms)).await;
}

/// Whether it comes true within ten seconds of virtual time.
async fn comes_true(is_true: impl Fn() -> bool) -> bool {
    for _ in 0..10_000 {
        if is_true() {
            return true;
        }
        pause_ms(1).await;
    }
    is_true()
}

async fn holds(dev: &dyn BlockDevice, block: u64, version: u64) -> bool {
    get(dev, block).await == Ok(pattern(block, version))
}

/// What a new life of the cache finds.
fn reopened_holds(fixture: &Fixture, block: u64, version: u64) -> bool {
    fixture.life(async move |cache| holds(&*cache, block, version).await).unwrap_or(false)
}

/// dm-writecache, 31b22120: it read its metadata when a table was loaded, and did not see what the
/// instance that was still live wrote until it was suspended.
#[test]
fn a_new_table_sees_what_the_old_one_wrote_until_its_suspend() {
    is_found(Some(Fault::OpenWhenLoaded), |fault| {
        let again = fixture(256, 1024, MANUAL, fault);
        let mut fixture = again.clone();
        fixture.config.plant(None);
        let seen = fixture.life(async move |old| {
            fill(&*old, 0..10, 1).await;
            flush(&*old).await;
            let new = again.target();
            pause_ms(100).await;
            fill(&*old, 5..15, 2).await;
            suspend(&old).await;
            new.clone().resume().await.unwrap();
            drop(old);
            holds(&*new, 2, 1).await && holds(&*new, 7, 2).await && holds(&*new, 14, 2).await
        });
        seen.unwrap()
    });
}

/// ydb-nbs#7070: a stalled write was executed after its client had connected again and had written
/// the block anew.
#[test]
fn no_stalled_write_of_an_old_instance_lands_after_a_takeover() {
    is_found(Some(Fault::SuspendInFlight), |fault| {
        let rig = Rig::over(&fixture(256, 1024, EAGER, fault));
        let fixture = rig.fixture.clone();
        rig.life(async |rig, old| {
            rig.origin.hold_next();
            fill(&*old, 5..6, 1).await;
            assert!(comes_true(|| rig.origin.count() == 1).await);
            let late = rig.clone();
            reactor::spawn(async move {
                pause_ms(100).await;
                late.origin.release();
            });
            suspend(&old).await;
            let new = rig.target();
            new.clone().resume().await.unwrap();
            fill(&*new, 5..6, 2).await;
            say(&new, "flush").await.unwrap();
            pause_ms(500).await;
        });
        fixture.origin_block(5) == pattern(5, 2)
    });
}

/// Ceph PWL, 43127: two writes of one place were on their way to the OSD, and ended in the wrong
/// order.
#[test]
fn no_older_version_lands_on_the_origin_after_a_newer_one() {
    is_found(Some(Fault::TwoWritesInFlight), |fault| {
        let rig = Rig::over(&fixture(256, 1024, EAGER, fault));
        let fixture = rig.fixture.clone();
        rig.life(async |rig, cache| {
            rig.origin.hold_next();
            fill(&*cache, 3..4, 1).await;
            assert!(comes_true(|| rig.origin.count() == 1).await);
            fill(&*cache, 3..4, 2).await;
            flush(&*cache).await;
            pause_ms(100).await;
            rig.origin.release();
            say(&cache, "flush").await.unwrap();
        });
        fixture.origin_block(3) == pattern(3, 2)
    });
}

/// LSVD's own note: at run time the map followed the order of completion, replay that of the log;
/// after a crash writes that overlapped were in another order than clients had seen.
#[test]
fn a_crash_does_not_reverse_the_order_of_overlapping_writes() {
    is_found(Some(Fault::CompletionOrder), |fault| {
        let rig = Rig::over(&fixture(256, 1024, MANUAL, fault));
        let fixture = rig.fixture.clone();
        rig.life(async |rig, cache| {
            rig.device.hold_next();
            let (ended, writer) = (Rc::new(Cell::new(false)), cache.clone());
            let tell = ended.clone();
            reactor::spawn(async move {
                put(&*writer, 0, 1).await.unwrap();
                tell.set(true);
            });
            assert!(comes_true(|| rig.device.count() == 1).await);
            put(&*cache, 0, 2).await.unwrap();
            flush(&*cache).await;
            rig.device.release();
            assert!(comes_true(|| ended.get()).await);
            assert!(holds(&*cache, 0, 1).await, "the one that ended last");
            flush(&*cache).await;
        });
        reopened_holds(&fixture, 0, 1)
    });
}

/// Ceph PWL, 41490: with two writes at once the root on the media could be wrong, and what it no
/// longer led to was lost.
#[test]
fn what_is_committed_during_a_checkpoint_is_there_after_it() {
    is_found(Some(Fault::CheckpointStartLate), |fault| {
        let rig = Rig::over(&fixture(200, TINY_KIB, MANUAL, fault));
        let fixture = rig.fixture.clone();
        rig.life(async |rig, cache| {
            for version in 1.. {
                // The next record is the last one before a checkpoint.
                if number(&cache, "log_used_units") == 7 {
                    break;
                }
                put_with(&*cache, Flags::FUA, 0, version).await.unwrap();
            }
            put(&*cache, 100, 1).await.unwrap();
            put(&*cache, 0, 50).await.unwrap();
            // The first write of the flush is its record, the second one the checkpoint's.
            let writes = Cell::new(0);
            rig.device.hold(move |bio| {
                writes.set(writes.get() + u32::from(bio.op == Op::Write));
                bio.op == Op::Write && writes.get() == 2
            });
            flush(&*cache).await;
            assert!(comes_true(|| rig.device.count() == 1).await, "no checkpoint is written");
            put_with(&*cache, Flags::FUA, 100, 2).await.unwrap();
            rig.device.release();
            assert!(comes_true(|| number(&cache, "checkpoints") > 0).await);
        });
        reopened_holds(&fixture, 100, 2) && reopened_holds(&fixture, 0, 50)
    });
}

/// Ceph PWL, 41068: bytes were not given back, and once the cache had been full all I/O hung.
#[test]
fn a_cache_that_was_full_goes_on() {
    is_found(Some(Fault::LeakedCount), |fault| {
        let options = format!("{EAGER} writeback_jobs 4");
        let rig = Rig::over(&fixture(200, TINY_KIB, &options, fault));
        rig.life(async |_, cache| {
            let (ended, writer) = (Rc::new(Cell::new(false)), cache.clone());
            let tell = ended.clone();
            reactor::spawn(async move {
                fill(&*writer, 0..100, 1).await;
                tell.set(true);
            });
            comes_true(|| ended.get() && number(&cache, "dirty_blocks") == 0).await
        })
    });
}

/// ocf#440: the cache lines of a core that had been removed came back at the next recovery.
#[test]
fn blocks_that_a_flush_dropped_do_not_come_back() {
    is_found(Some(Fault::CleanKeptInLog), |fault| {
        let fixture = fixture(256, 1024, MANUAL, fault);
        let flushed = fixture.life(async |cache| {
            fill(&*cache, 0..10, 1).await;
            say(&cache, "flush").await.unwrap();
            suspend(&cache).await;
        });
        flushed.unwrap();
        // The origin is used without its cache.
        fixture.world.borrow_mut().poke(fixture.origin, at(4), &pattern(4, 2));
        reopened_holds(&fixture, 4, 2)
    });
}

/// Writes `count` blocks of 512 bytes from `first` on.
async fn write_small(cache: &WriteCache, flags: Flags, first: u64, count: usize) {
    let data = Buf::zeroed(count * 512).all().into();
    reactor::write(cache, flags, Class::Normal, Sector(first), data).await.unwrap();
}

/// A guard that leaves a range while the cache is in use flushes the cache device, too. That flush
/// may lose what clients have written, and the engine's next one ends with success.
#[test]
fn a_flush_of_a_guards_record_that_fails_fails_the_cache() {
    is_found(Some(Fault::GuardFlushErrorKept), |fault| {
        let mut fixture = formatted(GUARDED);
        fixture.config.plant(fault);
        let inner = fixture.clone();
        let set_flush_errors = move |flush_error_per_mille| {
            let faults = Faults { flush_error_per_mille, ..Faults::default() };
            inner.world.borrow_mut().set_faults(inner.cache, faults);
        };
        let told = fixture.life(async move |cache| {
            // The range no longer compresses; the log has all of it.
            fill(&*cache, 1..16, 2).await;
            flush(&*cache).await;
            set_flush_errors(1000);
            assert!(say(&cache, "flush").await.is_err(), "the range is written back");
            set_flush_errors(0);
            reactor::flush(&*cache, Class::Foreground).await.is_err()
        });
        told.unwrap()
    });
}

/// A `flush` that is to forget clean blocks was in the middle of a commit, waiting for room, when a
/// checkpoint came to its end; during that commit clients changed as much as may be changed. The
/// next commit was the one that the checkpoint waited for, and what the `flush` still had to forget
/// went into it too: more than the log keeps for the end of a checkpoint. All hung for good.
#[test]
fn a_flush_beside_writes_leaves_log_room_for_a_checkpoint() {
    // Blocks of 512 bytes are so many that the log is what bounds the changes: one commit of 1764,
    // 7 of its 64 units.
    is_found(Some(Fault::DropsBeyondRoom), |fault| {
        let mut fixture = Fixture::new(16 << 10, 16 << 10, "");
        fixture.config = config(512, MANUAL);
        fixture.config.plant(fault);
        let inner = fixture.clone();
        Rig::over(&fixture).life(async move |rig, cache| {
            // Every second block, so that each takes an entry of its own.
            for block in (0..40_000).step_by(2) {
                write_small(&cache, Flags::empty(), block, 1).await;
            }
            let drained = cache.clone().set_attribute("drain".into(), String::new());
            drained.await.unwrap();
            assert_eq!(number(&cache, "clean_blocks"), 20_000);
            let geometry = inner.geometry();
            assert_eq!(geometry.log_units, 64);
            // The commit that waits, with three quarters used, has all of its seven units still to
            // write: before it come others of seven, and one unit that says that block 0 is clean.
            let used = || number(&cache, "log_used_units");
            write_small(&cache, Flags::FUA, 0, 1).await;
            while used() % 7 != (48 - 1) % 7 {
                write_small(&cache, Flags::FUA, 0, 1).await;
            }
            assert!(used() < 32, "{} units are used: a checkpoint is due", used());
            let dump = geometry.checkpoint_offset(0) / 512..geometry.log_start() / 512;
            rig.device.hold(move |bio| bio.op == Op::Write && dump.contains(&bio.sector.0));
            let (flushed, flushing) = (Rc::new(Cell::new(false)), cache.clone());
            let tell = flushed.clone();
            reactor::spawn(async move {
                say(&flushing, "flush").await.unwrap();
                tell.set(true);
            });
            assert!(comes_true(|| used() == 48 && rig.device.count() == 1).await);
            // The checkpoint comes to its end, and so does that commit, but for its flush.
            rig.device.release();
            rig.device.hold(|bio| bio.op == Op::Flush);
            assert!(comes_true(|| rig.device.count() == 1).await);
            assert_eq!(used(), 48 + 7);
            for n in 0..27 {
                write_small(&cache, Flags::empty(), 50_000 + n * 64, 64).await;
            }
            rig.device.release();
            comes_true(|| flushed.get()).await
        })
    });
}

/// Two commits, of which the second is of block 0 alone and no later record calls it durable.
fn two_commits(fault: Option<Fault>) -> Fixture {
    let fixture = fixture(256, 1024, MANUAL, fault);
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..4, 1).await;
        flush(&*cache).await;
        fill(&*cache, 0..1, 2).await;
        flush(&*cache).await;
    });
    done.unwrap();
    fixture
}

/// A record was cut off because its data had not arrived. Then the same data come again.
#[test]
fn a_record_cut_off_for_its_data_does_not_come_back() {
    is_found(Some(Fault::TailKept), |fault| {
        let fixture = two_commits(fault);
        let offset = fixture.geometry().slot_offset(fixture.slot_of(0));
        let data = fixture.area(offset, BLOCK);
        fixture.poke_area(offset, &[0; BLOCK]);
        assert!(reopened_holds(&fixture, 0, 1));
        fixture.poke_area(offset, &data);
        reopened_holds(&fixture, 0, 1)
    });
}

/// A record was torn: a word of it had not arrived, one that is the same in every record. A part of
/// the next one, torn too, brought it. Found by the exhaustive search in persistent memory.
#[test]
fn a_torn_record_is_not_completed_by_part_of_the_next_one() {
    is_found(Some(Fault::TornTailKept), |fault| {
        let fixture = two_commits(fault);
        let offset = fixture.geometry().log_offset(fixture.last_record()) + 16;
        let word = fixture.area(offset, 8);
        fixture.poke_area(offset, &[0; 8]);
        assert!(reopened_holds(&fixture, 0, 1));
        fixture.poke_area(offset, &word);
        reopened_holds(&fixture, 0, 1)
    });
}

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The text of all sources below a folder.
fn sources(below: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            all.push_str(&sources(&entry));
        } else if entry.extension().is_some_and(|e| e == "rs") {
            all.push_str(&fs::read_to_string(&entry).unwrap());
        }
    }
    all
}

/// Names in back quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_table_of_planted_faults_is_complete() {
    let table = fs::read_to_string(folder("../../docs/mutations.md")).unwrap();
    let faults = fs::read_to_string(folder("src/planted.rs")).unwrap();
    let (engine, tests) = (sources(&folder("src")), sources(&folder("tests")));
    let variants = faults.split("pub enum Fault {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants: BTreeSet<&str> =
        variants.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    assert!(variants.len() > 40, "{variants:?}");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let mut named = BTreeSet::new();
    for row in &rows {
        let [_, .., mutants, found_by, _] = &row[..] else { panic!("{row:?}") };
        named.extend(quoted(mutants));
        assert!(quoted(found_by).next().is_some(), "who finds {mutants}?");
        for test in quoted(found_by) {
            assert!(tests.contains(&format!("fn {test}(")), "there is no test {test}");
        }
    }
    assert_eq!(named, variants, "docs/mutations.md, and `Fault`");
    for name in variants {
        let planted = format!("Fault::{name}");
        assert!(engine.contains(&planted), "{name} is not planted anywhere");
        assert!(tests.contains(&planted), "no test plants {name}");
    }
}
