// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of requests that are not whole blocks reaches the driver, and when; and random clients of
//! sectors and of blocks on a simulated disk, with errors and power cuts, and planted faults.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Class, Flags};
use reactor::{discard, flush, read, write, write_zeroes, yield_now};
use sim::{
    Change, DiskSpec, Faults, Machine, Mix, Oracle, PowerCut, RunEnd, Workload, World, WorldRef,
};
use sim::{Rng, seeds};

use super::*;
use crate::FileLeaf;
use crate::testing::{Script, pattern, with_core};
use reactor::FileId;

const BLOCK: u32 = 4096;
const NONE: Flags = Flags::empty();
const NORMAL: Class = Class::Normal;

fn limits(blocks: u64) -> Limits {
    Limits {
        logical_block_bytes: BLOCK,
        discard_granularity_bytes: BLOCK,
        write_zeroes: true,
        ..Limits::new(Sector(blocks * 8))
    }
}

fn merging(limits: Limits) -> Rc<MergingLeaf<FileLeaf>> {
    Rc::new(MergingLeaf::new(FileLeaf::new("disk", FileId(0), limits)))
}

/// Lets all tasks do what they can.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// Sends a write and returns where its outcome will be.
fn begin(dev: &Rc<MergingLeaf<FileLeaf>>, flags: Flags, at: u64, sectors: usize) -> Rc<Cell<u32>> {
    let (dev, ended) = (dev.clone(), Rc::new(Cell::new(0)));
    let note = ended.clone();
    spawn(async move {
        let done = write(&*dev, flags, NORMAL, Sector(at), pattern(sectors * 512, 1)).await;
        note.set(if done.is_ok() { 1 } else { 2 });
    });
    ended
}

#[test]
fn limits_tell_of_sectors_and_of_the_block_they_are_merged_in() {
    let dev = merging(limits(8));
    let (of_leaf, of_device) = (dev.leaf().limits(), BlockDevice::limits(&*dev));
    assert_eq!(of_device.logical_block_bytes, 512);
    assert_eq!((of_device.physical_block_bytes, of_device.io_min_bytes), (BLOCK, BLOCK));
    assert_eq!(of_device.write_unit_bytes(), of_leaf.write_unit_bytes());
    assert_eq!(of_device.capacity, of_leaf.capacity);
    assert!(MergingLeaf::<FileLeaf>::is_needed(&of_leaf));
    assert!(!MergingLeaf::<FileLeaf>::is_needed(&of_device));
}

#[test]
fn whole_blocks_go_straight_to_the_driver() {
    let script = Script::default();
    with_core(script.driver(), async {
        let dev = merging(limits(8));
        write(&*dev, Flags::FUA, NORMAL, Sector(8), pattern(8192, 1)).await.unwrap();
        read(&*dev, NORMAL, Sector(0), pattern(4096, 1)).await.unwrap();
        discard(&*dev, NORMAL, Sector(8), Sector(16)).await.unwrap();
        flush(&*dev, NORMAL).await.unwrap();
        assert_eq!(dev.leaf().stats().of(Op::Write).ios, 1);
    });
    let expected = ["write 4096+8192 fua", "read 0+4096", "discard 4096+8192", "flush"];
    assert_eq!(script.seen(), expected);
}

#[test]
fn each_edge_is_read_once_and_one_write_follows() {
    let script = Script::default();
    with_core(script.driver(), async {
        let dev = merging(limits(8));
        write(&*dev, Flags::FUA, NORMAL, Sector(3), pattern(512, 1)).await.unwrap();
        write(&*dev, NONE, NORMAL, Sector(5), pattern(24 * 512, 1)).await.unwrap();
        write(&*dev, NONE, NORMAL, Sector(8), pattern(9 * 512, 1)).await.unwrap();
        write(&*dev, NONE, NORMAL, Sector(15), pattern(9 * 512, 1)).await.unwrap();
        read(&*dev, NORMAL, Sector(7), pattern(1024, 1)).await.unwrap();
    });
    let expected = [
        "read 0+4096",
        "write 0+4096 fua",
        "read 0+4096",
        "read 12288+4096",
        "write 0+16384",
        "read 8192+4096",
        "write 4096+8192",
        "read 4096+4096",
        "write 4096+8192",
        "read 0+8192",
    ];
    assert_eq!(script.seen(), expected);
}

#[test]
fn zeroes_of_parts_are_merged_and_discards_narrowed() {
    let script = Script::default();
    with_core(script.driver(), async move {
        let dev = merging(limits(8));
        write_zeroes(&*dev, Flags::FUA, NORMAL, Sector(7), Sector(10)).await.unwrap();
        write_zeroes(&*dev, NONE, NORMAL, Sector(9), Sector(2)).await.unwrap();
        write_zeroes(&*dev, NONE, NORMAL, Sector(7), Sector(2)).await.unwrap();
        let mark = script.take_seen();
        let expected = [
            "read 0+4096",
            "write 0+4096 fua",
            "write_zeroes 4096+4096 unmap",
            "flush",
            "read 8192+4096",
            "write 8192+4096 fua",
            "read 4096+4096",
            "write 4096+4096",
            "read 0+4096",
            "write 0+4096",
            "read 4096+4096",
            "write 4096+4096",
        ];
        assert_eq!(mark, expected);
        discard(&*dev, NORMAL, Sector(7), Sector(10)).await.unwrap();
        discard(&*dev, NORMAL, Sector(7), Sector(8)).await.unwrap();
        discard(&*dev, NORMAL, Sector(1), Sector(3)).await.unwrap();
        assert_eq!(script.take_seen(), ["discard 4096+4096"]);
    });
}

#[test]
fn a_merge_and_a_write_of_its_block_wait_for_each_other() {
    let script = Script::default();
    with_core(script.driver(), {
        let script = script.clone();
        async move {
            let dev = merging(limits(8));
            script.keep();
            // One that is in flight is waited for.
            let first = begin(&dev, NONE, 0, 8);
            settle().await;
            let part = begin(&dev, NONE, 1, 1);
            settle().await;
            assert_eq!(script.take_seen(), ["write 0+4096"]);
            script.release(1);
            settle().await;
            assert_eq!((first.get(), part.get()), (1, 0));
            assert_eq!(script.take_seen(), ["read 0+4096"]);
            // One that comes later waits, and a merge behind it; other blocks do not.
            let second = begin(&dev, NONE, 0, 16);
            settle().await;
            let behind = begin(&dev, NONE, 9, 1);
            let other = begin(&dev, NONE, 16, 8);
            let other_part = begin(&dev, NONE, 25, 1);
            settle().await;
            assert_eq!(script.take_seen(), ["write 8192+4096", "read 12288+4096"]);
            script.release(1);
            settle().await;
            assert_eq!((part.get(), second.get(), behind.get()), (0, 0, 0));
            assert_eq!(script.take_seen(), ["write 0+4096"]);
            script.release(3);
            settle().await;
            assert_eq!((part.get(), other.get(), second.get()), (1, 1, 0));
            assert_eq!(script.take_seen(), ["write 12288+4096", "write 0+8192"]);
            script.release(2);
            settle().await;
            assert_eq!((second.get(), other_part.get(), behind.get()), (1, 1, 0));
            assert_eq!(script.take_seen(), ["read 4096+4096"]);
            script.release(1);
            settle().await;
            script.release(1);
            settle().await;
            assert_eq!(behind.get(), 1);
            assert_eq!(dev.0.mask.get(), 7, "no lock is left");
        }
    });
}

#[test]
fn a_write_that_the_throttle_keeps_waiting_is_waited_for_too() {
    let script = Script::default();
    with_core(script.driver(), {
        let script = script.clone();
        async move {
            let dev = merging(Limits { queue_depth: 1, ..limits(1024) });
            dev.leaf().wbt().set("queue/wbt_mode", "kernel").unwrap();
            script.keep();
            let background = |at: u64, blocks: usize| {
                let dev = dev.clone();
                spawn(async move {
                    let data = pattern(blocks * 4096, 1);
                    let class = Class::Background;
                    write(&*dev, Flags::BACKGROUND, class, Sector(at), data).await.unwrap();
                });
            };
            (0..8).for_each(|nth| background(nth * 8, 1));
            settle().await;
            let sent = script.take_seen().len();
            assert!(sent < 8, "some wait: {sent} of 8 were sent");
            let part = begin(&dev, NONE, 7 * 8 + 1, 1);
            settle().await;
            assert_eq!(script.take_seen(), [""; 0], "its block waits at the throttle");
            for _ in 0..8 {
                script.release(1);
                settle().await;
            }
            assert_eq!(script.take_seen().last().unwrap(), "read 28672+4096");
            script.release(1);
            settle().await;
            script.release(1);
            settle().await;
            assert_eq!(part.get(), 1);
        }
    });
}

#[test]
fn an_error_of_the_read_or_of_the_write_is_that_of_the_part() {
    let script = Script::default();
    with_core(script.driver(), {
        let script = script.clone();
        async move {
            let dev = merging(limits(8));
            let part = || write(&*dev, NONE, NORMAL, Sector(1), pattern(512, 1));
            script.fail_next(Status::Io);
            assert_eq!(part().await, Err(Status::Io));
            assert_eq!(script.take_seen(), ["read 0+4096"], "nothing is written");
            assert_eq!(part().await, Ok(()), "later locks are granted");
            script.fail_next(Status::Io);
            let back = read(&*dev, NORMAL, Sector(1), pattern(512, 1)).await;
            assert_eq!(back, Err(Status::Io));
            script.keep();
            let ended = begin(&dev, NONE, 1, 1);
            settle().await;
            script.fail_next(Status::NoSpace);
            script.release(1);
            settle().await;
            script.release(1);
            settle().await;
            assert_eq!(ended.get(), 2);
            assert_eq!(dev.leaf().stats().last_error().unwrap().cause, Status::NoSpace);
        }
    });
}

#[test]
fn what_the_leaf_refuses_never_reaches_the_driver() {
    let script = Script::default();
    with_core(script.driver(), async {
        let plain = Limits { discard_granularity_bytes: 0, write_zeroes: false, ..limits(8) };
        let dev = merging(plain);
        let no = Err(Status::NotSupported);
        assert_eq!(discard(&*dev, NORMAL, Sector(1), Sector(2)).await, no);
        assert_eq!(write_zeroes(&*dev, NONE, NORMAL, Sector(1), Sector(2)).await, no);
        let beyond = write(&*dev, NONE, NORMAL, Sector(63), pattern(1024, 1)).await;
        assert_eq!(beyond, Err(Status::Invalid));
        let place = (Sector(1), Sector(2));
        let short = reactor::io(&*dev, Op::Write, NONE, NORMAL, place, pattern(512, 1)).await;
        assert_eq!(short, Err(Status::Invalid));
        assert_eq!(dev.leaf().stats().errors(), 4);
    });
    assert!(script.seen().is_empty());
}

#[test]
fn who_waits_for_earlier_requests_waits_for_merges() {
    let script = Script::default();
    with_core(script.driver(), {
        let script = script.clone();
        async move {
            let dev = merging(limits(8));
            script.keep();
            let part = begin(&dev, NONE, 1, 1);
            settle().await;
            let (of, quiet) = (dev.clone(), Rc::new(Cell::new(false)));
            let note = quiet.clone();
            spawn(async move {
                of.quiesced().await;
                note.set(true);
            });
            settle().await;
            script.release(1);
            settle().await;
            assert_eq!((part.get(), quiet.get()), (0, false), "its write is under way");
            script.release(1);
            settle().await;
            assert_eq!((part.get(), quiet.get()), (1, true));
        }
    });
}

const BLOCKS: u64 = 12;
const CLIENTS: u64 = 8;
const ROUNDS: u32 = 3;

/// A client: of whole blocks now and then, of sectors else.
async fn client(load: Workload, world: WorldRef, dev: Rc<dyn BlockDevice>, requests: u32) {
    for _ in 0..requests {
        let (dice, range, fua) = {
            let rng = &mut world.borrow_mut().rng;
            let unit = if rng.chance_per_mille(400) { 8 } else { 1 };
            let count = rng.range(1, 24 / unit + 1);
            let first = rng.below(BLOCKS * 8 / unit - count + 1);
            let range = first * unit..(first + count) * unit;
            (rng.below(100), range, rng.chance_per_mille(100))
        };
        let done = match dice {
            0..30 => load.read(&*dev, range).await,
            30..80 => load.change(&*dev, range, Change::Write, fua).await,
            80..88 => load.change(&*dev, range, Change::WriteZeroes, fua).await,
            88..92 => load.change(&*dev, range, Change::Discard, false).await,
            _ => load.flush(&*dev).await,
        };
        if let Err(why) = done {
            return load.verdict.fail(why);
        }
    }
    // `Workload` counts its own clients: one of it without a request says that this one is done.
    load.client(dev, 0).await;
}

fn simulate(seed: u64, fault: Option<Fault>) -> Result<bool, String> {
    let world = World::new(seed);
    let mut rng = Rng::new(seed ^ 0x6d65_7267);
    let (faulty, cuts, depth) =
        (rng.chance_per_mille(500), rng.chance_per_mille(700), rng.pick(&[0, 1, 2, 8]));
    let sectors = Sector(BLOCKS * 8);
    let file = {
        let world = &mut *world.borrow_mut();
        let spec = DiskSpec::new("disk", sectors, world.swarm_model());
        world.add_disk(DiskSpec { logical_block_bytes: BLOCK, ..spec })
    };
    let oracle = Rc::new(RefCell::new(Oracle::new(sectors.0, 512, seed)));
    if faulty {
        let faults = Faults {
            read_error_per_mille: 20,
            write_error_per_mille: 20,
            flush_error_per_mille: 20,
            ..Faults::default()
        };
        world.borrow_mut().set_faults(file, faults);
        oracle.borrow_mut().expect_flush_errors();
    }
    let mix = Mix { errors_allowed: faulty, ..Mix::default() };
    let mut cut_merging = false;
    for _ in 0..ROUNDS {
        let machine = Machine::boot(&world, 1);
        let load = Workload::new(&world, &oracle, mix);
        let dev = merging(Limits { queue_depth: depth, ..limits(BLOCKS) });
        dev.0.planted.set(fault.into());
        machine.block_on(load.read_all(dev.clone())).expect("no cut is set yet")?;
        let cut = cuts.then(|| {
            let world = &mut *world.borrow_mut();
            PowerCut::Step(world.steps() + world.rng.below(3000))
        });
        world.borrow_mut().power_cut_at(cut);
        for _ in 0..CLIENTS {
            machine.spawn(0, client(load.clone(), world.clone(), dev.clone(), 30));
        }
        let ended = machine.run(|| load.verdict.is_settled(CLIENTS));
        load.verdict.result()?;
        match ended {
            RunEnd::Idle => return Err("clients wait for ever".into()),
            RunEnd::PowerCut => {
                cut_merging |= !dev.0.locks.borrow().entries.is_empty();
                machine.power_cut();
                oracle.borrow_mut().crash();
            }
            RunEnd::Until => {
                world.borrow_mut().power_cut_at(None);
                assert_eq!(machine.run(|| false), RunEnd::Idle);
                assert!(dev.0.locks.borrow().entries.is_empty());
                assert_eq!((dev.0.mask.get(), dev.0.in_flight.in_flight()), (7, 0));
                machine.kill();
                oracle.borrow_mut().kill();
            }
        }
        world.borrow_mut().power_cut_at(None);
    }
    Ok(cut_merging)
}

#[test]
fn parts_of_blocks_keep_the_contract() {
    let (runs, mut cut_merging) = (seeds::count(300), 0);
    seeds::run(300, |seed| {
        cut_merging += u64::from(simulate(seed, None)?);
        Ok(())
    });
    // One seed alone need not have everything.
    if runs >= 50 && std::env::var_os("MILLPOND_SEED").is_none() {
        assert!(cut_merging > runs / 5, "{cut_merging} of {runs} were cut while merging");
    }
}

fn is_caught(fault: Option<Fault>) {
    let run = |seed, fault| simulate(seed, fault).map(drop);
    let found = seeds::first_failure(0..2000, |seed| run(seed, fault));
    let found = found.unwrap_or_else(|| panic!("{fault:?} was not caught in 2000 seeds"));
    eprintln!("{fault:?}: seed {}: {}", found.seed, found.why);
    // It is the fault that was seen.
    assert_eq!(run(found.seed, None), Ok(()), "seed {} without it", found.seed);
}

#[test]
fn a_merge_without_a_lock_is_caught() {
    is_caught(Some(Fault::NoRangeLock));
}

#[test]
fn a_merge_that_does_not_wait_for_writes_in_flight_is_caught() {
    is_caught(Some(Fault::IgnoreInFlight));
}

#[test]
fn a_merged_fua_write_that_is_not_fua_is_caught() {
    is_caught(Some(Fault::IgnoreFua));
}
