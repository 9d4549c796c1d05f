// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Completion`: the right, and the duty, to finish one bio.
//!
//! Invariants
//! - BL-C1 Each completion is used exactly once; dropping an unfinished one panics, because its
//!   client would wait for ever. Only a simulated power cut may drop it.
//! - BL-C2 Completing runs no client code: it stores the status and queues the waiting task.
use std::cell::Cell;

use crate::Status;

/// A core of the process: one reactor, one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

/// A slot in the op table of the core that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpKey(pub u32);

/// The function that returns an outcome to the reactor which made the completion.
pub type FinishFn = fn(CoreId, OpKey, Status);

/// The right to finish one bio: the core that waits, its op slot, and the function that finishes
/// it.
#[must_use = "a bio must be completed"]
pub struct Completion {
    finish: FinishFn,
    home: CoreId,
    key: OpKey,
}

thread_local! {
    static CRASHING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a simulated power cut is under way on this thread: then unfinished bios may be dropped.
pub fn crashing() -> bool {
    CRASHING.get()
}

/// Begins or ends a power cut on this thread. Only the reactor calls it.
pub fn set_crashing(on: bool) {
    CRASHING.set(on);
}

impl Completion {
    /// Made by the reactor for the op slot `key` of core `home`.
    pub fn new(finish: FinishFn, home: CoreId, key: OpKey) -> Completion {
        Completion { finish, home, key }
    }

    /// Finishes the bio: the outcome goes to the task that waits.
    pub fn complete(self, status: Status) {
        let (home, key, finish) = (self.home, self.key, self.finish);
        #[expect(clippy::mem_forget, reason = "the duty passes on; Drop would panic")]
        std::mem::forget(self);
        finish(home, key, status);
    }

    /// Passes the duty on as a plain pair: the caller must see that the slot is finished.
    pub fn into_raw(self) -> (CoreId, OpKey) {
        let raw = (self.home, self.key);
        #[expect(clippy::mem_forget, reason = "the duty passes on; Drop would panic")]
        std::mem::forget(self);
        raw
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !std::thread::panicking() && !crashing() {
            panic!("bio dropped without completion: its client would wait for ever");
        }
    }
}

crate::debug_as!(Completion, s => "Completion(core {} op {})", s.home.0, s.key.0);
