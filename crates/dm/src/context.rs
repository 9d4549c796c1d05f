// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a target's constructor gets, and what the program gives: target types and a resolver.
//!
//! The order in which a table comes to life, for authors of targets:
//!
//! ```text
//!   load     construct(ctx, args)      parse, check, open devices; the old table still runs!
//!   resume   old: drain, suspend       nothing of the old table is in flight any more
//!            new: resume               now read or write what the old one may have owned
//!            old: drop                 then the bios that waited go to the new one
//!   suspend  drain, suspend            all bios have completed before `suspend` is called
//!   remove   drain, suspend, drop
//! ```
//!
//! So a target that owns state on its devices (a cache's metadata) only parses and opens in its
//! constructor, and reads that state in `resume`: between the two the old table, which may name the
//! same devices, still writes there.
use std::rc::{Rc, Weak};

use block::attr::Manual;
use block::{BlockDevice, Error, LocalFuture, Sector, Target};

use crate::whole::WholeOf;

/// Finds the device that a table's word names, and keeps it open for the table.
pub(crate) trait DeviceLookup {
    fn find(&self, word: String) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>>;
}

/// Has an event number that targets raise.
pub(crate) trait EventSource {
    fn raise_event(&self);
}

/// Opens what is not a mapped device: paths, `mem:SIZE` and the like. Given by the program.
pub trait Resolver {
    /// One spelling for all words that mean the same device, so that it is opened only once; a
    /// path without links, say. Fails when that can't be found out in time.
    fn canonical(&self, word: &str) -> LocalFuture<Result<String, Error>> {
        let word = word.to_owned();
        Box::pin(async move { Ok(word) })
    }

    /// Opens the device, exclusively where the system can. Called once for a canonical word while
    /// anybody holds the device; dropping the last reference closes it. The device's name is a
    /// word that opens it again: `table` prints it.
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>>;

    /// Whether this machine has a block device at a path under `/dev`: one of its own device
    /// mapper may be called as one of ours.
    fn has_block_device(&self, _path: &str) -> LocalFuture<bool> {
        Box::pin(async { false })
    }

    /// Reads the size of a device that [`Resolver::open`] has opened again: it may have grown. Its
    /// limits have the new one afterwards.
    fn read_size(&self, _device: &Rc<dyn BlockDevice>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// A resolver that knows no device: tables can name mapped devices only.
#[derive(Debug)]
pub struct NoLeaves;

impl Resolver for NoLeaves {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let e = Error::not_found(format!("`{word}` is not a mapped device"));
        Box::pin(async move { Err(e) })
    }
}

/// What a constructor gives: a target, some time later.
pub type Constructing = LocalFuture<Result<Rc<dyn Target>, Error>>;

/// Makes a target of a table line. Errors need not name line and target: `dm` adds them.
pub type Construct = Rc<dyn Fn(Context, Vec<String>) -> Constructing>;

/// A kind of target that tables may use: the one registration of it.
#[derive(Clone)]
pub struct TargetType {
    /// The word in a table line, the version that `targets` prints, arguments, options and
    /// attributes; which attributes are metrics, and which are commands that may take minutes.
    pub manual: &'static Manual,
    /// Its constructor.
    pub construct: Construct,
    /// What the length `-` means to it; without, a line needs a number.
    pub whole: Option<WholeOf>,
    /// What it keeps has a size of its own, which grows by [`block::Target::allow_growth`].
    pub grows: bool,
}

impl TargetType {
    /// A target type made by `construct`.
    pub fn new(
        manual: &'static Manual,
        construct: impl Fn(Context, Vec<String>) -> Constructing + 'static,
    ) -> TargetType {
        TargetType { manual, construct: Rc::new(construct), whole: None, grows: false }
    }

    /// The same, for lines of the length `-`, too.
    #[must_use]
    pub fn with_whole(self, whole: WholeOf) -> TargetType {
        TargetType { whole: Some(whole), ..self }
    }
}

block::debug_as!(TargetType, s => "TargetType({} {:?})", s.manual.name, s.manual.version);

/// Raises the event number of the device whose table a target is in.
#[derive(Clone)]
pub struct Events(pub(crate) Weak<dyn EventSource>);

impl Events {
    /// Something happened that `wait` should tell: a device failed, a state changed.
    pub fn raise(&self) {
        if let Some(device) = self.0.upgrade() {
            device.raise_event();
        }
    }
}

block::debug_as!(Events, _s => "Events");

/// Where a target is being constructed. Cheap to clone; a target may keep it for later look-ups,
/// but what is looked up after the constructor has returned is not in the table's `deps`.
#[derive(Clone)]
pub struct Context {
    pub(crate) devices: Rc<dyn DeviceLookup>,
    pub(crate) events: Events,
    pub(crate) name: Rc<str>,
    pub(crate) line_no: usize,
    pub(crate) start: Sector,
    pub(crate) len: Sector,
    pub(crate) force: Option<Rc<str>>,
}

impl Context {
    /// Name of the mapped device whose table it is.
    pub fn device(&self) -> &str {
        &self.name
    }

    /// Line of the table, from 1.
    pub fn line_no(&self) -> usize {
        self.line_no
    }

    /// Length of the target.
    pub fn len(&self) -> Sector {
        self.len
    }

    /// Whether the target has no sectors; the table's parser has refused that.
    pub fn is_empty(&self) -> bool {
        self.len == Sector::ZERO
    }

    /// The token of an earlier refusal of the table, if the operator has given one.
    pub fn force(&self) -> Option<&str> {
        self.force.as_deref()
    }

    /// For raising events later.
    pub fn events(&self) -> Events {
        self.events.clone()
    }

    /// Opens the device that `word` names: a mapped device (`NAME`, `/dev/mapper/NAME`, `dm-N`) or
    /// what the program's resolver knows. The table holds it open as long as the table lives.
    pub fn lookup(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        self.lookup_or("Device lookup failed", word)
    }

    /// The same for a target that says in its own words which of its devices was not found.
    pub fn lookup_or(
        &self,
        failed: &'static str,
        word: &str,
    ) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let (found, word) = (self.devices.find(word.to_owned()), word.to_owned());
        Box::pin(async move { found.await.map_err(|e| e.within(format!("{failed}: `{word}`"))) })
    }

    /// Whether `len` sectors from `offset` on lie on `device` and are aligned to its blocks.
    pub fn check_area(
        &self,
        device: &dyn BlockDevice,
        offset: Sector,
        len: Sector,
    ) -> Result<(), Error> {
        let limits = device.limits();
        let (capacity, block_bytes) = (limits.capacity, limits.write_unit_bytes());
        let name = device.name();
        if offset.checked_add(len).is_none_or(|end| end > capacity) {
            let left = capacity.saturating_sub(offset);
            let hint = match capacity {
                Sector::ZERO => "it is empty, or has less than a sector of 512 bytes: give it its \
                                 size first"
                    .to_owned(),
                _ => format!("at most {left} sectors from there"),
            };
            return Err(Error::invalid(format!(
                "{name} too small for target: start={offset}, len={len}, dev_size={capacity} \
                 sectors: {hint}"
            )));
        }
        let block = Sector::from_bytes(block_bytes.into());
        for (what, value) in [("start", offset), ("len", len)] {
            if !value.is_aligned(block) {
                return Err(Error::invalid(format!(
                    "{what}={value} not aligned to h/w logical block size {block_bytes} \
                     of {name}: must be a multiple of {block} sectors"
                )));
            }
        }
        Ok(())
    }
}

block::debug_as!(Context, s => "Context({} line {}: {}+{})", s.name, s.line_no, s.start, s.len);
