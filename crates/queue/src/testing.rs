// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver for this room's tests: writes down what it is asked and answers at the next park, or
//! when it is told to. Its clock goes on when nothing else happens.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use block::{Buf, Bufs, CoreId, Nanos, Status};
use reactor::{Driver, Event, Msg, Reactor, Sqe, SqeOp};

#[derive(Clone, Default)]
pub(crate) struct Script {
    seen: Rc<RefCell<Vec<String>>>,
    fail: Rc<Cell<Option<Status>>>,
    /// Requests are kept until [`Script::release`].
    keeps: Rc<Cell<bool>>,
    kept: Rc<RefCell<VecDeque<Event>>>,
    released: Rc<RefCell<Vec<Event>>>,
    now: Rc<Cell<Nanos>>,
}

impl Script {
    pub(crate) fn driver(&self) -> Box<dyn Driver> {
        Box::new(Scripted { script: self.clone(), done: Vec::new() })
    }
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }
    /// What was seen since the last call.
    pub(crate) fn take_seen(&self) -> Vec<String> {
        self.seen.take()
    }
    /// From now on requests end only when they are released.
    pub(crate) fn keep(&self) {
        self.keeps.set(true);
    }
    /// Ends the `count` oldest requests that are kept, at the next park.
    pub(crate) fn release(&self, count: usize) {
        let mut kept = self.kept.borrow_mut();
        let count = count.min(kept.len());
        self.released.borrow_mut().extend(kept.drain(..count));
    }
    /// Ends the newest request that is kept, at the next park.
    pub(crate) fn release_newest(&self) {
        self.released.borrow_mut().extend(self.kept.borrow_mut().pop_back());
    }
    /// Requests that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.borrow().len()
    }
    pub(crate) fn fail_next(&self, status: Status) {
        self.fail.set(Some(status));
    }
}

struct Scripted {
    script: Script,
    done: Vec<Event>,
}

impl Driver for Scripted {
    fn now(&self) -> Nanos {
        self.script.now.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        for sqe in batch.drain(..) {
            let line = match &sqe.what {
                SqeOp::Read { offset, bufs } => format!("read {offset}+{}", bufs.len_bytes()),
                SqeOp::Write { offset, bufs, fua } => {
                    let fua = if *fua { " fua" } else { "" };
                    format!("write {offset}+{}{fua}", bufs.len_bytes())
                }
                SqeOp::Flush => "flush".into(),
                SqeOp::Discard { offset, len } => format!("discard {offset}+{len}"),
                SqeOp::WriteZeroes { offset, len, unmap } => {
                    let unmap = if *unmap { " unmap" } else { "" };
                    format!("write_zeroes {offset}+{len}{unmap}")
                }
                SqeOp::Command { .. }
                | SqeOp::Accept
                | SqeOp::Recv { .. }
                | SqeOp::Send { .. }
                | SqeOp::Shutdown
                | SqeOp::ShutdownWrite
                | SqeOp::Close => panic!("a leaf sends no commands, and none to sockets"),
            };
            self.script.seen.borrow_mut().push(line);
            let status = self.script.fail.take().unwrap_or(Status::Ok);
            let event = Event::Cqe { home: sqe.home, key: sqe.key, result: status.into() };
            if self.script.keeps.get() {
                self.script.kept.borrow_mut().push_back(event);
            } else {
                self.done.push(event);
            }
        }
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.done);
        out.append(&mut self.script.released.borrow_mut());
        if let (true, Some(deadline)) = (out.is_empty(), deadline) {
            self.script.now.set(self.script.now.get().max(deadline));
        }
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// Runs `test` on a core with `driver`.
pub(crate) fn with_core(driver: Box<dyn Driver>, test: impl Future<Output = ()> + 'static) {
    Reactor::enter(CoreId(0), driver).block_on(test);
}

/// A buffer of `len` bytes that differ from byte to byte and from `seed` to `seed`.
pub(crate) fn pattern(len: usize, seed: u8) -> Bufs {
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8 ^ seed).collect();
    Buf::copy_of(&bytes).into()
}
