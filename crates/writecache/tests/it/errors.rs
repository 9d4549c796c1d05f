// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the origin and of the cache device: what is kept, what goes on, what is tried again
//! and when, and what is reported to an operator.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::faulty_cache::{life, millis};
use crate::common::{
    self, Fixture, expect, fields, fill, flush, get, number, pattern, put, say, suspend,
};
use block::{Class, ErrorKind, Nanos, Op, Sector, Status, Target};
use writecache::{CacheEvent, Fault, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Writeback goes on until nothing is dirty.
const EAGER: &str = "high_watermark 0 low_watermark 0 autocommit_time 1";

fn text(cache: &WriteCache, name: &str) -> String {
    cache.attribute(name).unwrap().to_string()
}

#[test]
fn a_refused_block_is_kept_and_reported_others_are_written() {
    let fixture = Fixture::small(EAGER);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        fill(&*w.cache, 0..40, 1).await;
        millis(3_000).await;
        assert_eq!(number(&w.cache, "dirty_blocks"), 1);
        assert_eq!(fields(&w.cache)[0], 5);
        assert_eq!(text(&w.cache, "writeback_error"), "I/O error");
        assert_eq!(text(&w.cache, "writeback_error_sector"), "56");
        assert_eq!(number(&w.cache, "failing_blocks"), 1);
        assert!(number(&w.cache, "writeback_errors") >= 2);
        assert!(matches!(
            w.events.borrow()[..],
            [CacheEvent::Writeback { status: Status::Io, .. }]
        ));
        // Everything goes on.
        expect(&*w.cache, 0..40, 1).await;
        fill(&*w.cache, 40..50, 1).await;
        flush(&*w.cache).await;
        millis(1_000).await;
        assert_eq!(number(&w.cache, "dirty_blocks"), 1);
        for block in (0..50).filter(|&b| b != 7) {
            assert!(inner.origin_block(block) == pattern(block, 1), "block {block}");
        }
        w.origin.repair();
        millis(70_000).await;
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "dirty_blocks")), (0, 0));
        assert_eq!(text(&w.cache, "writeback_error_sector"), "none");
        assert_eq!(number(&w.cache, "failing_blocks"), 0);
        assert_eq!(w.events.borrow().last(), Some(&CacheEvent::Recovered));
        assert!(inner.origin_block(7) == pattern(7, 1));
    });
}

#[test]
fn a_refused_block_waits_twice_as_long_each_time_up_to_a_minute() {
    let fixture = Fixture::small(EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        fill(&*w.cache, 7..8, 1).await;
        let mut tries = Vec::new();
        let mut count = 0;
        while reactor::now().0 < 400_000_000_000 {
            millis(10).await;
            if w.origin.count.get() > count {
                count = w.origin.count.get();
                tries.push(reactor::now().0 / 1_000_000_000);
            }
        }
        let waits: Vec<u64> = tries.windows(2).map(|t| t[1] - t[0]).collect();
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 64, 64], "{waits:?}");
    });
}

#[test]
fn a_run_that_was_refused_is_tried_again_block_by_block() {
    let fixture = Fixture::small(MANUAL);
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..16, 1).await;
        w.origin.refuse(Op::Write, 9..10);
        say(&w.cache, "flush").await.unwrap_err();
        let writes = w.origin.take_writes();
        assert_eq!(writes[0], 0..16);
        assert!(writes[1..].iter().all(|w| w.end - w.start == 1), "{writes:?}");
        assert_eq!(number(&w.cache, "dirty_blocks"), 1);
    });
}

#[test]
fn a_flush_messages_error_counts_the_blocks_and_keeps_them() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..100, 1).await;
        w.origin.refuse(Op::Write, 10..12);
        w.origin.refuse(Op::Write, 50..51);
        let began = reactor::now();
        let (target, most) = (w.cache.clone(), Rc::new(Cell::new(0)));
        let seen = most.clone();
        reactor::spawn(async move {
            while Rc::strong_count(&seen) > 1 {
                seen.set(number(&target, "flush_done_blocks").max(seen.get()));
                reactor::sleep(Nanos::from_millis(1)).await;
            }
        });
        let error = say(&w.cache, "flush").await.unwrap_err();
        let done = most.get();
        drop(most);
        assert!(done > 0 && done <= 97, "the refused blocks are not done: {done}");
        assert!(reactor::now().0 - began.0 < 5_000_000_000, "it took too long");
        assert_eq!(error.kind(), ErrorKind::Io);
        let said = error.chain();
        assert!(said.contains("3 blocks could not be written to the origin"), "{said}");
        assert!(said.contains("the first at sector 80 (I/O error)"), "{said}");
        assert_eq!(number(&w.cache, "dirty_blocks"), 3);
        expect(&*w.cache, 0..100, 1).await;
        // Another flush tries at once, however long they would have waited.
        w.origin.repair();
        let began = reactor::now();
        say(&w.cache, "flush").await.unwrap();
        assert!(reactor::now().0 - began.0 < 100_000_000);
        assert_eq!(fields(&w.cache)[0], 0);
        for block in 0..100 {
            assert!(inner.origin_block(block) == pattern(block, 1), "block {block}");
        }
    });
}

/// The second one took over the blocks of the first, which told alone of what was given up.
#[test]
fn two_flush_messages_at_once_both_report_the_blocks_left() {
    let fixture = Fixture::small(MANUAL);
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..10, 1).await;
        w.origin.refuse(Op::Write, 3..4);
        let outcomes = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..2 {
            let (cache, tell) = (w.cache.clone(), outcomes.clone());
            reactor::spawn(async move {
                let outcome = say(&cache, "flush").await;
                tell.borrow_mut().push(outcome.is_err());
            });
        }
        millis(10_000).await;
        assert_eq!(outcomes.take(), [true, true]);
        assert_eq!(number(&w.cache, "dirty_blocks"), 1);
    });
}

#[test]
fn blocks_of_a_failed_origin_flush_are_written_again() {
    let fixture = Fixture::small(MANUAL);
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..16, 1).await;
        w.origin.refuse(Op::Flush, 0..0);
        let said = say(&w.cache, "flush").await.unwrap_err().chain();
        assert!(said.contains("16 blocks could not be written to the origin"), "{said}");
        // At the first try and at one more.
        assert_eq!(w.origin.take_writes(), [0..16, 0..16]);
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "dirty_blocks")), (5, 16));
        assert_eq!(number(&w.cache, "failing_blocks"), 16);
        assert_eq!(w.events.borrow()[..], [CacheEvent::OriginFlush { status: Status::Io }]);
        w.origin.repair();
        say(&w.cache, "flush").await.unwrap();
        let again = w.origin.take_writes();
        assert_eq!((again.len(), &again[0]), (1, &(0..16)), "it counts before it was rewritten");
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "dirty_blocks")), (0, 0));
        assert_eq!(w.events.borrow().last(), Some(&CacheEvent::Recovered));
    });
}

#[test]
fn an_origin_that_fails_every_flush_is_not_written_forever() {
    let fixture = Fixture::small(EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Flush, 0..0);
        fill(&*w.cache, 0..16, 1).await;
        millis(127_000).await;
        assert!(w.origin.count.get() <= 8, "{} flushes in two minutes", w.origin.count.get());
        w.origin.repair();
        millis(70_000).await;
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "dirty_blocks")), (0, 0));
    });
}

#[test]
fn a_discard_beside_a_failed_flush_of_the_origin_is_an_error() {
    let fixture = Fixture::small(MANUAL);
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..4, 1).await;
        w.origin.refuse(Op::Flush, 0..0);
        let (at, len) = (Sector(0), Sector(16));
        let discarded = reactor::discard(&*w.cache, Class::Normal, at, len).await;
        assert_eq!(discarded, Err(Status::Io));
        expect(&*w.cache, 0..4, 1).await;
        w.origin.repair();
        reactor::discard(&*w.cache, Class::Normal, at, len).await.unwrap();
        put(&*w.cache, 9, 1).await.unwrap();
    });
}

#[test]
fn a_block_that_is_discarded_is_failing_no_longer() {
    let fixture = Fixture::small(EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        fill(&*w.cache, 7..8, 1).await;
        millis(500).await;
        assert_eq!(fields(&w.cache)[0], 5);
        reactor::discard(&*w.cache, Class::Normal, Sector(56), Sector(8)).await.unwrap();
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "failing_blocks")), (0, 0));
        assert_eq!(w.events.borrow().last(), Some(&CacheEvent::Recovered));
    });
}

#[test]
fn a_full_cache_on_a_refusing_origin_fails_writes_and_recovers() {
    let fixture = Fixture::new(4096, 440, EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 0..4096);
        let slots = number(&w.cache, "total_blocks");
        let mut outcome = Ok(());
        let mut block = 0;
        while outcome.is_ok() && block < 2 * slots {
            outcome = put(&*w.cache, block, 1).await;
            block += 1;
        }
        assert_eq!((outcome, block), (Err(Status::Io), slots + 1));
        expect(&*w.cache, 0..slots, 1).await;
        w.origin.repair();
        millis(70_000).await;
        put(&*w.cache, slots + 1, 1).await.unwrap();
        say(&w.cache, "flush").await.unwrap();
        expect(&*w.cache, 0..slots, 1).await;
    });
}

/// An attack from outside found that after the origin was mended the next write still got EIO, for
/// up to a minute: nobody had tried the origin again.
#[test]
fn a_starved_writer_makes_writeback_retry_at_once() {
    for refused in [Op::Write, Op::Flush] {
        let fixture = Fixture::new(4096, 440, EAGER);
        life(&fixture, async move |w| {
            let blocks = if refused == Op::Write { 0..4096 } else { 0..0 };
            w.origin.refuse(refused, blocks);
            let slots = number(&w.cache, "total_blocks");
            let mut block = 0;
            while put(&*w.cache, block, 1).await.is_ok() {
                block += 1;
                assert!(block <= slots, "{refused:?}: the cache is full");
            }
            millis(30_000).await;
            // The origin still refuses all: no writer waits long.
            for _ in 0..3 {
                let began = reactor::now();
                assert_eq!(put(&*w.cache, slots + 1, 2).await, Err(Status::Io));
                let took = reactor::now().0 - began.0;
                assert!(took < 500_000_000, "{refused:?}: {took} ns");
            }
            w.origin.repair();
            let began = reactor::now();
            for block in slots..slots + 100 {
                put(&*w.cache, block, 3).await.unwrap();
            }
            let took = reactor::now().0 - began.0;
            assert!(took < 2_000_000_000, "{refused:?}: {took} ns");
            say(&w.cache, "flush").await.unwrap();
            expect(&*w.cache, 0..slots, 1).await;
            expect(&*w.cache, slots..slots + 100, 3).await;
        });
    }
}

#[test]
fn a_suspend_does_not_wait_for_failing_blocks_resume_retries() {
    let fixture = Fixture::small(EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        fill(&*w.cache, 7..8, 1).await;
        millis(20_000).await;
        let began = reactor::now();
        suspend(&w.cache).await;
        assert!(reactor::now().0 - began.0 < 100_000_000);
        w.cache.clone().resume().await.unwrap();
        w.origin.repair();
        millis(70_000).await;
        assert_eq!((fields(&w.cache)[0], number(&w.cache, "dirty_blocks")), (0, 0));
    });
}

#[test]
fn in_fail_mode_kernel_the_first_error_stays() {
    let fixture = Fixture::small(&format!("{EAGER} fail_mode kernel"));
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        fill(&*w.cache, 7..8, 1).await;
        millis(1_000).await;
        w.origin.repair();
        millis(100_000).await;
        assert_eq!(fields(&w.cache)[0], 5);
        assert_eq!(put(&*w.cache, 9, 1).await, Err(Status::Io));
        assert_eq!(w.events.borrow()[..], [CacheEvent::Failed { status: Status::Io }]);
    });
}

#[test]
fn fail_mode_can_be_changed_while_blocks_are_failing() {
    let fixture = Fixture::small(EAGER);
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        fill(&*w.cache, 7..8, 1).await;
        millis(500).await;
        let set = w.cache.clone().set_attribute("fail_mode".into(), "kernel".into());
        set.await.unwrap();
        millis(2_000).await;
        assert_eq!(put(&*w.cache, 9, 1).await, Err(Status::Io));
    });
}

/// The slots of blocks 0 to 9 in a fresh cache: they were written in this order.
fn slot_blocks(fixture: &Fixture, blocks: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let first = fixture.geometry().slot_offset(0) / common::BLOCK as u64;
    first + blocks.start..first + blocks.end
}

#[test]
fn an_unreadable_dirty_block_is_an_error_and_is_listed() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..10, 1).await;
        flush(&*w.cache).await;
        w.device.refuse(Op::Read, slot_blocks(&inner, 3..4));
        // One read of all ten: nine of them are fine.
        let buf = block::Buf::zeroed(10 * common::BLOCK);
        let all = reactor::read(&*w.cache, Class::Foreground, Sector(0), buf.all().into()).await;
        assert!(all.is_err());
        for block in (0..10).filter(|&b| b != 3) {
            assert_eq!(get(&*w.cache, block).await, Ok(pattern(block, 1)), "block {block}");
        }
        assert!(get(&*w.cache, 3).await.is_err());
        assert_eq!(text(&w.cache, "bad_block_list"), "24");
        assert_eq!((number(&w.cache, "bad_blocks"), number(&w.cache, "drain_only")), (1, 1));
        assert_eq!(number(&w.cache, "checksum_errors"), 0);
        assert_eq!(fields(&w.cache)[0], 5);
        let event = w.events.borrow()[0];
        assert_eq!(event, CacheEvent::BadBlock { status: Status::Io, sector: Sector(24) });
        assert!(event.to_string().contains("replace the cache device"));
        // It is emptied by itself, but for that block, and not into the origin's sector.
        millis(1_000).await;
        assert_eq!(number(&w.cache, "dirty_blocks"), 0);
        let said = say(&w.cache, "flush").await.unwrap_err().chain();
        assert!(said.contains("1 blocks can't be read") && said.contains("bad_block_list"));
        assert!(inner.origin_block(3) == vec![0; common::BLOCK]);
        for block in (0..10).filter(|&b| b != 3) {
            assert!(inner.origin_block(block) == pattern(block, 1), "block {block}");
        }
        // It takes nothing new.
        put(&*w.cache, 99, 1).await.unwrap();
        assert_eq!((fields(&w.cache)[9], number(&w.cache, "dirty_blocks")), (1, 0));
        assert!(inner.origin_block(99) == pattern(99, 1));
        expect(&*w.cache, 99..100, 1).await;
        // Written again it is good.
        put(&*w.cache, 3, 2).await.unwrap();
        assert_eq!(get(&*w.cache, 3).await, Ok(pattern(3, 2)));
        assert_eq!(text(&w.cache, "bad_block_list"), "none");
        say(&w.cache, "flush").await.unwrap();
        assert!(inner.origin_block(3) == pattern(3, 2));
    });
}

/// The unreadable version is kept for its epoch, which is not on the origin; the list named the
/// block for as long, though it had been written again.
#[test]
fn a_rewritten_unreadable_block_of_an_epoch_leaves_the_list() {
    let fixture = Fixture::small(&format!("{MANUAL} ordered"));
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..10, 1).await;
        flush(&*w.cache).await;
        w.origin.hold_writes(); // no epoch ends
        w.device.refuse(Op::Read, slot_blocks(&inner, 3..4));
        assert!(get(&*w.cache, 3).await.is_err());
        assert_eq!((&*text(&w.cache, "bad_block_list"), number(&w.cache, "bad_blocks")), ("24", 1));
        put(&*w.cache, 3, 2).await.unwrap();
        assert_eq!((number(&w.cache, "old_blocks"), number(&w.cache, "bad_blocks")), (1, 0));
        assert_eq!(text(&w.cache, "bad_block_list"), "none");
        expect(&*w.cache, 3..4, 2).await;
        w.origin.release_writes();
        say(&w.cache, "flush").await.unwrap();
        assert!(inner.origin_block(3) == pattern(3, 2));
    });
}

#[test]
fn writeback_of_a_run_skips_only_its_unreadable_block() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..10, 1).await;
        flush(&*w.cache).await;
        w.device.refuse(Op::Read, slot_blocks(&inner, 3..4));
        say(&w.cache, "flush").await.unwrap_err();
        assert_eq!(text(&w.cache, "bad_block_list"), "24");
        assert_eq!(number(&w.cache, "dirty_blocks"), 0);
        assert!(w.origin.take_writes().iter().all(|w| !w.contains(&3)));
    });
}

/// Words of a message, or of the attribute `drain`, which must end in an error.
async fn must_fail(cache: Rc<WriteCache>, word: &'static str) -> String {
    match word {
        "flush" => say(&cache, word).await.unwrap_err().chain(),
        _ => cache.set_attribute(word.into(), String::new()).await.unwrap_err().chain(),
    }
}

/// The last block that a `flush` or a `drain` waits for has been refused, and waits to be tried
/// again; meanwhile a client's read finds that the cache device can't read it. Nobody tried it
/// again, nor looked what was left, and both waited for ever. What they were told, if anything.
fn outcome_of_a_waiting_block_that_becomes_unreadable(
    word: &'static str,
    options: &str,
    fault: Option<Fault>,
) -> String {
    let mut fixture = Fixture::small(&format!("{MANUAL} {options}"));
    fixture.config.plant(fault);
    let inner = fixture.clone();
    let outcome = Rc::new(RefCell::new(String::new()));
    let sink = outcome.clone();
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 0..1);
        fill(&*w.cache, 0..1, 1).await;
        let cache = w.cache.clone();
        reactor::spawn(async move { *sink.borrow_mut() = must_fail(cache, word).await });
        millis(100).await;
        assert_eq!(number(&w.cache, "failing_blocks"), 1);
        w.device.refuse(Op::Read, slot_blocks(&inner, 0..1));
        assert!(get(&*w.cache, 0).await.is_err());
        millis(5_000).await;
    });
    outcome.take()
}

#[test]
fn an_awaited_block_that_becomes_unreadable_ends_its_job() {
    for word in ["flush", "drain"] {
        for options in ["", "ordered"] {
            let outcome = |planted| {
                outcome_of_a_waiting_block_that_becomes_unreadable(word, options, planted)
            };
            let without_fault = outcome(None);
            assert!(
                without_fault.contains("1 blocks can't be read"),
                "{word} {options}: {without_fault}"
            );
            assert_eq!(outcome(Some(Fault::WaitForBad)), "", "{word} {options}: it was not found");
        }
    }
}

/// The log gets no record of discarded blocks (a planted fault), so that no commit will ever free
/// the slots: reclaim would go round for ever. It took the daemon along, with all of its devices.
#[test]
fn a_cache_with_wrong_counters_reports_it_and_stops_alone() {
    let mut fixture = Fixture::new(200, 440, MANUAL); // 24 slots
    fixture.config.plant(Some(Fault::DiscardUnlogged));
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 0..200);
        let slots = number(&w.cache, "total_blocks");
        fill(&*w.cache, 0..slots, 1).await;
        flush(&*w.cache).await;
        let (at, len) = (Sector(0), Sector(8 * slots));
        reactor::discard(&*w.cache, Class::Normal, at, len).await.unwrap();
        millis(1_000).await;
        assert_eq!(put(&*w.cache, 0, 2).await, Err(Status::Io));
        let events = w.events.borrow()[1..].to_vec(); // the first is of the refused writes
        let [CacheEvent::Recovered, CacheEvent::Bug { what }, CacheEvent::Failed { .. }] =
            events[..]
        else {
            panic!("{events:?}");
        };
        assert!(events[1].to_string().contains(what), "{what}");
        assert_eq!(get(&*w.cache, 0).await, Ok(vec![0; common::BLOCK]), "reads go on");
    });
}

/// Writeback itself found the rot, when the block was tried again. It was failing for good.
#[test]
fn a_failing_block_that_becomes_unreadable_stops_failing() {
    for options in ["", "ordered"] {
        let fixture = Fixture::small(&format!("{EAGER} {options}"));
        let inner = fixture.clone();
        life(&fixture, async move |w| {
            w.origin.refuse(Op::Write, 7..8);
            fill(&*w.cache, 7..8, 1).await;
            millis(500).await;
            assert_eq!((fields(&w.cache)[0], number(&w.cache, "failing_blocks")), (5, 1));
            inner.rot_data_of(7);
            w.origin.repair();
            millis(70_000).await;
            assert_eq!(text(&w.cache, "bad_block_list"), "56");
            assert_eq!((fields(&w.cache)[0], number(&w.cache, "failing_blocks")), (0, 0));
            assert_eq!(text(&w.cache, "writeback_error"), "none");
            let rotten = CacheEvent::RottenBlock { sector: Sector(56) };
            assert!(w.events.borrow().ends_with(&[CacheEvent::Recovered, rotten]));
        });
    }
}

#[test]
fn an_unreadable_clean_block_is_read_from_the_origin() {
    let fixture = Fixture::small("high_watermark 0 low_watermark 0 autocommit_time 1");
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..10, 1).await;
        flush(&*w.cache).await;
        millis(1_000).await;
        assert_eq!((number(&w.cache, "dirty_blocks"), number(&w.cache, "clean_blocks")), (0, 10));
        w.device.refuse(Op::Read, slot_blocks(&inner, 0..10));
        expect(&*w.cache, 0..10, 1).await;
        assert_eq!((number(&w.cache, "bad_blocks"), number(&w.cache, "drain_only")), (0, 0));
        assert_eq!(number(&w.cache, "cache_read_errors"), 10);
        assert!(w.events.borrow().is_empty());
    });
}

/// A flush of the origin fails while a write around the cache is in flight: the failure may have
/// lost it. Which status the writer gets.
fn around_beside_a_failed_flush(fault: Option<Fault>) -> Result<(), Status> {
    let mut fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
    fixture.config.plant(fault);
    let outcome = Rc::new(RefCell::new(None));
    let set = outcome.clone();
    life(&fixture, async move |w| {
        w.origin.hold_writes();
        let cache = w.cache.clone();
        reactor::spawn(async move { *set.borrow_mut() = Some(put(&*cache, 7, 1).await) });
        millis(1).await;
        assert_eq!(w.origin.held_writes(), 1);
        w.origin.refuse(Op::Flush, 0..0);
        let (at, len) = (Sector(800), Sector(16));
        let discarded = reactor::discard(&*w.cache, Class::Normal, at, len).await;
        assert_eq!(discarded, Err(Status::Io));
        w.origin.repair();
        w.origin.release_writes();
        millis(1).await;
        // No acknowledged write is lost: the cache does not fail.
        put(&*w.cache, 8, 1).await.unwrap();
        flush(&*w.cache).await;
        expect(&*w.cache, 8..9, 1).await;
    });
    let written = outcome.take();
    written.expect("it was written")
}

#[test]
fn a_write_around_beside_a_failed_origin_flush_is_an_error() {
    assert_eq!(around_beside_a_failed_flush(None), Err(Status::Io));
    let planted = around_beside_a_failed_flush(Some(Fault::AroundBesideFlushError));
    assert_eq!(planted, Ok(()), "nobody would see it");
}

/// Such a write, and one that the origin refused, counted as data that a flush must cover: when the
/// next flush of the origin failed, too, the cache failed stop for what nobody had been promised.
#[test]
fn a_write_around_that_failed_can_not_be_lost_later() {
    let fixture = Fixture::small(&format!("{MANUAL} metadata_only"));
    life(&fixture, async move |w| {
        w.origin.refuse(Op::Write, 7..8);
        w.origin.refuse(Op::Flush, 0..0);
        assert_eq!(put(&*w.cache, 7, 1).await, Err(Status::Io));
        w.origin.hold_writes();
        let cache = w.cache.clone();
        reactor::spawn(async move { assert_eq!(put(&*cache, 8, 1).await, Err(Status::Io)) });
        let (at, len) = (Sector(800), Sector(16));
        for _ in 0..2 {
            let discarded = reactor::discard(&*w.cache, Class::Normal, at, len).await;
            assert_eq!(discarded, Err(Status::Io));
            w.origin.release_writes();
            millis(1).await;
        }
        assert_eq!(w.origin.count.get(), 3, "a write and two flushes");
        w.origin.repair();
        fill(&*w.cache, 7..10, 2).await;
        flush(&*w.cache).await;
        expect(&*w.cache, 7..10, 2).await;
        assert!(!w.events.borrow().iter().any(|event| matches!(event, CacheEvent::Failed { .. })));
    });
}
