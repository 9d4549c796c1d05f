// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface to the program: the list of exports, and their devices.
use std::rc::Rc;
use std::sync::Arc;

use block::latency::Latencies;
use block::{BlockDevice, CoreId, Error, LocalFuture, Sector};
use reactor::FileId;

/// The exports of a server.
pub trait Exports {
    /// Names to list.
    fn list(&self) -> Vec<String>;

    /// Opens an export; a drop of the result closes it. The empty name is the default export. Also
    /// called for clients that only ask for information, so it must be cheap ([`Export::begin`]).
    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error>;
}

/// A context of block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// `base:allocation`: flag 1 is a hole, flag 2 reads as zero.
    Allocation,
    /// `millpond:dirty`: flag 1 is not yet on the origin.
    Dirty,
}

impl Context {
    /// All contexts; the wire id is the index plus one.
    pub const ALL: [Context; 2] = [Context::Allocation, Context::Dirty];

    /// The protocol's name.
    pub const fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::Dirty => "millpond:dirty",
        }
    }

    /// The id that the server gives it.
    pub const fn id(self) -> u32 {
        match self {
            Context::Allocation => 1,
            Context::Dirty => 2,
        }
    }
}

/// A run of sectors with one block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First sector.
    pub sector: Sector,
    /// Length.
    pub len: Sector,
    /// The context's flags; sectors outside of all runs have none.
    pub flags: u32,
}

/// Another core that serves a session.
pub struct Place {
    /// The core.
    pub core: CoreId,
    /// Makes what the session needs there.
    pub begin: Box<dyn FnOnce() -> PlacedExport + Send>,
}

/// What a session needs on the core that serves it.
pub struct PlacedExport {
    /// The core's own name of the socket.
    pub socket: FileId,
    /// Dropped when the session has ended.
    pub export: Box<dyn Export>,
}

block::debug_as!(PlacedExport, s => "PlacedExport({})", s.export.name());

block::debug_as!(Place, s => "Place(core {})", s.core.0);

/// An export in use by one connection.
///
/// Lifecycle: made by [`Exports::open`]; dropped after the connection's last bio has ended, so it
/// can serve as the guard that keeps the device open.
pub trait Export {
    /// Where bios go.
    fn device(&self) -> Rc<dyn BlockDevice>;

    /// Its own name, also when it was opened as the default.
    fn name(&self) -> String;

    /// The handshake is over: its client may send requests. Not called for clients that only ask
    /// for information.
    fn begin(&self) {}

    /// The core that is to serve the session of this export, whose client connects by `socket`;
    /// `None`: this one. Called once, when the handshake is over. This export is dropped when the
    /// session there has ended, and the export of the place before it.
    fn place(&self, _socket: FileId) -> Option<Place> {
        None
    }

    /// A description for people; may be empty.
    fn description(&self) -> String {
        String::new()
    }

    /// Whether writes are refused. Asked when a session begins, and before each write.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether clients may choose the context.
    fn offers(&self, context: Context) -> bool {
        context == Context::Allocation
    }

    /// Where the times of its requests are recorded.
    fn latencies(&self) -> Option<Arc<Latencies>> {
        None
    }

    /// Runs with flags within `at..at + len`, ascending; `None` when the context is unknown here.
    /// Allocation unknown means: all allocated. `len` is at most 64 MiB.
    fn block_status(
        &self,
        _context: Context,
        _at: Sector,
        _len: Sector,
    ) -> LocalFuture<Option<Vec<Run>>> {
        Box::pin(async { None })
    }
}
