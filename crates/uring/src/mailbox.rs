// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mailbox: how other threads reach a core. A queue, and an eventfd that wakes the core's ring.
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Error;
use reactor::Msg;
use rustix::event::{EventfdFlags, eventfd};

struct Queue {
    messages: Vec<Msg>,
    open: bool,
}

struct Inbox {
    queue: Mutex<Queue>,
    bell: OwnedFd,
    senders: AtomicUsize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing under the lock can leave the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        #[expect(clippy::host_endian_bytes, reason = "an eventfd counts in the host's order")]
        let one = 1_u64.to_ne_bytes();
        // Fails only when the counter is full, and then the bell rings already.
        let _ = rustix::io::write(&self.bell, &one);
    }
}

/// The address of a core: made before the cores start, one for each, known to all of them.
#[derive(Clone)]
pub struct Mailbox(Arc<Inbox>);

impl Mailbox {
    /// An empty mailbox.
    pub fn new() -> Result<Mailbox, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|e| Error::io("cannot make an eventfd for a core's mailbox").because(e))?;
        let queue = Mutex::new(Queue { messages: Vec::new(), open: true });
        Ok(Mailbox(Arc::new(Inbox { queue, bell, senders: AtomicUsize::new(0) })))
    }

    /// A way for other threads to call this core. The core does not end while one exists.
    pub fn sender(&self) -> Sender {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Sender(self.0.clone())
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.0.bell
    }

    /// Gives the message back when the core has ended.
    pub(crate) fn send(&self, message: Msg) -> Result<(), Msg> {
        let mut queue = self.0.lock();
        if !queue.open {
            return Err(message);
        }
        queue.messages.push(message);
        let first = queue.messages.len() == 1;
        drop(queue);
        if first {
            self.0.ring();
        }
        Ok(())
    }

    /// Takes what has come; `into` is empty and is what the queue goes on with.
    pub(crate) fn take(&self, into: &mut Vec<Msg>) {
        std::mem::swap(&mut self.0.lock().messages, into);
    }

    /// Takes what has come and refuses what would.
    pub(crate) fn close(&self) -> Vec<Msg> {
        let mut queue = self.0.lock();
        queue.open = false;
        std::mem::take(&mut queue.messages)
    }

    /// Whether a call may still come, or has and was not taken.
    pub(crate) fn expects_calls(&self) -> bool {
        self.0.senders.load(Ordering::Acquire) > 0 || !self.0.lock().messages.is_empty()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailbox({} waiting)", self.0.lock().messages.len())
    }
}

/// How a thread that is no core (the control path) runs something on a core.
pub struct Sender(Arc<Inbox>);

impl Sender {
    /// Runs `f` on the core, after what was sent before. Fails when the core has ended.
    pub fn call(&self, f: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        Mailbox(self.0.clone())
            .send(Msg::Call(Box::new(f)))
            .map_err(|_| Error::not_found("the core has ended and takes no calls"))
    }
}

impl Clone for Sender {
    fn clone(&self) -> Sender {
        Mailbox(self.0.clone()).sender()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::Release) == 1 {
            // A core that waits only for calls looks again, and ends.
            self.0.ring();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}
