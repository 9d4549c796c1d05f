// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Platforms on which a zram and its backing device run: a file of this machine through io_uring,
//! in real time; or a simulated NVMe drive in virtual time.
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use block::{BlockDevice, CoreId, Op, Sector};
use queue::FileLeaf;
use reactor::{FileId, Reactor};
use sim::model::{Flash, FlashParams};
use sim::{DiskSpec, Machine, World, WorldRef};
use uring::{Mailbox, OpenOptions, Sender, Uring};

use crate::clock;
use crate::cpu::cpus;
use crate::tmpfile;

/// Cores, a clock and a backing device.
pub trait Platform {
    /// Runs until `future` has ended.
    ///
    /// # Errors
    /// If it can never end.
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String>;

    /// Seconds of the clock of this platform.
    fn now_s(&self) -> f64;

    /// Cores that a device may be divided among; the first is the caller's.
    fn cores(&self) -> Vec<CoreId> {
        vec![CoreId(0)]
    }

    /// The backing device.
    fn disk(&self) -> Rc<dyn BlockDevice>;

    /// Completed writes of the backing device, and their bytes.
    fn written(&self) -> (u64, u64);
}

/// A second core, which runs until this value is dropped.
struct SecondCore {
    stop: Arc<AtomicBool>,
    /// While a sender exists, the idle core waits for messages.
    sender: Sender,
    thread: Option<JoinHandle<()>>,
}

impl SecondCore {
    fn start(mailboxes: Vec<Mailbox>) -> SecondCore {
        let (stop, sender) = (Arc::new(AtomicBool::new(false)), mailboxes[1].sender());
        let stopped = stop.clone();
        let work = move || {
            let driver = Uring::with_mailboxes(CoreId(1), mailboxes);
            let driver = driver.expect("as the first core has got one");
            let reactor = Reactor::enter(CoreId(1), Box::new(driver));
            reactor.run(|| stopped.load(Ordering::Relaxed));
        };
        #[expect(clippy::disallowed_methods, reason = "a core is a thread")]
        let thread = Some(std::thread::spawn(work));
        SecondCore { stop, sender, thread }
    }
}

impl Drop for SecondCore {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.sender.call(|| ()); // a core that has ended needs no call
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A file of this machine, which vanishes with this value.
pub struct Local {
    second: Option<SecondCore>,
    reactor: Reactor,
    leaf: Rc<FileLeaf>,
    file: File,
    /// A warning of the driver about how the file was opened.
    pub warning: Option<String>,
}

impl Local {
    /// Makes a file without a name in `dir`, and opens it.
    ///
    /// # Errors
    /// Why it could not be made.
    pub fn new(dir: &Path, bytes: u64) -> Result<Local, String> {
        let file = tmpfile::make(dir, bytes).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mailboxes: Result<Vec<_>, _> = (0..2).map(|_| Mailbox::new()).collect();
        let mailboxes = mailboxes.map_err(|e| e.chain())?;
        let uring = Uring::with_mailboxes(CoreId(0), mailboxes.clone()).map_err(|e| e.chain())?;
        let files = uring.files();
        let opened = files
            .open_path(&tmpfile::path(&file), OpenOptions::default())
            .map_err(|e| e.chain())?;
        let leaf = Rc::new(FileLeaf::new("backing", opened.file, opened.limits));
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        let second = (cpus().len() > 1).then(|| SecondCore::start(mailboxes));
        Ok(Local { second, reactor, leaf, file, warning: opened.warning })
    }

    /// Whether every block of the file is still allocated; else an overwrite would allocate.
    pub fn is_allocated(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.blocks() * 512 >= m.len())
    }
}

impl Platform for Local {
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String> {
        Ok(self.reactor.block_on(future))
    }

    fn now_s(&self) -> f64 {
        clock()
    }

    fn cores(&self) -> Vec<CoreId> {
        let second = self.second.as_ref().map(|_| CoreId(1));
        std::iter::once(CoreId(0)).chain(second).collect()
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
        // The second core ends first, while this one can still complete its requests.
        self.second = None;
    }
}

/// A simulated NVMe drive. Only the device takes time, not the CPU.
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

impl Platform for Simulated {
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
