// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The executor by itself, on a driver that has nothing but a clock of its own.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, Class, CoreId, Flags, Limits, Nanos, Op, Sector, Status};
use reactor::{
    Driver, Event, GroupCommit, Msg, OnDone, OpResult, Reactor, Sqe, TaskPool, WaitList,
};

/// Ends every request at the next `park`; time jumps to whatever is waited for.
#[derive(Default)]
struct Clockwork {
    now: Nanos,
    done: Vec<Event>,
    random: u64,
}

impl Driver for Clockwork {
    fn now(&self) -> Nanos {
        self.now
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let result = OpResult { status: Status::Ok, value: 0 };
        let ended = batch.drain(..).map(|s| Event::Cqe { home: s.home, key: s.key, result });
        self.done.extend(ended);
    }
    fn post(&mut self, _to: CoreId, msg: Msg) {
        self.done.push(Event::Msg(msg));
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        if self.done.is_empty() {
            self.now = self.now.max(deadline.expect("nothing in flight, so a timer is set"));
        }
        out.append(&mut self.done);
    }
    fn random(&mut self) -> u64 {
        self.random += 1;
        self.random
    }
}

fn reactor() -> Reactor {
    Reactor::enter(CoreId(0), Box::<Clockwork>::default())
}

/// Keeps bios until it is told to end them.
#[derive(Default)]
struct Shelf(RefCell<Vec<Bio>>);

impl BlockDevice for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(8))
    }
    fn submit(&self, bio: Bio) {
        self.0.borrow_mut().push(bio);
    }
}

fn flush(device: &dyn BlockDevice) -> reactor::BioFuture {
    let nowhere = (Sector::ZERO, Sector::ZERO);
    reactor::io(device, Op::Flush, Flags::empty(), Class::Normal, nowhere, Bufs::new())
}

#[test]
fn sleepers_wake_in_order_of_their_time() {
    let order = Rc::new(RefCell::new(Vec::new()));
    let log = order.clone();
    reactor().block_on(async move {
        for ms in [30, 10, 20] {
            let log = log.clone();
            reactor::spawn(async move {
                reactor::sleep(Nanos::from_millis(ms)).await;
                log.borrow_mut().push((ms, reactor::now()));
            });
        }
        reactor::sleep(Nanos::from_millis(40)).await;
    });
    let at = |ms| (ms, Nanos::from_millis(ms));
    assert_eq!(*order.borrow(), [at(10), at(20), at(30)]);
}

#[test]
fn a_waiter_looks_again_after_every_wake() {
    let list = Rc::new(WaitList::new());
    let value = Rc::new(Cell::new(0));
    let (l, v) = (list.clone(), value.clone());
    reactor().block_on(async move {
        let (setter_list, setter) = (l.clone(), v.clone());
        reactor::spawn(async move {
            for n in 1..=3 {
                reactor::sleep(Nanos::from_millis(1)).await;
                setter.set(n);
                setter_list.wake_all();
            }
        });
        l.wait_for(|| v.get() == 3).await;
    });
    assert_eq!(value.get(), 3);
    assert!(list.is_empty());
}

#[test]
fn pool_tasks_take_items_in_order_and_are_reused() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = seen.clone();
    reactor().block_on(async move {
        let handled = log.clone();
        let pool = TaskPool::new(2, move |n: u32| {
            let handled = handled.clone();
            async move {
                reactor::sleep(Nanos::from_millis(1)).await;
                handled.borrow_mut().push(n);
            }
        });
        (0..5).for_each(|n| pool.push(n));
        assert_eq!(pool.pending(), 5);
        reactor::sleep(Nanos::from_millis(10)).await;
        assert_eq!(pool.pending(), 0);
        pool.push(5);
        reactor::sleep(Nanos::from_millis(10)).await;
        assert_eq!(format!("{pool:?}"), "TaskPool(2 of 2)");
    });
    assert_eq!(*seen.borrow(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_dropped_pool_finishes_what_is_queued() {
    let handled = Rc::new(Cell::new(0));
    let count = handled.clone();
    reactor().block_on(async move {
        let pool = TaskPool::new(1, move |(): ()| {
            let count = count.clone();
            async move {
                reactor::sleep(Nanos::from_millis(1)).await;
                count.set(count.get() + 1);
            }
        });
        (0..3).for_each(|_| pool.push(()));
        drop(pool);
        reactor::sleep(Nanos::from_millis(10)).await;
    });
    assert_eq!(handled.get(), 3);
}

#[test]
fn a_chained_completion_tells_the_watcher_before_the_waiter() {
    struct Watcher(RefCell<Vec<(Status, u64)>>);
    impl OnDone for Watcher {
        fn on_done(&self, status: Status, tag: u64) {
            self.0.borrow_mut().push((status, tag));
        }
    }
    let watcher = Rc::new(Watcher(RefCell::default()));
    let told = watcher.clone();
    let outcome = reactor().block_on(async move {
        let shelf = Shelf::default();
        let pending = flush(&shelf);
        let bio = shelf.0.borrow_mut().pop().expect("submitted above");
        let inner = reactor::chain(bio.done, told.clone(), 7);
        reactor::chain(inner, told.clone(), 8).complete(Status::NoSpace);
        assert_eq!(*told.0.borrow(), [(Status::NoSpace, 8), (Status::NoSpace, 7)]);
        pending.await
    });
    assert_eq!(outcome, Err(Status::NoSpace));
}

#[test]
fn an_outcome_that_nobody_waits_for_any_more_is_dropped() {
    reactor().block_on(async {
        let shelf = Shelf::default();
        drop(flush(&shelf));
        let bio = shelf.0.borrow_mut().pop().expect("submitted above");
        bio.complete(Status::Ok);
        // The slot is free again: the next request may have it.
        let next = flush(&shelf);
        shelf.0.borrow_mut().pop().expect("submitted above").complete(Status::Ok);
        assert_eq!(next.await, Ok(()));
    });
}

#[test]
fn a_call_from_elsewhere_runs_on_the_core() {
    let ran_on = Rc::new(Cell::new(None));
    let seen = ran_on.clone();
    reactor().block_on(async move {
        thread_local!(static SEEN: Cell<Option<CoreId>> = const { Cell::new(None) });
        let call = Box::new(|| SEEN.set(Some(reactor::core_id())));
        reactor::post(CoreId(0), Msg::Call(call));
        reactor::sleep(Nanos::from_millis(1)).await;
        seen.set(SEEN.get());
    });
    assert_eq!(ran_on.get(), Some(CoreId(0)));
}

#[test]
fn a_power_cut_drops_tasks_and_their_bios_in_silence() {
    let shelf = Rc::new(Shelf::default());
    let device = shelf.clone();
    let reactor = reactor();
    reactor.on(|| {
        reactor::spawn(async move {
            let _ = flush(&*device).await;
        });
    });
    assert!(reactor.run(|| true));
    assert_eq!(shelf.0.borrow().len(), 1);
    block::set_crashing(true);
    shelf.0.borrow_mut().clear();
    block::set_crashing(false);
    drop(reactor);
}

#[test]
#[should_panic(expected = "bio dropped without completion")]
fn a_bio_dropped_unfinished_panics() {
    reactor().block_on(async {
        let shelf = Shelf::default();
        let _pending = flush(&shelf);
        shelf.0.borrow_mut().clear();
    });
}

#[test]
fn messages_of_one_round_go_out_together_and_in_order() {
    thread_local!(static SEEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) });
    /// Writes down the sizes of batches.
    struct Counting(Clockwork);
    impl Driver for Counting {
        fn now(&self) -> Nanos {
            self.0.now()
        }
        fn submit(&mut self, batch: &mut Vec<Sqe>) {
            self.0.submit(batch);
        }
        fn post(&mut self, _to: CoreId, _msg: Msg) {
            unreachable!("batches only");
        }
        fn post_batch(&mut self, to: CoreId, batch: &mut Vec<Msg>) {
            SEEN.with_borrow_mut(|s| s.push(batch.len()));
            for msg in batch.drain(..) {
                self.0.post(to, msg);
            }
        }
        fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
            self.0.park(deadline, out);
        }
        fn random(&mut self) -> u64 {
            self.0.random()
        }
    }
    let order = Rc::new(RefCell::new(Vec::new()));
    let seen = order.clone();
    let reactor = Reactor::enter(CoreId(0), Box::new(Counting(Clockwork::default())));
    reactor.block_on(async move {
        thread_local!(static ORDER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
        for n in 0..10 {
            let call = Box::new(move || ORDER.with_borrow_mut(|o| o.push(n)));
            reactor::post(CoreId(0), Msg::Call(call));
        }
        reactor::sleep(Nanos::from_millis(1)).await;
        *seen.borrow_mut() = ORDER.take();
    });
    assert_eq!(SEEN.take(), [10]);
    assert_eq!(*order.borrow(), (0..10).collect::<Vec<u32>>());
}

#[test]
fn an_ended_export_does_not_reach_the_next_in_its_slot() {
    reactor().on(|| {
        let shelf = Rc::new(Shelf::default());
        let old = reactor::export(shelf.clone());
        reactor::unexport(old);
        assert_eq!(Rc::strong_count(&shelf), 1);
        let new = reactor::export(shelf.clone());
        assert_ne!(old, new);
        reactor::unexport(old);
        assert_eq!(Rc::strong_count(&shelf), 2, "the new export is not the old one's to end");
    });
}

/// A clock on which every look takes a nanosecond, and that a test may move.
struct Ticking(Clockwork, Rc<Cell<u64>>);

impl Driver for Ticking {
    fn now(&self) -> Nanos {
        self.1.set(self.1.get() + 1);
        Nanos(self.0.now.0 + self.1.get())
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        self.0.submit(batch);
    }
    fn post(&mut self, to: CoreId, msg: Msg) {
        self.0.post(to, msg);
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        self.0.park(deadline, out);
    }
    fn random(&mut self) -> u64 {
        self.0.random()
    }
}

#[test]
fn all_of_a_turn_share_its_time_and_the_next_has_another() {
    thread_local!(static TIMES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) });
    let look = || TIMES.with_borrow_mut(|times| times.push(reactor::loop_time().0));
    let driver = Ticking(Clockwork::default(), Rc::default());
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    reactor.block_on(async move {
        for _ in 0..2 {
            for _ in 0..3 {
                reactor::post(CoreId(0), Msg::Call(Box::new(look)));
            }
            let before = reactor::now().0;
            reactor::yield_now().await;
            look();
            let times = TIMES.take();
            assert_eq!(times, [times[0]; 4], "three calls, and a task that a timer woke");
            assert!(before < times[0] && times[0] < reactor::now().0);
        }
    });
    reactor.on(|| assert!(reactor::loop_time() < reactor::loop_time(), "no turn: now"));
}

#[test]
fn tasks_that_compute_for_long_let_the_driver_be_asked_between() {
    // How long each of 160 tasks computes; in how many turns they run.
    for (computes_us, turns) in [(0, 1), (1, 1), (5, 3), (100, 6)] {
        let clock = Rc::new(Cell::new(0));
        let driver = Ticking(Clockwork::default(), clock.clone());
        let reactor = Reactor::enter(CoreId(0), Box::new(driver));
        let seen = reactor.block_on(async move {
            let seen = Rc::new(RefCell::new(Vec::new()));
            reactor::yield_now().await; // the first turn has no time of its own
            for _ in 0..160 {
                let (seen, clock) = (seen.clone(), clock.clone());
                reactor::spawn(async move {
                    seen.borrow_mut().push(reactor::loop_time());
                    clock.set(clock.get() + 1000 * computes_us);
                });
            }
            while seen.borrow().len() < 160 {
                reactor::yield_now().await;
            }
            let mut seen = seen.take();
            seen.dedup();
            seen
        });
        assert_eq!(seen.len(), turns, "{computes_us} us each");
    }
}

#[test]
fn few_tasks_that_say_how_long_they_computed_do_so_too() {
    // What each of ten tasks counts; in how many turns they run.
    for (counted_us, turns) in [(0, 1), (29, 1), (60, 2), (150, 5), (1000, 10)] {
        let driver = Ticking(Clockwork::default(), Rc::default());
        let reactor = Reactor::enter(CoreId(0), Box::new(driver));
        let seen = reactor.block_on(async move {
            let seen = Rc::new(RefCell::new(Vec::new()));
            reactor::yield_now().await; // the first turn has no time of its own
            for _ in 0..10 {
                let seen = seen.clone();
                reactor::spawn(async move {
                    seen.borrow_mut().push(reactor::loop_time());
                    reactor::count_work(Nanos::from_micros(counted_us));
                });
            }
            while seen.borrow().len() < 10 {
                reactor::yield_now().await;
            }
            let mut seen = seen.take();
            seen.dedup();
            seen
        });
        assert_eq!(seen.len(), turns, "{counted_us} us each");
    }
}

#[test]
fn a_group_run_serves_callers_that_came_before_it_began() {
    reactor().block_on(async {
        let group = Rc::new(GroupCommit::default());
        let runs = Rc::new(Cell::new(0));
        let join = |fails: bool| {
            let (group, runs) = (group.clone(), runs.clone());
            let outcome = Rc::new(Cell::new(None));
            let set = outcome.clone();
            reactor::spawn(async move {
                let work = async || {
                    runs.set(runs.get() + 1);
                    reactor::sleep(Nanos::from_millis(10)).await;
                    if fails { Err(Status::Io) } else { Ok(()) }
                };
                set.set(Some(group.join_fallible(group.next_run(), work).await));
            });
            outcome
        };
        let first = join(false);
        reactor::sleep(Nanos::from_millis(1)).await;
        let rest: Vec<_> = (0..5).map(|_| join(true)).collect();
        reactor::sleep(Nanos::from_millis(15)).await;
        assert_eq!((first.get(), runs.get()), (Some(Ok(())), 2));
        reactor::sleep(Nanos::from_millis(100)).await;
        assert!(rest.iter().all(|r| r.get() == Some(Err(Status::Io))));
        assert_eq!(runs.get(), 2);
        let after = join(false);
        reactor::sleep(Nanos::from_millis(20)).await;
        assert_eq!((after.get(), runs.get()), (Some(Ok(())), 3));
    });
}

#[test]
fn a_bio_sent_on_as_several_ends_with_the_worst_status() {
    reactor().block_on(async {
        let (above, below) = (Rc::new(Shelf::default()), Rc::new(Shelf::default()));
        let outcome = flush(&*above);
        let parts: Vec<_> = (0..3).map(|_| flush(&*below)).collect();
        reactor::complete_after(above.0.borrow_mut().remove(0).done, parts);
        let mut left = below.0.take();
        left.remove(2).complete(Status::Io);
        left.remove(0).complete(Status::NotSupported);
        reactor::yield_now().await;
        let outcome = outcome.into_outcome().expect_err("one has not ended");
        left.remove(0).complete(Status::Ok);
        assert_eq!(outcome.await, Err(Status::Io));
    });
}
