// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places where a device and its backing device live: a file of this machine, through io_uring as
//! tables' leaves are, in real time; or a simulated NVMe drive in virtual time.
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{BlockDevice, CoreId, Op, Sector};
use queue::Leaf;
use reactor::{FileId, Reactor};
use sim::model::{Flash, FlashParams};
use sim::{DiskSpec, Machine, World, WorldRef};
use uring::{OpenOptions, Uring};

use crate::clock;

/// A place.
pub trait Place {
    /// Runs until `future` has ended.
    ///
    /// # Errors
    /// When it can never end.
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String>;

    /// Seconds by the clock that counts here.
    fn now_s(&self) -> f64;

    /// The backing device.
    fn disk(&self) -> Rc<dyn BlockDevice>;

    /// Writes that the backing device has done, and their bytes.
    fn written(&self) -> (u64, u64);
}

/// A file of this machine; it goes with this value.
pub struct Local {
    reactor: Reactor,
    leaf: Rc<Leaf>,
    path: PathBuf,
    /// How the file was opened, where a person should know.
    pub warning: Option<String>,
}

/// A file whose blocks are all there, as those of a disk are: the file system's allocation is
/// nobody's to measure.
fn make(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..bytes.div_ceil(zeroes.len() as u64) {
        file.write_all(&zeroes)?;
    }
    file.sync_all()
}

impl Local {
    /// Makes the file `backing` in `dir`, and opens it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(dir: &Path, bytes: u64) -> Result<Local, String> {
        let path = dir.join("backing");
        make(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        let uring = Uring::new().map_err(|e| e.chain())?;
        let files = uring.files();
        let opened = files.open_path(&path, OpenOptions::default()).map_err(|e| e.chain())?;
        let leaf = Rc::new(Leaf::new("backing", opened.file, opened.limits));
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        Ok(Local { reactor, leaf, path, warning: opened.warning })
    }

    /// Whether every block of the file is there still: else an overwrite would allocate.
    pub fn is_allocated(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|m| m.blocks() * 512 >= m.len())
    }
}

impl Place for Local {
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String> {
        Ok(self.reactor.block_on(future))
    }

    fn now_s(&self) -> f64 {
        clock()
    }

    fn disk(&self) -> Rc<dyn BlockDevice> {
        self.leaf.clone()
    }

    fn written(&self) -> (u64, u64) {
        let counts = self.leaf.stats().of(Op::Write);
        (counts.ios, counts.bytes)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // nothing better to do about it
    }
}

/// A simulated NVMe drive: device times only, as if the CPU took none.
pub struct Simulated {
    machine: Machine,
    world: WorldRef,
    file: FileId,
}

impl Simulated {
    /// A new drive.
    pub fn new(bytes: u64) -> Simulated {
        let world = World::calm(1);
        let flash = Box::new(Flash::new(FlashParams::nvme()));
        let spec = DiskSpec::new("backing", Sector::from_bytes(bytes), flash);
        let file = world.borrow_mut().add_disk(DiskSpec { keeps_history: false, ..spec });
        let machine = Machine::boot(&world, 1);
        Simulated { machine, world, file }
    }
}

impl Place for Simulated {
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String> {
        let done = self.machine.block_on(future);
        done.map_err(|ended| format!("the simulation stopped: {ended:?}"))
    }

    fn now_s(&self) -> f64 {
        self.world.borrow().now().0 as f64 / 1e9
    }

    fn disk(&self) -> Rc<dyn BlockDevice> {
        self.world.borrow().leaf(self.file)
    }

    fn written(&self) -> (u64, u64) {
        let stats = self.world.borrow().stats(self.file);
        (stats.writes, stats.write_bytes)
    }
}
