// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard of an origin: what others see of it, what clients see, and who may use it.
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector, Target};
use format::{GUARD_HEAD_BYTES, GUARD_TAIL_BYTES, GuardRange, GuardSlot};
use sim::{HoleFinder, Machine};
use writecache::{
    CacheEvent, Config, StaleOrigin, UnguardedReason, WriteCache, find_guard, restore_origin,
};

use crate::common::faulty_cache::life;
use crate::common::{BLOCK, Fixture, at, config, expect, fill, flush, number, say};

/// Nothing is committed or written back unless it is asked for.
pub(crate) const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
pub(crate) const GUARDED: &str =
    "high_watermark 100 low_watermark 100 autocommit_time 3600000 guard_origin";
pub(crate) const BLOCKS: u64 = 256;
/// A guard that the cache has is taken away.
pub(crate) const UNGUARDED: &str =
    "high_watermark 100 low_watermark 100 autocommit_time 3600000 no_guard";
/// The first block of the range at the end.
pub(crate) const TAIL: u64 = BLOCKS - (GUARD_TAIL_BYTES / BLOCK) as u64;
/// Places of well-known superblocks, and what lies there.
pub(crate) const MAGICS: [(usize, &[u8]); 7] = [
    (0, b"XFSB"),
    (512, b"EFI PART"),
    (1080, &[0x53, 0xef]),
    (4086, b"SWAPSPACE2"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    (0x1_0040, b"_BHRfS_M"),
    (BLOCKS as usize * BLOCK - 512, b"EFI PART"),
];

/// A device of superblocks, as good as empty.
pub(crate) fn formatted(options: &str) -> Fixture {
    let fixture = Fixture::new(BLOCKS, 1024, options);
    for (offset, magic) in MAGICS {
        let sector = Sector((offset / 512) as u64);
        let mut data = vec![0; 512];
        fixture.world.borrow().peek(fixture.origin, sector, &mut data);
        data[offset % 512..][..magic.len()].copy_from_slice(magic);
        fixture.world.borrow_mut().poke(fixture.origin, sector, &data);
    }
    fixture
}

pub(crate) fn with_options(fixture: &Fixture, options: &str) -> Fixture {
    Fixture { config: config(4096, options), ..fixture.clone() }
}

/// The magics that are at their places on the origin.
pub(crate) fn magics_shown(fixture: &Fixture) -> usize {
    let is_shown = |(offset, magic): &(usize, &[u8])| {
        let sector = fixture.peek(fixture.origin, (offset / 512 * 512) as u64, 512);
        sector[offset % 512..].starts_with(magic)
    };
    MAGICS.iter().filter(|magic| is_shown(magic)).count()
}

async fn read_bytes(device: &dyn BlockDevice, offset: usize, len: usize) -> Vec<u8> {
    let (first, end) = (offset / 512, (offset + len).div_ceil(512));
    let buf = Buf::zeroed((end - first) * 512);
    let at = Sector(first as u64);
    reactor::read(device, Class::Foreground, at, buf.all().into()).await.unwrap();
    buf.read(|bytes| bytes[offset % 512..][..len].to_vec())
}

pub(crate) async fn expect_magics(device: &dyn BlockDevice) {
    for (offset, magic) in MAGICS {
        assert_eq!(read_bytes(device, offset, magic.len()).await, magic, "offset {offset}");
    }
}

/// A block that compresses well.
pub(crate) fn plain(block: u64, version: u64) -> Vec<u8> {
    let word = (block << 32 | version).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

pub(crate) async fn put_plain(
    device: &dyn BlockDevice,
    blocks: std::ops::Range<u64>,
    version: u64,
) {
    for block in blocks {
        let data = Buf::copy_of(&plain(block, version));
        reactor::write(device, Flags::empty(), Class::Normal, at(block), data.into())
            .await
            .unwrap();
    }
}

pub(crate) async fn expect_plain(
    device: &dyn BlockDevice,
    blocks: std::ops::Range<u64>,
    version: u64,
) {
    for block in blocks {
        let found = read_bytes(device, block as usize * BLOCK, BLOCK).await;
        assert!(found == plain(block, version), "block {block} is not version {version}");
    }
}

pub(crate) async fn write_back(cache: &Rc<WriteCache>) {
    say(cache, "flush").await.unwrap();
}

#[test]
fn a_guarded_origin_shows_no_superblock_but_to_clients() {
    let fixture = formatted(GUARDED);
    assert_eq!(magics_shown(&fixture), MAGICS.len());
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            assert_eq!(number(&cache, "guarded_ranges"), 2);
            assert_eq!(magics_shown(&inner), 0);
            expect_magics(&*cache).await;
        })
        .unwrap();
    assert_eq!(magics_shown(&fixture), 0, "a shutdown does not give the origin back");
    assert!(fixture.superblock().guards_origin);
    fixture.life(async |cache| expect_magics(&*cache).await).unwrap();
}

#[test]
fn an_origin_is_as_before_with_no_guard() {
    let fixture = formatted(GUARDED);
    let before = fixture.peek(fixture.origin, 0, BLOCKS as usize * BLOCK);
    fixture.life(async |_| ()).unwrap();
    let without = with_options(&fixture, UNGUARDED);
    without.life(async |cache| assert!(cache.attribute("guarded_ranges").is_ok())).unwrap();
    assert!(fixture.peek(fixture.origin, 0, BLOCKS as usize * BLOCK) == before);
    assert!(!fixture.superblock().guards_origin);
}

#[test]
fn a_guard_stays_where_the_table_does_not_say() {
    let fixture = formatted(GUARDED);
    fixture.life(async |_| ()).unwrap();
    let silent = with_options(&fixture, MANUAL);
    silent.life(async |cache| assert_eq!(number(&cache, "guarded_ranges"), 2)).unwrap();
    assert_eq!((magics_shown(&fixture), fixture.superblock().guards_origin), (0, true));
    with_options(&fixture, UNGUARDED).life(async |_| ()).unwrap();
    silent.life(async |cache| assert_eq!(number(&cache, "guarded_ranges"), 0)).unwrap();
    assert_eq!((magics_shown(&fixture), fixture.superblock().guards_origin), (MAGICS.len(), false));
}

/// Opens a new cache whose table does not ask, where a new cache has a guard by default.
fn is_guarded_by_default(options: &str) -> bool {
    let mut fixture = formatted(options);
    fixture.config.guard.is_default = true;
    fixture.life(async |_| ()).unwrap();
    fixture.superblock().guards_origin
}

#[test]
fn a_new_cache_may_guard_its_origin_by_default() {
    assert!(is_guarded_by_default(MANUAL));
    assert!(!is_guarded_by_default(UNGUARDED));
    // These origins are there to be used alone.
    assert!(!is_guarded_by_default(&format!("{MANUAL} ordered")));
    assert!(!is_guarded_by_default(&format!("{MANUAL} cache_mode writethrough")));
    let both = format!("{GUARDED} no_guard");
    let words: Vec<&str> = both.split_whitespace().collect();
    let line = [&["s", "origin", "cache", "4096", "8"], &words[..]].concat();
    let refused = Config::parse(&line).unwrap_err().to_string();
    assert!(refused.contains("guard_origin and no_guard exclude each other"), "{refused}");
}

#[test]
fn a_cache_from_before_has_no_guard_by_default() {
    let fixture = formatted(MANUAL);
    fixture.life(async |_| ()).unwrap();
    let mut again = fixture.clone();
    again.config.guard.is_default = true;
    again.life(async |_| ()).unwrap();
    assert_eq!((magics_shown(&fixture), fixture.superblock().guards_origin), (MAGICS.len(), false));
}

#[test]
fn what_clients_write_is_behind_the_guard_and_comes_back() {
    let fixture = formatted(GUARDED);
    fixture
        .life(async |cache| {
            for version in 1..5 {
                put_plain(&*cache, 0..20, version).await;
                put_plain(&*cache, TAIL - 2..BLOCKS, version).await;
                write_back(&cache).await;
                expect_plain(&*cache, 0..20, version).await;
                expect_plain(&*cache, TAIL - 2..BLOCKS, version).await;
            }
            assert_eq!(number(&cache, "guarded_ranges"), 2);
        })
        .unwrap();
    let raw = |block: u64| fixture.origin_block(block);
    assert!(raw(0) != plain(0, 4) && raw(17) != plain(17, 4) && raw(TAIL) != plain(TAIL, 4));
    assert!(raw(18) == plain(18, 4) && raw(TAIL - 1) == plain(TAIL - 1, 4));
    with_options(&fixture, UNGUARDED).life(async |_| ()).unwrap();
    for block in (0..20).chain(TAIL - 2..BLOCKS) {
        assert!(raw(block) == plain(block, 4), "block {block}");
    }
}

#[test]
fn a_range_that_does_not_compress_loses_its_guard() {
    let fixture = formatted(GUARDED);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        put_plain(&*w.cache, 0..4, 1).await;
        write_back(&w.cache).await;
        assert_eq!(number(&w.cache, "guarded_ranges"), 2);
        fill(&*w.cache, 1..18, 2).await;
        write_back(&w.cache).await;
        assert_eq!(number(&w.cache, "guarded_ranges"), 1);
        let event =
            CacheEvent::Unguarded { sector: Sector(0), why: UnguardedReason::Incompressible };
        assert_eq!(w.events.borrow()[..], [CacheEvent::Guarded, event]);
        expect_plain(&*w.cache, 0..1, 1).await;
        expect(&*w.cache, 1..18, 2).await;
        assert!(inner.origin_block(0) == plain(0, 1), "it has what clients see");
        fill(&*w.cache, 0..4, 3).await;
        write_back(&w.cache).await;
    });
    // The tail has its guard still.
    fixture
        .life(async |cache| {
            expect(&*cache, 0..4, 3).await;
            assert_eq!(number(&cache, "guarded_ranges"), 1);
        })
        .unwrap();
}

#[test]
fn small_origins_are_used_without_a_guard() {
    let fixture = Fixture::new(33, 1024, GUARDED);
    life(&fixture, async move |w| {
        let why = UnguardedReason::SmallOrigin;
        assert_eq!(w.events.borrow()[..], [CacheEvent::Unguarded { sector: Sector(0), why }]);
        fill(&*w.cache, 0..33, 1).await;
        write_back(&w.cache).await;
        expect(&*w.cache, 0..33, 1).await;
    });
}

#[test]
fn an_origin_that_was_used_is_refused_until_it_is_adopted() {
    let fixture = formatted(GUARDED);
    fixture.life(async |cache| put_plain(&*cache, 5..6, 1).await).unwrap();
    let sector = vec![0xaa; 4096];
    fixture.world.borrow_mut().poke(fixture.origin, Sector(0), &sector);
    let refusal = fixture.refusal();
    assert!(refusal.contains("it was used, or restored, without its cache"), "{refusal}");
    assert!(fixture.peek(fixture.origin, 0, 4096) == sector, "nothing was changed");
    let adopts = with_options(&fixture, &format!("{GUARDED} adopt_origin"));
    adopts
        .life(async move |cache| {
            assert_eq!(read_bytes(&*cache, 0, 4096).await, sector);
            assert_eq!(number(&cache, "guarded_ranges"), 2);
        })
        .unwrap();
    fixture.life(async |cache| assert_eq!(read_bytes(&*cache, 0, 512).await, [0xaa; 512])).unwrap();
}

#[test]
fn a_used_origin_that_is_taken_as_it_is_loses_what_it_held() {
    let mut fixture = formatted(GUARDED);
    fixture.life(async |_| ()).unwrap();
    fixture.world.borrow_mut().poke(fixture.origin, Sector(0), &[0xaa; 4096]);
    fixture.config.plant(writecache::Fault::UsedOriginTaken);
    fixture
        .life(async |cache| {
            let found = read_bytes(&*cache, 1080, 2).await;
            assert_ne!(found, [0x53, 0xef], "the planted fault does nothing");
        })
        .unwrap();
}

#[test]
fn a_file_system_made_over_the_rear_slot_alone_is_noticed() {
    let fixture = formatted(GUARDED);
    fixture.life(async |_| ()).unwrap();
    let half = Sector((GUARD_HEAD_BYTES / 2 / 512) as u64);
    fixture.world.borrow_mut().poke(fixture.origin, half, &[0xbb; 4096]);
    assert!(fixture.refusal().contains("it was used, or restored"), "{}", fixture.refusal());
}

#[test]
fn another_cache_refuses_the_origin() {
    let fixture = formatted(GUARDED);
    fixture.life(async |_| ()).unwrap();
    let other = Fixture::seeded(2, 8, 1024, MANUAL);
    let blank = other.image();
    for options in [MANUAL, UNGUARDED, GUARDED] {
        let taken = with_options(&fixture, options);
        fixture.world.borrow_mut().poke(fixture.cache, Sector(0), &blank);
        let refusal = taken.refusal();
        assert!(refusal.contains("guards it"), "{refusal}");
        assert!(taken.image() == blank, "nothing was changed");
    }
}

#[test]
fn an_origin_comes_back_without_its_cache_as_it_last_was() {
    let fixture = formatted(GUARDED);
    fixture
        .life(async |cache| {
            put_plain(&*cache, 3..19, 1).await;
            put_plain(&*cache, TAIL..BLOCKS - 1, 1).await;
            write_back(&cache).await;
            put_plain(&*cache, 3..4, 2).await;
            flush(&*cache).await;
        })
        .unwrap();
    let origin = fixture.leaf(fixture.origin);
    let uuid = fixture.superblock().uuid;
    let machine = Machine::boot(&fixture.world, 1);
    let guard = machine.block_on(async move {
        let found = find_guard(&*origin).await.unwrap().unwrap();
        assert_eq!(restore_origin(origin.clone()).await.unwrap(), found);
        assert_eq!(find_guard(&*origin).await.unwrap(), None);
        expect_plain(&*origin, 3..19, 1).await;
        expect_plain(&*origin, TAIL..BLOCKS - 1, 1).await;
        let again = restore_origin(origin).await.unwrap_err().chain();
        assert!(again.contains("no write cache guards it"), "{again}");
        found
    });
    machine.kill();
    let guard = guard.unwrap();
    assert_eq!((guard.uuid, &*guard.cache), (uuid, "cache"));
    assert_eq!(guard.ranges, [0, fixture.sectors.0 - (GUARD_TAIL_BYTES / 512) as u64]);
    assert_eq!(magics_shown(&fixture), 6, "one was written over");
    assert!(fixture.refusal().contains("it was used, or restored, without its cache"));
}

#[test]
fn without_its_cache_device_a_guarded_origin_shows_what_it_has() {
    let fixture = formatted(GUARDED);
    fixture
        .life(async |cache| {
            put_plain(&*cache, 5..6, 1).await;
            write_back(&cache).await;
            put_plain(&*cache, 5..6, 2).await;
            flush(&*cache).await;
        })
        .unwrap();
    let before = fixture.peek(fixture.origin, 0, BLOCKS as usize * BLOCK);
    let (origin, config) = (fixture.leaf(fixture.origin), fixture.config.clone());
    let stale = StaleOrigin::new("wc", config, "cache", origin, fixture.sectors).unwrap();
    let machine = Machine::boot(&fixture.world, 1);
    let read = machine.block_on(async move {
        stale.clone().resume().await.unwrap();
        expect_magics(&*stale).await;
        expect_plain(&*stale, 5..6, 1).await;
    });
    machine.kill();
    read.unwrap();
    assert!(fixture.peek(fixture.origin, 0, BLOCKS as usize * BLOCK) == before);
    fixture.life(async |cache| expect_plain(&*cache, 5..6, 2).await).unwrap();
}

/// A slot is full of zeroes where clients see data.
#[test]
fn what_a_guard_hides_does_not_count_as_zeroes() {
    let fixture = formatted(GUARDED);
    let disk = fixture.world.borrow().leaf(fixture.origin);
    let origin = HoleFinder::over(&fixture.world, disk, || [Nanos(1), Nanos(1)]);
    let cache = fixture.leaf(fixture.cache);
    let config = fixture.config.clone();
    let cache = WriteCache::new("wc", config, origin, cache, fixture.sectors).unwrap();
    let machine = Machine::boot(&fixture.world, 1);
    let runs = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        put_plain(&*cache, 0..18, 1).await;
        put_plain(&*cache, TAIL..BLOCKS, 1).await;
        write_back(&cache).await;
        cache.zero_runs(Sector::ZERO, at(BLOCKS)).await
    });
    machine.kill();
    assert_eq!(runs.unwrap()[..], [(at(18), at(TAIL - 18))], "all but the two ranges");
}

#[test]
fn a_released_origin_is_guarded_again_at_the_next_resume() {
    let fixture = formatted(GUARDED);
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            put_plain(&*cache, 5..6, 1).await;
            cache.clone().release_origin().await.unwrap();
            assert_eq!(number(&cache, "guarded_ranges"), 0);
            assert_eq!(number(&cache, "clean_blocks") + number(&cache, "dirty_blocks"), 0);
            assert_eq!(magics_shown(&inner), MAGICS.len());
            assert!(inner.origin_block(5) == plain(5, 1));
            cache.clone().suspend().await.unwrap();
            cache.clone().resume().await.unwrap();
            assert_eq!((number(&cache, "guarded_ranges"), magics_shown(&inner)), (2, 0));
            expect_magics(&*cache).await;
        })
        .unwrap();
}

#[test]
fn a_longer_origin_is_guarded_at_its_new_end() {
    let mut fixture = formatted(GUARDED);
    fixture.sectors = Sector(100 * 8);
    fixture.life(async |_| ()).unwrap();
    let old = 100 * BLOCK - GUARD_TAIL_BYTES;
    assert!(GuardSlot::owner(&fixture.peek(fixture.origin, old as u64, BLOCK)).is_some());
    fixture.sectors = Sector(BLOCKS * 8);
    fixture.life(async |cache| expect_magics(&*cache).await).unwrap();
    assert_eq!(fixture.peek(fixture.origin, old as u64, BLOCK), [0; BLOCK]);
    let [_, tail] = GuardRange::of_origin(fixture.sectors.0).try_into().unwrap();
    assert!(GuardSlot::owner(&fixture.peek(fixture.origin, tail.start * 512, BLOCK)).is_some());
}

#[test]
fn zeroes_and_discards_into_a_range_stay_behind_the_guard() {
    let fixture = formatted(GUARDED);
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            put_plain(&*cache, 0..20, 1).await;
            write_back(&cache).await;
            let zeroed =
                reactor::write_zeroes(&*cache, Flags::empty(), Class::Normal, at(1), Sector(144));
            zeroed.await.unwrap();
            reactor::discard(&*cache, Class::Normal, at(TAIL - 1), Sector(32)).await.unwrap();
            write_back(&cache).await;
            assert_eq!(number(&cache, "guarded_ranges"), 2);
            expect_plain(&*cache, 0..1, 1).await;
            assert_eq!(read_bytes(&*cache, BLOCK, 18 * BLOCK).await, vec![0; 18 * BLOCK]);
            expect_plain(&*cache, 19..20, 1).await;
            assert_eq!(magics_shown(&inner), 0);
        })
        .unwrap();
}

#[test]
fn an_origin_that_refuses_slots_keeps_the_blocks_dirty() {
    let fixture = formatted(GUARDED);
    life(&fixture, async move |w| {
        put_plain(&*w.cache, 0..4, 1).await;
        w.origin.refuse(Op::Write, 0..18);
        let _ = say(&w.cache, "flush").await;
        assert_eq!(number(&w.cache, "dirty_blocks"), 4);
        expect_plain(&*w.cache, 0..4, 1).await;
        w.origin.repair();
        reactor::sleep(block::Nanos::from_millis(5000)).await;
        write_back(&w.cache).await;
        assert_eq!(number(&w.cache, "dirty_blocks"), 0);
        expect_plain(&*w.cache, 0..4, 1).await;
    });
}
