// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of buffered slots: their states, and versions that move to another slot.
use super::super::rebuild::Rebuild;
use super::super::{Batch, MergeRule, PhaseState};
use super::*;

fn slots(is_ordered: bool) -> Slots {
    let Ok(mut slots) = Rebuild::new(16).finish(8) else { panic!("an empty map") };
    slots.set_ordered(is_ordered);
    slots.set_buffer_places(4, Planted::NONE);
    slots
}

/// A buffered version of the block; returns its slot.
fn write(slots: &mut Slots, block: u64, place: u32, crc: u32) -> u32 {
    let slot = slots.allocate(1).expect("there is room").start;
    slots.enter_buffer(slot, place);
    slots.install(block, slot, crc);
    slot
}

fn commit(slots: &mut Slots) -> Batch {
    slots.begin_commit();
    slots.take_batch(100)
}

#[test]
fn a_version_is_buffered_until_its_write_has_ended() {
    let mut slots = slots(false);
    let slot = write(&mut slots, 1, 2, 7);
    assert_eq!((slots.place_of(slot), slots.buffered_count()), (Some(2), 1));
    assert_eq!(slots.begin_buffer_write(2), Some(slot));
    assert_eq!(slots.begin_buffer_write(3), None, "nothing is there");
    assert_eq!(slots.place_of(slot), Some(2), "reads find it while it is written");
    assert!(!slots.end_buffer_write(2));
    assert_eq!((slots.place_of(slot), slots.buffered_count()), (None, 0));
    assert_eq!(slots.find(1).map(|found| found.slot_ref.slot), Some(slot));
    slots.check();
}

#[test]
fn a_waiting_version_that_is_superseded_leaves_a_hole() {
    let mut slots = slots(false);
    let free = slots.counts().free;
    let old = write(&mut slots, 1, 0, 7);
    let new = write(&mut slots, 1, 1, 8);
    assert_eq!((slots.place_of(old), slots.buffered_count()), (None, 1));
    assert_eq!(slots.counts().free, free - 1);
    assert_eq!([0, 1].map(|place| slots.begin_buffer_write(place)), [None, Some(new)]);
    slots.check();
}

/// WC-BF2
#[test]
fn a_slot_that_is_being_written_is_free_when_the_write_ends() {
    let mut slots = slots(false);
    let free = slots.counts().free;
    let old = write(&mut slots, 1, 0, 7);
    slots.begin_buffer_write(0);
    write(&mut slots, 1, 1, 8);
    assert!(!slots.is_needed(0));
    assert_eq!((slots.counts().free, slots.counts().writing), (free - 2, 1));
    let all = slots.allocate(16).into_iter().flatten().collect::<Vec<_>>();
    assert!(!all.contains(&old));
    all.into_iter().for_each(|slot| slots.abandon(slot));
    assert!(slots.end_buffer_write(0));
    assert_eq!((slots.counts().free, slots.counts().writing), (free - 1, 0));
    slots.check();
}

/// Zeroes that were acknowledged did not replace a version that had moved meanwhile.
#[test]
fn a_version_that_has_moved_is_dropped_by_an_older_reference() {
    let mut slots = slots(false);
    let from = write(&mut slots, 1, 0, 7);
    let before = slots.find(1).unwrap().slot_ref;
    slots.begin_buffer_write(0);
    let to = slots.allocate(1).expect("there is room").start;
    slots.move_version(0, to);
    assert!(!slots.is_intact(before), "readers of the old slot notice");
    assert!(!slots.quarantine(1, before), "its old slot is unreadable, the version is not");
    assert!(slots.drop_block(1, before) && slots.find(1).is_none());
    slots.abandon(from);
    // A newer version stays.
    write(&mut slots, 1, 1, 8);
    assert!(!slots.drop_block(1, before) && slots.find(1).is_some());
    slots.check();
}

#[test]
fn a_version_that_moves_is_the_newest_of_its_block_still() {
    for is_logged in [false, true] {
        let mut slots = slots(false);
        let from = write(&mut slots, 1, 0, 7);
        slots.begin_buffer_write(0);
        let mut batch = is_logged.then(|| commit(&mut slots));
        let to = slots.allocate(1).expect("there is room").start;
        assert_eq!(slots.move_version(0, to), from);
        assert_eq!((slots.place_of(from), slots.place_of(to)), (None, None));
        if let Some(batch) = &mut batch {
            assert!(batch.follow(vec![(from, to)]));
        }
        let mut batch = batch.unwrap_or_else(|| commit(&mut slots));
        assert_eq!(batch.entries[..].iter().map(|e| e.slot).collect::<Vec<_>>(), [to]);
        assert!(!batch.follow(vec![(from, to)]), "it names the new slot already");
        slots.complete_batch(batch);
        slots.abandon(from);
        let found = slots.find(1).expect("it is there");
        assert_eq!((found.slot_ref.slot, found.state, found.crc), (to, State::Dirty, Some(7)));
        // The next version frees its slot once it is logged.
        write(&mut slots, 1, 1, 8);
        let batch = commit(&mut slots);
        slots.complete_batch(batch);
        assert_eq!((slots.counts().free, slots.counts().limbo), (15, 0), "logged: {is_logged}");
        slots.check();
    }
}

/// Its epoch is written back: the version that it has is in another slot now.
#[test]
fn a_version_of_the_phase_moves_with_it() {
    for is_late in [true, false] {
        let mut slots = slots(true);
        let from = write(&mut slots, 1, 0, 7);
        slots.begin_buffer_write(0);
        let mut batch = None;
        if is_late {
            slots.begin_phase(MergeRule::Never);
            slots.close_epoch();
            write(&mut slots, 1, 1, 8);
        } else {
            slots.close_epoch();
            write(&mut slots, 1, 1, 8);
            batch = Some(commit(&mut slots));
            slots.begin_phase(MergeRule::Never);
        }
        let to = slots.allocate(1).expect("there is room").start;
        assert_eq!(slots.move_version(0, to), from);
        let (slot_ref, crc) = slots.to_write(1).expect("the epoch has it");
        assert_eq!((slot_ref.slot, crc), (to, Some(7)), "late: {is_late}");
        let mut batch = batch.unwrap_or_else(|| commit(&mut slots));
        batch.follow(vec![(from, to)]);
        slots.complete_batch(batch);
        slots.abandon(from);
        slots.retire(1, slot_ref);
        assert_eq!(slots.phase_state(), PhaseState::Written);
        slots.retire_phase();
        let batch = commit(&mut slots);
        slots.complete_batch(batch);
        assert_eq!((slots.counts().free, slots.counts().dirty), (15, 1), "late: {is_late}");
        slots.check();
    }
}
