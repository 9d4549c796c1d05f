// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a virtual machine: a part of a file in memory that its front end has open too, mapped.
//!
//! Invariants
//! - UR-G1 The file is on tmpfs (a memfd is) or hugetlbfs: an access waits for no file system that
//!   the front end, or somebody else, runs.
//! - UR-G2 No reference to the bytes is made: the guest changes them at any time. They are copied,
//!   loaded and stored by machine code, or given to the kernel.
//! - UR-G3 A page that the front end has cut off the file is lost (`pmem::lost`): an access to it
//!   is an error, not the end of the process.
//! - UR-G4 Threads may use a mapping at once, as they do beside the guest: all that UR-G2 has for
//!   the guest holds between them.
//! - UR-G5 The part begins at an even address, so that a number at an even place is aligned.
//! - UR-G6 A helper unmaps it: where the virtual machine has gone, that gives its memory back,
//!   which takes 0.1 s a GiB.
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use block::{ClientMemory, ClientRegion, Error, ErrorKind, Slice, Status, copy_shared};
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::MapFlags;

use crate::guest_access::{
    load_u8, load_u16, load_u32, load_u64, store_u8, store_u16, store_u32, store_u64,
};
use crate::guest_budget::{GuestBudget, Share};
use crate::helpers;
use crate::pmem::{Region, Watch};

/// File systems whose pages are memory, by `f_type`.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;
/// So many bytes at most are copied word by word: a header, a descriptor, a short table of them.
/// Calling the C library takes longer.
const WORDS_BYTES_MAX: usize = 64;

/// A mapped part of a file in memory.
pub struct GuestMemory {
    watch: ManuallyDrop<Watch>,
    region: ManuallyDrop<Region>,
    /// UR-B1
    share: Option<Share>,
    /// The part, within the region.
    part: Range<usize>,
}

// SAFETY: shared, it gives nothing but copies, loads and stores by machine code (UR-G2, UR-G4), and
// the notes of lost pages, which are atomics.
unsafe impl Sync for GuestMemory {}

/// How bytes of the memory are accessed.
enum Words {
    Byte,
    Of8,
    Of4,
    /// By a call of the C library.
    None,
}

/// As words, if the bytes are few and whole ones.
#[inline]
fn words(place: *const u8, len: usize) -> Words {
    let odd = place.addr() | len;
    match len {
        1 => Words::Byte,
        _ if len > WORDS_BYTES_MAX => Words::None,
        _ if odd.is_multiple_of(8) => Words::Of8,
        _ if odd.is_multiple_of(4) => Words::Of4,
        _ => Words::None,
    }
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("memory of the guest: {why}"))
}

impl GuestMemory {
    /// Maps `len` bytes from `offset` on of a file in memory, to be read and written. It may wait
    /// for the file system of a file that it refuses, and for helpers: not for a core. The file
    /// stays the caller's to close.
    ///
    /// # Errors
    /// `Invalid` for another kind of file (UR-G1), when the file has fewer bytes, and when numbers
    /// would not be aligned (UR-G5); `NoSpace` when the process has too many mappings; `Limit` when
    /// the budget has not so much left.
    pub fn map(
        file: &OwnedFd,
        offset: u64,
        len: u64,
        budget: &Arc<GuestBudget>,
    ) -> Result<GuestMemory, Error> {
        let failed = |e| refused("it can't be examined").because(e);
        let fs = fstatfs(file).map_err(failed)?;
        // A bit pattern, on some architectures of a signed type.
        let kind = u64::try_from(fs.f_type).unwrap_or(0);
        if kind != TMPFS && kind != HUGETLBFS {
            return Err(refused(
                "its file is neither on tmpfs nor on hugetlbfs: a memfd, /dev/shm or huge pages \
                 are allowed (qemu: memory-backend-memfd with share=on)",
            ));
        }
        let stat = fstat(file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(refused("it is no regular file"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let end = offset.checked_add(len).filter(|&end| len > 0 && end <= size);
        let Some(end) = end else {
            return Err(refused(&format!("{len} bytes at {offset} are not in its {size} bytes")));
        };
        if !offset.is_multiple_of(size_of::<u16>() as u64) {
            return Err(refused(&format!("it begins at the odd byte {offset} of its file")));
        }
        let unit = match kind {
            HUGETLBFS => u64::try_from(fs.f_bsize).unwrap_or(0).max(1),
            _ => rustix::param::page_size() as u64,
        };
        // Whole pages: those that have the part.
        let first = offset - offset % unit;
        let too_large = |_| refused("it is too large to be mapped");
        let size = |bytes: u64| usize::try_from(bytes).map_err(too_large);
        let all = (end - first).checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        let (len, unit) = (size(all)?, size(unit)?);
        let (start, end) = (size(offset - first)?, size(end - first)?);
        let share = Some(budget.take(all)?);
        let region = Region::new(file, (first, len), true, MapFlags::SHARED);
        let region = region.map_err(|e| refused("it can't be mapped").because(e))?;
        let watch = Watch::begin(region.base(), region.len(), unit).ok_or_else(|| {
            Error::new(ErrorKind::NoSpace, "memory of the guest: too many files are mapped")
        })?;
        let (watch, region) = (ManuallyDrop::new(watch), ManuallyDrop::new(region));
        Ok(GuestMemory { watch, region, share, part: start..end })
    }

    /// Where `len` bytes from `at` on are.
    ///
    /// # Panics
    /// If they are not all mapped.
    #[inline]
    fn place(&self, at: u64, len: usize) -> (*mut u8, Range<usize>) {
        let (at, all) = (usize::try_from(at).unwrap_or(usize::MAX), self.part.len());
        assert!(len <= all && at <= all - len, "the caller has checked the range");
        let start = self.part.start + at;
        (self.region.base().wrapping_add(start), start..start + len)
    }

    /// UR-G3.
    #[inline]
    fn outcome(&self, range: &Range<usize>) -> Result<(), Status> {
        if self.watch.touches(range) { Err(Status::Io) } else { Ok(()) }
    }

    /// Where a number at an even place is.
    #[inline]
    fn number(&self, at: u64) -> (*mut u8, Range<usize>) {
        let (place, range) = self.place(at, size_of::<u16>());
        assert!(place.cast::<u16>().is_aligned(), "a number at an odd place");
        (place, range)
    }
}

impl ClientRegion for GuestMemory {
    fn len_bytes(&self) -> u64 {
        self.part.len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status> {
        let (from, range) = self.place(at, out.len());
        // SAFETY: `place` has checked that the range is mapped, `words` that each word is aligned;
        // no reference to it exists (UR-G2), and `out` is borrowed.
        unsafe {
            match words(from, out.len()) {
                Words::Byte => out[0] = load_u8(from),
                // A descriptor, or a header.
                Words::Of8 if out.len() == 16 => {
                    out[..8].copy_from_slice(&load_u64(from).to_le().to_le_bytes());
                    out[8..].copy_from_slice(&load_u64(from.add(8)).to_le().to_le_bytes());
                }
                Words::Of8 => {
                    for (nth, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                        *out = load_u64(from.add(nth * 8)).to_le().to_le_bytes();
                    }
                }
                Words::Of4 => {
                    for (nth, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *out = load_u32(from.add(nth * 4)).to_le().to_le_bytes();
                    }
                }
                Words::None => copy_shared(out.as_mut_ptr().cast(), from.cast(), out.len()),
            }
        }
        self.outcome(&range)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        let (to, range) = self.place(at, bytes.len());
        // SAFETY: as in `read`, the other way round.
        unsafe {
            match words(to, bytes.len()) {
                Words::Byte => store_u8(to, bytes[0]),
                Words::Of8 => {
                    for (nth, bytes) in bytes.as_chunks::<8>().0.iter().enumerate() {
                        store_u64(to.add(nth * 8), u64::from_le(u64::from_le_bytes(*bytes)));
                    }
                }
                Words::Of4 => {
                    for (nth, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
                        store_u32(to.add(nth * 4), u32::from_le(u32::from_le_bytes(*bytes)));
                    }
                }
                Words::None => copy_shared(to.cast(), bytes.as_ptr().cast(), bytes.len()),
            }
        }
        self.outcome(&range)
    }

    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status> {
        let (from, range) = self.place(at, to.len());
        // SAFETY: as in `read`; the slice is borrowed to copy there.
        to.with_destination(|to, len| unsafe { copy_shared(to.cast(), from.cast(), len) });
        self.outcome(&range)
    }

    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status> {
        let (to, range) = self.place(at, from.len());
        // SAFETY: as in `write`; the slice is borrowed as the source.
        from.with_source(|from, len| unsafe { copy_shared(to.cast(), from.cast(), len) });
        self.outcome(&range)
    }

    fn load_u16(&self, at: u64) -> Result<u16, Status> {
        let (number, range) = self.number(at);
        // SAFETY: mapped as long as `self` lives, and aligned.
        let found = unsafe { load_u16(number) };
        self.outcome(&range).map(|()| u16::from_le(found))
    }

    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status> {
        let (number, range) = self.number(at);
        // SAFETY: as above; no reference to it exists (UR-G2).
        unsafe { store_u16(number, value.to_le()) };
        self.outcome(&range)
    }

    fn check(&self, at: u64, len: u64) -> Result<(), Status> {
        let len = usize::try_from(len).expect("within the memory");
        self.outcome(&self.place(at, len).1)
    }

    fn prefetch(&self, at: u64) {
        let (place, _) = self.place(at, 1);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the place lies in the mapping; nothing is read, only loaded into the cache.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast::<i8>()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }

    fn prefetch_to_store(&self, at: u64) {
        let (place, _) = self.place(at, 1);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the place lies in the mapping; nothing is stored, only the cache changes. A
        // processor that does not know the instruction does nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }

    fn client_memory(self: Arc<Self>) -> Option<ClientMemory> {
        let base = self.region.base().wrapping_add(self.part.start);
        let base = NonNull::new(base).expect("the kernel maps nothing at address 0");
        // SAFETY: the part is mapped as long as `self` lives, and there are no references to its
        // bytes (UR-G2).
        Some(unsafe { ClientMemory::new(base, self.part.len(), &self) })
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: nothing uses them after this.
        let (watch, region) =
            unsafe { (ManuallyDrop::take(&mut self.watch), ManuallyDrop::take(&mut self.region)) };
        let share = self.share.take();
        // UR-G6
        helpers::close(move || {
            // In this order: else the handler could take the next mapping at this address for ours.
            drop(watch);
            drop(region);
            drop(share);
        });
    }
}

block::debug_as!(GuestMemory, s => "GuestMemory({} bytes)", s.part.len());

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use block::Buf;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn map(file: &OwnedFd, offset: u64, len: u64) -> Result<GuestMemory, Error> {
        GuestMemory::map(file, offset, len, &GuestBudget::new(1 << 30))
    }

    fn in_memory(bytes: u64) -> OwnedFd {
        let file = File::from(memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        file.into()
    }

    #[test]
    fn both_sides_see_what_the_other_stores() {
        let fd = in_memory(3 << 16);
        let memory = map(&fd, 1 << 16, 2 << 16).unwrap();
        let file = File::from(fd);
        memory.write(10, b"host").unwrap();
        memory.store_u16(2, 0x1234).unwrap();
        let mut found = [0; 14];
        file.read_exact_at(&mut found, 1 << 16).unwrap();
        assert_eq!(&found, b"\0\0\x34\x12\0\0\0\0\0\0host");
        file.write_all_at(b"guest\x78\x56", (1 << 16) + 99).unwrap();
        let mut found = [0; 5];
        memory.read(99, &mut found).unwrap();
        assert_eq!((&found, memory.load_u16(104).unwrap()), (b"guest", 0x5678));
        let buf = Buf::zeroed(5);
        memory.read_to(99, &buf.all()).unwrap();
        memory.write_from(200, &buf.all()).unwrap();
        memory.read(200, &mut found).unwrap();
        assert_eq!(&found, b"guest");
    }

    /// A part of a file that begins in the middle of a page.
    #[test]
    fn data_of_bios_are_the_bytes_that_the_guest_has() {
        let fd = in_memory(3 << 16);
        let memory = Arc::new(map(&fd, (1 << 16) + 8, 1 << 16).unwrap());
        let lent = memory.clone().client_memory().unwrap();
        assert!(lent.slice((1 << 16) - 4, 4).is_some() && lent.slice((1 << 16) - 4, 5).is_none());
        let slice = lent.slice(4096, 512).unwrap();
        drop((memory, lent));
        let file = File::from(fd);
        file.write_all_at(b"guest", (1 << 16) + 8 + 4096).unwrap();
        let bufs = block::Bufs::from(slice);
        let mut found = [0; 5];
        bufs.take_at(0, &mut found);
        assert_eq!(&found, b"guest");
        bufs.put_at(508, b"host");
        file.read_exact_at(&mut found[..4], (1 << 16) + 8 + 4096 + 508).unwrap();
        assert_eq!(&found[..4], b"host");
    }

    #[test]
    fn few_words_are_copied_as_many_are() {
        let memory = map(&in_memory(8192), 0, 8192).unwrap();
        let bytes: Vec<u8> = (1..=200).collect();
        memory.write(1000, &bytes).unwrap();
        for (at, len) in [
            (1000, 1),
            (1007, 1),
            (1000, 4),
            (1000, 8),
            (1004, 8),
            (1000, 64),
            (1004, 64),
            (1001, 64),
            (1000, 63),
            (1000, 72),
            (1002, 8),
        ] {
            let mut found = vec![0; len];
            memory.read(at as u64, &mut found).unwrap();
            assert_eq!(found, bytes[at - 1000..][..len], "{len} bytes at {at}");
            memory.write(at as u64 + 3000, &found).unwrap();
            let mut again = vec![0; len + 2];
            memory.read(at as u64 + 2999, &mut again).unwrap();
            assert_eq!(again[1..=len], found, "{len} bytes at {at}");
            assert_eq!((again[0], again[len + 1]), (0, 0), "{len} bytes at {at}");
            memory.write(at as u64 + 3000, &vec![0; len]).unwrap();
        }
    }

    #[test]
    fn other_files_and_ranges_are_refused() {
        let text = |e: Result<GuestMemory, Error>| e.map(drop).unwrap_err().to_string();
        let null = File::open("/dev/null").unwrap().into();
        assert!(text(map(&null, 0, 4096)).contains("memory of the guest"));
        let proc = File::open("/proc/self/status").unwrap().into();
        assert!(text(map(&proc, 0, 4096)).contains("neither on tmpfs"));
        let fd = in_memory(8192);
        for (offset, len) in [(0, 8193), (8192, 1), (u64::MAX, 2), (4096, 0)] {
            let e = text(map(&fd, offset, len));
            assert!(e.contains("not in its 8192 bytes"), "{e}");
        }
    }

    /// UR-G5.
    #[test]
    fn a_part_that_begins_at_an_odd_place_is_refused() {
        let fd = in_memory(8192);
        let e = map(&fd, 4097, 4096 - 1).map(drop).unwrap_err().to_string();
        assert!(e.contains("odd"), "{e}");
        let memory = map(&fd, 4098, 4096 - 2).unwrap();
        memory.store_u16(2, 7).unwrap();
        assert_eq!(memory.load_u16(2), Ok(7));
    }

    /// UR-G6.
    #[test]
    fn a_helper_gives_the_memory_back() {
        let fd = memfd_create(c"given-back", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        let memory = map(&fd, 0, 8192).unwrap();
        let is_mapped =
            || std::fs::read_to_string("/proc/self/maps").unwrap().contains("given-back");
        assert!(is_mapped());
        let before = helpers::closes_begun();
        drop(memory);
        assert!(helpers::closes_begun() > before);
        helpers::wait_for_closes(std::time::Duration::from_secs(10));
        assert!(!is_mapped());
    }

    /// UR-B1: only the pages of the part are mapped, and they count until they are not.
    #[test]
    fn a_part_of_a_long_file_takes_no_more_than_its_pages() {
        let (fd, budget) = (in_memory(1 << 40), GuestBudget::new(8192));
        let memory = GuestMemory::map(&fd, (1 << 39) + 4094, 4, &budget).unwrap();
        memory.write(0, b"part").unwrap();
        let mut found = [0; 4];
        File::from(fd.try_clone().unwrap()).read_exact_at(&mut found, (1 << 39) + 4094).unwrap();
        assert_eq!(&found, b"part");
        let full = GuestMemory::map(&fd, 0, 1, &budget).map(drop).unwrap_err().to_string();
        assert!(full.contains("do not fit"), "{full}");
        let long = GuestMemory::map(&fd, 0, 1 << 40, &GuestBudget::new(1 << 39));
        assert!(long.map(drop).unwrap_err().to_string().contains("--vhost-memory allows 524288"));
        drop(memory);
        assert!(GuestMemory::map(&fd, 0, 1, &budget).is_ok(), "it waits for the helper");
    }

    /// UR-G3.
    #[test]
    fn memory_that_was_cut_off_is_an_error() {
        let fd = in_memory(16384);
        let memory = map(&fd, 0, 16384).unwrap();
        File::from(fd).set_len(4096).unwrap();
        memory.write(0, b"still").unwrap();
        assert_eq!(memory.write(8192, b"lost"), Err(Status::Io));
        assert_eq!(memory.load_u16(12288), Err(Status::Io));
    }

    #[test]
    #[should_panic(expected = "the caller has checked the range")]
    fn a_range_beyond_the_memory_is_our_mistake() {
        let memory = map(&in_memory(8192), 0, 4096).unwrap();
        let _ = memory.read(4095, &mut [0; 2]);
    }
}
