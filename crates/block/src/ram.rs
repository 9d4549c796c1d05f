// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Ram`: a region of zeroed memory that several cores read and write at once without a lock.
//!
//! ```text
//!   core 0 ─┐                    ┌─ a page that was written: has memory
//!   core 1 ─┼─ Arc<Ram> ──▶ [ .. │ .. │ .. ]
//!   core 2 ─┘                    └─ a page that was not: has none, reads as zeroes
//! ```
//!
//! Invariants
//! - BL-M1 Every access is checked against the region's length; nothing outside it is touched.
//! - BL-M2 The bytes are accessed only by `shared_copy`, so the compiler assumes nothing about them
//!   that another core could break. Accesses of one place from two cores at once are a race of
//!   their clients; each byte is then one or the other (border contract, points 2 and 6).
//! - BL-M3 An access writes no bookkeeping: cores that use different places share nothing.
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::shared_copy::{copy_shared, zero_shared};
use crate::{Bufs, Error, ErrorKind, PAGE, Reservation};

/// Memory shared by cores. It takes a page when that is first written, and returns whole pages when
/// they are punched out.
pub struct Ram {
    base: NonNull<c_void>,
    len: usize,
    /// The share of a budget that it holds as long as it lives.
    memory: Option<Reservation>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives until the last owner
// drops it; access from several threads is sound by BL-M2.
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

/// BL-M1. A function of its own, so that the check keeps no values for the message.
#[cold]
#[inline(never)]
fn outside(at: usize, len: usize, region: usize) -> ! {
    panic!("{len} bytes at {at} of a region of {region} bytes");
}

impl Ram {
    /// A region of `len` bytes, all zeroes, taking no memory yet.
    pub fn new(len: u64) -> Result<Ram, Error> {
        let failed = |kind| Error::new(kind, format!("cannot reserve {len} bytes of memory"));
        let too_large = |_| failed(ErrorKind::NoSpace);
        let len = usize::try_from(len).map_err(too_large)?;
        if len == 0 {
            return Err(Error::invalid("cannot reserve 0 bytes of memory: at least 1 is needed"));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // No reservation: a device may be larger than the machine's memory as long as it is sparse.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a mapping at a place that the kernel chooses touches no other.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags) }
            .map_err(|e| failed(ErrorKind::NoSpace).because(e))?;
        let base = NonNull::new(base).expect("the kernel maps nothing at address 0 unless told to");
        Ok(Ram { base, len, memory: None })
    }

    /// The same region; it holds `memory` of a budget as long as it lives.
    #[must_use]
    pub fn holding(mut self, memory: Reservation) -> Ram {
        self.memory = Some(memory);
        self
    }

    /// Where it begins: a page.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// BL-M1: where `len` bytes from `at` on begin; panics when they are not all inside.
    #[inline]
    fn at(&self, at: usize, len: usize) -> *mut c_void {
        let inside = len <= self.len && at <= self.len - len;
        if !inside {
            outside(at, len, self.len);
        }
        // SAFETY: at is at most the length of the mapping, checked above.
        unsafe { self.base.as_ptr().byte_add(at) }
    }

    /// Copies the bytes from `at` on out; panics when they are not all inside.
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) {
        let from = self.at(at, out.len());
        // SAFETY: `from` is mapped for that many bytes (BL-M1); `out` is the caller's alone and no
        // part of the mapping, of which nobody has a reference.
        unsafe { copy_shared(out.as_mut_ptr().cast(), from, out.len()) };
    }

    /// Copies `data` to the bytes from `at` on; panics when they are not all inside.
    #[inline]
    pub fn write(&self, at: usize, data: &[u8]) {
        let to = self.at(at, data.len());
        // SAFETY: as in `read`, the other way round; `data` can't change while it is borrowed.
        unsafe { copy_shared(to, data.as_ptr().cast(), data.len()) };
    }

    /// Starts to fetch the first kilobyte from `at` on into the CPU's cache, for a read or write
    /// that follows soon. No effect beyond the end.
    #[inline]
    pub fn prefetch(&self, at: usize, len: usize) {
        /// The CPU fetches further lines itself once these are read in order.
        const MOST: usize = 1024;
        const LINE: usize = 64;
        let end = self.len.min(at.saturating_add(len.min(MOST)));
        for line in (at..end).step_by(LINE) {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: the place lies inside the mapping; nothing is read, only fetched.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(line, 1).cast::<i8>()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }

    /// Fills `bufs` from `at` on. Panics when that is not all inside, or while somebody has the
    /// buffers borrowed.
    #[inline]
    pub fn read_bufs(&self, mut at: usize, bufs: &Bufs) {
        for slice in bufs.iter() {
            let from = self.at(at, slice.len());
            // SAFETY: `from` is mapped for that many bytes (BL-M1), and nobody has a reference to a
            // mapping; the slice is borrowed to copy there.
            slice.with_destination(|to, len| unsafe { copy_shared(to.cast(), from, len) });
            at += slice.len();
        }
    }

    /// Puts `bufs` at `at` and on. Panics when that is not all inside, or while somebody has the
    /// buffers borrowed to write.
    #[inline]
    pub fn write_bufs(&self, mut at: usize, bufs: &Bufs) {
        for slice in bufs.iter() {
            let to = self.at(at, slice.len());
            // SAFETY: as in `read_bufs`, the other way round.
            slice.with_source(|from, len| unsafe { copy_shared(to, from.cast(), len) });
            at += slice.len();
        }
    }

    /// Makes a range read as zeroes, and returns the memory of the whole pages in it. Panics when
    /// it is not all inside.
    pub fn punch(&self, range: Range<usize>) {
        assert!(range.start <= range.end, "range {range:?}");
        self.at(range.start, range.end - range.start);
        let first = range.start.next_multiple_of(PAGE).min(range.end);
        // The last page of the region is whole even where the region ends inside it.
        let end = if range.end == self.len { range.end } else { range.end / PAGE * PAGE };
        if first >= end {
            return self.zero(range);
        }
        // SAFETY: the range begins at a page and lies inside the mapping; private memory that is
        // given up reads as zeroes from then on, which any other core may see at any time (BL-M2).
        let dropped =
            unsafe { madvise(self.at(first, end - first), end - first, Advice::LinuxDontNeed) };
        if dropped.is_err() {
            // Locked memory (mlockall) is not given back.
            return self.zero(range);
        }
        self.zero(range.start..first);
        self.zero(end..range.end);
    }

    fn zero(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let len = range.end - range.start;
        let to = self.at(range.start, len);
        // SAFETY: mapped for `len` bytes (BL-M1); nobody has a reference to a mapping.
        unsafe { zero_shared(to, len) };
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and the last owner is going.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

crate::debug_as!(Ram, s => "Ram({} bytes)", s.len);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::Buf;

    /// Pages of the region that the kernel has memory for.
    fn resident(ram: &Ram, pages: Range<usize>) -> usize {
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0; pages.len() * 8];
        let first = ram.base.as_ptr().addr() / PAGE + pages.start;
        map.read_exact_at(&mut entries, first as u64 * 8).unwrap();
        // In memory or swapped out: the two top bits (Documentation/admin-guide/mm/pagemap.rst).
        entries.chunks(8).filter(|e| e[7] & 0xc0 != 0).count()
    }

    fn bytes(ram: &Ram, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![9; range.len()];
        ram.read(range.start, &mut out);
        out
    }

    #[test]
    fn what_was_written_is_read_back_and_the_rest_is_zero() {
        let ram = Ram::new(1 << 20).unwrap();
        ram.write(4000, &[7; 200]);
        let mut bufs = Bufs::from(Buf::copy_of(&[1; 512]));
        bufs.push(Buf::copy_of(&[2; 100]));
        ram.write_bufs(10_000, &bufs);
        assert_eq!(bytes(&ram, 3999..4201), [&[0][..], &[7; 200], &[0]].concat());
        let back = Bufs::from(Buf::zeroed(612));
        ram.read_bufs(10_000, &back);
        let mut out = [0; 612];
        back.copy_to(&mut out);
        assert_eq!(out[..], [&[1; 512][..], &[2; 100]].concat());
    }

    #[test]
    fn memory_is_taken_by_writes_only_and_given_back_by_punching() {
        let ram = Ram::new(1 << 40).unwrap();
        let far = (1 << 39) / PAGE;
        assert_eq!(resident(&ram, far..far + 64), 0);
        ram.write(1 << 39, &vec![3; 16 * PAGE]);
        assert_eq!(resident(&ram, far..far + 16), 16);
        // From the middle of one page to the middle of another.
        ram.punch((1 << 39) + 100..(1 << 39) + 8 * PAGE + 100);
        assert_eq!(resident(&ram, far..far + 16), 16 - 7);
        let page = bytes(&ram, 1 << 39..(1 << 39) + PAGE);
        assert_eq!(page, [&[3; 100][..], &[0; PAGE - 100]].concat());
        let last = bytes(&ram, (1 << 39) + 8 * PAGE..(1 << 39) + 9 * PAGE);
        assert_eq!(last, [&[0; 100][..], &[3; PAGE - 100]].concat());
        assert_eq!(bytes(&ram, (1 << 39) + PAGE..(1 << 39) + 8 * PAGE), vec![0; 7 * PAGE]);
    }

    #[test]
    fn punching_within_one_page_and_to_an_odd_end_zeroes_just_that() {
        let ram = Ram::new(3 * PAGE as u64 + 512).unwrap();
        ram.write(0, &vec![5; 3 * PAGE + 512]);
        ram.punch(10..20);
        ram.punch(20..20);
        ram.punch(3 * PAGE - 10..3 * PAGE + 512);
        let want = [&[5; 10][..], &[0; 10], &[5; 3 * PAGE - 30], &[0; 522]].concat();
        // Before it is looked at: a read maps the kernel's page of zeroes.
        assert_eq!(resident(&ram, 3..4), 0);
        assert_eq!(bytes(&ram, 0..3 * PAGE + 512), want);
    }

    #[test]
    fn access_outside_panics() {
        let ram = Ram::new(4096).unwrap();
        let out = |at: usize, len| {
            let read = || bytes(&ram, at..at.wrapping_add(len));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err()
        };
        assert!(!out(4095, 1));
        assert!(!out(4096, 0));
        assert!(out(4096, 1));
        assert!(out(0, 4097));
        let wraps = std::panic::catch_unwind(|| ram.write(usize::MAX, &[1, 2]));
        assert!(wraps.is_err());
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_the_size() {
        let e = Ram::new(1 << 60).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(e.to_string().contains("1152921504606846976 bytes"), "{e}");
        assert_eq!(Ram::new(0).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn cores_that_race_see_each_byte_as_somebody_wrote_it() {
        let ram = Ram::new(1 << 16).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for value in [1_u8, 2] {
                let (ram, stop) = (&ram, &stop);
                threads.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        ram.write(100, &[value; 5000]);
                        ram.punch(100..5100);
                    }
                });
            }
            for _ in 0..2000 {
                assert!(bytes(&ram, 100..5100).iter().all(|&b| b <= 2));
                assert!(bytes(&ram, 5100..6000).iter().all(|&b| b == 0));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
