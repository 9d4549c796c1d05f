// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `HoleFinder`: a simulated disk that tells which of its sectors are zeroes.
use std::rc::Rc;

use block::runs::{Runs, joined};
use block::{Bio, BlockDevice, Limits, Nanos, Sector, ZeroRuns};
use reactor::sleep;

use crate::disk::Disk;
use crate::world::WorldRef;

/// How long the search waits before it looks, and then before it answers.
type Delays = Box<dyn Fn() -> [Nanos; 2]>;

/// A disk that answers [`BlockDevice::zero_runs`] with all its sectors of zeroes, each as it was at
/// some moment between question and answer: the most that a device may answer.
pub struct HoleFinder {
    disk: Rc<Disk>,
    world: WorldRef,
    delays: Delays,
}

impl HoleFinder {
    /// Over a disk of `world`. Each search asks `delays` how long it waits before it looks, and
    /// then before it answers.
    pub fn over(
        world: &WorldRef,
        disk: Rc<Disk>,
        delays: impl Fn() -> [Nanos; 2] + 'static,
    ) -> Rc<HoleFinder> {
        Rc::new(HoleFinder { disk, world: world.clone(), delays: Box::new(delays) })
    }
}

impl BlockDevice for HoleFinder {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn submit(&self, bio: Bio) {
        self.disk.submit(bio);
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let (disk, world) = (self.disk.clone(), self.world.clone());
        let [before, after] = (self.delays)();
        Box::pin(async move {
            sleep(before).await;
            let mut runs = Runs::new();
            for sector in (at.0..(at + len).0).map(Sector) {
                let mut data = [0; block::SECTOR_SIZE];
                world.borrow().peek(disk.file, sector, &mut data);
                if data.iter().all(|b| *b == 0) {
                    runs.push((sector, Sector(1)));
                }
            }
            sleep(after).await;
            joined(runs)
        })
    }
}

impl std::fmt::Debug for HoleFinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HoleFinder({:?})", self.disk)
    }
}
