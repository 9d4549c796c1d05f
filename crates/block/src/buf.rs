// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Buffers for I/O: page aligned, reference counted, from a pool of each core. Sharing copies
//! nothing.
//!
//! ```text
//!  Bufs  = [ Slice , Slice , ... ]        one bio's data, in order
//!  Slice = Buf + offset + length
//!  Buf   ──▶ Raw { refs, borrows, class, ptr } ──▶ aligned bytes
//!                 ▲ last drop puts it back into the pool of its size class
//! ```
//!
//! Invariants
//! - BL-BF1 The bytes are accessed only under a borrow of their range ([`Borrows`]): by reference
//!   inside `read` and `write`, or by `shared_copy`. Bytes with a `&[u8]` are not changed, and
//!   bytes with a `&mut [u8]` are not accessed otherwise: an attempt panics. Ranges that do not
//!   overlap are independent: several cores may use parts of one buffer.
//! - BL-BF2 Every byte is initialised: fresh memory is zeroed, a buffer from the pool has its old
//!   contents. Code that sends a buffer out must write all of it first.
//! - BL-BF3 The pool of a size class keeps at most [`POOL_BYTES_MAX`]; further buffers are freed.
//! - BL-BF4 A pointer (`as_ptr`) is for the kernel alone, from submit to completion (border
//!   contract, point 8). Borrows do not know of it: code that dereferences it, or has it
//!   dereferenced, must keep BL-BF1 itself.
//! - BL-BF5 `refs` counts the buffers that there are, and the spare references of a client's memory
//!   ([`Lending`]). Only the thread that lends it has spare ones, and only until the lending ends:
//!   so the last buffer gives the memory back.
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use crate::borrow::{Borrow, Borrows, Kind};
use crate::shared_copy::{copy_shared, zero_shared};

/// Alignment of every buffer: what O_DIRECT may ask for.
pub const PAGE: usize = 4096;

/// Largest buffer that is pooled; larger ones are rare and go to the system.
const POOLED_MAX: usize = 1 << 20;
/// Size classes 4 KiB, 8 KiB, ... 1 MiB.
const CLASSES: usize = 9;
/// What the pool of one size class keeps: enough for a thousand 4 KiB requests or 16 large ones.
const POOL_BYTES_MAX: usize = 16 << 20;
const UNPOOLED: u8 = u8::MAX;
/// The class of a client's memory.
const OF_CLIENT: u8 = u8::MAX - 1;
/// A buffer of so many bytes is large: the usual allocator takes fresh pages for it.
const FRESH_MIN: usize = 256 << 10;

struct Raw {
    refs: AtomicU32,
    borrows: Borrows,
    class: u8,
    capacity: usize,
    ptr: NonNull<u8>,
    /// What the system gave: `ptr`, or less than a page before it.
    base: NonNull<u8>,
    /// Of a client's memory; none of our own.
    lending: Option<Lending>,
}

/// A client's memory, as one thread lends it. A locked count would wait for all stores before it,
/// for those into lines that the client's processor has too. So a reference that comes back to this
/// thread is kept for the next loan.
struct Lending {
    /// What keeps the memory there.
    _owner: Arc<dyn Any + Send + Sync>,
    /// The thread ([`this_thread`]). No other one touches the cells.
    thread: usize,
    spare: Cell<u32>,
    has_ended: Cell<bool>,
}

impl Lending {
    /// Takes a spare reference, if there is one and this thread may.
    #[inline]
    fn take_spare(&self) -> bool {
        if self.thread != this_thread() {
            return false;
        }
        let spare = self.spare.get();
        self.spare.set(spare.saturating_sub(1));
        spare > 0
    }

    /// Keeps a reference for the next loan; false when this thread may not, or the lending has
    /// ended.
    #[inline]
    fn keep_spare(&self) -> bool {
        let is_kept = self.thread == this_thread() && !self.has_ended.get();
        if is_kept {
            self.spare.set(self.spare.get() + 1); // as many as `refs` at most
        }
        is_kept
    }
}

/// The number of this thread: no other one of the process has or had it.
#[inline]
fn this_thread() -> usize {
    #[cold]
    fn number(of_thread: &Cell<usize>) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        of_thread.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        of_thread.get()
    }
    THREAD.with(|of_thread| if of_thread.get() > 0 { of_thread.get() } else { number(of_thread) })
}

impl Raw {
    /// By the class, which lies beside the count.
    #[inline]
    fn lending(&self) -> Option<&Lending> {
        if self.class == OF_CLIENT { self.lending.as_ref() } else { None }
    }
}

/// The free buffers of one core, by size class.
struct Pool([Vec<NonNull<Raw>>; CLASSES]);

impl Drop for Pool {
    fn drop(&mut self) {
        for raw in self.0.iter_mut().flat_map(std::mem::take) {
            // SAFETY: a pooled Raw has no other reference; the pool owned it.
            unsafe { free(raw) };
        }
    }
}

thread_local! {
    /// Zero: it has no number yet.
    static THREAD: Cell<usize> = const { Cell::new(0) };
    static POOL: RefCell<Pool> = const { RefCell::new(Pool([const { Vec::new() }; CLASSES])) };
}

/// A shared, page-aligned buffer. Cloning shares it.
pub struct Buf {
    raw: NonNull<Raw>,
    len: u32,
}

// SAFETY: the count is atomic, and BL-BF1 holds whichever thread accesses the bytes. The cells of a
// lending are for one thread alone (BL-BF5).
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

/// The layout of an allocation. A large buffer takes one page more and no alignment: then the
/// allocator returns fresh pages without zeroing them, and pages that are not used take no memory.
fn layout(capacity: usize) -> Layout {
    let is_large = capacity >= FRESH_MIN;
    let (size, align) = if is_large { (capacity + PAGE, 1) } else { (capacity, PAGE) };
    Layout::from_size_align(size, align).expect("a capacity below 2^32 has a valid layout")
}

fn class_of(len: usize) -> (u8, usize) {
    if len > POOLED_MAX {
        return (UNPOOLED, len.next_multiple_of(PAGE));
    }
    let capacity = len.next_power_of_two().max(PAGE);
    let class = capacity.trailing_zeros() - PAGE.trailing_zeros();
    (u8::try_from(class).expect("at most eight"), capacity)
}

/// Gives a buffer's memory back to the system.
///
/// # Safety
/// `raw` came from `Box::leak` in [`Buf::alloc`] and nothing refers to it any more.
unsafe fn free(raw: NonNull<Raw>) {
    // SAFETY: by the caller's promise this is the only pointer to a leaked box.
    let raw = unsafe { Box::from_raw(raw.as_ptr()) };
    if raw.class == OF_CLIENT {
        return; // the owner's
    }
    // SAFETY: allocated in `Buf::alloc` with this very layout.
    unsafe { dealloc(raw.base.as_ptr(), layout(raw.capacity)) };
}

impl Buf {
    /// A buffer of `len` bytes (1 to 2^31), contents unspecified, from this core's pool if it can.
    pub fn alloc(len: usize) -> Buf {
        assert!(len > 0 && len <= 1 << 31, "buffer of {len} bytes");
        let len_u32 = u32::try_from(len).expect("at most 2^31, asserted above");
        let (class, capacity) = class_of(len);
        let pooled = if class == UNPOOLED {
            None
        } else {
            POOL.try_with(|p| p.borrow_mut().0[usize::from(class)].pop()).ok().flatten()
        };
        if let Some(raw) = pooled {
            // SAFETY: a pooled Raw is alive and has no other reference.
            unsafe { raw.as_ref() }.refs.store(1, Ordering::Relaxed);
            return Buf { raw, len: len_u32 };
        }
        let layout = layout(capacity);
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let ahead = base.as_ptr().addr().next_multiple_of(PAGE) - base.as_ptr().addr();
        // SAFETY: at most a page less one byte, which the layout has beyond the capacity, or zero
        // where it is aligned to a page.
        let ptr = unsafe { base.add(ahead) };
        let (refs, borrows) = (AtomicU32::new(1), Borrows::new());
        let raw = Raw { refs, borrows, class, capacity, ptr, base, lending: None };
        let raw = NonNull::from(Box::leak(Box::new(raw)));
        Buf { raw, len: len_u32 }
    }

    /// The bytes of a client at `base`, 1 to 2^31 (BL-R4). This thread lends them, until
    /// [`Buf::end_lending`].
    ///
    /// # Safety
    /// They are mapped, to be read and written, as long as `owner` lives, and nobody makes a
    /// reference to them.
    pub(crate) unsafe fn of_client(
        base: NonNull<u8>,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Buf {
        assert!(len > 0 && len <= 1 << 31, "{len} bytes of a client");
        let (refs, borrows) = (AtomicU32::new(1), Borrows::of_client());
        let (spare, has_ended) = (Cell::new(0), Cell::new(false));
        let lending = Lending { _owner: owner, thread: this_thread(), spare, has_ended };
        let (class, lending) = (OF_CLIENT, Some(lending));
        let raw = Raw { refs, borrows, class, capacity: len, ptr: base, base, lending };
        let raw = NonNull::from(Box::leak(Box::new(raw)));
        Buf { raw, len: u32::try_from(len).expect("at most 2^31, asserted above") }
    }

    /// Keeps no spare reference any more (BL-BF5). On the thread that lends it.
    pub(crate) fn end_lending(&self) {
        let Some(lending) = &self.raw().lending else { return };
        assert_eq!(lending.thread, this_thread(), "the thread that lends it");
        lending.has_ended.set(true);
        // `self` is one more.
        self.raw().refs.fetch_sub(lending.spare.take(), Ordering::Release);
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        let buf = Buf::alloc(len);
        buf.write(|b| b.fill(0));
        buf
    }

    /// A buffer holding a copy of `bytes`, which are not empty.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let buf = Buf::alloc(bytes.len());
        buf.write(|b| b.copy_from_slice(bytes));
        buf
    }

    fn raw(&self) -> &Raw {
        // SAFETY: self holds a reference, so the Raw is alive.
        unsafe { self.raw.as_ref() }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// For drivers: where the bytes are, valid while any clone lives. See BL-BF4.
    pub fn as_ptr(&self) -> *mut u8 {
        self.raw().ptr.as_ptr()
    }

    /// Whether there is another clone, or a slice. Without one nobody else can make any.
    pub fn is_shared(&self) -> bool {
        self.raw().refs.load(Ordering::Acquire) > 1
    }

    /// Runs `f` on the bytes. Panics while somebody writes any of them.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        self.read_range(0, self.len(), f)
    }

    /// Runs `f` on the bytes, alone. Panics while somebody else uses any of them.
    pub fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let (at, _borrow) = self.borrow(Kind::Write, 0, self.len());
        // SAFETY: inside the buffer; BL-BF1: nobody else uses them until the borrow ends.
        f(unsafe { std::slice::from_raw_parts_mut(at, self.len()) })
    }

    /// Begins to use bytes `first..end`, and says where they are. Panics when there are none, or
    /// not all inside, or in another use.
    #[inline]
    fn borrow(&self, kind: Kind, first: usize, end: usize) -> (*mut u8, Borrow<'_>) {
        if first >= end || end > self.len() {
            outside(first, end, self.len());
        }
        let raw = self.raw();
        (raw.ptr.as_ptr().wrapping_add(first), raw.borrows.begin(kind, first, end))
    }

    #[inline]
    fn read_range<R>(&self, first: usize, end: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let (at, _borrow) = self.borrow(Kind::Read, first, end);
        // SAFETY: inside the buffer, as `borrow` checked; BL-BF1: nobody writes them until it ends.
        f(unsafe { std::slice::from_raw_parts(at, end - first) })
    }

    /// A part of the buffer; panics when `range` is empty or beyond the end.
    #[inline(always)]
    pub fn slice(&self, range: Range<usize>) -> Slice {
        Slice::from(self.clone()).cut(range)
    }

    /// The whole buffer.
    pub fn all(&self) -> Slice {
        Slice::from(self.clone())
    }
}

impl Clone for Buf {
    #[inline]
    fn clone(&self) -> Buf {
        let raw = self.raw();
        if !raw.lending().is_some_and(Lending::take_spare) {
            raw.refs.fetch_add(1, Ordering::Relaxed);
        }
        Buf { raw: self.raw, len: self.len }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        let raw = self.raw();
        if raw.lending().is_some_and(Lending::keep_spare) {
            return;
        }
        let refs = &raw.refs;
        // The last one: nobody else is left who could make another. Most are, and a count down
        // would wait for all stores before it.
        if refs.load(Ordering::Acquire) == 1 || refs.fetch_sub(1, Ordering::Release) == 1 {
            self.give_back();
        }
    }
}

impl Buf {
    /// Nobody else has it any more: to the pool, or to the system.
    #[inline(never)]
    fn give_back(&mut self) {
        fence(Ordering::Acquire);
        let (class, capacity) = (self.raw().class, self.raw().capacity);
        let kept = usize::from(class) < CLASSES
            && POOL
                .try_with(|p| {
                    let list = &mut p.borrow_mut().0[usize::from(class)];
                    let room = (list.len() + 1) * capacity <= POOL_BYTES_MAX;
                    if room {
                        list.push(self.raw);
                    }
                    room
                })
                .unwrap_or(false);
        if !kept {
            // SAFETY: the count reached zero: this was the last reference.
            unsafe { free(self.raw) };
        }
    }
}

crate::debug_as!(Buf, s => "Buf({} B)", s.len);

/// A contiguous part of a buffer.
#[derive(Clone, Debug)]
pub struct Slice {
    buf: Buf,
    offset: u32,
}

impl From<Buf> for Slice {
    fn from(buf: Buf) -> Slice {
        Slice { buf, offset: 0 }
    }
}

impl Slice {
    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a slice is never empty")]
    pub fn len(&self) -> usize {
        self.buf.len() - self.offset as usize
    }

    /// For drivers: where the bytes are, valid while any clone of the buffer lives. See BL-BF4.
    pub fn as_ptr(&self) -> *mut u8 {
        self.buf.as_ptr().wrapping_add(self.offset as usize)
    }

    /// Begins to use `len` bytes from `at` on, and says where they are. Panics when there are none,
    /// or not all inside, or in another use.
    #[inline]
    fn borrow(&self, kind: Kind, at: usize, len: usize) -> (*mut u8, Borrow<'_>) {
        let all = self.len();
        if len == 0 || at > all || len > all - at {
            outside(at, at.saturating_add(len), all);
        }
        let (raw, first) = (self.buf.raw(), self.offset as usize + at);
        (raw.ptr.as_ptr().wrapping_add(first), raw.borrows.begin(kind, first, first + len))
    }

    /// Begins to use all of it, and says where it is. Panics when it is in another use. A slice is
    /// never empty and lies in its buffer: that was checked when it was made.
    #[inline]
    fn borrow_all(&self, kind: Kind) -> (*mut u8, Borrow<'_>) {
        let (raw, first) = (self.buf.raw(), self.offset as usize);
        let borrow = raw.borrows.begin(kind, first, self.buf.len());
        (raw.ptr.as_ptr().wrapping_add(first), borrow)
    }

    /// Runs `f` on the bytes. Panics while somebody writes any of them.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        let (at, _borrow) = self.borrow_all(Kind::Read);
        // SAFETY: inside the buffer; BL-BF1: nobody writes them until the borrow ends.
        f(unsafe { std::slice::from_raw_parts(at, self.len()) })
    }

    /// Runs `f` on the bytes, alone. Panics while somebody else uses any of them.
    pub fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let (at, _borrow) = self.borrow_all(Kind::Write);
        // SAFETY: inside the buffer; BL-BF1: nobody else uses them until the borrow ends.
        f(unsafe { std::slice::from_raw_parts_mut(at, self.len()) })
    }

    /// Runs `f` on the place and the length of the bytes, as the source of copies. Panics while
    /// somebody has them borrowed to write.
    ///
    /// What `f` may do with the place, by its own `unsafe`: read from it until it returns, by
    /// [`copy_shared`] or machine code, that stays defined when another copy writes there.
    #[inline]
    pub fn with_source<R>(&self, f: impl FnOnce(*const u8, usize) -> R) -> R {
        let (at, _borrow) = self.borrow_all(Kind::CopyOut);
        f(at, self.len())
    }

    /// Runs `f` on the place and the length of the bytes, to copy there. Panics while somebody has
    /// them borrowed.
    ///
    /// What `f` may do with the place, by its own `unsafe`: write to it until it returns, by
    /// [`copy_shared`] or machine code, that stays defined when another copy reads or writes there.
    #[inline]
    pub fn with_destination<R>(&self, f: impl FnOnce(*mut u8, usize) -> R) -> R {
        let (at, _borrow) = self.borrow_all(Kind::CopyIn);
        f(at, self.len())
    }

    /// Runs `f` on bytes `range`, as [`Slice::read`].
    pub(crate) fn read_range<R>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> R) -> R {
        let first = self.offset as usize + range.start;
        self.buf.read_range(first, first + range.len(), f)
    }

    /// Fills it with zeroes, as a copy does.
    #[inline]
    pub(crate) fn zero(&self) {
        // SAFETY: the bytes are inside the buffer and borrowed to copy there.
        self.with_destination(|to, len| unsafe { zero_shared(to.cast(), len) });
    }

    /// Copies `out.len()` bytes, at least one, from `at` on out.
    #[inline]
    pub(crate) fn take(&self, at: usize, out: &mut [u8]) {
        let (from, _borrow) = self.borrow(Kind::CopyOut, at, out.len());
        // SAFETY: inside the buffer and borrowed; `out` is the caller's alone.
        unsafe { copy_shared(out.as_mut_ptr().cast(), from.cast(), out.len()) };
    }

    /// Copies `data`, at least a byte, to the bytes from `at` on.
    #[inline]
    pub(crate) fn put(&self, at: usize, data: &[u8]) {
        let (to, _borrow) = self.borrow(Kind::CopyIn, at, data.len());
        // SAFETY: as in `take`, the other way round; nobody changes `data` while it is borrowed.
        unsafe { copy_shared(to.cast(), data.as_ptr().cast(), data.len()) };
    }

    /// Copies `len` bytes, at least one, of `source` from `from` on to the bytes from `at` on.
    #[inline(always)]
    pub(crate) fn put_from(&self, at: usize, source: &Slice, from: usize, len: usize) {
        let (to, _to) = self.borrow(Kind::CopyIn, at, len);
        let (from, _from) = source.borrow(Kind::CopyOut, from, len);
        // SAFETY: inside their buffers, and both borrowed.
        unsafe { copy_shared(to.cast(), from.cast(), len) };
    }

    /// A part of this part; panics when `range` is empty or beyond the end.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        self.clone().cut(range)
    }

    #[inline(always)]
    fn cut(mut self, range: Range<usize>) -> Slice {
        if range.start >= range.end || range.end > self.len() {
            outside(range.start, range.end, self.len());
        }
        let end = self.offset as usize + range.end;
        self.buf.len = u32::try_from(end).expect("within the buffer, checked above");
        self.offset += u32::try_from(range.start).expect("within the buffer, checked above");
        self
    }
}

/// Apart from where it is checked: there nothing is kept for the message.
#[cold]
#[inline(never)]
fn outside(first: usize, end: usize, all: usize) -> ! {
    panic!("{} bytes at {first} of {all} bytes", end.saturating_sub(first));
}

#[cfg(test)]
#[path = "buf_tests.rs"]
mod tests;
