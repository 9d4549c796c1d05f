// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Block devices of the kernel for mapped devices: when a verb makes, changes and removes them.
use std::path::PathBuf;
use std::rc::Rc;

use block::{BlockDevice, Error, ErrorKind, Nanos};
use control::{Failure, api};
use dm::{MappedDevice, Remove};

use super::{Engine, door_bytes_max};
use crate::ublk_door::{DiskClient, DoorCores, DoorStats, UblkDoor};

/// How long a removal by force waits for a disk whose device fails all requests.
const FORCED_STOP: Nanos = Nanos::from_secs(30);
/// Data of clients of block devices in flight, at most. Chosen: as of NBD clients.
const BYTES_MAX: u64 = 512 << 20;

impl Engine {
    /// Block devices can be made from now on; all devices get one, if `serves_all`. `is_needed`:
    /// the kernel's driver has to be there.
    pub(crate) async fn set_up_disks(
        &self,
        run_dir: PathBuf,
        serves_all: bool,
    ) -> Result<(), Failure> {
        let bytes_max = door_bytes_max(BYTES_MAX, reactor::memory().limit());
        let (owner, cores) = (self.owner.clone(), self.cores.clone());
        let cores = DoorCores { owner, cores, bytes_max };
        let door = UblkDoor::new(self.files.clone(), run_dir, serves_all, cores);
        self.disks.replace(Some(door.clone()));
        if serves_all {
            return door.open().await.map_err(|e| Failure::from(e).within("--ublk"));
        }
        // What an earlier daemon has left is looked at though none is asked for now.
        if ublk::numbers().is_empty() {
            return Ok(());
        }
        if let Err(e) = door.open().await {
            tracing::debug!("block devices of an earlier daemon: {}", e.chain());
        }
        Ok(())
    }

    /// Warns of block devices whose clients still wait.
    pub(crate) fn warn_of_waiting_disks(&self) {
        let door = self.disks.borrow().clone();
        for path in door.iter().flat_map(|door| door.waiting()) {
            tracing::warn!(
                "{}: clients wait for a device that the configuration does not have: create it \
                 with `--ublk`, or give it up: `millpond ublk --give-up`",
                path.display()
            );
        }
    }

    fn door(&self) -> Result<Rc<UblkDoor>, Error> {
        let none = || Error::new(ErrorKind::NotSupported, "no block devices can be made here");
        self.disks.borrow().clone().ok_or_else(none)
    }

    /// The disk of a device that has just been made, if it is to have one. After an error the
    /// device is gone again.
    pub(super) async fn make_disk(&self, name: &str, is_chosen: bool) -> Result<(), Failure> {
        let made = self.try_make_disk(name, is_chosen).await;
        if made.is_err() {
            let removed = self.remove(name, Remove::IfUnused, None, &|| true).await;
            if let Err(also) = removed {
                // The first cause is the caller's.
                tracing::error!(device = name, "removal after a failed block device: {also}");
            }
        }
        made
    }

    /// The disk of a device that had one with the daemon before. Without it the device stays.
    pub(crate) async fn make_disk_again(&self, name: &str, is_chosen: bool) -> Result<(), Failure> {
        self.try_make_disk(name, is_chosen).await
    }

    async fn try_make_disk(&self, name: &str, is_chosen: bool) -> Result<(), Failure> {
        if is_chosen {
            let door = self.door()?;
            door.open().await?;
            door.choose(&self.dm.get(name)?);
        }
        self.update_disk(name).await
    }

    /// Makes the disk of a device that has a table now, or tells the kernel its size.
    pub(super) async fn update_disk(&self, name: &str) -> Result<(), Failure> {
        let Some(door) = self.disks.borrow().clone() else { return Ok(()) };
        let Ok(device) = self.dm.get(name) else { return Ok(()) };
        let survives_kill = self.survives_kill(&device).await;
        let updated = door.update(&device, survives_kill).await;
        updated.map_err(|e| Failure::from(e).within(name))
    }

    /// The path of a device's disk.
    pub(super) fn disk_of(&self, name: &str) -> Option<String> {
        let door = self.disks.borrow().clone()?;
        let disk = door.disk(&*self.dm.get(name).ok()?)?;
        Some(disk.path.to_string_lossy().into_owned())
    }

    /// Block devices as clients of their devices.
    pub(crate) fn disk_clients(&self) -> Vec<DiskClient> {
        self.disks.borrow().iter().flat_map(|door| door.clients()).collect()
    }

    /// Block devices that do not cross: the kernel does not let their clients wait. Whether one is
    /// open it does not say.
    pub(crate) fn disk_problems(&self) -> Vec<api::UpgradeProblem> {
        let problem = |(name, path): (String, PathBuf)| {
            let path = path.display();
            let why = format!(
                "its block device {path} ends with this process, as its clients can't wait for the \
                 next one (`millpond ublk`): who has it open gets errors, and a new one is made"
            );
            api::UpgradeProblem::new(&name, why, true)
        };
        let door = self.disks.borrow();
        door.iter().flat_map(|door| door.ending_disks()).map(problem).collect()
    }

    /// The figures of block devices, if any can be made.
    pub(crate) fn disk_stats(&self) -> Option<DoorStats> {
        self.disks.borrow().as_ref()?.stats()
    }

    /// Whether a disk was asked for this very device.
    pub(super) fn is_disk_chosen(&self, name: &str) -> bool {
        let door = self.disks.borrow().clone();
        let device = self.dm.get(name).ok();
        door.zip(device).is_some_and(|(door, device)| door.is_chosen(&device))
    }

    /// Whether nothing that clients of a device were told is lost by a kill: all caches below have
    /// a journal in memory, and nothing else keeps data in the process.
    pub(crate) async fn survives_kill(&self, device: &Rc<MappedDevice>) -> bool {
        if !device.limits().survives_kill {
            return false;
        }
        let mut left = vec![device.clone()];
        while let Some(device) = left.pop() {
            if self.claims.without_journal(&device).await.is_some() {
                return false;
            }
            let deps = self.dm.deps(device.name()).unwrap_or_default();
            let mapped = deps.iter().filter(|dep| dep.number.is_some());
            left.extend(mapped.filter_map(|dep| self.dm.get(&dep.name).ok()));
        }
        true
    }

    /// Before a removal that is refused while the device is in use: its disk goes, unless that is
    /// open. A device that others use keeps its disk, and the removal says who they are.
    pub(super) async fn release_disk(&self, name: &str, how: Remove) -> Result<(), Failure> {
        let Some(door) = self.disks.borrow().clone() else { return Ok(()) };
        let device = self.dm.get(name)?;
        if door.disk(&device).is_none() || device.info().open_count > 1 {
            return Ok(());
        }
        match door.release(&device).await {
            // It is removed when it is closed.
            Err(e) if how == Remove::Deferred && e.kind() == ErrorKind::Busy => Ok(()),
            released => Ok(released?),
        }
    }

    /// After a removal: one that waits for the disk to be closed is seen to; after one that failed
    /// the device has its disk again.
    pub(super) async fn end_release(&self, device: &Rc<MappedDevice>, how: Remove, failed: bool) {
        let Some(door) = self.disks.borrow().clone() else { return };
        if how == Remove::Deferred && !failed {
            door.release_later(device, |_, device| device.info().deferred_remove);
        }
        if failed && let Err(e) = self.update_disk(device.name()).await {
            tracing::error!(device = device.name(), "its block device is gone: {e}");
        }
    }

    /// Before a removal by force: the disk goes, whoever has it open. What clients have written is
    /// still written, for as long as the device takes it; then its table is taken away.
    pub(super) async fn stop_disk(&self, name: &str, force: Option<&str>) -> Result<(), Failure> {
        let Some(door) = self.disks.borrow().clone() else { return Ok(()) };
        let device = self.dm.get(name)?;
        if door.disk(&device).is_none() {
            return Ok(());
        }
        self.dm.check_lost(name, force).await?;
        door.stop(&device).await;
        if door.disk(&device).is_some() {
            // It fails, as the disk has it open; but all requests end from now on.
            let _ = self.dm.remove_forced(name, Remove::Force, force).await;
            door.stopped_within(&device, FORCED_STOP).await;
        }
        Ok(())
    }

    pub(super) fn rename_disk(&self, name: &str) {
        let door = self.disks.borrow().clone();
        if let Some((door, device)) = door.zip(self.dm.get(name).ok()) {
            door.renamed(&device);
        }
    }

    /// Ends block devices, or leaves them to the next daemon.
    pub(crate) async fn shut_down_disks(&self, time: Nanos) {
        let door = self.disks.borrow().clone();
        if let Some(door) = door {
            door.shut_down(time).await;
        }
    }
}
