// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaf: what a device at the bottom of a stack has besides I/O; and how it is opened on another
//! core.
//!
//! ```text
//!   core 0                                   another core
//!   leaf.share() ──── SharedLeaf ──────────▶ SharedLeaf::open
//!     │                                          │
//!     └── same file or memory, throttle, errors ─┘   counters of its own, added to core 0's
//! ```
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use block::{Base, BlockDevice, Limits, Ram};
use reactor::FileId;

use crate::file::FileLeaf;
use crate::flush_errors::SharedFlushErrors;
use crate::mem::Mem;
use crate::null::Null;
use crate::stats::{Elsewhere, Stats};
use crate::wbt::{SharedWbt, Wbt};

/// A device at the bottom of a stack: a file, memory, an export of a server.
///
/// Bios reach it as any other device, by [`BlockDevice::submit`] or [`Base::submit_at`]; the
/// methods here are for its opener.
pub trait Leaf: Base {
    /// Its counters, of which every request in flight is one.
    fn stats(&self) -> &Stats;

    /// The throttle of its writeback. Memory has none, as nothing queues there, and an export has
    /// none, as its server throttles.
    fn wbt(&self) -> Option<&Wbt> {
        None
    }

    /// Whether it refuses writes.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether it is in the memory of this process: its bios complete as they are submitted, and
    /// its content ends with the process.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Whether it merges parts of blocks. Then every client that writes parts of blocks must write
    /// through this instance.
    fn merges(&self) -> bool {
        false
    }

    /// The driver's file, if it is on one.
    fn file(&self) -> Option<FileId> {
        None
    }

    /// What another core needs to open the same file or memory. Without it, other cores send their
    /// bios to the core of this leaf.
    fn share(&self) -> Option<SharedLeaf> {
        None
    }
}

/// What another core needs to open a leaf, too: the same file, the same memory.
#[derive(Clone)]
pub struct SharedLeaf {
    name: String,
    limits: Limits,
    storage: Storage,
    /// The counters of the first leaf, for those of the others.
    elsewhere: Elsewhere,
}

#[derive(Clone)]
enum Storage {
    /// All cores share one throttle and one record of flush errors.
    File(SharedWbt, SharedFlushErrors),
    Mem(Arc<Ram>),
    Null,
}

impl SharedLeaf {
    pub(crate) fn of_file(leaf: &FileLeaf) -> SharedLeaf {
        let storage = Storage::File(leaf.shared_wbt(), leaf.shared_flush_errors());
        SharedLeaf::new(leaf.stats(), leaf.limits(), storage)
    }

    pub(crate) fn of_mem(mem: &Mem) -> SharedLeaf {
        SharedLeaf::new(mem.stats(), mem.limits(), Storage::Mem(mem.ram().clone()))
    }

    pub(crate) fn of_null(null: &Null) -> SharedLeaf {
        SharedLeaf::new(null.stats(), null.limits(), Storage::Null)
    }

    fn new(stats: &Stats, limits: Limits, storage: Storage) -> SharedLeaf {
        let (name, elsewhere) = (stats.device().to_owned(), stats.elsewhere());
        SharedLeaf { name, limits, storage, elsewhere }
    }

    /// Whether its bios complete as they are submitted.
    pub fn is_in_memory(&self) -> bool {
        match &self.storage {
            Storage::File(..) => false,
            Storage::Mem(_) | Storage::Null => true,
        }
    }

    /// Opens the leaf on this core. `file` is the driver's file on this core, for a leaf that is on
    /// one, and `close` closes it. Dropping the leaf ends only this core's use.
    pub fn open(&self, file: impl FnOnce() -> (FileId, Box<dyn FnOnce(FileId)>)) -> Rc<dyn Leaf> {
        let leaf: Rc<dyn Leaf> = match &self.storage {
            Storage::File(wbt, errors) => {
                let ((file, close), limits) = (file(), self.limits.clone());
                let leaf = FileLeaf::on_same_file(&self.name, file, limits, wbt, errors);
                Rc::new(leaf.closed_by(close))
            }
            Storage::Mem(ram) => Rc::new(Mem::on(&self.name, ram.clone())),
            Storage::Null => Rc::new(Null::new(&self.name, self.limits.capacity)),
        };
        leaf.stats().stand_for(&self.elsewhere);
        leaf
    }
}

impl fmt::Debug for SharedLeaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedLeaf({})", self.name)
    }
}
