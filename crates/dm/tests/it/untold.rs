// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Acknowledged writes that a leaf loses, and tables that leave it before those hear of it who have
//! written. An attack from outside found that a swap of tables, away and back, forgot the loss.

use std::rc::Rc;

use crate::common::{Bench, Shared, disk, filled, is_flat, take_log, write};
use block::{BlockDevice, Class, Flags, Nanos, Op, OpenDevice, Opener, Sector, Status};
use dm::{Dm, Remove};
use reactor::{sleep, spawn};

const LEAF: &str = "/lossy/a/4096";
const TABLE: &str = "0 96 linear /lossy/a/4096 0";
const AWAY: [&str; 4] = [
    "0 96 zero",
    "0 96 error",
    "0 96 linear /ram/b/4096 0",
    "0 48 linear /ram/b/4096 0\n48 48 linear /ram/b/4096 48",
];

/// `name`, as two openers have it.
fn open(dm: &Rc<Dm>, name: &str) -> [OpenDevice; 2] {
    let device: Rc<dyn BlockDevice> = dm.get(name).expect("it was created");
    [1, 2].map(|opener| OpenDevice::new(device.clone(), Opener(opener)))
}

async fn flush(device: &OpenDevice) -> Result<(), Status> {
    reactor::flush(device, Class::Normal).await
}

async fn swap(dm: &Rc<Dm>, table: &str) {
    dm.load("low", table).await.expect("a sound table");
    dm.suspend("low").await.expect("a sound table");
    dm.resume("low").await.expect("a sound table");
}

fn lose(state: &Shared) {
    lose_at(state, LEAF);
}

fn lose_at(state: &Shared, leaf: &str) {
    let nth = disk(state, leaf);
    state.borrow_mut().disks[nth].losses += 1;
}

fn break_at(state: &Shared, leaf: &str, broken: bool) {
    let nth = disk(state, leaf);
    state.borrow_mut().disks[nth].broken = broken;
}

/// Asks for the devices that are open, and for one above whose mapping would lead past them.
#[test]
fn a_swap_away_and_back_tells_each_opener_once_of_a_loss() {
    for (away, name) in AWAY.into_iter().flat_map(|away| [(away, "low"), (away, "top")]) {
        Bench::new(1).run(|dm, state| async move {
            let low = dm.create("low", None, Some(TABLE)).await.unwrap();
            let top = dm.create("top", None, Some("0 96 linear low 0")).await.unwrap();
            let openers = open(&dm, name);
            for device in &openers {
                write(device, 1, 0, 8).await.unwrap();
            }
            lose(&state);
            swap(&dm, away).await;
            swap(&dm, TABLE).await;
            assert_eq!(state.borrow().opened - state.borrow().closed, 1, "{away}: {LEAF} anew");
            for device in &openers {
                // A write after the loss, which is durable by the second FLUSH, hides nothing.
                write(device, 2, 8, 8).await.unwrap();
                assert_eq!(flush(device).await, Err(Status::Io), "{away} {name}");
                assert_eq!(flush(device).await, Ok(()), "{away} {name}");
            }
            sleep(Nanos::from_millis(1)).await;
            let is_flat = is_flat(&low) && is_flat(&top);
            assert!(is_flat, "{away} {name}: nobody is left to be told");
        });
    }
}

/// The openers' promise is the mapped device's, whatever its table is.
#[test]
fn a_loss_is_told_while_the_other_table_is_live() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(TABLE)).await.unwrap();
        let [writer, reader] = open(&dm, "low");
        write(&writer, 1, 0, 8).await.unwrap();
        lose(&state);
        swap(&dm, "0 96 linear /ram/b/4096 0").await;
        assert_eq!(flush(&reader).await, Ok(()));
        assert_eq!(flush(&writer).await, Err(Status::Io));
        swap(&dm, TABLE).await;
        assert_eq!(flush(&writer).await, Ok(()));
    });
}

#[test]
fn a_leaf_is_flushed_before_its_last_table_goes() {
    for fails in [false, true] {
        Bench::new(1).run(|dm, state| async move {
            dm.create("low", None, Some(TABLE)).await.unwrap();
            let [writer, _] = open(&dm, "low");
            write(&writer, 1, 0, 8).await.unwrap();
            let nth = disk(&state, LEAF);
            state.borrow_mut().disks[nth].broken = fails;
            swap(&dm, "0 96 zero").await;
            assert_eq!(take_log(&state, LEAF).last().map(|(op, ..)| *op), Some(Op::Flush));
            state.borrow_mut().disks[nth].broken = false;
            lose(&state); // It was flushed before.
            swap(&dm, TABLE).await;
            let told = if fails { Err(Status::Io) } else { Ok(()) };
            assert_eq!((flush(&writer).await, flush(&writer).await), (told, Ok(())));
        });
    }
}

/// The leaf is told of by the device that has left it and by one that has not.
#[test]
fn a_leaf_that_another_table_uses_is_told_of_once() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(TABLE)).await.unwrap();
        let other = format!("0 96 linear {LEAF} 96");
        dm.create("other", None, Some(&other)).await.unwrap();
        let [first, second] = open(&dm, "low");
        for device in [&first, &second] {
            write(device, 1, 0, 8).await.unwrap();
        }
        lose(&state);
        swap(&dm, "0 96 zero").await;
        assert_eq!(flush(&first).await, Err(Status::Io), "while it is away");
        swap(&dm, TABLE).await;
        assert_eq!(flush(&first).await, Ok(()));
        assert_eq!(flush(&second).await, Err(Status::Io), "when it is back");
        assert_eq!(flush(&second).await, Ok(()));
        write(&first, 1, 0, 8).await.unwrap();
        swap(&dm, "0 96 zero").await;
        lose(&state); // It was flushed before, although it stays open.
        assert_eq!(flush(&first).await, Ok(()));
    });
}

/// The promise is that of the device above, and so is the table that leaves.
#[test]
fn a_loss_below_a_device_that_is_left_is_told() {
    for is_lost_before in [true, false] {
        Bench::new(1).run(|dm, state| async move {
            dm.create("mid", None, Some(TABLE)).await.unwrap();
            dm.create("low", None, Some("0 96 linear mid 0")).await.unwrap();
            let [writer, _] = open(&dm, "low");
            write(&writer, 1, 0, 8).await.unwrap();
            if is_lost_before {
                lose(&state);
            }
            dm.suspend("mid").await.unwrap(); // That is no reason to wait.
            swap(&dm, "0 96 zero").await;
            dm.resume("mid").await.unwrap();
            lose(&state);
            assert_eq!(flush(&writer).await.is_err(), is_lost_before);
            swap(&dm, "0 96 linear mid 0").await;
            assert_eq!(flush(&writer).await, Ok(()));
        });
    }
}

/// A FLUSH that reports what is lost at one leaf reaches the other one, too.
#[test]
fn losses_at_two_leaves_are_told_by_one_flush() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(TABLE)).await.unwrap();
        let [writer, _] = open(&dm, "low");
        write(&writer, 1, 0, 8).await.unwrap();
        lose(&state);
        swap(&dm, "0 96 linear /lossy/b/4096 0").await;
        write(&writer, 1, 0, 8).await.unwrap();
        lose_at(&state, "/lossy/b/4096");
        assert_eq!(flush(&writer).await, Err(Status::Io));
        assert_eq!(flush(&writer).await, Ok(()));
    });
}

/// The first one does not hide the loss from the second one: they may be of two files of a guest.
#[test]
fn flushes_that_are_in_flight_together_all_fail() {
    for waits in [false, true] {
        Bench::new(1).run(|dm, state| async move {
            dm.create("low", None, Some(TABLE)).await.unwrap();
            let [writer, _] = open(&dm, "low");
            let begin = || reactor::flush(&writer, Class::Normal);
            write(&writer, 1, 0, 8).await.unwrap();
            lose(&state);
            dm.load("low", "0 96 linear /ram/b/4096 0").await.unwrap();
            dm.suspend("low").await.unwrap();
            let both = if waits {
                let both = [begin(), begin()];
                dm.resume("low").await.unwrap();
                both
            } else {
                dm.resume("low").await.unwrap();
                [begin(), begin()]
            };
            for one in both {
                assert_eq!(one.await, Err(Status::Io), "waits: {waits}");
            }
            assert_eq!(flush(&writer).await, Ok(()), "waits: {waits}");
        });
    }
}

/// A write was acknowledged after the FLUSH had been sent, which so says nothing about it.
#[test]
fn a_flush_from_before_the_last_write_does_not_tell_of_that() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(TABLE)).await.unwrap();
        let [writer, _] = open(&dm, "low");
        let nth = disk(&state, LEAF);
        state.borrow_mut().disks[nth].hung = true;
        let (at, data) = (Sector(0), filled(1, 8));
        let written = reactor::write(&writer, Flags::empty(), Class::Normal, at, data);
        dm.load("low", "0 96 zero").await.unwrap();
        let suspending = dm.clone();
        spawn(async move { suspending.suspend("low").await.unwrap() });
        sleep(Nanos::from_millis(1)).await;
        let early = reactor::flush(&writer, Class::Normal);
        state.borrow_mut().release();
        written.await.unwrap();
        lose(&state);
        dm.resume("low").await.unwrap();
        assert_eq!(early.await, Err(Status::Io));
        assert_eq!(flush(&writer).await, Err(Status::Io));
        assert_eq!(flush(&writer).await, Ok(()));
    });
}

#[test]
fn a_loss_is_told_after_a_removal_by_force_of_a_device_in_use() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(TABLE)).await.unwrap();
        let top = dm.create("top", None, Some("0 96 linear low 0")).await.unwrap();
        let [writer, _] = open(&dm, "top");
        write(&writer, 1, 0, 8).await.unwrap();
        lose(&state);
        dm.remove("low", Remove::Force).await.unwrap_err();
        sleep(Nanos::from_millis(10)).await;
        swap(&dm, TABLE).await;
        assert_eq!(flush(&writer).await, Err(Status::Io));
        assert_eq!(flush(&writer).await, Ok(()));
        drop(top);
    });
}

const LEAVES: [&str; 2] = ["/lossy/a/4096", "/lossy/b/4096"];
const TABLES: [&str; 5] = [
    "0 96 linear /lossy/a/4096 0",
    "0 96 linear /lossy/b/4096 0",
    "0 48 linear /lossy/b/4096 0\n48 48 linear /lossy/a/4096 48",
    "0 96 linear mid 0",
    "0 96 zero",
];
/// Which leaves each of them reaches, but for `mid`, and to which the first sectors go.
const REACHED: [[bool; 2]; 5] =
    [[true, false], [false, true], [true, true], [false, false], [false, false]];
const FIRST: [Option<usize>; 5] = [Some(0), Some(1), Some(1), None, None];

/// What each opener may have lost, and must hear of, by what it was promised.
#[derive(Default)]
struct Promises {
    unflushed: [bool; 2],
    owed: [bool; 2],
}

impl Promises {
    fn lose(&mut self) {
        for (owed, unflushed) in self.owed.iter_mut().zip(&mut self.unflushed) {
            *owed |= std::mem::take(unflushed);
        }
    }
}

/// Random writes, losses, FLUSHes that fail, and swaps, by two openers of `low` or of a device
/// above: each FLUSH fails exactly if its opener must hear of something.
#[test]
fn each_opener_hears_of_each_loss_exactly_once() {
    for seed in 0..300 {
        Bench::new(seed).run(|dm, state| async move {
            let draw = |below: u64| (state.borrow_mut().random() >> 33) % below;
            let pick = |below: u64| usize::try_from(draw(below)).expect("small");
            // It keeps one of the leaves open.
            let kept = pick(2);
            let (mut reached, mut first) = (REACHED, FIRST);
            (reached[3][kept], first[3]) = (true, Some(kept));
            dm.create("low", None, Some(TABLES[2])).await.unwrap();
            dm.create("mid", None, Some(TABLES[kept])).await.unwrap();
            dm.create("top", None, Some("0 96 linear low 0")).await.unwrap();
            let name = if draw(2) == 0 { "low" } else { "top" };
            let openers = open(&dm, name);
            let mut promises = [Promises::default(), Promises::default()]; // of the leaves
            let mut now = 2;
            for step in 0..40 {
                let (who, leaf) = (pick(2), pick(2));
                match draw(8) {
                    0 | 1 => {
                        write(&openers[who], 1, 0, 8).await.unwrap();
                        if let Some(leaf) = first[now] {
                            promises[leaf].unflushed[who] = true;
                        }
                    }
                    2 => {
                        promises[leaf].lose();
                        lose_at(&state, LEAVES[leaf]);
                    }
                    3..5 => {
                        let owed = promises.iter().any(|leaf| leaf.owed[who]);
                        let told = flush(&openers[who]).await.is_err();
                        assert_eq!(told, owed, "seed {seed} step {step} opener {who}");
                        for (leaf, of) in promises.iter_mut().enumerate() {
                            of.owed[who] = false;
                            if reached[now][leaf] {
                                of.unflushed = [false; 2];
                            }
                        }
                    }
                    _ => {
                        let next = pick(5);
                        let broken = draw(3) == 0;
                        for (leaf, of) in promises.iter_mut().enumerate() {
                            if reached[now][leaf] && !reached[next][leaf] {
                                break_at(&state, LEAVES[leaf], broken);
                                if broken {
                                    of.lose();
                                }
                                of.unflushed = [false; 2];
                            }
                        }
                        swap(&dm, TABLES[next]).await;
                        LEAVES.iter().for_each(|leaf| break_at(&state, leaf, false));
                        now = next;
                    }
                }
            }
        });
    }
}
