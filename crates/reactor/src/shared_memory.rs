// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that outlives the process: what an engine stores there the next process finds, unless the
//! machine stopped in between.
//!
//! ```text
//!   engine ── write ──▶ SharedMemory      a store to memory: no request, no system call
//!                        ▲
//!   SharedMemoryStore::open ┘ SharedMemoryStore: files of a directory (uring), the world (sim)
//! ```
//!
//! Invariants
//! - RE-M1 What `write` has stored is there after the death of the process at any later moment. If
//!   the process dies during a `write`, any of its bytes may be stored.
//! - RE-M2 After a stop of the machine the memory is blank, or has any earlier contents: the boot
//!   id is another one then.
//! - RE-M3 Of all openings of one memory, in all processes, one has it locked.
use std::fmt;
use std::rc::Rc;

use block::{Error, LocalFuture, Status};

use crate::core::with_core;

/// Memory that outlives the process (RE-M1). One user writes to it at a time.
pub trait SharedMemory: fmt::Debug {
    /// Its size in bytes.
    fn len_bytes(&self) -> usize;
    /// Copies the bytes from `at` on to `out`.
    ///
    /// # Errors
    /// `Io` when a part of the memory is lost.
    ///
    /// # Panics
    /// If the range is not within the memory.
    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), Status>;
    /// Stores `bytes` from `at` on.
    ///
    /// # Errors
    /// `Io` when a part of the memory is lost.
    ///
    /// # Panics
    /// If the range is not within the memory.
    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Status>;
    /// Takes the memory for `owner`, a word for messages, unless this one has it already (RE-M3).
    ///
    /// # Errors
    /// Who has it.
    fn lock(&self, owner: &str) -> Result<(), String>;
    /// Gives it back; so do a drop and the death of the process.
    fn unlock(&self);
}

/// Opens shared memory by its name.
pub trait SharedMemoryStore {
    /// Opens `len_bytes` of memory with this name; new memory is blank. A name is a file name. Does
    /// not block the core.
    ///
    /// # Errors
    /// When there is no room for it, or it can't be used; the text says why.
    fn open(&self, name: &str, len_bytes: u64) -> LocalFuture<Result<Rc<dyn SharedMemory>, Error>>;
    /// Gives memory that is there another name, and drops what had that one. Nothing is done where
    /// there is none. Does not block the core.
    ///
    /// # Errors
    /// Those of the directory.
    fn rename(&self, name: &str, to: &str) -> LocalFuture<Result<(), Error>>;
    /// The identity of this start of the machine (RE-M2).
    fn boot_id(&self) -> [u8; 16];
    /// Where the memory with this name is, for messages.
    fn place_of(&self, name: &str) -> String;
}

/// Sets where this core opens shared memory, before any device is opened.
pub fn set_shared_memory(store: Rc<dyn SharedMemoryStore>) {
    with_core(|c| {
        c.others_share_memory.set(true);
        *c.shared_memory.borrow_mut() = Some(store);
    });
}

/// This core has no shared memory, but processes before and after it may have some.
pub fn set_no_shared_memory() {
    with_core(|c| {
        c.others_share_memory.set(true);
        *c.shared_memory.borrow_mut() = None;
    });
}

/// Whether processes before and after this one may have shared memory: after
/// [`set_shared_memory`] and [`set_no_shared_memory`].
pub fn others_share_memory() -> bool {
    with_core(|c| c.others_share_memory.get())
}

/// Where this core opens shared memory: nowhere until [`set_shared_memory`] is called.
pub fn shared_memory() -> Option<Rc<dyn SharedMemoryStore>> {
    with_core(|c| c.shared_memory.borrow().clone())
}
