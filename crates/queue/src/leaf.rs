// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a leaf has besides I/O, and how it is opened on another core.
//!
//! ```text
//!   core 0                                   another core
//!   leaf.share() ──── SharedLeaf ──────────▶ SharedLeaf::open
//!     │                                          │
//!     └── same file or memory, throttle, errors ─┘   counters of its own, added to core 0's
//! ```
use std::rc::Rc;
use std::sync::Arc;

use block::{Base, LocalFuture, Sector};
use reactor::FileId;

use crate::stats::{OtherCores, Stats};
use crate::wbt::Wbt;

/// A device at the bottom of a stack: a file, memory, an export of a server.
///
/// Bios reach it as any other device, by [`block::BlockDevice::submit`] or [`Base::submit_at`];
/// the methods here are for its opener.
pub trait Leaf: Base {
    /// Its counters; they count every request in flight.
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

    /// Whether it was opened for writes, and takes none any more: its disk was made read-only, or
    /// its server has come back so.
    fn has_become_read_only(&self) -> bool {
        !self.is_read_only() && self.stats().refuses_writes()
    }

    /// Whether it is in the memory of this process: its bios complete as they are submitted, and
    /// its content ends with the process.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Whether it merges parts of blocks. Then all clients that write parts of blocks must use this
    /// instance.
    fn merges(&self) -> bool {
        false
    }

    /// What keeps it from serving requests now, in one sentence without a full stop.
    fn problem(&self) -> Option<String> {
        None
    }

    /// The driver's file, if it is on one.
    fn file(&self) -> Option<FileId> {
        None
    }

    /// Whether it reaches its data by a connection of its own to a server.
    fn has_connection(&self) -> bool {
        false
    }

    /// Gives up that connection, if it has one: another process may then connect in its place. All
    /// must have been flushed, and nothing may be under way. [`Leaf::connect_again`], or the next
    /// request, makes another connection.
    fn disconnect(&self) -> LocalFuture<()> {
        Box::pin(async {})
    }

    /// Makes the connection again that was given up.
    fn connect_again(&self) {}

    /// It has so many sectors from now on, on all cores: its file has grown or was cut. Whole
    /// logical blocks. Only a leaf on a file changes.
    fn set_capacity(&self, _capacity: Sector) {}

    /// What another core needs to open the same file or memory. Without it, other cores send their
    /// bios to the core of this leaf.
    fn share(&self) -> Option<SharedLeaf> {
        None
    }
}

/// A file of the driver that is open on this core.
pub struct OpenFile {
    /// The file.
    pub id: FileId,
    /// Closes it, when its leaf is dropped.
    pub close: Box<dyn FnOnce(FileId)>,
}

type OpenLeaf = dyn Fn(Option<OpenFile>) -> Rc<dyn Leaf> + Send + Sync;

/// What another core needs to open the same leaf: the same file or memory.
#[derive(Clone)]
pub struct SharedLeaf {
    name: String,
    is_in_memory: bool,
    /// The counters of the first leaf that those of the others join.
    other_cores: OtherCores,
    open: Arc<OpenLeaf>,
}

impl SharedLeaf {
    /// Of `leaf`; `open` makes another one on the core of its caller.
    pub(crate) fn new(
        leaf: &dyn Leaf,
        open: impl Fn(Option<OpenFile>) -> Rc<dyn Leaf> + Send + Sync + 'static,
    ) -> SharedLeaf {
        SharedLeaf {
            name: leaf.name().to_owned(),
            is_in_memory: leaf.is_in_memory(),
            other_cores: leaf.stats().other_cores(),
            open: Arc::new(open),
        }
    }

    /// Whether its bios complete as they are submitted.
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Opens the leaf on this core. `file` is the file of this core's driver, for a leaf on a file.
    /// Dropping the leaf ends only the use on this core.
    pub fn open(&self, file: Option<OpenFile>) -> Rc<dyn Leaf> {
        let leaf = (self.open)(file);
        leaf.stats().count_for(&self.other_cores);
        leaf
    }
}

block::debug_as!(SharedLeaf, s => "SharedLeaf({})", s.name);
