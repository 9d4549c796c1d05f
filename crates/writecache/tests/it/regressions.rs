// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bugs that a review or a seed found: each test tells how one showed, and fails if it comes back.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::{
    BLOCK, Fixture, at, config, expect, fill, flush, get, number, pattern, put, put_with, say,
    suspend,
};
use block::{BlockDevice, Buf, Class, Flags, Nanos, Sector, Status, Target};
use format::{Kind, RecordHeader, UNIT};
use sim::model::{Cmd, Kind as CmdKind, Model, Uniform};
use sim::{DiskSpec, Faults, Machine, Rng, RunEnd, Swarm, World};
use writecache::WriteCache;

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// A cache device with the smallest log there is, 16 units, and 24 slots.
const TINY_KIB: u64 = 440;
/// A writer that is at work for so long hangs: milliseconds are enough for it.
const HANG_MS: u64 = 10_000;

/// Lets tasks work until `done`, for `limit_ms` of virtual time at most; returns whether it is.
async fn in_time(limit_ms: u64, done: impl Fn() -> bool) -> bool {
    for _ in 0..limit_ms {
        if done() {
            return true;
        }
        reactor::sleep(Nanos::from_millis(1)).await;
    }
    done()
}

/// Runs tasks, and tells whether all of them end rather than hang.
async fn all_end<F: Future<Output = ()> + 'static>(tasks: impl Iterator<Item = F>) -> bool {
    let open = Rc::new(Cell::new(0));
    for task in tasks {
        open.set(open.get() + 1);
        let left = open.clone();
        reactor::spawn(async move {
            task.await;
            left.set(left.get() - 1);
        });
    }
    in_time(HANG_MS, || open.get() == 0).await
}

fn set_faults(fixture: &Fixture, file: reactor::FileId, faults: Faults) {
    fixture.world.borrow_mut().set_faults(file, faults);
}

/// Blocks of 512 bytes have eight times the records. A commit of an eighth of the slots needed
/// more room than the log keeps for the end of a checkpoint, and the checkpoint, which would have
/// made room, waited for that commit.
#[test]
fn a_commit_and_a_checkpoint_never_wait_for_each_other() {
    much_changes_at_once("");
}

/// In the order of epochs a block may take two entries, and each unit says its epoch first.
#[test]
fn nor_do_they_in_the_order_of_epochs() {
    much_changes_at_once("ordered");
}

fn much_changes_at_once(options: &str) {
    const BIO_BLOCKS: u64 = 512;
    let mut fixture = Fixture::new(25_000, 32 << 10, "");
    fixture.config = config(512, options);
    let ended = fixture.life(async |cache| {
        let last = cache.limits().capacity.0 - BIO_BLOCKS;
        let writers = (0..16).map(|writer| {
            let cache = cache.clone();
            async move {
                let mut rng = Rng::new(writer);
                let data = Buf::zeroed(BIO_BLOCKS as usize * 512);
                for _ in 0..12 {
                    let (at, data) = (Sector(rng.below(last)), data.all().into());
                    reactor::write(&*cache, Flags::empty(), Class::Normal, at, data).await.unwrap();
                }
            }
        });
        all_end(writers).await
    });
    assert!(ended.unwrap(), "writers hang");
}

/// Units of the log that the media say are needed.
fn log_used_units(fixture: &Fixture) -> u64 {
    fixture.last_record() + 1 - fixture.superblock().checkpoint.log_start_seq
}

/// Each life began with writes, which took what was left of the log, before a checkpoint; and each
/// crash came before that checkpoint had ended. Some lives later nothing was left for its end.
#[test]
fn repeated_crashes_do_not_use_up_the_reserve_of_the_log() {
    const LIVES: u64 = 40;
    let fixture =
        Fixture::new(200, TINY_KIB, "autocommit_time 1 high_watermark 90 low_watermark 80");
    let mut began_late = 0;
    for life in 0..LIVES {
        let machine = Machine::boot(&fixture.world, 1);
        let cache = fixture.target();
        machine.block_on(cache.clone().resume()).unwrap().unwrap();
        let half = u64::from(fixture.geometry().log_units / 2);
        let start = number(&cache, "log_used_units");
        for writer in 0..8 {
            let (cache, mut rng) = (cache.clone(), Rng::new(life * 8 + writer));
            machine.spawn(0, async move {
                for version in 0.. {
                    put_with(&*cache, Flags::FUA, rng.below(100), version).await.unwrap();
                }
            });
        }
        // The crash comes right after the record that was written once a checkpoint was due.
        let world = fixture.world.clone();
        let now = || world.borrow().now();
        let hang = now() + Nanos::from_millis(HANG_MS);
        machine.run(|| number(&cache, "log_used_units") > start.max(half) || now() > hang);
        let hangs = now() > hang;
        let cut = now() + Nanos(110_000);
        machine.run(|| now() > cut);
        drop(cache); // the writers have it
        machine.kill();
        assert!(!hangs, "life {life} hangs: it began with {start} units of {} used", 2 * half);
        began_late += u64::from(log_used_units(&fixture) >= half);
    }
    assert!(began_late > 20, "{began_late} lives of {LIVES} began with a log that was half used");
}

/// Appends empty records, as crashes left them in the test above, until every unit is used.
fn use_up_the_log(fixture: &Fixture) {
    let (superblock, last) = (fixture.superblock(), fixture.last_record());
    let geometry = superblock.geometry();
    let unit = fixture.area(geometry.log_offset(last), UNIT);
    let (header, mut link) = {
        let record = format::decode_record(&unit, &superblock.uuid).unwrap();
        (record.header, record.crc)
    };
    for seq in last + 1..superblock.checkpoint.log_start_seq + u64::from(geometry.log_units) {
        let next = RecordHeader { kind: Kind::Log, seq, link, flushed_seq: seq - 1, ..header };
        let mut unit = vec![0; UNIT];
        link = format::encode_record(&next, &[], &mut unit);
        fixture.poke_area(geometry.log_offset(seq), &unit);
    }
}

/// Where crashes had used up the whole log, even the checkpoint at open waited for room: for an
/// empty commit.
#[test]
fn a_cache_whose_log_is_used_up_opens_and_serves() {
    let fixture = Fixture::new(200, TINY_KIB, "");
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
    });
    done.unwrap();
    use_up_the_log(&fixture);
    let machine = Machine::boot(&fixture.world, 1);
    let (cache, served) = (fixture.target(), Rc::new(Cell::new(false)));
    let tell = served.clone();
    machine.spawn(0, async move {
        cache.clone().resume().await.unwrap();
        expect(&*cache, 0..10, 1).await;
        put_with(&*cache, Flags::FUA, 20, 1).await.unwrap();
        tell.set(true);
    });
    let ended = machine.run(|| served.get());
    machine.kill();
    assert_eq!(ended, RunEnd::Until);
}

/// A checkpoint wrote down for good which blocks could not be read, although they were good again a
/// moment later.
#[test]
fn blocks_lost_to_wrong_reads_come_back_with_a_reload() {
    let fixture = Fixture::new(200, TINY_KIB, MANUAL);
    let inner = fixture.clone();
    let done = fixture.life(async move |cache| {
        fill(&*cache, 0..8, 7).await;
        flush(&*cache).await;
        (0..8).for_each(|block| inner.rot_data_of(block));
        say(&cache, "flush").await.unwrap_err();
        (0..8).for_each(|block| inner.rot_data_of(block));
        assert_eq!(number(&cache, "bad_blocks"), 8);
        for version in 0..40 {
            put_with(&*cache, Flags::FUA, 100 + version % 3, version).await.unwrap();
        }
        assert!(number(&cache, "checkpoints") > 0);
        suspend(&cache).await;
    });
    done.unwrap();
    fixture.life(async |cache| expect(&*cache, 0..8, 7).await).unwrap();
}

/// So did a commit, of blocks that it named for the first time. Found by the adversary
/// (`cache-errors`, seed 284750231): reads of the cache device fail for a while, and after a
/// restart with sound disks the blocks were errors still.
#[test]
fn new_blocks_lost_to_failing_reads_come_back_after_a_crash() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    let done = fixture.life(async move |cache| {
        fill(&*cache, 0..8, 7).await;
        let wrong = Faults { read_error_per_mille: 1000, ..Faults::default() };
        set_faults(&inner, inner.cache, wrong);
        for block in 0..8 {
            get(&*cache, block).await.unwrap_err();
        }
        set_faults(&inner, inner.cache, Faults::default());
        assert_eq!(number(&cache, "bad_blocks"), 8);
        assert!(number(&cache, "uncommitted_blocks") >= 8, "a commit is yet to name them");
        flush(&*cache).await;
    });
    done.unwrap();
    fixture.life(async |cache| expect(&*cache, 0..8, 7).await).unwrap();
}

/// With an unreadable block in every slot nothing ever comes free, and a writer waited for ever.
#[test]
fn a_write_to_a_cache_of_unreadable_slots_is_enospc_no_hang() {
    let fixture = Fixture::new(200, TINY_KIB, MANUAL);
    let inner = fixture.clone();
    let outcome = fixture.life(async move |cache| {
        let slots = number(&cache, "total_blocks");
        let wrong = Faults { rot_per_mille: 1000, ..Faults::default() };
        set_faults(&inner, inner.cache, wrong);
        for block in 0..slots {
            put(&*cache, block, 1).await.unwrap();
            say(&cache, "flush").await.unwrap_err();
        }
        assert_eq!(number(&cache, "bad_blocks"), slots);
        let outcome = Rc::new(Cell::new(None));
        let tell = outcome.clone();
        reactor::spawn(async move { tell.set(Some(put(&*cache, slots, 1).await)) });
        in_time(HANG_MS, || outcome.get().is_some()).await;
        outcome.get()
    });
    assert_eq!(outcome.unwrap(), Some(Err(Status::NoSpace)));
}

/// A fixture whose origin takes 50 ms for a request.
fn before_a_slow_origin(options: &str) -> Fixture {
    let mut fixture = Fixture::small(options);
    let model = Uniform::new(7, 50_000_000, 60_000_000);
    let spec = DiskSpec::new("slow origin", fixture.sectors, Box::new(model));
    fixture.origin = fixture.world.borrow_mut().add_disk(spec);
    fixture
}

/// Suspend of a failed cache returned at once. The origin writes that it had left behind ended
/// after those of the table loaded next, and brought old versions back.
#[test]
fn suspend_of_a_failed_cache_waits_for_origin_writes_in_flight() {
    let fixture = before_a_slow_origin("high_watermark 1 low_watermark 0");
    let inner = fixture.clone();
    let done = fixture.life(async move |cache| {
        let image = || inner.peek(inner.origin, 0, 256 * BLOCK);
        for block in 0..8 {
            put_with(&*cache, Flags::FUA, block * 3, 1).await.unwrap();
        }
        reactor::sleep(Nanos::from_millis(1)).await;
        let fails = Faults { flush_error_per_mille: 1000, ..Faults::default() };
        set_faults(&inner, inner.cache, fails);
        put_with(&*cache, Flags::FUA, 190, 1).await.unwrap_err();
        let before = image();
        suspend(&cache).await;
        let suspended = image();
        reactor::sleep(Nanos::from_millis(500)).await;
        (before != suspended, suspended == image())
    });
    let (was_writing, nothing_came_later) = done.unwrap();
    assert!(nothing_came_later, "an origin write ended after the suspend");
    assert!(was_writing, "no origin write was in flight");
}

/// A discard waited for a moment in which no block of its range was being written back. For a wide
/// one under load that moment never came.
#[test]
fn a_wide_discard_is_served_under_steady_writeback() {
    let fixture = Fixture::new(4000, 4 << 10, "high_watermark 10 low_watermark 0");
    let served = fixture.life(async |cache| {
        for writer in 0..8 {
            let (cache, mut rng) = (cache.clone(), Rng::new(writer));
            reactor::spawn(async move {
                for version in 0.. {
                    put(&*cache, rng.below(4000), version).await.unwrap();
                }
            });
        }
        reactor::sleep(Nanos::from_millis(100)).await;
        let served = Rc::new(Cell::new(false));
        let tell = served.clone();
        reactor::spawn(async move {
            reactor::discard(&*cache, Class::Normal, at(0), at(4000)).await.unwrap();
            tell.set(true);
        });
        in_time(500, || served.get()).await
    });
    assert!(served.unwrap());
}

/// Suspend did not wait for tasks that had been started and had not run yet. They lived on, and
/// two checkpoint tasks wrote the same area at the same time.
#[test]
fn resume_suspend_resume_at_once_leave_one_set_of_tasks() {
    for seed in 0..16 {
        // The disks are much faster than the core: requests end before a task has begun.
        let swarm = Swarm { preempt_per_mille: 990, ..Swarm::CALM };
        let world = World::with_swarm(Rng::new(seed), swarm);
        let fixture = Fixture::within(world, seed, 200, TINY_KIB, MANUAL);
        let counts = fixture.life(async |cache| {
            suspend(&cache).await;
            cache.clone().resume().await.unwrap();
            for n in 0..200 {
                put_with(&*cache, Flags::FUA, n % 20, n).await.unwrap();
            }
            (number(&cache, "commits"), number(&cache, "checkpoints"))
        });
        let (records, checkpoints) = counts.unwrap();
        // One is due after half a log; the record that is in flight just then counts twice.
        let records_each_min = u64::from(fixture.geometry().log_units / 2) - 1;
        let most = records / records_each_min;
        assert!(checkpoints <= most, "seed {seed}: {checkpoints} checkpoints, {most} were due");
    }
}

/// Rot in the newest batch looked like its torn end, so the next start went back to the versions
/// before it, though all had been flushed and suspended.
#[test]
fn bit_rot_in_the_newest_batch_after_a_suspend_is_an_error() {
    let fixture = Fixture::small(MANUAL);
    let done = fixture.life(async |cache| {
        for version in 1..=2 {
            fill(&*cache, 0..10, version).await;
            flush(&*cache).await;
        }
        suspend(&cache).await;
    });
    done.unwrap();
    fixture.rot_data_of(9);
    let found = fixture.life(async |cache| {
        expect(&*cache, 0..9, 2).await;
        get(&*cache, 9).await
    });
    assert!(found.unwrap() == Err(Status::Checksum));
}

/// The task that commits after autocommit_time kept the cache while it slept. An hour long the
/// devices of a removed table could not be used by anyone else.
#[test]
fn a_removed_device_lets_go_of_its_leaves_at_once() {
    let fixture = Fixture::small(MANUAL);
    let machine = Machine::boot(&fixture.world, 1);
    let (origin, leaf) = (fixture.leaf(fixture.origin), fixture.leaf(fixture.cache));
    let holders = move |o: &Rc<dyn BlockDevice>, c: &Rc<dyn BlockDevice>| {
        (Rc::strong_count(o), Rc::strong_count(c))
    };
    let (options, sectors) = (fixture.config.clone(), fixture.sectors);
    let work = async move {
        let before = holders(&origin, &leaf);
        let cache = WriteCache::new("wc", options, origin.clone(), leaf.clone(), sectors).unwrap();
        cache.clone().resume().await.unwrap();
        put(&*cache, 5, 1).await.unwrap();
        reactor::sleep(Nanos::from_millis(5)).await;
        suspend(&cache).await;
        drop(cache);
        reactor::sleep(Nanos::from_millis(1)).await;
        (before, holders(&origin, &leaf))
    };
    let (before, after) = machine.block_on(work).unwrap();
    assert_eq!(before, after);
}

/// After `flush` the origin may be used without its cache. Clean blocks that the cache had kept
/// hid what was written there meanwhile.
#[test]
fn after_a_flush_no_block_hides_newer_data_of_the_origin() {
    let fixture = Fixture::small(MANUAL);
    let count = fixture.life(async |cache| {
        let count = number(&cache, "total_blocks") * 3 / 4;
        fill(&*cache, 0..count, 1).await;
        say(&cache, "flush").await.unwrap();
        count
    });
    let count = count.unwrap();
    for block in 0..count {
        assert!(fixture.origin_block(block) == pattern(block, 1), "block {block}");
        fixture.world.borrow_mut().poke(fixture.origin, at(block), &pattern(block, 2));
    }
    fixture.life(async move |cache| expect(&*cache, 0..count, 2).await).unwrap();
}

/// What one read of a disk takes; all else takes 0.1 ms.
const SLOW_READ_NS: u64 = 50_000_000;

/// A disk whose reads are overtaken by all else; by end and number, what is in flight.
#[derive(Default)]
struct SlowReads(BTreeSet<(u64, u64)>);

impl Model for SlowReads {
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd) {
        let latency_ns = if cmd.kind == CmdKind::Read { SLOW_READ_NS } else { 100_000 };
        self.0.insert((now_ns + latency_ns, id));
    }
    fn next_event(&self) -> Option<u64> {
        self.0.first().map(|due| due.0)
    }
    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some((_, id)) = self.0.first().copied().filter(|due| due.0 <= now_ns) {
            self.0.pop_first();
            done.push(id);
        }
    }
    fn power_cut(&mut self) {
        self.0.clear();
    }
}

/// Reads block 3 from the origin. Meanwhile it is written to the cache, and written back by an
/// origin write that fails. Returns what the read brings, and whether the origin was torn.
async fn read_beside_a_failed_writeback(fixture: &Fixture, cache: &WriteCache) -> (Vec<u8>, bool) {
    let (began, buf) = (reactor::now(), Buf::zeroed(BLOCK));
    let read = reactor::read(cache, Class::Foreground, at(3), buf.all().into());
    reactor::sleep(Nanos::from_millis(1)).await;
    let fails = Faults { write_error_per_mille: 1000, ..Faults::default() };
    set_faults(fixture, fixture.origin, fails);
    put_with(cache, Flags::FUA, 3, 2).await.unwrap();
    let failed = || number(cache, "error") != 0;
    assert!(in_time(10, failed).await, "no origin write has failed");
    let torn = [1, 2].iter().all(|&version| fixture.origin_block(3) != pattern(3, version));
    read.await.unwrap();
    assert!(reactor::now().0 >= began.0 + SLOW_READ_NS, "the origin was not read");
    (buf.read(<[u8]>::to_vec), torn)
}

/// `work` in 16 worlds, before an origin whose reads are slow and whose block 3 has version 1. Each
/// block is written back at once. A write that fails is torn in some worlds only.
fn before_slow_reads(
    work: impl AsyncFn(Fixture, Rc<WriteCache>) -> (Vec<u8>, bool) + Copy + 'static,
) {
    let mut torn = 0;
    for seed in 0..16 {
        let mut fixture = Fixture::seeded(seed, 256, 1024, "high_watermark 0 low_watermark 0");
        let spec = DiskSpec::new("slow origin", fixture.sectors, Box::new(SlowReads::default()));
        fixture.origin = fixture.world.borrow_mut().add_disk(spec);
        fixture.world.borrow_mut().poke(fixture.origin, at(3), &pattern(3, 1));
        let inner = fixture.clone();
        let (found, is_torn) = fixture.life(async move |cache| work(inner, cache).await).unwrap();
        let whole = [1, 2].iter().any(|&version| found == pattern(3, version));
        assert!(whole, "seed {seed}: neither the old version nor the new");
        torn += u32::from(is_torn);
    }
    assert!(torn > 0, "the origin must be able to tear");
}

/// What the read of the origin brought was partly one version and partly the other, though no
/// write of a client had failed.
#[test]
fn a_read_never_returns_data_torn_by_a_failed_writeback() {
    before_slow_reads(async |fixture, cache| {
        read_beside_a_failed_writeback(&fixture, &cache).await
    });
}

/// The same, where the read comes to the origin only because a clean block is rotten.
#[test]
fn a_second_read_never_returns_data_torn_by_a_failed_writeback() {
    before_slow_reads(async |fixture, cache| {
        put_with(&*cache, Flags::FUA, 3, 1).await.unwrap();
        assert!(in_time(HANG_MS, || number(&cache, "dirty_blocks") == 0).await);
        fixture.rot_data_of(3);
        let outcome = read_beside_a_failed_writeback(&fixture, &cache).await;
        assert_eq!(number(&cache, "checksum_errors"), 1);
        outcome
    });
}

/// What an ordered cache had kept for its epochs was to come free with a commit, once the cache was
/// used without them; but no commit had anything to say of it. Reclaim went round for ever, and
/// took its core along.
#[test]
fn a_full_ordered_cache_goes_on_without_the_option() {
    let mut fixture = Fixture::new(200, TINY_KIB, &format!("{MANUAL} ordered"));
    let inner = fixture.clone();
    let slots = fixture.life(async move |cache| {
        let slots = number(&cache, "total_blocks");
        // Two versions of each block: the first ones are kept, for nothing can be written back.
        let fails = Faults { write_error_per_mille: 1000, ..Faults::default() };
        set_faults(&inner, inner.origin, fails);
        for version in 1..=2 {
            fill(&*cache, 0..slots / 2, version).await;
            flush(&*cache).await;
        }
        assert_eq!(number(&cache, "free_blocks"), 0);
        assert_eq!(number(&cache, "old_blocks"), slots / 2);
        slots
    });
    let slots = slots.unwrap();
    set_faults(&fixture, fixture.origin, Faults::default());
    fixture.config = config(4096, MANUAL);
    let written = fixture.life(async move |cache| {
        assert_eq!(number(&cache, "free_blocks"), slots / 2);
        let written = Rc::new(Cell::new(false));
        let (tell, writer) = (written.clone(), cache.clone());
        reactor::spawn(async move {
            fill(&*writer, slots / 2..2 * slots, 2).await;
            tell.set(true);
        });
        let is_written = in_time(HANG_MS, || written.get()).await;
        expect(&*cache, 0..slots / 2, 2).await;
        cache.check();
        is_written
    });
    assert!(written.unwrap(), "writers hang");
}
