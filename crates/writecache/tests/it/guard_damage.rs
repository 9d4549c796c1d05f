// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guard that somebody has written over, as `fsck.ext4 -y` and `xfs_repair` do: whatever is left
//! of it, the cache refuses the origin, and either way out works: what the origin has counts, or
//! what the cache holds is written over it.
use block::{Class, Sector, Target};
use format::{GuardRange, GuardSlot};
use sim::{Machine, PowerCut};
use writecache::{
    DamagedRanges, Depth, Fault, StaleOrigin, find_guard, probe, restore_damaged_origin,
    restore_origin,
};

use crate::common::{BLOCK, Fixture, flush};
use crate::guard::{
    BLOCKS, GUARDED, MANUAL, TAIL, UNGUARDED, formatted, plain, put_plain, with_options, write_back,
};

/// What happens to one half of a range, where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Nothing,
    /// As ext4 does, which never writes its first 1024 bytes: the signature stays.
    Image,
    /// As XFS does, which has its superblock in the first sector.
    Signature,
    All,
}

const HARMS: [Harm; 4] = [Harm::Nothing, Harm::Image, Harm::Signature, Harm::All];
/// Blocks that only the cache has.
const DIRTY: [u64; 4] = [5, 100, 101, TAIL + 3];

/// An origin of superblocks whose guard is written over.
struct Damaged {
    fixture: Fixture,
    range: GuardRange,
    /// What clients saw before.
    clean: Vec<u8>,
    /// What the origin has.
    raw: Vec<u8>,
}

fn all_of_the_origin(fixture: &Fixture) -> Vec<u8> {
    fixture.peek(fixture.origin, 0, BLOCKS as usize * BLOCK)
}

impl Damaged {
    fn new(nth: usize, harms: [Harm; 2]) -> Damaged {
        let fixture = formatted(GUARDED);
        let clean = all_of_the_origin(&fixture);
        fixture
            .life(async |cache| {
                for block in DIRTY {
                    put_plain(&*cache, block..block + 1, 1).await;
                }
                flush(&*cache).await;
            })
            .unwrap();
        let range = GuardRange::of_origin(fixture.sectors.0)[nth];
        for (half, harm) in harms.into_iter().enumerate() {
            let bytes = match harm {
                Harm::Nothing => continue,
                Harm::Image => 1024..9000 / 512 * 512,
                Harm::Signature => 0..512,
                Harm::All => 0..range.slot_bytes(),
            };
            let at = range.start * 512 + (half * range.slot_bytes() + bytes.start) as u64;
            let (origin, harm) = (fixture.origin, vec![0xc0 + half as u8; bytes.len()]);
            fixture.world.borrow_mut().poke(origin, Sector::from_bytes(at), &harm);
        }
        // No later power cut takes anything of it.
        let disks = [fixture.leaf(fixture.origin), fixture.leaf(fixture.cache)];
        let machine = Machine::boot(&fixture.world, 1);
        let flushed = machine.block_on(async move {
            for disk in disks {
                reactor::flush(&*disk, Class::Foreground).await.unwrap();
            }
        });
        flushed.unwrap();
        machine.kill();
        let raw = all_of_the_origin(&fixture);
        Damaged { fixture, range, clean, raw }
    }

    fn by(&self, options: &str) -> Fixture {
        with_options(&self.fixture, options)
    }

    /// The range as it is now counts, without the first sectors of slots.
    fn kept(&self) -> Vec<u8> {
        let start = self.range.start as usize * 512;
        let mut all = self.clean.clone();
        let range = &mut all[start..start + self.range.bytes];
        range.copy_from_slice(&self.raw[start..start + self.range.bytes]);
        for half in range.chunks_mut(self.range.slot_bytes()) {
            if GuardSlot::owner(half).is_some() {
                half[..512].fill(0);
            }
        }
        all
    }

    /// The same, and what only the cache had.
    fn adopted(&self) -> Vec<u8> {
        let mut all = self.kept();
        for block in DIRTY {
            all[block as usize * BLOCK..][..BLOCK].copy_from_slice(&plain(block, 1));
        }
        all
    }

    fn wipe_cache(&self) {
        let blank = vec![0; self.fixture.image().len()];
        self.fixture.world.borrow_mut().poke(self.fixture.cache, Sector(0), &blank);
    }

    /// The origin is as any other one: no guard is found, and a new cache takes it.
    fn is_free(&self) {
        let origin = self.fixture.leaf(self.fixture.origin);
        let machine = Machine::boot(&self.fixture.world, 1);
        let guard = machine.block_on(async move { find_guard(&*origin).await.unwrap() }).unwrap();
        machine.kill();
        assert_eq!(guard, None);
        self.wipe_cache();
        self.by(MANUAL).life(async |_| ()).unwrap();
    }

    /// Opens the cache and writes everything back, if it is not stopped after so many steps.
    /// Whether it was done.
    fn adopt(&self, options: &str, stop_after: Option<u64>) -> bool {
        let target = self.by(&format!("{options} adopt_origin")).target();
        let machine = Machine::boot(&self.fixture.world, 1);
        let world = &self.fixture.world;
        let began = world.borrow().steps();
        let cut = stop_after.map(|steps| PowerCut::Step(began + steps));
        world.borrow_mut().power_cut_at(cut);
        let done = machine.block_on(async move {
            target.clone().resume().await.unwrap();
            write_back(&target).await;
        });
        world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        done.is_ok()
    }
}

/// Each range, and each way in which its slots can be harmed.
fn each_harm(mut check: impl FnMut(usize, [Harm; 2])) {
    for nth in [0, 1] {
        for front in HARMS {
            for rear in HARMS.into_iter().filter(|rear| [front, *rear] != [Harm::Nothing; 2]) {
                check(nth, [front, rear]);
            }
        }
    }
}

#[test]
fn a_damaged_guard_is_refused_and_nothing_is_changed() {
    each_harm(|nth, harms| {
        let damaged = Damaged::new(nth, harms);
        let image = damaged.fixture.image();
        for options in [GUARDED, UNGUARDED, MANUAL] {
            let refusal = damaged.by(options).refusal();
            assert!(refusal.contains("it was used, or restored"), "{harms:?}: {refusal}");
        }
        assert!(damaged.fixture.image() == image, "{harms:?}: the cache was changed");
        assert!(all_of_the_origin(&damaged.fixture) == damaged.raw, "{harms:?}");
    });
}

#[test]
fn what_a_repair_left_counts_and_the_cache_goes_over_it() {
    each_harm(|nth, harms| {
        let damaged = Damaged::new(nth, harms);
        assert!(damaged.adopt(UNGUARDED, None));
        assert!(all_of_the_origin(&damaged.fixture) == damaged.adopted(), "{nth} {harms:?}");
        damaged.is_free();
        let damaged = Damaged::new(nth, harms);
        assert!(damaged.adopt(GUARDED, None));
        // The guard is there again, and goes without any word.
        damaged.by(UNGUARDED).life(async |_| ()).unwrap();
        assert!(all_of_the_origin(&damaged.fixture) == damaged.adopted(), "{nth} {harms:?}");
    });
}

#[test]
fn what_a_repair_has_left_counts_without_the_cache() {
    each_harm(|nth, harms| {
        for decision in [DamagedRanges::Kept, DamagedRanges::Restored] {
            let damaged = Damaged::new(nth, harms);
            damaged.wipe_cache();
            let origin = damaged.fixture.leaf(damaged.fixture.origin);
            let machine = Machine::boot(&damaged.fixture.world, 1);
            let start = damaged.range.start;
            let is_gone = !harms.iter().any(|harm| matches!(harm, Harm::Nothing | Harm::Image));
            let is_whole = harms.contains(&Harm::Nothing);
            let done = machine.block_on(async move {
                let guard = find_guard(&*origin).await.unwrap().unwrap();
                assert_eq!(guard.damaged.contains(&start), !is_gone, "{harms:?}");
                assert_eq!(guard.restorable.contains(&start), is_whole, "{harms:?}");
                assert_eq!(guard.ranges.len(), 1, "{harms:?}");
                if is_gone {
                    // Nothing tells that there was a guard; the other range has one.
                    return drop(restore_origin(origin).await.unwrap());
                }
                let refused = restore_origin(origin.clone()).await.unwrap_err().chain();
                assert!(refused.contains("is damaged; nothing was changed"), "{refused}");
                restore_damaged_origin(origin, decision).await.unwrap();
            });
            machine.kill();
            done.unwrap();
            let is_restored = is_whole && decision == DamagedRanges::Restored;
            let wanted = if is_restored { damaged.clean.clone() } else { damaged.kept() };
            let found = all_of_the_origin(&damaged.fixture);
            assert!(found == wanted, "{nth} {harms:?} {decision:?}");
            damaged.is_free();
        }
    });
}

#[test]
fn a_stop_at_any_step_of_an_adoption_is_continued_by_the_next() {
    let harms = [
        (0, [Harm::Image, Harm::Image]),
        (0, [Harm::Signature, Harm::Nothing]),
        (1, [Harm::Nothing, Harm::All]),
    ];
    for (nth, harms) in harms {
        for options in [UNGUARDED, GUARDED] {
            for stop_after in (1..).step_by(3) {
                let damaged = Damaged::new(nth, harms);
                let is_done = damaged.adopt(options, Some(stop_after));
                if !is_done {
                    assert!(damaged.adopt(options, None), "{harms:?} {stop_after}");
                }
                // The power may have gone before the cache knew that its blocks are written back.
                damaged.by(UNGUARDED).life(async |cache| write_back(&cache).await).unwrap();
                let (found, wanted) = (all_of_the_origin(&damaged.fixture), damaged.adopted());
                let differs = (0..found.len()).find(|at| found[*at] != wanted[*at]);
                assert_eq!(differs, None, "{harms:?} {options} {stop_after}");
                if is_done {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_tool_learns_of_the_use_before_it_writes() {
    each_harm(|nth, harms| {
        let damaged = Damaged::new(nth, harms);
        assert!(use_of(&damaged).is_some_and(|how| how.contains("was used, or restored")));
        assert!(all_of_the_origin(&damaged.fixture) == damaged.raw);
    });
    assert_eq!(use_of(&Damaged::new(0, [Harm::Nothing; 2])), None);
}

fn use_of(damaged: &Damaged) -> Option<String> {
    let fixture = &damaged.fixture;
    let (origin, cache) = (fixture.leaf(fixture.origin), fixture.leaf(fixture.cache));
    let machine = Machine::boot(&fixture.world, 1);
    let found = machine.block_on(async move {
        let report = probe(cache.clone(), Sector(0), Depth::Metadata).await.unwrap();
        report.find_use(Sector(0), &*origin, &*cache).await.unwrap()
    });
    machine.kill();
    found.unwrap()
}

/// The power goes while a slot is written: the other one counts, and nobody has to say so.
#[test]
fn a_torn_slot_is_no_use_of_the_origin() {
    let damaged = Damaged::new(0, [Harm::Nothing; 2]);
    let at = damaged.range.slot_bytes() as u64 + 4096;
    let (origin, torn) = (damaged.fixture.origin, [0xa5; 512]);
    damaged.fixture.world.borrow_mut().poke(origin, Sector::from_bytes(at), &torn);
    damaged.by(UNGUARDED).life(async |cache| write_back(&cache).await).unwrap();
    let mut wanted = damaged.clean.clone();
    for block in DIRTY {
        wanted[block as usize * BLOCK..][..BLOCK].copy_from_slice(&plain(block, 1));
    }
    assert!(all_of_the_origin(&damaged.fixture) == wanted);
}

/// A device that is made by force without its cache shows what there is.
#[test]
fn a_damaged_origin_is_shown_without_its_cache() {
    let damaged = Damaged::new(0, [Harm::Image, Harm::Image]);
    let fixture = &damaged.fixture;
    let (origin, config) = (fixture.leaf(fixture.origin), fixture.config.clone());
    let stale = StaleOrigin::new("wc", config, "cache", origin, fixture.sectors).unwrap();
    let machine = Machine::boot(&fixture.world, 1);
    let read = machine.block_on(async move { stale.clone().resume().await });
    machine.kill();
    read.unwrap().unwrap();
    assert!(all_of_the_origin(fixture) == damaged.raw);
}

#[test]
fn the_rest_of_a_guard_that_is_left_there_is_found() {
    let damaged = Damaged::new(0, [Harm::Image, Harm::Image]);
    let mut fixture = damaged.by(&format!("{UNGUARDED} adopt_origin"));
    fixture.config.plant(Fault::GuardRemainsKept);
    fixture.life(async |cache| write_back(&cache).await).unwrap();
    let found = all_of_the_origin(&fixture);
    assert!(found != damaged.adopted(), "the planted fault does nothing");
    assert!(GuardSlot::owner(&found).is_some());
}
