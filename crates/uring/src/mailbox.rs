// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mailbox: messages from other threads to a core. A queue, and an eventfd that wakes the core's
//! ring.
//!
//! A sender takes the lock once per batch, and writes to the eventfd only if the core sleeps: a
//! running core checks its mailbox at every park. A core sets `asleep` under the lock and only
//! while the queue is empty, so the sender of the next message sees it and wakes the core. That
//! sender clears `asleep` under the lock, so a sleeping core is woken once. A core that has woken
//! clears it without: a sender that comes at that moment wakes it once more.
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// Whether the queue has messages; changed under its lock.
    has_mail: AtomicBool,
    /// The core is parked, or about to be, and was not woken since.
    asleep: AtomicBool,
    eventfd: OwnedFd,
    senders: AtomicUsize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing under the lock can leave the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        #[expect(clippy::host_endian_bytes, reason = "an eventfd counts in the host's order")]
        let one = 1_u64.to_ne_bytes();
        // Fails only if the counter is full, and then the core is being woken already.
        let _ = rustix::io::write(&self.eventfd, &one);
    }
}

/// The address of a core: made before the cores start, one for each, known to all of them.
#[derive(Clone)]
pub struct Mailbox(Arc<Inbox>);

impl Mailbox {
    /// An empty mailbox.
    pub fn new() -> Result<Mailbox, Error> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|e| Error::io("cannot make an eventfd for a core's mailbox").because(e))?;
        let queue = Mutex::new(Queue { messages: Vec::new(), open: true });
        let (has_mail, asleep) = (AtomicBool::new(false), AtomicBool::new(false));
        let senders = AtomicUsize::new(0);
        Ok(Mailbox(Arc::new(Inbox { queue, has_mail, asleep, eventfd, senders })))
    }

    /// A handle by which other threads call this core. The core does not end while one exists.
    pub fn sender(&self) -> Sender {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Sender(self.0.clone())
    }

    pub(crate) fn eventfd(&self) -> &OwnedFd {
        &self.0.eventfd
    }

    /// Sends a message; returns it if the core has ended.
    pub(crate) fn send(&self, message: Msg) -> Result<(), Msg> {
        let mut message = Some(message);
        self.send_with(|queue| queue.extend(message.take()));
        message.map_or(Ok(()), Err)
    }

    /// Sends all messages of the batch in order; leaves them if the core has ended.
    pub(crate) fn send_all(&self, batch: &mut Vec<Msg>) {
        self.send_with(|queue| {
            if queue.is_empty() {
                // The sender reuses the allocation that the core had.
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
        let asleep = self.0.asleep.swap(false, Ordering::Relaxed);
        drop(queue);
        if asleep {
            self.0.wake();
        }
    }

    /// Whether there are messages. Takes no lock.
    pub(crate) fn has_mail(&self) -> bool {
        self.0.has_mail.load(Ordering::Acquire)
    }

    /// Marks the core as sleeping. False: there are messages, it must not sleep.
    pub(crate) fn begin_sleep(&self) -> bool {
        let queue = self.0.lock();
        let may_sleep = queue.messages.is_empty();
        self.0.asleep.store(may_sleep, Ordering::Relaxed);
        may_sleep
    }

    /// Clears the mark of [`Mailbox::begin_sleep`].
    pub(crate) fn end_sleep(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
    }

    /// Swaps the messages with `into`, which is empty. Takes no lock if there are none.
    pub(crate) fn take(&self, into: &mut Vec<Msg>) {
        if self.has_mail() {
            let mut queue = self.0.lock();
            std::mem::swap(&mut queue.messages, into);
            self.0.has_mail.store(false, Ordering::Relaxed);
        }
    }

    /// Opens the mailbox for a core that starts, perhaps again.
    pub(crate) fn open(&self) {
        self.0.lock().open = true;
    }

    /// Takes the messages and refuses further ones.
    pub(crate) fn close(&self) -> Vec<Msg> {
        let mut queue = self.0.lock();
        queue.open = false;
        self.0.has_mail.store(false, Ordering::Relaxed);
        std::mem::take(&mut queue.messages)
    }

    /// Whether calls may still arrive, or have arrived and were not taken.
    pub(crate) fn expects_calls(&self) -> bool {
        self.0.senders.load(Ordering::Acquire) > 0 || !self.0.lock().messages.is_empty()
    }
}

block::debug_as!(Mailbox, s => "Mailbox({} waiting)", s.0.lock().messages.len());

/// The handle by which a thread that is no core (the control path) runs code on a core.
pub struct Sender(Arc<Inbox>);

impl Sender {
    /// Runs `f` on the core, after earlier messages. Fails if the core has ended.
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
            // A core that waits only for calls wakes up and ends.
            self.0.wake();
        }
    }
}

block::debug_as!(Sender, _s => "Sender");
