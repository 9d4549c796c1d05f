// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves: what tables name besides mapped devices. Paths, `pmem:PATH`, `nbd://HOST/EXPORT`,
//! `mem:SIZE` and `null:SIZE`.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{
    Base, Bio, BlockDevice, Error, ErrorKind, Limits, LocalFuture, Nanos, OnFault, Ram, Sector,
};
use dm::Resolver;
use nbd::client::Client;
use queue::wbt::{SharedWbt, Wbt};
use queue::{Elsewhere, Leaf, Mem, MergingLeaf, Null, SharedLosses, Stats};
use reactor::WaitList;
use uring::{Files, OpenOptions, SharedFile};

use crate::file_leaf::{FileLeaf, Place};
use crate::patience::patiently;
use crate::word::{OwnMount, PMEM, Word, parse};

/// An open leaf. Dropping the last reference closes it, when requests that it merges have ended.
pub(crate) enum OpenLeaf {
    File(FileLeaf),
    /// A file whose blocks are larger than sectors.
    MergingFile(MergingLeaf<FileLeaf>),
    Nbd(Client),
    /// An export whose smallest request is larger than a sector.
    MergingNbd(MergingLeaf<Client>),
    Mem(Mem),
    Null(Null),
}

impl OpenLeaf {
    fn on_file(file: FileLeaf) -> OpenLeaf {
        match MergingLeaf::<FileLeaf>::is_needed(&file.limits()) {
            true => OpenLeaf::MergingFile(MergingLeaf::new(file)),
            false => OpenLeaf::File(file),
        }
    }

    fn on_export(client: Client) -> OpenLeaf {
        match MergingLeaf::<Client>::is_needed(&client.limits()) {
            true => OpenLeaf::MergingNbd(MergingLeaf::new(client)),
            false => OpenLeaf::Nbd(client),
        }
    }

    fn file(&self) -> Option<&FileLeaf> {
        match self {
            OpenLeaf::File(file) => Some(file),
            OpenLeaf::MergingFile(merging) => Some(merging.leaf()),
            OpenLeaf::Nbd(_) | OpenLeaf::MergingNbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => {
                None
            }
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        match self {
            OpenLeaf::File(file) => file.leaf.stats(),
            OpenLeaf::MergingFile(merging) => merging.leaf().leaf.stats(),
            OpenLeaf::Nbd(client) => client.stats(),
            OpenLeaf::MergingNbd(merging) => merging.leaf().stats(),
            OpenLeaf::Mem(mem) => mem.stats(),
            OpenLeaf::Null(null) => null.stats(),
        }
    }

    /// The throttle of its writeback; nothing in memory, where nothing queues, and at a server,
    /// which has its own.
    pub(crate) fn wbt(&self) -> Option<&Wbt> {
        self.file().map(|file| file.leaf.wbt())
    }

    /// Whether it takes no writes.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            OpenLeaf::Nbd(client) => client.is_read_only(),
            OpenLeaf::MergingNbd(merging) => merging.leaf().is_read_only(),
            OpenLeaf::File(_) | OpenLeaf::MergingFile(_) => false,
            OpenLeaf::Mem(_) | OpenLeaf::Null(_) => false,
        }
    }

    /// When what it holds is gone, if it is on no disk.
    pub(crate) fn lasts_until(&self) -> Option<&'static str> {
        if let OpenLeaf::Mem(_) = self {
            return Some("the daemon ends");
        }
        self.file()?.place.in_memory.then_some("the machine stops")
    }

    /// Whether it is in memory: its bios end as they are submitted.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, OpenLeaf::Mem(_) | OpenLeaf::Null(_))
    }

    /// Whether it merges parts of blocks: then all who write parts must do so here.
    fn merges(&self) -> bool {
        matches!(self, OpenLeaf::MergingFile(_) | OpenLeaf::MergingNbd(_))
    }
}

impl BlockDevice for OpenLeaf {
    fn name(&self) -> &str {
        self.stats().device()
    }

    fn limits(&self) -> Limits {
        match self {
            OpenLeaf::File(file) => file.limits(),
            OpenLeaf::MergingFile(merging) => merging.limits(),
            OpenLeaf::Nbd(client) => client.limits(),
            OpenLeaf::MergingNbd(merging) => merging.limits(),
            OpenLeaf::Mem(mem) => mem.limits(),
            OpenLeaf::Null(null) => null.limits(),
        }
    }

    fn submit(&self, bio: Bio) {
        match self {
            OpenLeaf::File(file) => file.submit(bio),
            OpenLeaf::MergingFile(merging) => merging.submit(bio),
            OpenLeaf::Nbd(client) => client.submit(bio),
            OpenLeaf::MergingNbd(merging) => merging.submit(bio),
            OpenLeaf::Mem(mem) => mem.submit(bio),
            OpenLeaf::Null(null) => null.submit(bio),
        }
    }

    fn identity(&self) -> Option<String> {
        // What is in memory ends with the program; what a server has behind a name may change.
        self.file()?.identity()
    }

    fn dirtier_waited(&self) {
        // The others have no queue.
        if let Some(file) = self.file() {
            file.dirtier_waited();
        }
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for OpenLeaf {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        match self {
            OpenLeaf::File(file) => file.leaf.submit_at(sector, bio),
            OpenLeaf::MergingFile(merging) => merging.submit_at(sector, bio),
            OpenLeaf::Nbd(client) => client.submit_at(sector, bio),
            OpenLeaf::MergingNbd(merging) => merging.submit_at(sector, bio),
            OpenLeaf::Mem(mem) => mem.submit_at(sector, bio),
            OpenLeaf::Null(null) => null.submit_at(sector, bio),
        }
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move {
            match &*self {
                OpenLeaf::MergingFile(merging) => merging.quiesced().await,
                OpenLeaf::MergingNbd(merging) => merging.quiesced().await,
                // Nothing is ever in flight in memory: a bio ends as it is submitted.
                OpenLeaf::File(_) | OpenLeaf::Nbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => {
                    self.stats().grace().passed().await;
                }
            }
        })
    }

    fn watch(&self, watcher: Weak<dyn OnFault>) {
        self.stats().watch(watcher);
    }
}

impl Drop for OpenLeaf {
    fn drop(&mut self) {
        // Another core that looks for news seldom may have it still, but not what is in it. Files
        // are closed, and clients say goodbye, by themselves.
        if let OpenLeaf::Mem(mem) = self
            && Arc::strong_count(mem.ram()) > 1
        {
            mem.ram().punch(0..mem.ram().len());
        }
    }
}

/// An open leaf on its way to another core: the same file, the same memory.
#[derive(Clone, Debug)]
pub(crate) struct SharedLeaf {
    /// The same for the same open leaf only.
    pub(crate) id: u64,
    name: String,
    limits: Limits,
    what: What,
    /// Where what is done elsewhere is counted.
    elsewhere: Elsewhere,
}

#[derive(Clone, Debug)]
enum What {
    /// With the throttle of its writeback, and what its file has lost: one for all cores.
    File(SharedFile, SharedWbt, SharedLosses),
    Mem(Arc<Ram>),
    Null,
}

/// A leaf that another core has opened. Dropping it ends only this core's use.
pub(crate) enum Adopted {
    File(Rc<OpenLeaf>),
    Mem(Rc<Mem>),
    Null(Rc<Null>),
}

impl SharedLeaf {
    /// Whether its bios end as they are submitted.
    pub(crate) fn is_in_memory(&self) -> bool {
        match &self.what {
            What::File(..) => false,
            What::Mem(_) | What::Null => true,
        }
    }

    /// The leaf on this core.
    pub(crate) fn adopt(&self, files: &Files) -> Adopted {
        let adopted = match &self.what {
            What::File(file, wbt, losses) => {
                let (file, limits) = (files.adopt(file), self.limits.clone());
                let leaf = Leaf::on_same_file(&self.name, file, limits, wbt, losses);
                let (files, place) = (files.clone(), Place::default());
                Adopted::File(Rc::new(OpenLeaf::File(FileLeaf { leaf, files, place })))
            }
            What::Mem(ram) => Adopted::Mem(Rc::new(Mem::on(&self.name, ram.clone()))),
            What::Null => Adopted::Null(Rc::new(Null::new(&self.name, self.limits.capacity))),
        };
        adopted.stats().stand_for(&self.elsewhere);
        adopted
    }
}

impl Adopted {
    fn stats(&self) -> &Stats {
        match self {
            Adopted::File(leaf) => leaf.stats(),
            Adopted::Mem(mem) => mem.stats(),
            Adopted::Null(null) => null.stats(),
        }
    }

    pub(crate) fn base(&self) -> Rc<dyn Base> {
        match self {
            Adopted::File(leaf) => leaf.clone(),
            Adopted::Mem(mem) => mem.clone(),
            Adopted::Null(null) => null.clone(),
        }
    }

    /// Requests that have entered and not ended.
    pub(crate) fn in_flight(&self) -> u64 {
        match self {
            Adopted::File(leaf) => leaf.stats().in_flight(),
            Adopted::Mem(mem) => mem.stats().in_flight(),
            Adopted::Null(null) => null.stats().in_flight(),
        }
    }

    /// Whether only this has it.
    pub(crate) fn is_unused(&self) -> bool {
        1 == match self {
            Adopted::File(leaf) => Rc::strong_count(leaf),
            Adopted::Mem(mem) => Rc::strong_count(mem),
            Adopted::Null(null) => Rc::strong_count(null),
        }
    }
}

/// Opens leaves, and remembers which are open and what there was to say about them. Clones are the
/// same.
#[derive(Clone)]
pub(crate) struct Leaves(Rc<Shared>);

/// An open leaf, or one that was.
struct One {
    id: u64,
    /// The same for two words exactly when they mean the same.
    key: String,
    leaf: Weak<OpenLeaf>,
}

struct Shared {
    /// Absent where there is no io_uring: then only what is in memory can be opened.
    files: Option<Files>,
    open: RefCell<Vec<One>>,
    /// From how many on those that are closed are looked for.
    tidy_at: Cell<usize>,
    next_id: Cell<u64>,
    warnings: RefCell<Vec<String>>,
    patience: Cell<Nanos>,
    alarm: Rc<WaitList>,
    /// Where our own devices are files: to open one there would be to wait for oneself.
    own_mount: RefCell<Option<PathBuf>>,
}

/// Fewer leaves than this are kept in the list after they are closed.
const CLOSED_MAX: usize = 64;
/// Device failures are told at most this often.
const TELL_EVERY: Nanos = Nanos::from_secs(1);

impl Leaves {
    pub(crate) fn new(files: Files) -> Leaves {
        Leaves::with(Some(files))
    }

    /// Leaves of a core without files: `mem:` and `null:` only.
    pub(crate) fn in_memory() -> Leaves {
        Leaves::with(None)
    }

    fn with(files: Option<Files>) -> Leaves {
        Leaves(Rc::new(Shared {
            files,
            open: RefCell::default(),
            tidy_at: Cell::new(CLOSED_MAX),
            next_id: Cell::new(0),
            warnings: RefCell::default(),
            patience: Cell::new(Nanos::ZERO),
            alarm: Rc::default(),
            own_mount: RefCell::default(),
        }))
    }

    /// A task: logs what devices fail, with operation, sector and cause, a line a device a second.
    pub(crate) async fn tell_failures(self) {
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            let news = |told: &BTreeMap<String, u64>| -> Vec<Rc<OpenLeaf>> {
                let seen = |l: &OpenLeaf| told.get(l.name()).copied().unwrap_or(0);
                self.opened().into_iter().filter(|l| l.stats().failures() > seen(l)).collect()
            };
            self.0.alarm.wait_for(|| !news(&told).is_empty()).await;
            for leaf in news(&told) {
                let failures = leaf.stats().failures();
                if let Some(e) = leaf.stats().last_error() {
                    let (op, sector, cause) = (e.op, e.sector, e.cause);
                    tracing::error!(device = e.device, %op, %sector, %cause, failures, "failed");
                }
                told.insert(leaf.name().to_owned(), failures);
            }
            reactor::sleep(TELL_EVERY).await;
            told.retain(|name, _| self.opened().iter().any(|l| l.name() == name));
        }
    }

    /// The leaves that are open now.
    pub(crate) fn opened(&self) -> Vec<Rc<OpenLeaf>> {
        self.0.open.borrow().iter().filter_map(|one| one.leaf.upgrade()).collect()
    }

    /// The leaf that is this base, for other cores; nothing when it is none, and when it merges:
    /// that is done on this core only, and the others send their bios here.
    pub(crate) fn share(&self, base: &Rc<dyn Base>) -> Option<SharedLeaf> {
        let merges = self
            .opened()
            .iter()
            .any(|leaf| leaf.merges() && std::ptr::addr_eq(Rc::as_ptr(leaf), Rc::as_ptr(base)));
        if merges { None } else { self.share_blocks(base) }
    }

    /// The same for who writes whole blocks, and no others' blocks: there a leaf that merges is one
    /// that takes nothing smaller.
    pub(crate) fn share_blocks(&self, base: &Rc<dyn Base>) -> Option<SharedLeaf> {
        let open = self.0.open.borrow();
        let found = open.iter().find(|one| std::ptr::addr_eq(one.leaf.as_ptr(), Rc::as_ptr(base)));
        let (id, leaf) = found.and_then(|one| Some((one.id, one.leaf.upgrade()?)))?;
        let (what, limits) = match (&*leaf, leaf.file()) {
            (_, Some(FileLeaf { leaf, files, .. })) => {
                let file = files.share(leaf.file())?;
                (What::File(file, leaf.shared_wbt(), leaf.shared_losses()), leaf.limits())
            }
            (OpenLeaf::Mem(mem), _) => (What::Mem(mem.ram().clone()), mem.limits()),
            (OpenLeaf::Null(null), _) => (What::Null, null.limits()),
            // A connection is its core's: the others send their bios there.
            _ => return None,
        };
        let elsewhere = leaf.stats().elsewhere();
        let name = leaf.name().to_owned();
        Some(SharedLeaf { id, name, limits, what, elsewhere })
    }

    /// The open leaf that was shared with this id.
    pub(crate) fn by_id(&self, id: u64) -> Option<Rc<OpenLeaf>> {
        self.0.open.borrow().iter().find(|one| one.id == id)?.leaf.upgrade()
    }

    /// The open leaf that a table's word means.
    pub(crate) async fn find(&self, word: &str) -> Result<Option<Rc<OpenLeaf>>, Error> {
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
            Ok(Word::Path(path)) => (path, ""),
            Ok(Word::Pmem(path)) => (path, PMEM),
            Ok(Word::Nbd(uri)) => return Ok(uri.canonical()),
            Ok(Word::Mem(_) | Word::Null(_)) | Err(_) => return Ok(word.into()),
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

    /// Runs `work`, which may wait for a file system, where no device waits for it. `what` is said
    /// when it takes too long.
    pub(crate) async fn away<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        match &self.0.files {
            Some(files) => files.away(what, work).await,
            // No daemon: nobody else waits.
            None => work(),
        }
    }

    /// What was to say about leaves opened since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.0.warnings.take()
    }

    /// Something to say with the answer to the request that is under way.
    pub(crate) fn warn(&self, warning: String) {
        tracing::warn!("{warning}");
        self.0.warnings.borrow_mut().push(warning);
    }

    /// How long to wait from now on for what is in use.
    pub(crate) fn set_patience(&self, patience: Nanos) {
        self.0.patience.set(patience);
    }

    /// Refuses paths below `dir` from now on.
    pub(crate) fn set_own_mount(&self, dir: Option<PathBuf>) {
        self.0.own_mount.replace(dir);
    }

    /// Where our own devices are files.
    pub(crate) fn own_mount(&self) -> OwnMount {
        OwnMount(self.0.own_mount.borrow().clone())
    }

    async fn open_word(self, word: String) -> Result<Rc<OpenLeaf>, Error> {
        let (leaf, key) = match parse(&word)? {
            Word::Mem(capacity) => (OpenLeaf::Mem(Mem::new(&*word, capacity)?), word),
            Word::Null(capacity) => (OpenLeaf::Null(Null::new(&*word, capacity)), word),
            Word::Nbd(uri) => {
                let key = uri.canonical();
                (OpenLeaf::on_export(uri.open(word, self.files()?.clone()).await?), key)
            }
            Word::Path(path) => {
                let options = OpenOptions::default();
                let open = async || self.open_path(&path, &word, options).await;
                patiently(self.0.patience.get(), open).await?
            }
            Word::Pmem(path) => {
                let options = OpenOptions { mapped: true, ..OpenOptions::default() };
                let open = async || self.open_path(&path, &word, options).await;
                patiently(self.0.patience.get(), open).await?
            }
        };
        leaf.stats().set_alarm(self.0.alarm.clone());
        let leaf = Rc::new(leaf);
        let mut open = self.0.open.borrow_mut();
        // Not at each one: a table may open as many as it has lines.
        if open.len() >= self.0.tidy_at.get() {
            open.retain(|one| one.leaf.strong_count() > 0);
            self.0.tidy_at.set(2 * open.len() + CLOSED_MAX);
        }
        let id = self.0.next_id.replace(self.0.next_id.get() + 1);
        open.push(One { id, key, leaf: Rc::downgrade(&leaf) });
        Ok(leaf)
    }

    fn files(&self) -> Result<&Files, Error> {
        let hint = "sockets and files need io_uring; without it mem:SIZE and null:SIZE are allowed";
        self.0.files.as_ref().ok_or_else(|| Error::new(ErrorKind::NotSupported, hint))
    }

    /// The leaf that is the same file, opened in the other way.
    async fn opened_otherwise(&self, path: &Path, mapped: bool) -> Option<Rc<OpenLeaf>> {
        let path = path.to_string_lossy();
        let other = if mapped { path.into_owned() } else { format!("{PMEM}{path}") };
        self.find(&other).await.ok().flatten()
    }

    /// The throttle of the open leaves on this disk: it has one queue.
    fn wbt_of_disk(&self, disk: Option<&str>) -> Option<SharedWbt> {
        let disk = disk?;
        self.opened().iter().find_map(|leaf| {
            let file = leaf.file().filter(|file| file.place.disk.as_deref() == Some(disk))?;
            Some(file.leaf.shared_wbt())
        })
    }

    async fn open_path(
        &self,
        path: &Path,
        word: &str,
        options: OpenOptions,
    ) -> Result<(OpenLeaf, String), Error> {
        let (files, own) = (self.files()?, self.own_mount());
        let opened = match files.open(path, options, move |path| own.refuse(path)).await {
            Err(e) if e.kind() == ErrorKind::Busy => {
                let other = self.opened_otherwise(path, options.mapped).await;
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
        let prefix = if options.mapped { PMEM } else { "" };
        let name = format!("{prefix}{}", path.to_string_lossy());
        let key = format!("{prefix}{}", opened.identity);
        // Persistent memory has no queue.
        let disk = opened.disk.filter(|_| !options.mapped);
        let leaf = match self.wbt_of_disk(disk.as_deref()) {
            Some(wbt) => Leaf::with_wbt(name, opened.file, opened.limits, &wbt),
            None => Leaf::new(name, opened.file, opened.limits),
        };
        let leaf = leaf.with_identity(opened.lasting_identity);
        let place = Place { disk, in_memory: opened.in_memory };
        Ok((OpenLeaf::on_file(FileLeaf { leaf, files: files.clone(), place }), key))
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
}

impl fmt::Debug for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leaves({} open)", self.opened().len())
    }
}
