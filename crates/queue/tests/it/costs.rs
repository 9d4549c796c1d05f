// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a request to a leaf costs, counted exactly, with the throttle on: allocations, and looks at
//! the clock.
use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Bufs, Class, CoreId, Flags, Limits, Nanos, Sector, Status};
use queue::FileLeaf;
use reactor::{BioFuture, Driver, Event, FileId, Msg, Reactor, Sqe, read, write};

/// Ends every request at the next park; its clock advances by 20 us with every look.
#[derive(Default)]
struct InstantDriver {
    now_ns: Cell<u64>,
    looks: Rc<Cell<u64>>,
    done: Vec<Event>,
}

impl Driver for InstantDriver {
    fn now(&self) -> Nanos {
        self.looks.set(self.looks.get() + 1);
        self.now_ns.set(self.now_ns.get() + 20_000);
        Nanos(self.now_ns.get())
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let end = |sqe: Sqe| Event::Cqe { home: sqe.home, key: sqe.key, result: Status::Ok.into() };
        self.done.extend(batch.drain(..).map(end));
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, _deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.done);
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// Allocations of `count` rounds of two reads and a write to a throttled leaf.
fn allocations(reactor: &Reactor, count: u64) -> u64 {
    let leaf = FileLeaf::new("leaf", FileId(0), Limits::new(Sector(1 << 20)));
    let bufs: Bufs = Buf::zeroed(4096).into();
    let work = async move {
        for nth in 0..count {
            let at = Sector(nth * 8 % (1 << 20));
            for _ in 0..2 {
                assert_eq!(read(&leaf, Class::Foreground, at, bufs.clone()).await, Ok(()));
            }
            let (flags, class) = (Flags::BACKGROUND, Class::Background);
            assert_eq!(write(&leaf, flags, class, at, bufs.clone()).await, Ok(()));
        }
    };
    allocation_counter::measure(|| reactor.block_on(work)).count_total
}

#[test]
fn a_request_that_starts_at_once_allocates_nothing() {
    let reactor = Reactor::enter(CoreId(0), Box::new(InstantDriver::default()));
    let (few, many) = (allocations(&reactor, 1000), allocations(&reactor, 11_000));
    assert!(few > 0, "making a leaf allocates, so the counter counts");
    // A window ends after some hundred requests and has its own.
    let windows = 10_000 * 6 * 20_000 / 100_000_000;
    assert!(many <= few + 8 * windows, "{few} for 1000 rounds, {many} for 11,000");
}

/// Looks at the clock in `count` rounds of sixteen requests at once to a throttled leaf.
fn looks(count: u64, send: fn(&FileLeaf, Sector) -> BioFuture) -> u64 {
    let driver = InstantDriver::default();
    let looks = driver.looks.clone();
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    reactor.block_on(async move {
        let leaf = FileLeaf::new("leaf", FileId(0), Limits::new(Sector(1 << 20)));
        for _ in 0..count {
            let sent: Vec<_> = (0..16).map(|nth| send(&leaf, Sector(nth * 8))).collect();
            for end in sent {
                assert_eq!(end.await, Ok(()));
            }
        }
    });
    looks.get()
}

/// A read is timed from its own start; ends, and writes beside others, share the time of a turn.
#[test]
fn requests_that_end_together_look_at_the_clock_once() {
    let reads = |count| {
        looks(count, |leaf, at| read(leaf, Class::Foreground, at, Buf::zeroed(4096).into()))
    };
    assert_eq!(reads(110) - reads(10), 100 * (16 + 1));
    let writes = |count| {
        looks(count, |leaf, at| {
            write(leaf, Flags::BACKGROUND, Class::Background, at, Buf::zeroed(4096).into())
        })
    };
    // A window ends now and then.
    let more = writes(110) - writes(10);
    assert!((200..=210).contains(&more), "{more}: the first of a round, and all of their ends");
}
