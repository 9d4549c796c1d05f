// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace of the reference by hand, in the kernel's format and in both modes: blocks 10 and 1
//! (sectors 80 and 8), FLUSH, block 10 again, FLUSH, block 2, FLUSH, `flush`; with a power cut at
//! every step of it. What stands on the media and what is read back is what the reference says.
//! `session.rs` has the same of the native format, `dm.rs` single steps without a cut.
//!
//! ```text
//!   S, entries (sector, number)      0          1         2         3
//!   0  fresh                         free       free      free      free
//!   1  written and flushed           80, 0      8, 0      free      free
//!   1  block 10 on its way           80, 0      8, 0      80, 1     free
//!   2  committed: two of block 10    80, 0      8, 0      80, 1     free
//!   2  the older is erased           free       8, 0      80, 1     free
//!   2  block 2 on its way            16, 2 ...
//! ```

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::recording::RecordingDevice;
use crate::common::{BLOCK, Fixture, flush, get, pattern, put, say};
use block::{Sector, Target};
use format::dm::{Entry, HEADER_BYTES, Superblock, entries};
use sim::{Machine, PowerCut};
use writecache::{Config, WriteCache};

const CALM: &str = "format dm high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// A cache in this mode: on a disk, or in persistent memory.
fn fixture(mode: &str, seed: u64) -> Fixture {
    let mut fixture = Fixture::seeded(seed, 256, 1024, CALM);
    if mode == "p" {
        let memory = fixture.world.borrow_mut().add_swarm_memory("memory", Sector(2048));
        fixture.cache = memory;
        let words = CALM.split(' ').count();
        let line = format!("p origin memory 4096 {words} {CALM}");
        fixture.config = Config::parse(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    fixture
}

/// The superblock's number and the first three entries; none for one that does not count.
type Media = (u64, [Option<(u64, u64)>; 3]);

fn media(fixture: &Fixture) -> Media {
    let metadata = fixture.area(0, 4096);
    let counts = |e: Entry| e.seq_count != Entry::FREE.seq_count;
    let shown = |e: Entry| counts(e).then_some((e.original_sector, e.seq_count));
    let mut first = entries(&metadata[HEADER_BYTES..]).map(shown);
    let three = [(); 3].map(|()| first.next().unwrap());
    (Superblock::decode(&metadata).unwrap().seq_count, three)
}

/// The trace. `done` counts what has been acknowledged.
async fn trace(cache: Rc<WriteCache>, done: Rc<Cell<u32>>) {
    let step = || done.set(done.get() + 1);
    put(&*cache, 10, 1).await.unwrap();
    put(&*cache, 1, 1).await.unwrap();
    flush(&*cache).await;
    step();
    put(&*cache, 10, 2).await.unwrap();
    flush(&*cache).await;
    step();
    put(&*cache, 2, 1).await.unwrap();
    flush(&*cache).await;
    step();
}

/// What blocks 10, 1 and 2 hold, by version; 0 is the origin's.
async fn versions(cache: Rc<WriteCache>) -> [u64; 3] {
    let mut found = [0; 3];
    for (found, block) in found.iter_mut().zip([10, 1, 2]) {
        let data = get(&*cache, block).await.unwrap();
        let versions: [Vec<u8>; 3] = [vec![0; BLOCK], pattern(block, 1), pattern(block, 2)];
        *found = versions.iter().position(|v| *v == data).expect("a version") as u64;
    }
    found
}

#[test]
fn a_cut_at_each_step_of_the_trace_leaves_the_reference_media() {
    for mode in ["s", "p"] {
        // Media after a cut, and after recovery.
        let mut seen = BTreeSet::new();
        let mut recovered = BTreeSet::new();
        let mut cuts = 0;
        for step in 0.. {
            let fixture = fixture(mode, step + 1);
            fixture.life(async |_| ()).unwrap();
            let machine = Machine::boot(&fixture.world, 1);
            let target = fixture.target();
            let opening = target.clone();
            machine.block_on(async move { opening.resume().await.unwrap() }).unwrap();
            let now = fixture.world.borrow().steps();
            fixture.world.borrow_mut().power_cut_at(Some(PowerCut::Step(now + step)));
            let done = Rc::new(Cell::new(0));
            let ended = machine.block_on(trace(target, done.clone())).is_ok();
            fixture.world.borrow_mut().power_cut_at(None);
            machine.power_cut();
            cuts += u32::from(!ended);

            seen.insert(media(&fixture));
            let found = fixture.life(async |cache| versions(cache).await).unwrap();
            let after = media(&fixture);
            recovered.insert(after);
            // No entry is of a commit that never ended, and no block has two.
            let live = after.1.iter().flatten();
            assert!(live.clone().all(|(_, number)| *number < after.0), "{mode} {step}: {after:?}");
            let sectors: BTreeSet<u64> = live.clone().map(|(sector, _)| *sector).collect();
            assert_eq!(sectors.len(), live.count(), "{mode} {step}: {after:?}");
            // What was acknowledged is there, in the order of FLUSHes.
            let least = [[0, 0, 0], [1, 1, 0], [2, 1, 0], [2, 1, 1]][done.get() as usize];
            assert!(found.iter().zip(least).all(|(f, l)| *f >= l), "{mode} {step}: {found:?}");
            let states = [[0, 0, 0], [1, 1, 0], [2, 1, 0], [2, 1, 1]];
            assert!(states.contains(&found), "{mode} {step}: each commit whole or not: {found:?}");
            if ended {
                break;
            }
        }
        let (old, one, new) = (Some((80, 0)), Some((8, 0)), Some((80, 1)));
        for (media, what) in [
            ((0, [None; 3]), "step 0"),
            ((1, [old, one, None]), "step 3"),
            ((1, [old, one, new]), "step 6: an entry that does not count yet"),
            ((2, [old, one, new]), "between the two commits: two copies of sector 80"),
            ((2, [None, one, new]), "the older is erased"),
        ] {
            assert!(seen.contains(&media), "mode {mode}, {what}: not among {seen:?}");
        }
        // Step 7, and which of two copies is kept.
        let twice = (2, [old, one, new]);
        assert!(!recovered.contains(&twice) && recovered.contains(&(2, [None, one, new])));
        assert!(!recovered.contains(&(1, [old, one, new])), "{recovered:?}");
        assert!(cuts > 10, "{cuts} cuts");
    }
}

/// Step 8 as it was before the kernel sorted: the oldest first, sector 80, then 8. (Block 10 is not
/// overwritten here: that makes it young, where the kernel leaves it as old as it was.)
#[test]
fn order_lru_writes_the_trace_back_from_the_oldest_block() {
    for (order, expected) in [("lru", [10..11, 1..2]), ("sorted", [1..2, 10..11])] {
        let fixture = Fixture::small(&format!("writeback_jobs 1 writeback_order {order} {CALM}"));
        let machine = Machine::boot(&fixture.world, 1);
        let origin = RecordingDevice::over(fixture.leaf(fixture.origin));
        let (below, device) = (origin.clone(), fixture.leaf(fixture.cache));
        let cache =
            WriteCache::new("wc", fixture.config.clone(), below, device, fixture.sectors).unwrap();
        let work = async move {
            cache.clone().resume().await.unwrap();
            put(&*cache, 10, 1).await.unwrap();
            put(&*cache, 1, 1).await.unwrap();
            say(&cache, "flush").await.unwrap();
        };
        machine.block_on(work).unwrap();
        assert_eq!(origin.take_written_blocks(), expected, "{order}");
    }
}
