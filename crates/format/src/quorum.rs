// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The election among the four copies of a superblock, the same for every format of ours.
//!
//! A writer writes copies 0 and 1, flushes, writes copies 2 and 3, flushes. So at every moment one
//! pair is whole and durable, and a cut at any point leaves the old state or the new one:
//!
//! ```text
//!   generations   7 7 7 7   8 ? 7 7   8 8 7 7   8 8 ? 7   8 8 8 8     ? = torn
//!   elected       7         7         8         8         8
//! ```
//!
//! Invariants
//! - FM-Q1 The elected state is the newest generation that at least two copies carry with the same
//!   contents.
//! - FM-Q2 A new generation is above every generation seen on the media, valid quorum or not, so
//!   that two different states never carry the same generation with two copies each.
//! - FM-Q3 A copy that this program is too old for is never out-voted by an older state.

use crate::{Damage, LaterFormat};

/// Copies of the superblock on the media.
pub const SUPERBLOCK_COPIES: u8 = 4;

/// What was read from the places of the copies.
pub type Copies<S> = [Result<S, Damage>; SUPERBLOCK_COPIES as usize];

/// A superblock that counts its writes.
pub trait Generation: Clone + PartialEq {
    /// Counts superblock writes.
    fn generation(&self) -> u64;
}

/// The state that the media hold (FM-Q1).
///
/// # Errors
/// [`Damage::NoQuorum`] if no two copies agree, or if two pairs of one generation disagree;
/// [`Damage::Later`] if a copy is of a later program, and newer than those that agree.
pub fn elect<S: Generation>(copies: &Copies<S>) -> Result<S, Damage> {
    let mut elected: Option<&S> = None;
    for (index, first) in copies.iter().enumerate() {
        let Ok(first) = first else { continue };
        let agrees = |second: &Result<S, Damage>| second.as_ref() == Ok(first);
        if !copies[index + 1..].iter().any(agrees) {
            continue;
        }
        match elected {
            Some(best) if best == first => {}
            Some(best) if best.generation() > first.generation() => {}
            // No writer that keeps FM-Q2 makes this: do not guess which pair is the true one.
            Some(best) if best.generation() == first.generation() => return Err(no_quorum(copies)),
            Some(_) | None => elected = Some(first),
        }
    }
    let later = newest_later(copies);
    let is_older = |later: &LaterFormat, best: &S| later.generation <= best.generation();
    match (elected, later) {
        (Some(best), later) if later.is_none_or(|later| is_older(later, best)) => Ok(best.clone()),
        (_, Some(later)) => Err(Damage::Later(later.clone())), // FM-Q3
        (_, None) => Err(no_quorum(copies)),
    }
}

/// The newest copy that this program is too old for.
fn newest_later<S>(copies: &Copies<S>) -> Option<&LaterFormat> {
    let later = copies.iter().filter_map(|copy| match copy {
        Err(Damage::Later(later)) => Some(later),
        _ => None,
    });
    later.max_by_key(|later| later.generation)
}

fn no_quorum<S: Generation>(copies: &Copies<S>) -> Damage {
    let state = |copy: &Result<S, Damage>| copy.as_ref().map(S::generation).map_err(Damage::clone);
    Damage::NoQuorum(Box::new([0, 1, 2, 3].map(|index| state(&copies[index]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generation and the contents beside it.
    type Copy = (u64, char);

    impl Generation for Copy {
        fn generation(&self) -> u64 {
            self.0
        }
    }

    /// All rows of the drawing at the head, and the disagreements.
    #[test]
    fn two_copies_elect_and_the_newest_pair_wins() {
        let torn = Err(Damage::Checksum);
        let old = Ok((7, 'a'));
        let new = Ok((8, 'b'));
        let other = Ok((8, 'c'));
        for (copies, elected) in [
            ([&old, &old, &old, &old], Some(7)),
            ([&new, &torn, &old, &old], Some(7)),
            ([&new, &new, &old, &old], Some(8)),
            ([&new, &new, &torn, &old], Some(8)),
            ([&old, &new, &old, &new], Some(8)),
            ([&new, &old, &torn, &torn], None),
            ([&torn, &torn, &torn, &torn], None),
            ([&new, &other, &old, &old], Some(7)),
            ([&new, &new, &other, &other], None),
            ([&new, &new, &new, &other], Some(8)),
        ] {
            let copies: Copies<Copy> = copies.map(Clone::clone);
            let found = elect(&copies).map(|copy| copy.0);
            match elected {
                Some(generation) => assert_eq!(found, Ok(generation), "{copies:?}"),
                None => assert!(matches!(found, Err(Damage::NoQuorum(_))), "{copies:?}"),
            }
        }
    }

    #[test]
    fn a_copy_of_a_later_program_is_not_out_voted() {
        let later = |generation| {
            let (incompat, ro_compat, written_by) = (8, 0, String::new());
            Err(Damage::Later(LaterFormat { generation, incompat, ro_compat, written_by }))
        };
        let (old, torn) = (Ok((7, 'a')), Err(Damage::Checksum));
        for (copies, elected) in [
            // A later program was cut off in its first pair, or after it.
            ([&later(8), &torn, &old, &old], false),
            ([&later(8), &later(8), &old, &old], false),
            ([&later(8), &later(8), &torn, &torn], false),
            ([&later(8), &torn, &torn, &torn], false),
            // What it had said before is void.
            ([&old, &old, &later(6), &later(6)], true),
        ] {
            let copies: Copies<Copy> = copies.map(Clone::clone);
            match elect(&copies) {
                Ok(found) => assert!(elected && found.0 == 7, "{copies:?}"),
                Err(damage) => assert!(!elected && damage == later(8).unwrap_err(), "{copies:?}"),
            }
        }
    }
}
