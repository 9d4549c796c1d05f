// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every crash of every short run: all sequences of a small alphabet of operations, on a new cache
//! and on a worn one whose slots and log are almost used up, one operation by one and in pairs; in
//! the native format and in the kernel's, on a disk and in persistent memory. Kills, too, where the
//! process has a journal. What a crash leaves of the kernel's format the kernel would open, too.
//! And planted faults that are found so (`planted`). Where the origin has a guard, also each run in
//! which one request of a disk fails (`errors`).
//!
//! The tests cover all sequences of up to so many operations ([`Depth`]). In persistent memory,
//! where each word may be lost alone, they are shorter.
//!
//! | | `make test-fast` | `make test` | `make seeds` |
//! |---|---|---|---|
//! | on disks | 3 | 5 | 6 |
//! | in persistent memory | 2 | 3 | 4, in the kernel's format 5 |
//! | kills, with a journal | 2 | 3 | 4 |
//! | with a write buffer | 3 | 4 | 6 |
//! | and in epochs | 3 | 5 | 7 |
//! | kills, with a write buffer | 2 | 2 | 4 |
//! | with growth | 2 | 4 | 5 |
//! | with a guard of the origin | 2 | 2 | 4 |
//! | with one beside writes around the cache, and discards | 2 | 2 | 4 |
//! | with one, and a request that fails | 1 | 1 | 2 |
//!
//! - `MILLPOND_SEEDS=N`: up to 100 the first column, above 1000 the last.
//! - `MILLPOND_CRASH_DEPTH=N`: all sequences of up to N operations, whatever the table says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod errors;
mod explore;
#[path = "../common/kernel.rs"]
mod kernel;
#[path = "../common/origin_history.rs"]
#[expect(dead_code, reason = "the tests of random lives use more of it")]
mod origin_history;
mod planted;
mod start;
mod survive;
#[path = "../common/suspend_gate.rs"]
#[expect(dead_code, reason = "nothing is suspended here")]
mod suspend_gate;

use explore::{Counts, Explorer, Pace, Samples};
use sim::seeds;
use start::{Alphabet, Start, Sym, sequence, sequences};

/// Of the recovered images one in 16 is worked on until another crash, one in 16 written back.
const SAMPLES: Samples =
    Samples { second_life_one_in: 16, settled_one_in: 16, second_life_remainder: 0 };
/// Of those of guarded origins, which are fewer.
const GUARD_SAMPLES: Samples =
    Samples { second_life_one_in: 8, settled_one_in: 4, second_life_remainder: 0 };

/// Operations of the longest sequences.
#[derive(Clone, Copy)]
struct Depth {
    fast: u32,
    usual: u32,
    night: u32,
}

const ON_DISK: Depth = Depth { fast: 3, usual: 5, night: 6 };
const IN_MEMORY: Depth = Depth { fast: 2, usual: 3, night: 4 };
const OF_KILLS: Depth = Depth { fast: 2, usual: 3, night: 4 };
const DM_IN_MEMORY: Depth = Depth { night: 5, ..IN_MEMORY };

const BUFFER_BLOCKS: u32 = 8;
const OF_BUFFERED: Depth = Depth { fast: 3, usual: 4, night: 6 };
const OF_BUFFERED_KILLS: Depth = Depth { fast: 2, usual: 2, night: 4 };
const OF_GROWTH: Depth = Depth { fast: 2, usual: 4, night: 5 };
const OF_GUARD: Depth = Depth { fast: 2, usual: 2, night: 4 };
const OF_GUARD_AROUND: Depth = Depth { fast: 2, usual: 2, night: 4 };
const OF_ERRORS: Depth = Depth { fast: 1, usual: 1, night: 2 };
const OF_ORDERED: Depth = Depth { fast: 3, usual: 5, night: 7 };

impl Depth {
    fn of_this_run(self) -> u32 {
        match (variable("MILLPOND_CRASH_DEPTH"), seeds::count(1000)) {
            (Some(depth), _) => u32::try_from(depth).expect("a few"),
            (None, ..=100) => self.fast,
            (None, 101..=1000) => self.usual,
            (None, 1001..) => self.night,
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// A device that was never used. Blocks of eight sectors, which a cut may tear.
fn new_cache() -> Start {
    Start::native("s", 4096, 3)
}

/// A cache with few free slots and a log that is almost half used, so that slots are used again and
/// checkpoints are written.
fn worn_cache() -> Start {
    worn(Start::native("s", 512, 13))
}

const BUFFERED: Alphabet = &[Sym::Write, Sym::Other, Sym::Fua, Sym::Flush];

/// Segments of two blocks: one that waits, and others that are being written.
fn buffered_cache() -> Start {
    new_cache().with_buffer(BUFFER_BLOCKS, BUFFERED)
}

/// With small frames: there are many images of memory.
fn killed_buffered_cache() -> Start {
    Start::native("s", 512, 3).with_buffer(BUFFER_BLOCKS, BUFFERED).with_kills()
}

/// Few slots are free, and are used again.
fn worn_buffered_cache() -> Start {
    worn_cache().with_buffer(BUFFER_BLOCKS, BUFFERED)
}

/// Epochs are written back at once.
fn ordered_buffered_cache() -> Start {
    let line = "s ordered high_watermark 0 low_watermark 0 pause_writeback 0";
    let alphabet = &[Sym::Write, Sym::Other, Sym::Flush];
    Start::native(line, 512, 3).with_buffer(BUFFER_BLOCKS, alphabet)
}

fn killed_ordered_buffered_cache() -> Start {
    ordered_buffered_cache().with_kills()
}

const GROWING: Alphabet = &[Sym::Grow, Sym::Write, Sym::Fua, Sym::Flush];

/// A used cache with few free slots on a device that has become larger.
fn growing_cache() -> Start {
    worn_cache().on_larger_device(GROWING)
}

const GUARDED: Alphabet = &[Sym::Write, Sym::Flush, Sym::Message, Sym::Release, Sym::Claim];
/// Both ranges of an origin, and a block between them.
const GUARDED_BLOCKS: u64 = 35;

/// An origin with data that gets a guard.
fn guarding_cache() -> Start {
    unguarded_cache().with_guard(true, GUARDED)
}

/// A guarded origin, with which work goes on.
fn guarded_cache() -> Start {
    let new = unguarded_cache().with_guard(true, GUARDED);
    new.after(&[&[Sym::Write, Sym::Message, Sym::Write, Sym::Fua]])
}

/// A guarded origin that is to be given back as the cache opens.
fn detaching_cache() -> Start {
    guarded_cache().with_guard(false, GUARDED)
}

const AROUND: Alphabet = &[Sym::Write, Sym::Fua, Sym::Meta, Sym::Discard, Sym::Flush, Sym::Release];

/// Only metadata enter the cache, all else goes to the guarded origin at once. Blocks of one
/// sector: without its guard the origin tears larger ones.
fn guarded_around() -> Start {
    let new = Start::native("s metadata_only", 512, 8 * GUARDED_BLOCKS).filled();
    new.with_guard(true, AROUND).after(&[&[Sym::Write, Sym::Fua]])
}

const FAILING: Alphabet =
    &[Sym::Write, Sym::Other, Sym::Flush, Sym::Message, Sym::Discard, Sym::Release, Sym::Claim];

/// A block of each guarded range is dirty, and its slots differ in another one.
fn dirty_before_errors(guarding: Start) -> Start {
    let settled = [Sym::Message, Sym::Write, Sym::Other, Sym::Last, Sym::Message];
    let dirty = [&settled[..], &[Sym::Write, Sym::Last, Sym::Flush]].concat();
    guarding.with_guard(true, FAILING).after(&[&dirty])
}

fn unguarded_cache() -> Start {
    Start::native("s", 4096, GUARDED_BLOCKS).filled().after(&[&[Sym::Message]])
}

/// Its processes are killed, and the power stays.
fn killed_cache() -> Start {
    new_cache().with_kills()
}

fn new_memory() -> Start {
    Start::native("p", 512, 3)
}

fn worn_memory() -> Start {
    worn(Start::native("p", 512, 13))
}

fn new_dm() -> Start {
    Start::dm("s", 4096, 3, 12)
}

fn worn_dm() -> Start {
    worn(Start::dm("s", 512, 13, 16))
}

fn new_dm_memory() -> Start {
    Start::dm("p", 512, 3, 12)
}

fn worn_dm_memory() -> Start {
    worn(Start::dm("p", 512, 13, 16))
}

fn worn(start: Start) -> Start {
    start.filled().after(&[&[Sym::Write, Sym::Flush, Sym::Fua], &[Sym::Fua, Sym::Fua, Sym::Fua]])
}

/// Goes through all sequences of up to so many operations.
fn explore(name: &str, start: &Start, pace: Pace, depth: Depth) {
    let samples = if start.other.is_some() { GUARD_SAMPLES } else { SAMPLES };
    let mut explorer = Explorer::new(start, pace, samples);
    for len in 0..=depth.of_this_run() {
        for nth in 0..sequences(start.alphabet, len) {
            let ops = sequence(start.alphabet, nth, len);
            explorer.sequence(&ops).unwrap_or_else(|why| panic!("{why}"));
        }
        eprintln!("{name}, {pace:?}, up to {len} operations: {:?}", explorer.tally);
    }
    let Counts { points, judged, images, in_recovery, second_lives, settled, .. } = explorer.tally;
    assert!(points > 100 && judged > points && images > 100, "{:?}", explorer.tally);
    assert!(in_recovery > 0 && second_lives > 0 && settled > 0, "{:?}", explorer.tally);
}

#[test]
fn no_crash_of_a_new_cache_loses_what_was_acknowledged() {
    explore("new", &new_cache(), Pace::OneByOne, ON_DISK);
}

#[test]
fn no_crash_of_a_new_cache_in_pairs_loses_writes() {
    explore("new", &new_cache(), Pace::InPairs, ON_DISK);
}

#[test]
fn no_crash_of_a_worn_cache_loses_what_was_acknowledged() {
    explore("worn", &worn_cache(), Pace::OneByOne, ON_DISK);
}

#[test]
fn no_crash_of_a_worn_cache_in_pairs_loses_writes() {
    explore("worn", &worn_cache(), Pace::InPairs, ON_DISK);
}

#[test]
fn no_crash_of_a_new_cache_in_memory_loses_writes() {
    explore("new in memory", &new_memory(), Pace::OneByOne, IN_MEMORY);
}

#[test]
fn no_crash_of_a_worn_cache_in_memory_loses_writes() {
    explore("worn in memory", &worn_memory(), Pace::InPairs, IN_MEMORY);
}

#[test]
fn no_crash_of_a_new_dm_format_cache_loses_writes() {
    explore("new dm", &new_dm(), Pace::OneByOne, ON_DISK);
    explore("new dm", &new_dm(), Pace::InPairs, ON_DISK);
}

#[test]
fn no_crash_of_a_worn_dm_format_cache_loses_writes() {
    explore("worn dm", &worn_dm(), Pace::OneByOne, ON_DISK);
    explore("worn dm", &worn_dm(), Pace::InPairs, ON_DISK);
}

#[test]
fn no_crash_of_a_dm_format_cache_in_memory_loses_writes() {
    explore("new dm in memory", &new_dm_memory(), Pace::InPairs, DM_IN_MEMORY);
    explore("worn dm in memory", &worn_dm_memory(), Pace::OneByOne, DM_IN_MEMORY);
}

#[test]
fn no_kill_undoes_what_has_ended_in_a_new_cache() {
    let start = killed_cache();
    explore("new, killed", &start, Pace::OneByOne, OF_KILLS);
    explore("new, killed", &start, Pace::InPairs, OF_KILLS);
}

#[test]
fn no_kill_undoes_what_has_ended_in_a_worn_cache() {
    let start = worn_cache().with_kills();
    explore("worn, killed", &start, Pace::OneByOne, OF_KILLS);
    explore("worn, killed", &start, Pace::InPairs, OF_KILLS);
}

#[test]
fn no_crash_of_a_buffered_cache_loses_what_was_flushed() {
    for pace in [Pace::OneByOne, Pace::InPairs] {
        explore("buffered", &buffered_cache(), pace, OF_BUFFERED);
        explore("worn, buffered", &worn_buffered_cache(), pace, OF_BUFFERED);
    }
}

#[test]
fn no_crash_of_a_growing_cache_loses_what_was_acknowledged() {
    for pace in [Pace::OneByOne, Pace::InPairs] {
        explore("growing", &growing_cache(), pace, OF_GROWTH);
    }
}

#[test]
fn no_kill_undoes_what_has_ended_in_a_growing_cache() {
    explore("growing, killed", &growing_cache().with_kills(), Pace::InPairs, OF_KILLS);
}

#[test]
fn no_crash_of_a_guarded_cache_loses_what_was_acknowledged() {
    explore("guarding", &guarding_cache(), Pace::OneByOne, OF_GUARD);
    explore("detaching", &detaching_cache(), Pace::OneByOne, OF_GUARD);
    explore("guarded", &guarded_cache(), Pace::InPairs, OF_GUARD);
}

#[test]
fn no_crash_loses_writes_around_a_guarded_cache() {
    explore("guarded, around", &guarded_around(), Pace::OneByOne, OF_GUARD_AROUND);
    explore("guarded, around", &guarded_around(), Pace::InPairs, OF_GUARD_AROUND);
}

#[test]
fn no_error_of_a_guarded_cache_loses_what_was_acknowledged() {
    let depth = OF_ERRORS.of_this_run();
    errors::explore("guarding", &guarding_cache().with_guard(true, FAILING), depth);
    errors::explore("detaching", &detaching_cache().with_guard(false, FAILING), depth);
    errors::explore("guarded", &dirty_before_errors(guarding_cache()), depth);
}

#[test]
fn no_crash_breaks_the_order_of_a_buffered_cache() {
    for pace in [Pace::OneByOne, Pace::InPairs] {
        explore("ordered, buffered", &ordered_buffered_cache(), pace, OF_ORDERED);
    }
}

#[test]
fn no_kill_undoes_what_has_ended_in_a_buffered_cache() {
    let worn = worn_buffered_cache().with_kills();
    explore("buffered, killed", &killed_buffered_cache(), Pace::OneByOne, OF_BUFFERED_KILLS);
    explore("worn, killed", &worn, Pace::InPairs, OF_BUFFERED_KILLS);
    explore("ordered, killed", &killed_ordered_buffered_cache(), Pace::InPairs, OF_BUFFERED_KILLS);
}
