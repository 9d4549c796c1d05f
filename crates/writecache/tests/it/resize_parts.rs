// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache in parts that grows while it is in use, and one that is made smaller: what it does to
//! the cache device, when it is refused, and what is there after every power cut.
use block::{Class, Error, Sector, Target};
use format::{ADDED_AREAS_MAX, Superblock, UNIT};
use sim::{Faults, Machine, PowerCut, World, WorldRef};
use writecache::{Contents, Depth, Fault};

use crate::common::{
    BLOCK, BLOCK_SECTORS, Fixture, at, expect, fill, flush, get, number, pattern, put, say, suspend,
};
use crate::grow::Growing;

const SMALL: u64 = 1 << 20;
const LARGE: u64 = 3 << 20;

/// A cache in parts, with chunks of four blocks, on a disk of so many bytes.
fn divided(within: Option<(WorldRef, u64)>, disk: u64, options: &str) -> Growing {
    let mut fixture = match within {
        Some((world, seed)) => Fixture::within(world, seed, 2048, disk / 1024, options),
        None => Fixture::new(2048, disk / 1024, options),
    };
    fixture.config.set_chunk(Sector(4 * BLOCK_SECTORS));
    Growing::of(fixture)
}

/// What a tool finds on the device, which must be sound. Returns the notes.
fn notes(growing: &Growing) -> Vec<String> {
    let machine = Machine::boot(&growing.fixture.world, 1);
    let device = growing.target().components()[1].device.clone();
    let report = machine.block_on(writecache::probe(device, Sector::ZERO, Depth::Data));
    machine.kill();
    let report = report.unwrap().unwrap();
    assert!(matches!(report.contents, Contents::Divided(_)), "{:?}", report.contents);
    assert!(report.damage.is_empty() && report.occupancy().is_some(), "{:?}", report.damage);
    report.notes
}

fn superblock_of(growing: &Growing, part: u64) -> Superblock {
    growing.fixture.superblock_of(part)
}

#[test]
fn a_cache_in_parts_takes_the_space_of_its_device() {
    let growing = divided(None, LARGE, "parts 2");
    let size = growing.size.clone();
    let after = growing
        .life(async move |cache| {
            fill(&*cache, 0..100, 1).await;
            let before = number(&cache, "total_blocks");
            assert_eq!(say(&cache, "grow").await.unwrap(), format!("{before} {before} {BLOCK}"));
            size.set(Sector::from_bytes(LARGE));
            let answer = say(&cache, "grow").await.unwrap();
            let after = number(&cache, "total_blocks");
            assert_eq!(answer, format!("{before} {after} {BLOCK}"));
            assert!(after > before + 400, "{before} blocks, {after} now");
            assert_eq!(say(&cache, "grow").await.unwrap(), format!("{after} {after} {BLOCK}"));
            expect(&*cache, 0..100, 1).await;
            // More than it had room for before.
            fill(&*cache, 0..after / 2, 2).await;
            flush(&*cache).await;
            expect(&*cache, 0..after / 2, 2).await;
            cache.check_all().await;
            after
        })
        .unwrap();
    let superblocks = [0, 1].map(|part| superblock_of(&growing, part));
    assert_eq!(superblocks[0].areas.added, [2048]);
    assert_eq!(superblocks.clone().map(|s| u64::from(s.slots)).iter().sum::<u64>(), after);
    for superblock in superblocks {
        assert_eq!((superblock.version(), superblock.part.unwrap().area_sectors), (6, 1024));
        assert!(superblock.geometry().end_bytes() > LARGE / 2 - UNIT as u64);
    }
    assert_eq!(notes(&growing), Vec::<String>::new());
    growing.life(async move |cache| expect(&*cache, 0..after / 2, 2).await).unwrap();
    growing.set_size(SMALL);
    let refused = growing.life(async |_| ()).unwrap_err().chain();
    assert!(refused.contains("Memory area is too small"), "{refused}");
}

#[test]
fn a_cache_in_parts_grows_so_often_and_no_more() {
    const STEP: u64 = 1 << 20;
    let most = SMALL + (ADDED_AREAS_MAX as u64 + 1) * STEP;
    let growing = divided(None, most, "parts 2");
    let size = growing.size.clone();
    let (blocks, refused) = growing
        .life(async move |cache| {
            for version in 1..=ADDED_AREAS_MAX as u64 {
                let before = number(&cache, "total_blocks");
                size.set(size.get() + Sector::from_bytes(STEP));
                say(&cache, "grow").await.unwrap();
                let blocks = number(&cache, "total_blocks");
                assert!(blocks > before, "growth {version}: {blocks} blocks");
                fill(&*cache, 0..blocks / 4, version).await;
                flush(&*cache).await;
                cache.check_all().await;
            }
            let blocks = number(&cache, "total_blocks");
            size.set(size.get() + Sector::from_bytes(STEP));
            let refused = say(&cache, "grow").await.unwrap_err().chain();
            assert_eq!(number(&cache, "total_blocks"), blocks);
            (blocks, refused)
        })
        .unwrap();
    assert!(refused.contains("grows 32 times") && refused.contains("replace-cache"), "{refused}");
    assert_eq!(superblock_of(&growing, 0).areas.added, [STEP / 1024; ADDED_AREAS_MAX]);
    growing.life(async move |cache| expect(&*cache, 0..blocks / 4, 32).await).unwrap();
}

#[test]
fn growth_of_parts_that_is_not_possible_is_refused() {
    let growing = divided(None, LARGE, "parts 2");
    let size = growing.size.clone();
    growing
        .life(async move |cache| {
            fill(&*cache, 0..10, 1).await;
            let total = number(&cache, "total_blocks");
            for (bytes, why) in [
                (SMALL + (64 << 10), "each of 2 parts: cache device cache: it has 32.0 KiB more"),
                (SMALL / 2, "it has 512.0 KiB, its cache takes 1.0 MiB"),
            ] {
                size.set(Sector::from_bytes(bytes));
                let error = say(&cache, "grow").await.unwrap_err().chain();
                assert!(error.contains(why), "{error}");
            }
            assert_eq!(number(&cache, "total_blocks"), total);
            size.set(Sector::from_bytes(LARGE));
            suspend(&cache).await;
            let error = say(&cache, "grow").await.unwrap_err().chain();
            assert!(error.contains("suspended"), "{error}");
            cache.clone().resume().await.unwrap();
            expect(&*cache, 0..10, 1).await;
        })
        .unwrap();
    assert_eq!(superblock_of(&growing, 0).version(), 2);
}

/// The power goes so many steps after the beginning of a growth. Returns whether it did before the
/// end, what each part had got, and which parts had taken it.
fn cut_growth(seed: u64, step: u64) -> (bool, Vec<u64>, [bool; 2]) {
    let growing = divided(Some((World::new(seed), seed)), LARGE, "parts 2 autocommit_blocks 4");
    let is_cut = growing.grow_until_cut(step);
    notes(&growing);
    let life = growing.life(async move |cache| {
        expect(&*cache, 0..60, 1).await;
        cache.check_all().await;
    });
    life.unwrap();
    let [first, second] = [0, 1].map(|part| superblock_of(&growing, part));
    growing
        .life(async move |cache| {
            say(&cache, "grow").await.unwrap();
            fill(&*cache, 0..500, 2).await;
            flush(&*cache).await;
        })
        .unwrap();
    growing.life(async move |cache| expect(&*cache, 0..500, 2).await).unwrap();
    assert_eq!(superblock_of(&growing, 0).areas.added, [2048]);
    (is_cut, first.areas.added, [first.moved.is_some(), second.moved.is_some()])
}

/// The power goes at each step of a growth; what was flushed is there, and the next growth ends.
#[test]
fn every_power_cut_of_a_growth_of_parts_leaves_a_cache() {
    let (mut recorded, mut apart) = (0, 0);
    for seed in 1..=2 {
        let ended = (0..).step_by(4).find(|step| {
            let (is_cut, added, taken) = cut_growth(seed, *step);
            assert!(added == [2048] || taken == [false; 2], "{added:?} {taken:?}");
            recorded += u64::from(is_cut && taken == [false; 2] && !added.is_empty());
            apart += u64::from(taken[0] != taken[1]);
            !is_cut
        });
        assert!(ended > Some(30), "{ended:?} steps");
    }
    assert!(recorded > 3 && apart > 0, "{recorded} before any part grew, {apart} between them");
}

/// Blocks that are cached before a shrink; none of them lies in a guarded range.
const BLOCKS: std::ops::Range<u64> = 20..300;

/// A cache of so many bytes with blocks in all parts, which has grown from `from`.
fn large(within: Option<(WorldRef, u64)>, options: &str, from: u64, bytes: u64) -> Growing {
    let growing = divided(within, bytes, options);
    let size = growing.size.clone();
    growing.set_size(from);
    growing
        .life(async move |cache| {
            size.set(Sector::from_bytes(bytes));
            say(&cache, "grow").await.unwrap();
            fill(&*cache, BLOCKS, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    growing
}

#[test]
fn a_cache_in_parts_is_laid_out_anew_to_be_smaller() {
    for from in [SMALL, LARGE] {
        let growing = large(None, "parts 2", from, LARGE);
        let before = superblock_of(&growing, 0);
        let size = growing.size.clone();
        growing
            .life(async move |cache| {
                cache.clone().shrink(LARGE).await.unwrap();
                expect(&*cache, BLOCKS, 1).await;
                let blocks = number(&cache, "total_blocks");
                cache.clone().shrink(SMALL).await.unwrap();
                let after = number(&cache, "total_blocks");
                assert!(after > 50 && after < blocks - 400, "{blocks} blocks, {after} now");
                assert_eq!(number(&cache, "free_blocks"), after);
                expect(&*cache, BLOCKS, 1).await;
                suspend(&cache).await;
                size.set(Sector::from_bytes(SMALL));
            })
            .unwrap();
        let after = superblock_of(&growing, 0);
        assert_eq!((after.uuid, after.version()), (before.uuid, 2));
        assert_eq!(after.part.unwrap().area_sectors, 1024);
        assert!(
            BLOCKS.clone().all(|block| growing.fixture.origin_block(block) == pattern(block, 1))
        );
        // The device is cut: the cache reads and writes nothing beyond its end.
        growing
            .life(async |cache| {
                expect(&*cache, BLOCKS, 1).await;
                fill(&*cache, BLOCKS, 2).await;
                flush(&*cache).await;
                cache.check_all().await;
            })
            .unwrap();
        growing.life(async |cache| expect(&*cache, BLOCKS, 2).await).unwrap();
        assert_eq!(notes(&growing), Vec::<String>::new());
    }
}

#[test]
fn a_smaller_cache_in_parts_keeps_the_guard_of_its_origin() {
    let growing = large(None, "parts 2 guard_origin", SMALL, LARGE);
    growing
        .life(async |cache| {
            assert_eq!(number(&cache, "guarded_ranges"), 2);
            cache.clone().shrink(SMALL).await.unwrap();
            assert_eq!(number(&cache, "guarded_ranges"), 2);
            expect(&*cache, BLOCKS, 1).await;
            suspend(&cache).await;
        })
        .unwrap();
    assert!(growing.fixture.origin_block(0) != pattern(0, 1), "a slot of the guard is there");
    growing
        .life(async |cache| {
            expect(&*cache, BLOCKS, 1).await;
            cache.clone().release_origin().await.unwrap();
        })
        .unwrap();
    assert!(BLOCKS.clone().all(|block| growing.fixture.origin_block(block) == pattern(block, 1)));
}

#[test]
fn a_shrink_of_parts_that_is_not_possible_changes_nothing() {
    let growing = large(None, "parts 2", LARGE, LARGE);
    let (world, origin) = (growing.fixture.world.clone(), growing.fixture.origin);
    growing
        .life(async move |cache| {
            let total = number(&cache, "total_blocks");
            let error = cache.clone().shrink(64 << 10).await.unwrap_err().chain();
            assert!(error.contains("2 parts of 32768 bytes: cache device is 32 KiB"), "{error}");
            assert!(error.contains("needs at least"), "{error}");
            let failing = Faults { write_error_per_mille: 1000, ..Faults::default() };
            world.borrow_mut().set_faults(origin, failing);
            cache.clone().shrink(SMALL).await.unwrap_err();
            world.borrow_mut().set_faults(origin, Faults::default());
            assert_eq!(number(&cache, "total_blocks"), total);
            expect(&*cache, BLOCKS, 1).await;
            fill(&*cache, BLOCKS, 2).await;
            cache.clone().shrink(SMALL).await.unwrap();
            expect(&*cache, BLOCKS, 2).await;
        })
        .unwrap();
}

/// The power goes so many steps after the beginning of a shrink. Returns whether it did before the
/// end, and whether the parts were still to be written. New parts begin where old ones did: the
/// third where the second was if it has not grown.
fn cut_shrink(seed: u64, step: u64, fault: Option<Fault>) -> Result<(bool, bool), Error> {
    const HALF: u64 = 2 << 20;
    let from = if seed.is_multiple_of(2) { HALF } else { 2 * HALF };
    let mut growing = large(Some((World::new(seed), seed)), "parts 4", from, 2 * HALF);
    growing.fixture.config.plant(fault);
    let machine = Machine::boot(&growing.fixture.world, 1);
    let (target, world) = (growing.target(), growing.fixture.world.clone());
    let ended = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        let now = world.borrow().steps();
        world.borrow_mut().power_cut_at(Some(PowerCut::Step(now + step)));
        target.clone().shrink(HALF).await.unwrap();
    });
    growing.fixture.world.borrow_mut().power_cut_at(None);
    machine.power_cut();
    let found = if fault.is_some() { Vec::new() } else { notes(&growing) };
    let is_unmade = found.iter().any(|note| note.contains("a shrink was cut short"));
    let size = growing.size.clone();
    growing.life(async move |cache| {
        expect(&*cache, BLOCKS, 1).await;
        cache.check_all().await;
        cache.clone().shrink(HALF).await.unwrap();
        suspend(&cache).await;
        size.set(Sector::from_bytes(HALF));
    })?;
    growing.life(async move |cache| {
        expect(&*cache, BLOCKS, 1).await;
        fill(&*cache, BLOCKS, 2).await;
        flush(&*cache).await;
    })?;
    growing.life(async move |cache| expect(&*cache, BLOCKS, 2).await)?;
    Ok((ended.is_err(), is_unmade))
}

/// The power goes at each step of a shrink; nothing is lost, and the next opening goes on.
#[test]
fn every_power_cut_of_a_shrink_of_parts_leaves_a_cache() {
    let mut unmade = 0;
    for seed in 1..=2 {
        let ended = (0..).step_by(13).find(|step| {
            let (is_cut, is_unmade) = cut_shrink(seed, *step, None).unwrap();
            unmade += u64::from(is_unmade);
            !is_cut
        });
        assert!(ended > Some(50), "{ended:?} steps");
    }
    assert!(unmade > 2, "{unmade} of the cuts came while the parts were written");
}

/// Whether a cut of some seed shows the fault as an opening that is refused.
fn is_refused(fault: Fault) -> bool {
    (1..=6).any(|seed| {
        let mut steps = (0..).step_by(7).map(|step| cut_shrink(seed, step, Some(fault)));
        let ended = steps.find(|cut| cut.is_err() || cut.as_ref().is_ok_and(|(is_cut, _)| !is_cut));
        ended.is_some_and(|cut| cut.is_err())
    })
}

#[test]
fn parts_written_over_a_cache_that_counts_are_caught() {
    assert!(is_refused(Fault::LaidOutEarly));
}

#[test]
fn a_smaller_cache_that_counts_before_its_parts_is_caught() {
    assert!(is_refused(Fault::MadeEarly));
}

/// A discard that only the journal of a life before a shrink tells of; the lives since then had no
/// memory. Returns whether what was flushed after the shrink is read.
fn reads_what_followed_a_shrink(fault: Option<Fault>) -> bool {
    let options = "parts 2 high_watermark 100 low_watermark 100 autocommit_time 3600000";
    let mut growing = divided(None, LARGE, options);
    growing.set_size(LARGE);
    growing.fixture.config.set_journal_capacity(200);
    growing.fixture.config.plant(fault);
    let world = growing.fixture.world.clone();
    // So that the second opening has the journal: the second one after the shrink is that which
    // writes.
    growing
        .life(async |cache| {
            put(&*cache, 3, 0).await.unwrap();
            flush(&*cache).await;
        })
        .unwrap();
    world.borrow_mut().use_memory(Some(0));
    growing
        .life(async |cache| {
            put(&*cache, 3, 1).await.unwrap();
            let len = Sector(BLOCK_SECTORS);
            reactor::discard(&*cache, Class::Normal, at(3), len).await.unwrap();
        })
        .unwrap();
    world.borrow_mut().use_memory(None);
    let size = growing.size.clone();
    growing
        .life(async move |cache| {
            cache.clone().shrink(SMALL).await.unwrap();
            suspend(&cache).await;
            size.set(Sector::from_bytes(SMALL));
        })
        .unwrap();
    growing
        .life(async |cache| {
            put(&*cache, 3, 2).await.unwrap();
            flush(&*cache).await;
        })
        .unwrap();
    world.borrow_mut().use_memory(Some(0));
    growing.life(async |cache| get(&*cache, 3).await.unwrap()).unwrap() == pattern(3, 2)
}

/// A journal of before counts again where the new logs count their openings from 1 on (WC-PS3).
#[test]
fn openings_that_are_counted_anew_after_a_shrink_are_caught() {
    assert!(reads_what_followed_a_shrink(None));
    assert!(!reads_what_followed_a_shrink(Some(Fault::IncarnationForgotten)));
}
