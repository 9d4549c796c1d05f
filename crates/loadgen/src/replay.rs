// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replay: a stack of mappings once more, on the core of a job and over the same leaves.
//!
//! A shard's own replica is always mapped in place: a device that clones is served by core 0. To be
//! compared, jobs that clone must not pay for the way there, so each has the whole stack on its
//! core.
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{BlockDevice, Error, LocalFuture};
use dm::{Dm, MappedDevice, Mapping, Resolver};
use host::{Leaves, Shard, SharedLeaf};
use queue::Leaf;

/// Devices as their tables say, and the leaves that these name.
#[derive(Clone)]
pub(crate) struct Replay {
    /// Name, table and mapping, each device after those it stands on.
    devices: Vec<(String, String, Mapping)>,
    leaves: Vec<(String, SharedLeaf)>,
    top: String,
}

impl Replay {
    /// The stack of `top`, when that clones.
    pub(crate) fn of(dm: &Dm, leaves: &Leaves, top: &MappedDevice) -> Option<Replay> {
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
        Some(Replay {
            devices: devices.collect(),
            leaves: leaves.opened().into_iter().filter_map(share).collect(),
            top: top.name().to_owned(),
        })
    }

    /// The top device on the core of `shard`; it lives as long as the mapper with it.
    pub(crate) fn on(self, shard: &Shard) -> Result<(Rc<Dm>, Rc<MappedDevice>), Error> {
        let open = |(name, leaf): &(String, SharedLeaf)| {
            (name.clone(), shard.open(leaf) as Rc<dyn BlockDevice>)
        };
        let known = Known(self.leaves.iter().map(open).collect());
        shard.block_on(async move {
            let dm = Dm::new(Rc::new(known));
            for (name, table, mapping) in &self.devices {
                // What stands on an engine can't be made here, and is not asked for.
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
struct Known(BTreeMap<String, Rc<dyn BlockDevice>>);

impl Resolver for Known {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let found = self.0.get(word).cloned();
        let found = found.ok_or_else(|| Error::not_found(format!("{word}: not on this core")));
        Box::pin(std::future::ready(found))
    }
}
