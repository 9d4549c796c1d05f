// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every crash of every short run: all sequences of a small alphabet of operations, on a new cache
//! and on a worn one whose slots and log are almost used up, one operation by one and in pairs.
//!
//! With the usual number of seeds all sequences of up to five operations are gone through, and a
//! slice of those of six: 4 * 3906 sequences and 4 * 24. With few seeds (`MILLPOND_SEEDS` up to
//! 100) up to three; with many (10000 and more) all of up to six.
//!
//! - `MILLPOND_CRASH_DEPTH=N`: all sequences of up to N operations, whatever the seeds.
//! - `MILLPOND_CRASH_SLICE=S`: another slice, 0 to 650; all of them together are all of six.
mod explore;

use explore::{Explorer, Pace, Start, Sym, Tally, sequence, sequences};
use sim::seeds;
use writecache::Mutation;

/// Operations of the sequences of which a slice is looked at, and how many are in one.
const SLICE_DEPTH: u32 = 6;
const SLICE: u64 = 24;
/// One recovered image in so many is worked on until another crash.
const SECOND_LIFE_ONE_IN: u64 = 16;

/// Operations of the longest sequences that are gone through completely.
fn depth() -> u32 {
    match (variable("MILLPOND_CRASH_DEPTH"), seeds::count(1000)) {
        (Some(depth), _) => u32::try_from(depth).expect("a few"),
        (None, ..=100) => 3,
        (None, 101..10_000) => 5,
        (None, 10_000..) => 6,
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// A device that was never used. Blocks of eight sectors, which a cut may tear.
fn new_cache(mutation: Mutation) -> Start {
    Start::blank(4096, 3, "", mutation)
}

/// A cache with few free slots and a log that is almost half used, so that slots are used again and
/// checkpoints are written.
fn worn_cache(mutation: Mutation) -> Start {
    let start = Start::blank(512, 13, "", Mutation::None).filled();
    let mut start = start.after(&[&[Sym::Write, Sym::Flush, Sym::Fua], &[Sym::Fua, Sym::Fua]]);
    start.config.mutation = mutation;
    start
}

fn explore(name: &str, start: &Start, pace: Pace) {
    let depth = depth();
    let mut explorer = Explorer::new(start, pace, SECOND_LIFE_ONE_IN);
    for len in 0..=depth {
        for nth in 0..sequences(len) {
            explorer.sequence(&sequence(nth, len)).unwrap_or_else(|why| panic!("{why}"));
        }
        eprintln!("{name}, {pace:?}, up to {len} operations: {:?}", explorer.tally);
    }
    if depth < SLICE_DEPTH {
        // Spread over all sequences.
        let slices = sequences(SLICE_DEPTH).div_ceil(SLICE);
        let first = variable("MILLPOND_CRASH_SLICE").unwrap_or(0) % slices;
        for nth in (first..sequences(SLICE_DEPTH)).step_by(usize::try_from(slices).expect("few")) {
            explorer.sequence(&sequence(nth, SLICE_DEPTH)).unwrap_or_else(|why| panic!("{why}"));
        }
        eprintln!("{name}, {pace:?}, and a slice of {SLICE_DEPTH}: {:?}", explorer.tally);
    }
    let Tally { points, judged, images, in_recovery, second_lives, .. } = explorer.tally;
    assert!(points > 100 && judged > points && images > 100, "{:?}", explorer.tally);
    assert!(in_recovery > 0 && second_lives > 0, "{:?}", explorer.tally);
}

#[test]
fn no_crash_of_a_new_cache_loses_what_was_acknowledged() {
    explore("new", &new_cache(Mutation::None), Pace::OneByOne);
}

#[test]
fn no_crash_of_a_new_cache_with_two_operations_at_once_loses_what_was_acknowledged() {
    explore("new", &new_cache(Mutation::None), Pace::InPairs);
}

#[test]
fn no_crash_of_a_worn_cache_loses_what_was_acknowledged() {
    explore("worn", &worn_cache(Mutation::None), Pace::OneByOne);
}

#[test]
fn no_crash_of_a_worn_cache_with_two_operations_at_once_loses_what_was_acknowledged() {
    explore("worn", &worn_cache(Mutation::None), Pace::InPairs);
}
