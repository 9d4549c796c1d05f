// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Simulated cores for the parts of a cache, and disks that all of them can use.
use std::rc::Rc;

use block::{BlockDevice, CoreId};
use reactor::FileId;
use sim::{Disk, WorldRef};
use writecache::{DeviceFactory, ShareDevice, WriteCache};

/// Cores 0 to `cores` - 1.
pub(crate) fn cores(cores: u16) -> Vec<CoreId> {
    (0..cores).map(CoreId).collect()
}

/// Shares the disks with any core.
pub(crate) fn share(world: &WorldRef, disks: [FileId; 2]) -> ShareDevice {
    let disks: Vec<Disk> = disks.map(|file| Disk::clone(&world.borrow().leaf(file))).into();
    Rc::new(move |device| {
        let disk = disks.iter().find(|disk| disk.name() == device.name())?.clone();
        let make: DeviceFactory = Box::new(move || Rc::new(disk));
        Some(make)
    })
}

/// Shares no disk: all requests go by messages to core 0.
pub(crate) fn share_nothing() -> ShareDevice {
    Rc::new(|_| None)
}

/// The status fields, after a refresh.
pub(crate) async fn fields(cache: &Rc<WriteCache>) -> Vec<i64> {
    use block::Target;
    cache.clone().refresh().await;
    cache.status().split(' ').map(|field| field.parse().unwrap()).collect()
}

/// An attribute that is a number, after a refresh.
pub(crate) async fn number(cache: &Rc<WriteCache>, name: &str) -> u64 {
    use block::Target;
    let value = cache.clone().get_attribute(name.to_owned()).await.unwrap();
    value.number().unwrap()
}
