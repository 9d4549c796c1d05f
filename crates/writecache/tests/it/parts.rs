// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A divided cache: where requests go, what parts have in common, what is reported for all of them,
//! and what is refused.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::spread::{self, number};
use crate::common::{
    BLOCK, BLOCK_SECTORS, Fixture, at, config, expect, fill, flush, get, pattern, put, say, suspend,
};
use block::{BlockDevice, Buf, Class, CoreId, Error, Flags, Sector, Status, Target};
use format::{Geometry, Superblock, UNIT};
use reactor::FileId;
use sim::model::Uniform;
use sim::{DiskSpec, Faults, Machine};
use writecache::{CacheEvent, Contents, Depth, Fault, WriteCache};

/// Blocks of a chunk in these tests.
const CHUNK: u64 = 4;
/// Writes only what it must.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// A cache of so many parts before 256 blocks.
fn fixture(parts: u8, options: &str) -> Fixture {
    let mut fixture =
        Fixture::new(256, 512 * u64::from(parts), &format!("parts {parts} {options}"));
    fixture.config.set_chunk(Sector(CHUNK * BLOCK_SECTORS));
    fixture
}

/// The same cache by another table line.
fn by(fixture: &Fixture, options: &str) -> Fixture {
    let mut config = config(4096, options);
    config.set_chunk(fixture.config.chunk());
    Fixture { config, ..fixture.clone() }
}

fn area_bytes(fixture: &Fixture) -> u64 {
    fixture.superblock().part.unwrap().area_sectors * 512
}

/// One life of a cache whose parts are on `cores`.
fn life_on<T: 'static>(
    fixture: &Fixture,
    cores: Vec<CoreId>,
    work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
) -> T {
    let count = cores.iter().map(|core| core.0 + 1).max().unwrap();
    let machine = Machine::boot(&fixture.world, count);
    let target = fixture.target();
    target.place_parts(cores, spread::share(&fixture.world, [fixture.origin, fixture.cache]));
    let done = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        work(target).await
    });
    machine.kill();
    done.unwrap()
}

#[test]
fn requests_of_different_chunks_cost_two_messages_each() {
    let fixture = fixture(2, MANUAL);
    let world = fixture.world.clone();
    life_on(&fixture, vec![CoreId(1), CoreId(2)], async move |cache| {
        let seen = || {
            let w = world.borrow();
            [
                w.messages(),
                w.requests_of(CoreId(0)),
                w.requests_of(CoreId(1)),
                w.requests_of(CoreId(2)),
            ]
        };
        let cost = async |work: &dyn Fn() -> block::LocalFuture<()>| {
            let before = seen();
            work().await;
            let after = seen();
            [0, 1, 2, 3].map(|n| after[n] - before[n])
        };
        let put = |block| {
            let cache = cache.clone();
            move || -> block::LocalFuture<()> {
                let cache = cache.clone();
                Box::pin(async move { put(&*cache, block, 1).await.unwrap() })
            }
        };
        // Messages; requests of cores 0, 1, 2.
        assert_eq!(cost(&put(0)).await, [2, 0, 1, 0], "a write of the first chunk");
        assert_eq!(cost(&put(CHUNK)).await, [2, 0, 0, 1], "of the second");
        assert_eq!(cost(&put(2 * CHUNK)).await, [2, 0, 1, 0], "of the third");
        let reader = cache.clone();
        let read = move || -> block::LocalFuture<()> {
            let reader = reader.clone();
            Box::pin(async move { assert_eq!(get(&*reader, CHUNK).await, Ok(pattern(CHUNK, 1))) })
        };
        assert_eq!(cost(&read).await, [2, 0, 0, 1], "a read of a cached block");
        let flusher = cache.clone();
        let flush = move || -> block::LocalFuture<()> {
            let flusher = flusher.clone();
            Box::pin(async move { flush(&*flusher).await })
        };
        // To both parts and back; a record of each; and from each to the flushes and back. How many
        // flushes those come to is chance: two at most.
        let [messages, flushes, first, second] = cost(&flush).await;
        assert_eq!((messages, first, second), (8, 1, 1), "a FLUSH");
        assert!((1..=2).contains(&flushes), "{flushes} flushes of the cache device");
        assert_eq!(cost(&flush).await, [4, 0, 0, 0], "a FLUSH with nothing new");
    });
}

#[test]
fn devices_that_are_not_lent_are_reached_by_core_0() {
    let fixture = fixture(2, "");
    let machine = Machine::boot(&fixture.world, 2);
    let target = fixture.target();
    target.place_parts(spread::cores(2), spread::share_nothing());
    let world = fixture.world.clone();
    let done = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        fill(&*target, 0..64, 1).await;
        say(&target, "flush").await.unwrap();
        expect(&*target, 0..64, 1).await;
        target.clone().suspend().await.unwrap();
        assert_eq!(world.borrow().requests_of(CoreId(1)), 0);
    });
    machine.kill();
    done.unwrap();
    assert!((0..64).all(|block| fixture.origin_block(block) == pattern(block, 1)));
}

#[test]
fn requests_longer_than_a_chunk_are_split_and_joined() {
    let fixture = fixture(3, MANUAL);
    life_on(&fixture, spread::cores(2), async |cache| {
        let data: Vec<u8> = (0..64).flat_map(|block| pattern(block, 7)).collect();
        let write =
            reactor::write(&*cache, Flags::FUA, Class::Normal, at(0), Buf::copy_of(&data).into());
        write.await.unwrap();
        let all = Buf::zeroed(64 * BLOCK);
        reactor::read(&*cache, Class::Foreground, at(0), all.all().into()).await.unwrap();
        assert!(all.read(|bytes| bytes == data));
        reactor::discard(&*cache, Class::Normal, at(1), at(30)).await.ok();
        reactor::write_zeroes(&*cache, Flags::empty(), Class::Normal, at(33), at(30))
            .await
            .unwrap();
        expect(&*cache, 0..1, 7).await;
        expect(&*cache, 31..33, 7).await;
        for block in 33..63 {
            assert_eq!(get(&*cache, block).await, Ok(vec![0; BLOCK]), "block {block}");
        }
        let whole = cache.limits().capacity;
        reactor::discard(&*cache, Class::Normal, Sector::ZERO, whole).await.unwrap();
        for (first, len) in [(at(1), whole), (Sector(u64::MAX), Sector(8))] {
            let refused = reactor::discard(&*cache, Class::Normal, first, len).await;
            assert_eq!(refused, Err(Status::Invalid), "{first}+{len}");
        }
    });
}

#[test]
fn status_and_attributes_are_those_of_all_parts() {
    let fixture = fixture(2, &format!("{MANUAL} writeback_jobs 10"));
    life_on(&fixture, spread::cores(2), async |cache| {
        // Blocks 2 to 9: the end of chunk 0, chunk 1, the beginning of chunk 2.
        fill(&*cache, 2..10, 1).await;
        fill(&*cache, 20..21, 1).await;
        flush(&*cache).await;
        get(&*cache, 2).await.unwrap();
        get(&*cache, 4).await.unwrap();
        assert_eq!(number(&cache, "dirty_blocks").await, 9);
        assert_eq!(number(&cache, "parts").await, 2);
        let fields = spread::fields(&cache).await;
        let (reads, hits, writes, flushes) = (fields[4], fields[5], fields[6], fields[12]);
        assert_eq!((fields[0], reads, hits, writes, flushes), (0, 2, 2, 9, 1));
        assert_eq!(fields[1], i64::try_from(number(&cache, "total_blocks").await).unwrap());
        let runs = cache.clone().dirty(Sector::ZERO, cache.limits().capacity).await.unwrap();
        assert_eq!(runs, [(at(2), at(8)), (at(20), at(1))]);
        let part = cache.clone().dirty(at(3), at(3)).await.unwrap();
        assert_eq!(part, [(at(3), at(3))]);
        cache.clone().set_attribute("gap_fill".into(), "0".into()).await.unwrap();
        assert!(
            cache.table().contains("writeback_jobs 10") && cache.table().contains("gap_fill 0")
        );
        say(&cache, "clear_stats").await.unwrap();
        assert_eq!(spread::fields(&cache).await[4..], [0; 10]);
        cache.clone().set_attribute("drain".into(), "rate=100000000".into()).await.unwrap();
        assert_eq!(number(&cache, "dirty_blocks").await, 0);
        let value = cache.clone().get_attribute("drain_state".into()).await.unwrap();
        assert_eq!(value, "idle");
        let e = say(&cache, "no").await.unwrap_err().to_string();
        assert!(e.starts_with("writecache: unknown message `no`"), "{e}");
        let e = cache.clone().get_attribute("no".into()).await.unwrap_err().to_string();
        assert!(e.contains("no attribute `no`"), "{e}");
        let e = cache.clone().set_attribute("parts".into(), "3".into()).await.unwrap_err();
        assert!(e.to_string().contains("load a new table"), "{e}");
        cache.clone().suspend().await.unwrap();
        assert!(say(&cache, "flush").await.is_err(), "suspended");
        cache.clone().resume().await.unwrap();
        say(&cache, "flush").await.unwrap();
    });
}

#[test]
fn another_number_of_parts_is_refused_with_both() {
    let whole = Fixture::small("");
    whole.life(async |cache| put(&*cache, 1, 1).await.unwrap()).unwrap();
    let before = whole.image();
    let said = by(&whole, "parts 2").refusal();
    assert!(said.contains("parts 2: the cache on cache has 1"), "{said}");
    assert_eq!(whole.image(), before);
    by(&whole, "parts 1").life(async |_| ()).unwrap();

    let divided = fixture(3, "");
    divided
        .life(async |cache| {
            fill(&*cache, 0..100, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    let before = divided.image();
    for other in ["parts 2", "parts 1", "parts 4"] {
        let said = by(&divided, other).refusal();
        assert!(said.contains(other) && said.contains("has 3"), "{said}");
    }
    for (options, why) in [("ordered", "ordered"), ("format dm", "Invalid magic")] {
        let said = by(&divided, options).refusal();
        assert!(said.contains(why), "{options}: {said}");
    }
    assert_eq!(divided.image(), before, "what is refused is left as it is");
    by(&divided, "").life(async |cache| expect(&*cache, 0..100, 1).await).unwrap();
}

#[test]
fn one_part_is_the_same_bytes_as_ever() {
    let image = |options| {
        let fixture = Fixture::small(options);
        fixture
            .life(async |cache| {
                fill(&*cache, 0..20, 1).await;
                flush(&*cache).await;
            })
            .unwrap();
        fixture.image()
    };
    assert!(image("") == image("parts 1"));
    let superblock = Superblock::decode(0, &image("parts 1")[..UNIT]).unwrap();
    assert_eq!(superblock.part, None);
}

#[test]
fn a_device_that_grows_keeps_its_divided_cache() {
    let mut fixture = fixture(2, "");
    fixture
        .life(async |cache| {
            fill(&*cache, 0..64, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    let part = fixture.superblock().part.unwrap();
    assert_eq!((part.nth, part.of, u64::from(part.chunk_sectors)), (0, 2, CHUNK * BLOCK_SECTORS));
    assert_eq!(part.area_sectors, 1024);
    // The same bytes on a larger device, and another chunk for new caches.
    let image = fixture.image();
    let model = Box::new(Uniform::new(1, 20_000, 60_000));
    let spec = DiskSpec::new("larger", Sector(9000), model);
    fixture.cache = fixture.world.borrow_mut().add_disk(spec);
    fixture.poke_area(0, &image);
    fixture.config = config(4096, "");
    fixture.life(async |cache| expect(&*cache, 0..64, 1).await).unwrap();
}

#[test]
fn a_missing_or_foreign_part_is_refused_and_nothing_changes() {
    let fixture = fixture(2, "");
    let fill_all = async |cache: Rc<WriteCache>| {
        fill(&*cache, 0..64, 1).await;
        flush(&*cache).await;
    };
    fixture.life(fill_all).unwrap();
    let (area, image) = (area_bytes(&fixture), fixture.image());
    let half = usize::try_from(area).unwrap();
    let (first, second) = (&image[..half], &image[half..]);
    let other = self::fixture(2, "");
    other.world.borrow_mut().rng.next_u64();
    other.life(fill_all).unwrap();
    let others = other.area(area, half);
    let blank = vec![0; half];
    for (bytes, said) in [
        (
            [first, &blank],
            "part 1 of 2: cache device cache: the area from sector 1024 holds no cache",
        ),
        ([first, first], "holds part 0 of 2 of a divided cache, which does not belong"),
        ([second, first], "part 1 of 2 begins at start_sector 0"),
        ([first, &others], "holds part 1 of 2 of a divided cache, which does not belong"),
        ([&blank, second], "part 1 of 2 of a cache whose part 0 has gone"),
    ] {
        fixture.poke_area(0, &bytes.concat());
        let before = fixture.image();
        let found = fixture.refusal();
        assert!(found.contains(said), "{found}");
        assert!(fixture.image() == before, "{said}");
    }
    fixture.poke_area(0, &image);
    fixture.life(async |cache| expect(&*cache, 0..64, 1).await).unwrap();
}

/// The proof that the check is needed: without it the parts of two caches make one, which serves
/// what was never written to it.
#[test]
fn parts_of_another_cache_that_are_not_looked_at_are_caught() {
    let (mut fixture, other) = (fixture(2, ""), fixture(2, ""));
    other.world.borrow_mut().rng.next_u64();
    for (fixture, version) in [(&fixture, 1), (&other, 2)] {
        fixture
            .life(async move |cache| {
                fill(&*cache, 0..64, version).await;
                flush(&*cache).await;
            })
            .unwrap();
    }
    let area = area_bytes(&fixture);
    fixture.poke_area(area, &other.area(area, usize::try_from(area).unwrap()));
    fixture.config.plant(Some(Fault::PartsUnchecked));
    fixture
        .life(async |cache| {
            assert_eq!(get(&*cache, 0).await, Ok(pattern(0, 1)));
            assert_eq!(get(&*cache, CHUNK).await, Ok(pattern(CHUNK, 2)), "it is another cache's");
        })
        .unwrap();
    fixture.config.plant(None);
    assert!(fixture.refusal().contains("does not belong to this one"));
}

#[test]
fn the_remains_of_an_interrupted_creation_are_formatted_again() {
    let fixture = fixture(3, "");
    fixture.life(async |_| ()).unwrap();
    let before = fixture.superblock_of(1).uuid;
    // Part 0 comes last: without it the others, in which nothing ever was, are no cache.
    let end = usize::try_from(Geometry::superblock_offset(3)).unwrap() + UNIT;
    fixture.poke_area(0, &vec![0; end]);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..64, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    assert_ne!(fixture.superblock_of(1).uuid[..15], before[..15], "made anew");
    fixture.life(async |cache| expect(&*cache, 0..64, 1).await).unwrap();
}

#[test]
fn too_small_a_device_is_refused() {
    let mut small = fixture(2, "");
    small.config = config(4096, "parts 4");
    let said = small.refusal();
    assert!(said.contains("4 parts of 262144 bytes") && said.contains("408"), "{said}");
}

/// Adds a disk that claims to rotate, whose requests take so many ns.
fn add_rotating(fixture: &Fixture, least_ns: u64, most_ns: u64) -> FileId {
    let model = Box::new(Uniform::new(1, least_ns, most_ns));
    let spec = DiskSpec::new("hdd", fixture.sectors, model);
    fixture.world.borrow_mut().add_disk(DiskSpec { rotational: true, ..spec })
}

/// As every virtual disk does.
#[test]
fn an_origin_that_only_claims_to_rotate_may_have_parts() {
    let mut fixture = fixture(2, MANUAL);
    fixture.origin = add_rotating(&fixture, 20_000, 60_000);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..16, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    assert_eq!(fixture.superblock().part.unwrap().of, 2);
    // Reads that fail say nothing.
    fixture.origin = add_rotating(&fixture, 20_000, 60_000);
    let model = Box::new(Uniform::new(1, 20_000, 60_000));
    let spec = DiskSpec::new("another", Sector(1024 * BLOCK_SECTORS), model);
    fixture.cache = fixture.world.borrow_mut().add_disk(spec);
    let faults = Faults { read_error_per_mille: 1000, ..Faults::default() };
    fixture.world.borrow_mut().set_faults(fixture.origin, faults);
    assert!(fixture.refusal().contains("is a rotating disk"));
}

#[test]
fn an_origin_that_rotates_is_refused() {
    let mut fixture = fixture(2, MANUAL);
    let ssd = fixture.origin;
    fixture.origin = add_rotating(&fixture, 2_000_000, 9_000_000);
    let said = fixture.refusal();
    assert!(
        said.contains("parts 2")
            && said.contains("is a rotating disk, and a random read of it takes ")
            && said.contains("leave `parts` out"),
        "{said}"
    );
    assert!(fixture.image().iter().all(|&byte| byte == 0), "nothing was changed");
    // A cache that is divided is never locked in.
    let hdd = std::mem::replace(&mut fixture.origin, ssd);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..16, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    fixture.origin = hdd;
    fixture
        .life(async |cache| {
            expect(&*cache, 0..16, 1).await;
            say(&cache, "flush").await.unwrap();
        })
        .unwrap();
    assert!((0..16).all(|block| fixture.origin_block(block) == pattern(block, 1)));
}

#[test]
fn a_failed_flush_of_the_cache_device_fails_every_part() {
    let fixture = fixture(2, MANUAL);
    let (world, disk) = (fixture.world.clone(), fixture.cache);
    life_on(&fixture, spread::cores(2), async move |cache| {
        fill(&*cache, 0..8, 1).await;
        let faults = |per_mille| Faults { flush_error_per_mille: per_mille, ..Faults::default() };
        world.borrow_mut().set_faults(disk, faults(1000));
        // FUA: of part 0 alone.
        let block = Buf::copy_of(&pattern(0, 2));
        let fua = reactor::write(&*cache, Flags::FUA, Class::Normal, at(0), block.into()).await;
        assert!(fua.is_err());
        world.borrow_mut().set_faults(disk, faults(0));
        let block = Buf::copy_of(&pattern(4, 2));
        let fua = reactor::write(&*cache, Flags::FUA, Class::Normal, at(4), block.into()).await;
        assert!(fua.is_err(), "what part 1 had written may be lost as well");
        assert!(reactor::flush(&*cache, Class::Foreground).await.is_err());
        expect(&*cache, 1..4, 1).await;
        assert_ne!(spread::fields(&cache).await[0], 0);
    });
}

#[test]
fn an_origin_error_and_its_end_are_reported_once() {
    let fixture = fixture(2, "high_watermark 100 low_watermark 100");
    let (world, disk) = (fixture.world.clone(), fixture.origin);
    let events: Rc<RefCell<Vec<CacheEvent>>> = Rc::default();
    let machine = Machine::boot(&fixture.world, 2);
    let target = fixture.target();
    target.place_parts(
        spread::cores(2),
        spread::share(&fixture.world, [fixture.origin, fixture.cache]),
    );
    let sink = events.clone();
    target.on_event(move |event| sink.borrow_mut().push(event));
    let done = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        fill(&*target, 0..16, 1).await;
        let bad = Faults { write_error_per_mille: 1000, ..Faults::default() };
        world.borrow_mut().set_faults(disk, bad);
        let e = say(&target, "flush").await.unwrap_err().to_string();
        assert!(e.starts_with("2 of 2 parts, the first of them part 0: "), "{e}");
        assert_eq!(number(&target, "failing_blocks").await, 16);
        world.borrow_mut().set_faults(disk, Faults::default());
        say(&target, "flush").await.unwrap();
        assert_eq!(number(&target, "failing_blocks").await, 0);
        // Reports of parts come by messages.
        reactor::sleep(block::Nanos::from_millis(10)).await;
    });
    done.unwrap();
    machine.kill();
    let events = events.borrow();
    assert!(
        matches!(events[..], [CacheEvent::Writeback { .. }, CacheEvent::Recovered]),
        "{events:?}"
    );
}

/// A device that says who it is.
struct Named(Rc<dyn BlockDevice>, &'static str);

impl BlockDevice for Named {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn limits(&self) -> block::Limits {
        self.0.limits()
    }
    fn submit(&self, bio: block::Bio) {
        self.0.submit(bio);
    }
    fn identity(&self) -> Option<String> {
        Some(self.1.to_owned())
    }
}

/// Part 1 holds a block, part 0 none: it would go to any origin, but not without the other.
#[test]
fn parts_go_to_another_origin_together_or_not_at_all() {
    let fixture = fixture(2, "");
    let life = |who: &'static str, options: &str, block: Option<u64>| -> Result<(), Error> {
        let machine = Machine::boot(&fixture.world, 2);
        let origin = Rc::new(Named(fixture.leaf(fixture.origin), who));
        let mut config = config(4096, options);
        config.set_chunk(fixture.config.chunk());
        let cache = fixture.leaf(fixture.cache);
        let target = WriteCache::new("wc", config, origin, cache, fixture.sectors).unwrap();
        target.place_parts(
            spread::cores(2),
            spread::share(&fixture.world, [fixture.origin, fixture.cache]),
        );
        let done = machine.block_on(async move {
            target.clone().resume().await?;
            if let Some(block) = block {
                put(&*target, block, 1).await.unwrap();
                flush(&*target).await;
            }
            target.suspend().await
        });
        machine.kill();
        done.unwrap()
    };
    let ids = || [0, 1].map(|nth| fixture.superblock_of(nth).origin_id);
    life("one", "parts 2", Some(CHUNK)).unwrap();
    assert_eq!(ids(), [format::origin_id("one"); 2]);
    let before = fixture.image();
    let said = life("two", "", None).unwrap_err().to_string();
    assert!(said.contains("part 1 of 2") && said.contains("another origin"), "{said}");
    assert!(fixture.image() == before, "nothing was changed");
    life("two", "adopt_origin", None).unwrap();
    assert_eq!(ids(), [format::origin_id("two"); 2]);
}

#[test]
fn a_probe_reports_each_part_and_their_sum() {
    let fixture = fixture(2, MANUAL);
    fixture
        .life(async |cache| {
            fill(&*cache, 2..10, 1).await;
            // After a clean end data that do not match are rot, not a commit that never ended.
            suspend(&cache).await;
        })
        .unwrap();
    let look = |fixture: &Fixture| {
        let machine = Machine::boot(&fixture.world, 1);
        let device = fixture.leaf(fixture.cache);
        let found = machine
            .block_on(async move { writecache::probe(device, Sector::ZERO, Depth::Data).await });
        machine.kill();
        found.unwrap().unwrap()
    };
    let found = look(&fixture);
    let Contents::Divided(cache) = &found.contents else { panic!("{found:?}") };
    assert_eq!((cache.parts.len(), cache.first.of), (2, 2));
    assert!(found.damage.is_empty(), "{:?}", found.damage);
    let all = found.occupancy().unwrap();
    assert_eq!((all.dirty, &all.dirty_ranges[..]), (8, &[(at(2), at(8))][..]));
    let dirty: Vec<u64> = cache.parts.iter().map(|p| p.occupancy().unwrap().dirty).collect();
    assert_eq!(dirty, [4, 4]);
    // Rot in the data of part 1: an offset of the whole area.
    let begins = area_bytes(&fixture);
    let geometry = fixture.superblock_of(1).geometry();
    (0..geometry.slots).for_each(|slot| fixture.flip(begins + geometry.slot_offset(slot) + 99, 3));
    let hurt = look(&fixture);
    assert_eq!(hurt.damage.len(), 4);
    let first = &hurt.damage[0];
    assert!(first.offset > begins && first.what.starts_with("part 1: sector "), "{first:?}");
    assert_eq!(hurt.token("wipe"), found.token("wipe"), "data are no part of it");
    fixture.poke_area(begins, &vec![0; 256 << 10]);
    let missing = look(&fixture);
    assert!(missing.damage[0].what.contains("part 1: it is missing"), "{:?}", missing.damage);
    assert!(missing.occupancy().is_none());
    assert_ne!(missing.token("wipe"), found.token("wipe"));
}

/// Found by fuzzing: the probe made a buffer of no bytes.
#[test]
fn a_probe_reports_a_device_that_ends_before_a_part() {
    let fixture = fixture(2, MANUAL);
    fixture.life(async |cache| fill(&*cache, 0..4, 1).await).unwrap();
    let (area, image) = (area_bytes(&fixture), fixture.image());
    for (bytes, said) in [
        (area, "part 1: it is missing: the device ends before it"),
        (area + 512, "part 1: it is missing"),
        (area + (64 << 10), "part 1: "),
    ] {
        let cut = Fixture::new(256, bytes.div_ceil(1024), "");
        cut.poke_area(0, &image[..usize::try_from(bytes).unwrap()]);
        let machine = Machine::boot(&cut.world, 1);
        let device = cut.leaf(cut.cache);
        let found = machine
            .block_on(async move { writecache::probe(device, Sector::ZERO, Depth::Data).await });
        machine.kill();
        let found = found.unwrap().unwrap();
        assert!(found.damage.iter().any(|f| f.what.starts_with(said)), "{:?}", found.damage);
        assert!(found.occupancy().is_none());
    }
}
