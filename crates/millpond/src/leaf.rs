// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves: what tables name besides mapped devices. Paths, `pmem:PATH`, `nbd://HOST/EXPORT`,
//! `mem:SIZE` and `null:SIZE`.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Error as IoError, ErrorKind as IoKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{
    Base, Bio, BlockDevice, Error, ErrorKind, Limits, LocalFuture, Nanos, OnFault, Ram, Sector,
};
use dm::Resolver;
use nbd::client::Client;
use queue::wbt::{SharedWbt, Wbt};
use queue::{Elsewhere, Leaf, Mem, Null, Stats};
use reactor::WaitList;
use uring::{Files, OpenOptions, SharedFile};

use crate::nbd_leaf::{NbdUri, is_nbd};
use crate::patience::patiently;

/// An open leaf. Dropping the last reference closes it.
pub(crate) enum OpenLeaf {
    /// With the disk that it lies on, where that is known.
    File(Leaf, Files, Option<String>),
    Nbd(Client),
    Mem(Mem),
    Null(Null),
}

impl OpenLeaf {
    pub(crate) fn stats(&self) -> &Stats {
        match self {
            OpenLeaf::File(leaf, ..) => leaf.stats(),
            OpenLeaf::Nbd(client) => client.stats(),
            OpenLeaf::Mem(mem) => mem.stats(),
            OpenLeaf::Null(null) => null.stats(),
        }
    }

    /// The throttle of its writeback; nothing in memory, where nothing queues, and at a server,
    /// which has its own.
    pub(crate) fn wbt(&self) -> Option<&Wbt> {
        match self {
            OpenLeaf::File(leaf, ..) => Some(leaf.wbt()),
            OpenLeaf::Nbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => None,
        }
    }

    /// Whether it takes no writes.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, OpenLeaf::Nbd(client) if client.is_read_only())
    }

    /// Whether it is in memory: its bios end as they are submitted.
    pub(crate) fn is_in_memory(&self) -> bool {
        match self {
            OpenLeaf::File(..) | OpenLeaf::Nbd(_) => false,
            OpenLeaf::Mem(_) | OpenLeaf::Null(_) => true,
        }
    }
}

impl BlockDevice for OpenLeaf {
    fn name(&self) -> &str {
        self.stats().device()
    }

    fn limits(&self) -> Limits {
        match self {
            OpenLeaf::File(leaf, ..) => leaf.limits(),
            OpenLeaf::Nbd(client) => client.limits(),
            OpenLeaf::Mem(mem) => mem.limits(),
            OpenLeaf::Null(null) => null.limits(),
        }
    }

    fn submit(&self, bio: Bio) {
        match self {
            OpenLeaf::File(leaf, ..) => leaf.submit(bio),
            OpenLeaf::Nbd(client) => client.submit(bio),
            OpenLeaf::Mem(mem) => mem.submit(bio),
            OpenLeaf::Null(null) => null.submit(bio),
        }
    }

    fn identity(&self) -> Option<String> {
        match self {
            OpenLeaf::File(leaf, ..) => leaf.identity(),
            // What is in memory ends with the program; what a server has behind a name may change.
            OpenLeaf::Nbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => None,
        }
    }

    fn dirtier_waited(&self) {
        match self {
            OpenLeaf::File(leaf, ..) => leaf.dirtier_waited(),
            OpenLeaf::Nbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => {} // no queue
        }
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for OpenLeaf {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        match self {
            OpenLeaf::File(leaf, ..) => leaf.submit_at(sector, bio),
            OpenLeaf::Nbd(client) => client.submit_at(sector, bio),
            OpenLeaf::Mem(mem) => mem.submit_at(sector, bio),
            OpenLeaf::Null(null) => null.submit_at(sector, bio),
        }
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        // Nothing is ever in flight on the others: a bio ends as it is submitted.
        Box::pin(async move { self.stats().grace().passed().await })
    }

    fn watch(&self, watcher: Weak<dyn OnFault>) {
        self.stats().watch(watcher);
    }
}

impl Drop for OpenLeaf {
    fn drop(&mut self) {
        match self {
            OpenLeaf::File(leaf, files, _) => files.close(leaf.file()),
            // Another core that looks for news seldom may have it still, but not what is in it.
            OpenLeaf::Mem(mem) if Arc::strong_count(mem.ram()) > 1 => {
                mem.ram().punch(0..mem.ram().len());
            }
            // A client says goodbye by itself.
            OpenLeaf::Nbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => {}
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
    /// With the throttle of its writeback: one for all cores.
    File(SharedFile, SharedWbt),
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
            What::File(file, wbt) => {
                let (file, limits) = (files.adopt(file), self.limits.clone());
                let leaf = Leaf::with_wbt(&self.name, file, limits, wbt);
                Adopted::File(Rc::new(OpenLeaf::File(leaf, files.clone(), None)))
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

struct Shared {
    /// Absent where there is no io_uring: then only what is in memory can be opened.
    files: Option<Files>,
    open: RefCell<Vec<(u64, Weak<OpenLeaf>)>>,
    next_id: Cell<u64>,
    warnings: RefCell<Vec<String>>,
    patience: Cell<Nanos>,
    alarm: Rc<WaitList>,
    /// Where our own devices are files: to open one there would be to wait for oneself.
    own_mount: RefCell<Option<PathBuf>>,
}

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
        self.0.open.borrow().iter().filter_map(|(_, leaf)| leaf.upgrade()).collect()
    }

    /// The leaf that is this base, for other cores; nothing when it is none.
    pub(crate) fn share(&self, base: &Rc<dyn Base>) -> Option<SharedLeaf> {
        let open = self.0.open.borrow();
        let found =
            open.iter().find(|(_, leaf)| std::ptr::addr_eq(leaf.as_ptr(), Rc::as_ptr(base)));
        let (id, leaf) = found.and_then(|(id, leaf)| Some((*id, leaf.upgrade()?)))?;
        let what = match &*leaf {
            OpenLeaf::File(leaf, files, _) => {
                What::File(files.share(leaf.file())?, leaf.shared_wbt())
            }
            // A connection is its core's: the others send their bios there.
            OpenLeaf::Nbd(_) => return None,
            OpenLeaf::Mem(mem) => What::Mem(mem.ram().clone()),
            OpenLeaf::Null(_) => What::Null,
        };
        let elsewhere = leaf.stats().elsewhere();
        let (name, limits) = (leaf.name().to_owned(), leaf.limits());
        Some(SharedLeaf { id, name, limits, what, elsewhere })
    }

    /// The open leaf that was shared with this id.
    pub(crate) fn by_id(&self, id: u64) -> Option<Rc<OpenLeaf>> {
        self.0.open.borrow().iter().find(|(i, _)| *i == id)?.1.upgrade()
    }

    /// The open leaf that a table's word means.
    pub(crate) fn find(&self, word: &str) -> Option<Rc<OpenLeaf>> {
        let (open, same) = (self.opened(), self.canonical(word));
        let named = open.iter().find(|leaf| leaf.name() == word);
        named.or_else(|| open.iter().find(|leaf| self.canonical(leaf.name()) == same)).cloned()
    }

    /// What was to say about leaves opened since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.0.warnings.take()
    }

    /// How long to wait from now on for what is in use.
    pub(crate) fn set_patience(&self, patience: Nanos) {
        self.0.patience.set(patience);
    }

    /// Refuses paths below `dir` from now on.
    pub(crate) fn set_own_mount(&self, dir: Option<PathBuf>) {
        self.0.own_mount.replace(dir);
    }

    fn is_own(&self, path: &Path) -> bool {
        self.0.own_mount.borrow().as_ref().is_some_and(|dir| crate::fuse::leads_into(path, dir))
    }

    /// Whether `word` can be opened, as far as a look at it tells. Errors: `ENXIO` when there is no
    /// such file, `EINVAL` when it is of another sort or empty, `EACCES` when it can't be written.
    pub(crate) fn look(&self, word: &str) -> Result<(), Error> {
        let parsed = parse(word)?;
        let (Word::Path(path) | Word::Pmem(path)) = &parsed else { return Ok(()) };
        self.check_path(word.strip_prefix(PMEM).unwrap_or(word))?;
        let shown = path.display();
        let meta = std::fs::metadata(path).map_err(|e| file_error(&e, word))?;
        if meta.is_file() && meta.len() == 0 {
            return Err(Error::invalid(format!("{shown}: it is empty: give it its size first")));
        }
        // What a DAX device is shows when it is opened.
        let may_be_dax = matches!(parsed, Word::Pmem(_)) && meta.file_type().is_char_device();
        if !meta.is_file() && !meta.file_type().is_block_device() && !may_be_dax {
            let wanted = "neither a regular file nor a block device";
            return Err(Error::invalid(format!("{shown}: is {wanted}")));
        }
        let access = rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
        access.map_err(|e| file_error(&e.into(), word))
    }

    /// Refuses paths that can't be looked at: into our own mount, and relative ones, which mean
    /// something else to whoever has written them.
    pub(crate) fn check_path(&self, path: &str) -> Result<(), Error> {
        let path = Path::new(path);
        if !path.is_absolute() {
            let e = format!("{}: a path must begin with a slash here", path.display());
            return Err(Error::invalid(e));
        }
        if self.is_own(path) {
            let hint = "this daemon serves this file: name the device instead of it";
            return Err(Error::invalid(format!("{}: {hint}", path.display())));
        }
        Ok(())
    }

    async fn open_word(self, word: String) -> Result<Rc<OpenLeaf>, Error> {
        let leaf = match parse(&word)? {
            Word::Mem(capacity) => OpenLeaf::Mem(Mem::new(word, capacity)?),
            Word::Null(capacity) => OpenLeaf::Null(Null::new(word, capacity)),
            Word::Nbd(uri) => OpenLeaf::Nbd(uri.open(word, self.files()?.clone()).await?),
            Word::Path(path) => {
                let options = OpenOptions::default();
                let open = || self.open_path(&path, &word, options);
                patiently(self.0.patience.get(), open).await?
            }
            Word::Pmem(path) => {
                let options = OpenOptions { mapped: true, ..OpenOptions::default() };
                let open = || self.open_path(&path, &word, options);
                patiently(self.0.patience.get(), open).await?
            }
        };
        leaf.stats().set_alarm(self.0.alarm.clone());
        let leaf = Rc::new(leaf);
        let mut open = self.0.open.borrow_mut();
        open.retain(|(_, leaf)| leaf.strong_count() > 0);
        let id = self.0.next_id.replace(self.0.next_id.get() + 1);
        open.push((id, Rc::downgrade(&leaf)));
        Ok(leaf)
    }

    fn files(&self) -> Result<&Files, Error> {
        let hint = "sockets and files need io_uring; without it mem:SIZE and null:SIZE are allowed";
        self.0.files.as_ref().ok_or_else(|| Error::new(ErrorKind::NotSupported, hint))
    }

    /// The leaf that is the same file, opened in the other way.
    fn opened_otherwise(&self, path: &Path, mapped: bool) -> Option<Rc<OpenLeaf>> {
        let path = path.to_string_lossy();
        self.find(&if mapped { path.into_owned() } else { format!("{PMEM}{path}") })
    }

    /// The throttle of the open leaves on this disk: it has one queue.
    fn wbt_of_disk(&self, disk: Option<&str>) -> Option<SharedWbt> {
        let disk = disk?;
        self.opened().iter().find_map(|leaf| match &**leaf {
            OpenLeaf::File(leaf, _, on) if on.as_deref() == Some(disk) => Some(leaf.shared_wbt()),
            OpenLeaf::File(..) | OpenLeaf::Nbd(_) | OpenLeaf::Mem(_) | OpenLeaf::Null(_) => None,
        })
    }

    fn open_path(&self, path: &Path, word: &str, options: OpenOptions) -> Result<OpenLeaf, Error> {
        if self.is_own(path) {
            let hint = "this daemon serves this file: name the device instead of it";
            return Err(Error::invalid(hint));
        }
        let files = self.files()?;
        let opened = files.open_path(path, options).map_err(|e| {
            match self.opened_otherwise(path, options.mapped) {
                Some(other) if e.kind() == ErrorKind::Busy => Error::busy(format!(
                    "{word}: it is open as {}: a file is persistent memory ({PMEM}PATH, and the \
                     cache of a writecache in mode p) or an ordinary one, in all tables",
                    other.name()
                )),
                _ => e,
            }
        })?;
        if let Some(warning) = opened.warning {
            tracing::warn!(path = %path.display(), "{warning}");
            self.0.warnings.borrow_mut().push(warning);
        }
        let prefix = if options.mapped { PMEM } else { "" };
        let name = format!("{prefix}{}", path.to_string_lossy());
        // Persistent memory has no queue.
        let disk = opened.disk.filter(|_| !options.mapped);
        let leaf = match self.wbt_of_disk(disk.as_deref()) {
            Some(wbt) => Leaf::with_wbt(name, opened.file, opened.limits, &wbt),
            None => Leaf::new(name, opened.file, opened.limits),
        };
        let leaf = leaf.with_identity(opened.lasting_identity);
        Ok(OpenLeaf::File(leaf, files.clone(), disk))
    }
}

impl Resolver for Leaves {
    fn canonical(&self, word: &str) -> String {
        match (parse(word), &self.0.files) {
            (Ok(Word::Path(path)), Some(files)) if !self.is_own(&path) => {
                files.identity(&path).unwrap_or_else(|_| word.into())
            }
            (Ok(Word::Pmem(path)), Some(files)) if !self.is_own(&path) => {
                let same = files.identity(&path);
                same.map_or_else(|_| word.into(), |same| format!("{PMEM}{same}"))
            }
            (Ok(Word::Nbd(uri)), _) => uri.canonical(),
            _ => word.into(),
        }
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

/// An error of the system about a file that a user has named.
pub(crate) fn file_error(e: &IoError, path: &str) -> Error {
    let known = [
        (IoKind::NotFound, ErrorKind::NoFile),
        (IoKind::NotADirectory, ErrorKind::NoFile),
        (IoKind::PermissionDenied, ErrorKind::Denied),
        (IoKind::ReadOnlyFilesystem, ErrorKind::Denied),
    ];
    let kind = known.iter().find(|(io, _)| *io == e.kind()).map_or(ErrorKind::Io, |(_, k)| *k);
    Error::new(kind, format!("{path}: {}", block::without_errno(e)))
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Path(PathBuf),
    Pmem(PathBuf),
    Nbd(NbdUri),
    Mem(Sector),
    Null(Sector),
}

/// Before the path of a file that is to be mapped as persistent memory.
const PMEM: &str = "pmem:";

/// The word by which a table's word for persistent memory is opened; nothing when it names what
/// can't be mapped.
pub(crate) fn as_pmem(word: &str) -> Option<String> {
    match parse(word) {
        Ok(Word::Pmem(_)) => Some(word.to_owned()),
        Ok(Word::Path(_)) => Some(format!("{PMEM}{word}")),
        Ok(Word::Nbd(_) | Word::Mem(_) | Word::Null(_)) | Err(_) => None,
    }
}

/// Whether a word can be nothing but a leaf's: mapped devices have no such names.
pub(crate) fn names_a_leaf(word: &str) -> bool {
    word.contains('/') || ["mem:", "null:"].iter().any(|s| word.starts_with(s)) || is_nbd(word)
}

/// What a word of a table names. The same word is the same device as long as anybody has it open;
/// `mem:SIZE,TAG` lets there be two of one size.
fn parse(word: &str) -> Result<Word, Error> {
    if let Some(rest) = word.strip_prefix("mem:") {
        let size = rest.split_once(',').map_or(rest, |(size, _tag)| size);
        return Ok(Word::Mem(capacity(size)?));
    }
    if let Some(size) = word.strip_prefix("null:") {
        return Ok(Word::Null(capacity(size)?));
    }
    if is_nbd(word) {
        return NbdUri::parse(word).map(Word::Nbd);
    }
    let (path, word_of): (_, fn(PathBuf) -> Word) = match word.strip_prefix(PMEM) {
        Some(path) => (path, Word::Pmem),
        None => (word, Word::Path),
    };
    crate::nbd_leaf::check_scheme(path)?;
    if path.contains('/') {
        let path = std::path::absolute(path)
            .map_err(|e| Error::invalid("the path can't be made absolute").because(e))?;
        return Ok(word_of(path));
    }
    Err(Error::not_found(
        "no mapped device has this name; else a path with a slash (./disk.img), pmem:PATH, \
         nbd://HOST/EXPORT, mem:SIZE or null:SIZE is allowed",
    ))
}

fn capacity(size: &str) -> Result<Sector, Error> {
    let bytes = control::parse_size(size).map_err(|e| Error::invalid(e.to_string()))?;
    let sectors = Sector::from_bytes(bytes);
    if sectors == Sector::ZERO || sectors.bytes() != bytes {
        return Err(Error::invalid(format!("size {size} is not a positive multiple of 512 bytes")));
    }
    Ok(sectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        assert_eq!(parse("mem:64MiB").unwrap(), Word::Mem(Sector(131_072)));
        assert_eq!(parse("mem:4K,a").unwrap(), Word::Mem(Sector(8)));
        assert_eq!(parse("null:8s").unwrap(), Word::Null(Sector(8)));
        assert_eq!(parse("/a/b").unwrap(), Word::Path("/a/b".into()));
        assert_eq!(parse("pmem:/a/b").unwrap(), Word::Pmem("/a/b".into()));
        assert_eq!(as_pmem("/a/b").as_deref(), Some("pmem:/a/b"));
        assert_eq!(as_pmem("pmem:/a/b").as_deref(), Some("pmem:/a/b"));
        assert_eq!(as_pmem("mem:4K"), None);
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_is_allowed() {
        for (word, part) in [
            ("origin", "mem:SIZE"),
            ("mem:", "powers of 1024"),
            ("pmem:a", "mem:SIZE"),
            ("mem:0", "positive multiple of 512"),
            ("null:1000", "positive multiple of 512"),
        ] {
            let e = parse(word).unwrap_err().to_string();
            assert!(e.contains(part), "{word}: {e}");
        }
    }
}
