// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `max_age` in virtual time: how long what was written was in the cache only, for every block and
//! every version, measured where it counts: from the end of the write to the end of the origin
//! flush that covers it or a newer version.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::common::{self, BLOCK, Fixture, at, config, number};
use block::{Bio, BlockDevice, Buf, Class, Flags, Limits, Nanos, Op, Status, Target};
use sim::model::HddParams;
use sim::{DiskSpec, Machine, Rng};
use writecache::{Fault, WriteCache};

/// Nothing is written back unless it is old, or asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// A block and the number that its data carry.
type Stamp = (u64, u64);

/// An origin that knows which versions it has durably.
struct Ledger {
    below: Rc<dyn BlockDevice>,
    next_stamp: Cell<u64>,
    /// Versions that the origin does not have: number, and when the client's write ended.
    owed: RefCell<BTreeMap<u64, VecDeque<(u64, Nanos)>>>,
    in_flight: RefCell<BTreeMap<u64, Vec<Stamp>>>,
    written: RefCell<Vec<Stamp>>,
    longest: Cell<u64>,
}

/// Tells the ledger what has ended: a write, or a flush with what it covers.
struct OnDone(Rc<Ledger>, Op);

impl reactor::OnDone for OnDone {
    fn on_done(&self, status: Status, tag: u64) {
        assert_eq!(status, Status::Ok);
        let stamps = self.0.in_flight.borrow_mut().remove(&tag).unwrap();
        match self.1 {
            Op::Write => self.0.written.borrow_mut().extend(stamps),
            Op::Flush => stamps.into_iter().for_each(|stamp| self.0.is_durable(stamp)),
            Op::Read | Op::Discard | Op::WriteZeroes => unreachable!("not watched"),
        }
    }
}

impl Ledger {
    fn over(below: Rc<dyn BlockDevice>) -> Rc<Ledger> {
        Rc::new(Ledger {
            below,
            next_stamp: Cell::new(1),
            owed: RefCell::default(),
            in_flight: RefCell::default(),
            written: RefCell::default(),
            longest: Cell::new(0),
        })
    }

    async fn put(&self, cache: &WriteCache, block: u64) {
        let stamp = self.next_stamp.replace(self.next_stamp.get() + 1);
        let data = Buf::zeroed(BLOCK);
        data.write(|b| b[..8].copy_from_slice(&stamp.to_le_bytes()));
        let put = reactor::write(cache, Flags::empty(), Class::Normal, at(block), data.into());
        put.await.unwrap();
        let owed = &mut *self.owed.borrow_mut();
        owed.entry(block).or_default().push_back((stamp, reactor::now()));
    }

    fn is_durable(&self, (block, stamp): Stamp) {
        let mut owed = self.owed.borrow_mut();
        let Some(versions) = owed.get_mut(&block) else { return };
        while let Some(&(version, since)) = versions.front() {
            if version > stamp {
                break;
            }
            versions.pop_front();
            self.longest.set(self.longest.get().max(reactor::now().0 - since.0));
        }
        if versions.is_empty() {
            owed.remove(&block);
        }
    }

    /// The longest time, in milliseconds, that anything was in the cache only, until now.
    fn longest_ms(&self) -> u64 {
        let now = reactor::now().0;
        let owed = self.owed.borrow();
        let left = owed.values().flatten().map(|&(_, since)| now - since.0).max();
        self.longest.get().max(left.unwrap_or(0)) / 1_000_000
    }
}

struct Origin(Rc<Ledger>);

impl BlockDevice for Origin {
    fn name(&self) -> &str {
        "ledger"
    }
    fn limits(&self) -> Limits {
        self.0.below.limits()
    }
    fn submit(&self, mut bio: Bio) {
        let stamps = match bio.op {
            Op::Flush => Some(self.0.written.take()),
            Op::Write => {
                let mut data = vec![0; bio.bufs.len_bytes()];
                bio.bufs.copy_to(&mut data);
                let number = |b: &[u8]| u64::from_le_bytes(b[..8].try_into().unwrap());
                let blocks = (bio.sector.0 / 8..).zip(data.chunks(BLOCK));
                Some(blocks.map(|(block, data)| (block, number(data))).collect())
            }
            Op::Read | Op::Discard | Op::WriteZeroes => None,
        };
        if let Some(stamps) = stamps {
            let tag = self.0.next_stamp.replace(self.0.next_stamp.get() + 1);
            self.0.in_flight.borrow_mut().insert(tag, stamps);
            bio.done = reactor::chain(bio.done, Rc::new(OnDone(self.0.clone(), bio.op)), tag);
        }
        self.0.below.submit(bio);
    }
}

/// One life over an origin that keeps accounts. Returns what `work` returns, and the longest time
/// in milliseconds that anything was in the cache only.
fn life<T: 'static>(
    fixture: &Fixture,
    work: impl AsyncFnOnce(Rc<WriteCache>, Rc<Ledger>) -> T + 'static,
) -> (T, u64) {
    let machine = Machine::boot(&fixture.world, 1);
    let ledger = Ledger::over(fixture.leaf(fixture.origin));
    let origin = Rc::new(Origin(ledger.clone()));
    let device = fixture.leaf(fixture.cache);
    let cache =
        WriteCache::new("wc", fixture.config.clone(), origin, device, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        let done = work(cache, ledger.clone()).await;
        (done, ledger.longest_ms())
    });
    machine.kill();
    done.unwrap()
}

async fn millis(n: u64) {
    reactor::sleep(Nanos::from_millis(n)).await;
}

#[test]
fn a_dirty_block_is_written_back_at_almost_max_age_not_before() {
    let fixture = Fixture::small(&format!("{MANUAL} max_age 1600"));
    let (dirty, longest) = life(&fixture, async |cache, ledger| {
        millis(5000).await; // an idle cache counts nothing
        for block in 0..20 {
            ledger.put(&cache, block * 7).await;
        }
        millis(1490).await;
        let before = number(&cache, "dirty_blocks");
        millis(500).await;
        (before, number(&cache, "dirty_blocks"))
    });
    assert_eq!(dirty, (20, 0));
    assert!((1500..1600).contains(&longest), "{longest}");
}

#[test]
fn a_block_overwritten_all_the_time_reaches_the_origin() {
    let fixture = Fixture::small(&format!("{MANUAL} max_age 800"));
    let ((), longest) = life(&fixture, async |cache, ledger| {
        for n in 0..10_000 {
            ledger.put(&cache, n % 8).await;
            millis(1).await;
        }
    });
    assert!((700..800).contains(&longest), "{longest}");
}

#[test]
fn after_a_restart_ages_count_from_there() {
    let fixture = Fixture::small(&format!("{MANUAL} max_age 1600"));
    life(&fixture, async |cache, ledger| {
        for block in 0..4 {
            ledger.put(&cache, block).await;
        }
        common::flush(&*cache).await;
        millis(1000).await;
    });
    let (dirty, _) = life(&fixture, async |cache, _| {
        millis(1490).await;
        let before = number(&cache, "dirty_blocks");
        millis(100).await;
        (before, number(&cache, "dirty_blocks"))
    });
    assert_eq!(dirty, (4, 0));
}

#[test]
fn a_max_age_set_on_a_live_device_counts_at_once() {
    let fixture = Fixture::small(MANUAL);
    let (dirty, longest) = life(&fixture, async |cache, ledger| {
        let set = async |value: &str| {
            cache.clone().set_attribute("max_age".to_owned(), value.to_owned()).await.unwrap();
        };
        let dirty = || number(&cache, "dirty_blocks");
        ledger.put(&cache, 1).await;
        millis(300).await;
        let unlimited = dirty();
        set("160").await;
        millis(20).await;
        let at_once = dirty();
        ledger.put(&cache, 2).await;
        millis(200).await;
        let old = dirty();
        set("none").await;
        assert!(!cache.table().contains("max_age"), "{}", cache.table());
        ledger.put(&cache, 3).await;
        millis(5000).await;
        (unlimited, at_once, old, dirty())
    });
    assert_eq!(dirty, (1, 0, 0, 1));
    assert!(longest >= 5000);
}

/// Blocks between two that the heavy writer dirties.
const STRIDE: u64 = 64;
const ORIGIN_BLOCKS: u64 = 4 << 20;
const SECONDS: u64 = 40;

/// The load that an elevator alone serves worst: a writer that dirties, ahead of the sweep, as many
/// blocks as the disk takes, on a disk so large that one round takes minutes; and now and then a
/// block behind it. Returns, in milliseconds, how long anything was in the cache only, and how long
/// the disk takes, at the rate of this run, for as many blocks as were ever dirty at once.
fn under_load(options: &str, fault: Option<Fault>) -> (u64, u64) {
    let mut fixture = Fixture::new(8, 16 << 10, options);
    let sectors = at(ORIGIN_BLOCKS);
    let disk = DiskSpec::hdd("slow", sectors, HddParams::textbook());
    fixture.origin = fixture.world.borrow_mut().add_disk(DiskSpec { keeps_data: false, ..disk });
    fixture.sectors = sectors;
    fixture.config = config(4096, options);
    fixture.config.plant(fault);
    let ((dirty_max, per_s), longest) = life(&fixture, async |cache, ledger| {
        let mut rng = Rng::new(7);
        let start = reactor::now();
        let mut ahead = ORIGIN_BLOCKS / 2;
        let mut straggler_at = start;
        let mut dirty_max = 0;
        while reactor::now().0 - start.0 < SECONDS * 1_000_000_000 {
            ledger.put(&cache, ahead).await;
            ahead += STRIDE;
            assert!(ahead < ORIGIN_BLOCKS, "the disk is too small for this test");
            dirty_max = number(&cache, "dirty_blocks").max(dirty_max);
            if reactor::now() > straggler_at {
                straggler_at = reactor::now() + Nanos::from_millis(100);
                ledger.put(&cache, rng.below(ORIGIN_BLOCKS / 2)).await;
            }
        }
        (dirty_max, number(&cache, "origin_write_bytes") / BLOCK as u64 / SECONDS)
    });
    (longest, dirty_max * 1000 / per_s)
}

#[test]
fn under_load_no_block_is_dirty_beyond_max_age_and_one_sweep() {
    let longest = |max_age: u64, fault| {
        let (longest, sweep) = under_load(&format!("max_age {max_age}"), fault);
        println!("{fault:?}, max_age {max_age} ms, sweep {sweep} ms: at most {longest} ms");
        // One sweep may be somewhat slower than the mean of the run.
        (longest, sweep.max(max_age) + sweep * 5 / 4)
    };
    for max_age in [8000, 400] {
        // Where a sweep takes longer than that, two of them.
        let (longest, bound) = longest(max_age, None);
        assert!(longest <= bound, "{longest} ms");
    }
    // And the test can fail.
    let (longest, bound) = longest(400, Some(Fault::IgnoreAge));
    assert!(longest > 2 * bound, "{longest} ms");
}
