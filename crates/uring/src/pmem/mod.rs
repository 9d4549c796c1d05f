// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Persistent memory: a file that is read and written by memory copies.
//!
//! ```text
//!            file system gives MAP_SYNC (DAX)           any other
//!   Read     copy                                       copy
//!   Write    copy past the caches, or written back      copy
//!   FUA      the same and a fence                       the ring: a write with RWF_DSYNC
//!   Flush    fence                                      the ring: fdatasync
//! ```
//!
//! A copy is done at submission; its event comes at the next park, like any other. Plain files can
//! stand in for persistent memory: their mapping is the page cache, which the ring's writes share,
//! and fdatasync writes back pages dirtied through a mapping. A page that is not in memory is read
//! while the core waits: meant for files that stay in memory, and for tests.
//!
//! Invariants
//! - UR-P1 The mapping has the length of the file at open: no request reaches beyond. If another
//!   process truncates the file, pages are lost ([`lost`]): EIO, not the end of the process.
//! - UR-P2 Without MAP_SYNC nothing is reported as durable before the file system has written it.
//! - UR-P3 Space is reserved at open and never released: a store never needs more.
//! - UR-P4 A mapping is used by one thread, for which a helper has made it; other cores do not
//!   share it.
pub mod copy;
mod lost;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use block::{Bufs, Error, ErrorKind, Limits, Sector, Status, copy_shared};
use reactor::SqeOp;
use rustix::fs::{FallocateFlags, FileType, Statx, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::os_error::os_error;
use crate::stat::type_of;
use copy::LineFlush;
pub(crate) use lost::Watch;

/// Largest request that clients should send: a copy blocks its core until it is done.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Bytes that a power cut does not tear: one aligned store. With a plain file, writeback may happen
/// between two stores.
const ATOMIC_BYTES: u32 = 8;

/// A mapped file.
pub(crate) struct Mapping {
    // Dropped in this order: else the handler could take the next mapping at this address for ours.
    watch: Watch,
    region: Region,
    writable: bool,
    /// How copies become durable without the kernel; `None` if only the file system can do that.
    flush: Option<LineFlush>,
}

/// The address range of a mapping.
pub(crate) struct Region {
    base: *mut u8,
    len: usize,
}

// SAFETY: the pages belong to the process, and only this value refers to them: the thread that owns
// it uses them, and the thread that made it keeps no reference (UR-P4).
unsafe impl Send for Region {}

/// The outcome of a request for a mapped file.
#[derive(Debug)]
pub(crate) enum MappedOutcome {
    Done(Status),
    /// The ring must perform it, as if the file were not mapped.
    UseRing,
}

/// A mapping, its limits, and a warning for the log.
pub(crate) struct Mapped {
    pub(crate) mapping: Mapping,
    pub(crate) limits: Limits,
    pub(crate) warning: Option<String>,
}

fn not_supported(path: &Path, why: &str) -> Error {
    let path = path.display();
    let text = "Persistent memory or DAX not supported on this system";
    Error::new(ErrorKind::NotSupported, format!("{text}: {path}: {why}"))
}

/// Maps an open file whose limits would be `limits` if it were not mapped.
pub(crate) fn map(
    path: &Path,
    fd: &OwnedFd,
    stat: &Statx,
    writable: bool,
    limits: &Limits,
) -> Result<Mapped, Error> {
    let kind = type_of(stat);
    let (bytes, unit) = if kind == FileType::CharacterDevice {
        dax_device(path, stat)?
    } else {
        (limits.capacity.bytes(), rustix::param::page_size() as u64)
    };
    if bytes == 0 {
        return Err(Error::invalid(format!(
            "{}: it is empty: give it its size first",
            path.display()
        )));
    }
    let too_large = |_| Error::invalid(format!("{}: is too large to be mapped", path.display()));
    let (len, unit) =
        (usize::try_from(bytes).map_err(too_large)?, usize::try_from(unit).map_err(too_large)?);
    if kind == FileType::RegularFile && writable {
        reserve(path, fd, bytes)?;
    }
    let failed = |e| os_error(path, "map it", e);
    let sync = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    let (region, flush) = match Region::new(fd, (0, len), writable, sync) {
        Ok(region) => (region, copy::detect()),
        Err(Errno::OPNOTSUPP | Errno::INVAL) if kind == FileType::RegularFile => {
            let plain = Region::new(fd, (0, len), writable, MapFlags::SHARED);
            (plain.map_err(failed)?, None)
        }
        Err(Errno::OPNOTSUPP | Errno::INVAL) => {
            let why = "it gives no MAP_SYNC; a file on a file system mounted with DAX, or a DAX \
                       device, is allowed, and any file for tests";
            return Err(not_supported(path, why));
        }
        Err(e) => return Err(failed(e)),
    };
    if flush.is_none() && kind != FileType::RegularFile {
        return Err(not_supported(path, "this CPU has no instruction for it that is known here"));
    }
    let watch = Watch::begin(region.base, len, unit).ok_or_else(|| too_many_mappings(path))?;
    let warning = flush.is_none().then(|| {
        format!(
            "{}: is not persistent memory (its file system gives no MAP_SYNC): only msync makes it \
             durable, so each flush does as much (by fdatasync); a file on a file system mounted \
             with DAX, or a DAX device, needs no such thing",
            path.display()
        )
    });
    let limits = Limits {
        capacity: Sector::from_bytes(bytes),
        max_io_bytes: IO_BYTES_MAX,
        atomic_write_unit_bytes: ATOMIC_BYTES,
        // UR-P3.
        discard_granularity_bytes: 0,
        write_zeroes: false,
        volatile_cache: true,
        rotational: false,
        ..limits.clone()
    };
    let mapping = Mapping { watch, region, writable, flush };
    Ok(Mapped { mapping, limits, warning })
}

fn too_many_mappings(path: &Path) -> Error {
    let most = lost::MAPPINGS_MAX;
    let why = format!("{most} files are mapped already, the most there can be");
    Error::new(ErrorKind::NoSpace, format!("{}: {why}", path.display()))
}

/// Size of a DAX device, and the unit by which it is mapped.
fn dax_device(path: &Path, stat: &Statx) -> Result<(u64, u64), Error> {
    let dir = format!("/sys/dev/char/{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
    let number = |name: &str| {
        let text = std::fs::read_to_string(format!("{dir}/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let subsystem = std::fs::read_link(format!("{dir}/subsystem")).unwrap_or_default();
    let size = number("size").filter(|_| subsystem.ends_with("dax"));
    let size = size.ok_or_else(|| not_supported(path, "is no DAX device"))?;
    Ok((size, number("device/align").or(number("align")).unwrap_or(2 << 20)))
}

/// UR-P3: a store into a hole would need space, and there may be none.
fn reserve(path: &Path, fd: &OwnedFd, bytes: u64) -> Result<(), Error> {
    match fallocate(fd, FallocateFlags::empty(), 0, bytes) {
        // A file system without it: a store that finds no room loses its page.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(os_error(path, "reserve its space", e)),
    }
}

impl Region {
    /// Maps `len` bytes of a file, from `offset` on, which is a multiple of its pages.
    pub(crate) fn new(
        fd: &OwnedFd,
        (offset, len): (u64, usize),
        writable: bool,
        flags: MapFlags,
    ) -> Result<Region, Errno> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let (anywhere, protection) = (std::ptr::null_mut(), ProtFlags::READ | write);
        // SAFETY: a new mapping at an address of the kernel's choice, where no Rust object is.
        let base = unsafe { mmap(anywhere, len, protection, flags, fd, offset)? };
        Ok(Region { base: base.cast(), len })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Mapping {
    /// Does what is a copy or a fence.
    pub(crate) fn serve(&self, what: &SqeOp) -> MappedOutcome {
        match what {
            SqeOp::Read { offset, bufs } => MappedOutcome::Done(self.read(*offset, bufs)),
            SqeOp::Write { offset, bufs, fua } => match self.flush {
                Some(flush) => {
                    let written = self.write(*offset, bufs, Some(flush));
                    if *fua {
                        copy::fence();
                    }
                    MappedOutcome::Done(written)
                }
                // UR-P2.
                None if *fua && self.writable => MappedOutcome::UseRing,
                None => MappedOutcome::Done(self.write(*offset, bufs, None)),
            },
            SqeOp::Flush if self.flush.is_some() => {
                copy::fence();
                MappedOutcome::Done(Status::Ok)
            }
            // UR-P2.
            SqeOp::Flush => MappedOutcome::UseRing,
            // UR-P3.
            SqeOp::Discard { .. } | SqeOp::WriteZeroes { .. } => {
                MappedOutcome::Done(Status::NotSupported)
            }
            SqeOp::Command { .. }
            | SqeOp::Accept
            | SqeOp::Recv { .. }
            | SqeOp::Send { .. }
            | SqeOp::Shutdown
            | SqeOp::ShutdownWrite
            | SqeOp::Close => MappedOutcome::Done(Status::Invalid),
        }
    }

    /// UR-P1.
    fn range(&self, offset: u64, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.region.len).then_some(start..end)
    }

    fn read(&self, offset: u64, bufs: &Bufs) -> Status {
        let Some(range) = self.range(offset, bufs.len_bytes()) else { return Status::Invalid };
        let mut at = range.start;
        for slice in bufs.iter() {
            // SAFETY: UR-P1 bounds the source, and there is no reference to it; the slice is
            // borrowed to copy there. Another process that writes to the file meanwhile, locked as
            // it is, returns bytes without a guarantee.
            slice.with_destination(|to, len| unsafe {
                copy_shared(to.cast(), self.region.base.add(at).cast(), len);
            });
            at += slice.len();
        }
        self.outcome(&range)
    }

    fn write(&self, offset: u64, bufs: &Bufs, flush: Option<LineFlush>) -> Status {
        let Some(range) = self.range(offset, bufs.len_bytes()) else { return Status::Invalid };
        if !self.writable {
            return Status::Io;
        }
        let mut at = range.start;
        for slice in bufs.iter() {
            // SAFETY: UR-P1 bounds the destination.
            let to = unsafe { self.region.base.add(at) };
            slice.with_source(|from, len| match flush {
                // SAFETY: both are valid for the length, the slice is borrowed; the instruction was
                // detected; UR-P4: only this thread looks before a fence.
                Some(flush) => unsafe { copy::copy(copy::best(flush, len), to, from, len) },
                // SAFETY: as above.
                None => unsafe { copy_shared(to.cast(), from.cast(), len) },
            });
            at += slice.len();
        }
        self.outcome(&range)
    }

    fn outcome(&self, range: &Range<usize>) -> Status {
        if self.watch.touches(range) { Status::Io } else { Status::Ok }
    }
}

/// A plain file that is mapped as memory: no request ever refers to it.
pub(crate) struct MappedMemory {
    // In this order, as in `Mapping`.
    watch: Watch,
    region: Region,
}

impl MappedMemory {
    /// Maps the first `len` bytes of a regular file that has them.
    pub(crate) fn map(path: &Path, fd: &OwnedFd, len: usize) -> Result<MappedMemory, Error> {
        let region = Region::new(fd, (0, len), true, MapFlags::SHARED | MapFlags::POPULATE);
        let region = region.map_err(|e| os_error(path, "map it", e))?;
        let watch = Watch::begin(region.base, len, rustix::param::page_size());
        let watch = watch.ok_or_else(|| too_many_mappings(path))?;
        Ok(MappedMemory { watch, region })
    }

    pub(crate) fn len(&self) -> usize {
        self.region.len
    }

    fn range(&self, at: usize, len: usize) -> Range<usize> {
        let end = at.checked_add(len).filter(|&end| end <= self.region.len);
        at..end.expect("a range within the memory")
    }

    /// Copies the bytes from `at` on to `out`.
    pub(crate) fn copy_from(&self, at: usize, out: &mut [u8]) -> Result<(), Status> {
        let range = self.range(at, out.len());
        let to = out.as_mut_ptr();
        // SAFETY: `range` is within the mapping, to which there is no reference; `out` is borrowed.
        unsafe { copy_shared(to.cast(), self.region.base.add(at).cast(), out.len()) };
        if self.watch.touches(&range) { Err(Status::Io) } else { Ok(()) }
    }

    /// Stores `bytes` from `at` on.
    pub(crate) fn copy_to(&self, at: usize, bytes: &[u8]) -> Result<(), Status> {
        let range = self.range(at, bytes.len());
        let from = bytes.as_ptr();
        // SAFETY: `range` is within the mapping, to which there is no reference; `bytes` is
        // borrowed.
        unsafe { copy_shared(self.region.base.add(at).cast(), from.cast(), bytes.len()) };
        if self.watch.touches(&range) { Err(Status::Io) } else { Ok(()) }
    }
}

block::debug_as!(MappedMemory, s => "MappedMemory({} bytes)", s.region.len);

block::debug_as!(Mapping, s => "Mapping({} bytes, {:?})", s.region.len, s.flush);

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; requests are served while it is borrowed.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use block::Buf;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A mapping of a plain file that takes it for persistent memory, as with MAP_SYNC.
    fn as_if_dax(file: &std::fs::File, len: usize) -> Option<Mapping> {
        let flush = Some(copy::detect()?);
        let fd = OwnedFd::from(file.try_clone().unwrap());
        let region = Region::new(&fd, (0, len), true, MapFlags::SHARED).unwrap();
        let watch = Watch::begin(region.base, len, rustix::param::page_size()).unwrap();
        Some(Mapping { watch, region, writable: true, flush })
    }

    fn in_memory() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        rustix::fs::memfd_create(c"mapped", flags).unwrap().into()
    }

    fn is_ok(served: &MappedOutcome) -> bool {
        matches!(served, MappedOutcome::Done(Status::Ok))
    }

    #[test]
    fn with_map_sync_copies_and_fences_do_all_and_the_file_shows_it() {
        const LEN: usize = 1 << 20;
        let file = in_memory();
        file.set_len(LEN as u64).unwrap();
        let Some(mapping) = as_if_dax(&file, LEN) else { return };
        let mut want = vec![0; LEN];
        let mut nth = 0u8;
        for (offset, lens) in [
            (0, vec![512]),
            (512, vec![64, 1, 63, 384]),
            (4096, vec![4096]),
            (12288, vec![1000, 3096, 8192]),
            (LEN - 65536, vec![65536]),
        ] {
            for fua in [false, true] {
                let mut bufs = Bufs::new();
                let mut at = offset;
                for &len in &lens {
                    nth += 1;
                    bufs.push(Buf::copy_of(&vec![nth; len]));
                    want[at..at + len].fill(nth);
                    at += len;
                }
                let offset = offset as u64;
                assert!(is_ok(&mapping.serve(&SqeOp::Write { offset, bufs, fua })));
            }
            assert!(is_ok(&mapping.serve(&SqeOp::Flush)));
        }
        let mut found = vec![0; LEN];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == want);
        let back = Bufs::from(Buf::zeroed(LEN));
        assert!(is_ok(&mapping.serve(&SqeOp::Read { offset: 0, bufs: back.clone() })));
        back.for_each(|b| assert!(b == want));
    }

    #[test]
    fn a_request_beyond_the_mapping_is_refused() {
        let file = in_memory();
        file.set_len(8192).unwrap();
        let Some(mapping) = as_if_dax(&file, 4096) else { return };
        for offset in [512, 4096, u64::MAX - 511] {
            let bufs = Bufs::from(Buf::zeroed(4096));
            let served = mapping.serve(&SqeOp::Read { offset, bufs: bufs.clone() });
            assert!(matches!(served, MappedOutcome::Done(Status::Invalid)));
            let served = mapping.serve(&SqeOp::Write { offset, bufs, fua: false });
            assert!(matches!(served, MappedOutcome::Done(Status::Invalid)));
        }
    }
}
