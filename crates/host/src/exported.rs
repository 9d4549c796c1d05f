// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that the FUSE export and the attributes show: a mapped device or a leaf.
use std::rc::Rc;

use block::BlockDevice;
use dm::{Dm, MappedDevice, ReadOnly};
use queue::Leaf;

use crate::leaves::Leaves;

/// Longest name of a file. One longer would spoil the list of the whole folder.
const NAME_BYTES_MAX: usize = 255;

/// A device that files show.
#[derive(Clone)]
pub(crate) enum ExportedDevice {
    Mapped(Rc<MappedDevice>),
    Leaf(Rc<dyn Leaf>),
}

impl ExportedDevice {
    /// All devices that FUSE shows: mapped ones, and leaves that tables use and that have no path
    /// of their own.
    pub(crate) fn all(dm: &Dm, leaves: &Leaves) -> Vec<ExportedDevice> {
        let mut all: Vec<ExportedDevice> =
            dm.devices().into_iter().map(ExportedDevice::Mapped).collect();
        let has_name = |l: &dyn Leaf| !l.name().contains('/') && l.name().len() <= NAME_BYTES_MAX;
        for leaf in leaves.opened().into_iter().filter(|l| has_name(&**l)).map(ExportedDevice::Leaf)
        {
            // A mapped device may be called like a leaf: tables would find it first, too.
            if all.iter().all(|other| other.file_name() != leaf.file_name()) {
                all.push(leaf);
            }
        }
        all.retain(ExportedDevice::is_shown);
        all
    }

    pub(crate) fn device(&self) -> Rc<dyn BlockDevice> {
        match self {
            ExportedDevice::Mapped(device) => device.clone(),
            ExportedDevice::Leaf(leaf) => leaf.clone(),
        }
    }

    pub(crate) fn file_name(&self) -> String {
        match self {
            ExportedDevice::Mapped(device) => dm::mangle(device.name()),
            ExportedDevice::Leaf(leaf) => leaf.name().to_owned(),
        }
    }

    fn is_shown(&self) -> bool {
        match self {
            ExportedDevice::Mapped(device) => device.doors().has_fuse(),
            ExportedDevice::Leaf(_) => true,
        }
    }

    pub(crate) fn read_only(&self) -> bool {
        match self {
            ExportedDevice::Mapped(device) => device.read_only().get(),
            ExportedDevice::Leaf(leaf) => leaf.is_read_only(),
        }
    }

    /// What makes a mapped device read-only while it is open.
    pub(crate) fn read_only_flag(&self) -> Option<ReadOnly> {
        match self {
            ExportedDevice::Mapped(device) => Some(device.read_only().clone()),
            ExportedDevice::Leaf(_) => None,
        }
    }
}
