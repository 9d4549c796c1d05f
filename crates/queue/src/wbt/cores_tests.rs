// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves of two cores on one file, where the other core runs only now and then.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, CoreId, Flags, Limits, Nanos, Sector};
use policy::wbt::Mode;
use reactor::{
    BioFuture, Driver, Event, FileId, Msg, Reactor, Sqe, discard, now, read, sleep, spawn, write,
    yield_now,
};

use crate::FileLeaf;
use crate::sync_order::SyncOrder;
use crate::testing::{Script, with_core};

fn limits() -> Limits {
    Limits { queue_depth: 128, ..Limits::new(Sector(1 << 20)) }
}

/// The state that the drivers of two cores share: a clock, and the mail of each.
#[derive(Clone, Default)]
struct TwoCores {
    now: Rc<Cell<Nanos>>,
    mail: Rc<RefCell<Vec<(CoreId, Msg)>>>,
}

/// Ends whatever it is given at the next park.
struct Quick {
    core: CoreId,
    cores: TwoCores,
    done: Vec<Event>,
}

impl Driver for Quick {
    fn now(&self) -> Nanos {
        self.cores.now.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let end = |sqe: Sqe| Event::Cqe {
            home: sqe.home,
            key: sqe.key,
            result: block::Status::Ok.into(),
        };
        self.done.extend(batch.drain(..).map(end));
    }
    fn post(&mut self, to: CoreId, msg: Msg) {
        self.cores.mail.borrow_mut().push((to, msg));
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.done);
        let (mine, others) =
            self.cores.mail.take().into_iter().partition(|(to, _)| *to == self.core);
        self.cores.mail.replace(others);
        let mine: Vec<(CoreId, Msg)> = mine;
        out.extend(mine.into_iter().map(|(_, msg)| Event::Msg(msg)));
        if let (true, Some(deadline)) = (out.is_empty(), deadline) {
            self.cores.now.set(self.cores.now.get().max(deadline));
        }
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// A core that serves threads runs while they wait for it, and its timers with it.
#[test]
fn windows_do_not_stand_still_with_the_core_that_wrote_first() {
    let cores = TwoCores::default();
    let core = |nth| {
        let driver = Quick { core: CoreId(nth), cores: cores.clone(), done: Vec::new() };
        Reactor::enter(CoreId(nth), Box::new(driver))
    };
    let (home, other) = (core(0), core(1));
    let limits = limits();
    let put = async |leaf: &FileLeaf| {
        let data = Buf::zeroed(4096).into();
        write(leaf, Flags::empty(), Class::Normal, Sector(0), data).await.unwrap();
    };
    let one = home.on(|| FileLeaf::new("disk0", FileId(7), limits.clone()));
    home.on(|| one.wbt().set_mode(Mode::Kernel));
    let shared = home.on(|| one.shared_wbt());
    other.block_on(async move {
        put(&FileLeaf::with_wbt("twin", FileId(7), limits, &shared)).await;
    });
    let windows = home.block_on(async move {
        for _ in 0..100 {
            put(&one).await;
            sleep(Nanos::from_millis(10)).await;
        }
        one.wbt().report().windows.iter().sum::<u64>()
    });
    assert!(windows >= 9, "{windows} in a second");
}

/// A held FLUSH of one core goes on when the last sync beside it ends at another core.
#[test]
fn the_end_of_a_sync_wakes_a_success_held_at_another_core() {
    let cores = TwoCores::default();
    let core = |nth| {
        let driver = Quick { core: CoreId(nth), cores: cores.clone(), done: Vec::new() };
        Reactor::enter(CoreId(nth), Box::new(driver))
    };
    let (home, other) = (core(0), core(1));
    let order = Rc::new(SyncOrder::default());
    let (mine, beside) = (order.begin(), order.begin());
    let passed = Rc::new(Cell::new(false));
    let (set, held) = (passed.clone(), order.clone());
    home.block_on(async move {
        let hold = held.end(mine).expect("another sync is in flight");
        spawn(async move {
            held.passed(hold).await;
            set.set(true);
        });
        yield_now().await;
    });
    assert!(!passed.get(), "it is held");
    other.block_on(async move {
        assert_eq!(order.end(beside), None);
        yield_now().await;
    });
    home.block_on(async {
        for _ in 0..4 {
            yield_now().await;
        }
    });
    assert!(passed.get(), "QU-SO3");
}

/// Writers at one leaf that never pause leave those of another something, whatever the law.
fn nobody_starves_at_another_leaf(mode: Mode, send: fn(&FileLeaf) -> BioFuture) {
    let script = Script::default();
    script.keep();
    with_core(script.driver(), async move {
        let limits = Limits { queue_depth: 1, discard_granularity_bytes: 512, ..limits() };
        let one = Rc::new(FileLeaf::new("disk0", FileId(7), limits.clone()));
        one.wbt().set_mode(mode);
        let two = FileLeaf::with_wbt("twin", FileId(7), limits, &one.shared_wbt());
        let busy = Rc::new(Cell::new(true));
        let into = Buf::zeroed(4096).into();
        let reads = read(&*one, Class::Foreground, Sector(0), into);
        for _ in 0..8 {
            let (one, busy) = (one.clone(), busy.clone());
            spawn(async move {
                while busy.get() {
                    send(&one).await.unwrap();
                }
            });
        }
        yield_now().await;
        let ended = Rc::new(Cell::new(false));
        let (set, sent) = (ended.clone(), send(&two));
        spawn(async move {
            sent.await.unwrap();
            set.set(true);
        });
        while !ended.get() {
            script.release(1);
            sleep(Nanos::from_millis(5)).await;
            assert!(now() < Nanos::from_secs(10), "it starves: {:?}", one.wbt().report());
        }
        busy.set(false);
        while one.stats().in_flight() > 0 {
            script.release(usize::MAX);
            sleep(Nanos::from_millis(5)).await;
        }
        reads.await.unwrap();
        assert_eq!(one.wbt().report().in_flight, [0, 0]);
    });
}

#[test]
fn writes_of_one_core_do_not_starve_those_of_another() {
    for mode in Mode::ALL {
        nobody_starves_at_another_leaf(mode, |leaf| {
            let data = Buf::zeroed(1 << 20).into();
            write(leaf, Flags::BACKGROUND, Class::Background, Sector(0), data)
        });
    }
}

#[test]
fn discards_of_one_core_do_not_starve_those_of_another() {
    for mode in Mode::ALL {
        nobody_starves_at_another_leaf(mode, |leaf| {
            discard(leaf, Class::Normal, Sector(0), Sector(8))
        });
    }
}
