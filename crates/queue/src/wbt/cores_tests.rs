// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves of two cores on one file, where the other core runs only now and then.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, CoreId, Flags, Limits, Nanos, Sector};
use policy::wbt::Mode;
use reactor::{Driver, Event, FileId, Msg, Reactor, Sqe, sleep, write};

use crate::Leaf;

/// What both cores' drivers share: a clock, and the mail of each.
#[derive(Clone, Default)]
struct Both {
    now: Rc<Cell<Nanos>>,
    mail: Rc<RefCell<Vec<(CoreId, Msg)>>>,
}

/// Ends whatever it is given at the next park.
struct Quick {
    core: CoreId,
    both: Both,
    done: Vec<Event>,
}

impl Driver for Quick {
    fn now(&self) -> Nanos {
        self.both.now.get()
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
        self.both.mail.borrow_mut().push((to, msg));
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.done);
        let (mine, others) =
            self.both.mail.take().into_iter().partition(|(to, _)| *to == self.core);
        self.both.mail.replace(others);
        let mine: Vec<(CoreId, Msg)> = mine;
        out.extend(mine.into_iter().map(|(_, msg)| Event::Msg(msg)));
        if let (true, Some(deadline)) = (out.is_empty(), deadline) {
            self.both.now.set(self.both.now.get().max(deadline));
        }
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// A core that serves threads runs while they wait for it, and its timers with it.
#[test]
fn windows_do_not_stand_still_with_the_core_that_wrote_first() {
    let both = Both::default();
    let core = |nth| {
        let driver = Quick { core: CoreId(nth), both: both.clone(), done: Vec::new() };
        Reactor::enter(CoreId(nth), Box::new(driver))
    };
    let (home, other) = (core(0), core(1));
    let limits = Limits { queue_depth: 128, ..Limits::new(Sector(1 << 20)) };
    let put = async |leaf: &Leaf| {
        let data = Buf::zeroed(4096).into();
        write(leaf, Flags::empty(), Class::Normal, Sector(0), data).await.unwrap();
    };
    let one = home.on(|| Leaf::new("disk0", FileId(7), limits.clone()));
    home.on(|| one.wbt().set_mode(Mode::Kernel));
    let shared = home.on(|| one.shared_wbt());
    other.block_on(async move {
        put(&Leaf::with_wbt("twin", FileId(7), limits, &shared)).await;
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
