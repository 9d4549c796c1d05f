// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves: opens the devices that tables name besides mapped ones, by a path, `pmem:PATH`,
//! `nbd://HOST/EXPORT`, `mem:SIZE` or `null:SIZE`; and records which are open.
//!
//! A process that was killed may have requests at a disk that has not done them yet. They must not
//! land on what the next process writes.
//!
//! Invariants
//! - HO-LF1 A leaf on a file or block device is locked, or claimed, before its first request, by
//!   the description that sends its requests (UR-U10): once it is open, nothing of an earlier
//!   process is under way there. A table opens the leaves of all its lines before an engine reads
//!   or writes one of them (targets are made without I/O; `resume` recovers), and journals in
//!   memory are replayed there. So recovery begins with the locks of all leaves below in hand.
//! - HO-LF2 An `nbd://` leaf has no lock: its server may still do what a process has sent that was
//!   killed. So nothing above it survives a kill (`Limits::survives_kill`), and no door hides one:
//!   a ublk disk is made without recovery, and a guest of vhost-user gets no notes of requests in
//!   flight and is refused by the next process. Clients hear of the kill.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use block::{Base, BlockDevice, Error, ErrorKind, LocalFuture, Nanos, Sector, same_device};
use dm::Resolver;
use queue::wbt::SharedWbt;
use queue::{BlockLeaf, FileLeaf, Leaf, Mem, MergingLeaf, Null, OpenFile};
use reactor::{FileId, WaitList};
use uring::{Files, LockOwner, OpenOptions, SharedFile, ShorterFile};

use crate::holes;
use crate::leaf_word::{LeafWord, OwnMount, PMEM, parse};
use crate::retry::Patience;

/// A leaf of core 0 on its way to another core.
#[derive(Clone, Debug)]
pub struct SharedLeaf {
    /// The same for the same open leaf only.
    pub(crate) id: u64,
    leaf: queue::SharedLeaf,
    /// The driver's file, of a leaf that is on one.
    file: Option<SharedFile>,
}

impl SharedLeaf {
    /// Whether its bios complete as they are submitted.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.leaf.is_in_memory()
    }

    /// Opens the leaf on this core. Dropping it ends only this core's use.
    pub(crate) fn open(&self, files: &Files) -> Rc<dyn Leaf> {
        let file = |file| OpenFile { id: files.adopt(file), close: closer(files) };
        self.leaf.open(self.file.as_ref().map(file))
    }
}

fn closer(files: &Files) -> Box<dyn FnOnce(FileId)> {
    let files = files.clone();
    Box::new(move |file| files.close(file))
}

/// Opens leaves, and records which are open and what warnings there were. Clones are the same.
#[derive(Clone)]
pub struct Leaves(Rc<Shared>);

/// A leaf that is open or was.
struct Entry {
    id: u64,
    /// The same for two words exactly when they mean the same.
    key: String,
    place: Place,
    leaf: Weak<dyn Leaf>,
}

/// Where the content of a leaf lies.
#[derive(Debug, Default)]
struct Place {
    /// The disk, where that is known.
    disk: Option<String>,
    /// When its content is lost, if it is on no disk.
    lost_when: Option<&'static str>,
}

struct Shared {
    /// Absent without io_uring: then only leaves in memory can be opened.
    files: Option<Files>,
    open: RefCell<Vec<Entry>>,
    /// At this many entries those of closed leaves are removed.
    prune_at: Cell<usize>,
    next_id: Cell<u64>,
    warnings: RefCell<Vec<String>>,
    patience: Cell<Patience>,
    failure_alarm: Rc<WaitList>,
    /// Where our own devices are files. Opening one there would deadlock.
    own_mount: RefCell<Option<PathBuf>>,
}

/// The leaf as one that takes requests of any sectors: with merges, where its blocks are larger.
fn with_merges<D: BlockLeaf + 'static>(leaf: D) -> Rc<dyn Leaf> {
    match MergingLeaf::<D>::is_needed(&leaf.limits()) {
        true => Rc::new(MergingLeaf::new(leaf)),
        false => Rc::new(leaf),
    }
}

/// At most this many entries of closed leaves are kept.
const CLOSED_MAX: usize = 64;
/// The failures of a device are logged at most this often.
const LOG_INTERVAL: Nanos = Nanos::from_secs(1);

impl Leaves {
    pub fn new(files: Files) -> Leaves {
        Leaves::with(Some(files))
    }

    /// Leaves of a core without files: `mem:` and `null:` only.
    pub fn in_memory() -> Leaves {
        Leaves::with(None)
    }

    fn with(files: Option<Files>) -> Leaves {
        Leaves(Rc::new(Shared {
            files,
            open: RefCell::default(),
            prune_at: Cell::new(CLOSED_MAX),
            next_id: Cell::new(0),
            warnings: RefCell::default(),
            patience: Cell::default(),
            failure_alarm: Rc::default(),
            own_mount: RefCell::default(),
        }))
    }

    /// A task: logs failures of devices with operation, sector and cause, one line a device a
    /// second.
    pub(crate) async fn log_failures(self) {
        let mut logged: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            let unlogged = |logged: &BTreeMap<String, u64>| -> Vec<Rc<dyn Leaf>> {
                let seen = |l: &dyn Leaf| logged.get(l.name()).copied().unwrap_or(0);
                self.opened().into_iter().filter(|l| l.stats().failures() > seen(&**l)).collect()
            };
            self.0.failure_alarm.wait_for(|| !unlogged(&logged).is_empty()).await;
            for leaf in unlogged(&logged) {
                let failures = leaf.stats().failures();
                if let Some(e) = leaf.stats().last_error() {
                    let (op, sector, cause) = (e.op, e.sector, e.cause);
                    tracing::error!(device = e.device, %op, %sector, %cause, failures, "failed");
                }
                self.log_shorter_file(&*leaf);
                logged.insert(leaf.name().to_owned(), failures);
            }
            reactor::sleep(LOG_INTERVAL).await;
            logged.retain(|name, _| self.opened().iter().any(|l| l.name() == name));
        }
    }

    /// Why the flushes of a leaf fail, if its file has become shorter.
    fn log_shorter_file(&self, leaf: &dyn Leaf) {
        let shorter = leaf.file().and_then(|file| self.0.files.as_ref()?.shorter(file));
        if let Some(ShorterFile { found, wanted }) = shorter {
            let device = leaf.name();
            tracing::error!(
                device,
                found,
                wanted,
                "its file is shorter than it was when it was opened: somebody has cut it. What was \
                 beyond its end is lost, and its flushes fail until it has its size again"
            );
        }
    }

    /// The leaves that are open now.
    pub fn opened(&self) -> Vec<Rc<dyn Leaf>> {
        self.0.open.borrow().iter().filter_map(|one| one.leaf.upgrade()).collect()
    }

    /// The open leaves that were opened for writes and take none any more.
    pub(crate) fn refusing(&self) -> Vec<Rc<dyn Leaf>> {
        self.opened().into_iter().filter(|leaf| leaf.has_become_read_only()).collect()
    }

    /// The leaf that is this base, for other cores. None when it is no leaf, or when it merges:
    /// that is done on this core only, and other cores send their bios here.
    pub(crate) fn share(&self, base: &Rc<dyn Base>) -> Option<SharedLeaf> {
        let merges = self.entry_of(base, |_, leaf| leaf.merges()) == Some(true);
        if merges { None } else { self.share_blocks(base) }
    }

    /// The same for a client that writes whole blocks, and blocks of its own only: it needs no
    /// merges.
    pub fn share_blocks(&self, base: &Rc<dyn Base>) -> Option<SharedLeaf> {
        self.entry_of(base, |entry, leaf| {
            // A connection belongs to its core: the others send their bios there.
            let shared = leaf.share()?;
            let file = match (leaf.file(), &self.0.files) {
                (None, _) => None,
                (Some(file), files) => Some(files.as_ref()?.share(file)?),
            };
            Some(SharedLeaf { id: entry.id, leaf: shared, file })
        })?
    }

    /// What `f` finds about the open leaf that is this base.
    fn entry_of<T>(
        &self,
        base: &Rc<dyn Base>,
        f: impl FnOnce(&Entry, &dyn Leaf) -> T,
    ) -> Option<T> {
        let open = self.0.open.borrow();
        open.iter()
            .find_map(|entry| {
                let leaf = entry.leaf.upgrade().filter(|leaf| same_device(leaf, base))?;
                Some((entry, leaf))
            })
            .map(|(entry, leaf)| f(entry, &*leaf))
    }

    /// When the content of this base is lost, if it is on no disk.
    pub(crate) fn lasts_until(&self, base: &Rc<dyn Base>) -> Option<&'static str> {
        self.entry_of(base, |entry, _| entry.place.lost_when)?
    }

    /// The path of this base, if it is a leaf on a file.
    pub(crate) fn path_of(&self, base: &Rc<dyn Base>) -> Option<PathBuf> {
        let name = self.entry_of(base, |_, leaf| leaf.file().map(|_| leaf.name().to_owned()))??;
        Some(name.strip_prefix(PMEM).unwrap_or(&name).into())
    }

    /// The open leaf that was shared with this id.
    pub(crate) fn by_id(&self, id: u64) -> Option<Rc<dyn Leaf>> {
        self.0.open.borrow().iter().find(|one| one.id == id)?.leaf.upgrade()
    }

    /// The open leaf that a table's word means.
    pub(crate) async fn find(&self, word: &str) -> Result<Option<Rc<dyn Leaf>>, Error> {
        let named = self.opened().into_iter().find(|leaf| leaf.name() == word);
        if named.is_some() {
            return Ok(named);
        }
        let key = self.key(word).await?;
        let open = self.0.open.borrow();
        let same = open.iter().filter(|one| one.key == key);
        Ok(same.filter_map(|one| one.leaf.upgrade()).next())
    }

    /// One spelling for all words that mean the same leaf.
    async fn key(&self, word: &str) -> Result<String, Error> {
        let (path, prefix) = match parse(word) {
            Ok(LeafWord::Path(path)) => (path, ""),
            Ok(LeafWord::Pmem(path)) => (path, PMEM),
            Ok(LeafWord::Nbd(uri)) => return Ok(uri.canonical()),
            Ok(LeafWord::Mem(_) | LeafWord::Null(_)) | Err(_) => return Ok(word.into()),
        };
        let Some(files) = &self.0.files else { return Ok(word.into()) };
        let (own, what, word) = (self.own_mount(), path.display().to_string(), word.to_owned());
        let look = move || {
            if own.has(&path) {
                return Ok(word);
            }
            Ok(Files::identity(&path).map_or(word, |same| format!("{prefix}{same}")))
        };
        files.away(&what, look).await
    }

    /// Runs `work`, which may wait for a file system, on a helper thread. `what` is logged when it
    /// takes too long.
    pub(crate) async fn on_helper<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        match &self.0.files {
            Some(files) => files.away(what, work).await,
            // No daemon, so no other client waits.
            None => work(),
        }
    }

    /// The warnings since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.0.warnings.take()
    }

    /// Adds a warning to the answer of the request that is being served.
    pub(crate) fn warn(&self, warning: String) {
        tracing::warn!("{warning}");
        let mut waiting = self.0.warnings.borrow_mut();
        // `replace-cache` makes the new cache twice, first to check it.
        if !waiting.contains(&warning) {
            waiting.push(warning);
        }
    }

    /// How patiently a leaf is opened from now on that another process uses.
    pub(crate) fn set_patience(&self, patience: Patience) {
        self.0.patience.set(patience);
    }

    /// Refuses paths into `dir` from now on.
    pub(crate) fn set_own_mount(&self, dir: Option<PathBuf>) {
        self.0.own_mount.replace(dir);
    }

    /// Where our own devices are files.
    pub(crate) fn own_mount(&self) -> OwnMount {
        OwnMount(self.0.own_mount.borrow().clone())
    }

    async fn open_word(self, word: String) -> Result<Rc<dyn Leaf>, Error> {
        let (leaf, key, place) = match parse(&word)? {
            LeafWord::Mem(capacity) => {
                let leaf: Rc<dyn Leaf> = Rc::new(Mem::new(&*word, capacity)?);
                (leaf, word, Place { disk: None, lost_when: Some("the daemon ends") })
            }
            LeafWord::Null(capacity) => {
                let leaf: Rc<dyn Leaf> = Rc::new(Null::new(&*word, capacity));
                (leaf, word, Place::default())
            }
            LeafWord::Nbd(uri) => {
                let key = uri.canonical();
                let client = uri.open(word, self.files()?.clone()).await?;
                (with_merges(client), key, Place::default())
            }
            LeafWord::Path(path) => {
                self.open_patiently(&path, &word, OpenOptions::default()).await?
            }
            LeafWord::Pmem(path) => {
                let options = OpenOptions { mapped: true, ..OpenOptions::default() };
                self.open_patiently(&path, &word, options).await?
            }
        };
        leaf.stats().wake_on_failure(self.0.failure_alarm.clone());
        let mut open = self.0.open.borrow_mut();
        // Not at each one: a table opens as many as it has lines.
        if open.len() >= self.0.prune_at.get() {
            open.retain(|one| one.leaf.strong_count() > 0);
            self.0.prune_at.set(2 * open.len() + CLOSED_MAX);
        }
        let id = self.0.next_id.replace(self.0.next_id.get() + 1);
        open.push(Entry { id, key, place, leaf: Rc::downgrade(&leaf) });
        Ok(leaf)
    }

    pub(crate) fn files(&self) -> Result<&Files, Error> {
        let hint = "sockets and files need io_uring; without it mem:SIZE and null:SIZE are allowed";
        self.0.files.as_ref().ok_or_else(|| Error::new(ErrorKind::NotSupported, hint))
    }

    /// The open leaf on the same file that is mapped where this one is not, or the reverse.
    async fn opened_in_other_mode(&self, path: &Path, mapped: bool) -> Option<Rc<dyn Leaf>> {
        let path = path.to_string_lossy();
        let other = if mapped { path.into_owned() } else { format!("{PMEM}{path}") };
        self.find(&other).await.ok().flatten()
    }

    /// The throttle of the open leaves on this disk, which has one queue.
    fn wbt_of_disk(&self, disk: Option<&str>) -> Option<SharedWbt> {
        let disk = disk?;
        self.0.open.borrow().iter().find_map(|entry| {
            let leaf =
                entry.leaf.upgrade().filter(|_| entry.place.disk.as_deref() == Some(disk))?;
            Some(leaf.wbt()?.shared())
        })
    }

    /// HO-LF1: waits for what a process has that was killed.
    async fn open_patiently(
        &self,
        path: &Path,
        word: &str,
        options: OpenOptions,
    ) -> Result<(Rc<dyn Leaf>, String, Place), Error> {
        let open = async || self.open_path(path, word, options).await;
        let owner = async || {
            let to = path.to_owned();
            let look = self.on_helper(word, move || Ok(LockOwner::of(&to)));
            look.await.unwrap_or(LockOwner::Unknown)
        };
        self.0.patience.get().retry(open, owner).await
    }

    async fn open_path(
        &self,
        path: &Path,
        word: &str,
        options: OpenOptions,
    ) -> Result<(Rc<dyn Leaf>, String, Place), Error> {
        let (files, own) = (self.files()?, self.own_mount());
        let refuse = move |path: &Path| own.refuse(path);
        let opened = match files.open(path, options, refuse.clone()).await {
            // As a loop device does of a file that can only be read.
            Err(e) if e.kind() == ErrorKind::Denied && !options.mapped => {
                let for_reads = OpenOptions { read_only: true, ..options };
                files.open(path, for_reads, refuse).await.map_err(|_| e)
            }
            opened => opened,
        };
        let opened = match opened {
            Err(e) if e.kind() == ErrorKind::Busy => {
                let other = self.opened_in_other_mode(path, options.mapped).await;
                return Err(other.map_or(e, |other| {
                    Error::busy(format!(
                        "{word}: it is open as {}: a file is persistent memory ({PMEM}PATH, and \
                         the cache of a writecache in mode p) or an ordinary one, in all tables",
                        other.name()
                    ))
                }));
            }
            opened => opened?,
        };
        if let Some(warning) = opened.warning {
            tracing::warn!(path = %path.display(), "{warning}");
            self.0.warnings.borrow_mut().push(warning);
        }
        if opened.read_only {
            self.warn(format!("{word}: it takes no writes: devices over it are read-only"));
        }
        if opened.unserved_bytes > 0 {
            self.warn(format!(
                "{word}: its last {} bytes are not served: they are no whole block of {}",
                opened.unserved_bytes, opened.limits.logical_block_bytes
            ));
        }
        let prefix = if options.mapped { PMEM } else { "" };
        let name = format!("{prefix}{}", path.to_string_lossy());
        let key = format!("{prefix}{}", opened.identity);
        // Persistent memory has no queue.
        let disk = opened.disk.filter(|_| !options.mapped);
        let leaf = match self.wbt_of_disk(disk.as_deref()) {
            Some(wbt) => FileLeaf::with_wbt(name, opened.file, opened.limits, &wbt),
            None => FileLeaf::new(name, opened.file, opened.limits),
        };
        let leaf = leaf.with_identity(opened.persistent_identity).closed_by(closer(files));
        let leaf = leaf.with_read_only(opened.read_only).with_backing(opened.backing);
        let leaf = leaf.finding_holes(holes::finder(files, opened.file, path));
        let leaf = if opened.in_page_cache { leaf.in_page_cache() } else { leaf };
        let place = Place { disk, lost_when: opened.in_memory.then_some("the machine stops") };
        Ok((with_merges(leaf), key, place))
    }
}

impl Resolver for Leaves {
    fn canonical(&self, word: &str) -> LocalFuture<Result<String, Error>> {
        let (leaves, word) = (self.clone(), word.to_owned());
        Box::pin(async move { leaves.key(&word).await })
    }

    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let (leaves, word) = (self.clone(), word.to_owned());
        Box::pin(async move { Ok(leaves.open_word(word).await? as Rc<dyn BlockDevice>) })
    }

    fn has_block_device(&self, path: &str) -> LocalFuture<bool> {
        let (leaves, path) = (self.clone(), PathBuf::from(path));
        Box::pin(async move {
            let what = path.display().to_string();
            let is_there = move || {
                let metadata = std::fs::metadata(path);
                Ok(metadata.is_ok_and(|file| file.file_type().is_block_device()))
            };
            leaves.on_helper(&what, is_there).await.unwrap_or(false)
        })
    }

    fn read_size(&self, device: &Rc<dyn BlockDevice>) -> LocalFuture<Result<(), Error>> {
        let opened = self.opened().into_iter().find(|leaf| same_device(leaf, device));
        let files = self.0.files.clone();
        Box::pin(async move {
            let (Some(leaf), Some(files)) = (opened, files) else { return Ok(()) };
            let Some(file) = leaf.file() else { return Ok(()) };
            if let Some(now) = files.capacity(file, leaf.name()).await? {
                let block = Sector::from_bytes(leaf.limits().write_unit_bytes().into());
                let capacity = Sector(now.0 / block.0 * block.0);
                leaf.set_capacity(capacity);
                files.keep_capacity(file, capacity);
            }
            Ok(())
        })
    }
}

block::debug_as!(Leaves, s => "Leaves({} open)", s.opened().len());
