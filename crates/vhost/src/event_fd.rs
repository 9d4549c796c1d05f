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
    file: FileId,
    /// What the counter is read to.
    counter: Buf,
    closed: Cell<bool>,
}

impl EventFd {
    /// That of the driver, which belongs to it from now on.
    pub fn new(file: FileId) -> Rc<EventFd> {
        Rc::new(EventFd { file, counter: Buf::zeroed(8), closed: Cell::new(false) })
    }

    /// Waits until the other side has signalled it. False once it is closed.
    pub(crate) async fn wait(&self) -> bool {
        if self.closed.get() {
            return false;
        }
        let bufs = self.counter.clone().into();
        let read = driver_io(self.file, SqeOp::Read { offset: 0, bufs }).await;
        read.status == Status::Ok && !self.closed.get()
    }

    /// Signals it; waits while its counter is full. No effect once it is closed.
    pub(crate) async fn signal(&self) {
        if self.closed.get() {
            return;
        }
        let bufs = Buf::copy_of(&1_u64.to_le_bytes()).into();
        // An error means that it is being closed.
        let _ = driver_io(self.file, SqeOp::Write { offset: 0, bufs, fua: false }).await;
    }

    /// Ends what waits on it, and closes it.
    pub(crate) fn close(&self) {
        if !self.closed.replace(true) && !crashing() {
            drop(driver_io(self.file, SqeOp::Close));
        }
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        self.close();
    }
}
