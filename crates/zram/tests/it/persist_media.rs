// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What persistence keeps on its media: what is found there again, what is refused, and what an
//! operation costs.

use crate::common::media::{
    BLOCK, Fixture, discard, expect, expect_zeroes, fill, flush, numbers, put, read, suspend,
    writeback_all,
};
use crate::common::{PAGE, vanish};
use block::{Buf, Class, ErrorKind, Flags, Sector, Status, Target};
use format::zram::{Geometry, UNIT_HEADER};
use sim::{DiskStats, Machine, PowerCut, RunEnd};

#[test]
fn all_data_survive_an_orderly_end_with_any_number_of_cores() {
    for (first, then) in [(1, 1), (1, 2), (2, 1), (2, 3)] {
        let mut lab = Fixture::new(700, 12000).with("lz4 3 backing_dev disk persist");
        lab.cores = first;
        let lived = lab.life(async |zram| {
            fill(&*zram, 0..650, 1).await;
            suspend(&zram).await;
            zram.check().await;
        });
        lived.unwrap();
        lab.cores = then;
        let lived = lab.life(async |zram| {
            let stat = numbers(&zram, "mm_stat").await;
            assert_eq!((stat[0], stat[2]), (650 * PAGE as u64, 0), "known, and not in memory");
            expect(&*zram, 0..650, 1).await;
            expect_zeroes(&*zram, 650..700).await;
            fill(&*zram, 0..20, 2).await;
            suspend(&zram).await;
            zram.check().await;
        });
        lived.unwrap();
        lab.life(async |zram| {
            expect(&*zram, 0..20, 2).await;
            expect(&*zram, 20..650, 1).await;
        })
        .unwrap();
    }
}

#[test]
fn an_open_after_an_orderly_end_reads_little_more_than_the_map() {
    let lab = Fixture::new(500, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..500, 1).await;
        suspend(&zram).await;
    })
    .unwrap();
    let before = lab.stats();
    lab.life(async |_| ()).unwrap();
    let after = lab.stats();
    let (reads, writes) = (after.reads - before.reads, after.writes - before.writes);
    // Four copies to see whose it is and four to open it; two units of map in one; where the next
    // unit would be, and what lies behind.
    assert_eq!(reads, 4 + 4 + 1 + 2);
    assert_eq!((writes, after.flushes - before.flushes), (4, 2), "the superblock");
}

#[test]
fn a_lone_flush_costs_a_write_and_a_flush_and_the_next_nothing() {
    let lab = Fixture::new(300, 4000);
    let inside = lab.clone();
    let lived = lab.life(async move |zram| {
        let cost = |before: DiskStats| {
            let after = inside.stats();
            (after.writes - before.writes, after.flushes - before.flushes)
        };
        put(&*zram, 4, 1, Flags::empty()).await.unwrap();
        let before = inside.stats();
        flush(&*zram).await.unwrap();
        assert_eq!(cost(before), (1, 1), "FLUSH");
        let before = inside.stats();
        flush(&*zram).await.unwrap();
        assert_eq!(cost(before), (0, 0), "FLUSH with nothing new");
        fill(&*zram, 20..40, 1).await;
        let before = inside.stats();
        put(&*zram, 7, 1, Flags::FUA).await.unwrap();
        assert_eq!(cost(before), (1, 1), "FUA, whatever else is dirty");
        flush(&*zram).await.unwrap();
        let before = inside.stats();
        writeback_all(&zram).await;
        assert_eq!(cost(before), (0, 0), "clean pages leave memory without any I/O");
        // Two of the twenty-two are of one word.
        assert_eq!(numbers(&zram, "mm_stat").await[2], 0);
        expect(&*zram, 20..40, 1).await;
    });
    lived.unwrap();
}

#[test]
fn writeback_stays_within_its_limit_and_flush_has_none() {
    let lab = Fixture::new(300, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..60, 1).await;
        let set =
            |name: &str, value: &str| zram.clone().set_attribute(name.to_owned(), value.to_owned());
        set("writeback_limit_enable", "1").await.unwrap();
        set("writeback_limit", "7").await.unwrap();
        let e = set("writeback", "page_indexes=0-299").await.expect_err("more than 7 blocks");
        assert_eq!(e.kind(), ErrorKind::Limit, "{}", e.chain());
        let (written, left) = (numbers(&zram, "bd_stat").await[2], "writeback_limit");
        let left = numbers(&zram, left).await[0];
        // A page that does not compress takes two blocks by itself.
        assert!(written >= 6 && written + left == 7, "{written} written, {left} left");
        flush(&*zram).await.unwrap();
        assert!(numbers(&zram, "bd_stat").await[2] > 20);
        // All are clean: what is left is enough.
        set("writeback", "page_indexes=0-299").await.unwrap();
        assert_eq!(numbers(&zram, "writeback_limit").await[0], left);
        expect(&*zram, 0..60, 1).await;
    })
    .unwrap();
}

#[test]
fn discards_and_pages_of_one_word_survive_too() {
    let lab = Fixture::new(300, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..300, 1).await;
        flush(&*zram).await.unwrap();
        discard(&*zram, 100..200).await;
        flush(&*zram).await.unwrap();
    })
    .unwrap();
    for _ in 0..2 {
        lab.life(async |zram| {
            expect(&*zram, 0..100, 1).await;
            expect_zeroes(&*zram, 100..200).await;
            expect(&*zram, 200..300, 1).await;
        })
        .unwrap();
    }
}

#[test]
fn checkpoints_keep_the_chain_short_and_lose_nothing() {
    let lab = Fixture::new(64, 600);
    let before = lab.life(async |_| ()).map(|()| lab.superblock()).unwrap();
    lab.life(async |zram| {
        for version in 1..40 {
            fill(&*zram, 0..64, version).await;
            flush(&*zram).await.unwrap();
        }
    })
    .unwrap();
    let after = lab.superblock();
    assert!(after.checkpoint.id > before.checkpoint.id + 3, "{after:?}");
    lab.life(async |zram| expect(&*zram, 0..64, 39).await).unwrap();
}

/// Slots 0 to 9 are version 1 by the first unit, slots 10 to 19 by the second.
fn two_units() -> Fixture {
    let lab = Fixture::new(300, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..10, 1).await;
        flush(&*zram).await.expect("a flush");
        fill(&*zram, 10..20, 1).await;
        flush(&*zram).await.expect("a flush");
    })
    .expect("an open");
    assert_eq!(lab.units().len(), 2);
    lab
}

#[test]
fn a_torn_last_unit_gives_the_state_before_it() {
    for byte in [0, 70, UNIT_HEADER as u64 + 40, BLOCK as u64 + 99] {
        let lab = two_units();
        lab.flip(lab.units()[1], byte);
        lab.life(async |zram| {
            expect(&*zram, 0..10, 1).await;
            expect_zeroes(&*zram, 10..20).await;
        })
        .unwrap();
    }
}

#[test]
fn a_rotten_unit_that_a_later_one_calls_durable_is_refused() {
    for byte in [0, 70, UNIT_HEADER as u64 + 40, BLOCK as u64 + 99] {
        let lab = two_units();
        lab.flip(lab.units()[0], byte);
        let before = lab.image();
        let e = lab.refusal();
        assert_eq!(e.kind(), ErrorKind::Io);
        let why = e.chain();
        assert!(why.contains("unit 1 was durable, says unit 2, and is lost"), "{why}");
        assert!(lab.image() == before, "left as it is");
    }
}

#[test]
fn a_unit_that_was_cut_off_never_joins_the_chain_again() {
    let lab = two_units();
    let second = lab.units()[1];
    let cut_off = lab.peek(second, 20);
    lab.poke(second, &[0; BLOCK]);
    lab.life(async |zram| expect_zeroes(&*zram, 10..20).await).unwrap();
    // Where the chain goes on now, and where it went on then.
    lab.poke(lab.superblock().chain.next, &cut_off);
    lab.poke(second, &cut_off);
    lab.life(async |zram| {
        expect(&*zram, 0..10, 1).await;
        expect_zeroes(&*zram, 10..20).await;
    })
    .unwrap();
}

#[test]
fn a_rotten_object_fails_its_page_only_and_is_named() {
    let lab = Fixture::new(300, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..10, 1).await;
        suspend(&zram).await;
    })
    .unwrap();
    let data = lab.superblock().geometry().data();
    // The first object of the first unit is slot 0, which takes a block and more.
    lab.flip(data.start, 1000);
    lab.life(async |zram| {
        assert_eq!(read(&*zram, 0).await, Err(Status::Io));
        expect(&*zram, 1..10, 1).await;
        put(&*zram, 0, 2, Flags::FUA).await.unwrap();
        expect(&*zram, 0..1, 2).await;
    })
    .unwrap();
}

#[test]
fn damaged_superblock_copies_are_repaired_while_two_are_left() {
    for rotten in [vec![0], vec![3], vec![0, 1], vec![1, 2], vec![0, 3]] {
        let lab = two_units();
        for copy in &rotten {
            lab.flip(Geometry::superblock(*copy), 100);
        }
        lab.life(async |zram| expect(&*zram, 0..20, 1).await).unwrap();
        assert!(lab.copies_agree(), "{rotten:?}");
    }
    let lab = two_units();
    [0, 1, 2].iter().for_each(|copy| lab.flip(Geometry::superblock(*copy), 100));
    let before = lab.image();
    let e = lab.refusal();
    assert!(e.chain().contains("no two superblock copies agree"), "{}", e.chain());
    assert!(lab.image() == before, "left as it is");
}

#[test]
fn a_rotten_checkpoint_is_refused_and_its_unit_named() {
    let lab = Fixture::new(300, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..300, 1).await;
        suspend(&zram).await;
    })
    .unwrap();
    let superblock = lab.superblock();
    lab.flip(superblock.geometry().map(superblock.checkpoint.area) + 1, 200);
    let before = lab.image();
    let why = lab.refusal().chain();
    assert!(why.contains("part 0: checkpoint unit 1: checksum mismatch"), "{why}");
    assert!(lab.image() == before, "left as it is");
}

#[test]
fn what_is_not_ours_is_refused_and_left_alone() {
    for (block, byte) in [(0, 0), (0, 1024), (1, 0), (16, 5), (63, 4095), (2000, 0)] {
        let lab = Fixture::new(300, 4000).with("lz4 5 backing_dev disk persist shards 2");
        lab.flip(block, byte);
        let before = lab.image();
        let e = lab.refusal();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{}", e.chain());
        let named = format!("block {block} is not zero");
        assert!(e.chain().contains(&named), "{}", e.chain());
        assert!(lab.image() == before, "left as it is");
    }
}

#[test]
fn a_device_of_another_shape_is_refused_and_left_alone() {
    let refused = |lab: &Fixture, kind: ErrorKind, part: &str| {
        let before = lab.image();
        let e = lab.refusal();
        assert_eq!(e.kind(), kind, "{}", e.chain());
        assert!(e.chain().contains(part), "{}", e.chain());
        assert!(lab.image() == before, "left as it is");
    };
    let lab = Fixture { slots: 301, ..two_units() };
    refused(&lab, ErrorKind::Invalid, "a zram of 2400 sectors, the table says 2408");
    let lab = two_units().with("zstd 5 backing_dev disk persist shards 1");
    refused(&lab, ErrorKind::Invalid, "compressed by lz4, which the table does not name: zstd");
    let small = Fixture::new(300, 3000);
    small.poke(0, &two_units().peek(0, 3000));
    refused(&small, ErrorKind::Invalid, "it has 3000 blocks of 4 KiB, of 4000");
    let tiny = Fixture::new(300, 83);
    refused(&tiny, ErrorKind::NoSpace, "needs at least 336 KiB");
    Fixture::new(300, 84).life(async |_| ()).unwrap();
    // The same format.
    let lab = two_units().with("lz4hc 5 backing_dev disk persist shards 1");
    lab.life(async |zram| expect(&*zram, 0..20, 1).await).unwrap();
}

#[test]
fn a_volatile_device_does_not_overwrite_a_persistent_one() {
    let lab = two_units();
    let before = lab.image();
    let e = lab.with("lz4 2 backing_dev disk").refusal();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.chain().contains("add the option persist"), "{}", e.chain());
    assert!(lab.image() == before, "left as it is");
    lab.poke(0, &vec![0; 64 * BLOCK]);
    lab.with("lz4 2 backing_dev disk").life(async |_| ()).unwrap();
}

#[test]
fn a_volatile_device_overwrites_no_damaged_persistent_one() {
    let lab = two_units();
    [0, 1, 3].iter().for_each(|copy| lab.flip(Geometry::superblock(*copy), 100));
    let before = lab.image();
    let e = lab.with("lz4 2 backing_dev disk").refusal();
    assert!(e.chain().contains("a persistent zram of 2400 sectors"), "{}", e.chain());
    assert!(lab.image() == before, "left as it is");
}

#[test]
fn a_format_of_the_future_is_refused() {
    let lab = two_units();
    for copy in 0..4 {
        let block = Geometry::superblock(copy);
        let mut unit = lab.peek(block, 1);
        unit[8] = 2;
        unit[12..16].fill(0);
        let crc = format::checksum(&unit);
        unit[12..16].copy_from_slice(&crc.to_le_bytes());
        lab.poke(block, &unit);
    }
    let e = lab.refusal();
    assert_eq!(e.kind(), ErrorKind::NotSupported, "{}", e.chain());
    assert!(e.chain().contains("version 2"), "{}", e.chain());
    let e = lab.with("lz4 2 backing_dev disk").refusal();
    assert!(e.chain().contains("it holds a persistent zram: add"), "{}", e.chain());
}

#[test]
fn a_full_device_says_so_and_discards_make_room() {
    // Room for about 60 pages that do not compress, which is every third.
    let lab = Fixture::new(300, 64 + 4 + 80);
    let lived = lab.life(async |zram| {
        fill(&*zram, 0..90, 1).await;
        flush(&*zram).await.expect("these fit");
        fill(&*zram, 90..300, 1).await;
        assert_eq!(flush(&*zram).await, Err(Status::NoSpace));
        let e = zram.clone().suspend().await.expect_err("not everything is there");
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{}", e.chain());
        zram.clone().resume().await.unwrap();
        expect(&*zram, 0..300, 1).await;
        discard(&*zram, 30..300).await;
        flush(&*zram).await.expect("what is discarded needs no room");
        fill(&*zram, 30..80, 2).await;
        flush(&*zram).await.expect("and makes some");
        zram.clone().suspend().await.unwrap();
        zram.check().await;
    });
    lived.unwrap();
    lab.life(async |zram| {
        expect(&*zram, 0..30, 1).await;
        expect(&*zram, 30..80, 2).await;
        expect_zeroes(&*zram, 80..300).await;
    })
    .unwrap();
}

#[test]
fn sparse_blocks_are_emptied_before_the_device_is_full() {
    // 170 pages of 2 KiB and 80 of 4 KiB: 166 blocks, packed; without packing anew each that is
    // written by itself would hold a block or two.
    let lab = Fixture::new(250, 64 + 2 + 320);
    let lived = lab.life(async |zram| {
        let mut versions = vec![0; 250];
        let mut x = 1u64;
        for round in 1..3000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slot = (x >> 33) % 250;
            put(&*zram, slot, round, Flags::FUA).await.expect("room was made");
            versions[usize::try_from(slot).unwrap()] = round;
            if round % 64 == 0 {
                writeback_all(&zram).await;
            }
        }
        for (slot, version) in (0..).zip(&versions) {
            if *version > 0 {
                expect(&*zram, slot..slot + 1, *version).await;
            }
        }
        suspend(&zram).await;
        zram.check().await;
        versions
    });
    let versions = lived.unwrap();
    lab.life(async move |zram| {
        for (slot, version) in (0..).zip(versions) {
            if version > 0 {
                expect(&*zram, slot..slot + 1, version).await;
            }
        }
    })
    .unwrap();
}

/// Opens with the power going after `steps`; whether it had opened by then.
fn open_until(lab: &Fixture, steps: u64) -> bool {
    let machine = Machine::boot(&lab.world, lab.cores);
    let until = lab.world.borrow().steps() + steps;
    lab.world.borrow_mut().power_cut_at(Some(PowerCut::Step(until)));
    let inside = lab.clone();
    let opened = machine.block_on(async move {
        let target = inside.target();
        target.clone().resume().await.map(|()| target)
    });
    lab.world.borrow_mut().power_cut_at(None);
    let opened = match opened {
        Ok(result) => {
            // The power goes with the target still there.
            vanish(&machine, result.expect("an open"));
            true
        }
        Err(ended) => {
            assert_eq!(ended, RunEnd::PowerCut);
            false
        }
    };
    machine.power_cut();
    opened
}

#[test]
fn a_format_that_is_cut_at_any_step_can_be_repeated() {
    for seed in 0..5 {
        for steps in 0.. {
            let mut lab = Fixture::seeded(seed, 300, 1000);
            lab.table = "lz4 5 backing_dev disk persist shards 2".into();
            let opened = open_until(&lab, steps);
            // And that open is cut too, somewhere else.
            open_until(&lab, (steps * 7) % 40);
            let live = lab.life(async |zram| {
                expect_zeroes(&*zram, 0..3).await;
                fill(&*zram, 0..10, 1).await;
                flush(&*zram).await.unwrap();
            });
            live.unwrap_or_else(|e| panic!("seed {seed}, step {steps}: {}", e.chain()));
            assert!(lab.copies_agree());
            lab.life(async |zram| expect(&*zram, 0..10, 1).await).unwrap();
            if opened {
                break;
            }
        }
    }
}

#[test]
fn an_open_cut_at_any_step_loses_nothing() {
    for steps in 0..200 {
        let lab = two_units();
        let opened = open_until(&lab, steps);
        open_until(&lab, (steps * 5) % 60);
        lab.life(async |zram| expect(&*zram, 0..20, 1).await).unwrap();
        if opened {
            return;
        }
    }
    panic!("it never opened");
}

/// Only the whole pages of a FUA write were made durable, and nothing of one within a page: a crash
/// lost the rest. Found by the adversary of `tests/attack`.
#[test]
fn a_fua_write_of_some_sectors_survives_a_crash() {
    let ranges: [(u64, u64); 4] = [(3, 1), (11, 22), (64, 9), (79, 1)];
    let data = |at: u64, len: u64| -> Vec<u8> {
        (0..len * 512).map(|byte| ((at * 31 + byte / 7) % 251) as u8).collect()
    };
    let lab = Fixture::new(64, 4000);
    let lived = lab.life(async move |zram| {
        fill(&*zram, 0..20, 1).await;
        flush(&*zram).await.expect("a flush");
        for (at, len) in ranges {
            let data = Buf::copy_of(&data(at, len)).all().into();
            let done = reactor::write(&*zram, Flags::FUA, Class::Normal, Sector(at), data).await;
            done.expect("a write");
        }
    });
    lived.unwrap();
    let lived = lab.life(async move |zram| {
        for (at, len) in ranges {
            let found = Buf::zeroed(data(at, len).len());
            let bufs = found.all().into();
            reactor::read(&*zram, Class::Normal, Sector(at), bufs).await.expect("a read");
            assert!(found.read(|found| found == data(at, len)), "{len} sectors from {at} on");
        }
    });
    lived.unwrap();
}
