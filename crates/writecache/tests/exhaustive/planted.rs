// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults that the exhaustive search finds, each where the shortest sequences show it:
//! proof that what is gone through in vain without them was worth going through.
use sim::seeds;
use writecache::Fault;

use crate::explore::{Explorer, Pace, Samples};
use crate::start::{Start, Sym, sequence, sequences};
use crate::{
    buffered_cache, detaching_cache, dirty_before_errors, errors, growing_cache, guarded_cache,
    guarding_cache, killed_buffered_cache, killed_cache, killed_ordered_buffered_cache, new_cache,
    new_dm, new_memory, ordered_buffered_cache, worn_buffered_cache, worn_cache, worn_dm,
    worn_memory,
};

/// A planted fault, where it shows, and the fewest operations that show it.
type Case = (Option<Fault>, fn() -> Start, Pace, u32);

/// All images are looked at more closely: those with such a hash live on, the others are settled.
const fn samples(second_life_remainder: u64) -> Samples {
    Samples { second_life_one_in: 2, settled_one_in: 1, second_life_remainder }
}

const CASES: [Case; 44] = [
    (Some(Fault::GuardedBeforeRecord), guarding_cache, Pace::OneByOne, 0),
    (Some(Fault::DetachedBeforeRecord), detaching_cache, Pace::OneByOne, 0),
    (Some(Fault::GuardUnflushed), guarded_cache, Pace::OneByOne, 0),
    (Some(Fault::SlotsUnflushed), guarded_cache, Pace::OneByOne, 1),
    (Some(Fault::OldSlotKept), guarded_cache, Pace::OneByOne, 0),
    (Some(Fault::GrownSuperblockEarly), growing_cache, Pace::OneByOne, 1),
    (Some(Fault::GrownUnflushed), growing_cache, Pace::OneByOne, 1),
    (Some(Fault::FlushForgetsBuffer), buffered_cache, Pace::OneByOne, 0),
    (Some(Fault::FlushForgetsBuffer), worn_buffered_cache, Pace::OneByOne, 0),
    (Some(Fault::BufferedOverwritten), ordered_buffered_cache, Pace::OneByOne, 3),
    (Some(Fault::OldNotKept), ordered_buffered_cache, Pace::OneByOne, 5),
    (Some(Fault::FrameNotStored), killed_buffered_cache, Pace::OneByOne, 0),
    (Some(Fault::FramesIgnored), killed_buffered_cache, Pace::OneByOne, 0),
    (Some(Fault::FramesIgnored), killed_ordered_buffered_cache, Pace::OneByOne, 0),
    (Some(Fault::SkipCacheFlush), new_cache, Pace::OneByOne, 0),
    (Some(Fault::FlushBeforeRecords), new_cache, Pace::OneByOne, 0),
    (Some(Fault::DropChecksumCheck), new_cache, Pace::OneByOne, 0),
    (Some(Fault::IgnoreFua), new_cache, Pace::OneByOne, 1),
    (Some(Fault::FreeBeforeOriginDurable), new_cache, Pace::OneByOne, 1),
    (Some(Fault::SuperblockBeforeData), worn_cache, Pace::OneByOne, 2),
    (Some(Fault::StaleClean), worn_cache, Pace::OneByOne, 1),
    (Some(Fault::DiscardUnlogged), worn_cache, Pace::OneByOne, 2),
    (Some(Fault::ReuseBeforeCommit), worn_cache, Pace::OneByOne, 4),
    (Some(Fault::EvictDirty), worn_cache, Pace::OneByOne, 3),
    (Some(Fault::RecordBeforeData), worn_cache, Pace::InPairs, 2),
    (Some(Fault::WritebackBeforeCommit), worn_cache, Pace::InPairs, 2),
    (Some(Fault::RetireNewer), worn_cache, Pace::InPairs, 2),
    (Some(Fault::ClearUnlocked), worn_cache, Pace::InPairs, 3),
    (Some(Fault::SkipCacheFlush), new_memory, Pace::OneByOne, 0),
    (Some(Fault::TrustSectors), new_memory, Pace::OneByOne, 0),
    (Some(Fault::TornTailKept), new_memory, Pace::OneByOne, 1),
    (Some(Fault::SuperblockBeforeData), worn_memory, Pace::OneByOne, 2),
    (Some(Fault::SkipCacheFlush), new_dm, Pace::OneByOne, 0),
    (Some(Fault::IgnoreFua), new_dm, Pace::OneByOne, 1),
    (Some(Fault::FreeBeforeOriginDurable), new_dm, Pace::OneByOne, 1),
    (Some(Fault::ReuseBeforeCommit), new_dm, Pace::OneByOne, 1),
    (Some(Fault::SuperblockBeforeEntries), worn_dm, Pace::OneByOne, 1),
    (Some(Fault::ReuseBeforeErase), worn_dm, Pace::OneByOne, 2),
    (Some(Fault::DiscardUnlogged), worn_dm, Pace::OneByOne, 2),
    (Some(Fault::RetireNewer), worn_dm, Pace::InPairs, 2),
    (Some(Fault::ClearUnlocked), worn_dm, Pace::InPairs, 3),
    (Some(Fault::EntryAfterRequest), killed_cache, Pace::OneByOne, 0),
    (Some(Fault::JournalBlankedEarly), killed_cache, Pace::OneByOne, 0),
    (Some(Fault::DropNotInJournal), killed_cache, Pace::OneByOne, 2),
];

/// Goes through sequences, and returns the first that shows something, and what. Each image lives
/// on and is settled, and where recoveries have two tables it is recovered by both: which hashes
/// are even is chance.
fn find(
    start: &Start,
    pace: Pace,
    sequences: impl Iterator<Item = Vec<Sym>>,
) -> Option<(Vec<Sym>, String)> {
    let parities = if start.other.is_some() { 0..2 } else { 0..1 };
    let starts: Vec<Start> =
        parities.map(|other_parity| Start { other_parity, ..start.clone() }).collect();
    let both = |start| [0, 1].map(|rest| Explorer::new(start, pace, samples(rest)));
    let mut explorers: Vec<Explorer<'_>> = starts.iter().flat_map(both).collect();
    for ops in sequences {
        let found = seeds::first_failure(0..1, |_| {
            explorers.iter_mut().try_for_each(|explorer| explorer.sequence(&ops))
        });
        if let Some(found) = found {
            return Some((ops, found.why));
        }
    }
    None
}

/// All sequences of up to `depth` operations, the shortest first.
fn up_to(start: &Start, depth: u32) -> impl Iterator<Item = Vec<Sym>> {
    let alphabet = start.alphabet;
    (0..=depth).flat_map(move |len| {
        (0..sequences(alphabet, len)).map(move |nth| sequence(alphabet, nth, len))
    })
}

/// A flush takes the newer slot with it, and the next one is taken to have made it durable.
#[test]
fn an_error_of_each_request_finds_planted_faults() {
    let start = dirty_before_errors(guarding_cache()).with(Some(Fault::LostSlotTrusted));
    let found = errors::find(&start, 1).expect("it is found");
    eprintln!("{found}");
}

#[test]
fn short_sequences_find_planted_faults() {
    for &(fault, start, pace, depth) in &CASES {
        let innocent = start();
        let start = innocent.clone().with(fault);
        let found = find(&start, pace, up_to(&start, depth));
        let (ops, why) = found.unwrap_or_else(|| panic!("{fault:?}, {pace:?} was not found"));
        eprintln!("{fault:?}: {ops:?}: {why}");
        assert_eq!(ops.len(), depth as usize, "{fault:?}: {ops:?}");
        // In a night all the others, too; by day other tests show that nothing is in them.
        let without = match seeds::count(1000) {
            ..=1000 => find(&innocent, pace, std::iter::once(ops)),
            _ => find(&innocent, pace, up_to(&innocent, depth)),
        };
        assert_eq!(without, None, "{fault:?}: something else was found");
    }
}
