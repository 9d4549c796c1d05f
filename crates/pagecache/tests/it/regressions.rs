// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Situations in which the cache once hung, looped, or never woke a task, each as small as
//! possible.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use block::{
    Bio, BlockDevice, Buf, Class, Flags, Limits, Nanos, Op, Opener, Sector, Status, Target,
};
use pagecache::{Config, PageCache};
use queue::Mem;
use reactor::WaitList;
use sim::{Machine, World};

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const PAGES: u64 = 65536;

/// A device in RAM that completes requests at once, holds them back, or fails them.
struct FaultyRam {
    mem: Mem,
    hold: RefCell<Vec<Op>>,
    held: RefCell<VecDeque<Bio>>,
    /// Writes of these pages fail.
    bad: RefCell<Vec<u64>>,
    came: Cell<u64>,
    /// Woken by each write.
    written: WaitList,
}

impl FaultyRam {
    fn new() -> Rc<FaultyRam> {
        Rc::new(FaultyRam {
            mem: Mem::new("below", Sector(PAGES * 8)).unwrap(),
            hold: RefCell::default(),
            held: RefCell::default(),
            bad: RefCell::default(),
            came: Cell::new(0),
            written: WaitList::new(),
        })
    }

    fn send(&self, bio: Bio) {
        let (from, to) = (bio.sector.0 / 8, bio.end().0.div_ceil(8));
        let bad = self.bad.borrow().iter().any(|page| (from..to).contains(page));
        if bio.op == Op::Write && bad { bio.complete(Status::Io) } else { self.mem.submit(bio) }
    }

    fn release_one(&self) {
        let bio = self.held.borrow_mut().pop_front().expect("something is held");
        self.send(bio);
    }

    fn release(&self) {
        self.hold.take();
        while !self.held.borrow().is_empty() {
            self.release_one();
        }
    }
}

impl BlockDevice for FaultyRam {
    fn name(&self) -> &str {
        self.mem.name()
    }
    fn limits(&self) -> Limits {
        self.mem.limits()
    }
    fn submit(&self, bio: Bio) {
        self.came.set(self.came.get() + 1);
        if bio.op == Op::Write {
            self.written.wake_all();
        }
        if self.hold.borrow().contains(&bio.op) {
            self.held.borrow_mut().push_back(bio);
        } else {
            self.send(bio);
        }
    }
}

async fn cache(below: &Rc<FaultyRam>, options: &str, memory_bytes: u64) -> Rc<PageCache> {
    let options = format!("read_ahead_kb 0 dirty_writeback_centisecs 0 {options}");
    let len = below.limits().capacity;
    let words: Vec<&str> = options.split_whitespace().collect();
    let count = words.len().to_string();
    let args: Vec<&str> = [count.as_str()].into_iter().chain(words).collect();
    let mut config = Config::parse(&args).unwrap();
    config.memory_bytes = memory_bytes;
    let cache = PageCache::new("cache", config, below.clone(), len).unwrap();
    cache.clone().resume().await.unwrap();
    cache
}

fn run(seed: u64, work: impl AsyncFnOnce(Rc<FaultyRam>) + 'static) {
    let world = World::calm(seed);
    let machine = Machine::boot(&world, 1);
    machine
        .block_on(async move {
            let below = FaultyRam::new();
            work(below.clone()).await;
            below.release();
        })
        .unwrap();
    machine.kill();
}

/// The outcome of a request that a task of its own waits for.
type Outcome = Rc<Cell<Option<Result<(), Status>>>>;

fn send(cache: &Rc<PageCache>, op: Op, class: Class, sectors: Range<u64>) -> Outcome {
    let outcome = Outcome::default();
    let (cache, set) = (cache.clone(), outcome.clone());
    reactor::spawn(async move { set.set(Some(request(&cache, op, class, sectors).await)) });
    outcome
}

async fn request(
    cache: &PageCache,
    op: Op,
    class: Class,
    sectors: Range<u64>,
) -> Result<(), Status> {
    let (at, len) = (Sector(sectors.start), Sector(sectors.end - sectors.start));
    let bufs = match op {
        Op::Read | Op::Write => Buf::zeroed(len.bytes() as usize).into(),
        Op::Flush | Op::Discard | Op::WriteZeroes => block::Bufs::new(),
    };
    let opener = Opener(1);
    reactor::io_by(opener, cache, op, Flags::empty(), class, (at, len), bufs).await
}

fn sectors(pages: Range<u64>) -> Range<u64> {
    pages.start * 8..pages.end * 8
}

async fn write(cache: &PageCache, pages: Range<u64>) -> Result<(), Status> {
    request(cache, Op::Write, Class::Normal, sectors(pages)).await
}

async fn flush(cache: &PageCache) -> Result<(), Status> {
    request(cache, Op::Flush, Class::Normal, 0..0).await
}

async fn number(cache: &Rc<PageCache>, name: &str) -> u64 {
    let text = cache.clone().get_attribute("cache_stat".to_owned()).await.unwrap().to_string();
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    found.expect(name).parse().unwrap()
}

/// Lets all tasks that can run do so a few times, without moving the clock.
async fn run_tasks(count: u32) {
    let mut left = count;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn sleep_ms(ms: u64) {
    reactor::sleep(Nanos(ms * MS)).await;
}

/// A memory of 512 pages, of which readers that wait for the device hold 480.
async fn nearly_full(below: &Rc<FaultyRam>) -> (Rc<PageCache>, Vec<Outcome>) {
    let cache = cache(below, "", 3 * MIB).await;
    let readers = fill_with_readers(below, &cache).await;
    (cache, readers)
}

async fn fill_with_readers(below: &Rc<FaultyRam>, cache: &Rc<PageCache>) -> Vec<Outcome> {
    below.hold.replace(vec![Op::Read]);
    let read = |at: u64| send(cache, Op::Read, Class::Normal, sectors(at * 64..at * 64 + 48));
    let readers = (0..10).map(read).collect();
    run_tasks(2000).await;
    readers
}

#[test]
fn readers_that_wait_for_memory_do_not_wake_each_other() {
    run(1, async |below| {
        let (cache, mut readers) = nearly_full(&below).await;
        for at in 10..12 {
            readers.push(send(&cache, Op::Read, Class::Normal, sectors(at * 64..at * 64 + 48)));
        }
        run_tasks(2000).await;
        let evicted = number(&cache, "evicted_folios").await;
        run_tasks(2000).await;
        assert_eq!(number(&cache, "evicted_folios").await, evicted, "nothing has changed");
        below.release();
        sleep_ms(1).await;
        assert!(readers.iter().all(|r| r.get() == Some(Ok(()))));
    });
}

#[test]
fn a_low_priority_read_waits_for_memory_too() {
    run(1, async |below| {
        let (cache, _readers) = nearly_full(&below).await;
        let idle = send(&cache, Op::Read, Class::Idle, sectors(1000..1048));
        run_tasks(2000).await;
        below.release();
        sleep_ms(1).await;
        assert_eq!(idle.get(), Some(Ok(())));
    });
}

#[test]
fn a_page_that_cannot_be_written_stops_no_reader() {
    run(1, async |below| {
        let cache = cache(&below, "", 3 * MIB).await;
        below.bad.replace(vec![9000]);
        write(&cache, 9000..9001).await.unwrap();
        assert_eq!(flush(&cache).await, Err(Status::Io));
        sleep_ms(1000).await;
        let mut readers = fill_with_readers(&below, &cache).await;
        for at in 10..12 {
            readers.push(send(&cache, Op::Read, Class::Normal, sectors(at * 64..at * 64 + 48)));
        }
        run_tasks(2000).await;
        below.hold.take();
        while !below.held.borrow().is_empty() {
            below.release_one();
            sleep_ms(1).await;
        }
        sleep_ms(1000).await;
        assert!(readers.iter().all(|r| r.get() == Some(Ok(()))));
        below.bad.take();
    });
}

#[test]
fn a_page_that_cannot_be_written_stops_no_writer_at_the_limit() {
    run(1, async |below| {
        let limits = "dirty_bytes 64K dirty_background_bytes 1";
        let cache = cache(&below, limits, 8 * MIB).await;
        below.bad.replace(vec![9000]);
        write(&cache, 9000..9001).await.unwrap();
        assert_eq!(flush(&cache).await, Err(Status::Io));
        sleep_ms(1000).await;
        below.hold.replace(vec![Op::Write]);
        let mut writers = Vec::new();
        for at in 0..40 {
            writers.push(send(&cache, Op::Write, Class::Normal, sectors(at * 64 + 1..at * 64 + 2)));
        }
        sleep_ms(100).await;
        // Something else changes: a reader is done.
        request(&cache, Op::Read, Class::Normal, sectors(8000..8001)).await.unwrap();
        sleep_ms(1).await;
        below.release();
        sleep_ms(2000).await;
        assert!(writers.iter().all(|w| w.get() == Some(Ok(()))));
        below.bad.take();
    });
}

#[test]
fn writers_that_wait_for_memory_hold_none() {
    run(1, async |below| {
        let cache = cache(&below, "", 3 * MIB).await;
        below.hold.replace(vec![Op::Read]);
        // The first page in part, so that it is read first, and the next one as a whole.
        let write = |at: u64| send(&cache, Op::Write, Class::Normal, at * 32 + 9..at * 32 + 24);
        let writers: Vec<_> = (0..600).map(write).collect();
        run_tasks(20_000).await;
        below.release();
        sleep_ms(20_000).await;
        let done = writers.iter().filter(|w| w.get() == Some(Ok(()))).count();
        assert_eq!(done, writers.len());
    });
}

#[test]
fn the_flusher_is_woken_by_a_write_that_stops_at_the_limit() {
    run(1, async |below| {
        let limits = "dirty_bytes 64K dirty_background_bytes 1";
        let cache = cache(&below, limits, 8 * MIB).await;
        // What can't be written is tried again ever more rarely; nothing else is dirty.
        below.bad.replace(vec![0]);
        write(&cache, 0..1).await.unwrap();
        assert_eq!(flush(&cache).await, Err(Status::Io));
        sleep_ms(14_000).await;
        let before = reactor::now();
        assert_eq!(write(&cache, 65..191).await, Ok(()));
        let ms = (reactor::now().0 - before.0) / MS;
        assert!(ms < 2000, "{ms} ms");
        below.bad.take();
    });
}

#[test]
fn one_failure_after_a_discard_is_not_a_broken_device() {
    run(1, async |below| {
        let limits = "dirty_bytes 8192 dirty_background_bytes 1";
        let cache = cache(&below, limits, 8 * MIB).await;
        below.bad.replace(vec![0, 64, 65]);
        write(&cache, 0..1).await.unwrap();
        assert_eq!(flush(&cache).await, Err(Status::Io));
        sleep_ms(1000).await;
        request(&cache, Op::Discard, Class::Normal, sectors(0..1)).await.unwrap();
        sleep_ms(1000).await;
        below.hold.replace(vec![Op::Write]);
        let two = send(&cache, Op::Write, Class::Normal, sectors(64..66));
        sleep_ms(1).await;
        let third = send(&cache, Op::Write, Class::Normal, sectors(66..67));
        sleep_ms(1).await;
        below.release();
        sleep_ms(10).await;
        below.bad.take();
        sleep_ms(1000).await;
        assert_eq!((two.get(), third.get()), (Some(Ok(())), Some(Ok(()))));
    });
}

#[test]
fn no_page_is_read_ahead_after_a_suspend() {
    for seed in 0..40 {
        run(seed, async |below| {
            let cache = cache(&below, "read_ahead_kb 512", 8 * MIB).await;
            let read = async |pages| {
                request(&cache, Op::Read, Class::Normal, sectors(pages)).await.unwrap();
            };
            read(0..4).await;
            write(&cache, 4..8).await.unwrap();
            flush(&cache).await.unwrap();
            read(4..8).await; // A hit, that has a window read ahead.
            cache.clone().suspend().await.unwrap();
            let before = below.came.get();
            sleep_ms(10).await;
            assert_eq!(below.came.get(), before);
        });
    }
}

#[test]
fn memory_of_old_versions_is_freed_after_their_write() {
    run(1, async |below| {
        let cache = cache(&below, "dirty_background_bytes 1", 8 * MIB).await;
        write(&cache, 0..512).await.unwrap();
        flush(&cache).await.unwrap();
        let one = number(&cache, "memory_used_bytes").await;
        assert!(one < 3 * MIB, "one folio: {one}");
        below.hold.replace(vec![Op::Write]);
        for pages in [0..1, 0..1, 100..101] {
            write(&cache, pages).await.unwrap();
            sleep_ms(1).await;
        }
        // Page 0 as it was, and page 100, in the copy that page 0 is in again.
        assert_eq!(below.held.borrow().len(), 2);
        assert_eq!(number(&cache, "memory_used_bytes").await, 2 * one);
        below.release_one();
        sleep_ms(1).await;
        assert_eq!(below.held.borrow().len(), 2);
        write(&cache, 100..101).await.unwrap();
        // Two versions are in memory; the first has been written.
        assert_eq!(number(&cache, "memory_used_bytes").await, 2 * one);
    });
}

/// Waits for a write below, then runs as often as it can. Returns the most requests that came below
/// between two of its runs, before one in which none came.
async fn longest_turn(below: &FaultyRam) -> u64 {
    let mut before = below.came.get();
    below.written.wait_for(|| below.came.get() > before).await;
    let mut longest = 0;
    loop {
        let now = below.came.get();
        if now == before {
            return longest;
        }
        longest = longest.max(now - before);
        before = now;
        run_tasks(2).await;
    }
}

/// Found by reading: the flusher went on without a pause while the device below completed each
/// write at once, as RAM does, and no other task of the core ran before all was written.
#[test]
fn old_and_failed_pages_leave_time_for_other_tasks() {
    let limits = "memory 256M dirty_bytes 120M dirty_background_bytes 110M";
    run(1, async move |below| {
        let cache = cache(&below, limits, 256 * MIB).await;
        for at in (0..16384).step_by(256) {
            write(&cache, at..at + 256).await.unwrap();
        }
        cache.clone().set_attribute("dirty_expire_centisecs".into(), "0".into()).await.unwrap();
        cache.clone().set_attribute("dirty_writeback_centisecs".into(), "1".into()).await.unwrap();
        let longest = longest_turn(&below).await;
        assert!(longest <= 8, "{longest} writes of old pages");
        sleep_ms(20).await;
        assert_eq!(number(&cache, "dirty_bytes").await, 0);
    });
    run(1, async move |below| {
        let cache = cache(&below, limits, 256 * MIB).await;
        for at in (0..16384).step_by(256) {
            write(&cache, at..at + 256).await.unwrap();
        }
        below.bad.replace((0..16384).step_by(256).collect());
        assert_eq!(flush(&cache).await, Err(Status::Io));
        let longest = longest_turn(&below).await;
        assert!(longest <= 8, "{longest} writes of failed pages");
        below.bad.take();
    });
}
