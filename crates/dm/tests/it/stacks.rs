// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables over several devices and devices over devices: nesting, sharing, flushes and limits.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{Bench, LV, disk, read, take_log, write};
use block::{BlockDevice, Class, Nanos, Op, OpenDevice, Opener, Sector, Status};
use dm::Remove;

const A: &str = "/ram/a/1024";
const B: &str = "/ram/b/1024";

#[test]
fn tables_can_not_stand_on_themselves() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("low", None, Some("0 64 zero")).await.unwrap();
        dm.create("mid", None, Some("0 64 linear low 0")).await.unwrap();
        dm.create("top", None, Some("0 64 linear /dev/mapper/mid 0")).await.unwrap();
        for word in ["top", "mid", "low", "dm-2", "/dev/dm-0", "999:1"] {
            let e = dm.load("low", &format!("0 8 linear {word} 0")).await.unwrap_err();
            assert!(e.to_string().contains("can't contain its own device"), "{word}: {e}");
        }
        // A cycle of tables that are not live yet.
        dm.load("low", "0 64 zero").await.unwrap();
        dm.create("side", None, Some("0 64 zero")).await.unwrap();
        dm.load("side", "0 64 linear low 0").await.unwrap();
        let e = dm.load("low", "0 64 linear side 0").await.unwrap_err();
        assert!(e.to_string().contains("can't contain its own device"), "{e}");
    });
}

#[test]
fn a_device_of_the_machine_is_not_taken_for_one_of_ours() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 64 linear {LV} 0");
        // Its own name in its own table: only the machine's device can be meant.
        let lv = dm.create("lv", None, Some(&table)).await.unwrap();
        assert_eq!(state.borrow().opened, 1);
        assert_eq!(lv.limits().capacity, Sector(64));
        for above in [format!("0 32 linear {LV} 0"), format!("0 - linear {LV} 0")] {
            let e = dm.create("top", None, Some(&above)).await.unwrap_err().to_string();
            assert!(
                e.contains("this machine has a block device there") && e.contains("`lv`"),
                "{e}"
            );
        }
        let top = dm.create("top", None, Some("0 - linear lv 0")).await.unwrap();
        assert_eq!(top.limits().capacity, Sector(64), "ours, not the machine's");
    });
}

#[test]
fn two_loads_at_once_can_not_close_a_cycle() {
    Bench::new(1).run(|dm, _| async move {
        for name in ["x", "y"] {
            dm.create(name, None, Some("0 64 zero")).await.unwrap();
        }
        // Both find the other device free of themselves, then wait for the leaf.
        let results = Rc::new(RefCell::new(Vec::new()));
        for (name, other) in [("x", "y"), ("y", "x")] {
            let (dm, results) = (dm.clone(), results.clone());
            reactor::spawn(async move {
                let table = format!("0 32 linear {other} 0\n32 8 linear {A} 0");
                let r = dm.load(name, &table).await;
                results.borrow_mut().push(r.map_err(|e| e.to_string()));
            });
        }
        reactor::sleep(Nanos::from_secs(1)).await;
        let results = results.take();
        assert_eq!(results[0], Ok(()));
        assert_eq!(results[1], Err("y: a table can't contain its own device".into()));
    });
}

#[test]
fn stacks_are_at_most_sixteen_deep_from_above_and_from_below() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("d1", None, Some(&format!("0 64 linear {A} 0"))).await.unwrap();
        for i in 2..=16 {
            let table = format!("0 64 linear d{} 0", i - 1);
            dm.create(&format!("d{i}"), None, Some(&table)).await.unwrap();
        }
        let top = dm.get("d16").unwrap();
        write(&*top, 5, 3, 1).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Write, 3, 1)]);
        let e = dm.create("d17", None, Some("0 64 linear d16 0")).await.unwrap_err();
        assert!(e.to_string().contains("nested too deep: 17"), "{e}");
        dm.create("below", None, Some("0 64 zero")).await.unwrap();
        let e = dm.load("d1", "0 64 linear below 0").await.unwrap_err();
        assert!(e.to_string().contains("nested too deep: 17"), "{e}");
        let e = dm.remove("d3", Remove::IfUnused).await.unwrap_err();
        assert_eq!(e.to_string(), "d3: device is in use: opened 1 times, by the tables of d4");
        dm.remove_all(Remove::IfUnused).await.unwrap();
        assert!(dm.list().is_empty());
    });
}

#[test]
fn stacks_that_join_at_every_level_are_checked_fast() {
    let bench = Bench::new(1);
    bench.run(|dm, _| async move {
        let mut below: Vec<String> = (0..5).map(|n| format!("/ram/{n}/40")).collect();
        // Five devices on each of the five below, twice: 10^15 paths from the top down.
        for level in 0..15 {
            let lines = |n: usize| format!("{} 8 linear {} 0\n", n * 8, below[n]);
            let table: String = (0..5).map(lines).collect();
            let names: Vec<_> = (0..5).map(|side| format!("l{level}s{side}")).collect();
            for name in &names {
                dm.create(name, None, Some(&table)).await.unwrap();
                dm.load(name, &table).await.unwrap();
            }
            below = names;
        }
        write(&*dm.get("l14s4").unwrap(), 7, 0, 8).await.unwrap();
    });
}

#[test]
fn a_lower_device_may_swap_its_table_under_those_above() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(&format!("0 64 linear {A} 0"))).await.unwrap();
        let top = dm.create("top", None, Some("0 32 linear low 16")).await.unwrap();
        dm.load("low", &format!("0 64 linear {B} 100")).await.unwrap();
        write(&*top, 1, 0, 1).await.unwrap();
        dm.resume("low").await.unwrap();
        write(&*top, 2, 0, 1).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Write, 16, 1)]);
        assert_eq!(take_log(&state, B), [(Op::Write, 116, 1)]);
        assert_eq!(dm.deps("top").unwrap()[0].number, Some((999, 0)));
        // Too small for what stands on it: the bio fails, nobody else notices.
        dm.load("low", &format!("0 8 linear {B} 0")).await.unwrap();
        dm.resume("low").await.unwrap();
        assert_eq!(write(&*top, 1, 0, 1).await, Err(Status::Invalid));
    });
}

#[test]
fn a_leaf_is_opened_once_while_anybody_uses_it() {
    Bench::new(1).run(|dm, state| async move {
        let tables = [format!("0 8 linear {A} 0"), format!("0 8 linear {A} 8")];
        // At once: the second waits for the first one's open.
        for (name, table) in ["x", "y"].into_iter().zip(tables) {
            let dm = dm.clone();
            reactor::spawn(async move {
                dm.create(name, None, Some(&table)).await.unwrap();
            });
        }
        reactor::sleep(Nanos::from_secs(1)).await;
        assert_eq!((state.borrow().opened, state.borrow().closed), (1, 0));
        dm.remove("x", Remove::IfUnused).await.unwrap();
        assert_eq!(state.borrow().closed, 0);
        dm.remove("y", Remove::IfUnused).await.unwrap();
        assert_eq!(state.borrow().closed, 1);
    });
}

#[test]
fn a_flush_goes_once_to_each_distinct_device() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!(
            "0 8 linear {A} 0\n8 8 linear {A} 64\n16 16 striped 2 4 {A} 8 {B} 8\n32 8 error"
        );
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        reactor::flush(&*dev, Class::Normal).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Flush, 0, 0)]);
        assert_eq!(take_log(&state, B), [(Op::Flush, 0, 0)]);
        let index = disk(&state, B);
        state.borrow_mut().disks[index].broken = true;
        assert_eq!(reactor::flush(&*dev, Class::Normal).await, Err(Status::Io));
    });
}

#[test]
fn a_bio_across_targets_ends_with_the_worst_outcome() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 8 linear {A} 0\n8 8 zero\n16 8 error");
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        write(&*dev, 9, 4, 8).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Write, 4, 4)]);
        let mut want = vec![9; 4 * 512];
        want.resize(8 * 512, 0);
        assert_eq!(read(&*dev, 4, 8).await.unwrap(), want);
        assert_eq!(write(&*dev, 9, 0, 24).await, Err(Status::Io));
        assert_eq!(take_log(&state, A), [(Op::Read, 4, 4), (Op::Write, 0, 8)]);
    });
}

#[test]
fn limits_stack_from_the_devices_below() {
    Bench::new(1).run(|dm, _| async move {
        let table = "0 64 striped 2 16 /ram/a/1024 0 /ram4k/b/64 0";
        let dev = dm.create("d", None, Some(table)).await.unwrap();
        let limits = dev.limits();
        assert_eq!(limits.capacity, Sector(64));
        assert_eq!((limits.io_min_bytes, limits.io_opt_bytes), (8192, 16384));
        assert_eq!(limits.logical_block_bytes, 4096);
        assert_eq!(limits.discard_granularity_bytes, 512);
        assert!(limits.write_zeroes);
    });
}

#[test]
fn removal_of_all_by_force_takes_whole_stacks() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("a", None, Some("0 96 linear /ram/a/4096 0")).await.unwrap();
        dm.create("b", None, Some("0 96 linear a 0")).await.unwrap();
        dm.create("c", None, Some("0 96 linear b 0")).await.unwrap();
        let held = dm.open("c").unwrap();
        dm.create("d", None, Some("0 96 linear a 0")).await.unwrap();
        dm.remove_all(Remove::Force).await.unwrap_err();
        let left: Vec<_> = dm.devices().iter().map(|d| d.info().name).collect();
        assert_eq!(left, ["c"], "what is open stays, without what it stood on");
        drop(held);
        dm.remove_all(Remove::Force).await.unwrap();
        assert!(dm.devices().is_empty());
    });
}

/// What nobody sent is of the device where it came in: a disk below tells engines apart by that.
#[test]
fn what_nobody_sent_is_of_the_device_where_it_came_in() {
    for leaf in ["/ram/a/96", "/opaque/a/96"] {
        Bench::new(1).run(|dm, state| async move {
            let x = dm.create("x", None, Some(&format!("0 48 linear {leaf} 0"))).await.unwrap();
            let y = dm.create("y", None, Some(&format!("0 48 linear {leaf} 48"))).await.unwrap();
            let top = dm.create("top", None, Some("0 48 linear x 0")).await.unwrap();
            let client = OpenDevice::new(top.clone(), Opener(7));
            let devices: [&dyn BlockDevice; 4] = [&*x, &*y, &*top, &client];
            for device in devices {
                write(device, 1, 0, 1).await.unwrap();
                reactor::flush(device, Class::Normal).await.unwrap();
            }
            let nth = disk(&state, leaf);
            let came = std::mem::take(&mut state.borrow_mut().disks[nth].openers);
            let [x, x2, y, y2, top, top2, client, client2] = came[..] else {
                panic!("{leaf}: {came:?}")
            };
            assert_eq!([x, y, top, client], [x2, y2, top2, client2], "{leaf}");
            assert_eq!(client, Opener(7), "{leaf}: it is not changed on its way");
            assert!(![x, y, top].contains(&Opener::NONE), "{leaf}: {came:?}");
            assert!(x != y && x != top && y != top, "{leaf}: {came:?}");
        });
    }
}
