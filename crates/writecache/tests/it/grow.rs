// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of a cache in use: what it does to the cache device, when it is refused, and what is
//! there after every power cut.
use std::cell::Cell;
use std::rc::Rc;

use block::{Error, Sector, Target};
use format::UNIT;
use sim::{Faults, Machine, PowerCut, World};
use writecache::{Fault, WriteCache};

use crate::common::growable::Growable;
use crate::common::{BLOCK, Fixture, expect, fill, flush, number, put, say, suspend};
use crate::read_cache::{READS, admitted, fill_origin, read};

/// Bytes of the cache device before, and after.
const SMALL: u64 = 1 << 20;
const LARGE: u64 = 3 << 20;
const KIB: u64 = LARGE / 1024;

/// A fixture whose cache device is as long as `size` says.
pub(crate) struct Growing {
    pub(crate) fixture: Fixture,
    pub(crate) size: Rc<Cell<Sector>>,
}

impl Growing {
    fn new(options: &str) -> Growing {
        Growing::of(Fixture::new(2048, KIB, options))
    }

    pub(crate) fn of(fixture: Fixture) -> Growing {
        Growing { fixture, size: Rc::new(Cell::new(Sector::from_bytes(SMALL))) }
    }

    fn device(&self) -> Rc<Growable> {
        Growable::over(self.fixture.leaf(self.fixture.cache), &self.size)
    }

    pub(crate) fn target(&self) -> Rc<WriteCache> {
        let Fixture { config, sectors, origin, .. } = &self.fixture;
        let origin = self.fixture.leaf(*origin);
        WriteCache::new("wc", config.clone(), origin, self.device(), *sectors).unwrap()
    }

    pub(crate) fn set_size(&self, bytes: u64) {
        self.size.set(Sector::from_bytes(bytes));
    }

    /// One life of the process, which a kill ends.
    pub(crate) fn life<T: 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
    ) -> Result<T, Error> {
        self.fixture.life_of(self.target(), work)
    }

    /// Fills blocks 0 to 80, of which the first 60 are flushed, and grows the cache to `LARGE`; the
    /// power goes so many steps after the beginning of the growth. Returns whether it went before
    /// the end.
    pub(crate) fn grow_until_cut(&self, step: u64) -> bool {
        let machine = Machine::boot(&self.fixture.world, 1);
        let (target, size) = (self.target(), self.size.clone());
        let world = self.fixture.world.clone();
        let ended = machine.block_on(async move {
            target.clone().resume().await.unwrap();
            fill(&*target, 0..60, 1).await;
            flush(&*target).await;
            fill(&*target, 60..80, 1).await;
            size.set(Sector::from_bytes(LARGE));
            let now = world.borrow().steps();
            world.borrow_mut().power_cut_at(Some(PowerCut::Step(now + step)));
            say(&target, "grow").await.unwrap();
        });
        self.fixture.world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        ended.is_err()
    }
}

#[test]
fn a_cache_in_use_takes_the_space_of_its_device() {
    let growing = Growing::new("");
    let size = growing.size.clone();
    let (before, after) = growing
        .life(async move |cache| {
            fill(&*cache, 0..100, 1).await;
            let before = number(&cache, "total_blocks");
            assert_eq!(say(&cache, "grow").await.unwrap(), format!("{before} {before} {BLOCK}"));
            size.set(Sector::from_bytes(LARGE));
            let answer = say(&cache, "grow").await.unwrap();
            let after = number(&cache, "total_blocks");
            assert_eq!(answer, format!("{before} {after} {BLOCK}"));
            assert_eq!(say(&cache, "grow").await.unwrap(), format!("{after} {after} {BLOCK}"));
            expect(&*cache, 0..100, 1).await;
            // More than it had room for before.
            fill(&*cache, 0..after / 2, 2).await;
            flush(&*cache).await;
            expect(&*cache, 0..after / 2, 2).await;
            cache.check();
            (before, after)
        })
        .unwrap();
    assert!(after > before + 400, "{before} blocks, {after} now");
    let geometry = growing.fixture.geometry();
    assert_eq!(u64::from(geometry.slots), after);
    assert!(geometry.moved.is_some() && geometry.end_bytes() > LARGE - UNIT as u64);
    growing.life(async move |cache| expect(&*cache, 0..after / 2, 2).await).unwrap();
    // And once more, over the metadata of before.
    growing.set_size(SMALL);
    let refused = growing.life(async |_| ()).unwrap_err().chain();
    assert!(refused.contains("Memory area is too small"), "{refused}");
    growing.set_size(LARGE);
}

/// What was kept free for them was a sixteenth of the small cache, and blocks that are read take no
/// slot before a sixteenth of the large one is free.
#[test]
fn blocks_that_are_read_enter_a_full_cache_that_has_grown() {
    let options = format!("{READS} sequential_read_cutoff 0");
    let growing = Growing::of(Fixture::new(6000, 16 << 10, &options));
    let size = growing.size.clone();
    growing
        .life(async move |cache| {
            fill_origin(&cache, 0..6000).await;
            size.set(Sector::from_bytes(16 << 20));
            say(&cache, "grow").await.unwrap();
            for first in [0, 2000] {
                for _ in 0..4 {
                    read(&cache, first..first + 2000, 1).await;
                }
            }
            let (slots, clean) = (number(&cache, "total_blocks"), number(&cache, "clean_blocks"));
            assert!(clean > slots * 3 / 4 && slots < 4000, "{clean} of {slots}");
            let before = admitted(&cache);
            for _ in 0..2 {
                read(&cache, 4000..6000, 1).await;
            }
            assert!(admitted(&cache) > before + 500, "{before}, {}", admitted(&cache));
        })
        .unwrap();
}

#[test]
fn a_cache_grows_again_and_again() {
    let growing = Growing::of(Fixture::new(4096, 16 << 10, ""));
    let size = growing.size.clone();
    let blocks = growing
        .life(async move |cache| {
            let mut version = 0;
            for mib in 2..16 {
                size.set(Sector::from_bytes(mib << 20));
                say(&cache, "grow").await.unwrap();
                version += 1;
                fill(&*cache, 0..number(&cache, "total_blocks") / 2, version).await;
                flush(&*cache).await;
                cache.check();
            }
            suspend(&cache).await;
            cache.clone().resume().await.unwrap();
            let blocks = number(&cache, "total_blocks");
            expect(&*cache, 0..blocks / 2, version).await;
            (blocks, version)
        })
        .unwrap();
    // Nothing but the first metadata is left unused.
    assert!(blocks.0 * BLOCK as u64 > (14 << 20) - (800 << 10), "{blocks:?}");
    growing
        .life(async move |cache| {
            expect(&*cache, 0..blocks.0 / 2, blocks.1).await;
            say(&cache, "flush").await.unwrap();
        })
        .unwrap();
    for block in [0, 1, blocks.0 / 2 - 1] {
        assert!(growing.fixture.origin_block(block) == crate::common::pattern(block, blocks.1));
    }
}

/// What can't grow says why, and stays as it is.
#[test]
fn growth_that_is_not_possible_is_refused() {
    let refusal = |growing: Growing, bytes: u64| {
        let size = growing.size.clone();
        let refused = growing.life(async move |cache| {
            fill(&*cache, 0..10, 1).await;
            let total = number(&cache, "total_blocks");
            size.set(Sector::from_bytes(bytes));
            let error = say(&cache, "grow").await.unwrap_err().chain();
            assert_eq!(number(&cache, "total_blocks"), total);
            expect(&*cache, 0..10, 1).await;
            error
        });
        refused.unwrap()
    };
    let error = refusal(Growing::new(""), SMALL + (64 << 10));
    assert!(error.contains("it has 64.0 KiB more than its cache uses"), "{error}");
    assert!(error.contains("KiB more are needed. Nothing was changed"), "{error}");
    let error = refusal(Growing::new("format dm"), LARGE);
    assert!(error.contains("a cache of the kernel's format can't grow"), "{error}");
}

#[test]
fn a_suspended_cache_does_not_grow() {
    let growing = Growing::new("");
    let size = growing.size.clone();
    let error = growing.life(async move |cache| {
        suspend(&cache).await;
        size.set(Sector::from_bytes(LARGE));
        say(&cache, "grow").await.unwrap_err().chain()
    });
    assert!(error.unwrap().contains("suspended"));
}

/// An error while the new space is written leaves the cache as it was.
#[test]
fn a_new_space_that_fails_is_not_taken() {
    let growing = Growing::new("");
    let (size, world, disk) =
        (growing.size.clone(), growing.fixture.world.clone(), growing.fixture.cache);
    growing
        .life(async move |cache| {
            fill(&*cache, 0..50, 1).await;
            flush(&*cache).await;
            let total = number(&cache, "total_blocks");
            size.set(Sector::from_bytes(LARGE));
            let failing = Faults { write_error_per_mille: 1000, ..Faults::default() };
            world.borrow_mut().set_faults(disk, failing);
            say(&cache, "grow").await.unwrap_err();
            world.borrow_mut().set_faults(disk, Faults::default());
            assert_eq!(number(&cache, "total_blocks"), total);
            fill(&*cache, 0..60, 2).await;
            flush(&*cache).await;
            say(&cache, "grow").await.unwrap();
            assert!(number(&cache, "total_blocks") > total);
            expect(&*cache, 0..60, 2).await;
            cache.check();
        })
        .unwrap();
    growing.life(async |cache| expect(&*cache, 0..60, 2).await).unwrap();
}

/// The power goes so many steps after the beginning of a growth. Returns whether it did before the
/// end, and whether the cache had grown.
fn cut_growth(seed: u64, step: u64) -> (bool, bool) {
    let fixture = Fixture::within(World::new(seed), seed, 512, KIB, "autocommit_blocks 4");
    let growing = Growing::of(fixture);
    let is_cut = growing.grow_until_cut(step);
    let is_taken = growing.fixture.geometry().moved.is_some();
    let life = growing.life(async move |cache| {
        expect(&*cache, 0..60, 1).await;
        say(&cache, "grow").await.unwrap();
        fill(&*cache, 0..500, 2).await;
        flush(&*cache).await;
    });
    life.unwrap();
    growing.life(async move |cache| expect(&*cache, 0..500, 2).await).unwrap();
    (is_cut, is_taken)
}

/// The power goes at each step of a growth; what was flushed is there, and the next growth ends.
#[test]
fn every_power_cut_of_a_growth_leaves_a_cache() {
    let mut took = 0;
    for seed in 1..=3 {
        let ended = (0..).step_by(3).find(|step| {
            let (is_cut, is_taken) = cut_growth(seed, *step);
            took += u64::from(is_cut && is_taken);
            !is_cut
        });
        assert!(ended > Some(30), "{ended:?} steps");
    }
    assert!(took > 3, "{took} of the cuts came after the switch");
}

/// A copy of a cache device from before a growth is restored to the larger device: behind its end
/// are records of the same cache, of a time that never was.
fn restored_after_growth(fault: Option<Fault>) -> Result<(), String> {
    let mut growing = Growing::new("");
    growing.fixture.config.plant(fault);
    let write = |version: u64, grows: bool| {
        async move |cache: Rc<WriteCache>| {
            if grows {
                say(&cache, "grow").await.unwrap();
            }
            for block in 0..8 {
                put(&*cache, block, version).await.unwrap();
                flush(&*cache).await;
            }
        }
    };
    growing.life(write(1, false)).unwrap();
    let image = growing.fixture.area(0, usize::try_from(SMALL).unwrap());
    growing.set_size(LARGE);
    growing.life(write(2, true)).unwrap();
    growing.fixture.poke_area(0, &image);
    growing.life(async |cache| say(&cache, "grow").await.map(drop)).unwrap().unwrap();
    let read = growing.life(async |cache| crate::common::get(&*cache, 3).await);
    let read = read.map_err(|e| e.chain())?.map_err(|status| status.to_string())?;
    match read == crate::common::pattern(3, 1) {
        true => Ok(()),
        false => Err("block 3 is not as it was restored".to_owned()),
    }
}

#[test]
fn remains_of_a_larger_cache_do_not_come_back() {
    restored_after_growth(None).unwrap();
    let found = restored_after_growth(Some(Fault::GrownLogNotBlanked));
    eprintln!("{found:?}");
    assert!(found.is_err());
}

/// Growth of an idle cache: no record follows its checkpoint. Then the log of the new layout has to
/// say that this opening has come (WC-GR7): a journal counts by that. Returns whether an
/// acknowledged write is there.
fn written_after_idle_growth(fault: Option<Fault>) -> bool {
    let options = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
    let mut growing = Growing::new(options);
    growing.fixture.config.set_journal_capacity(200);
    growing.fixture.config.plant(fault);
    growing.fixture.world.borrow_mut().share_memory();
    let size = growing.size.clone();
    growing
        .life(async move |cache| {
            fill(&*cache, 0..8, 1).await;
            flush(&*cache).await;
            size.set(Sector::from_bytes(LARGE));
            say(&cache, "grow").await.unwrap();
            put(&*cache, 3, 2).await.unwrap();
        })
        .unwrap();
    let read = growing.life(async |cache| crate::common::get(&*cache, 3).await.unwrap()).unwrap();
    read == crate::common::pattern(3, 2)
}

#[test]
fn what_an_idle_cache_acknowledges_after_growth_survives_a_kill() {
    assert!(written_after_idle_growth(None));
    assert!(!written_after_idle_growth(Some(Fault::GrownLogUnsaid)));
}
