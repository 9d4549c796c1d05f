// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Acknowledged writes that a leaf loses, and tables that leave it before those hear of it who have
//! written. An attack from outside found that a swap of tables, away and back, forgot the loss.

use std::rc::Rc;

use crate::common::{Bench, Shared, disk, take_log, write};
use block::{BlockDevice, Class, Nanos, Op, OpenDevice, Opener, Status};
use dm::{Dm, Remove};
use reactor::sleep;

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
    let nth = disk(state, LEAF);
    state.borrow_mut().disks[nth].losses += 1;
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
            let is_flat = low.live_map().is_some() && top.live_map().is_some();
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

#[test]
fn a_leaf_that_another_table_uses_tells_by_itself() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(TABLE)).await.unwrap();
        let other = format!("0 96 linear {LEAF} 96");
        dm.create("other", None, Some(&other)).await.unwrap();
        let [writer, _] = open(&dm, "low");
        write(&writer, 1, 0, 8).await.unwrap();
        lose(&state);
        swap(&dm, "0 96 zero").await;
        swap(&dm, TABLE).await;
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
