// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of memory that several cores may access at once (BL-M2 of `ram`).
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;

// SAFETY: the C library's own, declared as it defines them.
unsafe extern "C" {
    fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
    fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void;
}

/// Copies bytes that another thread may be copying at the same time. Drivers with memory of their
/// own use it too, with [`crate::Slice::with_source`] and [`crate::Slice::with_destination`].
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes. While this runs, no reference is used to
/// bytes that this or another copy writes, but the one that `from` or `to` was made of.
#[inline]
pub unsafe fn copy_shared(to: *mut c_void, from: *const c_void, len: usize) {
    if cfg!(miri) {
        // Miri can't call the C library, and in its tests no copies race.
        // SAFETY: by the caller's promise.
        return unsafe { ptr::copy(from.cast::<u8>(), to.cast::<u8>(), len) };
    }
    // SAFETY: by the caller's promise. Racing copies by Rust's own functions would be undefined.
    // Behind `black_box` this calls machine code that the compiler does not know; its effect is one
    // that a loop of relaxed atomic loads and stores of bytes may have, and that is defined. Such a
    // loop itself would be slow: it is not vectorised, eight bytes at a time at best. The ranges
    // may be parts of one buffer, and overlap.
    unsafe { black_box(memmove as unsafe extern "C" fn(_, _, _) -> _)(to, from, len) };
}

/// Fills bytes that another thread may be copying with zeroes.
///
/// # Safety
/// `to` is writable for `len` bytes, and no reference to them is used meanwhile.
#[inline]
pub(crate) unsafe fn zero_shared(to: *mut c_void, len: usize) {
    if cfg!(miri) {
        // SAFETY: as in `copy_shared`.
        return unsafe { to.cast::<u8>().write_bytes(0, len) };
    }
    // SAFETY: as in `copy_shared`.
    unsafe { black_box(memset as unsafe extern "C" fn(_, _, _) -> _)(to, 0, len) };
}
