// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices by name: how they are found, made and given a table.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, ErrorKind, LocalFuture, Sector, UnsavedBlocks, is_control_char};

use crate::context::{Context, DeviceLookup, EventSource, Events, Resolver, TargetType};
use crate::control_lock::ControlGuard;
use crate::device::events::EventCounter;
use crate::device::handles::Opened;
use crate::device::{Depths, MAJOR, MappedDevice};
use crate::leaves::Leaves;
use crate::live::{Entry, Table, Uses};
use crate::mapping::{NoReplicas, Replicas};
use crate::name;
use crate::report::Remove;
use crate::table::{self, Length, Line};
use crate::targets;
use crate::unsettled::Unsettled;
use crate::whole;

/// Deepest stack of mapped devices: bounds the stack that one `submit` needs.
pub const NESTING_MAX: usize = 16;

/// Highest minor number: the kernel's device numbers have 20 bits for it.
const MINOR_MAX: u32 = (1 << 20) - 1;

/// Lines of a table that are constructed before others get a turn: some hundred microseconds.
const LINES_AT_ONCE: usize = 256;

/// All mapped devices of one core.
pub struct Dm {
    pub(crate) me: Weak<Dm>,
    pub(crate) types: RefCell<BTreeMap<&'static str, TargetType>>,
    pub(crate) devices: RefCell<BTreeMap<String, Rc<MappedDevice>>>,
    leaves: Leaves,
    pub(crate) replicas: RefCell<Rc<dyn Replicas>>,
    /// The program ends: no suspended device will be resumed.
    ending: Cell<bool>,
    pub(crate) on_unsaved: RefCell<Option<OnUnsaved>>,
    pub(crate) on_kept: RefCell<Option<OnKept>>,
    /// Whether tables may overlap that a token would let overlap.
    accepts_overlaps: Cell<bool>,
    /// Tables that were replaced by force, until they have settled.
    pub(crate) unsettled: RefCell<Vec<Unsettled>>,
    /// Changes of what doors show.
    changes: EventCounter,
}

/// Called with the name of a device that is removed, and what stays in its cache.
pub(crate) type OnUnsaved = Rc<dyn Fn(&str, &UnsavedBlocks)>;

/// Called with the name of a device that is not removed when it is closed, and why.
pub(crate) type OnKept = Rc<dyn Fn(&str, &Error)>;

impl Dm {
    /// No device yet, and the built-in target types; `resolver` opens what tables name.
    pub fn new(resolver: Rc<dyn Resolver>) -> Rc<Dm> {
        let types = targets::built_in().into_iter().map(|t| (t.manual.name, t)).collect();
        Rc::new_cyclic(|me| Dm {
            me: me.clone(),
            types: RefCell::new(types),
            devices: RefCell::default(),
            leaves: Leaves::new(resolver),
            replicas: RefCell::new(Rc::new(NoReplicas)),
            ending: Cell::new(false),
            on_unsaved: RefCell::default(),
            on_kept: RefCell::default(),
            accepts_overlaps: Cell::new(false),
            unsettled: RefCell::default(),
            changes: EventCounter::default(),
        })
    }

    /// Fails the bios that wait on suspended devices, and from now on all that would have to wait.
    /// For a program that is about to end: engines on such a device can then settle, or report that
    /// they can't, instead of waiting for ever.
    pub fn end_waiting(&self) {
        self.ending.set(true);
        for device in self.devices() {
            device.fail_waiting();
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Counts the changes of what doors show: devices with their names, sizes, live tables and
    /// attributes of their own.
    pub fn changes(&self) -> u32 {
        self.changes.number()
    }

    /// Waits until [`Dm::changes`] is not `seen` any more, and returns it.
    pub async fn changed(&self, seen: u32) -> u32 {
        self.changes.changed(seen).await
    }

    pub(crate) fn count_change(&self) {
        self.changes.raise();
    }

    /// Adds a target type; one of the same name is replaced for tables loaded from now on.
    pub fn register(&self, kind: TargetType) {
        self.types.borrow_mut().insert(kind.manual.name, kind);
    }

    /// The device called `name`.
    pub fn get(&self, name: &str) -> Result<Rc<MappedDevice>, Error> {
        let found = self.devices.borrow().get(&name::unmangle(name)).cloned();
        found.ok_or_else(|| Error::not_found(format!("{name}: no such device")))
    }

    /// All devices, by name.
    pub fn devices(&self) -> Vec<Rc<MappedDevice>> {
        self.devices.borrow().values().cloned().collect()
    }

    /// Opens a device for as long as the result lives.
    pub fn open(&self, name: &str) -> Result<Opened, Error> {
        self.get(name)?.open()
    }

    /// The mapped device that a table's word means: `NAME`, `/dev/mapper/NAME`, `dm-N`.
    pub fn find(&self, word: &str) -> Option<Rc<MappedDevice>> {
        let name = word.strip_prefix("/dev/mapper/").unwrap_or(word);
        if let Ok(device) = self.get(name) {
            return Some(device);
        }
        let word = word.strip_prefix("/dev/").unwrap_or(word);
        let major = format!("{MAJOR}:");
        let minor = word.strip_prefix("dm-").or_else(|| word.strip_prefix(&major))?;
        let minor: u32 = block::value::digits(minor)?;
        self.devices.borrow().values().find(|d| d.minor() == minor).cloned()
    }

    /// Makes a device; with a table it is loaded and resumed, and without success there is none.
    pub async fn create(
        &self,
        name: &str,
        uuid: Option<&str>,
        table: Option<&str>,
    ) -> Result<Rc<MappedDevice>, Error> {
        self.create_at(name, uuid, None, table, None, &|| true).await
    }

    /// The same with a minor number of the caller's choice; without, it is the lowest free one.
    /// `force` is the token of an earlier refusal of the table. When `is_wanted` returns `false`
    /// once the table has been constructed, which may take as long as its devices do, no device is
    /// made.
    pub async fn create_at(
        &self,
        name: &str,
        uuid: Option<&str>,
        minor: Option<u32>,
        table: Option<&str>,
        force: Option<&str>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Rc<MappedDevice>, Error> {
        let device = self.add(name, uuid, minor)?;
        let Some(table) = table else { return Ok(device) };
        // Its name may change meanwhile.
        let live = match self.load_forced(device.name(), table, force, is_wanted).await {
            Ok(()) => self.resume(device.name()).await,
            Err(e) => Err(e),
        };
        if let Err(e) = live {
            if !self.get(device.name()).is_ok_and(|there| Rc::ptr_eq(&there, &device)) {
                // Removed by force meanwhile. Another one may have its name.
                return Err(e);
            }
            return match self.remove(device.name(), Remove::IfUnused).await {
                Ok(_) => Err(e),
                Err(also) => Err(e.because(also)),
            };
        }
        Ok(device)
    }

    pub(crate) fn add(
        &self,
        word: &str,
        uuid: Option<&str>,
        minor: Option<u32>,
    ) -> Result<Rc<MappedDevice>, Error> {
        let name = self.free_name(word)?;
        let uuid = uuid.map(|uuid| self.check_uuid(uuid)).transpose()?;
        let mut devices = self.devices.borrow_mut();
        let used: BTreeMap<u32, &str> = devices.values().map(|d| (d.minor(), d.name())).collect();
        let minor = match minor {
            Some(minor) if minor > MINOR_MAX => {
                let e = format!("{name}: minor number {minor}: at most {MINOR_MAX} is allowed");
                return Err(Error::invalid(e));
            }
            Some(minor) => match used.get(&minor) {
                Some(owner) => {
                    return Err(Error::busy(format!("{name}: minor number {minor} is {owner}'s")));
                }
                None => minor,
            },
            None => (0..).find(|m| !used.contains_key(m)).expect("fewer than 2^32 devices"),
        };
        let device = Rc::new(MappedDevice::new(self.me.clone(), name.clone(), uuid, minor));
        devices.insert(name, device.clone());
        Ok(device)
    }

    pub(crate) fn free_name(&self, word: &str) -> Result<String, Error> {
        let name = name::check(word)?;
        if self.devices.borrow().contains_key(&name) {
            let e = format!("{name}: a device of this name exists already");
            return Err(Error::new(ErrorKind::Exists, e));
        }
        Ok(name)
    }

    /// The UUID that a user's word means (unmangled), if it is one that a device may get.
    pub(crate) fn check_uuid(&self, word: &str) -> Result<String, Error> {
        let uuid = name::unmangle(word);
        // The kernel's DM_UUID_LEN less the final zero.
        if uuid.is_empty() || uuid.len() > 128 {
            return Err(Error::invalid(format!("uuid `{uuid}`: must have 1 to 128 bytes")));
        }
        if uuid.chars().any(is_control_char) {
            let e = "a UUID can't contain control characters, nor such of writing direction";
            return Err(Error::invalid(format!("uuid `{word}`: {e}")));
        }
        let devices = self.devices.borrow();
        let owner =
            devices.values().find(|d| d.identity.uuid.borrow().as_deref() == Some(uuid.as_str()));
        match owner {
            Some(d) => {
                let e = format!("uuid `{uuid}` belongs to {} already", d.name());
                Err(Error::new(ErrorKind::Exists, e))
            }
            None => Ok(uuid),
        }
    }

    /// Parses and constructs a table and puts it into the inactive slot, replacing one there.
    pub async fn load(&self, name: &str, text: &str) -> Result<(), Error> {
        self.load_forced(name, text, None, &|| true).await
    }

    /// The same; `force` is the token of an earlier refusal of the table. Fails when `is_wanted`
    /// returns `false` once the table has been constructed.
    pub async fn load_forced(
        &self,
        name: &str,
        text: &str,
        force: Option<&str>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        self.load_locked(&device, &guard, text, force, is_wanted).await
    }

    async fn load_locked(
        &self,
        device: &Rc<MappedDevice>,
        guard: &ControlGuard,
        text: &str,
        force: Option<&str>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let result = self.construct_forced(device, text, force).await;
        let put = result.and_then(|table| {
            device.check_guard(guard)?;
            if !is_wanted() {
                return Err(Error::busy("who asked for it has gone"));
            }
            self.put_inactive(device, &Rc::new(table), force)
        });
        put.map_err(|e| e.within(device.name()))
    }

    /// Loads a table and resumes the device, as one operation: no other table comes in between.
    /// After an error there is no inactive table.
    pub async fn load_and_resume(&self, name: &str, text: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        self.load_locked(&device, &guard, text, None, &|| true).await?;
        let resumed = device.resume(&guard, None).await;
        if resumed.is_err() && !guard.is_withdrawn() {
            device.set_inactive(None);
        }
        resumed
    }

    /// From now on a table is loaded without a token, too, where it overlaps with others and a
    /// token would permit that (DM-O2); or no longer. For tables that have lived beside each other
    /// in the daemon before.
    pub fn accept_overlaps(&self, accepts: bool) {
        self.accepts_overlaps.set(accepts);
    }

    pub(crate) fn accepts_overlaps(&self) -> bool {
        self.accepts_overlaps.get()
    }

    pub(crate) async fn construct(
        &self,
        device: &Rc<MappedDevice>,
        text: &str,
    ) -> Result<Table, Error> {
        self.construct_forced(device, text, None).await
    }

    async fn construct_forced(
        &self,
        device: &Rc<MappedDevice>,
        text: &str,
        force: Option<&str>,
    ) -> Result<Table, Error> {
        let uses = Rc::new(RefCell::new(Uses::default()));
        let devices: Rc<dyn DeviceLookup> = Rc::new(TableDevices {
            dm: self.me.clone(),
            device: Rc::downgrade(device),
            uses: uses.clone(),
        });
        let source: Rc<dyn EventSource> = device.clone();
        let events = Events(Rc::downgrade(&source));
        let mut entries = Vec::new();
        for line in table::parse(text)? {
            let Line { line_no, start, len, kind, args } = line;
            if line_no.is_multiple_of(LINES_AT_ONCE) {
                reactor::yield_now().await;
            }
            let place = format!("line {line_no}: {kind}");
            let kind = self.types.borrow().get(&*kind).cloned();
            let kind = kind.ok_or_else(|| self.unknown_type().within(&place))?;
            let len = match len {
                Length::Sectors(len) => len,
                Length::Whole => self
                    .whole_length(&kind, &devices, start, &args)
                    .await
                    .map_err(|e| e.within(&place))?,
            };
            let ctx = Context {
                devices: devices.clone(),
                events: events.clone(),
                name: device.name().into(),
                line_no,
                start,
                len,
                force: force.map(Rc::from),
            };
            let target = (kind.construct)(ctx, args).await.map_err(|e| e.within(&place))?;
            let entry = Entry::new(line_no, start, start + len, target);
            if let Some(below) = entry.stale_below().filter(|_| entry.owns) {
                let why = "its cache device is missing, it is a snapshot, or its file, disk or \
                           server takes no writes";
                let e = format!("{place}: {below} is read-only: {why}");
                return Err(Error::invalid(e));
            }
            entries.push(entry);
        }
        let mut table = Table::new(entries, uses.take())?;
        table.forced_by = force.map(Rc::from);
        self.check_nesting(device, &table)?;
        Ok(table)
    }

    /// Reads the sizes of the devices again that the live table of a device names.
    ///
    /// # Errors
    /// Errors of reading them.
    pub async fn read_sizes(&self, name: &str) -> Result<(), Error> {
        let live = self.get(name)?.live();
        let entries = live.as_ref().map_or(&[][..], |live| &live.entries);
        for below in entries.iter().flat_map(|entry| entry.target.components()) {
            self.leaves.read_size(&below.device).await.map_err(|e| e.within(name))?;
        }
        Ok(())
    }

    /// The length that a line has with the length `-`, as the table of `device`.
    pub(crate) async fn whole_length_of(
        &self,
        device: &Rc<MappedDevice>,
        kind: &TargetType,
        (start, args): (Sector, &[String]),
    ) -> Result<Sector, Error> {
        let devices: Rc<dyn DeviceLookup> = Rc::new(TableDevices {
            dm: self.me.clone(),
            device: Rc::downgrade(device),
            uses: Rc::default(),
        });
        self.whole_length(kind, &devices, start, args).await
    }

    async fn whole_length(
        &self,
        kind: &TargetType,
        devices: &Rc<dyn DeviceLookup>,
        start: Sector,
        args: &[String],
    ) -> Result<Sector, Error> {
        let len = whole::length(kind, devices, args).await?;
        table::check_length(start, len)?;
        Ok(len)
    }

    fn unknown_type(&self) -> Error {
        let known: Vec<_> = self.types.borrow().keys().copied().collect();
        Error::invalid(format!("unknown target type: known are {}", known.join(", ")))
    }

    /// Keeps the devices acyclic (DM-D4) and shallow. While the targets were constructed, other
    /// tables may have been loaded, so what `lookup` checked is checked again.
    fn check_nesting(&self, device: &Rc<MappedDevice>, table: &Table) -> Result<(), Error> {
        let mut below = Depths::new();
        let depth = table.depth(&mut below);
        if below.contains_key(&device.minor()) {
            return Err(Error::invalid("a table can't contain its own device"));
        }
        let depth = self.above(device, &mut Depths::new()) + 1 + depth;
        if depth > NESTING_MAX {
            return Err(Error::invalid(format!(
                "devices nested too deep: {depth} on top of each other, at most {NESTING_MAX}"
            )));
        }
        Ok(())
    }

    /// Longest chain of devices above `device`; looks once at each of them.
    fn above(&self, device: &Rc<MappedDevice>, known: &mut Depths) -> usize {
        if let Some(&height) = known.get(&device.minor()) {
            return height;
        }
        let users = self.users(device);
        let height = users.iter().map(|d| 1 + self.above(d, known)).max().unwrap_or(0);
        known.insert(device.minor(), height);
        height
    }

    /// Publishes flat mappings by `replicas` from now on.
    pub fn set_replicas(&self, replicas: Rc<dyn Replicas>) {
        *self.replicas.borrow_mut() = replicas;
    }

    /// The devices whose tables use `device`.
    pub(crate) fn users(&self, device: &Rc<MappedDevice>) -> Vec<Rc<MappedDevice>> {
        let uses = |d: &MappedDevice| {
            let tables = d.live().into_iter().chain(d.inactive());
            tables.into_iter().any(|t| t.opens(device))
        };
        self.devices().into_iter().filter(|d| uses(d)).collect()
    }
}

/// The devices of a table that is being constructed.
struct TableDevices {
    dm: Weak<Dm>,
    device: Weak<MappedDevice>,
    uses: Rc<RefCell<Uses>>,
}

impl DeviceLookup for TableDevices {
    fn find(&self, word: String) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let (dm, me, uses) = (self.dm.upgrade(), self.device.upgrade(), self.uses.clone());
        Box::pin(async move {
            let gone = || Error::busy("the device mapper is shutting down");
            let dm = dm.ok_or_else(gone)?;
            let me = me.ok_or_else(gone)?;
            let device: Rc<dyn BlockDevice> = match mapped_below(&dm, &me, &word).await? {
                Some(mapped) => {
                    uses.borrow_mut().add_mapped(mapped.open()?);
                    mapped
                }
                None => dm.leaves.open(&word).await?,
            };
            uses.borrow_mut().all.insert(&device);
            Ok(device)
        })
    }
}

/// The mapped device that a word in a table of `me` means, if it means one. A path under `/dev` at
/// which this machine has a block device, of LVM say, is that device where `me` can't be meant.
///
/// # Errors
/// The word is `me` or what stands on it; or it is one of ours as well as one of this machine's.
async fn mapped_below(
    dm: &Dm,
    me: &Rc<MappedDevice>,
    word: &str,
) -> Result<Option<Rc<MappedDevice>>, Error> {
    let Some(mapped) = dm.find(word) else { return Ok(None) };
    let is_cycle = mapped.reaches(me);
    if word.starts_with("/dev/") && dm.leaves.has_block_device(word).await {
        if is_cycle {
            return Ok(None);
        }
        let name = mapped.name();
        return Err(Error::invalid(format!(
            "this machine has a block device there, and it is the name of {name}, too: write \
             `{name}` for the latter, and for the former another path, as in /dev/disk/by-id"
        )));
    }
    if is_cycle {
        return Err(Error::invalid(format!(
            "it is {} itself or stands on it: a table can't contain its own device",
            me.name()
        )));
    }
    Ok(Some(mapped))
}

impl fmt::Debug for Dm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices.borrow().keys()).finish()
    }
}
