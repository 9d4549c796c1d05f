// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead: what is read ahead of which streams, what makes it invalid, and that its errors and
//! its time are nobody's.
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Op, Sector, Status, Target};
use sim::Machine;
use writecache::{Fault, WriteCache};

use crate::common::faulty_cache::{FaultyCache, life, millis};
use crate::common::stalled::StalledDevice;
use crate::common::{
    BLOCK, Fixture, at, expect, fill, flush, get, number, pattern, put, say, suspend,
};

/// Nothing is written back unless it is asked for, and streams of any length may enter.
const READS: &str = "high_watermark 100 low_watermark 100 read_cache 1";

/// An origin of 8 MiB and a cache of 4 MiB.
fn fixture(options: &str, fault: Option<Fault>) -> Fixture {
    let mut fixture = Fixture::new(2048, 4 << 10, &format!("{READS} {options}"));
    fixture.config.plant(fault);
    for block in 0..2048 {
        fixture.world.borrow_mut().poke(fixture.origin, at(block), &pattern(block, 1));
    }
    fixture
}

async fn set(cache: &Rc<WriteCache>, name: &str, value: &str) {
    cache.clone().set_attribute(name.to_owned(), value.to_owned()).await.unwrap();
}

fn bytes(cache: &WriteCache) -> [u64; 3] {
    ["read_ahead_bytes", "read_ahead_used_bytes", "read_ahead_wasted_bytes"]
        .map(|name| number(cache, name))
}

/// Bytes that were read ahead and are kept.
fn kept(cache: &WriteCache) -> u64 {
    let [read, used, wasted] = bytes(cache);
    read - used - wasted
}

/// Reads of the origin that one life of the cache asks for.
fn asks_for(options: &str, work: impl AsyncFnOnce(&Rc<WriteCache>) + 'static) -> u64 {
    let fixture = fixture(options, None);
    let inner = fixture.clone();
    let reads = move || inner.world.borrow().stats(inner.origin).reads;
    fixture
        .life(async move |cache| {
            let before = reads();
            work(&cache).await;
            reads() - before
        })
        .unwrap()
}

#[test]
fn a_stream_is_read_in_large_requests() {
    let without = asks_for("read_ahead 0", async |cache| {
        expect(&**cache, 0..2048, 1).await;
        assert_eq!(bytes(cache), [0; 3]);
        assert_eq!(cache.attribute("read_ahead_state").unwrap(), "off");
    });
    assert_eq!(without, 2048);
    let with = asks_for("", async |cache| {
        expect(&**cache, 0..2048, 1).await;
        assert_eq!(cache.attribute("read_ahead_state").unwrap(), "on");
        // All but the first two blocks.
        assert_eq!(bytes(cache), [2046 * BLOCK as u64, 2046 * BLOCK as u64, 0]);
        assert_eq!(number(cache, "read_hits"), 0);
    });
    assert!(with <= 20, "{with} requests");
}

#[test]
fn longer_reads_and_reads_behind_gaps_are_streams_too() {
    let reads = asks_for("", async |cache| {
        let buf = Buf::zeroed(16 * BLOCK);
        for from in (0..2048).step_by(16) {
            let all = buf.all().into();
            reactor::read(&**cache, Class::Foreground, at(from), all).await.unwrap();
            for (block, data) in (from..).zip(buf.read(|b| b.to_vec()).chunks(BLOCK)) {
                assert_eq!(data, pattern(block, 1), "block {block}");
            }
        }
    });
    assert!(reads <= 20, "{reads} requests");
    let reads = asks_for("", async |cache| {
        for block in (0..2048).step_by(3) {
            expect(&**cache, block..block + 1, 1).await;
        }
        let [read, used, _] = bytes(cache);
        assert!(used * 4 > read, "{used} of {read}");
    });
    assert!(reads <= 30, "{reads} requests for 683 blocks");
}

#[test]
fn random_reads_cost_what_they_cost_without_it() {
    let random = async |cache: &Rc<WriteCache>| {
        for n in 0..2000u64 {
            let block = n * 1237 % 2048;
            expect(&**cache, block..block + 1, 1).await;
        }
        assert_eq!(bytes(cache), [0; 3]);
    };
    assert_eq!(asks_for("", random), asks_for("read_ahead 0", random));
}

/// Two blocks in order, and then elsewhere: as random reads that a client sends in two pieces.
#[test]
fn waste_makes_read_ahead_rare() {
    let fixture = Fixture::new(1 << 17, 4 << 10, &format!("{READS} read_ahead 1M"));
    fixture
        .life(async |cache| {
            let mut read = [0; 2];
            for (round, read) in read.iter_mut().enumerate() {
                for n in 0..500u64 {
                    let block = n * 131 + round as u64 * 65_536;
                    for block in block..block + 2 {
                        get(&*cache, block).await.unwrap();
                    }
                }
                *read = bytes(&cache)[0];
            }
            // As much as memory holds, and then as good as nothing.
            let [first, both] = read;
            assert!(first <= 5 << 18, "{first} bytes");
            assert!(both - first <= 64 << 10, "{} bytes more", both - first);
            // Long streams earn it again.
            for block in 0..8192 {
                get(&*cache, block).await.unwrap();
            }
            let more = bytes(&cache)[0] - both;
            assert!(more > 28 << 20, "{more} bytes");
        })
        .unwrap();
}

#[test]
fn memory_is_bounded_and_old_segments_leave() {
    asks_for("read_ahead 128K", async |cache| {
        for n in 0..200 {
            for stream in 0..6 {
                let block = stream * 300 + n;
                expect(&**cache, block..block + 1, 1).await;
                assert!(kept(cache) <= 128 << 10, "{:?}", bytes(cache));
            }
        }
        assert!(bytes(cache)[1] > 1 << 20, "{:?}", bytes(cache));
        set(cache, "read_ahead", "0").await;
        assert_eq!(kept(cache), 0);
        assert_eq!(cache.attribute("read_ahead_state").unwrap(), "off");
    });
}

/// What a client reads of block 12 that was read ahead, after `change`.
fn read_after(
    fault: Option<Fault>,
    change: impl AsyncFnOnce(&FaultyCache, &Fixture) + 'static,
) -> Vec<u8> {
    let fixture = fixture("autocommit_time 1", fault);
    let (inner, found) = (fixture.clone(), Rc::new(Cell::new(Vec::new())));
    let told = found.clone();
    life(&fixture, async move |w| {
        expect(&*w.cache, 0..8, 1).await;
        millis(5).await;
        assert!(kept(&w.cache) >= 8 * BLOCK as u64);
        change(&w, &inner).await;
        told.set(get(&*w.cache, 12).await.unwrap());
    });
    found.take()
}

/// A promise that a fault breaks: the version of block 12 that clients must read.
fn is_found(
    fault: Fault,
    version: u64,
    change: impl AsyncFnOnce(&FaultyCache, &Fixture) + Copy + 'static,
) {
    assert!(read_after(None, change) == pattern(12, version), "it does not hold as it is");
    assert!(read_after(Some(fault), change) != pattern(12, version), "{fault:?} was not found");
}

#[test]
fn a_write_that_was_written_back_beats_what_was_read_ahead() {
    is_found(Fault::AheadOutlivesChange, 2, async |w, _| {
        put(&*w.cache, 12, 2).await.unwrap();
        assert_eq!(get(&*w.cache, 12).await, Ok(pattern(12, 2)), "dirty in the cache");
        say(&w.cache, "flush").await.unwrap();
        assert_eq!(number(&w.cache, "used_blocks"), 0);
    });
}

#[test]
fn a_write_around_the_cache_beats_what_was_read_ahead() {
    is_found(Fault::AheadOutlivesChange, 2, async |w, _| {
        set(&w.cache, "cleaner", "1").await;
        put(&*w.cache, 12, 2).await.unwrap();
        assert_eq!(number(&w.cache, "writes_around"), 1);
    });
}

#[test]
fn a_discard_beats_what_was_read_ahead() {
    let discard = async |w: &FaultyCache, _: &Fixture| {
        let (class, len) = (Class::Normal, Sector(8));
        reactor::discard(&*w.cache, class, at(12), len).await.unwrap();
    };
    assert_ne!(read_after(None, discard), pattern(12, 1));
    assert_eq!(read_after(Some(Fault::AheadOutlivesChange), discard), pattern(12, 1));
}

/// The origin has lost what was written around the cache and read ahead.
#[test]
fn a_failed_flush_ends_what_was_read_ahead() {
    is_found(Fault::AheadOutlivesFlushError, 1, async |w, fixture| {
        w.origin.refuse(Op::Flush, 0..1);
        set(&w.cache, "cleaner", "1").await;
        put(&*w.cache, 40, 2).await.unwrap();
        fixture.world.borrow_mut().poke(fixture.origin, at(12), &pattern(12, 2));
        set(&w.cache, "read_ahead", "1M").await;
        expect(&*w.cache, 0..4, 1).await;
        expect(&*w.cache, 4..8, 1).await;
        millis(5).await;
        let flushed = reactor::flush(&*w.cache, Class::Foreground).await;
        assert!(flushed.is_err());
        fixture.world.borrow_mut().poke(fixture.origin, at(12), &pattern(12, 1));
    });
}

/// The origin was used without its cache.
#[test]
fn a_suspend_ends_what_was_read_ahead() {
    is_found(Fault::AheadOutlivesSuspend, 3, async |w, fixture| {
        suspend(&w.cache).await;
        fixture.world.borrow_mut().poke(fixture.origin, at(12), &pattern(12, 3));
        w.cache.clone().resume().await.unwrap();
    });
}

/// Reads that succeed of 64 blocks of which the origin can't read two, and how many are right.
fn beside_an_unreadable_block(fault: Option<Fault>) -> (u64, u64) {
    let found = Rc::new(Cell::new((0, 0)));
    let told = found.clone();
    life(&fixture("", fault), async move |w| {
        w.origin.refuse(Op::Read, 20..22);
        let (mut good, mut right) = (0, 0);
        for block in 0..64 {
            match get(&*w.cache, block).await {
                Ok(data) => {
                    good += 1;
                    right += u64::from(data == pattern(block, 1));
                }
                Err(status) => assert_eq!((status, (20..22).contains(&block)), (Status::Io, true)),
            }
        }
        assert!(fault.is_some() || w.origin.count.get() > 2, "the read-ahead has failed, too");
        w.origin.repair();
        expect(&*w.cache, 0..64, 1).await;
        told.set((good, right));
    });
    found.get()
}

#[test]
fn an_error_of_a_read_ahead_is_nobodys() {
    assert_eq!(beside_an_unreadable_block(None), (62, 62));
}

#[test]
fn a_read_ahead_that_has_failed_and_counts_is_caught() {
    let (good, right) = beside_an_unreadable_block(Some(Fault::AheadErrorKept));
    assert!(right < good, "{right} of {good}");
}

/// A cache whose origin holds all reads back from block 2 on.
fn held(work: impl AsyncFnOnce(Rc<WriteCache>, Rc<StalledDevice>) + 'static) {
    let fixture = fixture("", None);
    let machine = Machine::boot(&fixture.world, 1);
    let origin = StalledDevice::over(fixture.leaf(fixture.origin));
    let (below, device) = (origin.clone(), fixture.leaf(fixture.cache));
    let cache =
        WriteCache::new("wc", fixture.config.clone(), below, device, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        origin.hold(|bio| bio.op == Op::Read && bio.sector >= at(2));
        expect(&*cache, 0..2, 1).await;
        assert_eq!(origin.count(), 1, "blocks 2 to 5 are read ahead");
        work(cache, origin).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
}

/// A client reads blocks; tells when it is done.
fn reader(cache: &Rc<WriteCache>, blocks: Range<u64>, version: u64) -> Rc<Cell<bool>> {
    let (ended, cache) = (Rc::new(Cell::new(false)), cache.clone());
    let tell = ended.clone();
    reactor::spawn(async move {
        expect(&*cache, blocks, version).await;
        tell.set(true);
    });
    ended
}

#[test]
fn a_read_of_what_is_being_read_ahead_waits_for_it() {
    held(async |cache, origin| {
        let ended = [reader(&cache, 3..4, 1), reader(&cache, 3..4, 1)];
        millis(5).await;
        assert!(ended.iter().all(|ended| !ended.get()));
        assert!(origin.count() <= 2, "only more is read ahead");
        origin.release();
        millis(5).await;
        assert!(ended.iter().all(|ended| ended.get()));
    });
}

/// Its data are those of before the write, and it reads the origin again.
#[test]
fn a_change_beats_a_read_ahead_that_is_under_way() {
    held(async |cache, origin| {
        let before = reader(&cache, 5..6, 1);
        millis(5).await;
        fill(&*cache, 2..5, 2).await;
        say(&cache, "flush").await.unwrap();
        let after = reader(&cache, 2..5, 2);
        millis(5).await;
        origin.release();
        millis(20).await;
        assert!(before.get() && after.get());
        assert_eq!(bytes(&cache)[1], 0);
    });
}

#[test]
fn a_suspend_waits_for_what_is_being_read_ahead() {
    held(async |cache, origin| {
        let (ended, suspending) = (Rc::new(Cell::new(false)), cache.clone());
        let tell = ended.clone();
        reactor::spawn(async move {
            suspend(&suspending).await;
            tell.set(true);
        });
        millis(1000).await;
        assert!(!ended.get());
        origin.release();
        millis(1000).await;
        assert!(ended.get());
        assert_eq!(kept(&cache), 0);
        cache.clone().resume().await.unwrap();
        expect(&*cache, 0..100, 1).await;
        flush(&*cache).await;
    });
}

#[test]
fn blocks_that_are_read_ahead_enter_at_their_second_read() {
    asks_for("sequential_read_cutoff 0", async |cache| {
        expect(&**cache, 0..200, 1).await;
        assert_eq!(number(cache, "read_admitted"), 0);
        expect(&**cache, 0..200, 1).await;
        millis(5).await;
        assert_eq!(number(cache, "read_admitted"), 200);
        set(cache, "read_ahead", "0").await;
        let hits = number(cache, "read_hits");
        expect(&**cache, 0..200, 1).await;
        assert_eq!(number(cache, "read_hits") - hits, 200);
        cache.check();
    });
}
