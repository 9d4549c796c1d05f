// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache (`flush`) on files of this machine, in process over io_uring.
//!
//! Origin and cache device are two files without names (RP-R2). They are made once and written from
//! end to end, so that no run measures the file system's allocations. Each run begins with a cache
//! device without a superblock.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use block::{CoreId, Limits};
use queue::FileLeaf;
use reactor::Reactor;
use uring::{OpenOptions, Uring};

use crate::flush::{BLOCK_BYTES, Outcome, Plan, cache_device_sectors, run};
use crate::tmpfile::{self, fill, path};

/// Bytes of the cache device that are zeroed before each run: superblocks and the begin of the log.
const BLANK_BYTES: usize = 1 << 20;

/// The two files.
#[derive(Debug)]
pub struct TestBed {
    origin: File,
    device: File,
    /// Whether the origin is taken for a disk that rotates; what it says itself when nothing.
    rotational: Option<bool>,
}

impl TestBed {
    /// Makes both files in `dir`; the origin at its size, the cache device at a plan's.
    ///
    /// # Errors
    /// What the file system said.
    pub fn new(
        dir: &Path,
        origin_blocks: u64,
        rotational: Option<bool>,
    ) -> Result<TestBed, String> {
        let make = || -> io::Result<TestBed> {
            let origin = tmpfile::make(dir, origin_blocks * BLOCK_BYTES)?;
            let device = tmpfile::make(dir, 0)?;
            Ok(TestBed { origin, device, rotational })
        };
        make().map_err(|e| format!("{}: {e}", dir.display()))
    }

    /// What the disk says of itself, and what it is taken for.
    ///
    /// # Errors
    /// Why the origin could not be opened.
    pub fn limits(&self) -> Result<Limits, String> {
        let uring = Uring::new().map_err(|e| e.chain())?;
        let opened = uring.files().open_path(&path(&self.origin), OpenOptions::default());
        Ok(self.taken_for(&opened.map_err(|e| e.chain())?.limits))
    }

    fn taken_for(&self, limits: &Limits) -> Limits {
        Limits { rotational: self.rotational.unwrap_or(limits.rotational), ..*limits }
    }

    /// Runs a plan on the two files.
    ///
    /// # Errors
    /// What the cache answered when it was not what it should have been.
    pub fn run(&self, plan: Plan) -> Result<Outcome, String> {
        let slots = plan.scale.slots(plan.fill_percent, plan.strategy);
        let blanked = self.blank_device(cache_device_sectors(slots).bytes());
        blanked.map_err(|e| format!("the file of the cache device: {e}"))?;
        let uring = Uring::new().map_err(|e| e.chain())?;
        let open = |file: &File| {
            let opened = uring.files().open_path(&path(file), OpenOptions::default());
            opened.map_err(|e| e.chain())
        };
        let (origin, device) = (open(&self.origin)?, open(&self.device)?);
        let origin = FileLeaf::new("origin", origin.file, self.taken_for(&origin.limits));
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        // Both lie on one disk, which has one throttle.
        let wbt = reactor.on(|| origin.shared_wbt());
        let device = FileLeaf::with_wbt("cache", device.file, device.limits, &wbt);
        reactor.block_on(run(Rc::new(origin), Rc::new(device), plan))
    }

    /// A cache device of `bytes` that no run has used, but for its space.
    fn blank_device(&self, bytes: u64) -> io::Result<()> {
        if self.device.metadata()?.len() != bytes {
            return fill(&self.device, bytes);
        }
        self.device.write_all_at(&vec![0; BLANK_BYTES], 0)?;
        self.device.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::{PUBLISHED_PERCENT, Scale, Strategy};

    #[test]
    fn every_strategy_writes_everything_back_on_local_files() {
        let dir = std::env::temp_dir();
        let scale = Scale::divided(64);
        let test_bed = TestBed::new(&dir, scale.origin_blocks, Some(true)).unwrap();
        for (nth, strategy) in
            (1..).zip([Strategy::Lru, Strategy::GapKnown, Strategy::Sorted, Strategy::GapFill])
        {
            let fill_percent = PUBLISHED_PERCENT;
            let plan =
                Plan { scale, strategy, fill_percent, reads: None, jobs: 0, nth, watched: false };
            let outcome = test_bed.run(plan).unwrap();
            assert_eq!(outcome.dirty_blocks, scale.cache_blocks, "{}", strategy.name());
            assert!(outcome.origin_write_bytes >= scale.cache_blocks * BLOCK_BYTES);
        }
    }
}
