// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pollers of one core for which a task waits.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// What one task waits for, and how its core finds out.
pub struct Poller {
    is_ready: Box<dyn Fn() -> bool>,
    pub(crate) state: Cell<State>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The core looks.
    Waits,
    /// It has found the poller ready, or not before it sleeps.
    Ended { is_ready: bool },
}

impl Poller {
    /// One that is ready when `is_ready` returns true. That is called often: it looks and changes
    /// nothing, and wakes nobody.
    pub fn new(is_ready: impl Fn() -> bool + 'static) -> Rc<Poller> {
        let state = Cell::new(State::Ended { is_ready: false });
        Rc::new(Poller { is_ready: Box::new(is_ready), state, waker: RefCell::default() })
    }

    fn end(&self, is_ready: bool) {
        self.state.set(State::Ended { is_ready });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

block::debug_as!(Poller, s => "Poller({:?})", s.state.get());

/// The pollers of one core for which a task waits.
#[derive(Debug, Default)]
pub(crate) struct Pollers(Vec<Rc<Poller>>);

impl Pollers {
    pub(crate) fn push(&mut self, poller: Rc<Poller>) {
        self.0.push(poller);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is ready.
    pub(crate) fn has_ready(&self) -> bool {
        self.0.iter().any(|poller| (poller.is_ready)())
    }

    /// Wakes the tasks of those that are ready. Returns whether there were any.
    pub(crate) fn wake_ready(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(|poller| {
            let is_ready = (poller.is_ready)();
            if is_ready {
                poller.end(true);
            }
            !is_ready
        });
        self.0.len() != before
    }

    /// The core is about to sleep: wakes all tasks.
    pub(crate) fn end(&mut self) {
        self.0.drain(..).for_each(|poller| poller.end(false));
    }
}
