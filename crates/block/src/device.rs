// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who takes bios: devices, pure mappings, and targets of a table.
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use crate::attr::{self, Spec};
use crate::value::Value;
use crate::{Bio, Component, Error, Limits, Op, Opener, Sector, Status, UnsavedBlocks};

/// A future of the control path: boxed, on one core.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// First sectors and lengths of what is dirty, ascending; nothing when nobody can tell.
pub type DirtyRuns = LocalFuture<Option<Vec<(Sector, Sector)>>>;

/// Anything that takes bios: a leaf, a mapped device, an engine.
///
/// Lifecycle: shared by `Rc` on the one core that owns it. `submit` may be called at any time and
/// any number of times; the device keeps what it needs alive until each bio has completed.
pub trait BlockDevice {
    /// What people call it: a path, or the mapped device's name.
    fn name(&self) -> &str;

    /// Size, alignment, largest request.
    fn limits(&self) -> Limits;

    /// Takes the bio; see the border contract at the head of this room.
    fn submit(&self, bio: Bio);

    /// What tells it from every other device, a copy of it among them, for as long as it lives:
    /// the same after a restart of the machine. Nothing when nobody knows.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Where `len` sectors from `at` on lie, as far as one answer holds; `None` when the device
    /// takes its bios itself. `at + len` is within the capacity. An answer is right as long as
    /// [`map_generation`](BlockDevice::map_generation) stays the same: bios go by it only then.
    fn map_blocks(&self, _at: Sector, _len: Sector) -> Option<MappedExtent> {
        None
    }

    /// Changes whenever an answer of [`map_blocks`](BlockDevice::map_blocks) may be another one.
    fn map_generation(&self) -> u64 {
        0
    }

    /// A writer above has just been made to wait because too much is dirty. Whoever throttles
    /// writeback below lets more of it through for a while.
    fn writer_throttled(&self) {}

    /// The device as the end of flat mappings, if it can be one.
    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        None
    }
}

/// Whether both are the same device, as whatever trait or type each is held.
pub fn same_device<A: ?Sized, B: ?Sized>(a: &Rc<A>, b: &Rc<B>) -> bool {
    std::ptr::addr_eq(Rc::as_ptr(a), Rc::as_ptr(b))
}

/// A device at which a flat mapping may end.
///
/// Mappings above it send bios here without a trace of their own: no completion chained, nothing
/// counted. So it is the base that can say when they have ended, and which have failed.
pub trait Base: BlockDevice {
    /// As `submit`, of a bio whose sectors lie at `sector` of this device; what the bio says is
    /// where they lie on the device that it was sent to. The mapping has checked that they are on
    /// this one, aligned to its logical blocks; the buffers' length is still to be checked.
    fn submit_at(&self, sector: Sector, bio: Bio);

    /// Resolves when every bio that was submitted before the call has completed.
    fn quiesced(self: Rc<Self>) -> LocalFuture<()>;

    /// Tells `watcher`, as long as it lives, which bios fail from now on.
    fn watch(&self, watcher: Weak<dyn OnIoError>);
}

/// Told of the failed bios of a [`Base`]. May count and wake; must not submit or complete.
pub trait OnIoError {
    /// The device failed `op` on `len` sectors from `sector` on (its own sectors).
    fn on_io_error(&self, op: Op, sector: Sector, len: Sector, status: Status);
}

/// Where a run of sectors lives: `len` sectors from `sector` on one of the map's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index into [`Map::devices`].
    pub device: usize,
    /// First sector there.
    pub sector: Sector,
    /// How far the answer holds; at least 1 and at most what was asked.
    pub len: Sector,
}

/// What one answer of [`BlockDevice::map_blocks`] tells: `len` sectors lie from `sector` on, on
/// `base`.
#[derive(Clone)]
pub struct MappedExtent {
    /// To be sent there with [`Base::submit_at`].
    pub base: Rc<dyn Base>,
    /// First sector there.
    pub sector: Sector,
    /// How far the answer holds; at least 1 and at most what was asked.
    pub len: Sector,
}

impl fmt::Debug for MappedExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedExtent({} {}+{})", self.base.name(), self.sector, self.len)
    }
}

/// A device as one opener has it: what is sent through it says who sent it.
pub struct OpenDevice {
    device: Rc<dyn BlockDevice>,
    opener: Opener,
}

impl OpenDevice {
    /// `device`, opened by `opener`.
    pub fn new(device: Rc<dyn BlockDevice>, opener: Opener) -> OpenDevice {
        OpenDevice { device, opener }
    }
}

impl BlockDevice for OpenDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn submit(&self, bio: Bio) {
        self.device.submit(Bio { opener: self.opener, ..bio });
    }

    fn identity(&self) -> Option<String> {
        self.device.identity()
    }

    fn map_blocks(&self, at: Sector, len: Sector) -> Option<MappedExtent> {
        self.device.map_blocks(at, len)
    }

    fn map_generation(&self) -> u64 {
        self.device.map_generation()
    }

    fn writer_throttled(&self) {
        self.device.writer_throttled();
    }
}

/// A pure mapping: where sectors live, and for how long they are contiguous. No I/O, no state.
pub trait Map {
    /// The devices that extents point at.
    fn devices(&self) -> &[Rc<dyn Base>];

    /// The extent that holds `at`, no longer than `len`. `at + len` is within the map's capacity.
    fn map(&self, at: Sector, len: Sector) -> Extent;
}

/// What may be done with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can only be read.
    Read,
    /// It can only be read, and may have many lines: not shown where all attributes are.
    ReadMany,
    /// It can only be written: a command.
    Write,
    /// It has a value that can be set.
    ReadWrite,
}

impl Access {
    /// Whether it can be read.
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether it can be written.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }
}

/// One line of a table at work.
///
/// Lifecycle: constructed when the table is loaded; `resume` before the first bio of each live
/// period; `suspend` after its last bio has completed; dropped when the table goes. After
/// `suspend` nothing of it is in flight.
pub trait Target: BlockDevice + Any {
    /// The target type's name in a table line.
    fn kind(&self) -> &'static str;

    /// The arguments as a table line would give them.
    fn table(&self) -> String;

    /// The target's part of a status line; empty when it has none.
    fn status(&self) -> String {
        String::new()
    }

    /// Brings up to date what `status` tells, where that takes other cores: to be awaited before.
    fn refresh(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async {})
    }

    /// The devices below, by the names the table uses, each once.
    fn deps(&self) -> Vec<String>;

    /// The runs of sectors below that it uses, for as long as it lives.
    fn components(&self) -> Vec<Component> {
        Vec::new()
    }

    /// What it holds that no device below has at its place, as of the last `refresh` where parts of
    /// it are on other cores; nothing when it is no cache.
    fn unsaved(&self) -> Option<UnsavedBlocks> {
        None
    }

    /// Writes what it alone holds to the devices below. Bios may come meanwhile.
    fn write_back(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// A message's words (without device and sector). Errors: `EINVAL` for unknown words.
    fn message(self: Rc<Self>, words: Vec<String>) -> LocalFuture<Result<String, Error>> {
        let kind = self.kind();
        Box::pin(async move {
            let said = words.join(" ");
            Err(Error::invalid(format!("{kind}: unknown message `{said}`: it takes none")))
        })
    }

    /// Settles everything that is in flight below and makes what must be durable so.
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Starts a live period.
    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Takes over from `before`, whose place it has in the device's new table, what clients have
    /// not been told yet: that changes which were acknowledged may be lost. `before` is suspended;
    /// this one is resumed and no bio has come yet.
    fn take_over(self: Rc<Self>, _before: Rc<dyn Target>) -> LocalFuture<()> {
        Box::pin(async {})
    }

    /// Its attributes, named as in sysfs: the tables of the engine.
    fn attributes(&self) -> Vec<&'static Spec> {
        Vec::new()
    }

    /// Reads an attribute. It may be read at any time, by several at once, and while one is being
    /// written: it waits for no write. Errors: `ENXIO` for unknown names, `EACCES` for those that
    /// can only be written.
    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        let e = attr::unknown(self.kind(), &name, &[]);
        Box::pin(async move { Err(e) })
    }

    /// Its numbers for `/metrics` as of the last `refresh`; none before the first `resume`.
    fn metrics(&self) -> Vec<(&'static Spec, u64)> {
        Vec::new()
    }

    /// Writes an attribute. What it asks for is done when the future resolves, which may take
    /// minutes; it is no message that holds `suspend` up: one that is at work then is ended early
    /// by `suspend`, with an error.
    fn set_attribute(
        self: Rc<Self>,
        name: String,
        _value: String,
    ) -> LocalFuture<Result<(), Error>> {
        let e = attr::unknown(self.kind(), &name, &[]);
        Box::pin(async move { Err(e) })
    }

    /// Whether it is a cache, of which `dirty` tells what is dirty.
    fn tracks_dirty(&self) -> bool {
        false
    }

    /// Runs of dirty sectors within `at..at + len` for block status; nothing when not a cache.
    fn dirty(self: Rc<Self>, _at: Sector, _len: Sector) -> DirtyRuns {
        Box::pin(async { None })
    }
}
