// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a FLUSH of a device is worth where something below it offers none, in words for `show`.
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{BlockDevice, Role};
use dm::MappedDevice;

use super::Engine;

impl Engine {
    /// `None` where a FLUSH makes all durable, as far as the devices below say.
    pub(super) fn flush_worth(&self, device: &Rc<MappedDevice>) -> Option<String> {
        if !device.info().live_table {
            return None;
        }
        let limits = device.limits();
        if limits.loses_all {
            return Some("none is offered: what is written is gone when the daemon ends".into());
        }
        if !limits.keeps {
            return Some(
                "none is offered, as a device below offers none: what is written is as safe as \
                 that makes it by itself"
                    .into(),
            );
        }
        // A device is looked at once, however many stand on it.
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![device.clone()]);
        while let Some(next) = waiting.pop() {
            if !seen.insert(next.minor()) {
                continue;
            }
            if let Some(origin) = self.origin_without_flush(&next) {
                let whose =
                    if Rc::ptr_eq(&next, device) { "" } else { &format!(" of {}", next.name()) };
                return Some(format!(
                    "it makes durable what the cache{whose} holds. The origin {origin} offers \
                     none: what is written back is as safe as that makes it by itself"
                ));
            }
            let below = self.dm.deps(next.name()).unwrap_or_default();
            waiting.extend(below.iter().filter_map(|below| self.dm.get(&below.name).ok()));
        }
        None
    }

    /// The origin of a cache of this device, if it offers no FLUSH.
    fn origin_without_flush(&self, device: &Rc<MappedDevice>) -> Option<String> {
        let engines = self.claims.of(device);
        let mut origins = engines
            .iter()
            .flat_map(|engine| engine.components())
            .filter(|below| below.role == Role::Origin);
        origins
            .find(|origin| !origin.device.limits().keeps)
            .map(|origin| origin.device.name().to_owned())
    }
}
