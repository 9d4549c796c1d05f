// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bit rot and other damage of the cache device: what is healed, what is refused and with which
//! words, and what is never written to the origin. Formatting, and recovery that repeats itself.

use crate::common::recording::RecordingDevice;
use crate::common::{
    BITS, BLOCK, Fixture, at, config, expect, fields, fill, flush, get, number, pattern, put, say,
    suspend,
};
use block::{Class, ErrorKind, Nanos, Sector, Status, Target};
use format::{Geometry, Superblock, UNIT};
use sim::{Machine, PowerCut, RunEnd};
use writecache::WriteCache;

/// A cache whose blocks 0 to 9 are dirty and called durable by a later record.
fn dirty_and_settled() -> Fixture {
    let fixture = Fixture::small("");
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
        fill(&*cache, 100..101, 1).await;
        flush(&*cache).await;
    });
    done.unwrap();
    fixture
}

fn flip_copy(fixture: &Fixture, copy: u8, (byte, bit): (u64, u32)) {
    fixture.flip(Geometry::superblock_offset(copy) + byte, bit);
}

fn copies_are_whole(fixture: &Fixture) -> bool {
    let copy = |n| Superblock::decode(n, &fixture.area(Geometry::superblock_offset(n), UNIT)).ok();
    let first = copy(0);
    first.is_some() && (1..4).all(|n| copy(n) == first)
}

#[test]
fn a_flipped_bit_in_any_one_superblock_copy_is_healed_at_open() {
    for copy in 0..4 {
        for bit in BITS {
            let fixture = dirty_and_settled();
            flip_copy(&fixture, copy, bit);
            assert!(!copies_are_whole(&fixture));
            fixture.life(async |cache| expect(&*cache, 0..10, 1).await).unwrap();
            assert!(copies_are_whole(&fixture), "copy {copy}");
        }
    }
}

#[test]
fn any_two_superblock_copies_that_agree_are_enough() {
    for first in 0..4 {
        for second in first + 1..4 {
            let fixture = dirty_and_settled();
            flip_copy(&fixture, first, BITS[0]);
            flip_copy(&fixture, second, BITS[1]);
            fixture.life(async |cache| expect(&*cache, 0..10, 1).await).unwrap();
            assert!(copies_are_whole(&fixture), "copies {first} and {second}");
        }
    }
}

#[test]
fn flipped_bits_in_three_superblock_copies_are_refused() {
    for whole in 0..4 {
        let fixture = dirty_and_settled();
        for copy in (0..4).filter(|copy| *copy != whole) {
            flip_copy(&fixture, copy, BITS[1]);
        }
        let before = fixture.image();
        let why = fixture.refusal();
        assert!(why.contains("no two superblock copies agree"), "{why}");
        assert!(why.contains("cache device cache"), "{why}");
        assert!(fixture.image() == before);
    }
}

#[test]
fn a_dirty_cache_with_one_good_superblock_is_not_formatted() {
    // Looks like a format that was cut short, but for the generation: a format writes the first.
    let fixture = checkpointed();
    flip_copy(&fixture, 0, BITS[1]);
    for copy in [2, 3] {
        fixture.poke_area(Geometry::superblock_offset(copy), &[0; UNIT]);
    }
    let before = fixture.image();
    assert!(fixture.refusal().contains("no two superblock copies agree"));
    assert!(fixture.image() == before);
}

/// A cache with a checkpoint, the newest state of blocks 0 to 9 partly in it and partly in the log.
fn checkpointed() -> Fixture {
    let fixture = Fixture::small("");
    let done = fixture.life(async |cache| {
        let mut version = 0;
        while number(&cache, "checkpoints") < 2 {
            version += 1;
            fill(&*cache, version % 10..version % 10 + 1, 1).await;
            flush(&*cache).await;
        }
        fill(&*cache, 0..10, 1).await;
        suspend(&cache).await;
    });
    done.unwrap();
    assert!(fixture.superblock().checkpoint.units > 0);
    fixture
}

#[test]
fn a_checkpoint_and_the_log_after_it_give_everything_back() {
    let fixture = checkpointed();
    fixture.life(async |cache| expect(&*cache, 0..10, 1).await).unwrap();
}

#[test]
fn a_flipped_bit_in_a_checkpoint_is_refused_naming_the_unit() {
    for (byte, bit) in BITS {
        let fixture = checkpointed();
        let area = fixture.superblock().checkpoint.area;
        fixture.flip(fixture.geometry().checkpoint_offset(area) + byte, bit);
        let before = fixture.image();
        let why = fixture.refusal();
        assert!(why.contains("damaged metadata: checkpoint unit 0: "), "{why}");
        assert!(fixture.image() == before);
    }
}

#[test]
fn a_checkpoint_unit_of_the_checkpoint_before_is_refused() {
    let fixture = checkpointed();
    let (geometry, area) = (fixture.geometry(), fixture.superblock().checkpoint.area);
    let older = fixture.area(geometry.checkpoint_offset(1 - area), UNIT);
    fixture.poke_area(geometry.checkpoint_offset(area), &older);
    let why = fixture.refusal();
    assert!(why.contains("checkpoint unit 0: it is of another checkpoint"), "{why}");
}

#[test]
fn a_flipped_bit_in_a_durable_record_is_refused() {
    for (byte, bit) in BITS {
        let fixture = dirty_and_settled();
        let durable = fixture.record(2).expect("the second flush").0.flushed_seq;
        assert_eq!(durable, 1);
        fixture.flip(fixture.geometry().log_offset(1) + byte, bit);
        let before = fixture.image();
        let why = fixture.refusal();
        assert!(why.contains("record 1 was durable, says record 2, and is lost"), "{why}");
        assert!(fixture.image() == before);
    }
}

/// Block `n` of 0 to 59 holds version 1 by the first record and version 2 by the second, which is
/// the newest.
fn two_generations() -> Fixture {
    let fixture = Fixture::new(256, 8192, "");
    let done = fixture.life(async |cache| {
        for version in [1, 2] {
            fill(&*cache, 0..60, version).await;
            flush(&*cache).await;
        }
    });
    done.unwrap();
    assert_eq!(fixture.last_record(), 2);
    fixture
}

#[test]
fn a_torn_last_record_gives_the_state_before_it() {
    let fixture = two_generations();
    fixture.poke_area(fixture.geometry().log_offset(2) + 512, &[0; UNIT - 512]);
    fixture.life(async |cache| expect(&*cache, 0..60, 1).await).unwrap();
}

#[test]
fn a_last_record_with_torn_data_gives_the_state_before_it() {
    let fixture = two_generations();
    let slot = fixture.slot_of(33);
    fixture.poke_area(fixture.geometry().slot_offset(slot) + 512, &[0; 512]);
    fixture.life(async |cache| expect(&*cache, 0..60, 1).await).unwrap();
}

#[test]
fn a_tail_that_was_cut_off_never_comes_back() {
    let fixture = two_generations();
    let slot = fixture.slot_of(33);
    let offset = fixture.geometry().slot_offset(slot);
    let whole = fixture.area(offset, BLOCK);
    fixture.poke_area(offset, &[0; BLOCK]);
    fixture.life(async |cache| expect(&*cache, 0..60, 1).await).unwrap();
    fixture.poke_area(offset, &whole);
    fixture.life(async |cache| expect(&*cache, 0..60, 1).await).unwrap();
}

#[test]
fn rotten_data_of_a_dirty_block_are_an_error_of_that_block_only() {
    let fixture = dirty_and_settled();
    fixture.rot_data_of(4);
    let read = fixture.life(async |cache| {
        assert_eq!(get(&*cache, 4).await, Err(Status::Checksum));
        assert_eq!(get(&*cache, 4).await, Err(Status::Checksum));
        expect(&*cache, 0..4, 1).await;
        expect(&*cache, 5..10, 1).await;
        assert_eq!(number(&cache, "bad_blocks"), 1);
        assert_eq!(fields(&cache)[0], 0, "the cache itself has not failed");
    });
    read.unwrap();
}

#[test]
fn rotten_data_in_the_middle_of_a_long_read_end_it_in_an_error() {
    let fixture = dirty_and_settled();
    fixture.rot_data_of(4);
    let read = fixture.life(async |cache| {
        let buf = block::Buf::zeroed(10 * BLOCK);
        let read = reactor::read(&*cache, Class::Foreground, at(0), buf.all().into()).await;
        assert_eq!(read, Err(Status::Checksum));
    });
    read.unwrap();
}

#[test]
fn bit_rot_of_a_dirty_block_never_reaches_the_origin() {
    let fixture = dirty_and_settled();
    fixture.rot_data_of(4);
    let flushed = fixture.life(async |cache| {
        let error = say(&cache, "flush").await.expect_err("one block could not be written back");
        assert_eq!(error.kind(), ErrorKind::Io);
        (number(&cache, "dirty_blocks"), number(&cache, "bad_blocks"))
    });
    assert_eq!(flushed.unwrap(), (0, 1));
    assert!(fixture.origin_block(4) == vec![0; BLOCK]);
    for block in (0..10).filter(|b| *b != 4) {
        assert!(fixture.origin_block(block) == pattern(block, 1), "block {block}");
    }
}

#[test]
fn rewriting_a_rotten_block_heals_it() {
    let fixture = dirty_and_settled();
    fixture.rot_data_of(4);
    let healed = fixture.life(async |cache| {
        assert!(say(&cache, "flush").await.is_err());
        assert_eq!(put(&*cache, 4, 2).await, Ok(()));
        expect(&*cache, 4..5, 2).await;
        say(&cache, "flush").await.expect("nothing is bad any more");
        suspend(&cache).await;
    });
    healed.unwrap();
    assert!(fixture.origin_block(4) == pattern(4, 2));
    fixture.life(async |cache| expect(&*cache, 4..5, 2).await).unwrap();
}

#[test]
fn a_rotten_block_stays_an_error_over_a_restart() {
    let fixture = dirty_and_settled();
    fixture.rot_data_of(4);
    for _ in 0..2 {
        let found = fixture.life(async |cache| {
            assert!(say(&cache, "flush").await.is_err());
            suspend(&cache).await;
            get(&*cache, 4).await
        });
        assert_eq!(found.unwrap(), Err(Status::Checksum));
    }
    assert!(fixture.origin_block(4) == vec![0; BLOCK]);
}

/// Blocks 0 to 9 are clean, and a later record calls the records that say so durable.
fn clean_and_settled() -> Fixture {
    let fixture = Fixture::small("high_watermark 0 low_watermark 0");
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..10, 1).await;
        reactor::sleep(Nanos::from_secs(2)).await;
        assert_eq!(number(&cache, "clean_blocks"), 10);
        suspend(&cache).await;
    });
    done.unwrap();
    fixture
}

#[test]
fn rotten_data_of_a_clean_block_are_read_from_the_origin() {
    let fixture = clean_and_settled();
    fixture.rot_data_of(4);
    let read = fixture.life(async |cache| {
        expect(&*cache, 0..10, 1).await;
        assert_eq!(number(&cache, "checksum_errors"), 1);
        assert_eq!(number(&cache, "clean_blocks"), 9, "the rotten copy has left the cache");
        say(&cache, "flush").await.expect("nothing is lost");
    });
    read.unwrap();
}

#[test]
fn bit_rot_of_a_clean_block_does_not_cut_off_its_record() {
    let fixture = Fixture::small("high_watermark 0 low_watermark 0");
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..10, 1).await;
        reactor::sleep(Nanos::from_secs(2)).await;
        assert_eq!(number(&cache, "clean_blocks"), 10);
        flush(&*cache).await;
    });
    done.unwrap();
    fixture.rot_data_of(4);
    fixture.life(async |cache| expect(&*cache, 0..10, 1).await).unwrap();
}

#[test]
fn a_device_neither_blank_nor_a_cache_is_refused_unchanged() {
    for copies in [0..1, 0..4, 3..4] {
        let fixture = Fixture::small("");
        for copy in copies {
            fixture.poke_area(Geometry::superblock_offset(copy), &[0x5a; UNIT]);
        }
        let before = fixture.image();
        let error = fixture.life(async |_| ()).expect_err("opened");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.chain().contains("Invalid magic in the superblock"), "{}", error.chain());
        assert!(fixture.image() == before);
    }
}

#[test]
fn another_block_size_is_refused() {
    let mut fixture = dirty_and_settled();
    fixture.config = config(512, "");
    let why = fixture.refusal();
    assert!(why.contains("Block size does not match superblock"), "{why}");
    assert!(why.contains("has 4096, the table says 512"), "{why}");
}

#[test]
fn a_refused_cache_is_not_changed_bad_superblock_copies_neither() {
    let mut fixture = dirty_and_settled();
    flip_copy(&fixture, 2, BITS[1]);
    let before = fixture.image();
    fixture.sectors = Sector(fixture.sectors.0 - 8);
    fixture.refusal();
    assert!(fixture.image() == before);
}

#[test]
fn an_origin_of_another_size_is_refused() {
    let mut fixture = dirty_and_settled();
    fixture.sectors = Sector(fixture.sectors.0 - 8);
    let why = fixture.refusal();
    assert!(why.contains("of an origin of 2048 sectors, the table maps 2040"), "{why}");
}

#[test]
fn a_too_small_device_is_refused_with_the_size_that_it_needs() {
    for kib in [4, 200, 407] {
        let fixture = Fixture::new(256, kib, "");
        let error = fixture.life(async |_| ()).expect_err("opened");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let text = error.chain();
        assert!(text.contains("Invalid device size"), "{text}");
        assert!(text.contains("needs at least 408 KiB"), "{text}");
        assert!(fixture.image().iter().all(|byte| *byte == 0), "nothing was written");
    }
    Fixture::new(256, 408, "").life(async |_| ()).unwrap();
}

#[test]
fn a_device_that_shrank_is_refused() {
    let mut fixture = dirty_and_settled();
    // The same bytes on a smaller device.
    let (image, smaller) = (fixture.image(), Fixture::new(256, 1020, ""));
    smaller.world.borrow_mut().poke(smaller.cache, Sector::ZERO, &image[..1020 << 10]);
    fixture = smaller;
    let why = fixture.refusal();
    assert!(why.contains("Memory area is too small"), "{why}");
}

/// Opens with the power going after `steps`; whether it had opened by then.
fn open_until(fixture: &Fixture, steps: u64) -> bool {
    let machine = Machine::boot(&fixture.world, 1);
    let target = fixture.target();
    let until = fixture.world.borrow().steps() + steps;
    fixture.world.borrow_mut().power_cut_at(Some(PowerCut::Step(until)));
    let opened = machine.block_on(async move { target.resume().await });
    fixture.world.borrow_mut().power_cut_at(None);
    machine.power_cut();
    match opened {
        Ok(result) => {
            result.unwrap();
            true
        }
        Err(ended) => {
            assert_eq!(ended, RunEnd::PowerCut);
            false
        }
    }
}

#[test]
fn a_format_cut_at_any_step_opens_or_is_formatted_again() {
    for seed in 0..20 {
        for steps in 0.. {
            let fixture = Fixture::seeded(seed, 256, 512, "");
            let opened = open_until(&fixture, steps);
            // And that open is cut too, somewhere else.
            open_until(&fixture, (steps * 7) % 40);
            let live = fixture.life(async |cache| {
                assert_eq!(get(&*cache, 7).await, Ok(vec![0; BLOCK]));
                fill(&*cache, 0..10, 1).await;
                flush(&*cache).await;
            });
            live.unwrap_or_else(|e| panic!("seed {seed}, step {steps}: {}", e.chain()));
            assert!(copies_are_whole(&fixture));
            fixture.life(async |cache| expect(&*cache, 0..10, 1).await).unwrap();
            if opened {
                break;
            }
        }
    }
}

#[test]
fn recovering_twice_gives_the_same_media_after_any_power_cut() {
    for seed in 0..60 {
        let fixture = Fixture::seeded(seed, 64, 416, "high_watermark 20 low_watermark 10");
        fixture.life(async |cache| fill(&*cache, 0..16, 1).await).unwrap();
        let machine = Machine::boot(&fixture.world, 1);
        let (target, steps) = (fixture.target(), fixture.world.borrow().steps());
        let cut = PowerCut::Step(steps + 60 + seed * 37);
        fixture.world.borrow_mut().power_cut_at(Some(cut));
        let work = machine.block_on(async move {
            target.clone().resume().await.unwrap();
            for version in 2.. {
                for block in 0..64 {
                    put(&*target, (block * 13) % 64, version).await.unwrap();
                    if (block + version) % 5 == 0 {
                        flush(&*target).await;
                    }
                }
            }
        });
        assert_eq!(work, Err(RunEnd::PowerCut));
        fixture.world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        fixture.life(async |_| ()).unwrap();
        let once = fixture.image();
        fixture.life(async |_| ()).unwrap();
        assert!(fixture.image() == once, "seed {seed}");
    }
}

#[test]
fn nothing_before_start_sector_is_touched_or_read() {
    let mut fixture = Fixture::small("start_sector 136");
    let foreign = vec![0xa5; 136 * 512];
    fixture.world.borrow_mut().poke(fixture.cache, Sector::ZERO, &foreign);
    fixture.config = config(4096, "start_sector 136 high_watermark 30 low_watermark 10");
    for life in 0..2 {
        let machine = Machine::boot(&fixture.world, 1);
        let recorder = RecordingDevice::over(fixture.leaf(fixture.cache));
        let (origin, below) = (fixture.leaf(fixture.origin), recorder.clone());
        let target =
            WriteCache::new("wc", fixture.config.clone(), origin, below, fixture.sectors).unwrap();
        let done = machine.block_on(async move {
            target.clone().resume().await.unwrap();
            for version in 1..4 {
                fill(&*target, 0..250, version).await;
                flush(&*target).await;
            }
            assert!(number(&target, "checkpoints") > 0);
            say(&target, "flush").await.unwrap();
            suspend(&target).await;
        });
        done.unwrap();
        machine.kill();
        let seen: Vec<_> = recorder.take().into_iter().filter(|(_, at)| !at.is_empty()).collect();
        assert!(seen.iter().all(|(_, sectors)| sectors.start >= 136), "life {life}");
    }
    assert!(fixture.peek(fixture.cache, 0, foreign.len()) == foreign);
}
