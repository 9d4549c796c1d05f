// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An eventfd that the front end has given: kicks come by it, and calls go.
//!
//! The driver waits on it: the front end may fill or drain the counter at any moment, so a system
//! call that reads or writes it could wait for ever.
use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Status, crashing};
use reactor::{FileId, SqeOp, driver_io};

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
    },
    /// Of a test without a kernel.
    #[cfg(test)]
    Test(std::sync::Arc<crate::testing::TestEvent>),
}

impl EventFd {
    /// That of the driver, which belongs to it from now on.
    pub fn new(file: FileId) -> Rc<EventFd> {
        let counter = Counter::Driver { file, read: Buf::zeroed(8) };
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
            Counter::Driver { file, read } => {
                let bufs = read.clone().into();
                let read = driver_io(*file, SqeOp::Read { offset: 0, bufs }).await;
                read.status == Status::Ok
            }
            #[cfg(test)]
            Counter::Test(event) => event.take(|| self.closed.get()).await,
        };
        is_signalled && !self.closed.get()
    }

    /// Signals it; waits while its counter is full. No effect once it is closed.
    pub(crate) async fn signal(&self) {
        if self.closed.get() {
            return;
        }
        match &self.counter {
            Counter::Driver { file, .. } => {
                let bufs = Buf::copy_of(&1_u64.to_le_bytes()).into();
                // An error means that it is being closed.
                let _ = driver_io(*file, SqeOp::Write { offset: 0, bufs, fua: false }).await;
            }
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

impl Drop for EventFd {
    fn drop(&mut self) {
        self.close();
    }
}
