// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of devices: those that all have, those of their targets, and those that set up an
//! *unconfigured* device, one without a live table.
//!
//! ```text
//!                create_unconfigured                 what an attribute asks for:
//!   (nothing) ────────▶ unconfigured ──────────────────────────────────▶ live table
//!                               ▲        load, resume                       │
//!                               └───────────────────────────────────────────┘
//!                                 unconfigure: drain, suspend, drop the table
//! ```
//!
//! Invariants
//! - DM-A1 An attribute is the device's own, or belongs to the live table if there is one, else to
//!   its `SetupAttributes`.
//! - DM-A2 No lock is held while an attribute is read or written: what it asks for may be a verb.
use std::rc::Rc;

use block::attr::{self, Attr, Kind, SetShared, Spec, setting, text};
use block::value::Value;
use block::{Access, Error, Target};

use crate::device::MappedDevice;
use crate::dm::Dm;
use crate::doors::Doors;
use crate::mapping::Mapping;
use crate::setup::SetupAttributes;

/// An attribute that `dm` itself gives to every device of a kind.
type Own = Attr<MappedDevice, SetShared<MappedDevice>>;

block::attrs! {
    /// Of all devices: what clients may do.
    static OF_ALL: [Own];

    ro: setting(Kind::Flag, "0"), "1: clients may not write; tables above may",
        get |device| device.rights.read_only().get(),
        set |device, v| device.rights.set_read_only(v);
    doors: setting(Kind::Choice(&Doors::NAMES), "all"), "which doors show it to new clients",
        get |device| device.rights.doors().choice(),
        set |device, v: String| device.rights.set_doors(v.parse().expect("one of its names"));
}

block::attrs! {
    /// Of devices that are nothing but mappings.
    static OF_MAPPINGS: [Own];

    mapping: setting(Kind::Choice(&Mapping::NAMES), "in-place"),
        "how bios go through pure mappings", get |device| device.mapping().choice(),
        set |device, v: String| device.set_mapping(v.parse().expect("one of its names"));
}

block::attrs! {
    /// Of all devices that have a table.
    static OF_TABLES: [Own];

    "queue/iostats": setting(Kind::Flag, "0"), "whether the attribute stat counts",
        get |device| device.account.is_on(), set |device, v| device.account.set_on(v);
    stat: text("17 numbers"), "requests and sectors so far, as in sysfs",
        get |device| device.account.stat();
}

/// The attributes that every device has, whatever its targets.
pub fn attributes_of_all() -> Vec<&'static Spec> {
    attr::specs(&OF_ALL)
}

/// The owner of an attribute that is not the device's own.
enum Owner {
    Target(Rc<dyn Target>),
    Setup(Rc<dyn SetupAttributes>),
}

impl Dm {
    /// Makes a device without a table that is set up by the attributes of `setup`. Its minor number
    /// is the caller's choice, or the lowest free one.
    pub fn create_unconfigured(
        &self,
        name: &str,
        uuid: Option<&str>,
        minor: Option<u32>,
        setup: Rc<dyn SetupAttributes>,
    ) -> Result<Rc<MappedDevice>, Error> {
        let device = self.add(name, uuid, minor)?;
        device.set_setup(setup);
        Ok(device)
    }

    /// Drops a device's tables, and gives it the attributes of `setup`. Its targets settle first:
    /// when that fails, the device keeps its tables, suspended. Fails with `EBUSY` while it is
    /// open.
    pub async fn unconfigure(
        &self,
        name: &str,
        setup: Rc<dyn SetupAttributes>,
    ) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        if device.open_count() > 0 {
            return Err(self.in_use(&device));
        }
        let was_suspended = device.is_suspended();
        device.suspend(&guard).await?;
        if device.open_count() > 0 {
            // Opened while its targets settled: the device stays, and its new opener notices
            // nothing.
            if !was_suspended {
                device.resume_live(&guard).await?;
            }
            return Err(self.in_use(&device));
        }
        device.unconfigure(setup);
        self.count_change();
        Ok(())
    }

    /// The attributes that a device's targets or its `SetupAttributes` have, by name; of several of
    /// one name the first.
    pub fn attributes(&self, name: &str) -> Result<Vec<&'static Spec>, Error> {
        let device = self.get(name)?;
        let mut specs: Vec<&'static Spec> = own_of(&device).map(|attr| &attr.spec).collect();
        match device.live() {
            Some(table) => specs.extend(table.targets().iter().flat_map(|t| t.attributes())),
            None => specs.extend(device.setup().iter().flat_map(|setup| setup.attributes())),
        }
        specs.sort_by_key(|spec| spec.name);
        specs.dedup_by_key(|spec| spec.name);
        Ok(specs)
    }

    /// What may be done with an attribute of a device.
    pub fn access(&self, name: &str, attribute: &str) -> Result<Access, Error> {
        let known = self.attributes(name)?;
        let found = known.iter().find(|spec| spec.name == attribute);
        found.map(|spec| spec.access).ok_or_else(|| unknown(name, attribute, &known))
    }

    /// Reads an attribute of the device, of the first target that has it, or of its
    /// `SetupAttributes`.
    pub async fn get_attribute(&self, name: &str, attribute: &str) -> Result<Value, Error> {
        let device = self.get(name)?;
        if let Some(own) = own(&device, attribute) {
            return Ok(own.get.expect("it can be read")(&device));
        }
        let read = match self.owner(&device, attribute)? {
            Owner::Target(target) => target.get_attribute(attribute.to_owned()).await,
            Owner::Setup(setup) => setup.get(attribute.to_owned()).await,
        };
        read.map_err(|e| e.within(name))
    }

    /// The sum of a number that several targets of the live table may have; `None` if none has it.
    pub async fn sum_of(&self, name: &str, attribute: &str) -> Option<u64> {
        let live = self.get(name).ok()?.live()?;
        let mut sum = None;
        for target in live.targets() {
            if target.attributes().iter().any(|spec| spec.name == attribute) {
                let value = target.get_attribute(attribute.to_owned()).await.ok()?.number()?;
                sum = Some(sum.unwrap_or(0) + value);
            }
        }
        sum
    }

    /// Writes an attribute of the device, of the first target that has it, or of its
    /// `SetupAttributes`. Resolves when what it asks for is done (DM-A2), which may be long after
    /// the device has been suspended or removed.
    pub async fn set_attribute(
        &self,
        name: &str,
        attribute: &str,
        value: &str,
    ) -> Result<(), Error> {
        let device = self.get(name)?;
        if let Some(own) = own(&device, attribute) {
            return self.set_own(device, own, value).map_err(|e| e.within(name));
        }
        let (of, to) = (attribute.to_owned(), value.to_owned());
        let written = match self.owner(&device, attribute)? {
            Owner::Target(target) => target.set_attribute(of, to).await,
            Owner::Setup(setup) => setup.set(device, of, to).await,
        };
        written.map_err(|e| e.within(name))
    }

    fn set_own(&self, device: Rc<MappedDevice>, own: &Own, value: &str) -> Result<(), Error> {
        let set = own.set.ok_or_else(|| attr::read_only(own.spec.name))?;
        set(&device, &own.spec.parse(value)?);
        self.refresh_flats(&device);
        if let Some(dm) = self.me.upgrade() {
            // Other cores follow a little later: either way leads to the same sectors.
            reactor::spawn(async move { dm.withdraw_flats(&device).await });
        }
        Ok(())
    }

    /// DM-A1.
    fn owner(&self, device: &MappedDevice, attribute: &str) -> Result<Owner, Error> {
        let has = |specs: Vec<&Spec>| specs.iter().any(|spec| spec.name == attribute);
        let found = match device.live() {
            Some(table) => {
                let mut targets = table.targets().into_iter();
                targets.find(|t| has(t.attributes())).map(Owner::Target)
            }
            None => device.setup().filter(|b| has(b.attributes())).map(Owner::Setup),
        };
        found.ok_or_else(|| {
            let name = block::BlockDevice::name(device);
            unknown(name, attribute, &self.attributes(name).unwrap_or_default())
        })
    }
}

/// Those that devices with a table have besides; the first is of pure mappings alone.
pub fn attributes_of_tables() -> Vec<&'static Spec> {
    [attr::specs(&OF_MAPPINGS), attr::specs(&OF_TABLES)].concat()
}

/// The attributes that a device has itself.
fn own_of(device: &MappedDevice) -> impl Iterator<Item = &'static Own> {
    let table = device.live();
    let mapping = table.as_ref().filter(|table| table.is_pure()).map(|_| &OF_MAPPINGS);
    let of_tables = table.is_some().then_some(&OF_TABLES);
    OF_ALL.iter().chain(mapping.into_iter().flatten()).chain(of_tables.into_iter().flatten())
}

fn own(device: &MappedDevice, attribute: &str) -> Option<&'static Own> {
    own_of(device).find(|own| own.spec.name == attribute)
}

fn unknown(device: &str, attribute: &str, known: &[&'static Spec]) -> Error {
    attr::unknown(device, attribute, &attr::names(known))
}
