// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bugs that shipped elsewhere, planted again, where a few steps in the right order show them. Each
//! test says what must hold, and that it does not with the bug. `docs/mutations.md` tells of them
//! all, and a test here holds it to that.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::common::held::Held;
use crate::common::{
    BLOCK, Lab, at, config, fill, flush, get, number, pattern, put, put_with, say, suspend,
};
use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector, Target};
use sim::Machine;
use writecache::{Mutation, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Everything is written back at once.
const EAGER: &str = "high_watermark 0 low_watermark 0 autocommit_time 1";
/// A cache device with the smallest log there is, 16 units, and 24 slots.
const TINY_KIB: u64 = 440;

/// The promise holds, and is broken by the fault.
fn is_found(mutation: Mutation, promise: impl Fn(Mutation) -> bool) {
    assert!(promise(Mutation::None), "it does not hold as it is");
    assert!(!promise(mutation), "{mutation:?} was not found");
}

fn lab(blocks: u64, cache_kib: u64, options: &str, mutation: Mutation) -> Lab {
    let mut lab = Lab::new(blocks, cache_kib, options);
    lab.config.mutation = mutation;
    lab
}

/// A cache on devices that may hold writes back.
struct Rig {
    lab: Lab,
    origin: Rc<Held>,
    device: Rc<Held>,
}

impl Rig {
    fn over(lab: &Lab) -> Rc<Rig> {
        let (origin, device) = (lab.leaf(lab.origin), lab.leaf(lab.cache));
        Rc::new(Rig { lab: lab.clone(), origin: Held::over(origin), device: Held::over(device) })
    }

    fn target(&self) -> Rc<WriteCache> {
        let (origin, device) = (self.origin.clone(), self.device.clone());
        let Lab { config, sectors, .. } = self.lab.clone();
        WriteCache::new("wc", config, origin, device, sectors).unwrap()
    }

    /// A life of the machine that ends in a power cut.
    fn life<T: 'static>(
        self: Rc<Rig>,
        work: impl AsyncFnOnce(Rc<Rig>, Rc<WriteCache>) -> T + 'static,
    ) -> T {
        let machine = Machine::boot(&self.lab.world, 1);
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
fn reopened_holds(lab: &Lab, block: u64, version: u64) -> bool {
    lab.life(async move |cache| holds(&*cache, block, version).await).unwrap_or(false)
}

/// dm-writecache, 31b22120: it read its metadata when a table was loaded, and did not see what the
/// instance that was still live wrote until it was suspended.
#[test]
fn a_new_table_sees_what_the_old_one_wrote_until_its_suspend() {
    is_found(Mutation::OpenWhenLoaded, |mutation| {
        let again = lab(256, 1024, MANUAL, mutation);
        let mut lab = again.clone();
        lab.config.mutation = Mutation::None;
        let seen = lab.life(async move |old| {
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
fn no_stalled_write_of_an_old_instance_lands_after_the_new_one_has_taken_over() {
    is_found(Mutation::SuspendInFlight, |mutation| {
        let rig = Rig::over(&lab(256, 1024, EAGER, mutation));
        let lab = rig.lab.clone();
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
        lab.origin_block(5) == pattern(5, 2)
    });
}

/// Ceph PWL, 43127: two writes of one place were on their way to the OSD, and ended in the wrong
/// order.
#[test]
fn no_older_version_lands_on_the_origin_after_a_newer_one() {
    is_found(Mutation::TwoWritesInFlight, |mutation| {
        let rig = Rig::over(&lab(256, 1024, EAGER, mutation));
        let lab = rig.lab.clone();
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
        lab.origin_block(3) == pattern(3, 2)
    });
}

/// LSVD's own note: at run time the map followed the order of completion, replay that of the log;
/// after a crash writes that overlapped were in another order than clients had seen.
#[test]
fn a_crash_does_not_turn_the_order_round_of_writes_that_overlapped() {
    is_found(Mutation::CompletionOrder, |mutation| {
        let rig = Rig::over(&lab(256, 1024, MANUAL, mutation));
        let lab = rig.lab.clone();
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
        reopened_holds(&lab, 0, 1)
    });
}

/// Ceph PWL, 41490: with two writes at once the root on the media could be wrong, and what it no
/// longer led to was lost.
#[test]
fn what_is_committed_during_a_checkpoint_is_there_after_it() {
    is_found(Mutation::CheckpointStartLate, |mutation| {
        let rig = Rig::over(&lab(200, TINY_KIB, MANUAL, mutation));
        let lab = rig.lab.clone();
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
        reopened_holds(&lab, 100, 2) && reopened_holds(&lab, 0, 50)
    });
}

/// Ceph PWL, 41068: bytes were not given back, and once the cache had been full all I/O hung.
#[test]
fn a_cache_that_was_full_goes_on() {
    is_found(Mutation::LeakedCount, |mutation| {
        let options = format!("{EAGER} writeback_jobs 4");
        let rig = Rig::over(&lab(200, TINY_KIB, &options, mutation));
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
fn what_a_flush_has_taken_out_of_the_cache_does_not_come_back() {
    is_found(Mutation::CleanKeptInLog, |mutation| {
        let lab = lab(256, 1024, MANUAL, mutation);
        let flushed = lab.life(async |cache| {
            fill(&*cache, 0..10, 1).await;
            say(&cache, "flush").await.unwrap();
            suspend(&cache).await;
        });
        flushed.unwrap();
        // The origin is used without its cache.
        lab.world.borrow_mut().poke(lab.origin, at(4), &pattern(4, 2));
        reopened_holds(&lab, 4, 2)
    });
}

/// Writes `count` blocks of 512 bytes from `first` on.
async fn write_small(cache: &WriteCache, flags: Flags, first: u64, count: usize) {
    let data = Buf::zeroed(count * 512).all().into();
    reactor::write(cache, flags, Class::Normal, Sector(first), data).await.unwrap();
}

/// A `flush` that is to forget clean blocks was in the middle of a commit, waiting for room, when a
/// checkpoint came to its end; during that commit clients changed as much as may be changed. The
/// next commit was the one that the checkpoint waited for, and what the `flush` still had to forget
/// went into it too: more than the log keeps for the end of a checkpoint. All hung for good.
#[test]
fn a_flush_beside_writes_leaves_the_log_room_for_the_end_of_a_checkpoint() {
    // Blocks of 512 bytes are so many that the log is what bounds the changes: one commit of 1764,
    // 7 of its 64 units.
    is_found(Mutation::DropsBeyondRoom, |mutation| {
        let mut lab = Lab::new(16 << 10, 16 << 10, "");
        lab.config = config(512, MANUAL);
        lab.config.mutation = mutation;
        let inner = lab.clone();
        Rig::over(&lab).life(async move |rig, cache| {
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
fn two_commits(mutation: Mutation) -> Lab {
    let lab = lab(256, 1024, MANUAL, mutation);
    let done = lab.life(async |cache| {
        fill(&*cache, 0..4, 1).await;
        flush(&*cache).await;
        fill(&*cache, 0..1, 2).await;
        flush(&*cache).await;
    });
    done.unwrap();
    lab
}

/// A record was cut off because its data had not arrived. Then the same data come again.
#[test]
fn a_record_that_was_cut_off_for_its_data_does_not_come_back_with_them() {
    is_found(Mutation::TailKept, |mutation| {
        let lab = two_commits(mutation);
        let offset = lab.geometry().slot_offset(lab.slot_of(0));
        let data = lab.area(offset, BLOCK);
        lab.poke_area(offset, &[0; BLOCK]);
        assert!(reopened_holds(&lab, 0, 1));
        lab.poke_area(offset, &data);
        reopened_holds(&lab, 0, 1)
    });
}

/// A record was torn: a word of it had not arrived, one that is the same in every record. A part of
/// the next one, torn too, brought it. Found by the exhaustive search in persistent memory.
#[test]
fn a_torn_record_does_not_become_whole_by_a_part_of_the_next_one() {
    is_found(Mutation::TornTailKept, |mutation| {
        let lab = two_commits(mutation);
        let offset = lab.geometry().log_offset(lab.last_record()) + 16;
        let word = lab.area(offset, 8);
        lab.poke_area(offset, &[0; 8]);
        assert!(reopened_holds(&lab, 0, 1));
        lab.poke_area(offset, &word);
        reopened_holds(&lab, 0, 1)
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
fn the_table_of_planted_faults_names_each_and_the_test_that_finds_it() {
    let table = fs::read_to_string(folder("../../docs/mutations.md")).unwrap();
    let config = fs::read_to_string(folder("src/config.rs")).unwrap();
    let (engine, tests) = (sources(&folder("src")), sources(&folder("tests")));
    let variants = config.split("pub enum Mutation {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants: BTreeSet<&str> = variants
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|name| *name != "None")
        .collect();
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
    assert_eq!(named, variants, "docs/mutations.md, and `Mutation`");
    for name in variants {
        let planted = format!("Mutation::{name}");
        assert!(engine.contains(&planted), "{name} is not planted anywhere");
        assert!(tests.contains(&planted), "no test plants {name}");
    }
}
