// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults that the exhaustive search finds, each where the shortest sequences show it:
//! proof that what is gone through in vain without them was worth going through.
use sim::seeds;
use writecache::Mutation;

use crate::explore::{Explorer, Pace, Samples};
use crate::start::{Start, Sym, sequence, sequences};
use crate::{new_cache, new_dm, new_memory, worn_cache, worn_dm, worn_memory};

/// A planted fault, where it shows, and the fewest operations that show it.
type Case = (Mutation, fn() -> Start, Pace, u32);

/// All images are looked at more closely.
const SAMPLES: Samples = Samples { second_life_one_in: 2, settled_one_in: 1 };

const CASES: [Case; 27] = [
    (Mutation::SkipCacheFlush, new_cache, Pace::OneByOne, 0),
    (Mutation::FlushBeforeRecords, new_cache, Pace::OneByOne, 0),
    (Mutation::DropChecksumCheck, new_cache, Pace::OneByOne, 0),
    (Mutation::IgnoreFua, new_cache, Pace::OneByOne, 1),
    (Mutation::FreeBeforeOriginDurable, new_cache, Pace::OneByOne, 1),
    (Mutation::SuperblockBeforeData, worn_cache, Pace::OneByOne, 2),
    (Mutation::StaleClean, worn_cache, Pace::OneByOne, 1),
    (Mutation::DiscardUnlogged, worn_cache, Pace::OneByOne, 2),
    (Mutation::ReuseBeforeCommit, worn_cache, Pace::OneByOne, 3),
    (Mutation::EvictDirty, worn_cache, Pace::OneByOne, 3),
    (Mutation::RecordBeforeData, worn_cache, Pace::InPairs, 2),
    (Mutation::WritebackBeforeCommit, worn_cache, Pace::InPairs, 2),
    (Mutation::RetireNewer, worn_cache, Pace::InPairs, 2),
    (Mutation::ClearUnlocked, worn_cache, Pace::InPairs, 3),
    (Mutation::SkipCacheFlush, new_memory, Pace::OneByOne, 0),
    (Mutation::TrustSectors, new_memory, Pace::OneByOne, 0),
    (Mutation::TornTailKept, new_memory, Pace::OneByOne, 1),
    (Mutation::SuperblockBeforeData, worn_memory, Pace::OneByOne, 2),
    (Mutation::SkipCacheFlush, new_dm, Pace::OneByOne, 0),
    (Mutation::IgnoreFua, new_dm, Pace::OneByOne, 1),
    (Mutation::FreeBeforeOriginDurable, new_dm, Pace::OneByOne, 2),
    (Mutation::ReuseBeforeCommit, new_dm, Pace::OneByOne, 1),
    (Mutation::SuperblockBeforeEntries, worn_dm, Pace::OneByOne, 1),
    (Mutation::ReuseBeforeErase, worn_dm, Pace::OneByOne, 2),
    (Mutation::DiscardUnlogged, worn_dm, Pace::OneByOne, 2),
    (Mutation::RetireNewer, worn_dm, Pace::InPairs, 2),
    (Mutation::ClearUnlocked, worn_dm, Pace::InPairs, 3),
];

/// The first sequence that shows the fault, and how.
fn find(&(mutation, start, pace, depth): &Case) -> Option<(Vec<Sym>, String)> {
    let start = start().with(mutation);
    let mut explorer = Explorer::new(&start, pace, SAMPLES);
    (0..=depth).find_map(|len| {
        let found =
            seeds::first_failure(0..sequences(len), |nth| explorer.sequence(&sequence(nth, len)));
        found.map(|found| (sequence(found.seed, len), found.why))
    })
}

#[test]
fn short_sequences_find_planted_faults() {
    for case @ &(mutation, start, pace, depth) in &CASES {
        let found = find(case);
        let (ops, why) = found.unwrap_or_else(|| panic!("{mutation:?}, {pace:?}: not found"));
        eprintln!("{mutation:?}: {ops:?}: {why}");
        assert_eq!(ops.len(), depth as usize, "{mutation:?}: {ops:?}");
        let innocent = find(&(Mutation::None, start, pace, depth));
        assert_eq!(innocent, None, "{mutation:?}: something else was found");
    }
}
