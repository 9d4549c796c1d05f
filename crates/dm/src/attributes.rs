// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of devices: those that all have, those of their targets, and the *bare face* of a
//! device that has no live table.
//!
//! ```text
//!                create_bare                 what an attribute asks for:
//!   (nothing) ──────────────▶ bare ───────────────────────────────────▶ live table
//!                               ▲        load, resume                       │
//!                               └───────────────────────────────────────────┘
//!                                 make_bare: drain, suspend, drop the table
//! ```
//!
//! Invariants
//! - DM-A1 An attribute belongs to the live table if there is one, else to the bare face.
//! - DM-A2 No lock is held while an attribute is read or written: what it asks for may be a verb.
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Access, Error, ErrorKind, LocalFuture, Target};

use crate::device::MappedDevice;
use crate::dm::Dm;

/// The attribute of devices that are nothing but mappings.
const MAPPING: &str = "mapping";
/// The attributes of all devices that have a table.
const IOSTATS: &str = "queue/iostats";
const STAT: &str = "stat";

/// The face of a device while it has no live table: attributes by which it is set up. Given by the
/// program.
pub trait Bare {
    /// Attribute names that it has.
    fn attributes(&self) -> Vec<&'static str>;

    /// Who may do what with one of them.
    fn access(&self, _name: &str) -> Access {
        Access::ReadWrite
    }

    /// Reads an attribute.
    fn get(self: Rc<Self>, name: String) -> LocalFuture<Result<String, Error>>;

    /// Writes an attribute; when it asks for that, gives `device` a table and resumes it.
    fn set(
        self: Rc<Self>,
        device: Rc<MappedDevice>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>>;
}

/// Who has an attribute that is not the device's own.
enum Holder {
    Target(Rc<dyn Target>),
    Bare(Rc<dyn Bare>),
}

impl Dm {
    /// Makes a device without a table that is set up by the attributes of `bare`. Its minor number
    /// is the caller's choice, or the lowest free one.
    pub fn create_bare(
        &self,
        name: &str,
        uuid: Option<&str>,
        minor: Option<u32>,
        bare: Rc<dyn Bare>,
    ) -> Result<Rc<MappedDevice>, Error> {
        let device = self.add(name, uuid, minor)?;
        device.set_bare(bare);
        Ok(device)
    }

    /// Takes a device's tables away, and gives it the attributes of `bare`. What its targets have
    /// to settle is settled first: when that fails, the device stays as it is, suspended. Errors:
    /// `EBUSY` while it is open.
    pub async fn make_bare(&self, name: &str, bare: Rc<dyn Bare>) -> Result<(), Error> {
        let device = self.get(name)?;
        let held = device.control().await?;
        if device.open_count() > 0 {
            return Err(self.in_use(&device));
        }
        let was_suspended = device.is_suspended();
        device.suspend(&held).await?;
        if device.open_count() > 0 {
            // Opened while it settled: who did sees nothing of it.
            if !was_suspended {
                device.resume_live(&held).await?;
            }
            return Err(self.in_use(&device));
        }
        device.make_bare(bare);
        Ok(())
    }

    /// Attribute names that a device's targets or its bare face know, each once.
    pub fn attributes(&self, name: &str) -> Result<Vec<&'static str>, Error> {
        let device = self.get(name)?;
        let Some(table) = device.live() else {
            let mut names = device.bare().map(|b| b.attributes()).unwrap_or_default();
            names.sort_unstable();
            return Ok(names);
        };
        let mut names: BTreeSet<_> = table.targets().iter().flat_map(|t| t.attributes()).collect();
        names.extend([IOSTATS, STAT]);
        names.extend(table.is_pure().then_some(MAPPING));
        Ok(names.into_iter().collect())
    }

    /// What may be done with an attribute of a device.
    pub fn access(&self, name: &str, attribute: &str) -> Result<Access, Error> {
        let device = self.get(name)?;
        match (self.own(&device, attribute), attribute) {
            (true, STAT) => Ok(Access::Read),
            (true, _) => Ok(Access::ReadWrite),
            (false, _) => Ok(match self.holder(&device, attribute)? {
                Holder::Target(target) => target.access(attribute),
                Holder::Bare(bare) => bare.access(attribute),
            }),
        }
    }

    /// Reads an attribute of the device, of the first target that has it, or of its bare face.
    pub async fn get_attribute(&self, name: &str, attribute: &str) -> Result<String, Error> {
        let device = self.get(name)?;
        if self.own(&device, attribute) {
            return Ok(match attribute {
                MAPPING => device.mapping().choice(),
                IOSTATS => u8::from(device.account.is_on()).to_string(),
                _ => device.account.stat(),
            });
        }
        let read = match self.holder(&device, attribute)? {
            Holder::Target(target) => target.get_attribute(attribute.to_owned()).await,
            Holder::Bare(bare) => bare.get(attribute.to_owned()).await,
        };
        read.map_err(|e| e.within(name))
    }

    /// Writes an attribute of the device, of the first target that has it, or of its bare face.
    /// Resolves when what it asks for is done (DM-A2), which may be long after the device has been
    /// suspended or removed.
    pub async fn set_attribute(
        &self,
        name: &str,
        attribute: &str,
        value: &str,
    ) -> Result<(), Error> {
        let device = self.get(name)?;
        if self.own(&device, attribute) {
            return self.set_own(device, attribute, value).map_err(|e| e.within(name));
        }
        let (of, to) = (attribute.to_owned(), value.to_owned());
        let written = match self.holder(&device, attribute)? {
            Holder::Target(target) => target.set_attribute(of, to).await,
            Holder::Bare(bare) => bare.set(device, of, to).await,
        };
        written.map_err(|e| e.within(name))
    }

    fn set_own(&self, device: Rc<MappedDevice>, attribute: &str, value: &str) -> Result<(), Error> {
        let value = value.trim();
        match attribute {
            MAPPING => device.set_mapping(value.parse()?),
            IOSTATS => device.account.set_on(block::value::boolean(IOSTATS, value)?),
            _ => {
                let e = format!("attribute `{attribute}` is read-only");
                return Err(Error::new(ErrorKind::Denied, e));
            }
        }
        self.refresh_flats(&device);
        if let Some(dm) = self.me.upgrade() {
            // Other cores follow a little later: either way leads to the same sectors.
            reactor::spawn(async move { dm.withdraw_flats(&device).await });
        }
        Ok(())
    }

    /// Whether the attribute is one that the device has itself.
    fn own(&self, device: &MappedDevice, attribute: &str) -> bool {
        match (device.live(), attribute) {
            (Some(table), MAPPING) => table.is_pure(),
            (Some(_), IOSTATS | STAT) => true,
            (Some(_) | None, _) => false,
        }
    }

    /// DM-A1.
    fn holder(&self, device: &MappedDevice, attribute: &str) -> Result<Holder, Error> {
        let found = match device.live() {
            Some(table) => {
                let mut targets = table.targets().into_iter();
                targets.find(|t| t.attributes().contains(&attribute)).map(Holder::Target)
            }
            None => {
                let bare = device.bare().filter(|b| b.attributes().contains(&attribute));
                bare.map(Holder::Bare)
            }
        };
        found.ok_or_else(|| {
            let name = block::BlockDevice::name(device);
            let known = self.attributes(name).unwrap_or_default();
            let known: Vec<&str> = known.iter().map(|a| a.as_ref()).collect();
            let hint = block::name_hint(attribute, &known);
            Error::not_found(format!("{name}: no attribute `{attribute}`: {hint}"))
        })
    }
}
