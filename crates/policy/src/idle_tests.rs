// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of what is written back when, and the budget under any course of events.
use proptest::prelude::*;

use super::*;

const HOUR: u32 = 3600;
const MIB: u64 = 1 << 20;

fn policy(rules: IdleRules) -> IdlePolicy {
    let mut policy = IdlePolicy::new(0);
    policy.set_rules(rules);
    policy
}

/// Pages of `(age, huge, how many)`; a huge one takes 4096 bytes, others 1024.
fn ages(of: &[(u32, bool, u64)]) -> Ages {
    let mut ages = Ages::default();
    for (age, huge, pages) in of {
        for _ in 0..*pages {
            ages.add(*age, *huge, if *huge { 4096 } else { 1024 });
        }
    }
    ages
}

fn step(huge: bool, min_age_secs: u32, max_pages: u64) -> Step {
    Step { huge, min_age_secs, max_pages }
}

#[test]
fn classes_are_an_eighth_of_an_age_wide_and_leave_none_out() {
    let table = [(0, 0), (7, 7), (8, 8), (15, 15), (16, 16), (17, 16), (18, 17), (u32::MAX, 239)];
    for (age, expected) in table {
        assert_eq!(class(age), expected, "{age}");
    }
    for nth in 0..CLASSES {
        assert_eq!(class(youngest(nth)), nth);
        if nth > 0 {
            assert_eq!(class(youngest(nth) - 1), nth - 1);
        }
    }
}

#[test]
fn idle_pages_go_when_their_time_has_come() {
    let idle = IdleRules { idle_secs: Some(HOUR), ..IdleRules::default() };
    let coldest = IdleRules { order: IdleOrder::ColdestFirst, ..idle };
    // Rules, pages; steps.
    let table = [
        (idle, vec![], vec![]),
        (idle, vec![(HOUR / 2, false, 9), (10, true, 9)], vec![]),
        (idle, vec![(HOUR, false, 9)], vec![step(false, HOUR, 9)]),
        (
            idle,
            vec![(4 * HOUR, false, 9), (HOUR, true, 7)],
            vec![step(true, HOUR, 7), step(false, youngest(class(4 * HOUR)), 9)],
        ),
        (coldest, vec![(4 * HOUR, false, 9), (HOUR, true, 7)], vec![step(false, HOUR, 16)]),
        (
            coldest,
            vec![(4 * HOUR, false, 9), (10, true, 7)],
            vec![step(false, youngest(class(4 * HOUR)), 9)],
        ),
    ];
    for (rules, pages, steps) in table {
        let got = policy(rules).steps(0, 0, false, &ages(&pages));
        assert_eq!(got, steps, "{rules:?} {pages:?}");
    }
}

#[test]
fn above_the_watermark_as_much_goes_as_is_needed() {
    // From 16 MiB + 64 KiB to 15 MiB: 1088 KiB to gain.
    let mark = IdleRules { watermark_bytes: Some(16 * MIB), ..IdleRules::default() };
    let coldest = IdleRules { order: IdleOrder::ColdestFirst, ..mark };
    let both = IdleRules { idle_secs: Some(HOUR), ..mark };
    let above = 16 * MIB + 65536;
    let pages = vec![(5, false, 5000), (3, true, 200), (1, true, 100), (6, false, 80)];
    let table = [
        (mark, 16 * MIB, vec![]),
        // 272 huge pages would do, but a class is taken as a whole.
        (mark, above, vec![step(true, 1, 300)]),
        // 80 KiB of the oldest, the rest of those next.
        (coldest, above, vec![step(false, 5, 5080)]),
        (both, 16 * MIB, vec![]),
        (both, above, vec![step(true, 1, 300)]),
    ];
    for (rules, memory, steps) in table {
        let got = policy(rules).steps(0, memory, false, &ages(&pages));
        assert_eq!(got, steps, "{rules:?} {memory}");
    }
    // What is idle counts, and others go only if it is not enough.
    let pages = vec![(HOUR, false, 1000), (9, false, 2000), (1, false, 10)];
    let got = policy(both).steps(0, above, false, &ages(&pages));
    assert_eq!(got, [step(false, 9, 3000)]);
    let pages = vec![(HOUR, false, 2000), (9, false, 2000)];
    let got = policy(both).steps(0, above, false, &ages(&pages));
    assert_eq!(got, [step(false, youngest(class(HOUR)), 2000)]);
}

#[test]
fn a_day_has_a_budget() {
    let rules = IdleRules {
        idle_secs: Some(60),
        budget_bytes: Some(10 * 4096 + 100),
        ..IdleRules::default()
    };
    let cold = ages(&[(100, false, 500)]);
    let mut policy = policy(rules);
    assert_eq!(policy.next_action(0, 0, false), IdleAction::Scan);
    assert_eq!(policy.steps(0, 0, false, &cold), [step(false, youngest(class(100)), 10)]);
    policy.wrote(0, step(false, 0, 10), (8 * 4096, 8), None);
    assert_eq!(policy.steps(0, 0, false, &cold), [step(false, youngest(class(100)), 2)]);
    policy.wrote(0, step(false, 0, 2), (2 * 4096, 2), None);
    assert_eq!(policy.next_action(5, 0, false), IdleAction::Rest(SECOND_NS));
    assert_eq!(policy.totals().state, IdleState::Spent);
    let told = policy.totals();
    assert_eq!((told.today_bytes, told.total_bytes, told.total_pages), (40960, 40960, 10));
    // A new day, counted from when the device was made.
    assert_eq!(policy.next_action(DAY_NS - 1, 0, false), IdleAction::Rest(SECOND_NS));
    assert_eq!(policy.next_action(DAY_NS, 0, false), IdleAction::Scan);
    let told = policy.totals();
    assert_eq!((told.today_bytes, told.total_bytes), (0, 40960));
    // Packed pages are counted as what they might take at most.
    assert_eq!(policy.steps(DAY_NS, 0, true, &cold), [step(false, youngest(class(100)), 3)]);
}

#[test]
fn it_looks_as_often_as_its_rules_need() {
    let off = IdleRules::default();
    let idle = IdleRules { idle_secs: Some(80), ..off };
    let mark = IdleRules { watermark_bytes: Some(MIB), ..off };
    assert_eq!(policy(off).next_action(0, u64::MAX, false), IdleAction::Rest(SECOND_NS));
    assert_eq!(policy(off).totals().state, IdleState::Off);
    let mut p = policy(idle);
    assert_eq!(p.next_action(0, 0, false), IdleAction::Scan);
    assert_eq!(p.steps(0, 0, false, &Ages::default()), []);
    assert_eq!(p.next_action(1, 0, false), IdleAction::Rest(SECOND_NS));
    assert_eq!(p.next_action(10 * SECOND_NS - 7, 0, false), IdleAction::Rest(7));
    assert_eq!(p.next_action(10 * SECOND_NS, 0, false), IdleAction::Scan);
    let mut p = policy(mark);
    assert_eq!(p.next_action(0, MIB, false), IdleAction::Rest(WATERMARK_EVERY_NS));
    assert_eq!(p.next_action(0, MIB + 1, false), IdleAction::Scan);
}

#[test]
fn a_round_is_bounded_and_the_next_follows_at_once() {
    let mut p = policy(IdleRules { idle_secs: Some(60), ..IdleRules::default() });
    let cold = ages(&[(100, false, ROUND_PAGES_MAX + 5)]);
    assert_eq!(p.steps(0, 0, false, &cold)[0].max_pages, ROUND_PAGES_MAX);
    p.wrote(0, step(false, 0, ROUND_PAGES_MAX), (1 << 30, ROUND_PAGES_MAX), None);
    assert_eq!(p.next_action(1, 0, false), IdleAction::Scan);
    assert_eq!(p.steps(1, 0, false, &ages(&[(100, false, 5)]))[0].max_pages, 5);
    p.wrote(1, step(false, 0, 5), (5 * 4096, 5), None);
    assert_eq!(p.next_action(2, 0, false), IdleAction::Rest(SECOND_NS));
}

#[test]
fn after_a_failure_it_pauses_and_says_why() {
    let mut p = policy(IdleRules { watermark_bytes: Some(MIB), ..IdleRules::default() });
    for why in [IdleState::Full, IdleState::Limited, IdleState::Failed] {
        (p.paused_until_ns, p.scanned_ns) = (0, None);
        assert_eq!(p.next_action(0, 2 * MIB, false), IdleAction::Scan);
        p.steps(0, 2 * MIB, false, &ages(&[(100, false, 5000)]));
        p.wrote(0, step(false, 0, 9), (0, 0), Some(why));
        assert_eq!(p.next_action(1, 2 * MIB, false), IdleAction::Rest(SECOND_NS));
        assert_eq!(p.totals().state, why);
        assert_eq!(p.next_action(PAUSE_NS, 2 * MIB, false), IdleAction::Scan);
    }
    // Other rules are tried at once.
    p.set_rules(IdleRules { idle_secs: Some(9), ..IdleRules::default() });
    assert_eq!(p.next_action(1, 0, false), IdleAction::Scan);
}

#[test]
fn a_step_that_wrote_less_is_followed_up_but_not_in_vain() {
    let rules = IdleRules { idle_secs: Some(480), ..IdleRules::default() };
    let cold = ages(&[(500, false, 9)]);
    let mut p = policy(rules);
    let asked = p.steps(0, 0, false, &cold)[0];
    p.wrote(0, asked, (5 * 4096, 5), None);
    assert_eq!(p.next_action(1, 0, false), IdleAction::Scan);
    // The others were accessed meanwhile.
    let asked = p.steps(1, 0, false, &cold)[0];
    p.wrote(1, asked, (0, 0), None);
    assert_eq!(p.next_action(2, 0, false), IdleAction::Rest(SECOND_NS));
    assert_eq!(p.next_action(SECOND_NS + 1, 0, false), IdleAction::Scan);
    assert_eq!(p.steps(SECOND_NS + 1, 0, false, &Ages::default()), []);
    assert_eq!(p.next_action(3 * SECOND_NS, 0, false), IdleAction::Rest(SECOND_NS));
}

#[test]
fn shards_are_seen_together() {
    let mut all = ages(&[(100, true, 3)]);
    all.merge(&ages(&[(100, true, 4), (200, false, 5)]));
    assert_eq!(format!("{all:?}"), "Ages(7 huge, 5 others)");
}

proptest! {
    /// PO-ID1, PO-ID2 and PO-ID3 hold for random ages, rules, times and outcomes of the steps.
    #[test]
    fn steps_keep_to_budget_and_age(
        idle_secs in prop::option::of(1_u32..5000),
        watermark_bytes in prop::option::of(1_u64..MIB),
        budget_bytes in prop::option::of(0_u64..MIB),
        coldest in any::<bool>(),
        packed in any::<bool>(),
        rounds in prop::collection::vec(
            (0_u64..30_000 * SECOND_NS, 0..2 * MIB, 0_u64..=100,
             prop::collection::vec((0_u32..6000, any::<bool>(), 1_u64..300), 0..6)),
            1..20,
        ),
    ) {
        let order = if coldest { IdleOrder::ColdestFirst } else { IdleOrder::HugeFirst };
        let rules = IdleRules { idle_secs, watermark_bytes, budget_bytes, order };
        let mut policy = policy(rules);
        let (mut now, mut day, mut today) = (0, 0, 0);
        for (passed, memory, percent, pages) in rounds {
            now += passed;
            if now / DAY_NS != day {
                (day, today) = (now / DAY_NS, 0);
            }
            if policy.next_action(now, memory, packed) != IdleAction::Scan {
                continue;
            }
            let mut round = 0;
            for step in policy.steps(now, memory, packed, &ages(&pages)) {
                let above = watermark_bytes.is_some_and(|mark| memory > mark);
                prop_assert!(above || Some(step.min_age_secs) >= idle_secs, "PO-ID2 {step:?}");
                let there: u64 = pages.iter()
                    .filter(|(age, huge, _)| class(*age) >= class(step.min_age_secs)
                        && (*huge || !step.huge))
                    .map(|(_, _, n)| n).sum();
                prop_assert!(step.max_pages > 0 && step.max_pages <= there, "{step:?}");
                round += step.max_pages;
                let written = step.max_pages * percent / 100;
                today += written * page_bytes_max(packed);
                let bytes = written * page_bytes_max(packed);
                policy.wrote(now, step, (bytes, written), None);
            }
            prop_assert!(round <= ROUND_PAGES_MAX, "PO-ID3");
            prop_assert!(budget_bytes.is_none_or(|most| today <= most), "PO-ID1 {today}");
            prop_assert_eq!(policy.totals().today_bytes, today);
        }
    }
}
