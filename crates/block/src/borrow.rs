// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrows: which ranges of one buffer are in use at this moment, and how.
//!
//! ```text
//!          begin                      second one
//!   FREE ────────▶ [ kind last first ] ────────▶ MANY: all of them are in the list
//!     ▲                 │ end                      │ the last of the list ends
//!     └─────────────────┴──────────────────────────┘
//! ```
//!
//! Nearly always there is one at a time, and then it is in one word: begin and end are an atomic
//! instruction each. The list serves cores that have parts of one buffer.
//!
//! Invariants
//! - BL-R1 Two borrows that overlap are of kinds that go together ([`Kind`]).
//! - BL-R2 The word is FREE, the only borrow, or MANY; then all borrows are in the list. It becomes
//!   MANY, and leaves that, under the list's lock.
//! - BL-R3 What was done under a borrow happens before all that is done under one that begins later
//!   and does not go together with it: an end releases, a begin acquires.
//! - BL-R4 The bytes of a client ([`crate::ClientMemory`]) are copied in by others at any time, for
//!   which nothing begins: copies of them are under no borrow, and references are refused.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How a range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There is a `&[u8]`: nobody writes.
    Read = 0,
    /// There is a `&mut [u8]`: nobody else does anything.
    Write = 1,
    /// Bytes are copied out, as `copy_shared` does: there is no `&mut [u8]`.
    CopyOut = 2,
    /// Bytes are copied in, as `copy_shared` does: there is no reference at all. Two copies may
    /// meet, and each byte is then one's or the other's.
    CopyIn = 3,
}

impl Kind {
    fn goes_with(self, other: Kind) -> bool {
        match self {
            Kind::Read => matches!(other, Kind::Read | Kind::CopyOut),
            Kind::Write => false,
            Kind::CopyOut => other != Kind::Write,
            Kind::CopyIn => matches!(other, Kind::CopyOut | Kind::CopyIn),
        }
    }
}

/// Bits of an offset. The longest buffer has 2^31 bytes, and the last byte is kept, not the end.
const OFFSET_BITS: u32 = 31;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
/// Words of no borrow: the first byte would come after the last.
const FREE: u64 = 1;
const MANY: u64 = 2;
/// A word that stays: BL-R4.
const CLIENT: u64 = 3;

#[inline]
fn word(kind: Kind, first: usize, end: usize) -> u64 {
    debug_assert!(first < end && end <= 1 << OFFSET_BITS, "bytes {first}..{end}");
    (kind as u64) << (2 * OFFSET_BITS) | (end as u64 - 1) << OFFSET_BITS | first as u64
}

fn kind_of(word: u64) -> Kind {
    match word >> (2 * OFFSET_BITS) {
        0 => Kind::Read,
        1 => Kind::Write,
        2 => Kind::CopyOut,
        _ => Kind::CopyIn,
    }
}

/// First and last byte.
fn bytes_of(word: u64) -> (u64, u64) {
    (word & OFFSET_MASK, word >> OFFSET_BITS & OFFSET_MASK)
}

/// BL-R1.
fn go_together(a: u64, b: u64) -> bool {
    let ((a_first, a_last), (b_first, b_last)) = (bytes_of(a), bytes_of(b));
    a_last < b_first || b_last < a_first || kind_of(a).goes_with(kind_of(b))
}

/// The borrows of one buffer.
pub(crate) struct Borrows {
    word: AtomicU64,
    /// As long as there are threads that use the buffer at this moment, times the depth to which
    /// each has nested its uses.
    list: Mutex<Vec<u64>>,
}

/// A range in use, until it is dropped; also when a closure panics.
pub(crate) struct Borrow<'a> {
    borrows: &'a Borrows,
    word: u64,
}

impl Borrows {
    pub(crate) const fn new() -> Borrows {
        Borrows { word: AtomicU64::new(FREE), list: Mutex::new(Vec::new()) }
    }

    /// Those of a client's bytes (BL-R4).
    pub(crate) const fn of_client() -> Borrows {
        Borrows { word: AtomicU64::new(CLIENT), list: Mutex::new(Vec::new()) }
    }

    /// Begins to use bytes `first..end`, which are not empty and end at 2^31 at most. Panics when
    /// that does not go together with another use of them.
    #[inline]
    pub(crate) fn begin(&self, kind: Kind, first: usize, end: usize) -> Borrow<'_> {
        let is_copy = matches!(kind, Kind::CopyOut | Kind::CopyIn);
        if is_copy && self.word.load(Ordering::Relaxed) == CLIENT {
            return Borrow { borrows: self, word: CLIENT };
        }
        let word = word(kind, first, end);
        // BL-R3.
        if self.word.compare_exchange(FREE, word, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.begin_beside(word);
        }
        Borrow { borrows: self, word }
    }

    #[cold]
    #[inline(never)]
    fn begin_beside(&self, new: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = self.word.load(Ordering::Relaxed);
            let (next, refused_by) = match now {
                FREE => (new, None),
                CLIENT => refuse_client(new),
                MANY => (MANY, list.iter().copied().find(|&old| !go_together(old, new))),
                one => (MANY, (!go_together(one, new)).then_some(one)),
            };
            if let Some(old) = refused_by {
                drop(list);
                refuse(new, old);
            }
            // BL-R2: nobody else makes it MANY or ends that meanwhile. BL-R3.
            if self.word.compare_exchange(now, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                match now {
                    FREE => {}
                    MANY => list.push(new),
                    one => list.extend([one, new]),
                }
                return;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn end_beside(&self, word: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let at = list.iter().position(|&one| one == word);
        list.swap_remove(at.expect("BL-R2: it was not the only one"));
        if list.is_empty() {
            self.word.store(FREE, Ordering::Release); // BL-R3
        }
    }
}

impl Drop for Borrow<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.word == CLIENT {
            return;
        }
        // BL-R3. The word of another borrow is never this one's: while this is the only one, the
        // word is its own, and else it is MANY.
        let only = self.borrows.word.compare_exchange(
            self.word,
            FREE,
            Ordering::Release,
            Ordering::Relaxed,
        );
        if only.is_err() {
            self.borrows.end_beside(self.word);
        }
    }
}

/// BL-R1. Our own mistake: whoever sends a buffer out leaves it alone until the request has ended.
#[cold]
fn refuse(new: u64, old: u64) -> ! {
    let what = match (kind_of(new), kind_of(old)) {
        (Kind::Read | Kind::CopyOut, _) => "read while it is being written",
        (Kind::Write | Kind::CopyIn, _) => "written while it is in use",
    };
    let bytes = |word| {
        let (first, last) = bytes_of(word);
        first..last + 1
    };
    let (new, old) = (bytes(new), bytes(old));
    panic!("buffer {what}: bytes {new:?}, and {old:?} are borrowed");
}

/// BL-R4. Our own mistake: the memory of a client was given to who does not take it.
#[cold]
fn refuse_client(new: u64) -> ! {
    let (first, last) = bytes_of(new);
    panic!("bytes {:?} are a client's, who changes them: they can only be copied", first..last + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 4] = [Kind::Read, Kind::Write, Kind::CopyOut, Kind::CopyIn];

    fn begins(borrows: &Borrows, kind: Kind, first: usize, end: usize) -> bool {
        let begin = || drop(borrows.begin(kind, first, end));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(begin)).is_ok()
    }

    #[test]
    fn a_word_says_what_was_borrowed_up_to_the_longest_buffer() {
        for kind in KINDS {
            for (first, end) in [(0, 1), (0, 1 << 31), (5, 4096), ((1 << 31) - 1, 1 << 31)] {
                let word = word(kind, first, end);
                let (a, b) = bytes_of(word);
                assert_eq!((kind_of(word), a, b), (kind, first as u64, end as u64 - 1));
                assert!(word != FREE && word != MANY, "{kind:?} {first}..{end}");
            }
        }
    }

    #[test]
    fn kinds_go_together_as_their_table_says() {
        // Rows and columns in the order of `KINDS`.
        let table = ["+.+.", "....", "+.++", "..++"];
        for (old, row) in KINDS.into_iter().zip(table) {
            for (new, cell) in KINDS.into_iter().zip(row.chars()) {
                for beside_others in [false, true] {
                    let borrows = Borrows::new();
                    let _one = borrows.begin(old, 100, 200);
                    let _other = beside_others.then(|| borrows.begin(Kind::Write, 200, 201));
                    for (first, end) in [(100, 200), (0, 101), (199, 200), (150, 151), (0, 300)] {
                        let fits = cell == '+' && !(beside_others && end > 200);
                        let begun = begins(&borrows, new, first, end);
                        assert_eq!(begun, fits, "{new:?} {first}..{end} beside {old:?}");
                    }
                    assert!(begins(&borrows, new, 0, 100) && begins(&borrows, new, 201, 1 << 31));
                }
            }
        }
    }

    #[test]
    fn bytes_of_a_client_are_only_copied() {
        let borrows = Borrows::of_client();
        let _copies = KINDS.map(|kind| (kind as u64 > 1).then(|| borrows.begin(kind, 0, 4096)));
        for kind in KINDS {
            assert_eq!(begins(&borrows, kind, 100, 200), kind as u64 > 1, "{kind:?}");
        }
        assert_eq!(borrows.word.load(Ordering::Relaxed), CLIENT);
    }

    #[test]
    fn borrows_end_in_any_order_and_the_word_is_free_again() {
        let borrows = Borrows::new();
        let a = borrows.begin(Kind::Read, 0, 10);
        let b = borrows.begin(Kind::Read, 0, 10);
        let c = borrows.begin(Kind::Write, 10, 20);
        drop(a);
        assert!(!begins(&borrows, Kind::CopyIn, 9, 10));
        drop(b);
        assert!(begins(&borrows, Kind::CopyIn, 9, 10));
        assert!(!begins(&borrows, Kind::CopyOut, 19, 30));
        drop(c);
        assert_eq!(borrows.word.load(Ordering::Relaxed), FREE);
        drop(borrows.begin(Kind::Write, 0, 30));
        assert!(borrows.list.lock().unwrap().is_empty());
    }
}

#[cfg(test)]
#[path = "borrow_tests.rs"]
mod refused_borrows;
