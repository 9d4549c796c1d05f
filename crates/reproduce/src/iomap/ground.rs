// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a cache lies: a mapping of the device mapper over a leaf, on a core of this thread.
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{BlockDevice, CoreId, Error, LocalFuture, SECTOR_SIZE, Sector};
use dm::{Dm, MappedDevice, Resolver};
use pagecache::{Config, PageCache};
use queue::{Leaf, Null};
use reactor::Reactor;
use uring::{Files, OpenOptions, Uring};

/// Sectors of a chunk of 64 KiB.
const CHUNK: u64 = 128;

/// What takes the writes in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// Takes everything at once: what is left is our own CPU.
    Null,
    /// A file with O_DIRECT: the kernel's CPU counts, too.
    File,
}

impl LeafKind {
    /// Part of a key of the JSON line.
    pub fn key(self) -> &'static str {
        match self {
            LeafKind::Null => "null",
            LeafKind::File => "file",
        }
    }
}

/// What is between cache and leaf.
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

enum Opens {
    Null(Sector),
    /// In this folder.
    File(PathBuf, Files),
}

impl Resolver for Opens {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let opened: Result<Rc<dyn BlockDevice>, Error> = match self {
            Opens::Null(capacity) => Ok(Rc::new(Null::new(word, *capacity))),
            Opens::File(dir, files) => files
                .open_path(&dir.join(word), OpenOptions::default())
                .map(|opened| Rc::new(Leaf::new(word, opened.file, opened.limits)) as _),
        };
        Box::pin(async move { opened })
    }
}

/// A core, and on it a mapped device.
pub struct Ground {
    reactor: Reactor,
    dm: Rc<Dm>,
    below: Rc<MappedDevice>,
    /// The folder of the leaves' files, if they have some. It goes with this value.
    dir: Option<PathBuf>,
    kind: LeafKind,
}

/// A file whose blocks are all there: the file system's allocation is nobody's to measure.
fn make(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..bytes.div_ceil(zeroes.len() as u64) {
        file.write_all(&zeroes)?;
    }
    file.sync_all()
}

impl Ground {
    /// The leaves, in a new folder in `dir` if they are files, and the mapping over them: `bytes`
    /// in all.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(kind: LeafKind, mapping: Mapping, bytes: u64, dir: &Path) -> Result<Ground, String> {
        let uring = Uring::new().map_err(|e| e.chain())?;
        let sectors = bytes / SECTOR_SIZE as u64;
        let each = bytes / mapping.leaves();
        let name = format!("millpond-bench-iomap-{}", std::process::id());
        let dir = (kind == LeafKind::File).then(|| dir.join(name));
        let opens = match &dir {
            None => Opens::Null(Sector::from_bytes(each)),
            Some(dir) => {
                let failed = |e| format!("{}: {e}", dir.display());
                std::fs::create_dir_all(dir).map_err(failed)?;
                for nth in 0..mapping.leaves() {
                    make(&dir.join(format!("leaf{nth}")), each).map_err(failed)?;
                }
                Opens::File(dir.clone(), uring.files())
            }
        };
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        let made = reactor.block_on(async move {
            let dm = Dm::new(Rc::new(opens));
            let below = dm.create("below", None, Some(&mapping.table(sectors))).await;
            below.map(|below| (dm, below))
        });
        let (dm, below) = made.map_err(|e| e.chain())?;
        Ok(Ground { reactor, dm, below, dir, kind })
    }

    /// Whether what was written can be read back.
    pub fn keeps(&self) -> bool {
        self.kind == LeafKind::File
    }

    /// The device under the cache.
    pub fn below(&self) -> Rc<dyn BlockDevice> {
        self.below.clone()
    }

    /// A cache over all of it.
    ///
    /// # Errors
    /// What it said to these words.
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
        self.reactor.block_on(future)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let dm = self.dm.clone();
        let removed = self.reactor.block_on(async move { dm.remove_all(dm::Remove::Force).await });
        drop(removed); // its data is thrown away
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_dir_all(dir); // nothing better to do about it
        }
    }
}
