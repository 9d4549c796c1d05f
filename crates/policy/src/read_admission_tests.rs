// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of admission.
use super::*;

const DAY_NS: u64 = 24 * HOUR_NS;

fn admission(slots: u64) -> ReadAdmission {
    ReadAdmission::new(slots, 4096)
}

/// Reads so many blocks that nobody else reads.
fn others(admission: &mut ReadAdmission, from: u64, count: u64) {
    for block in from..from + count {
        assert_eq!(admission.miss(block, 0, Room::Some), Err(Refusal::Once), "block {block}");
    }
}

#[test]
fn a_block_is_admitted_at_its_second_use() {
    let mut a = admission(1024);
    assert_eq!(a.miss(7, 0, Room::Some), Err(Refusal::Once));
    others(&mut a, 1000, 20);
    assert_eq!(a.miss(7, 0, Room::Some), Ok(()));
}

#[test]
fn a_ghost_ends_when_its_block_is_admitted() {
    let mut a = admission(1024);
    a.miss(7, 0, Room::Some).ok();
    others(&mut a, 1000, 20);
    assert_eq!(a.miss(7, 0, Room::Some), Ok(()));
    a.admitted(7);
    others(&mut a, 2000, 20);
    assert_eq!(a.miss(7, 0, Room::Some), Err(Refusal::Once));
}

#[test]
fn reads_in_small_pieces_are_one_use() {
    let mut a = admission(1024);
    for _ in 0..8 {
        assert_eq!(a.miss(7, 0, Room::Some), Err(Refusal::Once));
    }
    others(&mut a, 1000, APART as u64 - 1);
    assert_eq!(a.miss(7, 0, Room::Some), Err(Refusal::Once), "too few others");
    others(&mut a, 2000, 1);
    assert_eq!(a.miss(7, 0, Room::Some), Ok(()));
}

#[test]
fn ghosts_go_back_about_as_far_as_the_cache_has_slots() {
    let count_found = |others: u64| {
        let mut ghosts = Ghosts::new(4096);
        (0..1000).for_each(|block| ghosts.put(block));
        (10_000..10_000 + others).for_each(|block| ghosts.put(block));
        (0..1000).filter(|&block| ghosts.contains(block)).count()
    };
    assert!(count_found(2000) > 950, "{}", count_found(2000));
    assert!(count_found(6000) < 50, "{}", count_found(6000));
}

#[test]
fn a_ghost_takes_two_bytes_and_is_rarely_another_ones() {
    assert_eq!(Ghosts::bytes(1 << 20), 2 << 20);
    let mut ghosts = Ghosts::new(1 << 16);
    (0..1 << 16).for_each(|block| ghosts.put(block));
    let taken = (1 << 20..(1 << 20) + 100_000).filter(|&block| ghosts.contains(block)).count();
    assert!(taken < 100, "{taken} of 100000: one in 2048 is expected");
}

#[test]
fn a_removed_ghost_leaves_the_others_in_order() {
    let mut ghosts = Ghosts::new(1);
    (0..WAYS as u64).for_each(|block| ghosts.put(block));
    ghosts.remove(10);
    assert!(!ghosts.contains(10) && ghosts.contains(0));
    ghosts.put(100);
    assert!(ghosts.contains(0), "there was room");
    ghosts.put(101);
    assert!(!ghosts.contains(0) && ghosts.contains(1), "the oldest goes");
    ghosts.remove(12345);
}

#[test]
fn no_day_has_more_than_its_budget() {
    let mut budget = DailyBudget::new(1000);
    assert!(budget.spend(600, 0) && budget.spend(400, HOUR_NS));
    assert!(!budget.spend(1, HOUR_NS));
    assert!(!budget.spend(600, DAY_NS), "less than a day after the first");
    assert!(budget.spend(600, DAY_NS + HOUR_NS));
    assert!(!budget.spend(400, DAY_NS + HOUR_NS));
    assert!(budget.spend(400, DAY_NS + 2 * HOUR_NS));
    assert!(budget.spend(1000, 100 * DAY_NS), "all is long ago");
    assert!(!budget.spend(1, 100 * DAY_NS));
    budget.set_limit(0);
    assert!(budget.spend(u64::MAX, 100 * DAY_NS), "no limit");
}

#[test]
fn the_budget_holds_in_any_24_hours() {
    // Eager: spends whatever it may, every 7 minutes.
    let mut budget = DailyBudget::new(1000);
    let step = 7 * 60 * 1_000_000_000;
    let spent: Vec<(u64, u64)> = (0..2000)
        .map(|n| n * step)
        .map(|now| (now, (0..100).filter(|_| budget.spend(10, now)).count() as u64 * 10))
        .collect();
    for (from, _) in &spent {
        let day = spent.iter().filter(|(at, _)| (*from..from + DAY_NS).contains(at));
        assert!(day.map(|(_, bytes)| bytes).sum::<u64>() <= 1000);
    }
    assert!(spent.iter().map(|(_, bytes)| bytes).sum::<u64>() >= 8000, "nine days and a half");
}

#[test]
fn a_refused_block_keeps_its_ghost_until_there_is_budget() {
    let mut a = admission(1024);
    a.set_budget(4096);
    for block in [7, 8] {
        a.miss(block, 0, Room::Some).ok();
    }
    others(&mut a, 1000, 20);
    assert_eq!(a.miss(7, 0, Room::Some), Ok(()));
    assert_eq!(a.miss(8, 0, Room::Some), Err(Refusal::Budget));
    others(&mut a, 2000, 20);
    assert_eq!(a.miss(8, 2 * DAY_NS, Room::Some), Ok(()));
}

#[test]
fn a_block_that_is_read_once_enters_where_there_is_ample_room() {
    let mut a = admission(1024);
    assert_eq!(a.miss(7, 0, Room::Ample), Ok(()));
    a.admitted(7);
    assert!(a.is_wanted(8, || true) && !a.is_wanted(8, || false));
    assert!(!a.is_wanted(7, || true), "it was one of the last");
    assert_eq!(a.miss(8, 0, Room::None), Err(Refusal::Once));
    others(&mut a, 1000, 20);
    assert_eq!(a.miss(8, 0, Room::None), Err(Refusal::NoRoom));
}

#[test]
fn blocks_that_are_read_once_leave_half_of_the_budget() {
    let mut a = admission(1024);
    a.set_budget(8 * 4096);
    let enter = |a: &mut ReadAdmission, from: u64, now| {
        (from..from + 20).filter(|block| a.miss(*block, now, Room::Ample).is_ok()).count()
    };
    assert_eq!(enter(&mut a, 0, 0), 4);
    // The others have ghosts, and were read twice.
    assert_eq!(enter(&mut a, 0, 0), 4);
    assert_eq!(enter(&mut a, 100, 0), 0);
    assert_eq!(enter(&mut a, 200, 2 * DAY_NS), 4);
}

#[test]
fn a_stream_of_reads_is_as_long_as_all_its_requests() {
    let mut a = admission(1024);
    for n in 0..10 {
        assert_eq!(a.bytes_of_stream(1, &(8 * n..8 * n + 8)), (n + 1) * 8 * 4096);
    }
    assert_eq!(a.bytes_of_stream(1, &(100_000..100_001)), 4096);
    assert_eq!(a.bytes_of_stream(2, &(80..81)), 4096, "another client");
}

#[test]
fn a_slot_is_passed_over_once_for_each_counted_use() {
    let mut uses = UseCounts::new(100);
    for slot in [31, 32, 99] {
        (0..5).for_each(|_| uses.count(slot));
    }
    uses.count(33);
    for slot in [31, 32, 99] {
        assert!((0..3).all(|_| uses.pass(slot)) && !uses.pass(slot), "slot {slot}");
    }
    assert!(uses.pass(33) && !uses.pass(33) && !uses.pass(30));
    uses.count(50);
    uses.clear(50);
    assert!(!uses.pass(50));
    assert_eq!(UseCounts::bytes(1 << 20), 1 << 18);
}
