// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices by name: how they are found, made and given a table.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, ErrorKind, LocalFuture, UnsavedBlocks, is_control_char};
use reactor::WaitList;

use crate::context::{Context, DeviceLookup, EventSource, Events, Resolver, TargetType};
use crate::device::{Depths, MAJOR, MappedDevice, Opened};
use crate::live::{Entry, Table, Uses};
use crate::mapping::{NoReplicas, Replicas};
use crate::name;
use crate::report::Remove;
use crate::table::{self, Line};
use crate::targets;

/// Deepest stack of mapped devices: bounds the stack that one `submit` needs.
pub const NESTING_MAX: usize = 16;

/// Highest minor number: the kernel's device numbers have 20 bits for it.
const MINOR_MAX: u32 = (1 << 20) - 1;

/// Lines of a table that are constructed before others get a turn: some hundred microseconds.
const LINES_AT_ONCE: usize = 256;

/// Fewer leaves than this are kept in the list after they are closed.
const CLOSED_LEAVES_MAX: usize = 64;

/// All mapped devices of one core.
pub struct Dm {
    pub(crate) me: Weak<Dm>,
    resolver: Rc<dyn Resolver>,
    pub(crate) types: RefCell<BTreeMap<&'static str, TargetType>>,
    pub(crate) devices: RefCell<BTreeMap<String, Rc<MappedDevice>>>,
    /// Leaves in use, by canonical word.
    leaves: RefCell<BTreeMap<String, Weak<dyn BlockDevice>>>,
    /// From how many leaves on those that are closed are looked for.
    tidy_at: Cell<usize>,
    opening: RefCell<BTreeSet<String>>,
    opened: WaitList,
    pub(crate) replicas: RefCell<Rc<dyn Replicas>>,
    /// Nothing that is suspended will be resumed.
    ending: Cell<bool>,
    pub(crate) on_kept: RefCell<Option<OnKept>>,
    /// Tables that were replaced by force, until they have settled, and whose they were.
    pub(crate) leaving: RefCell<Vec<(Rc<MappedDevice>, Weak<Table>)>>,
}

/// Told of what stays in the cache of a device that is removed: by the device's name.
pub(crate) type OnKept = Rc<dyn Fn(&str, &UnsavedBlocks)>;

impl Dm {
    /// No device yet, and the built-in target types; `resolver` opens what tables name.
    pub fn new(resolver: Rc<dyn Resolver>) -> Rc<Dm> {
        let types = targets::built_in().into_iter().map(|t| (t.name, t)).collect();
        Rc::new_cyclic(|me| Dm {
            me: me.clone(),
            resolver,
            types: RefCell::new(types),
            devices: RefCell::default(),
            leaves: RefCell::default(),
            tidy_at: Cell::new(CLOSED_LEAVES_MAX),
            opening: RefCell::default(),
            opened: WaitList::new(),
            replicas: RefCell::new(Rc::new(NoReplicas)),
            ending: Cell::new(false),
            on_kept: RefCell::default(),
            leaving: RefCell::default(),
        })
    }

    /// Fails the bios that wait on suspended devices, and all that would have to from now on. For a
    /// program that is about to end: what stands on such a device can settle then, or tell that it
    /// can't, instead of waiting for ever.
    pub fn end_waiting(&self) {
        self.ending.set(true);
        for device in self.devices() {
            device.fail_waiting();
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Adds a target type; one of the same name is replaced for tables loaded from now on.
    pub fn register(&self, kind: TargetType) {
        self.types.borrow_mut().insert(kind.name, kind);
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
        self.devices.borrow().values().find(|d| d.minor == minor).cloned()
    }

    /// Opens a leaf, or shares it while it is in use.
    pub(crate) async fn open_leaf(&self, word: &str) -> Result<Rc<dyn BlockDevice>, Error> {
        let key = self.resolver.canonical(word).await?;
        self.opened.wait_for(|| !self.opening.borrow().contains(&key)).await;
        if let Some(leaf) = self.leaves.borrow().get(&key).and_then(Weak::upgrade) {
            return Ok(leaf);
        }
        self.opening.borrow_mut().insert(key.clone());
        let leaf = self.resolver.open(word).await;
        self.opening.borrow_mut().remove(&key);
        if let Ok(leaf) = &leaf {
            let mut leaves = self.leaves.borrow_mut();
            leaves.insert(key, Rc::downgrade(leaf));
            // Not at each one: a table may open as many as it has lines.
            if leaves.len() >= self.tidy_at.get() {
                leaves.retain(|_, leaf| leaf.strong_count() > 0);
                self.tidy_at.set(2 * leaves.len() + CLOSED_LEAVES_MAX);
            }
        }
        self.opened.wake_all();
        leaf
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
    /// `force` is the token of an earlier refusal of the table. When `is_wanted` says no once the
    /// table has been constructed, which may take as long as its devices do, there is no device.
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
        let used: BTreeMap<u32, &str> = devices.values().map(|d| (d.minor, d.name())).collect();
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
        let owner = devices.values().find(|d| d.uuid.borrow().as_deref() == Some(uuid.as_str()));
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

    /// The same of a table that was refused with a token before; and of one that `is_wanted` may
    /// say no to once it has been constructed.
    pub async fn load_forced(
        &self,
        name: &str,
        text: &str,
        force: Option<&str>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let device = self.get(name)?;
        let held = device.control().await?;
        let result = self.construct(&device, text).await;
        for below in self.devices().into_iter().filter(|d| device.reaches(d)) {
            below.refresh().await; // what its caches hold is asked for next
        }
        let put = result.and_then(|table| {
            device.check_held(&held)?;
            if !is_wanted() {
                return Err(Error::busy("who asked for it has gone"));
            }
            self.put_inactive(&device, &Rc::new(table), force)
        });
        put.map_err(|e| e.within(device.name()))
    }

    pub(crate) async fn construct(
        &self,
        device: &Rc<MappedDevice>,
        text: &str,
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
            let ctx = Context {
                devices: devices.clone(),
                events: events.clone(),
                name: device.name().into(),
                line_no,
                start,
                len,
            };
            let target = (kind.construct)(ctx, args).await.map_err(|e| e.within(&place))?;
            entries.push(Entry::new(line_no, start, start + len, target));
        }
        let table = Table::new(entries, uses.take())?;
        self.check_nesting(device, &table)?;
        Ok(table)
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
        if below.contains_key(&device.minor) {
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

    /// Longest chain of devices that stands on `device`; looks once at each of them.
    fn above(&self, device: &Rc<MappedDevice>, known: &mut Depths) -> usize {
        if let Some(&height) = known.get(&device.minor) {
            return height;
        }
        let users = self.users(device);
        let height = users.iter().map(|d| 1 + self.above(d, known)).max().unwrap_or(0);
        known.insert(device.minor, height);
        height
    }

    /// Tells `replicas` from now on which flat mappings there are.
    pub fn set_replicas(&self, replicas: Rc<dyn Replicas>) {
        *self.replicas.borrow_mut() = replicas;
    }

    /// `device` and those that stand on it, each after all that it stands on. Looks once at each
    /// device.
    pub(crate) fn with_those_above(&self, device: &MappedDevice) -> Vec<Rc<MappedDevice>> {
        let mut found = self.devices();
        if device.open_count() == 0 {
            found.retain(|d| d.minor == device.minor);
            return found;
        }
        let mut known = Depths::new();
        found.sort_by_cached_key(|d| d.depth(&mut known));
        let mut minors = BTreeSet::from([device.minor]);
        found.retain(|d| {
            let stands = d.minor == device.minor || d.stands_on_any(&minors);
            if stands {
                minors.insert(d.minor);
            }
            stands
        });
        found
    }

    /// Makes the flat mappings of `device` and of those above again (DM-D5).
    pub(crate) fn refresh_flats(&self, device: &MappedDevice) {
        let replicas = self.replicas.borrow().clone();
        for device in self.with_those_above(device) {
            device.refresh_flat();
            if let Some(flat) = device.flat() {
                device.published.set(true);
                replicas.publish(device.minor, &flat);
            }
        }
    }

    /// As [`Dm::refresh_flats`], and waits until no other core goes by the mappings of before.
    pub(crate) async fn withdraw_flats(&self, device: &MappedDevice) {
        let replicas = self.replicas.borrow().clone();
        let changed = self.with_those_above(device);
        for device in &changed {
            device.refresh_flat();
        }
        for device in &changed {
            device.withdraw_flat(&replicas).await;
        }
        // Things may have changed again meanwhile: what counts is what is now.
        for device in changed {
            if let (Some(flat), false) = (device.flat(), device.published.replace(true)) {
                replicas.publish(device.minor, &flat);
            }
        }
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
            let device: Rc<dyn BlockDevice> = if let Some(mapped) = dm.find(&word) {
                let me = me.ok_or_else(gone)?;
                if mapped.reaches(&me) {
                    return Err(Error::invalid(format!(
                        "it is {} itself or stands on it: a table can't contain its own device",
                        me.name()
                    )));
                }
                uses.borrow_mut().add_mapped(mapped.open()?);
                mapped
            } else {
                dm.open_leaf(&word).await?
            };
            uses.borrow_mut().add(&device);
            Ok(device)
        })
    }
}

impl fmt::Debug for Dm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices.borrow().keys()).finish()
    }
}
