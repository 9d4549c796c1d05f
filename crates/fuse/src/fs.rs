// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of the kernel: names and attributes are answered here, I/O goes to the host as jobs.
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use block::{Buf, Error, ErrorKind};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};

use crate::attribute;
use crate::budget::Budget;
use crate::handle::{DirEntry, Handle, OpenTable};
use crate::host::{Caller, DeviceId, Host, OpenId};
use crate::inode::{Inodes, Node};
use crate::job::{Job, Work};
use crate::tree::{NodeKind, Tree};

/// FU-F4: the kernel asks again every time.
const NO_TIME: Duration = Duration::ZERO;
/// The size of every attribute in sysfs, and its longest value.
const ATTRIBUTE_BYTES: u64 = 4096;
/// Inode number of an entry that the kernel does not know yet, as in libfuse.
const UNKNOWN_INODE: u64 = 0xffff_ffff;
/// Background requests of the kernel, which include asynchronous direct I/O. The default, 12, would
/// limit the queue depth.
const BACKGROUND_MAX: u16 = 512;
/// What `stat` gives as the best size of a request, and `statfs` as the size of a block.
const BLOCK_BYTES: u32 = 4096;
/// `lseek`'s numbers.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The state that the threads of one mount and its owner share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) budget: Arc<Budget>,
    /// Devices that are open now.
    pub(crate) open_files: AtomicUsize,
    /// No more files are opened.
    pub(crate) closing: AtomicBool,
}

/// The tree of one mount.
pub(crate) struct Fs {
    tree: Tree,
    host: Arc<dyn Host>,
    shared: Arc<Shared>,
    inodes: Mutex<Inodes>,
    texts: Arc<OpenTable<Text>>,
    folders: OpenTable<Vec<DirEntry>>,
    request_bytes_max: u32,
    owner: (u32, u32),
    mounted: SystemTime,
}

/// An open attribute, and its text at the last read from offset 0.
#[derive(Debug)]
struct Text {
    device: DeviceId,
    path: String,
    shown: String,
}

impl Text {
    fn part(&self, offset: u64, size: u32) -> &[u8] {
        let bytes = self.shown.as_bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(size as usize).min(bytes.len());
        &bytes[from..to]
    }
}

impl Fs {
    pub(crate) fn new(host: Arc<dyn Host>, shared: Arc<Shared>, request_bytes_max: u32) -> Fs {
        #[expect(clippy::disallowed_methods, reason = "the time that stat shows")]
        let mounted = SystemTime::now();
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        Fs {
            tree: Tree(host.clone()),
            host,
            shared,
            inodes: Mutex::new(Inodes::new()),
            texts: Arc::new(OpenTable::new()),
            folders: OpenTable::new(),
            request_bytes_max,
            owner: (uid.as_raw(), gid.as_raw()),
            mounted,
        }
    }

    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        // Nothing under the lock can leave the table half changed.
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, ino: INodeNo) -> Result<Node, Errno> {
        self.inodes().node(ino.0).ok_or(Errno::ENOENT)
    }

    fn attr(&self, ino: u64, found: &NodeKind) -> FileAttr {
        let (kind, perm, nlink, size) = match found {
            NodeKind::Folder => (FileType::Directory, 0o555, 2, 0),
            NodeKind::Text { readable, writable } => {
                let perm = if *readable { 0o444 } else { 0 } | if *writable { 0o200 } else { 0 };
                (FileType::RegularFile, perm, 1, ATTRIBUTE_BYTES)
            }
            NodeKind::Device(d) => {
                let perm = if d.read_only { 0o400 } else { 0o600 };
                let nlink = if d.mapped { 2 } else { 1 };
                (FileType::RegularFile, perm, nlink, d.size_bytes)
            }
        };
        let blocks = if matches!(found, NodeKind::Device(_)) { size / 512 } else { 0 };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    fn attr_of(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        Ok(self.attr(ino.0, &self.tree.find(&self.node(ino)?)?))
    }

    fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let node = self.tree.child(&self.node(parent)?, name)?;
        let found = self.tree.find(&node)?;
        let ino = self.inodes().look_up(&node);
        Ok(self.attr(ino, &found))
    }

    /// `truncate` and O_TRUNC. A device keeps its size. `cp` and `>` truncate to 0 before they
    /// write from the start, so that succeeds without effect.
    fn resize(&self, ino: INodeNo, size: u64) -> Result<(), Errno> {
        match self.tree.find(&self.node(ino)?)? {
            NodeKind::Folder => Err(Errno::EISDIR),
            NodeKind::Text { .. } => Ok(()),
            NodeKind::Device(d) if d.read_only => Err(Errno::EROFS),
            NodeKind::Device(d) if size == 0 || size == d.size_bytes => Ok(()),
            NodeKind::Device(_) => Err(Errno::EINVAL),
        }
    }

    fn open_file(
        &self,
        by: Caller,
        ino: INodeNo,
        flags: OpenFlags,
    ) -> Result<(Handle, FopenFlags), Errno> {
        if self.shared.closing.load(Ordering::Acquire) {
            return Err(Errno::ESHUTDOWN);
        }
        let node = self.node(ino)?;
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        match (self.tree.find(&node)?, node) {
            (NodeKind::Device(d), _) => {
                if writes && d.read_only {
                    return Err(Errno::EROFS);
                }
                let open = self.host.open(d.id, by).map_err(|e| file_errno(e.kind()))?;
                self.shared.open_files.fetch_add(1, Ordering::AcqRel);
                // Closing a file makes nothing durable, as with a block device.
                let how = FopenFlags::FOPEN_DIRECT_IO
                    | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
                    | FopenFlags::FOPEN_NOFLUSH;
                Ok((Handle::Device(open), how))
            }
            (NodeKind::Text { readable, writable }, Node::Attribute(device, path)) => {
                let reads = flags.acc_mode() != OpenAccMode::O_WRONLY;
                if writes && !writable || reads && !readable {
                    return Err(Errno::EACCES);
                }
                let number = self.texts.open(Text { device, path, shown: String::new() });
                let how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
                Ok((Handle::Text(number), how))
            }
            _ => Err(Errno::EISDIR),
        }
    }

    /// Replies to a read of an attribute: at offset 0 with its current value, else with the rest of
    /// the value of the last read at offset 0.
    fn read_text(&self, number: u64, offset: u64, size: u32, reply: ReplyData) {
        let Some(text) = self.texts.get(number) else { return reply.error(Errno::EBADF) };
        if offset > 0 {
            return reply.data(text.part(offset, size));
        }
        let (device, texts) = (text.device, self.texts.clone());
        let path = text.path.clone();
        // FU-F6.
        let answer = move |read: Result<String, Error>| match read {
            Ok(mut shown) => {
                if !shown.ends_with('\n') {
                    shown.push('\n');
                }
                // Before the reply: the next part may be asked for at once.
                let text = texts.replace(number, Text { device, path, shown });
                reply.data(text.part(0, size));
            }
            Err(e) => reply.error(file_errno(e.kind())),
        };
        self.host.read_attribute(device, &text.path, Box::new(answer));
    }

    fn write_text(&self, number: u64, data: &[u8], reply: ReplyWrite) {
        let Some(text) = self.texts.get(number) else { return reply.error(Errno::EBADF) };
        let len = u32::try_from(data.len()).ok().filter(|l| u64::from(*l) <= ATTRIBUTE_BYTES);
        let (Some(len), Some(value)) = (len, attribute::value(data)) else {
            return reply.error(Errno::EINVAL);
        };
        // FU-F6.
        let answer = move |set: Result<(), Error>| match set {
            Ok(()) => reply.written(len),
            Err(e) => reply.error(file_errno(e.kind())),
        };
        self.host.write_attribute(text.device, &text.path, value, Box::new(answer));
    }

    /// Starts a request with `bytes` of data, once the budget has room for it (FU-F1).
    fn run(&self, open: OpenId, bytes: usize, work: impl FnOnce() -> Work) {
        match self.shared.budget.admit(bytes) {
            Some(permit) => self.host.run(open, Job::new(work(), permit)),
            None => work().refuse(Errno::ESHUTDOWN),
        }
    }
}

/// The errno of a file that can't be opened, read or set.
fn file_errno(kind: ErrorKind) -> Errno {
    if kind == ErrorKind::NotFound { Errno::ENOENT } else { Errno::from_i32(kind.errno()) }
}

impl Filesystem for Fs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            // A kernel without it works all the same, slower.
            let _ = config.add_capabilities(wanted);
        }
        config.set_max_write(self.request_bytes_max).map_err(|nearest| {
            std::io::Error::other(format!("request size refused: the nearest is {nearest}"))
        })?;
        config.set_max_background(BACKGROUND_MAX).map_err(|nearest| {
            std::io::Error::other(format!("background refused: the nearest is {nearest}"))
        })?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok(attr) => reply.entry(&NO_TIME, &attr, Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.inodes().forget(ino.0, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr_of(ino) {
            Ok(attr) => reply.attr(&NO_TIME, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let done = if mode.is_some() || uid.is_some() || gid.is_some() {
            Err(Errno::EPERM)
        } else {
            size.map_or(Ok(()), |size| self.resize(ino, size)).and_then(|()| self.attr_of(ino))
        };
        match done {
            Ok(attr) => reply.attr(&NO_TIME, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let by = Caller { pid: request.pid(), uid: request.uid() };
        match self.open_file(by, ino, flags) {
            Ok((handle, how)) => reply.opened(FileHandle(handle.encode()), how),
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match Handle::decode(fh.0) {
            Some(Handle::Device(open)) => {
                self.run(open, size as usize, || Work::Read { offset, len: size, reply });
            }
            Some(Handle::Text(number)) => self.read_text(number, offset, size, reply),
            Some(Handle::Folder(_)) | None => reply.error(Errno::EBADF),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match Handle::decode(fh.0) {
            Some(Handle::Device(_)) if data.is_empty() => reply.written(0),
            Some(Handle::Device(open)) => {
                // The kernel gives O_DSYNC here for O_SYNC and RWF_DSYNC, too.
                let fua = flags.0.cast_unsigned() & OFlags::DSYNC.bits() != 0;
                let copied = || Work::Write { offset, data: Buf::copy_of(data), fua, reply };
                self.run(open, data.len(), copied);
            }
            Some(Handle::Text(number)) => self.write_text(number, data, reply),
            Some(Handle::Folder(_)) | None => reply.error(Errno::EBADF),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        match Handle::decode(fh.0) {
            Some(Handle::Device(open)) => self.run(open, 0, || Work::Flush { reply }),
            // What was written to an attribute is in force.
            Some(Handle::Text(_)) => reply.ok(),
            Some(Handle::Folder(_)) | None => reply.error(Errno::EBADF),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(Handle::Device(open)) = Handle::decode(fh.0) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        // What block devices know: a range is there already, so there is nothing to allocate.
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let keep = FallocateFlags::KEEP_SIZE;
        let unmap = if mode == FallocateFlags::PUNCH_HOLE | keep {
            true
        } else if mode - keep == FallocateFlags::ZERO_RANGE {
            false
        } else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        if !mode.contains(keep) {
            // It asks to grow the file if need be.
            match self.attr_of(ino) {
                Ok(attr) if offset.saturating_add(length) <= attr.size => {}
                Ok(_) => return reply.error(Errno::EINVAL),
                Err(e) => return reply.error(e),
            }
        }
        self.run(open, 0, || Work::Zero { offset, len: length, unmap, reply });
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let size = match self.attr_of(ino) {
            Ok(attr) => i64::try_from(attr.size).unwrap_or(i64::MAX),
            Err(e) => return reply.error(e),
        };
        match whence {
            SEEK_DATA | SEEK_HOLE if offset < 0 || offset >= size => reply.error(Errno::ENXIO),
            SEEK_DATA => reply.offset(offset),
            SEEK_HOLE => reply.offset(size),
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        match Handle::decode(fh.0) {
            Some(Handle::Device(open)) => {
                self.host.close(open);
                self.shared.open_files.fetch_sub(1, Ordering::AcqRel);
            }
            Some(Handle::Text(number)) => self.texts.close(number),
            Some(Handle::Folder(_)) | None => {}
        }
        reply.ok();
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let handle = Handle::Folder(self.folders.open(Vec::new()));
        reply.opened(FileHandle(handle.encode()), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(Handle::Folder(number)) = Handle::decode(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        if offset == 0 {
            let listed = self.node(ino).and_then(|node| {
                let dot = |node, name: &str| DirEntry { node, folder: true, name: name.to_owned() };
                let mut items = vec![dot(node.clone(), "."), dot(Tree::parent(&node), "..")];
                items.extend(self.tree.list(&node)?);
                Ok(items)
            });
            match listed {
                Ok(items) => drop(self.folders.replace(number, items)),
                Err(e) => return reply.error(e),
            }
        }
        let Some(items) = self.folders.get(number) else { return reply.error(Errno::EBADF) };
        let inodes = self.inodes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (nth, item) in items.iter().enumerate().skip(from) {
            let ino = INodeNo(inodes.number(&item.node).unwrap_or(UNKNOWN_INODE));
            let kind = if item.folder { FileType::Directory } else { FileType::RegularFile };
            if reply.add(ino, nth as u64 + 1, kind, &item.name) {
                break;
            }
        }
        drop(inodes);
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        if let Some(Handle::Folder(number)) = Handle::decode(fh.0) {
            self.folders.close(number);
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // Loop devices take the size of a block as the granularity of discards.
        reply.statfs(0, 0, 0, 0, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    // Devices are made by tables, not by files. `create` becomes `mknod` in the kernel.

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
