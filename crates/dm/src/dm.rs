// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices by name, and dmsetup's verbs on them.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, ErrorKind, Sector};
use reactor::WaitList;

use crate::area::same;
use crate::context::{Context, Resolver, TargetType, Uses};
use crate::device::{MAJOR, MappedDevice, Opened};
use crate::live::{Entry, Table};
use crate::name;
use crate::report::{Dependency, DeviceInfo, TargetLine, TargetVersion};
use crate::table::{self, Line};
use crate::target;

/// Deepest stack of mapped devices: bounds the stack that one `submit` needs.
pub const NESTING_MAX: usize = 16;

/// How `remove` treats a device that is in use or does not go cleanly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remove {
    /// `EBUSY` when open; stays, suspended, when a target can't settle its state.
    #[default]
    IfUnused,
    /// The table is replaced by one that fails all I/O first; what targets still held is lost.
    Force,
    /// Removed now, or when the last opener has closed it.
    Deferred,
}

/// All mapped devices of one core.
pub struct Dm {
    me: Weak<Dm>,
    resolver: Rc<dyn Resolver>,
    types: RefCell<BTreeMap<&'static str, TargetType>>,
    devices: RefCell<BTreeMap<String, Rc<MappedDevice>>>,
    /// Leaves in use, by canonical word.
    leaves: RefCell<BTreeMap<String, Weak<dyn BlockDevice>>>,
    opening: RefCell<BTreeSet<String>>,
    opened: WaitList,
}

impl Dm {
    /// No device yet, and the built-in target types; `resolver` opens what tables name.
    pub fn new(resolver: Rc<dyn Resolver>) -> Rc<Dm> {
        let types = target::built_in().into_iter().map(|t| (t.name, t)).collect();
        Rc::new_cyclic(|me| Dm {
            me: me.clone(),
            resolver,
            types: RefCell::new(types),
            devices: RefCell::default(),
            leaves: RefCell::default(),
            opening: RefCell::default(),
            opened: WaitList::new(),
        })
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

    /// The mapped device that a table's word means.
    pub(crate) fn find(&self, word: &str) -> Option<Rc<MappedDevice>> {
        let name = word.strip_prefix("/dev/mapper/").unwrap_or(word);
        if let Ok(device) = self.get(name) {
            return Some(device);
        }
        let word = word.strip_prefix("/dev/").unwrap_or(word);
        let major = format!("{MAJOR}:");
        let minor = word.strip_prefix("dm-").or_else(|| word.strip_prefix(&major))?;
        let minor: u32 = table::decimal(minor)?;
        self.devices.borrow().values().find(|d| d.minor == minor).cloned()
    }

    /// Opens a leaf, or shares it while it is in use.
    pub(crate) async fn open_leaf(&self, word: &str) -> Result<Rc<dyn BlockDevice>, Error> {
        let key = self.resolver.canonical(word);
        self.opened.wait_for(|| !self.opening.borrow().contains(&key)).await;
        self.leaves.borrow_mut().retain(|_, leaf| leaf.strong_count() > 0);
        if let Some(leaf) = self.leaves.borrow().get(&key).and_then(Weak::upgrade) {
            return Ok(leaf);
        }
        self.opening.borrow_mut().insert(key.clone());
        let leaf = self.resolver.open(word).await;
        self.opening.borrow_mut().remove(&key);
        if let Ok(leaf) = &leaf {
            self.leaves.borrow_mut().insert(key, Rc::downgrade(leaf));
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
        let device = self.add(name, uuid)?;
        let Some(table) = table else { return Ok(device) };
        let name = device.name().to_owned();
        let live = match self.load(&name, table).await {
            Ok(()) => self.resume(&name).await,
            Err(e) => Err(e),
        };
        if let Err(e) = live {
            return match self.remove(&name, Remove::IfUnused).await {
                Ok(()) => Err(e),
                Err(also) => Err(e.because(also)),
            };
        }
        Ok(device)
    }

    fn add(&self, word: &str, uuid: Option<&str>) -> Result<Rc<MappedDevice>, Error> {
        let name = self.free_name(word)?;
        if let Some(uuid) = uuid {
            self.check_uuid(uuid)?;
        }
        let mut devices = self.devices.borrow_mut();
        let used: BTreeSet<u32> = devices.values().map(|d| d.minor).collect();
        let minor = (0..).find(|m| !used.contains(m)).expect("fewer than 2^32 devices");
        let uuid = uuid.map(str::to_owned);
        let device = Rc::new(MappedDevice::new(self.me.clone(), name.clone(), uuid, minor));
        devices.insert(name, device.clone());
        Ok(device)
    }

    fn free_name(&self, word: &str) -> Result<String, Error> {
        let name = name::check(word)?;
        if self.devices.borrow().contains_key(&name) {
            let e = format!("{name}: a device of this name exists already");
            return Err(Error::new(ErrorKind::Exists, e));
        }
        Ok(name)
    }

    fn check_uuid(&self, uuid: &str) -> Result<(), Error> {
        // The kernel's DM_UUID_LEN less the final zero.
        if uuid.is_empty() || uuid.len() > 128 {
            return Err(Error::invalid(format!("uuid `{uuid}`: must have 1 to 128 bytes")));
        }
        let devices = self.devices.borrow();
        let owner = devices.values().find(|d| d.uuid.borrow().as_deref() == Some(uuid));
        match owner {
            Some(d) => {
                let e = format!("uuid `{uuid}` belongs to {} already", d.name());
                Err(Error::new(ErrorKind::Exists, e))
            }
            None => Ok(()),
        }
    }

    /// Parses and constructs a table and puts it into the inactive slot, replacing one there.
    pub async fn load(&self, name: &str, text: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let _held = device.lock.acquire().await;
        device.check_here()?;
        let result = self.construct(&device, text).await;
        let table = result.map_err(|e| e.within(device.name()))?;
        device.set_inactive(Some(Rc::new(table)));
        Ok(())
    }

    async fn construct(&self, device: &Rc<MappedDevice>, text: &str) -> Result<Table, Error> {
        let uses = Rc::new(RefCell::new(Uses::default()));
        let mut entries = Vec::new();
        for line in table::parse(text)? {
            let Line { line_no, start, len, kind, args } = line;
            let place = format!("line {line_no}: {kind}");
            let kind = self.types.borrow().get(&*kind).cloned();
            let kind = kind.ok_or_else(|| self.unknown_type().within(&place))?;
            let ctx = Context {
                dm: self.me.clone(),
                device: Rc::downgrade(device),
                name: device.name().into(),
                line_no,
                start,
                len,
                uses: uses.clone(),
            };
            let target = (kind.construct)(ctx, args).await.map_err(|e| e.within(&place))?;
            entries.push(Entry { line_no, start, end: start + len, target });
        }
        let table = Table::new(entries, uses.take())?;
        self.check_nesting(device, &table)?;
        Ok(table)
    }

    fn unknown_type(&self) -> Error {
        let known: Vec<_> = self.types.borrow().keys().copied().collect();
        Error::invalid(format!("unknown target type: known are {}", known.join(", ")))
    }

    /// Keeps the devices acyclic (D4) and shallow. While the targets were constructed, other tables
    /// may have been loaded, so what `lookup` checked is checked again.
    fn check_nesting(&self, device: &Rc<MappedDevice>, table: &Table) -> Result<(), Error> {
        if table.reaches(device) {
            return Err(Error::invalid("a table can't contain its own device"));
        }
        let depth = self.above(device) + 1 + table.depth();
        if depth > NESTING_MAX {
            return Err(Error::invalid(format!(
                "devices nested too deep: {depth} on top of each other, at most {NESTING_MAX}"
            )));
        }
        Ok(())
    }

    /// Longest chain of devices that stands on `device`.
    fn above(&self, device: &Rc<MappedDevice>) -> usize {
        self.users(device).iter().map(|d| 1 + self.above(d)).max().unwrap_or(0)
    }

    /// The devices whose tables use `device`.
    fn users(&self, device: &Rc<MappedDevice>) -> Vec<Rc<MappedDevice>> {
        let uses = |d: &MappedDevice| {
            let tables = d.live().into_iter().chain(d.inactive());
            tables.into_iter().any(|t| t.opens(device))
        };
        self.devices().into_iter().filter(|d| uses(d)).collect()
    }

    /// Drops the inactive table.
    pub async fn clear(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let _held = device.lock.acquire().await;
        device.check_here()?;
        device.set_inactive(None);
        Ok(())
    }

    /// Stops bios, waits until none is below the device, and lets the targets settle their state.
    /// Suspending a suspended device does nothing.
    ///
    /// dmsetup's `--nolockfs` and `--noflush` change nothing here: there is no file system to
    /// freeze, and no target that can push a request back.
    pub async fn suspend(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let _held = device.lock.acquire().await;
        device.check_here()?;
        device.suspend().await
    }

    /// Swaps the inactive table in, if there is one, and lets bios go on.
    pub async fn resume(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let _held = device.lock.acquire().await;
        device.check_here()?;
        device.resume().await
    }

    /// Removes a device.
    pub async fn remove(&self, name: &str, how: Remove) -> Result<(), Error> {
        let device = self.get(name)?;
        let held = device.lock.acquire().await;
        device.check_here()?;
        if how == Remove::Force {
            self.replace_by_error(&device).await?;
        }
        if device.open_count() > 0 {
            if how == Remove::Deferred {
                device.remove_at_close.set(true);
                return Ok(());
            }
            return Err(self.in_use(&device));
        }
        let result = device.retire(how == Remove::Force).await;
        drop(held);
        result?;
        self.forget(&device);
        Ok(())
    }

    /// Removes all devices, those first on which no other stands. Goes on after an error and tells
    /// the first one; what is open stays.
    pub async fn remove_all(&self, how: Remove) -> Result<(), Error> {
        let mut result = Ok(());
        let mut tried = BTreeSet::new();
        loop {
            let next = self.devices().into_iter().find(|d| {
                !tried.contains(&d.minor) && (how == Remove::Force || self.users(d).is_empty())
            });
            let Some(device) = next else { return result };
            tried.insert(device.minor);
            result = result.and(self.remove(device.name(), how).await);
        }
    }

    fn in_use(&self, device: &Rc<MappedDevice>) -> Error {
        let users = self.users(device);
        let names: Vec<_> = users.iter().map(|d| d.name()).collect();
        let by = if names.is_empty() {
            String::new()
        } else {
            format!(", by the tables of {}", names.join(", "))
        };
        let (name, opens) = (device.name(), device.open_count());
        Error::busy(format!("{name}: device is in use: opened {opens} times{by}"))
    }

    /// What `remove --force` does first: all I/O fails from now on, whoever has the device open.
    async fn replace_by_error(&self, device: &Rc<MappedDevice>) -> Result<(), Error> {
        let len = device.limits().capacity;
        if len > Sector::ZERO {
            let table = self.construct(device, &format!("0 {len} error")).await?;
            device.set_inactive(Some(Rc::new(table)));
            // The old table's error does not matter: it is being thrown away.
            let _ = device.suspend().await;
            device.resume().await?;
        }
        Ok(())
    }

    fn forget(&self, device: &Rc<MappedDevice>) {
        let mut devices = self.devices.borrow_mut();
        if devices.get(device.name()).is_some_and(|d| Rc::ptr_eq(d, device)) {
            devices.remove(device.name());
        }
    }

    /// The last opener of a device with a deferred removal has gone.
    pub(crate) async fn remove_deferred(&self, device: &Rc<MappedDevice>) {
        let _held = device.lock.acquire().await;
        let still = device.remove_at_close.get() && device.open_count() == 0;
        if still && device.check_here().is_ok() && device.retire(false).await.is_ok() {
            self.forget(device);
        }
    }

    /// Takes a deferred removal back.
    pub fn cancel_deferred_remove(&self, name: &str) -> Result<(), Error> {
        self.get(name)?.remove_at_close.set(false);
        Ok(())
    }

    /// Gives a device another name. Raises an event.
    pub fn rename(&self, name: &str, new: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        device.check_here()?;
        let new = self.free_name(new)?;
        let mut devices = self.devices.borrow_mut();
        devices.remove(device.name());
        device.names.set(new.clone());
        devices.insert(new, device.clone());
        drop(devices);
        device.raise_event();
        Ok(())
    }

    /// Gives a device without a UUID one; it can't change later.
    pub fn set_uuid(&self, name: &str, uuid: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        self.check_uuid(uuid)?;
        let mut old = device.uuid.borrow_mut();
        if let Some(old) = &*old {
            let name = device.name();
            return Err(Error::invalid(format!("{name}: has the uuid `{old}` already")));
        }
        *old = Some(uuid.to_owned());
        Ok(())
    }

    /// Sends a message to the target at `sector`; `@cancel_deferred_remove` is for the device.
    pub async fn message(
        &self,
        name: &str,
        sector: Sector,
        words: Vec<String>,
    ) -> Result<String, Error> {
        let device = self.get(name)?;
        let Some(first) = words.first() else {
            return Err(Error::invalid(format!("{}: Empty message", device.name())));
        };
        if let Some(word) = first.strip_prefix('@') {
            if word == "cancel_deferred_remove" && words.len() == 1 {
                self.cancel_deferred_remove(name)?;
                return Ok(String::new());
            }
            return Err(Error::invalid(format!(
                "{}: unsupported message `{}` to the device: known is @cancel_deferred_remove",
                device.name(),
                words.join(" ")
            )));
        }
        let to = device.message_to(sector)?;
        let said = to.target.clone().message(words).await;
        said.map_err(|e| e.within(format!("{}: line {}", device.name(), to.line_no)))
    }

    /// The live table's status lines.
    pub fn status(&self, name: &str) -> Result<Vec<TargetLine>, Error> {
        Ok(self.get(name)?.status())
    }

    /// The live table's lines.
    pub fn table(&self, name: &str) -> Result<Vec<TargetLine>, Error> {
        Ok(self.get(name)?.table())
    }

    /// What is known of one device.
    pub fn info(&self, name: &str) -> Result<DeviceInfo, Error> {
        Ok(self.get(name)?.info())
    }

    /// What is known of all devices, by name.
    pub fn list(&self) -> Vec<DeviceInfo> {
        self.devices.borrow().values().map(|d| d.info()).collect()
    }

    /// The devices that the live table stands on, or the inactive one's when none is live.
    pub fn deps(&self, name: &str) -> Result<Vec<Dependency>, Error> {
        let device = self.get(name)?;
        let Some(table) = device.live().or_else(|| device.inactive()) else {
            return Ok(Vec::new());
        };
        let dependency = |d: &Rc<dyn BlockDevice>| {
            let as_dyn = |o: &Opened| o.device().clone() as Rc<dyn BlockDevice>;
            let mapped = table.uses.mapped.iter().find(|o| same(&as_dyn(o), d));
            Dependency {
                name: d.name().to_owned(),
                number: mapped.map(|o| (MAJOR, o.device().minor)),
            }
        };
        Ok(table.uses.devices.iter().map(dependency).collect())
    }

    /// The target types that tables may use.
    pub fn targets(&self) -> Vec<TargetVersion> {
        let types = self.types.borrow();
        types.values().map(|t| TargetVersion { name: t.name, version: t.version }).collect()
    }

    /// Waits until the device's event number is not `seen` (by default the one now); returns it.
    /// A removal is an event.
    pub async fn wait(&self, name: &str, seen: Option<u32>) -> Result<u32, Error> {
        let device = self.get(name)?;
        let seen = seen.unwrap_or_else(|| device.event_nr());
        Ok(device.wait_event(seen).await)
    }

    /// Attribute names that a device's targets know, each once.
    pub fn attributes(&self, name: &str) -> Result<Vec<&'static str>, Error> {
        let device = self.get(name)?;
        let targets = device.live().map(|t| t.targets()).unwrap_or_default();
        let names: BTreeSet<_> = targets.iter().flat_map(|t| t.attributes()).collect();
        Ok(names.into_iter().collect())
    }

    /// Reads an attribute of the first target that has it.
    pub fn get_attribute(&self, name: &str, attribute: &str) -> Result<String, Error> {
        self.with_attribute(name, attribute)?.get_attribute(attribute)
    }

    /// Writes an attribute of the first target that has it.
    pub fn set_attribute(&self, name: &str, attribute: &str, value: &str) -> Result<(), Error> {
        self.with_attribute(name, attribute)?.set_attribute(attribute, value)
    }

    fn with_attribute(&self, name: &str, attribute: &str) -> Result<Rc<dyn block::Target>, Error> {
        let device = self.get(name)?;
        let targets = device.live().map(|t| t.targets()).unwrap_or_default();
        let found = targets.into_iter().find(|t| t.attributes().contains(&attribute));
        found.ok_or_else(|| {
            let known = self.attributes(name).unwrap_or_default();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Error::not_found(format!("{name}: no attribute `{attribute}`: it has {known}"))
        })
    }
}

impl fmt::Debug for Dm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices.borrow().keys()).finish()
    }
}
