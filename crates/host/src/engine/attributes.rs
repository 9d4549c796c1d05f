// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of mapped devices, and of the leaves that tables have open.
use block::Error;
use control::{Failure, api};

use super::Engine;
use crate::exported::ExportedDevice;
use crate::leaf_word::is_leaf_word;
use crate::log::seconds_since;
use crate::sysfs;

impl Engine {
    /// The open leaf of this name, if no mapped device has it. Errors: `ENXIO` when it is a path
    /// and no table has it open.
    async fn leaf(&self, name: &str) -> Result<Option<ExportedDevice>, Failure> {
        if !is_leaf_word(name) || self.dm.get(name).is_ok() {
            return Ok(None); // the verb reports an unknown mapped device
        }
        self.leaves.find(name).await?.map(|leaf| Some(ExportedDevice::Leaf(leaf))).ok_or_else(
            || {
                let open = self.leaves.opened();
                let open: Vec<&str> = open.iter().map(|leaf| leaf.name()).collect();
                let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
                let hint = "allowed are mapped devices and the leaves that tables have open";
                Error::not_found(format!("{name}: no such device: {hint}, now {open}")).into()
            },
        )
    }

    pub(crate) async fn attributes(&self, name: &str) -> Result<api::Attributes, Failure> {
        let mut all = api::Attributes::new();
        if let Some(leaf) = self.leaf(name).await? {
            for spec in sysfs::attributes(&self.dm, &leaf).into_iter().filter(|s| sysfs::is_line(s))
            {
                let value = sysfs::get(&self.dm, &leaf, spec.name).await?;
                all.insert(spec.name.into(), value.into());
            }
            return Ok(all);
        }
        for spec in self.dm.attributes(name)?.into_iter().filter(|spec| sysfs::is_line(spec)) {
            all.insert(spec.name.into(), self.dm.get_attribute(name, spec.name).await?.into());
        }
        Ok(all)
    }

    pub(crate) async fn attribute(
        &self,
        name: &str,
        attr: &str,
    ) -> Result<api::Attribute, Failure> {
        let value = match self.leaf(name).await?.or_else(|| self.shown_in_files(name, attr)) {
            Some(exported) => sysfs::get(&self.dm, &exported, attr).await?,
            None => self.dm.get_attribute(name, attr).await?,
        };
        Ok(api::Attribute { value: value.into() })
    }

    /// The mapped device, if it has no attribute of this name but its folder of the FUSE tree has:
    /// of its limits and numbers.
    fn shown_in_files(&self, name: &str, attr: &str) -> Option<ExportedDevice> {
        let is = |specs: &[&block::attr::Spec]| specs.iter().any(|spec| spec.name == attr);
        let device = self.dm.get(name).ok()?;
        if is(&self.dm.attributes(name).ok()?) {
            return None;
        }
        let exported = ExportedDevice::Mapped(device);
        is(&sysfs::attributes(&self.dm, &exported)).then_some(exported)
    }

    pub(crate) async fn set_attribute(
        &self,
        name: &str,
        attr: &str,
        value: &str,
    ) -> Result<api::Attribute, Failure> {
        let set = self.change_attribute(name, attr, value).await?;
        // A compressed RAM disk may have got its size, or a device its doors.
        self.update_disk(name).await?;
        Ok(set)
    }

    /// Sets an attribute; what it means for a block device of the kernel is the caller's to see to.
    pub(super) async fn change_attribute(
        &self,
        name: &str,
        attr: &str,
        value: &str,
    ) -> Result<api::Attribute, Failure> {
        if let Some(leaf) = self.leaf(name).await?.or_else(|| self.shown_in_files(name, attr)) {
            sysfs::set(&self.dm, &leaf, attr, value).await?;
            return self.attribute(name, attr).await;
        }
        let mark = self.files.closes_begun();
        let is_command = self.dm.access(name, attr).is_ok_and(|access| !access.reads());
        if is_command {
            tracing::info!(device = name, attr, value, "command begins");
        }
        let began = reactor::now();
        let set = self.dm.set_attribute(name, attr, value).await;
        self.files.closed_since(mark).await;
        let seconds = seconds_since(began);
        match (is_command, &set) {
            (true, Ok(())) => {
                tracing::info!(device = name, attr, value, seconds, "command has ended");
            }
            (true, Err(error)) => {
                tracing::warn!(device = name, attr, seconds, %error, "command failed");
            }
            (false, Ok(())) => tracing::info!(device = name, attr, value, "attribute set"),
            (false, Err(_)) => {}
        }
        set?;
        match self.dm.access(name, attr) {
            Ok(access) if access.reads() => self.attribute(name, attr).await,
            // A command has no value, and may have removed the attribute.
            Ok(_) | Err(_) => Ok(api::Attribute { value: api::Value::Text(value.to_owned()) }),
        }
    }
}
