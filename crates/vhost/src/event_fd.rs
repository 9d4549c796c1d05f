// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An eventfd that the front end has given: kicks come by it, and calls go.
//!
//! The driver waits on it: the front end may fill or drain the counter at any moment, so a system
//! call that reads or writes it could wait for ever.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Status, crashing};
use reactor::{FileId, IoFuture, SqeOp, begin_pushed, driver_io};

/// Signals that nobody waits for, at most. Chosen: what a turn of the event loop has, and little
/// memory where the other side has filled the counter.
const BEGUN_MAX: usize = 64;

/// An open eventfd. Dropping it closes it.
#[derive(Debug)]
pub struct EventFd {
    counter: Counter,
    closed: Cell<bool>,
}

/// Where the counter is.
#[derive(Debug)]
enum Counter {
    Driver {
        file: FileId,
        /// What it is read to.
        read: Buf,
        /// Signals that nobody waits for. Their ends are heard of in the next turn.
        begun: RefCell<Vec<IoFuture>>,
    },
    /// Of a test without a kernel.
    #[cfg(test)]
    Test(std::sync::Arc<crate::testing::TestEvent>),
}

impl EventFd {
    /// That of the driver, which belongs to it from now on.
    pub fn new(file: FileId) -> Rc<EventFd> {
        let (read, begun) = (Buf::zeroed(8), RefCell::default());
        let counter = Counter::Driver { file, read, begun };
        Rc::new(EventFd { counter, closed: Cell::new(false) })
    }

    /// One without a kernel.
    #[cfg(test)]
    pub(crate) fn of_test(event: std::sync::Arc<crate::testing::TestEvent>) -> Rc<EventFd> {
        Rc::new(EventFd { counter: Counter::Test(event), closed: Cell::new(false) })
    }

    /// Waits until the other side has signalled it. False once it is closed.
    pub(crate) async fn wait(&self) -> bool {
        if self.closed.get() {
            return false;
        }
        let is_signalled = match &self.counter {
            Counter::Driver { file, read, .. } => {
                let bufs = read.clone().into();
                let read = driver_io(*file, SqeOp::Read { offset: 0, bufs }).await;
                read.status == Status::Ok
            }
            #[cfg(test)]
            Counter::Test(event) => event.take(|| self.closed.get()).await,
        };
        is_signalled && !self.closed.get()
    }

    /// Signals it in this turn of the event loop, unless so many signals wait for room in its
    /// counter that it is signalled anyway: the other side fills it as it likes, and nobody waits
    /// for that. No effect once it is closed.
    pub(crate) fn signal(&self) {
        if self.can_signal_now() {
            self.begin_signal();
        }
    }

    /// Whether [`EventFd::signal_now`] may be called: few signals wait for room in the counter.
    pub(crate) fn can_signal_now(&self) -> bool {
        let has_room = match &self.counter {
            Counter::Driver { begun, .. } => {
                let mut begun = begun.borrow_mut();
                begun.retain(|signal| signal.outcome().is_none());
                begun.len() < BEGUN_MAX
            }
            #[cfg(test)]
            Counter::Test(_) => true,
        };
        has_room && !self.closed.get()
    }

    /// Signals it before this turn of the event loop goes on.
    pub(crate) fn signal_now(&self) {
        self.begin_signal();
        #[cfg(test)]
        if matches!(self.counter, Counter::Test(_)) {
            return;
        }
        begin_pushed();
    }

    fn begin_signal(&self) {
        match &self.counter {
            Counter::Driver { file, begun, .. } => begun.borrow_mut().push(add_one(*file)),
            #[cfg(test)]
            Counter::Test(event) => event.add(),
        }
    }

    /// Ends what waits on it, and closes it.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) || crashing() {
            return;
        }
        match &self.counter {
            Counter::Driver { file, .. } => drop(driver_io(*file, SqeOp::Close)),
            #[cfg(test)]
            Counter::Test(event) => event.wake(),
        }
    }
}

fn add_one(file: FileId) -> IoFuture {
    let bufs = Buf::copy_of(&1_u64.to_le_bytes()).into();
    driver_io(file, SqeOp::Write { offset: 0, bufs, fua: false })
}

impl Drop for EventFd {
    fn drop(&mut self) {
        self.close();
    }
}
