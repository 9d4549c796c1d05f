// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that is made smaller before its device is cut: what stays, when it is refused, and what
//! is there after every power cut.
use std::cell::Cell;
use std::rc::Rc;

use block::{Sector, Target};
use sim::{Machine, PowerCut, World};
use writecache::WriteCache;

use crate::common::growable::Growable;
use crate::common::{Fixture, expect, fill, flush, number, say, suspend};

const LARGE: u64 = 3 << 20;
const SMALL: u64 = 1 << 20;
const KIB: u64 = LARGE / 1024;

/// A fixture whose cache device is as long as `size` says.
struct Cuttable {
    fixture: Fixture,
    size: Rc<Cell<Sector>>,
}

impl Cuttable {
    fn of(fixture: Fixture) -> Cuttable {
        Cuttable { fixture, size: Rc::new(Cell::new(Sector::from_bytes(LARGE))) }
    }

    fn new(options: &str) -> Cuttable {
        Cuttable::of(Fixture::new(2048, KIB, options))
    }

    fn target(&self) -> Rc<WriteCache> {
        let Fixture { config, sectors, origin, cache, .. } = &self.fixture;
        let device = Growable::over(self.fixture.leaf(*cache), &self.size);
        let origin = self.fixture.leaf(*origin);
        WriteCache::new("wc", config.clone(), origin, device, *sectors).unwrap()
    }

    fn life<T: 'static>(&self, work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static) -> T {
        self.fixture.life_of(self.target(), work).unwrap()
    }

    fn refusal(&self, bytes: u64) -> String {
        self.life(async move |cache| {
            fill(&*cache, 0..10, 1).await;
            let total = number(&cache, "total_blocks");
            let refused = cache.clone().shrink(bytes).await.unwrap_err().chain();
            assert_eq!(number(&cache, "total_blocks"), total);
            expect(&*cache, 0..10, 1).await;
            refused
        })
    }
}

#[test]
fn a_cache_keeps_what_fits_and_writes_back_the_rest() {
    let cuttable = Cuttable::new("high_watermark 100 low_watermark 100 write_buffer 0");
    let before = cuttable.life(async |cache| {
        fill(&*cache, 0..100, 1).await;
        cache.clone().set_attribute("drain".into(), String::new()).await.unwrap();
        fill(&*cache, 100..400, 1).await;
        flush(&*cache).await;
        number(&cache, "total_blocks")
    });
    let after = cuttable.life(async |cache| {
        cache.clone().shrink(SMALL).await.unwrap();
        cache.check();
        let after = number(&cache, "total_blocks");
        assert_eq!(number(&cache, "dirty_blocks"), 0);
        let kept = number(&cache, "clean_blocks");
        assert!(kept == after, "{kept} of {after}: those of the slots that stay");
        expect(&*cache, 0..400, 1).await;
        suspend(&cache).await;
        after
    });
    assert!(after > 50 && after < before - 400, "{before} blocks, {after} now");
    let geometry = cuttable.fixture.geometry();
    assert!(u64::from(geometry.slots) == after && geometry.end_bytes() <= SMALL);
    for block in 0..400 {
        assert!(cuttable.fixture.origin_block(block) == crate::common::pattern(block, 1));
    }
    // The device is cut: the cache reads and writes nothing beyond its end.
    cuttable.size.set(Sector::from_bytes(SMALL));
    cuttable.life(async |cache| {
        expect(&*cache, 0..400, 1).await;
        fill(&*cache, 0..400, 2).await;
        flush(&*cache).await;
        expect(&*cache, 0..400, 2).await;
        cache.check();
    });
    cuttable.life(async |cache| expect(&*cache, 0..400, 2).await);
}

#[test]
fn a_cache_that_fits_is_left_alone() {
    let cuttable = Cuttable::new("");
    cuttable.life(async |cache| fill(&*cache, 0..10, 1).await);
    let image = cuttable.fixture.superblock();
    cuttable.life(async |cache| cache.clone().shrink(LARGE).await.unwrap());
    assert_eq!(cuttable.fixture.superblock(), image);
}

#[test]
fn a_cache_shrinks_and_grows_in_turn() {
    let cuttable = Cuttable::new("");
    let mut version = 1;
    cuttable.life(async |cache| {
        fill(&*cache, 0..200, 1).await;
        flush(&*cache).await;
    });
    for kib in [2500, 1200, 3000, 900, 1100, 800, 2000, 750] {
        let size = cuttable.size.clone();
        version += 1;
        cuttable.life(async move |cache| {
            cache.clone().shrink(kib << 10).await.unwrap();
            expect(&*cache, 0..200, version - 1).await;
            suspend(&cache).await;
            size.set(Sector::from_bytes(kib << 10));
            cache.clone().resume().await.unwrap();
            say(&cache, "grow").await.ok();
            fill(&*cache, 0..200, version).await;
            flush(&*cache).await;
            cache.check();
        });
        assert!(cuttable.fixture.geometry().end_bytes() <= kib << 10);
    }
    cuttable.life(async move |cache| expect(&*cache, 0..200, version).await);
}

#[test]
fn a_shrink_that_is_not_possible_is_refused() {
    let error = Cuttable::new("").refusal(64 << 10);
    assert!(error.contains("cache device is 64 KiB, needs at least"), "{error}");
    assert!(error.contains("nothing was changed"), "{error}");
    let error = Cuttable::new("format dm").refusal(SMALL);
    assert!(error.contains("a cache of the kernel's format can't shrink"), "{error}");
}

/// `grow` on a device that was cut first.
#[test]
fn a_device_cut_under_its_cache_is_reported() {
    let cuttable = Cuttable::new("");
    let size = cuttable.size.clone();
    let error = cuttable.life(async move |cache| {
        size.set(Sector::from_bytes(SMALL));
        let error = say(&cache, "grow").await.unwrap_err().chain();
        size.set(Sector::from_bytes(LARGE));
        error
    });
    assert!(error.contains("it has 1.0 MiB, its cache takes 3.0 MiB"), "{error}");
    assert!(error.contains("millpond shrink-cache"), "{error}");
}

/// The power goes so many steps after the beginning of a shrink. Returns whether it did before the
/// end, and whether the cache had shrunk.
fn cut_shrink(seed: u64, step: u64) -> (bool, bool) {
    let fixture = Fixture::within(World::new(seed), seed, 512, KIB, "autocommit_blocks 4");
    let cuttable = Cuttable::of(fixture);
    let machine = Machine::boot(&cuttable.fixture.world, 1);
    let (target, world) = (cuttable.target(), cuttable.fixture.world.clone());
    let ended = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        fill(&*target, 0..300, 1).await;
        flush(&*target).await;
        let now = world.borrow().steps();
        world.borrow_mut().power_cut_at(Some(PowerCut::Step(now + step)));
        target.clone().shrink(SMALL).await.unwrap();
    });
    cuttable.fixture.world.borrow_mut().power_cut_at(None);
    machine.power_cut();
    let is_taken = cuttable.fixture.geometry().moved.is_some();
    let size = cuttable.size.clone();
    cuttable.life(async move |cache| {
        expect(&*cache, 0..300, 1).await;
        cache.clone().shrink(SMALL).await.unwrap();
        suspend(&cache).await;
        size.set(Sector::from_bytes(SMALL));
    });
    cuttable.life(async move |cache| {
        expect(&*cache, 0..300, 1).await;
        fill(&*cache, 0..300, 2).await;
        flush(&*cache).await;
    });
    cuttable.life(async move |cache| expect(&*cache, 0..300, 2).await);
    (ended.is_err(), is_taken)
}

/// The power goes at each step of a shrink; nothing is lost, and the next one ends.
#[test]
fn every_power_cut_of_a_shrink_leaves_a_cache() {
    let mut took = 0;
    for seed in 1..=3 {
        let ended = (0..).step_by(5).find(|step| {
            let (is_cut, is_taken) = cut_shrink(seed, *step);
            took += u64::from(is_cut && is_taken);
            !is_cut
        });
        assert!(ended > Some(50), "{ended:?} steps");
    }
    assert!(took > 1, "{took} of the cuts came after the switch");
}
