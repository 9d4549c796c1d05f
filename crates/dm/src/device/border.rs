// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mapped device as others have it: a device that takes bios, and a base of flat mappings.
use std::rc::{Rc, Weak};

use block::{
    Base, Bio, BlockDevice, Limits, LocalFuture, MappedExtent, OnIoError, Opener, Sector, Status,
};

use super::MappedDevice;
use crate::clone::clone_of;
use crate::mapping::Mapping;

impl BlockDevice for MappedDevice {
    fn name(&self) -> &str {
        self.names.get()
    }

    fn limits(&self) -> Limits {
        self.live.borrow().as_ref().map_or_else(|| Limits::new(Sector::ZERO), |t| t.limits())
    }

    fn submit(&self, mut bio: Bio) {
        if bio.opener == Opener::NONE {
            bio.opener = self.opener;
        }
        let flat = self.flat.borrow();
        match flat.place(bio.sector, bio.len) {
            Some((base, sector)) => base.submit_at(sector, bio),
            None if flat.is_nowhere() => self.submit_counted(bio),
            None => flat.submit_elsewhere(bio),
        }
    }

    fn map_blocks(&self, at: Sector, len: Sector) -> Option<MappedExtent> {
        self.flat.borrow().map_blocks(at, len)
    }

    fn map_generation(&self) -> u64 {
        self.flat_generation.get()
    }

    fn writer_throttled(&self) {
        for base in self.flat.borrow().bases() {
            base.writer_throttled();
        }
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl MappedDevice {
    #[cold]
    #[inline(never)]
    fn submit_counted(&self, bio: Bio) {
        let live = self.live.borrow();
        let Some(table) = &*live else { return bio.complete(Status::Io) };
        if self.blocked.get() {
            return self.wait(bio);
        }
        let bio = self.gate.borrow().pass(bio);
        let bio = if self.account.is_on() { self.account.pass(bio) } else { bio };
        match self.mapping.get() {
            Mapping::Clone if table.is_pure() => {
                self.clones.set(self.clones.get() + 1);
                table.submit(clone_of(bio));
            }
            Mapping::Clone | Mapping::InPlace => table.submit(bio),
        }
    }
}

impl MappedDevice {
    fn wait(&self, bio: Bio) {
        if self.dm.upgrade().is_some_and(|dm| dm.is_ending()) {
            return bio.complete(Status::NoDevice);
        }
        self.waiting.push(bio);
    }
}

impl Base for MappedDevice {
    /// Checks all the same: the table may be another one than when the mapping above was made.
    fn submit_at(&self, sector: Sector, bio: Bio) {
        self.submit(Bio { sector, ..bio });
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move {
            // What came while this was a pure mapping went on to bases that the mapping above had
            // as its own; nothing came that had to wait (DM-D5).
            let gates = self.gates();
            for gate in gates {
                gate.quiesced().await;
            }
        })
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.gate.borrow().watch(watcher);
    }
}
