// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies into persistent memory: past the CPU's caches, or into them and then written back.
//!
//! ```text
//!   Stream      ── non-temporal stores ─────────────────▶ memory controller ┐
//!   WriteBack   ── stores ──▶ caches ── clwb and kin ───▶ memory controller ┤ fence: durable
//! ```
//!
//! Invariants
//! - UR-C1 After a copy each of its bytes is on its way to the memory controller: by a non-temporal
//!   store, or by an instruction that wrote back its cache line after the store.
//! - UR-C2 A fence waits for all of them. Before a fence nothing of a copy need be durable, and any
//!   part of it may be.
//!
//! Non-temporal stores are weakly ordered for other cores, so a mapping is used by one thread only.
//! For that thread they are ordinary stores, and it may read before a fence. The compiler's
//! intrinsics do not allow that (`_mm_stream_si128` must be followed by a fence), so they are
//! written as inline assembly. The compiler does not look into them nor into `copy_shared`, so
//! another thread may write to the source meanwhile.

use block::copy_shared;

/// How a cache line is made to leave the caches: by an instruction that this CPU has. So whoever
/// has one, or a [`Method`], may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineFlush(Instruction);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// Written back, and kept for reads.
    Clwb,
    /// Written back and dropped, in any order with others.
    ClflushOpt,
    /// Written back and dropped, each after the one before: slow.
    Clflush,
}

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Non-temporal stores; what is not aligned to them goes through the caches.
    Stream(LineFlush),
    /// An ordinary copy, whose lines are then written back.
    WriteBack(LineFlush),
}

/// Bytes that a cache holds or writes back at once.
pub(super) const LINE_BYTES: usize = 64;

/// From this length on copies go past the caches; below, they are ordinary ones whose lines are
/// written back with `clwb` or `clflushopt`. A whole line that is written past the caches need not
/// be read first: with a fence now and then 64 B take 17 ns that way and 870 by `clwb`, 4 KiB 320
/// and 1700 (measured by `make bench-pmem-copy`, 2026-11, AMD EPYC, ordinary memory, busy machine).
/// dm-writecache found lines written back faster from 768 B on, on the persistent memory that it
/// was made for: measure there.
pub const STREAM_BYTES_MIN: usize = LINE_BYTES;

/// The best way to copy `len` bytes on a CPU that has `flush`.
pub fn best(flush: LineFlush, len: usize) -> Method {
    // Each `clflush` waits for the one before: the fewer the better.
    let few_flushes = flush.0 == Instruction::Clflush;
    if few_flushes || len >= STREAM_BYTES_MIN {
        Method::Stream(flush)
    } else {
        Method::WriteBack(flush)
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{detect, fence};
#[cfg(target_arch = "x86_64")]
use x86::{flush_lines, stream};

#[cfg(not(target_arch = "x86_64"))]
pub use other::{detect, fence};
#[cfg(not(target_arch = "x86_64"))]
use other::{flush_lines, stream};

/// The ways to copy that this CPU has, each named.
pub fn methods() -> Vec<(&'static str, Method)> {
    let mut all = Vec::new();
    for flush in available() {
        all.push(match flush.0 {
            Instruction::Clwb => ("clwb", Method::WriteBack(flush)),
            Instruction::ClflushOpt => ("clflushopt", Method::WriteBack(flush)),
            Instruction::Clflush => ("clflush", Method::WriteBack(flush)),
        });
    }
    all.extend(detect().map(|flush| ("stream", Method::Stream(flush))));
    all
}

#[cfg(target_arch = "x86_64")]
use x86::available;

#[cfg(not(target_arch = "x86_64"))]
use other::available;

/// Copies `from` to `to` by `method` and waits until it has left the caches.
///
/// For the bench and tests; panics when the lengths differ.
pub fn copy_and_fence(method: Method, to: &mut [u8], from: &[u8]) {
    copy_parts_and_fence(method, to, from, from.len().max(1));
}

/// The same in copies of `part` bytes each with one fence at the end.
pub fn copy_parts_and_fence(method: Method, to: &mut [u8], from: &[u8], part: usize) {
    assert_eq!(to.len(), from.len(), "copy of {} bytes to {}", from.len(), to.len());
    for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
        // SAFETY: two slices of one length; the fence orders the weak stores before any later load.
        unsafe { copy(method, to.as_mut_ptr(), from.as_ptr(), from.len()) };
    }
    fence();
}

/// Copies `len` bytes (UR-C1).
///
/// # Safety
/// `to` is writable and `from` readable for `len` bytes, the two do not overlap, nobody has a
/// reference to what is written of them meanwhile, and `method` came from [`methods`] or from what
/// [`detect`] returned. Until a [`fence`] only this thread may look at `to`.
pub(super) unsafe fn copy(method: Method, to: *mut u8, from: *const u8, len: usize) {
    match method {
        Method::WriteBack(flush) => {
            // SAFETY: the caller's promise.
            unsafe { copy_shared(to.cast(), from.cast(), len) };
            // SAFETY: the same bytes.
            unsafe { flush_lines(flush, to, len) };
        }
        Method::Stream(flush) => {
            // Whole sixteens in the middle; the ends through the caches.
            let head = to.align_offset(16).min(len);
            let body = (len - head) & !15;
            let tail = len - head - body;
            for (at, part) in [(0, head), (head + body, tail)] {
                if part > 0 {
                    // SAFETY: a part of what the caller gave.
                    unsafe { copy_shared(to.add(at).cast(), from.add(at).cast(), part) };
                    // SAFETY: the same bytes.
                    unsafe { flush_lines(flush, to.add(at), part) };
                }
            }
            // SAFETY: a part of what the caller gave; `to + head` is aligned to 16 unless `body` is
            // nothing.
            unsafe { stream(to.add(head), from.add(head), body) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
    use std::sync::LazyLock;

    use super::{Instruction, LINE_BYTES, LineFlush};

    const LEAF_1_EDX_CLFSH: u32 = 1 << 19;
    const LEAF_7_EBX_CLFLUSHOPT: u32 = 1 << 23;
    const LEAF_7_EBX_CLWB: u32 = 1 << 24;

    static AVAILABLE: LazyLock<Vec<LineFlush>> = LazyLock::new(|| {
        let ebx = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let has = [
            (Instruction::Clwb, ebx & LEAF_7_EBX_CLWB != 0),
            (Instruction::ClflushOpt, ebx & LEAF_7_EBX_CLFLUSHOPT != 0),
            (Instruction::Clflush, __cpuid(1).edx & LEAF_1_EDX_CLFSH != 0),
        ];
        has.iter().filter(|(_, there)| *there).map(|(flush, _)| LineFlush(*flush)).collect()
    });

    /// What this CPU has, best first.
    pub(super) fn available() -> Vec<LineFlush> {
        AVAILABLE.clone()
    }

    /// The best instruction of this CPU; nothing when it has none, and memory is made durable by
    /// the kernel.
    pub fn detect() -> Option<LineFlush> {
        AVAILABLE.first().copied()
    }

    /// UR-C2: waits until what has been copied is at the memory controller.
    pub fn fence() {
        // SAFETY: every x86-64 has it; it takes no operands.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// The bytes are mapped, and the CPU has `flush`.
    pub(super) unsafe fn flush_lines(flush: LineFlush, to: *const u8, len: usize) {
        let before = to.addr() % LINE_BYTES;
        let first = to.wrapping_sub(before);
        for at in (0..before + len).step_by(LINE_BYTES) {
            let line = first.wrapping_add(at);
            match flush.0 {
                // SAFETY: a line of mapped memory, by the caller's promise; the CPU has it.
                Instruction::Clwb => unsafe {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                Instruction::ClflushOpt => unsafe {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                Instruction::Clflush => unsafe {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                },
            }
        }
    }

    /// Copies by non-temporal stores of 16 bytes.
    ///
    /// # Safety
    /// As [`super::copy`]; `to` is aligned to 16 and `len` is a multiple of 16.
    pub(super) unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
        let mut at = 0;
        // A line at a time, so that it leaves the write-combining buffer whole.
        while at + LINE_BYTES <= len {
            // SAFETY: the line is inside both, and aligned to 16 by the caller's promise; every
            // x86-64 has these instructions.
            unsafe {
                asm!(
                    "movdqu {a}, [{from}]",
                    "movdqu {b}, [{from} + 16]",
                    "movdqu {c}, [{from} + 32]",
                    "movdqu {d}, [{from} + 48]",
                    "movntdq [{to}], {a}",
                    "movntdq [{to} + 16], {b}",
                    "movntdq [{to} + 32], {c}",
                    "movntdq [{to} + 48], {d}",
                    from = in(reg) from.add(at),
                    to = in(reg) to.add(at),
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
            }
            at += LINE_BYTES;
        }
        while at < len {
            // SAFETY: sixteen bytes inside both, aligned as above.
            unsafe {
                asm!(
                    "movdqu {a}, [{from}]",
                    "movntdq [{to}], {a}",
                    from = in(reg) from.add(at),
                    to = in(reg) to.add(at),
                    a = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
            }
            at += 16;
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod other {
    //! On other CPUs the kernel makes memory durable; nothing here is ever used for that.
    use super::LineFlush;

    pub(super) fn available() -> Vec<LineFlush> {
        Vec::new()
    }

    /// Nothing: memory is made durable by the kernel.
    pub fn detect() -> Option<LineFlush> {
        None
    }

    /// UR-C2, where there is nothing to wait for.
    pub fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    // SAFETY: it looks at nothing; unsafe as its likeness on x86-64 is.
    pub(super) unsafe fn flush_lines(_: LineFlush, _: *const u8, _: usize) {
        unreachable!("`detect` says that there is no such instruction");
    }

    // SAFETY: it looks at nothing; unsafe as its likeness on x86-64 is.
    pub(super) unsafe fn stream(_: *mut u8, _: *const u8, _: usize) {
        unreachable!("`detect` says that there is no such instruction");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| u8::try_from(i * 31 % 251).unwrap() + 1).collect()
    }

    #[test]
    fn copies_of_any_alignment_and_length_are_exact() {
        let from = bytes(4096 + 256);
        let lengths = (0..300).chain([511, 512, 513, 767, 768, 4095, 4096]);
        let lengths: Vec<usize> = lengths.collect();
        for (name, method) in methods() {
            for at in 0..65 {
                for &len in lengths.iter().filter(|&l| at % 7 == 0 || !(40..500).contains(l)) {
                    let source = &from[at / 3..at / 3 + len];
                    let mut to = vec![0; at + len + 70];
                    copy_and_fence(method, &mut to[at..at + len], source);
                    assert!(to[at..at + len] == *source, "{name}: {len} bytes to {at}");
                    let beside = to[..at].iter().chain(&to[at + len..]);
                    assert!(beside.copied().all(|b| b == 0), "{name}: {len} bytes to {at}");
                }
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_x86_64_has_a_way_and_the_best_comes_first() {
        let all = available();
        assert_eq!(detect(), all.first().copied());
        let rank = |flush: &LineFlush| match flush.0 {
            Instruction::Clwb => 0,
            Instruction::ClflushOpt => 1,
            Instruction::Clflush => 2,
        };
        assert!(all.is_sorted_by_key(rank), "{all:?}");
        assert!(!all.is_empty());
    }

    #[test]
    fn a_cpu_with_clflush_only_streams_whatever_the_length() {
        let [slow, fast] = [Instruction::Clflush, Instruction::Clwb].map(LineFlush);
        assert_eq!(best(slow, 8), Method::Stream(slow));
        assert_eq!(best(fast, 63), Method::WriteBack(fast));
        assert_eq!(best(fast, 64), Method::Stream(fast));
    }
}
