// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The traits of what takes bios: devices, pure mappings, and targets of a table.
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::attr::{self, Spec};
use crate::runs::Runs;
use crate::value::Value;
use crate::{
    Backing, Bio, CacheRecord, Component, Error, Limits, Op, Opener, Sector, Status, UnsavedBlocks,
};

/// A future of the control path: boxed, on one core.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// First sectors and lengths of dirty runs, ascending; `None` when the target does not track them.
pub type DirtyRuns = LocalFuture<Option<Vec<(Sector, Sector)>>>;

/// Runs that read as zeroes: the answer of [`BlockDevice::zero_runs`].
pub type ZeroRuns = LocalFuture<Runs>;

/// Anything that takes bios: a leaf, a mapped device, an engine.
///
/// Lifecycle: shared by `Rc` on the one core that owns it. `submit` may be called at any time and
/// any number of times; the device keeps what it needs alive until each bio has completed.
pub trait BlockDevice {
    /// Its name for users: a path, or the mapped device's name.
    fn name(&self) -> &str;

    /// Size, alignment, largest request.
    fn limits(&self) -> Limits;

    /// Whether it refuses every write, of clients and of devices above: a cache device of it is
    /// missing, so that reads may return old data, it is a snapshot, or its file, disk or server
    /// takes no writes.
    fn is_stale(&self) -> bool {
        false
    }

    /// Takes the bio; see the border contract at the head of this room.
    fn submit(&self, bio: Bio);

    /// Whether a bio may have memory that its client changes meanwhile ([`crate::ClientMemory`]):
    /// the device looks at each byte at most once. To be asked right before each such bio, as it
    /// changes with tables.
    fn takes_client_memory(&self) -> bool {
        false
    }

    /// An identity that no other device has, not even a copy of this one. It is the same after a
    /// restart of the machine. `None` when it is not known.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The file or disk on which it lies, of a leaf that is on one. A loop device and its file have
    /// the same.
    fn backing(&self) -> Option<Backing> {
        None
    }

    /// Its record of the write cache above it, if it keeps one.
    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        None
    }

    /// Where `len` sectors from `at` on lie, as far as they are contiguous; `None` when the device
    /// is not a pure mapping. `at + len` is within the capacity. A caller may use the answer as
    /// long as [`map_generation`](BlockDevice::map_generation) stays the same.
    fn map_blocks(&self, _at: Sector, _len: Sector) -> Option<MappedExtent> {
        None
    }

    /// Changes whenever an answer of [`map_blocks`](BlockDevice::map_blocks) may change.
    fn map_generation(&self) -> u64 {
        0
    }

    /// Runs within `at..at + len`, which lies on the device, that are known to read as zeroes and
    /// to take no space. Each of their sectors read as zeroes at some moment between this call and
    /// the answer: so a write that had completed before the call, and nothing has overwritten, is
    /// in no run. What is in doubt is left out; by default everything is.
    ///
    /// Time and memory grow with `len`: callers ask for 64 MiB at most.
    fn zero_runs(&self, _at: Sector, _len: Sector) -> ZeroRuns {
        Box::pin(async { Runs::new() })
    }

    /// Called when a writer above has to wait because too much is dirty. A throttle below then lets
    /// more writeback through for a while.
    fn writer_throttled(&self) {}

    /// The device as the end of flat mappings, if it can be one.
    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        None
    }
}

/// Whether both are the same device, whatever type or trait each is held as.
pub fn same_device<A: ?Sized, B: ?Sized>(a: &Rc<A>, b: &Rc<B>) -> bool {
    std::ptr::addr_eq(Rc::as_ptr(a), Rc::as_ptr(b))
}

/// A device at which a flat mapping may end.
///
/// Mappings above it send bios here and keep nothing of them: no completion is chained, nothing is
/// counted. So only the base knows when they have ended, and which have failed.
pub trait Base: BlockDevice {
    /// As `submit`, at `sector` of this device; `bio.sector` is that of the device above. The
    /// mapping has checked that the range lies on this device and is aligned to its logical blocks.
    /// The base must check the length of the buffers.
    fn submit_at(&self, sector: Sector, bio: Bio);

    /// Resolves when every bio that was submitted before the call has completed.
    fn quiesced(self: Rc<Self>) -> LocalFuture<()>;

    /// Resolves when no change can be performed any more of a bio that has completed with an error.
    /// A server that has left a request without an answer may perform it later.
    fn late_writes_ended(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    /// Its record of acknowledged changes that no FLUSH has covered, and of lost ones, if it can
    /// lose any.
    fn losses(&self) -> Option<Rc<dyn LostWrites>> {
        None
    }

    /// Reports bios that fail from now on to `watcher`, as long as that lives.
    fn watch(&self, watcher: Weak<dyn OnIoError>);
}

/// The record that a [`Base`] keeps of acknowledged changes, and of who must hear of lost ones. It
/// outlives the base. There is one, so that whoever tells an opener, it is told once.
pub trait LostWrites {
    /// Whether a FLUSH would cover changes that none has covered yet.
    fn has_unflushed(&self) -> bool;

    /// A FLUSH of `opener` is submitted. If it must fail: what has to be called when it has failed,
    /// after which the opener has heard.
    fn must_hear(self: Rc<Self>, opener: Opener) -> Option<Box<dyn FnOnce()>>;

    /// Whether all have heard who were there, and all whose changes may be lost.
    fn are_told(&self) -> bool;
}

/// Gets the failed bios of a [`Base`]. It may count and wake; it must not submit or complete.
pub trait OnIoError {
    /// The device failed `op` on `len` sectors from `sector` on (its own sectors).
    fn on_io_error(&self, op: Op, sector: Sector, len: Sector, status: Status);
}

/// An answer of [`BlockDevice::map_blocks`]: `len` sectors lie on `base`, from `sector` on.
#[derive(Clone)]
pub struct MappedExtent {
    /// Takes the bios, by [`Base::submit_at`].
    pub base: Rc<dyn Base>,
    /// First sector there.
    pub sector: Sector,
    /// Length of the contiguous run; at least 1 and at most what was asked for.
    pub len: Sector,
}

crate::debug_as!(MappedExtent, s => "MappedExtent({} {}+{})", s.base.name(), s.sector, s.len);

/// A device for one opener: every request sent through it carries that opener.
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

    fn submit(&self, mut bio: Bio) {
        bio.opener = self.opener;
        self.device.submit(bio);
    }

    fn takes_client_memory(&self) -> bool {
        self.device.takes_client_memory()
    }

    fn identity(&self) -> Option<String> {
        self.device.identity()
    }

    fn backing(&self) -> Option<Backing> {
        self.device.backing()
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        self.device.clone().cache_record()
    }

    fn map_blocks(&self, at: Sector, len: Sector) -> Option<MappedExtent> {
        self.device.map_blocks(at, len)
    }

    fn map_generation(&self) -> u64 {
        self.device.map_generation()
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        self.device.zero_runs(at, len)
    }

    fn writer_throttled(&self) {
        self.device.writer_throttled();
    }
}

/// What may be done with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can only be read.
    Read,
    /// It can only be read, and may have many lines: listings of all attributes leave it out.
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

/// Makes on any core a device that works there without the core of the original; `None` when the
/// original ends. See [`Target::on_every_core`].
pub type MakeDevice = Arc<dyn Fn() -> Option<Rc<dyn BlockDevice>> + Send + Sync>;

/// One line of a live table.
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

    /// For an engine that is divided among cores, while it is live: makes on any core a device that
    /// sends each bio to the part that it concerns, wherever that is. It takes bios that the
    /// target's limits allow.
    fn on_every_core(&self) -> Option<MakeDevice> {
        None
    }

    /// The runs of sectors below that it uses as long as it lives.
    fn components(&self) -> Vec<Component> {
        Vec::new()
    }

    /// The blocks that it holds and the device below does not; `None` when it is no cache.
    fn unsaved(&self) -> Option<UnsavedBlocks> {
        None
    }

    /// Who has taken away what the target had, as a volume of a shared store. It stays so: another
    /// instance would take it back, and only somebody who knows of the other one decides that.
    fn fenced_by(&self) -> Option<String> {
        None
    }

    /// Writes the blocks that it alone holds to the devices below. Bios may come meanwhile.
    fn write_back(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Before another table takes its place, while bios wait: as [`Target::write_back`], and once
    /// it is suspended it holds nothing of its origin. A read that had ended may still enter a
    /// block.
    ///
    /// # Errors
    /// As [`Target::write_back`].
    fn empty(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.write_back()
    }

    /// The table stays after all: what [`Target::empty`] has prepared is forgotten.
    fn cancel_empty(&self) {}

    /// Marks its cache device, durably, as one that `successor` has taken the place of: no table
    /// opens it as a cache any more. It holds nothing and is suspended. After an error it is as
    /// before, or has failed.
    fn mark_replaced(self: Rc<Self>, _successor: String) -> LocalFuture<Result<(), Error>> {
        let e = Error::invalid(format!("{}: it is no cache", self.kind()));
        Box::pin(async move { Err(e) })
    }

    /// Gives the device below back to others: from then on that alone has what clients see. The
    /// target holds nothing then, and no bio comes any more, but after a `resume`. By default the
    /// device below always has what the target does not hold.
    fn release_origin(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Drops, durably, what it holds as copies of the device below, which others may change from
    /// then on: its device is removed, or a table without it goes live. It is suspended, and stays
    /// so. By default it holds no copies.
    ///
    /// # Errors
    /// Why copies may stay.
    fn drop_copies(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// The target has taken the place of another one, which has given the device below back: it
    /// may keep others from using that.
    fn claim_origin(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async {})
    }

    /// Its cache takes the place of another one: the `resume` that opens it fails, and changes
    /// nothing, if its cache device holds blocks. They would be older than what clients have
    /// written to the other one.
    fn require_empty(&self) {}

    /// It takes the place of a shorter target of the same line: the `resume` that opens it makes
    /// what it keeps as long as the line, if that has a size of its own.
    fn allow_growth(&self) {}

    /// The error that `resume` will have after [`Target::require_empty`], of a target that has not
    /// been resumed yet. It reads the cache device, and changes nothing.
    fn check_empty(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether it takes this message while it is suspended, too: then the message does no I/O.
    fn takes_while_suspended(&self, _words: &[String]) -> bool {
        false
    }

    /// A message's words (without device and sector). Errors: `EINVAL` for unknown words.
    fn message(self: Rc<Self>, words: Vec<String>) -> LocalFuture<Result<String, Error>> {
        let kind = self.kind();
        Box::pin(async move {
            let words = words.join(" ");
            Err(Error::invalid(format!("{kind}: unknown message `{words}`: it takes none")))
        })
    }

    /// Pauses what it does in the background, while bios are served, or lets that go on. A pause
    /// returns when nothing of it is under way: a `suspend` that follows then ends soon. It ends
    /// with the next `resume`, too. A `write_back` that is under way ends unfinished, with an
    /// error.
    fn pause_background(self: Rc<Self>, _is_paused: bool) -> LocalFuture<()> {
        Box::pin(async {})
    }

    /// Waits for everything in flight below, and makes durable what must be.
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Starts a live period.
    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// A target of another table may have opened its media since it was suspended, and changed
    /// them: the next `resume` reads them anew. That table has not gone live, so no client has
    /// used it.
    fn reread_media(&self) {}

    /// Takes over errors that `before` has not reported to clients yet: acknowledged changes that
    /// may be lost. `before` is the target at the same sector of the table of before, and is
    /// suspended; this one is resumed, and no bio has come yet.
    fn take_over(self: Rc<Self>, _before: Rc<dyn Target>) -> LocalFuture<()> {
        Box::pin(async {})
    }

    /// Its attributes, named as in sysfs: the tables of the engine.
    fn attributes(&self) -> Vec<&'static Spec> {
        Vec::new()
    }

    /// Reads an attribute. Several reads and writes may be under way at once; a read does not wait
    /// for a write. Errors: `ENXIO` for unknown names, `EACCES` for write-only attributes.
    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        let e = attr::unknown(self.kind(), &name, &[]);
        Box::pin(async move { Err(e) })
    }

    /// Its numbers for `/metrics` as of the last `refresh`; none before the first `resume`.
    fn metrics(&self) -> Vec<(&'static Spec, u64)> {
        Vec::new()
    }

    /// What keeps it from doing its work, each in one sentence without a full stop, as of the last
    /// `refresh`; empty when it is well.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Writes an attribute. The future resolves when the request is done, which may take minutes.
    /// `suspend` does not wait for it, as it does for a message: it ends the request with an error.
    fn set_attribute(
        self: Rc<Self>,
        name: String,
        _value: String,
    ) -> LocalFuture<Result<(), Error>> {
        let e = attr::unknown(self.kind(), &name, &[]);
        Box::pin(async move { Err(e) })
    }

    /// Whether it is a cache, so that `dirty` has an answer.
    fn tracks_dirty(&self) -> bool {
        false
    }

    /// Bytes that are dirty, or some of them, in each of `cells` equal parts of the device; `None`
    /// when it is no cache. Takes a time that grows with the cells, not with what is dirty.
    fn dirty_map(self: Rc<Self>, _cells: u32) -> LocalFuture<Option<Vec<u64>>> {
        Box::pin(async { None })
    }

    /// Runs of dirty sectors within `at..at + len`, for block status; `None` when it is no cache.
    fn dirty(self: Rc<Self>, _at: Sector, _len: Sector) -> DirtyRuns {
        Box::pin(async { None })
    }
}
