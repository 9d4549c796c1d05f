// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy of a stack of mappings on the core of a job, over the same leaves.
//!
//! A secondary core's own replica is always mapped in place: a device that clones is served by core
//! 0. To be compared, jobs that clone must not pay for the way there, so each has the whole stack
//! on its core.
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{BlockDevice, Error, LocalFuture};
use dm::{Dm, MappedDevice, Mapping, Resolver};
use host::{Leaves, SecondaryCore, SharedLeaf};
use queue::Leaf;

/// The tables of the devices, and the leaves that these name.
#[derive(Clone)]
pub(crate) struct StackCopy {
    /// Name, table and mapping; each device comes after those that it is built on.
    devices: Vec<(String, String, Mapping)>,
    leaves: Vec<(String, SharedLeaf)>,
    top: String,
}

impl StackCopy {
    /// The stack of `top`, when that clones.
    pub(crate) fn of(dm: &Dm, leaves: &Leaves, top: &MappedDevice) -> Option<StackCopy> {
        if top.mapping() != Mapping::Clone {
            return None;
        }
        let mut all = dm.devices();
        // In order of their making: none has got another table since.
        all.sort_by_key(|device| device.minor());
        let devices = all.iter().map(|device| {
            let line =
                |l: dm::TargetLine| format!("{} {} {} {}\n", l.start, l.len, l.kind, l.params);
            let table = device.table().into_iter().map(line).collect();
            (device.name().to_owned(), table, device.mapping())
        });
        let share = |leaf: Rc<dyn Leaf>| {
            let base = leaf.clone().as_base()?;
            Some((leaf.name().to_owned(), leaves.share_blocks(&base)?))
        };
        Some(StackCopy {
            devices: devices.collect(),
            leaves: leaves.opened().into_iter().filter_map(share).collect(),
            top: top.name().to_owned(),
        })
    }

    /// The top device on the core of `secondary core`; it lives as long as the mapper with it.
    pub(crate) fn build(self, core: &SecondaryCore) -> Result<(Rc<Dm>, Rc<MappedDevice>), Error> {
        let open = |(name, leaf): &(String, SharedLeaf)| {
            (name.clone(), core.open(leaf) as Rc<dyn BlockDevice>)
        };
        let leaves = LeavesOfCore(self.leaves.iter().map(open).collect());
        core.block_on(async move {
            let dm = Dm::new(Rc::new(leaves));
            for (name, table, mapping) in &self.devices {
                // A device on an engine can't be made here, and is not needed.
                if dm.create(name, None, Some(table)).await.is_ok() {
                    dm.set_attribute(name, "mapping", &mapping.to_string()).await?;
                }
            }
            let top = dm.get(&self.top)?;
            Ok((dm, top))
        })
    }
}

/// The leaves of this core.
struct LeavesOfCore(BTreeMap<String, Rc<dyn BlockDevice>>);

impl Resolver for LeavesOfCore {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let found = self.0.get(word).cloned();
        let found = found.ok_or_else(|| Error::not_found(format!("{word}: not on this core")));
        Box::pin(std::future::ready(found))
    }
}
