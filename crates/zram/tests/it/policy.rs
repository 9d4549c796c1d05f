// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The automatic writeback in virtual time: which pages it leaves in memory.

use std::rc::Rc;

use crate::fixture::{Fixture, drop_pages, expect, fill, numbers, page, put, set, told};
use block::{CoreId, ErrorKind, Nanos, Sector, Target};
use sim::{Faults, Machine, RunEnd, World};
use zram::{Config, NoFiles, Zram};

const BLOCKS: u64 = 4096;

async fn seconds(n: u64) {
    reactor::sleep(Nanos::from_secs(n)).await;
}

/// Pages in memory that could be written back; those here are all huge or all compressed.
async fn in_memory(zram: &Rc<Zram>) -> u64 {
    let pages = numbers(zram, "mm_stat").await[0] / 4096;
    pages - numbers(zram, "backed_stat").await[0]
}

/// The state of the policy, one word of the status.
async fn state(zram: &Rc<Zram>) -> String {
    told(zram, "auto_writeback_stat").await.split(' ').next().expect("a word").to_owned()
}

#[test]
fn pages_are_written_back_when_idle_long_enough_not_before() {
    Fixture::new(64, BLOCKS, "auto_writeback_idle 80").run(async |zram| {
        fill(&zram, 0..8, 1).await;
        seconds(40).await;
        expect(&zram, 0..2, 1).await;
        seconds(39).await;
        assert_eq!(in_memory(&zram).await, 8);
        // It looks every 10 s; a second may pass until the clock shows the age.
        seconds(12).await;
        assert_eq!(in_memory(&zram).await, 2, "those that were read at 40 s");
        seconds(40).await;
        assert_eq!(in_memory(&zram).await, 0);
        assert_eq!(numbers(&zram, "bd_stat").await, [8, 0, 8]);
        assert_eq!(told(&zram, "auto_writeback_stat").await, "waiting 32768 0 32768 8");
        assert!(zram.status().ends_with(" waiting 32768 0 32768 8"), "{}", zram.status());
        expect(&zram, 0..8, 1).await;
    });
}

#[test]
fn above_the_watermark_huge_or_the_coldest_pages_go_first() {
    // 64 huge pages of 256 KiB, younger than 64 others.
    for (order, huge_left) in [("huge", 0), ("coldest", 64)] {
        let options = format!("auto_writeback_order {order}");
        Fixture::new(256, BLOCKS, &options).run(async move |zram| {
            for slot in 0..64 {
                put(&*zram, slot, &page(slot, 1, 500)).await.unwrap();
            }
            seconds(20).await;
            fill(&zram, 64..128, 1).await;
            let used = numbers(&zram, "mm_stat").await[2];
            assert_eq!(in_memory(&zram).await, 128);
            // A little has to go: one class of ages goes as a whole.
            let mark = (used - 4096).to_string();
            set(&zram, "auto_writeback_watermark", &mark).await.unwrap();
            seconds(5).await;
            let mm = numbers(&zram, "mm_stat").await;
            assert_eq!(in_memory(&zram).await, 64, "{order}");
            assert_eq!(mm[7], huge_left, "{order}: {mm:?}");
        });
    }
}

#[test]
fn memory_stays_below_the_watermark_while_a_client_writes() {
    let options = "auto_writeback_watermark 1M auto_writeback_order coldest";
    Fixture::new(4096, BLOCKS, options).run(async |zram| {
        for round in 0..40 {
            fill(&zram, round * 64..(round + 1) * 64, 1).await;
            seconds(1).await;
            let used = numbers(&zram, "mm_stat").await[2];
            assert!(used <= 1 << 20, "round {round}: {used}");
        }
        assert!(in_memory(&zram).await > 100, "not more than is needed goes");
        expect(&zram, 0..40 * 64, 1).await;
    });
}

#[test]
fn a_day_has_a_budget_and_the_next_day_another() {
    let options = "auto_writeback_idle 60 auto_writeback_budget 80K";
    Fixture::new(64, BLOCKS, options).run(async |zram| {
        fill(&zram, 0..50, 1).await;
        seconds(3600).await;
        assert_eq!(numbers(&zram, "bd_stat").await, [20, 0, 20]);
        assert_eq!(told(&zram, "auto_writeback_stat").await, "spent 81920 81920 81920 20");
        // The owner's own commands are not bound by it.
        set(&zram, "writeback", "page_index=49").await.unwrap();
        assert_eq!(numbers(&zram, "bd_stat").await, [21, 0, 21]);
        seconds(24 * 3600).await;
        assert_eq!(numbers(&zram, "bd_stat").await, [41, 0, 41]);
        assert_eq!(told(&zram, "auto_writeback_stat").await, "spent 81920 81920 163840 40");
        seconds(24 * 3600).await;
        assert_eq!(numbers(&zram, "bd_stat").await, [50, 0, 50]);
        assert_eq!(state(&zram).await, "waiting");
    });
}

#[test]
fn packed_pages_never_exceed_the_budget() {
    let options =
        "auto_writeback_idle 60 auto_writeback_budget 80K compressed_writeback 1 shards 2";
    Fixture::new(1024, BLOCKS, options).run(async |zram| {
        for slot in 0..1024 {
            put(&*zram, slot, &page(slot, 1, 100)).await.unwrap();
        }
        seconds(3600).await;
        let written = numbers(&zram, "bd_stat").await[2] * 4096;
        assert!((40960..=81920).contains(&written), "{written}");
        assert_eq!(state(&zram).await, "spent");
    });
}

/// Fills most of 300 packed blocks with pages of which a quarter stays. Others wait in memory.
async fn fragment(zram: &Rc<Zram>) {
    for slot in 0..1024 {
        put(&**zram, slot, &page(slot, 1, 250)).await.unwrap();
    }
    set(zram, "writeback", "page_indexes=0-1023").await.unwrap();
    for slot in (0..1024).filter(|slot| slot % 4 != 0) {
        drop_pages(&**zram, slot, 1).await;
    }
    for slot in 1024..1700 {
        put(&**zram, slot, &page(slot, 1, 250)).await.unwrap();
    }
}

/// Found by reading: pages were moved to memory to make room, and stayed there, because the limit
/// was used up before they were written again. So each writeback took memory.
#[test]
fn a_limit_leaves_no_page_that_was_moved_in_memory() {
    Fixture::new(2048, 300, "compressed_writeback 1").run(async |zram| {
        fragment(&zram).await;
        let free = 300 - numbers(&zram, "bd_stat").await[0];
        set(&zram, "writeback_limit", &(free + 4).to_string()).await.unwrap();
        set(&zram, "writeback_limit_enable", "1").await.unwrap();
        let e = set(&zram, "writeback", "page_indexes=1024-1699").await.unwrap_err();
        let states = told(&zram, "block_state").await;
        let first = states.lines().take(256);
        assert_eq!(first.filter(|line| line.contains('w')).count(), 256, "all are still there");
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    });
}

/// Found by reading: a rule with little of its budget left moved the pages of a full backing device
/// together, and so wrote many times what was left.
#[test]
fn moved_pages_never_exceed_the_budget() {
    Fixture::new(2048, 300, "compressed_writeback 1").run(async |zram| {
        fragment(&zram).await;
        let before = numbers(&zram, "bd_stat").await;
        let budget = (300 - before[0] + 16) * 4096;
        set(&zram, "auto_writeback_budget", &budget.to_string()).await.unwrap();
        set(&zram, "auto_writeback_idle", "60").await.unwrap();
        seconds(3600).await;
        let written = (numbers(&zram, "bd_stat").await[2] - before[2]) * 4096;
        assert!((budget / 2..=budget).contains(&written), "{written} of {budget}");
        // With a budget for them they make room.
        set(&zram, "auto_writeback_budget", "64M").await.unwrap();
        seconds(3600).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (0, "waiting".into()));
    });
}

#[test]
fn rules_may_be_changed_at_any_time() {
    Fixture::new(64, BLOCKS, "").run(async |zram| {
        fill(&zram, 0..8, 1).await;
        seconds(10_000).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (8, "off".into()));
        set(&zram, "auto_writeback_idle", "60").await.unwrap();
        seconds(2).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (0, "waiting".into()));
        set(&zram, "auto_writeback_idle", "0").await.unwrap();
        fill(&zram, 0..8, 2).await;
        seconds(10_000).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (8, "off".into()));
        let table = zram.table();
        assert!(!table.contains("auto_"), "{table}");
    });
}

#[test]
fn rules_without_a_backing_device_are_refused() {
    let world = World::calm(1);
    let machine = Machine::boot(&world, 1);
    let done = machine.block_on(async {
        let config = Config::parse(&["lz4"], Sector(64), &NoFiles).unwrap();
        let zram = Zram::new("zram0", config, None, vec![CoreId(0)]).unwrap();
        zram.clone().resume().await.unwrap();
        for (name, value) in [("auto_writeback_idle", "60"), ("auto_writeback_watermark", "1M")] {
            let e = set(&zram, name, value).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert!(e.to_string().contains("needs a backing_dev"), "{e}");
            assert_eq!(told(&zram, name).await, "0", "nothing has changed");
        }
        let e = set(&zram, "writeback", "idle").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoDevice, "{e}");
        zram.suspend().await.unwrap();
    });
    machine.shut_down();
    done.expect("no power cut was planned");
}

#[test]
fn a_suspended_device_writes_nothing_until_it_is_resumed() {
    Fixture::new(64, BLOCKS, "auto_writeback_idle 60").run(async |zram| {
        fill(&zram, 0..8, 1).await;
        zram.clone().suspend().await.unwrap();
        seconds(10_000).await;
        assert_eq!(in_memory(&zram).await, 8);
        zram.clone().resume().await.unwrap();
        seconds(20).await;
        assert_eq!(in_memory(&zram).await, 0);
    });
}

/// Found by reading: the task of the rules was started while the device was suspended. It looked at
/// all pages again and again, and could write none.
#[test]
fn rules_set_while_suspended_start_with_the_resume() {
    let lab = Fixture::new(64, BLOCKS, "");
    let machine = Machine::boot(&lab.world, 1);
    let made = lab.clone();
    let suspended = machine.block_on(async move {
        let zram = made.target();
        zram.clone().resume().await.unwrap();
        fill(&zram, 0..8, 1).await;
        zram.clone().suspend().await.unwrap();
        set(&zram, "auto_writeback_idle", "60").await.unwrap();
        zram
    });
    let zram = suspended.unwrap();
    let begun = lab.world.borrow().now();
    let late = || lab.world.borrow().now() > begun + Nanos::from_secs(1000);
    assert_eq!(machine.run(late), RunEnd::Idle, "no timer runs");
    let done = machine.block_on(async move {
        seconds(1000).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (8, "waiting".into()));
        zram.clone().resume().await.unwrap();
        seconds(20).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (0, "waiting".into()));
        zram.suspend().await.unwrap();
    });
    machine.shut_down();
    done.expect("no power cut was planned");
}

/// Found by reading: a look at a large table that lasted longer than a suspend went on after it,
/// beside that of the new task, and both used the same rest of the budget.
#[test]
fn a_look_that_outlives_a_suspend_writes_nothing_back() {
    let options = "auto_writeback_idle 60 auto_writeback_budget 80K shards 1";
    Fixture::new(1 << 18, BLOCKS, options).run(async |zram| {
        fill(&zram, 0..50, 1).await;
        for _ in 0..80 {
            seconds(1).await;
            for _ in 0..4 {
                reactor::yield_now().await;
            }
            zram.clone().suspend().await.unwrap();
            zram.clone().resume().await.unwrap();
        }
        seconds(100).await;
        assert_eq!(told(&zram, "auto_writeback_stat").await, "spent 81920 81920 81920 20");
    });
}

#[test]
fn a_full_or_failed_backing_device_is_tried_again_later() {
    let lab = Fixture::new(64, 16, "auto_writeback_idle 60");
    lab.run(async |zram| {
        fill(&zram, 0..24, 1).await;
        seconds(200).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (8, "full".into()));
        drop_pages(&*zram, 0, 16).await;
        seconds(200).await;
        assert_eq!(in_memory(&zram).await, 0);
    });
    let lab = Fixture::new(64, BLOCKS, "auto_writeback_idle 60");
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.run(async move |zram| {
        fill(&zram, 0..8, 1).await;
        let faults = |write_error_per_mille| Faults { write_error_per_mille, ..Faults::default() };
        world.borrow_mut().set_faults(disk, faults(1000));
        seconds(200).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (8, "failed".into()));
        world.borrow_mut().set_faults(disk, faults(0));
        seconds(100).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (0, "waiting".into()));
        expect(&zram, 0..8, 1).await;
    });
    let lab = Fixture::new(64, BLOCKS, "auto_writeback_idle 60 writeback_limit 5");
    lab.run(async |zram| {
        fill(&zram, 0..8, 1).await;
        seconds(200).await;
        assert_eq!((in_memory(&zram).await, state(&zram).await), (3, "limited".into()));
        assert_eq!(told(&zram, "writeback_limit").await, "0");
    });
}

#[test]
fn parts_of_two_cores_are_written_back_together() {
    let mut lab = Fixture::new(600, BLOCKS, "auto_writeback_idle 60 shards 2");
    lab.cores = 2;
    lab.run(async |zram| {
        fill(&zram, 0..600, 1).await;
        seconds(100).await;
        assert_eq!(in_memory(&zram).await, 0);
        assert_eq!(told(&zram, "auto_writeback_stat").await, "waiting 2457600 0 2457600 600");
        expect(&zram, 0..600, 1).await;
    });
}
