// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mailbox: how other threads reach a core. A queue, and an eventfd that wakes the core's ring.
//!
//! Who posts takes the lock once for a batch, and writes to the eventfd only when the core sleeps:
//! one that runs looks into its mailbox at every park. Who sleeps says so under the lock and only
//! when the queue is empty, so a message that comes later finds it asleep and rings. The first
//! who rings takes the mark away, so a sleeping core is rung once.
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Error;
use reactor::Msg;
use rustix::event::{EventfdFlags, eventfd};

struct Queue {
    messages: Vec<Msg>,
    open: bool,
    /// The core is parked, or about to be, and nobody has rung since.
    asleep: bool,
}

struct Inbox {
    queue: Mutex<Queue>,
    /// Whether the queue is worth a look; changed under its lock.
    has_mail: AtomicBool,
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
        let queue = Mutex::new(Queue { messages: Vec::new(), open: true, asleep: false });
        let (has_mail, senders) = (AtomicBool::new(false), AtomicUsize::new(0));
        Ok(Mailbox(Arc::new(Inbox { queue, has_mail, bell, senders })))
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
        let mut message = Some(message);
        self.send_with(|queue| queue.extend(message.take()));
        message.map_or(Ok(()), Err)
    }

    /// Takes all messages, in order, or leaves them when the core has ended.
    pub(crate) fn send_all(&self, batch: &mut Vec<Msg>) {
        self.send_with(|queue| {
            if queue.is_empty() {
                // The batch's empty room for the next round is what the core had before.
                std::mem::swap(queue, batch);
            } else {
                queue.append(batch);
            }
        });
    }

    fn send_with(&self, put: impl FnOnce(&mut Vec<Msg>)) {
        let mut queue = self.0.lock();
        if !queue.open {
            return;
        }
        put(&mut queue.messages);
        self.0.has_mail.store(true, Ordering::Release);
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.0.ring();
        }
    }

    /// Says that the core is about to sleep. False: there is mail, it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut queue = self.0.lock();
        queue.asleep = queue.messages.is_empty();
        queue.asleep
    }

    /// Takes the mark of [`Mailbox::fall_asleep`] back.
    pub(crate) fn wake_up(&self) {
        self.0.lock().asleep = false;
    }

    /// Takes what has come; `into` is empty and is what the queue goes on with. Costs no lock when
    /// nothing has.
    pub(crate) fn take(&self, into: &mut Vec<Msg>) {
        if self.0.has_mail.load(Ordering::Acquire) {
            let mut queue = self.0.lock();
            std::mem::swap(&mut queue.messages, into);
            self.0.has_mail.store(false, Ordering::Relaxed);
        }
    }

    /// The core begins, perhaps not the first one of this address.
    pub(crate) fn open(&self) {
        self.0.lock().open = true;
    }

    /// Takes what has come and refuses what would.
    pub(crate) fn close(&self) -> Vec<Msg> {
        let mut queue = self.0.lock();
        queue.open = false;
        self.0.has_mail.store(false, Ordering::Relaxed);
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
