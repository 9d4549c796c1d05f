// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gate: writes of whole sectors pass together, a write of a part of a sector passes alone.
//!
//! Parts of blocks are no matter of it: devices merge those. It belongs to one device on one core,
//! all open files of the device pass it there, and everybody who wants to be alone. Writers on
//! other threads pass by its [`SideGate`], which is shut while somebody is or wants to be alone. A
//! write of a part of a sector is rare (nobody does it who cares about speed), so the common case
//! costs a counter, up and down.
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reactor::WaitList;

/// Who writes to a device through files.
#[derive(Default)]
pub struct Gate {
    together: Cell<usize>,
    alone: Cell<bool>,
    /// Writers that want to be alone: they go first, or many others could keep them out for ever.
    want_alone: Cell<usize>,
    changed: WaitList,
    side: Arc<SideGate>,
}

/// A gate as other threads have it: how many are inside, and whether it is shut, in one word. So
/// who comes to a shut gate leaves no trace, and whoever waits for the last one misses nobody.
#[derive(Debug, Default)]
pub struct SideGate(AtomicUsize);

/// Beside the number of those inside.
const SHUT: usize = 1 << (usize::BITS - 1);

impl SideGate {
    /// Passes together with others, or not at all. Who passed leaves by [`SideGate::leave`].
    #[must_use]
    pub fn pass(&self) -> bool {
        let enter = |word: usize| (word & SHUT == 0).then_some(word + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    /// Leaves. When true, somebody may wait for it: [`Gate::look_again`] is to be called, on the
    /// gate's core.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == SHUT | 1
    }

    fn shut(&self) {
        self.0.fetch_or(SHUT, Ordering::AcqRel);
    }

    fn open(&self) {
        self.0.fetch_and(!SHUT, Ordering::AcqRel);
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & !SHUT == 0
    }
}

impl Gate {
    /// Nobody writes yet.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// The gate for other threads.
    pub fn side(&self) -> Arc<SideGate> {
        self.side.clone()
    }

    /// Lets those who wait look again.
    pub fn look_again(&self) {
        self.changed.wake_all();
    }

    /// Passes together with others of the kind.
    pub(crate) async fn together(&self) -> Together<'_> {
        let free = || !self.alone.get() && self.want_alone.get() == 0;
        if !free() {
            self.changed.wait_for(free).await;
        }
        self.together.set(self.together.get() + 1);
        Together(self)
    }

    /// Passes when nobody else is in, and keeps everybody out.
    pub(crate) async fn alone(&self) -> Alone<'_> {
        self.want_alone.set(self.want_alone.get() + 1);
        self.side.shut();
        let nobody = || !self.alone.get() && self.together.get() == 0 && self.side.is_empty();
        self.changed.wait_for(nobody).await;
        self.want_alone.set(self.want_alone.get() - 1);
        self.alone.set(true);
        Alone(self)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({} together, alone: {})", self.together.get(), self.alone.get())
    }
}

#[must_use]
pub(crate) struct Together<'a>(&'a Gate);

impl Drop for Together<'_> {
    fn drop(&mut self) {
        let left = self.0.together.get() - 1;
        self.0.together.set(left);
        if left == 0 && self.0.want_alone.get() > 0 {
            self.0.changed.wake_all();
        }
    }
}

#[must_use]
pub(crate) struct Alone<'a>(&'a Gate);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.alone.set(false);
        if self.0.want_alone.get() == 0 {
            self.0.side.open();
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
        let gate = Gate::new();
        let side = gate.side();
        assert!(side.pass());
        let mut cx = Context::from_waker(Waker::noop());
        let mut alone = pin!(gate.alone());
        assert!(alone.as_mut().poll(&mut cx).is_pending(), "one is inside");
        assert!(!side.pass(), "shut for newcomers");
        assert!(side.leave(), "the last one out calls");
        gate.look_again();
        let Poll::Ready(alone) = alone.as_mut().poll(&mut cx) else { panic!("nobody is inside") };
        assert!(!side.pass());
        drop(alone);
        assert!(side.pass());
        assert!(!side.leave(), "nobody waits");
    }

    #[test]
    fn who_comes_to_a_shut_gate_holds_nobody_up() {
        let gate = Gate::new();
        let side = gate.side();
        let (told, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if side.pass() && side.leave() {
                            told.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                });
            }
            let mut cx = Context::from_waker(Waker::noop());
            for round in 0..20_000 {
                let before = told.load(Ordering::Acquire);
                let mut alone = pin!(gate.alone());
                let mut polled = alone.as_mut().poll(&mut cx);
                let mut looks = 0_u32;
                while polled.is_pending() {
                    // Only by the word of who was inside.
                    if told.load(Ordering::Acquire) != before {
                        gate.look_again();
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
