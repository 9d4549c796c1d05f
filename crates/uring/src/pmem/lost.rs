// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lost pages: mapped pages that can no longer be accessed.
//!
//! A load or store in a mapping raises SIGBUS if another process has truncated the file, if the
//! disk can't read the page or has no space for it, or if persistent memory is poisoned. By default
//! that ends the process, and with it every other device.
//!
//! ```text
//!   copy ──▶ SIGBUS ──▶ handler: zeroes in place of the page, the page is noted as lost
//!     └──── goes on ──▶ its request looks: a lost page in its range? then it ends in EIO
//! ```
//!
//! Invariants
//! - UR-L1 A lost page stays lost until the mapping is dropped: no request that touches it
//!   succeeds.
//! - UR-L2 A fault outside of our mappings goes to the previous handler.
//! - UR-L4 A fault is noted at the mapping in which it is: the place of one that was given back may
//!   be taken for another at any moment.
//! - UR-L3 The handler only makes a system call, reads constants and writes atomics: so it may
//!   interrupt any code.
use std::ffi::c_int;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Files that can be mapped at once, the memory of guests included: each has a few.
pub(super) const MAPPINGS_MAX: usize = 1024;
/// Lost pages that a mapping remembers; with one more all of it is lost.
const LOST_MAX: usize = 64;
/// In place of an offset that the handler of another thread is about to note: all is lost until
/// then.
const UNKNOWN: usize = usize::MAX;

/// One mapping, as the handler sees it.
struct Place {
    taken: AtomicBool,
    /// Odd while the fields below change; another one after each change. What a handler has read
    /// of them belongs together if it is the same before and after (UR-L4).
    generation: AtomicUsize,
    /// Address; 0 while there is no mapping.
    base: AtomicUsize,
    len: AtomicUsize,
    /// What is replaced at once: a page; the huge page of a DAX device.
    unit: AtomicUsize,
    count: AtomicUsize,
    /// Offsets of lost units, the first `count`; the others are [`UNKNOWN`].
    lost: [AtomicUsize; LOST_MAX],
}

static PLACES: [Place; MAPPINGS_MAX] = [const {
    Place {
        taken: AtomicBool::new(false),
        generation: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        unit: AtomicUsize::new(0),
        count: AtomicUsize::new(0),
        lost: [const { AtomicUsize::new(0) }; LOST_MAX],
    }
}; MAPPINGS_MAX];

/// The previous handler of SIGBUS: as a rule Rust's own, which detects stack overflows.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping's place in the table; given back when dropped, which must be before it is unmapped.
pub(crate) struct Watch(&'static Place);

impl Watch {
    /// Watches `len` bytes at `base`, where pages are lost by `unit`. Nothing: the table is full.
    pub(crate) fn begin(base: *const u8, len: usize, unit: usize) -> Option<Watch> {
        BEFORE.get_or_init(install);
        let place = PLACES.iter().find(|p| !p.taken.swap(true, Ordering::Acquire))?;
        place.change(|| {
            place.lost.iter().for_each(|offset| offset.store(UNKNOWN, Ordering::Relaxed));
            place.count.store(0, Ordering::Relaxed);
            place.len.store(len, Ordering::Relaxed);
            place.unit.store(unit, Ordering::Relaxed);
            place.base.store(base.expose_provenance(), Ordering::Release);
        });
        Some(Watch(place))
    }

    /// UR-L1: whether a lost page lies in `range` of the mapping. After a copy.
    pub(crate) fn touches(&self, range: &Range<usize>) -> bool {
        // Another thread may have lost the page: it was noted before there were zeroes to copy.
        fence(Ordering::Acquire);
        let count = self.0.count.load(Ordering::Acquire);
        if count == 0 {
            return false;
        }
        let unit = self.0.unit.load(Ordering::Relaxed);
        let mut lost = self.0.lost[..count.min(LOST_MAX)].iter();
        let covers =
            |offset: usize| offset == UNKNOWN || offset < range.end && range.start < offset + unit;
        count > LOST_MAX || lost.any(|place| covers(place.load(Ordering::Acquire)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.change(|| self.0.base.store(0, Ordering::Release));
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Place {
    /// Changes what a handler reads (UR-L4). By one thread: the one that has taken the place.
    fn change(&self, change: impl FnOnce()) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.generation.store(generation.wrapping_add(2), Ordering::Release);
    }

    /// The mapping in which `address` is, if this is its place: base, length, unit (UR-L4).
    fn find(&self, address: usize) -> Option<(usize, usize, usize)> {
        let generation = self.generation.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let unit = self.unit.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // Whoever faults in a mapping has seen its place complete: one that changes is another's.
        let is_whole =
            generation.is_multiple_of(2) && self.generation.load(Ordering::Relaxed) == generation;
        let is_inside = base != 0 && address >= base && address - base < len;
        (is_whole && is_inside).then_some((base, len, unit))
    }

    /// Puts zeroes where `address` faulted. False: it is not in this mapping, or can't be helped.
    fn replace(&self, address: usize) -> bool {
        let Some((base, len, unit)) = self.find(address) else { return false };
        let offset = (address - base) / unit * unit;
        // First of all: as soon as there are zeroes other threads get them without a fault. Several
        // threads may be here.
        let nth = self.count.fetch_add(1, Ordering::AcqRel);
        if let Some(place) = self.lost.get(nth) {
            place.store(offset, Ordering::Release);
        }
        if put_zeroes(base + offset, unit) {
            return true;
        }
        // The process has as many mappings as it may, and a page of its own is one or two more. All
        // of this one in its place is none more.
        self.count.store(LOST_MAX + 1, Ordering::Release);
        put_zeroes(base, len)
    }
}

/// Maps zeroes in place of what is there.
fn put_zeroes(address: usize, len: usize) -> bool {
    let place = std::ptr::with_exposed_provenance_mut(address);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the bytes lie in a mapping of ours, in which there are no Rust objects: whoever
    // copies there reads zeroes from now on, or writes into the void, and then looks (UR-L1).
    let zeroes =
        unsafe { mmap_anonymous(place, len, protection, MapFlags::PRIVATE | MapFlags::FIXED) };
    zeroes.is_ok()
}

fn install() -> libc::sigaction {
    // SAFETY: a sigaction of zeroes is valid: no handler, no flags, an empty mask.
    let (mut new, mut before) = unsafe { std::mem::zeroed::<(libc::sigaction, libc::sigaction)>() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    new.sa_sigaction = handler as *const () as usize;
    // On the stack that threads keep for stack overflows, where there is one.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are valid, and the handler keeps UR-L3.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const new, &raw mut before) };
    assert_eq!(set, 0, "SIGBUS can be handled");
    before
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo to a handler that has asked for it.
    let address = unsafe { (*info).si_addr() }.addr();
    if PLACES.iter().any(|place| place.replace(address)) {
        return;
    }
    // UR-L2.
    let before = BEFORE.get().filter(|b| b.sa_flags & libc::SA_SIGINFO != 0);
    match before.map(|b| b.sa_sigaction) {
        Some(handler) if handler > 1 => {
            // SAFETY: what was installed with SA_SIGINFO has this type, and is none of the two
            // special values.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        // The default again: the instruction faults once more, and that is the end.
        // SAFETY: SIGBUS and SIG_DFL are valid.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 4096;

    fn place() -> Place {
        Place {
            taken: AtomicBool::new(true),
            generation: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            unit: AtomicUsize::new(UNIT),
            count: AtomicUsize::new(0),
            lost: [const { AtomicUsize::new(UNKNOWN) }; LOST_MAX],
        }
    }

    /// UR-L4: a long mapping and a short one below it have the place in turn. An address behind the
    /// short one is in neither: it would be in the short one's base with the long one's length.
    #[test]
    fn a_place_that_changes_hands_is_never_half_of_each() {
        let rounds = if cfg!(miri) { 200 } else { 200_000 };
        let place = place();
        let (short, long) = ((UNIT, UNIT), (1 << 30, 1 << 20));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 0..rounds {
                    let (base, len) = if nth % 2 == 0 { short } else { long };
                    place.change(|| {
                        place.len.store(len, Ordering::Relaxed);
                        place.base.store(base, Ordering::Release);
                    });
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(place.find(3 * UNIT), None);
                for (base, len) in [short, long] {
                    let found = place.find(base);
                    assert!(found.is_none_or(|found| found == (base, len, UNIT)), "{found:?}");
                }
            }
        });
        assert_eq!(place.find(1 << 30), Some((1 << 30, 1 << 20, UNIT)), "the last one");
    }
}
