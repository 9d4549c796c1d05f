// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write lock of a device: writes of whole sectors hold it shared, a write of a part of a
//! sector holds it exclusively.
//!
//! It does not concern parts of larger blocks: devices merge these. The lock belongs to one device
//! on one core; all open files of the device take it there. Writers on other threads take its
//! [`CrossThreadLock`], which is closed while the lock is held or wanted exclusively. Writes of
//! parts of sectors are rare, so the common case costs one counter, up and down.
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reactor::WaitList;

/// A lock for the writers of a device.
#[derive(Default)]
pub struct WriteLock {
    shared: Cell<usize>,
    exclusive: Cell<bool>,
    /// Waiting exclusive writers: they have priority, else shared writers could starve them.
    exclusive_waiters: Cell<usize>,
    changed: WaitList,
    cross_thread: Arc<CrossThreadLock>,
}

/// The lock for writers on other threads: their number and the closed bit in one word. So a refused
/// writer leaves the word unchanged, and the exclusive waiter misses no release.
#[derive(Debug, Default)]
pub struct CrossThreadLock(AtomicUsize);

/// The closed bit, beside the number of holders.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl CrossThreadLock {
    /// Takes the lock shared, or returns false if it is closed. [`CrossThreadLock::release`] ends
    /// it.
    #[must_use]
    pub fn try_shared(&self) -> bool {
        let enter = |word: usize| (word & CLOSED == 0).then_some(word + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    /// Releases the lock. If it returns true, an exclusive writer may wait: the caller must call
    /// [`WriteLock::wake_waiters`] on the core of the lock.
    #[must_use]
    pub fn release(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1
    }

    fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED == 0
    }
}

impl WriteLock {
    /// A free lock.
    pub fn new() -> WriteLock {
        WriteLock::default()
    }

    /// The lock for other threads.
    pub fn cross_thread(&self) -> Arc<CrossThreadLock> {
        self.cross_thread.clone()
    }

    /// Wakes all waiters to check again.
    pub fn wake_waiters(&self) {
        self.changed.wake_all();
    }

    /// Takes the lock shared.
    pub(crate) async fn shared(&self) -> Shared<'_> {
        let free = || !self.exclusive.get() && self.exclusive_waiters.get() == 0;
        if !free() {
            self.changed.wait_for(free).await;
        }
        self.shared.set(self.shared.get() + 1);
        Shared(self)
    }

    /// Takes the lock exclusively.
    pub(crate) async fn exclusive(&self) -> Exclusive<'_> {
        self.exclusive_waiters.set(self.exclusive_waiters.get() + 1);
        self.cross_thread.close();
        let nobody =
            || !self.exclusive.get() && self.shared.get() == 0 && self.cross_thread.is_empty();
        self.changed.wait_for(nobody).await;
        self.exclusive_waiters.set(self.exclusive_waiters.get() - 1);
        self.exclusive.set(true);
        Exclusive(self)
    }
}

block::debug_as!(WriteLock, s =>
    "WriteLock({} shared, exclusive: {})", s.shared.get(), s.exclusive.get());

#[must_use]
pub(crate) struct Shared<'a>(&'a WriteLock);

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let left = self.0.shared.get() - 1;
        self.0.shared.set(left);
        if left == 0 && self.0.exclusive_waiters.get() > 0 {
            self.0.changed.wake_all();
        }
    }
}

#[must_use]
pub(crate) struct Exclusive<'a>(&'a WriteLock);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.exclusive.set(false);
        if self.0.exclusive_waiters.get() == 0 {
            self.0.cross_thread.open();
        }
        self.0.changed.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn an_exclusive_lock_waits_for_others_and_keeps_them_out() {
        let lock = WriteLock::new();
        let cross_thread = lock.cross_thread();
        assert!(cross_thread.try_shared());
        let mut cx = Context::from_waker(Waker::noop());
        let mut alone = pin!(lock.exclusive());
        assert!(alone.as_mut().poll(&mut cx).is_pending(), "one is inside");
        assert!(!cross_thread.try_shared(), "shut for newcomers");
        assert!(cross_thread.release(), "the last one out calls");
        lock.wake_waiters();
        let Poll::Ready(alone) = alone.as_mut().poll(&mut cx) else { panic!("nobody is inside") };
        assert!(!cross_thread.try_shared());
        drop(alone);
        assert!(cross_thread.try_shared());
        assert!(!cross_thread.release(), "nobody waits");
    }

    #[test]
    fn a_refused_writer_delays_no_other() {
        let lock = WriteLock::new();
        let cross_thread = lock.cross_thread();
        let (signals, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if cross_thread.try_shared() && cross_thread.release() {
                            signals.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                });
            }
            let mut cx = Context::from_waker(Waker::noop());
            for round in 0..20_000 {
                let before = signals.load(Ordering::Acquire);
                let mut alone = pin!(lock.exclusive());
                let mut polled = alone.as_mut().poll(&mut cx);
                let mut looks = 0_u32;
                while polled.is_pending() {
                    // Only the task inside wakes it.
                    if signals.load(Ordering::Acquire) != before {
                        lock.wake_waiters();
                        polled = alone.as_mut().poll(&mut cx);
                    }
                    std::thread::yield_now();
                    looks += 1;
                    if looks == 10_000_000 {
                        stop.store(true, Ordering::Relaxed);
                        panic!("round {round}: nobody is inside, and nobody said so");
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
