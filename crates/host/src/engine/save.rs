// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices as they are now, for a configuration file: live tables in an order in which they can
//! be created, and attributes that no table line has.
use std::collections::BTreeSet;

use block::Access;
use block::attr::{Kind, OptionForm, Spec};
use control::Failure;
use dm::DeviceInfo;

use super::Engine;
use crate::config::DeviceConfig;

impl Engine {
    /// All devices, each after those that it is built on; and what can't be saved.
    pub(crate) async fn saved_devices(&self) -> Result<(Vec<DeviceConfig>, Vec<String>), Failure> {
        let (mut saved, mut left_out) = (Vec::new(), Vec::new());
        for info in self.in_order() {
            let name = &info.name;
            match (info.live_table, info.has_setup) {
                (true, _) => saved.push(self.saved_device(&info).await?),
                // Set up by attributes, and without a size yet.
                (false, true) => {
                    let uuid = info.uuid.clone();
                    let (device, ublk) = (name.clone(), self.is_disk_chosen(name));
                    let device =
                        DeviceConfig { name: device, uuid, ublk, ..DeviceConfig::default() };
                    saved.push(device);
                    left_out
                        .push(format!("device {name}: attributes that were set before its size"));
                }
                (false, false) => left_out.push(format!("device {name}: it has no live table")),
            }
            if info.live_table && info.suspended {
                left_out.push(format!("device {name}: that it is suspended"));
            }
            if info.inactive_table {
                left_out.push(format!("device {name}: the table that waits for a resume"));
            }
        }
        Ok((saved, left_out))
    }

    /// The devices, each after those that its live table names, and else by their numbers.
    fn in_order(&self) -> Vec<DeviceInfo> {
        let mut left = self.dm.list();
        left.sort_by_key(|info| info.minor);
        let (mut ordered, mut done) = (Vec::new(), BTreeSet::new());
        while !left.is_empty() {
            let names: BTreeSet<&str> = left.iter().map(|info| info.name.as_str()).collect();
            let is_ready = |info: &DeviceInfo| {
                let deps = self.dm.deps(&info.name).unwrap_or_default();
                let mut mapped = deps.into_iter().filter(|dep| dep.number.is_some());
                mapped.all(|dep| done.contains(&dep.name) || !names.contains(&*dep.name))
            };
            // Tables form no cycle, so one of them is ready.
            let next = left.iter().position(is_ready).unwrap_or(0);
            let info = left.remove(next);
            done.insert(info.name.clone());
            ordered.push(info);
        }
        ordered
    }

    async fn saved_device(&self, info: &DeviceInfo) -> Result<DeviceConfig, Failure> {
        let name = &info.name;
        let lines = self.dm.table(name)?.into_iter();
        let line = |l: dm::TargetLine| match l.params.as_str() {
            "" => format!("{} {} {}", l.start, l.len, l.kind),
            params => format!("{} {} {} {params}", l.start, l.len, l.kind),
        };
        let table: Vec<String> = lines.map(line).collect();
        // The clients' rights come first: nobody may write, or see the device, before.
        let mut specs = self.dm.attributes(name)?;
        specs.retain(|spec| is_saved(spec));
        let rights = dm::attributes_of_all();
        specs.sort_by_key(|spec| !rights.iter().any(|right| right.name == spec.name));
        let mut attributes = Vec::new();
        for spec in specs {
            let mut value = chosen(&self.dm.get_attribute(name, spec.name).await?.to_string());
            if spec.name == "ro" {
                // Without a cache that is missing now.
                value = u8::from(self.dm.get(name)?.read_only().by_operator()).to_string();
            }
            if spec.parse(spec.default)?.to_string() != value {
                attributes.push((spec.name.to_owned(), value));
            }
        }
        let ublk = self.is_disk_chosen(name);
        let (name, uuid, table) = (name.clone(), info.uuid.clone(), Some(table.join("\n")));
        Ok(DeviceConfig { name, uuid, table, ublk, attributes, ..DeviceConfig::default() })
    }
}

/// Whether an attribute is a setting that no table line has. What has free text is either a report
/// or in the table.
fn is_saved(spec: &Spec) -> bool {
    spec.access == Access::ReadWrite
        && spec.form == OptionForm::Never
        && !matches!(spec.kind, Kind::Text(_))
        && spec.parse(spec.default).is_ok()
}

/// The value as it is set: of a choice that is shown with all its words, the one in brackets.
fn chosen(shown: &str) -> String {
    let word = shown.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or(shown, |(word, _)| word).to_owned()
}
