// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard of an origin whose cache is in parts: one for all of them, on the core of the device.
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, CoreId, Sector, Target};
use format::GUARD_TAIL_BYTES;
use sim::Machine;
use writecache::{Contents, Depth, WriteCache, find_guard, probe, restore_origin};

use crate::common::spread::{self, number};
use crate::common::{BLOCK, BLOCK_SECTORS, Fixture, at, say};
use crate::guard::{
    BLOCKS, GUARDED, MAGICS, MANUAL, TAIL, UNGUARDED, expect_magics, expect_plain, formatted,
    magics_shown, plain, put_plain, with_options, write_back,
};

/// Blocks of a chunk: both parts have some of each range.
const CHUNK: u64 = 4;

/// An origin of superblocks, and a blank cache device for two parts.
fn in_parts(options: &str) -> Fixture {
    by(&formatted(MANUAL), &format!("{options} parts 2"))
}

/// The same cache by another table line.
fn by(fixture: &Fixture, options: &str) -> Fixture {
    let mut fixture = with_options(fixture, options);
    fixture.config.set_chunk(Sector(CHUNK * BLOCK_SECTORS));
    fixture
}

/// One life with the parts on `cores`, where disks are lent, or all requests go by core 0.
fn life_on<T: 'static>(
    fixture: &Fixture,
    cores: &[u16],
    is_lent: bool,
    work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
) -> T {
    let machine = Machine::boot(&fixture.world, 3);
    let target = fixture.target();
    let share = match is_lent {
        true => spread::share(&fixture.world, [fixture.origin, fixture.cache]),
        false => spread::share_nothing(),
    };
    target.place_parts(cores.iter().map(|core| CoreId(*core)).collect(), share);
    let done = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        work(target).await
    });
    machine.kill();
    done.unwrap()
}

fn all_of_the_origin(fixture: &Fixture) -> Vec<u8> {
    fixture.peek(fixture.origin, 0, BLOCKS as usize * BLOCK)
}

#[test]
fn parts_on_any_core_share_the_guard_of_their_origin() {
    for (cores, is_lent) in
        [(&[0, 0][..], true), (&[0, 1], true), (&[1, 2], true), (&[2, 0], true), (&[1, 2], false)]
    {
        let fixture = in_parts(GUARDED);
        let before = all_of_the_origin(&fixture);
        let inner = fixture.clone();
        life_on(&fixture, cores, is_lent, async move |cache| {
            assert_eq!(number(&cache, "guarded_ranges").await, 2);
            assert_eq!(magics_shown(&inner), 0);
            expect_magics(&*cache).await;
        });
        assert_eq!(magics_shown(&fixture), 0, "a shutdown does not give the origin back");
        let marks = [0, 1].map(|part| fixture.superblock_of(part).guards_origin);
        assert_eq!(marks, [true, false]);
        let unguarded = by(&fixture, UNGUARDED);
        life_on(&unguarded, cores, is_lent, async |cache| expect_magics(&*cache).await);
        assert!(all_of_the_origin(&fixture) == before);
        assert!(!fixture.superblock_of(0).guards_origin);
        life_on(&fixture, cores, is_lent, async |cache| {
            for version in 1..4 {
                put_plain(&*cache, 0..20, version).await;
                put_plain(&*cache, TAIL - 2..BLOCKS, version).await;
                write_back(&cache).await;
                expect_plain(&*cache, 0..20, version).await;
                expect_plain(&*cache, TAIL - 2..BLOCKS, version).await;
            }
            assert_eq!(number(&cache, "guarded_ranges").await, 2);
        });
        let raw = |block: u64| fixture.origin_block(block);
        assert!(raw(0) != plain(0, 3) && raw(17) != plain(17, 3) && raw(TAIL) != plain(TAIL, 3));
        assert!(raw(18) == plain(18, 3) && raw(TAIL - 1) == plain(TAIL - 1, 3));
        life_on(&unguarded, cores, is_lent, async |_| ());
        for block in (0..20).chain(TAIL - 2..BLOCKS) {
            assert!(raw(block) == plain(block, 3), "{cores:?}: block {block}");
        }
    }
}

#[test]
fn what_is_not_guarded_is_reached_from_the_core_of_its_part() {
    let fixture = in_parts(GUARDED);
    let world = fixture.world.clone();
    life_on(&fixture, &[1, 2], true, async move |cache| {
        let requests = || [0, 1, 2].map(|core| world.borrow().requests_of(CoreId(core)));
        let cost = async |block: u64| {
            let before = requests();
            let buf = Buf::zeroed(BLOCK);
            let all = buf.all().into();
            reactor::read(&*cache, Class::Foreground, at(block), all).await.unwrap();
            let after = requests();
            [0, 1, 2].map(|n| after[n] - before[n])
        };
        assert_eq!(cost(8 * CHUNK).await, [0, 1, 0], "a block of part 0");
        assert_eq!(cost(9 * CHUNK).await, [0, 0, 1], "a block of part 1");
        assert_eq!(cost(0).await, [0, 0, 0], "a guarded one: core 0 has it in memory");
    });
}

#[test]
fn a_used_origin_is_refused_by_all_parts() {
    let fixture = in_parts(GUARDED);
    fixture.life(async |cache| put_plain(&*cache, 5..6, 1).await).unwrap();
    let sector = vec![0xaa; 4096];
    fixture.world.borrow_mut().poke(fixture.origin, Sector(0), &sector);
    let image = fixture.image();
    let refusal = fixture.refusal();
    assert!(refusal.contains("it was used, or restored, without its cache"), "{refusal}");
    assert!(fixture.image() == image && fixture.peek(fixture.origin, 0, 4096) == sector);
    let adopts = by(&fixture, &format!("{GUARDED} adopt_origin"));
    adopts.life(async |cache| assert_eq!(number(&cache, "guarded_ranges").await, 2)).unwrap();
    assert_eq!(magics_shown(&fixture), 0);
}

#[test]
fn a_new_cache_in_parts_refuses_the_origin_of_another() {
    let fixture = formatted(GUARDED);
    fixture.life(async |_| ()).unwrap();
    let blank = vec![0; fixture.image().len()];
    fixture.world.borrow_mut().poke(fixture.cache, Sector(0), &blank);
    for options in [MANUAL, UNGUARDED, GUARDED] {
        let refusal = by(&fixture, &format!("{options} parts 2")).refusal();
        assert!(refusal.contains("guards it"), "{refusal}");
        assert!(fixture.image() == blank, "nothing was changed");
    }
}

#[test]
fn an_origin_of_parts_comes_back_without_its_cache() {
    let fixture = in_parts(GUARDED);
    fixture
        .life(async |cache| {
            put_plain(&*cache, 3..19, 1).await;
            put_plain(&*cache, TAIL..BLOCKS - 1, 1).await;
            write_back(&cache).await;
        })
        .unwrap();
    let (origin, cache) = (fixture.leaf(fixture.origin), fixture.leaf(fixture.cache));
    let uuid = fixture.superblock().uuid;
    let machine = Machine::boot(&fixture.world, 1);
    let (guard, report) = machine
        .block_on(async move {
            let report = probe(cache, Sector(0), Depth::Metadata).await.unwrap();
            let found = find_guard(&*origin).await.unwrap().unwrap();
            assert_eq!(restore_origin(origin.clone()).await.unwrap(), found);
            expect_plain(&*origin, 3..19, 1).await;
            expect_plain(&*origin, TAIL..BLOCKS - 1, 1).await;
            (found, report)
        })
        .unwrap();
    machine.kill();
    assert!(report.guards_origin() && matches!(report.contents, Contents::Divided(_)));
    assert_eq!((guard.uuid, &*guard.cache), (uuid, "cache"));
    assert_eq!(guard.ranges, [0, fixture.sectors.0 - (GUARD_TAIL_BYTES / 512) as u64]);
    assert_eq!(magics_shown(&fixture), MAGICS.len() - 1, "one was written over");
    assert!(fixture.refusal().contains("it was used, or restored, without its cache"));
}

#[test]
fn a_released_origin_of_parts_is_guarded_again_at_a_resume() {
    let fixture = in_parts(GUARDED);
    let inner = fixture.clone();
    life_on(&fixture, &[1, 2], true, async move |cache| {
        put_plain(&*cache, 5..6, 1).await;
        cache.clone().release_origin().await.unwrap();
        assert_eq!(number(&cache, "guarded_ranges").await, 0);
        assert_eq!(magics_shown(&inner), MAGICS.len());
        assert!(inner.origin_block(5) == plain(5, 1));
        cache.clone().suspend().await.unwrap();
        cache.clone().resume().await.unwrap();
        assert_eq!((number(&cache, "guarded_ranges").await, magics_shown(&inner)), (2, 0));
        expect_magics(&*cache).await;
        say(&cache, "flush").await.unwrap();
    });
}

/// What lies behind the guard is not zeroes because its slots are.
#[test]
fn parts_see_no_zeroes_in_what_a_guard_hides() {
    let fixture = in_parts(GUARDED);
    fixture
        .life(async |cache| {
            put_plain(&*cache, 0..18, 1).await;
            write_back(&cache).await;
            let runs = cache.zero_runs(Sector::ZERO, at(18)).await;
            assert_eq!(runs[..], []);
        })
        .unwrap();
}
