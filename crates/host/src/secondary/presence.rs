// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Presence: which secondary cores may submit, and whether they know the newest mappings.
//!
//! ```text
//!   owner    change:  generation += 1 ── fence ── read which cores are present
//!   core     enter:   present = 1     ── fence ── read the generation
//!            leave:   present = 0     ── fence ── read the generation
//! ```
//!
//! Each side first writes its word and then reads the other's, with a full fence between, so at
//! least one of the two sees the other's write. The protocol of `secondary` needs no more:
//!
//! Invariants
//! - HO-P1 A core that the owner did not find present after a change sees that change when it
//!   enters.
//! - HO-P2 A core that the owner found present after a change, and that leaves, sees it on leaving.
//! - HO-P3 What a core did before it left happens before what the owner does after it has found the
//!   core absent.
//!
//! A core writes only to its own cache line, and the owner's is written only when a mapping
//! changes: entering and leaving cost two fences and write no shared line.
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word of memory that threads share: the real one, or that of the model checker.
pub(crate) trait Word {
    fn new(value: u64) -> Self;
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    fn full_fence();
}

impl Word for AtomicU64 {
    fn new(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Release);
    }
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// Two cache lines, which processors fetch together.
#[repr(align(128))]
struct Line<W>(W);

/// The shared words of all secondary cores.
pub(crate) struct Presence<W = AtomicU64> {
    generation: Line<W>,
    present: Box<[Line<W>]>,
}

impl<W: Word> Presence<W> {
    pub(crate) fn new(cores: usize) -> Presence<W> {
        let present = std::iter::repeat_with(|| Line(W::new(0))).take(cores).collect();
        Presence { generation: Line(W::new(0)), present }
    }

    /// The core is about to submit bios. Returns the generation that it must know by then.
    pub(crate) fn enter(&self, core: usize) -> u64 {
        self.present[core].0.store(1);
        W::full_fence();
        self.generation.0.load()
    }

    /// The core has nothing in flight and submits nothing until it enters again. Returns the
    /// generation up to which the owner may wait for it.
    pub(crate) fn leave(&self, core: usize) -> u64 {
        self.present[core].0.store(0);
        W::full_fence();
        self.generation.0.load()
    }

    /// Owner: mappings have changed. Returns the new generation.
    pub(crate) fn change(&self) -> u64 {
        let generation = self.generation.0.load() + 1;
        self.generation.0.store(generation);
        W::full_fence();
        generation
    }

    /// Owner: whether the core may use mappings of before the last change.
    pub(crate) fn is_present(&self, core: usize) -> bool {
        self.present[core].0.load() == 1
    }

    pub(crate) fn cores(&self) -> usize {
        self.present.len()
    }
}

block::debug_as!(<W: Word> Presence<W>, s => "Presence(generation {})", s.generation.0.load());

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic;
    use loom::thread;

    use super::*;

    impl Word for atomic::AtomicU64 {
        fn new(value: u64) -> Self {
            atomic::AtomicU64::new(value)
        }
        fn load(&self) -> u64 {
            atomic::AtomicU64::load(self, Ordering::Acquire)
        }
        fn store(&self, value: u64) {
            atomic::AtomicU64::store(self, value, Ordering::Release);
        }
        fn full_fence() {
            atomic::fence(Ordering::SeqCst);
        }
    }

    type Checked = Presence<atomic::AtomicU64>;

    /// All executions of a core that enters and leaves twice beside an owner that changes once. The
    /// cell is the old leaf: only one side at a time may touch it, or loom reports a race.
    #[test]
    fn no_core_uses_a_mapping_that_the_owner_has_withdrawn() {
        loom::model(|| {
            let presence = Arc::new(Checked::new(1));
            let old_leaf = Arc::new(loom::cell::UnsafeCell::new(0_u64));
            let reported = Arc::new(atomic::AtomicU64::new(0));
            let core = {
                let (presence, leaf, reported) =
                    (presence.clone(), old_leaf.clone(), reported.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        if presence.enter(0) == 0 {
                            leaf.with_mut(|_| ());
                        }
                        if presence.leave(0) == 1 {
                            reported.store(1, Ordering::Release);
                        }
                    }
                })
            };
            presence.change();
            if presence.is_present(0) {
                // HO-P2: a core that was found present reports, at the latest when it leaves.
                while reported.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
            }
            // HO-P1 and HO-P3.
            old_leaf.with_mut(|_| ());
            core.join().unwrap();
        });
    }
}
