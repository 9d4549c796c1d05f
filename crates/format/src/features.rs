// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Feature words: three words of bits in every header that is read before all else. They say what
//! an object uses that its first versions did not have, and what a program may do that does not
//! know a bit.
//!
//! ```text
//! word        a program that does not know a bit of it
//! incompat    refuses, and changes nothing
//! ro_compat   may read, and refuses to write
//! compat      ignores the bit, and leaves it out of what it writes next
//! ```
//!
//! Fields of a feature lie in the *room* of the header: bytes that are zero while no bit that the
//! reader does not know is set. A header has words if, and only if, it says something that the
//! versions before them can't say: so media stay readable for older programs until a feature is
//! used. The bits are in `docs/format`.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Damage, is_blank};

/// The three words, 24 bytes.
#[derive(
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[repr(C)]
pub(crate) struct Features {
    pub(crate) incompat: U64,
    pub(crate) ro_compat: U64,
    pub(crate) compat: U64,
}

/// What a header has that only later programs know, and that a reader may ignore. Who copies the
/// header keeps it; who writes a newer state leaves it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Later {
    /// Bits that allow to read alone.
    pub ro_compat: u64,
    /// Bits that allow everything.
    pub compat: u64,
    /// The bytes of the room.
    pub room: Vec<u8>,
}

/// Why the words of a header don't let it be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Bits of `incompat` that are not known.
    Incompat(u64),
    /// No bit says what the room holds.
    Room,
}

impl Features {
    pub(crate) fn new(incompat: u64, ro_compat: u64, later: Option<&Later>) -> Features {
        let (more, compat) = later.map_or((0, 0), |later| (later.ro_compat, later.compat));
        Features {
            incompat: U64::new(incompat),
            ro_compat: U64::new(ro_compat | more),
            compat: U64::new(compat),
        }
    }

    /// What later programs have said with these words in `room`, to a reader who knows the bits
    /// `incompat` and `ro_compat`.
    pub(crate) fn later(
        &self,
        incompat: u64,
        ro_compat: u64,
        room: &[u8],
    ) -> Result<Option<Later>, Unreadable> {
        let unknown = self.incompat.get() & !incompat;
        if unknown != 0 {
            return Err(Unreadable::Incompat(unknown));
        }
        let (ro_compat, compat) = (self.ro_compat.get() & !ro_compat, self.compat.get());
        if (ro_compat, compat) != (0, 0) {
            return Ok(Some(Later { ro_compat, compat, room: room.to_vec() }));
        }
        if is_blank(room) { Ok(None) } else { Err(Unreadable::Room) }
    }
}

impl Features {
    /// Checks the words of a header of which no bit is known, and which is not kept: whoever reads
    /// it acts on it.
    pub(crate) fn check(&self, room: &[u8]) -> Result<(), Damage> {
        let (incompat, ro_compat) = (self.incompat.get(), self.ro_compat.get());
        if (incompat, ro_compat) != (0, 0) {
            let written_by = String::new();
            let later = LaterFormat { generation: 0, incompat, ro_compat, written_by };
            return Err(Damage::Later(later));
        }
        let is_said = self.compat != U64::ZERO || is_blank(room);
        if is_said { Ok(()) } else { Err(Damage::Field("reserved")) }
    }
}

/// What a program does not know of a header, and must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterFormat {
    /// The generation of a superblock; 0 in what is not counted.
    pub generation: u64,
    /// Bits of `incompat`.
    pub incompat: u64,
    /// Bits of `ro_compat`, where it is to be written.
    pub ro_compat: u64,
    /// The program that has written it, if it says so.
    pub written_by: String,
}

impl LaterFormat {
    /// How to get at what it holds.
    pub const WAY_OUT: &str = "open it with that version, or one after it";
}

impl fmt::Display for LaterFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it uses features of a later version of millpond")?;
        write_bits(f, self.incompat, self.ro_compat)?;
        if !self.written_by.is_empty() {
            write!(f, ", written by {}", self.written_by)?;
        }
        Ok(())
    }
}

/// The bits, in brackets, by word.
pub(crate) fn write_bits(f: &mut fmt::Formatter<'_>, incompat: u64, ro_compat: u64) -> fmt::Result {
    match (incompat, ro_compat) {
        (_, 0) => write!(f, " (incompat {incompat:#x})"),
        (0, _) => write!(f, " (ro_compat {ro_compat:#x})"),
        (_, _) => write!(f, " (incompat {incompat:#x}, ro_compat {ro_compat:#x})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(incompat: u64, ro_compat: u64, compat: u64) -> Features {
        Features {
            incompat: U64::new(incompat),
            ro_compat: U64::new(ro_compat),
            compat: U64::new(compat),
        }
    }

    #[test]
    fn each_word_has_its_own_consequence() {
        let later = |ro_compat, compat| Ok(Some(Later { ro_compat, compat, room: vec![7] }));
        let known = |words: Features| words.later(3, 1, &[7]);
        assert_eq!(known(features(7, 0, 0)), Err(Unreadable::Incompat(4)));
        assert_eq!(known(features(12, 2, 1)), Err(Unreadable::Incompat(12)), "it comes first");
        assert_eq!(known(features(3, 3, 0)), later(2, 0));
        assert_eq!(known(features(0, 0, 5)), later(0, 5));
        assert_eq!(known(features(3, 1, 0)), Err(Unreadable::Room), "of no bit");
        assert_eq!(features(3, 1, 0).later(3, 1, &[0]), Ok(None));
    }

    #[test]
    fn words_give_back_what_was_found() {
        let found = features(1, 7, 6);
        let later = found.later(1, 1, &[1, 2]).unwrap();
        assert_eq!(Features::new(1, 1, later.as_ref()), found);
        assert_eq!(Features::new(1, 0, None), features(1, 0, 0));
    }

    #[test]
    fn a_later_format_names_its_bits_and_its_program() {
        let of = |incompat, ro_compat, written_by: &str| {
            let written_by = written_by.to_owned();
            LaterFormat { generation: 1, incompat, ro_compat, written_by }.to_string()
        };
        let begin = "it uses features of a later version of millpond";
        assert_eq!(of(8, 0, ""), format!("{begin} (incompat 0x8)"));
        let text = of(0, 2, "millpond 1.2.0");
        assert_eq!(text, format!("{begin} (ro_compat 0x2), written by millpond 1.2.0"));
        assert_eq!(of(1, 2, ""), format!("{begin} (incompat 0x1, ro_compat 0x2)"));
    }
}
