// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Long WRITE_ZEROES of a cache with epochs: what they cost, what is reported to an operator, and
//! what becomes of them when the origin fails, or the cache is opened in another way.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use crate::common::faulty_cache::{life, millis};
use crate::common::{
    BLOCK, Fixture, at, expect, fields, fill, flush, get, number, pattern, put, say, suspend,
};
use block::{Bio, BlockDevice, Class, Flags, Limits, Op, Sector, Status, Target};
use sim::Machine;
use writecache::{CacheEvent, Depth, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "ordered high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Writeback goes on until nothing is dirty.
const EAGER: &str = "ordered high_watermark 0 low_watermark 0 autocommit_time 1";

fn fixture(options: &str) -> Fixture {
    let mut fixture = Fixture::small(options);
    fixture.config.set_zeroes_as_data_max(0);
    fixture
}

async fn zero(dev: &dyn BlockDevice, blocks: Range<u64>, flags: Flags) {
    let (from, len) = (at(blocks.start), at(blocks.end - blocks.start));
    assert_eq!(reactor::write_zeroes(dev, flags, Class::Normal, from, len).await, Ok(()));
}

async fn is_zero(dev: &dyn BlockDevice, blocks: Range<u64>) {
    for block in blocks {
        assert!(get(dev, block).await == Ok(vec![0; BLOCK]), "block {block} is not zero");
    }
}

/// attack-2, finding 8: 28 bytes of a client were 4 GiB of writes to a cache of 64 MiB.
#[test]
fn four_gigabytes_of_zeroes_cost_one_record_and_few_requests() {
    const BLOCKS: u64 = 1 << 20;
    let fixture = Fixture::new(BLOCKS, 64 << 10, MANUAL);
    let (inner, origin) = (fixture.clone(), fixture.origin);
    let (before, after, origin_writes) = fixture
        .life(async move |cache| {
            fill(&*cache, 100..140, 1).await;
            flush(&*cache).await;
            let before = inner.world.borrow().stats(inner.cache);
            zero(&*cache, 0..BLOCKS, Flags::empty()).await;
            fill(&*cache, 120..121, 2).await;
            flush(&*cache).await;
            let after = inner.world.borrow().stats(inner.cache);
            assert_eq!(number(&cache, "zero_blocks"), BLOCKS);
            is_zero(&*cache, 100..120).await;
            expect(&*cache, 120..121, 2).await;
            is_zero(&*cache, BLOCKS - 2..BLOCKS).await;
            say(&cache, "flush").await.unwrap();
            assert_eq!(number(&cache, "zero_blocks"), 0);
            (before, after, inner.world.borrow().stats(inner.origin).writes)
        })
        .unwrap();
    // The block, and records of the commits.
    let bytes = after.write_bytes - before.write_bytes;
    assert!(bytes <= 4 * BLOCK as u64, "{bytes} bytes were written to the cache device");
    // A run of the first epoch and one of the last; and zeroes, 64 MiB a request.
    assert_eq!(origin_writes, 2 + 64);
    assert_eq!(fixture.peek(origin, 130 * BLOCK as u64, BLOCK), vec![0; BLOCK]);
    assert!(fixture.origin_block(120) == pattern(120, 2));
}

#[test]
fn zeroes_survive_a_kill_once_they_are_flushed_or_fua() {
    for fua in [false, true] {
        let fixture = fixture(MANUAL);
        fixture
            .life(async move |cache| {
                fill(&*cache, 0..30, 1).await;
                flush(&*cache).await;
                let flags = if fua { Flags::FUA } else { Flags::empty() };
                zero(&*cache, 10..20, flags).await;
                if !fua {
                    flush(&*cache).await;
                }
            })
            .unwrap();
        let last = fixture.last_record();
        let has_zero = |e: &format::Entry| e.op == format::Op::Zero;
        assert!(fixture.record(last).unwrap().1.iter().any(has_zero), "in the last record");
        fixture
            .life(async move |cache| {
                expect(&*cache, 0..10, 1).await;
                is_zero(&*cache, 10..20).await;
                expect(&*cache, 20..30, 1).await;
                assert_eq!(number(&cache, "zero_blocks"), 10);
                assert_eq!(number(&cache, "old_blocks"), 10, "of the epoch before");
                say(&cache, "flush").await.unwrap();
                assert_eq!(number(&cache, "unsaved_blocks"), 0);
            })
            .unwrap();
        assert!(
            fixture.origin_block(9) == pattern(9, 1) && fixture.origin_block(10) == vec![0; BLOCK]
        );
    }
}

#[test]
fn unsaved_ranges_include_zeroes() {
    let fixture = fixture(MANUAL);
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            fill(&*cache, 0..4, 1).await;
            zero(&*cache, 2..12, Flags::empty()).await;
            fill(&*cache, 10..14, 2).await;
            flush(&*cache).await;
            assert_eq!(number(&cache, "unsaved_blocks"), 6 + 10);
            assert_eq!(cache.unsaved().unwrap().dirty, 6 + 10);
            let runs = cache.clone().dirty(Sector::ZERO, inner.sectors).await.unwrap();
            assert_eq!(runs, [(Sector::ZERO, at(14))]);
            suspend(&cache).await;
        })
        .unwrap();
    let machine = Machine::boot(&fixture.world, 1);
    let device = fixture.leaf(fixture.cache);
    let report = machine.block_on(async move {
        writecache::probe(device, Sector::ZERO, Depth::Data).await.unwrap()
    });
    machine.kill();
    let report = report.unwrap();
    let found = report.occupancy().unwrap();
    assert_eq!((found.dirty, &found.dirty_ranges[..]), (14, &[(Sector::ZERO, at(14))][..]));
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

/// The blocks still read as zeroes, nothing of a later epoch is written before them, and the error
/// is reported.
#[test]
fn refused_zeroes_are_kept_reported_and_tried_again() {
    let fixture = fixture(EAGER);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..40, 1).await;
        flush(&*w.cache).await;
        millis(1_000).await;
        assert_eq!(number(&w.cache, "unsaved_blocks"), 0);
        w.origin.refuse(Op::WriteZeroes, 7..8);
        zero(&*w.cache, 5..20, Flags::empty()).await;
        fill(&*w.cache, 30..31, 2).await;
        flush(&*w.cache).await;
        millis(5_000).await;
        assert!(w.origin.count.get() >= 2, "tried again");
        is_zero(&*w.cache, 5..20).await;
        assert_eq!(fields(&w.cache)[0], 5);
        assert_eq!(w.cache.attribute("writeback_error_sector").unwrap(), "40");
        assert_eq!(number(&w.cache, "failing_blocks"), 1);
        assert_eq!(number(&w.cache, "zero_blocks"), 15);
        assert!(matches!(
            w.events.borrow()[..],
            [CacheEvent::Writeback { status: Status::Io, .. }]
        ));
        assert!(inner.origin_block(30) == pattern(30, 1), "of a later epoch");
        let error = say(&w.cache, "flush").await.unwrap_err().chain();
        assert!(error.contains("could not be written to the origin"), "{error}");
        w.origin.repair();
        millis(70_000).await;
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "unsaved_blocks")), (0, 0));
        assert_eq!(w.events.borrow().last(), Some(&CacheEvent::Recovered));
        assert!(inner.origin_block(7) == vec![0; BLOCK]);
        assert!(inner.origin_block(30) == pattern(30, 2));
    });
}

/// A flush of the origin that failed may have lost the zeroes.
#[test]
fn zeroes_whose_flush_the_origin_fails_are_written_again() {
    let fixture = fixture(EAGER);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..40, 1).await;
        flush(&*w.cache).await;
        millis(1_000).await;
        w.origin.refuse(Op::Flush, 0..0);
        zero(&*w.cache, 5..20, Flags::empty()).await;
        flush(&*w.cache).await;
        millis(3_000).await;
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "zero_blocks")), (5, 15));
        w.origin.repair();
        let before = inner.world.borrow().stats(inner.origin).writes;
        millis(70_000).await;
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "unsaved_blocks")), (0, 0));
        let after = inner.world.borrow().stats(inner.origin).writes;
        assert_eq!(after, before + 1, "the zeroes, once more");
        assert!(inner.origin_block(7) == vec![0; BLOCK]);
    });
}

/// A writer that waits for a slot gets an error when the zeroes before it can't be written.
#[test]
fn refused_zeroes_do_not_hang_writers() {
    let fixture = fixture(EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::WriteZeroes, 0..256);
        zero(&*w.cache, 0..256, Flags::empty()).await;
        let mut outcome = Ok(());
        for block in 0..2_000 {
            outcome = put(&*w.cache, block % 256, block).await;
            if outcome.is_err() {
                break;
            }
            flush(&*w.cache).await;
        }
        assert_eq!(outcome, Err(Status::Io));
        w.origin.repair();
        millis(70_000).await;
        fill(&*w.cache, 0..256, 9).await;
        say(&w.cache, "flush").await.unwrap();
    });
}

/// An origin that knows no WRITE_ZEROES.
struct Plain {
    below: Rc<dyn BlockDevice>,
    asked: Cell<u64>,
}

impl BlockDevice for Plain {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        Limits { write_zeroes: false, ..self.below.limits() }
    }
    fn submit(&self, bio: Bio) {
        if bio.op == Op::WriteZeroes {
            self.asked.set(self.asked.get() + 1);
            return bio.complete(Status::NotSupported);
        }
        self.below.submit(bio);
    }
}

#[test]
fn an_origin_that_knows_no_zeroes_gets_them_as_data() {
    let fixture = fixture(EAGER);
    let inner = fixture.clone();
    let machine = Machine::boot(&fixture.world, 1);
    let origin = Rc::new(Plain { below: fixture.leaf(fixture.origin), asked: Cell::new(0) });
    let device = fixture.leaf(fixture.cache);
    let cache =
        WriteCache::new("wc", fixture.config.clone(), origin, device, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 0..40, 1).await;
        zero(&*cache, 5..20, Flags::empty()).await;
        fill(&*cache, 8..9, 2).await;
        flush(&*cache).await;
        millis(3_000).await;
        assert_eq!(number(&cache, "unsaved_blocks"), 0);
        assert!(inner.origin_block(4) == pattern(4, 1));
        assert!((5..20).all(|b| b == 8 || inner.origin_block(b) == vec![0; BLOCK]));
        assert!(inner.origin_block(8) == pattern(8, 2));
    });
    machine.kill();
    done.unwrap();
}

/// Without the order there is nobody who knows of zeroes: the origin has them before.
#[test]
fn a_cache_opened_without_ordered_writes_its_zeroes_first() {
    let mut fixture = fixture(MANUAL);
    fixture
        .life(async move |cache| {
            fill(&*cache, 0..30, 1).await;
            flush(&*cache).await;
            zero(&*cache, 5..20, Flags::FUA).await;
            fill(&*cache, 8..9, 2).await;
            flush(&*cache).await;
        })
        .unwrap();
    fixture.config.ordered = false;
    let holds = async |cache: &WriteCache| {
        expect(cache, 0..5, 1).await;
        is_zero(cache, 5..8).await;
        expect(cache, 8..9, 2).await;
        is_zero(cache, 9..20).await;
        expect(cache, 20..30, 1).await;
    };
    for ordered in [false, false, true] {
        fixture.config.ordered = ordered;
        let (zeroes, old) = fixture
            .life(async move |cache| {
                holds(&cache).await;
                cache.check();
                (number(&cache, "zero_blocks"), number(&cache, "old_blocks"))
            })
            .unwrap();
        assert_eq!((zeroes, old), (0, 0), "ordered: {ordered}");
        assert!(fixture.origin_block(19) == vec![0; BLOCK]);
    }
}

#[test]
fn more_zeroes_than_there_is_room_to_remember_are_data() {
    let fixture = fixture(MANUAL);
    fixture
        .life(async move |cache| {
            fill(&*cache, 0..200, 1).await;
            for n in 0..40 {
                zero(&*cache, 5 * n..5 * n + 1, Flags::empty()).await;
            }
            flush(&*cache).await;
            assert_eq!(number(&cache, "zero_blocks"), 16, "as many as there is room for");
            for block in 0..200 {
                match block % 5 {
                    0 => is_zero(&*cache, block..block + 1).await,
                    _ => expect(&*cache, block..block + 1, 1).await,
                }
            }
            say(&cache, "flush").await.unwrap();
        })
        .unwrap();
    assert!((0..40).all(|n| fixture.origin_block(5 * n) == vec![0; BLOCK]));
}

/// An older program would have served what was before the record that it does not know.
#[test]
fn a_log_record_of_a_later_version_is_refused_unchanged() {
    let fixture = fixture(MANUAL);
    fixture
        .life(async move |cache| {
            fill(&*cache, 0..5, 1).await;
            flush(&*cache).await;
        })
        .unwrap();
    let offset = fixture.geometry().log_offset(fixture.last_record());
    let mut unit = fixture.area(offset, format::UNIT);
    unit[8] = 4;
    unit[12..16].fill(0);
    let crc = format::checksum(&unit);
    unit[12..16].copy_from_slice(&crc.to_le_bytes());
    fixture.poke_area(offset, &unit);
    let image = fixture.image();
    let refusal = fixture.refusal();
    assert!(refusal.contains("version 4"), "{refusal}");
    assert!(fixture.image() == image, "nothing was changed");
}
