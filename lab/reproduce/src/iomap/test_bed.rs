// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices below a page cache: a mapping of the device mapper over leaves, on this thread.
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use block::{BlockDevice, CoreId, Error, LocalFuture, SECTOR_SIZE, Sector};
use dm::{Dm, MappedDevice, Resolver};
use pagecache::{Config, PageCache};
use queue::{FileLeaf, Null};
use reactor::{FileId, Reactor};
use sim::model::FlashParams;
use sim::{DiskSpec, Machine, World, WorldRef};
use uring::{Files, OpenOptions, Uring};

use crate::tmpfile;

/// Sectors of a chunk of 64 KiB.
const CHUNK: u64 = 128;

/// The kind of leaf that receives the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// Completes everything at once, so that only our own CPU time is measured.
    Null,
    /// A file with O_DIRECT: the kernel's CPU time is measured, too.
    File,
    /// A model of an NVMe drive in virtual time: only counts have a meaning.
    Model,
}

impl LeafKind {
    /// Part of a key of the JSON line.
    pub fn key(self) -> &'static str {
        match self {
            LeafKind::Null => "null",
            LeafKind::File => "file",
            LeafKind::Model => "model",
        }
    }
}

/// The mapping between cache and leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    Linear,
    /// Two stripes on two leaves, chunks of 64 KiB.
    Striped,
}

impl Mapping {
    /// Part of a key of the JSON line.
    pub fn key(self) -> &'static str {
        match self {
            Mapping::Linear => "linear",
            Mapping::Striped => "striped",
        }
    }

    fn leaves(self) -> u64 {
        match self {
            Mapping::Linear => 1,
            Mapping::Striped => 2,
        }
    }

    fn table(self, sectors: u64) -> String {
        match self {
            Mapping::Linear => format!("0 {sectors} linear leaf0 0"),
            Mapping::Striped => format!("0 {sectors} striped 2 {CHUNK} leaf0 0 leaf1 0"),
        }
    }
}

enum LeafResolver {
    Null(Sector),
    /// The files of the leaves, by their numbers.
    File(Vec<File>, Files),
    Model(WorldRef, Vec<FileId>),
}

impl Resolver for LeafResolver {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let nth = word.strip_prefix("leaf").and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        let opened: Result<Rc<dyn BlockDevice>, Error> = match self {
            LeafResolver::Null(capacity) => Ok(Rc::new(Null::new(word, *capacity))),
            LeafResolver::File(all, files) => files
                .open_path(&tmpfile::path(&all[nth]), OpenOptions::default())
                .map(|opened| Rc::new(FileLeaf::new(word, opened.file, opened.limits)) as _),
            LeafResolver::Model(world, all) => {
                let limits = world.borrow().leaf(all[nth]).limits();
                Ok(Rc::new(FileLeaf::new(word, all[nth], limits)))
            }
        };
        Box::pin(async move { opened })
    }
}

/// What runs the tasks: a core in real time or in virtual time.
enum Executor {
    Real(Reactor),
    Virtual(Machine),
}

impl Executor {
    fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        match self {
            Executor::Real(reactor) => reactor.block_on(future),
            Executor::Virtual(machine) => {
                machine.block_on(future).expect("nobody cuts the power of this world")
            }
        }
    }
}

/// A core with a mapped device on it.
pub struct TestBed {
    executor: Executor,
    dm: Rc<Dm>,
    below: Rc<MappedDevice>,
    kind: LeafKind,
}

impl TestBed {
    /// Makes the leaves, as unnamed files in `dir` if they are files, and the mapping over them,
    /// `bytes` in all.
    ///
    /// # Errors
    /// Why it could not be made.
    pub fn new(
        kind: LeafKind,
        mapping: Mapping,
        bytes: u64,
        dir: &Path,
    ) -> Result<TestBed, String> {
        let sectors = bytes / SECTOR_SIZE as u64;
        let each = bytes / mapping.leaves();
        let (executor, opens) = if kind == LeafKind::Model {
            let world = World::calm(1);
            let spec = |nth| {
                let capacity = Sector::from_bytes(each);
                let spec = DiskSpec::flash(&format!("leaf{nth}"), capacity, FlashParams::nvme());
                DiskSpec { keeps_history: false, ..spec }
            };
            let add = |nth| world.borrow_mut().add_disk(spec(nth));
            let leaves = (0..mapping.leaves()).map(add).collect();
            (Executor::Virtual(Machine::boot(&world, 1)), LeafResolver::Model(world, leaves))
        } else {
            let uring = Uring::new().map_err(|e| e.chain())?;
            let opens = match kind {
                LeafKind::Null => LeafResolver::Null(Sector::from_bytes(each)),
                LeafKind::File | LeafKind::Model => {
                    let make = |_| tmpfile::make(dir, each);
                    let made = (0..mapping.leaves()).map(make).collect::<std::io::Result<_>>();
                    let leaves = made.map_err(|e| format!("{}: {e}", dir.display()))?;
                    LeafResolver::File(leaves, uring.files())
                }
            };
            (Executor::Real(Reactor::enter(CoreId(0), Box::new(uring))), opens)
        };
        let made = executor.finish(async move {
            let dm = Dm::new(Rc::new(opens));
            let below = dm.create("below", None, Some(&mapping.table(sectors))).await;
            below.map(|below| (dm, below))
        });
        let (dm, below) = made.map_err(|e| e.chain())?;
        Ok(TestBed { executor, dm, below, kind })
    }

    /// Whether written data can be read back.
    pub fn keeps(&self) -> bool {
        self.kind != LeafKind::Null
    }

    /// The device under the cache.
    pub fn below(&self) -> Rc<dyn BlockDevice> {
        self.below.clone()
    }

    /// A cache over the whole device.
    ///
    /// # Errors
    /// Why these options were refused.
    pub fn cache(&self, words: &[&str]) -> Result<Rc<PageCache>, String> {
        let config = Config::parse(words).map_err(|e| e.chain())?;
        let (below, len) = (self.below(), self.below.limits().capacity);
        let made = async move {
            let cache = PageCache::new("bench", config, below, len)?;
            block::Target::resume(cache.clone()).await.map(|()| cache)
        };
        self.finish(made).map_err(|e: Error| e.chain())
    }

    /// Runs until `future` has ended.
    pub fn finish<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.executor.finish(future)
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        let dm = self.dm.clone();
        let removed = self.finish(async move { dm.remove_all(dm::Remove::Force).await });
        drop(removed); // nobody needs its data
    }
}
