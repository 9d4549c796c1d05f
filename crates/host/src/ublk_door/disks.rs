// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The block devices of a run directory, for a tool that has no daemon.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use block::Error;
use ublk::Control;

use super::links;
use crate::rundir::RunDir;

/// Names and numbers of the block devices that the daemons of a run directory have made.
#[derive(Debug)]
pub struct Disks {
    run_dir: PathBuf,
    names: BTreeMap<String, u32>,
}

impl Disks {
    /// Those of this run directory, as its links have them.
    pub fn of(run_dir: &RunDir) -> Disks {
        let run_dir = run_dir.path().to_owned();
        let names = links::all(&run_dir).into_iter().collect();
        Disks { run_dir, names }
    }

    /// The run directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The name of the device of `/dev/ublkbN`.
    pub fn name_of(&self, number: u32) -> Option<String> {
        self.names.iter().find(|(_, other)| **other == number).map(|(name, _)| name.clone())
    }

    /// N of the `/dev/ublkbN` of a device.
    pub fn number_of(&self, name: &str) -> Option<u32> {
        self.names.get(&dm::mangle(name)).copied()
    }

    /// Takes a block device without a server out of the kernel, with its links.
    pub fn forget(&self, control: &mut Control, number: u32) -> Result<(), Error> {
        control.stop(number)?;
        links::remove(&self.run_dir, number);
        control.delete(number)
    }
}
