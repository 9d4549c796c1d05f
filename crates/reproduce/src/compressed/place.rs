// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places where a device and its backing device live: a file of this machine, through io_uring as
//! tables' leaves are, in real time; or a simulated NVMe drive in virtual time.
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
use crate::unnamed;

/// A place.
pub trait Place {
    /// Runs until `future` has ended.
    ///
    /// # Errors
    /// When it can never end.
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String>;

    /// Seconds by the clock that counts here.
    fn now_s(&self) -> f64;

    /// Cores that a device may be divided among; the first is the caller's.
    fn cores(&self) -> Vec<CoreId> {
        vec![CoreId(0)]
    }

    /// The backing device.
    fn disk(&self) -> Rc<dyn BlockDevice>;

    /// Writes that the backing device has done, and their bytes.
    fn written(&self) -> (u64, u64);
}

/// A second core, which runs until it is dropped.
struct Second {
    stop: Arc<AtomicBool>,
    /// As long as there is one, the core waits when it has nothing to do.
    sender: Sender,
    thread: Option<JoinHandle<()>>,
}

impl Second {
    fn start(mailboxes: Vec<Mailbox>) -> Second {
        let (stop, sender) = (Arc::new(AtomicBool::new(false)), mailboxes[1].sender());
        let told = stop.clone();
        let work = move || {
            let driver = Uring::with_mailboxes(CoreId(1), mailboxes);
            let driver = driver.expect("as the first core has got one");
            let reactor = Reactor::enter(CoreId(1), Box::new(driver));
            reactor.run(|| told.load(Ordering::Relaxed));
        };
        #[expect(clippy::disallowed_methods, reason = "a core is a thread")]
        let thread = Some(std::thread::spawn(work));
        Second { stop, sender, thread }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.sender.call(|| ()); // one that has ended needs no word
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A file of this machine; it goes with this value.
pub struct Local {
    second: Option<Second>,
    reactor: Reactor,
    leaf: Rc<FileLeaf>,
    file: File,
    /// How the file was opened, where a person should know.
    pub warning: Option<String>,
}

impl Local {
    /// Makes a file without a name in `dir`, and opens it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(dir: &Path, bytes: u64) -> Result<Local, String> {
        let file = unnamed::make(dir, bytes).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mailboxes: Result<Vec<_>, _> = (0..2).map(|_| Mailbox::new()).collect();
        let mailboxes = mailboxes.map_err(|e| e.chain())?;
        let uring = Uring::with_mailboxes(CoreId(0), mailboxes.clone()).map_err(|e| e.chain())?;
        let files = uring.files();
        let opened = files
            .open_path(&unnamed::path(&file), OpenOptions::default())
            .map_err(|e| e.chain())?;
        let leaf = Rc::new(FileLeaf::new("backing", opened.file, opened.limits));
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        let second = (cpus().len() > 1).then(|| Second::start(mailboxes));
        Ok(Local { second, reactor, leaf, file, warning: opened.warning })
    }

    /// Whether every block of the file is there still: else an overwrite would allocate.
    pub fn is_allocated(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.blocks() * 512 >= m.len())
    }
}

impl Place for Local {
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
        // While the first core is there still: what it had sent is done.
        self.second = None;
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
