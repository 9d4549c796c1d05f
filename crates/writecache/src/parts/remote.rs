// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device of this core for a part on another one.
use std::rc::Rc;

use block::runs::Runs;
use block::{Bio, BlockDevice, CoreId, Limits, Op};
use reactor::{Export, Remote};

use super::DeviceFactory;
use super::flushes::SharedDevice;

/// A device that is sent to another core.
pub(super) struct RemoteDevice {
    pub(super) data: Data,
    pub(super) home: CoreId,
    pub(super) flushes: Export,
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) identity: Option<String>,
}

pub(super) enum Data {
    Local(DeviceFactory),
    /// Used by messages to its core.
    Export(Export),
    /// The same where one of `places` is touched (WC-GU8).
    Guarded {
        make: DeviceFactory,
        places: Runs,
        guarded: Export,
    },
}

impl RemoteDevice {
    /// The device on this core.
    pub(super) fn into_local(self) -> Rc<dyn BlockDevice> {
        let remote =
            |export| Rc::new(Remote::new(self.home, export, &*self.name, self.limits.clone()));
        let flushes = remote(self.flushes);
        let data: Rc<dyn BlockDevice> = match self.data {
            Data::Local(make) => make(),
            Data::Export(export) => remote(export),
            Data::Guarded { make, places, guarded } => {
                Rc::new(GuardedElsewhere { data: make(), guarded: remote(guarded), places })
            }
        };
        Rc::new(SharedDevice { data, flushes, identity: self.identity })
    }
}

/// An origin whose guard is on another core.
struct GuardedElsewhere {
    data: Rc<dyn BlockDevice>,
    /// The guarded origin there.
    guarded: Rc<dyn BlockDevice>,
    places: Runs,
}

impl BlockDevice for GuardedElsewhere {
    fn name(&self) -> &str {
        self.data.name()
    }

    fn limits(&self) -> Limits {
        self.data.limits()
    }

    fn submit(&self, bio: Bio) {
        debug_assert!(bio.op != Op::Flush, "flushes are shared");
        let is_touched = |(at, len): &(_, _)| bio.sector < *at + *len && *at < bio.end();
        match self.places.iter().any(is_touched) {
            true => self.guarded.submit(bio),
            false => self.data.submit(bio),
        }
    }

    fn writer_throttled(&self) {
        self.data.writer_throttled();
    }
}
