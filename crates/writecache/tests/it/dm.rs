// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's format in use: what is refused and with which words, what stands on the media
//! after each step, what a commit costs.

use crate::common::recording::RecordingDevice;
use crate::common::{
    self, Fixture, expect, fields, fill, flush, number, put, put_with, say, suspend,
};
use block::{Class, ErrorKind, Flags, Nanos, Op, Sector, Target};
use format::dm::{Entry, HEADER_BYTES, Superblock, entries};
use sim::{Machine, PowerCut};
use writecache::{Fault, WriteCache};

const CALM: &str = "format dm high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// 256 blocks of origin; the cache has 254 (the table of the reference says so for 1 MiB).
fn fixture() -> Fixture {
    Fixture::small(CALM)
}

fn superblock(fixture: &Fixture) -> Superblock {
    Superblock::decode(&fixture.area(0, 512)).unwrap()
}

/// The first `n` entries as (sector, sequence number), with all ones as -1.
fn media(fixture: &Fixture, n: usize) -> Vec<(i64, i64)> {
    let metadata = fixture.area(0, 8192);
    let signed = |e: Entry| (e.original_sector.cast_signed(), e.seq_count.cast_signed());
    entries(&metadata[HEADER_BYTES..]).take(n).map(signed).collect()
}

const FREE: (i64, i64) = (-1, -1);

#[test]
fn a_new_cache_has_every_byte_of_its_metadata_in_place() {
    let fixture = fixture();
    let status = fixture.life(async |cache| fields(&cache)).unwrap();
    assert_eq!(status[..4], [0, 254, 254, 0]);
    let mut expected = vec![0; 8192];
    expected[..4].copy_from_slice(&[0x21, 0x93, 0x48, 0x23]);
    expected[4..8].copy_from_slice(&[1, 0, 0, 0]);
    expected[8..12].copy_from_slice(&[0, 0x10, 0, 0]);
    expected[16..18].copy_from_slice(&[254, 0]);
    expected[64..64 + 16 * 254].fill(0xff);
    assert!(fixture.area(0, 8192) == expected);
}

/// The trace of the reference (9.1), in the way of its persistent-memory mode, where a committed
/// block is not overwritten in place either.
#[test]
fn each_step_leaves_on_the_media_what_the_reference_says() {
    let fixture = fixture();
    let steps = fixture.clone();
    fixture
        .life(async move |cache| {
            let fixture = steps;
            put(&*cache, 10, 1).await.unwrap();
            put(&*cache, 1, 1).await.unwrap();
            assert_eq!((superblock(&fixture).seq_count, media(&fixture, 2)), (0, vec![FREE, FREE]));
            flush(&*cache).await;
            assert_eq!(
                (superblock(&fixture).seq_count, media(&fixture, 2)),
                (1, vec![(80, 0), (8, 0)])
            );
            put(&*cache, 10, 2).await.unwrap();
            flush(&*cache).await;
            let after = vec![(80, -1), (8, 0), (80, 1), FREE];
            assert_eq!((superblock(&fixture).seq_count, media(&fixture, 4)), (2, after));
            // Erasing what is clean needs no superblock. Of slot 0 nothing is known any more.
            say(&cache, "flush").await.unwrap();
            let after = vec![FREE, (8, -1), (80, -1), FREE];
            assert_eq!((superblock(&fixture).seq_count, media(&fixture, 4)), (2, after));
        })
        .unwrap();
    assert!(fixture.origin_block(10) == common::pattern(10, 2));
    assert!(fixture.origin_block(1) == common::pattern(1, 1));
}

/// A cut between the two writings of entries, planted: two copies of sector 80, of which the newer
/// counts and the older is erased.
#[test]
fn the_older_of_two_copies_of_a_block_is_erased_at_open() {
    for (older, newer) in [(0, 2), (2, 0)] {
        let fixture = fixture();
        fixture
            .life(async |cache| {
                put(&*cache, 10, 1).await.unwrap();
                flush(&*cache).await;
                put(&*cache, 1, 1).await.unwrap();
                flush(&*cache).await;
                put(&*cache, 10, 2).await.unwrap();
                flush(&*cache).await;
            })
            .unwrap();
        // Slots 0 and 2 hold versions 1 and 2. Both valid, with numbers that say which is newer.
        let mut sector = fixture.area(0, 512);
        for (slot, seq_count) in [(older, 1), (newer, 2)] {
            let at = HEADER_BYTES + 16 * slot;
            let entry = Entry { original_sector: 80, seq_count };
            sector[at..at + 16].copy_from_slice(&entry.encode());
        }
        fixture.poke_area(0, &sector);
        let version = if newer == 2 { 2 } else { 1 };
        fixture.life(async move |cache| expect(&*cache, 10..11, version).await).unwrap();
        let found = media(&fixture, 3);
        assert_eq!((found[older], found[newer]), ((80, -1), (80, 2)));
        let image = fixture.image();
        fixture.life(async |_| ()).unwrap();
        assert!(fixture.image() == image, "opening again changed something");
    }
}

/// A dirty cache of the kernel's format, and bytes put into its metadata.
fn poked(offset: u64, bytes: &[u8]) -> Fixture {
    let fixture = fixture();
    fixture
        .life(async |cache| {
            fill(&*cache, 0..10, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    let start = offset & !511;
    let mut sector = fixture.area(start, 512);
    let at = usize::try_from(offset - start).unwrap();
    sector[at..at + bytes.len()].copy_from_slice(bytes);
    fixture.poke_area(start, &sector);
    fixture
}

#[test]
fn a_damaged_superblock_is_refused_with_the_kernels_text() {
    for (offset, bytes, text) in [
        (0, &[0xff; 64][..], "Invalid magic in the superblock"),
        (4, &[9], "Invalid version in the superblock"),
        (8, &[0, 2], "Block size does not match superblock"),
        (16, &[255], "Memory area is too small"),
        (16, &[0xff; 8], "Overflow in size calculation"),
        (64, &[1], "entry 0 is of sector 1, where no block begins"),
        (64, &8u64.to_le_bytes(), "two identical entries, position 1, sector 8, sequence 0"),
        (64, &4096u64.to_le_bytes(), "holds sector 4096, the table maps only 2048"),
        (64, &(1u64 << 63).to_le_bytes(), "holds sector 9223372036854775808"),
    ] {
        let fixture = poked(offset, bytes);
        let before = fixture.image();
        let why = fixture.refusal();
        assert!(why.contains(text), "{offset} {bytes:?}: {why}");
        assert!(why.contains("nothing was changed"), "{why}");
        assert!(fixture.image() == before);
    }
}

#[test]
fn half_an_erased_entry_is_no_entry() {
    // Persistent memory may lose one word of the two: no block begins at such a sector.
    let fixture = poked(64, &[0xff; 8]);
    fixture
        .life(async |cache| {
            assert_eq!(number(&cache, "dirty_blocks"), 9);
            expect(&*cache, 1..10, 1).await;
        })
        .unwrap();
    assert_eq!(media(&fixture, 2), [FREE, (8, 0)]);
}

fn with_options(fixture: &Fixture, options: &str) -> Fixture {
    Fixture { config: common::config(4096, options), ..fixture.clone() }
}

#[test]
fn a_table_with_another_format_than_the_cache_is_refused() {
    let fixture = poked(0, &[]);
    for options in ["", "format dm"] {
        let fixture = with_options(&fixture, options);
        fixture.life(async |cache| expect(&*cache, 0..10, 1).await).unwrap();
    }
    let before = fixture.image();
    let why = with_options(&fixture, "format native").refusal();
    assert!(why.contains("holds a cache in the kernel's format"), "{why}");
    assert!(fixture.image() == before);

    let native = Fixture::small("format native");
    native.life(async |cache| fill(&*cache, 0..10, 1).await).unwrap();
    // Even if the first of the four superblock copies is lost.
    for blank_first in [false, true] {
        if blank_first {
            native.poke_area(0, &[0; 4096]);
        }
        let before = native.image();
        let why = with_options(&native, "format dm").refusal();
        assert!(why.contains("cache in the native format"), "{why}");
        assert!(native.image() == before);
    }
}

#[test]
fn a_device_with_anything_on_it_is_not_formatted() {
    // The kernel looks at eight bytes: it would format this, or an ext4, whose first KiB is blank.
    for offset in [64, 1024 + 56, 4088] {
        let fixture = fixture();
        let start = offset & !511;
        let mut sector = [0; 512];
        sector[usize::try_from(offset - start).unwrap()] = 0x53;
        fixture.poke_area(start, &sector);
        let before = fixture.image();
        let why = fixture.refusal();
        assert!(why.contains("Invalid magic in the superblock"), "{why}");
        assert!(fixture.image() == before);
    }
}

#[test]
fn a_device_without_room_for_a_block_is_refused() {
    let small = |kib| Fixture::new(256, kib, "format dm");
    let fixture = small(4);
    let error = fixture.life(async |_| ()).expect_err("opened");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.chain().contains("Memory area is too small: 4096 bytes"), "{}", error.chain());
    for kib in [8, 16, 24] {
        let fixture = small(kib);
        fixture
            .life(async |cache| {
                fill(&*cache, 0..50, 1).await;
                fill(&*cache, 0..50, 2).await;
                flush(&*cache).await;
                expect(&*cache, 0..50, 2).await;
                say(&cache, "flush").await.unwrap();
            })
            .unwrap();
        assert!((0..50).all(|block| fixture.origin_block(block) == common::pattern(block, 2)));
    }
}

#[test]
fn a_format_cut_at_any_step_opens_or_is_formatted_again() {
    let mut cuts = 0;
    for step in 0.. {
        let fixture = Fixture::seeded(step + 1, 256, 1024, CALM);
        let machine = Machine::boot(&fixture.world, 1);
        fixture.world.borrow_mut().power_cut_at(Some(PowerCut::Step(step)));
        let target = fixture.target();
        let opened = machine.block_on(async move { target.resume().await });
        let is_cut = opened.is_err();
        fixture.world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        cuts += u64::from(is_cut);
        let status = fixture.life(async |cache| fields(&cache)).unwrap();
        assert_eq!(status[1..3], [254, 254], "step {step}");
        assert_eq!(media(&fixture, 254), vec![FREE; 254]);
        if !is_cut {
            break;
        }
    }
    assert!(cuts > 4, "{cuts} cuts");
}

#[test]
fn a_clean_block_has_no_entry_and_still_serves_reads() {
    let fixture = Fixture::small("format dm high_watermark 0 low_watermark 0");
    let steps = fixture.clone();
    fixture
        .life(async move |cache| {
            fill(&*cache, 0..10, 1).await;
            reactor::sleep(Nanos::from_secs(3)).await;
            assert_eq!(number(&cache, "clean_blocks"), 10);
            flush(&*cache).await;
            assert!(media(&steps, 254).iter().all(|entry| entry.1 == -1));
            let hits = fields(&cache)[5];
            expect(&*cache, 0..10, 1).await;
            assert_eq!(fields(&cache)[5], hits + 10);
            suspend(&cache).await;
        })
        .unwrap();
    // After a clean end the origin alone is the device.
    assert!((0..10).all(|block| fixture.origin_block(block) == common::pattern(block, 1)));
    fixture.life(async |cache| assert_eq!(number(&cache, "dirty_blocks"), 0)).unwrap();
}

#[test]
fn bit_rot_is_seen_in_blocks_written_since_the_open_only() {
    // The format has no checksums: this is what it cannot promise, and the native one does.
    let rot = async |cache: std::rc::Rc<WriteCache>, fixture: Fixture| {
        fixture.flip(superblock(&fixture).geometry().block_offset(0) + 1234, 5);
        common::get(&*cache, 0).await.is_ok()
    };
    let fixture = fixture();
    let (first, second) = (fixture.clone(), fixture.clone());
    let seen = fixture.life(async move |cache| {
        fill(&*cache, 0..1, 1).await;
        flush(&*cache).await;
        rot(cache, first).await
    });
    assert!(!seen.unwrap(), "rot was served");
    let seen = fixture.life(async move |cache| rot(cache, second).await);
    assert!(seen.unwrap(), "nobody can know");
}

#[test]
fn what_a_commit_costs_is_what_the_format_asks_for() {
    let fixture = fixture();
    let (origin, cache) =
        (fixture.leaf(fixture.origin), RecordingDevice::over(fixture.leaf(fixture.cache)));
    let machine = Machine::boot(&fixture.world, 1);
    let recorder = cache.clone();
    let target =
        WriteCache::new("wc", fixture.config.clone(), origin, cache, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        target.clone().resume().await.unwrap();
        let dev = &*target;
        put(dev, 3, 1).await.unwrap();
        recorder.take();
        flush(dev).await;
        // Entries, flush, superblock (FUA).
        let entries_and_header = [(Op::Write, 0..8), (Op::Flush, 0..0), (Op::Write, 0..1)];
        assert_eq!(recorder.take(), entries_and_header);
        flush(dev).await;
        assert_eq!(recorder.take(), [], "nothing was new");
        // Overwritten: the data, the same, then the older entry is erased.
        put_with(dev, Flags::FUA, 3, 2).await.unwrap();
        let erased = [(Op::Write, 0..8), (Op::Flush, 0..0)];
        let data = [(Op::Write, 24..32)];
        assert_eq!(recorder.take(), [&data[..], &entries_and_header, &erased].concat());
        // Discarded: only the erasing.
        reactor::discard(dev, Class::Normal, Sector(24), Sector(8)).await.unwrap();
        flush(dev).await;
        assert_eq!(recorder.take(), erased);
    });
    done.unwrap();
}

/// The planted fault of recovery, seen without chance: see `golden_dm.rs` for the sound one.
#[test]
fn a_leftover_not_erased_at_open_returns_with_the_next_commit() {
    for (fault, comes_back) in [(None, false), (Some(Fault::LeftoversKept), true)] {
        let mut fixture = Fixture::new(1024, 4096, CALM);
        fixture
            .life(async |cache| {
                fill(&*cache, 0..10, 1).await;
                flush(&*cache).await;
            })
            .unwrap();
        let offset = superblock(&fixture).geometry().entry_offset(900);
        let entry = Entry { original_sector: 0, seq_count: 1 };
        let mut sector = fixture.area(offset & !511, 512);
        let at = usize::try_from(offset & 511).unwrap();
        sector[at..at + 16].copy_from_slice(&entry.encode());
        fixture.poke_area(offset & !511, &sector);
        fixture.config.plant(fault);
        fixture
            .life(async |cache| {
                expect(&*cache, 0..10, 1).await;
                fill(&*cache, 20..21, 1).await;
                flush(&*cache).await;
            })
            .unwrap();
        let good = fixture.life(async |cache| common::get(&*cache, 0).await);
        let is_good = good.is_ok_and(|data| data == Ok(common::pattern(0, 1)));
        assert_eq!(!is_good, comes_back, "{fault:?}");
    }
}
