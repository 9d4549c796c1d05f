// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `remove --force` while a disk below does not answer. An attack from outside found that it waited
//! for the I/O in flight, and for the `suspend` and the `remove` that waited for it, too.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Bench, disk, filled, read, write};
use block::attr::Manual;
use block::{Class, Error, ErrorKind, Flags, Nanos, Sector, Status};
use dm::{MappedDevice, Remove, TargetType};
use reactor::{BioFuture, now, sleep, spawn};

/// A base of flat mappings, and a leaf whose bios go through the gate.
const LEAVES: [&str; 2] = ["/ram/a/4096", "/opaque/a/4096"];
/// More than a removal by force may take.
const TIME_MAX: Nanos = Nanos::from_secs(2);

fn begin_write(dev: &MappedDevice, at: u64) -> BioFuture {
    reactor::write(dev, Flags::empty(), Class::Normal, Sector(at), filled(1, 1))
}

#[test]
fn force_removes_a_device_whose_io_hangs() {
    for leaf in LEAVES {
        Bench::new(1).run(|dm, state| async move {
            let table = format!("0 96 linear {leaf} 0");
            let device = dm.create("x", None, Some(&table)).await.unwrap();
            let nth = disk(&state, leaf);
            state.borrow_mut().disks[nth].hung = true;
            let hanging = begin_write(&device, 0);
            sleep(Nanos::from_millis(1)).await;
            let ended = Rc::new(Cell::new(0));
            for verb in ["suspend", "remove"] {
                let (dm, ended) = (dm.clone(), ended.clone());
                spawn(async move {
                    if verb == "suspend" {
                        let e = dm.suspend("x").await.unwrap_err();
                        assert!(e.to_string().contains("replaced by"), "{e}");
                    } else {
                        // It waited, and takes the table of errors away.
                        dm.remove("x", Remove::IfUnused).await.unwrap();
                    }
                    ended.set(ended.get() + 1);
                });
            }
            sleep(Nanos::from_millis(1)).await;
            let waiting = begin_write(&device, 8);
            let before = now();
            dm.remove("x", Remove::Force).await.unwrap();
            assert!(now() - before < TIME_MAX, "{leaf}: it waited for the disk");
            assert_eq!(waiting.await, Err(Status::Io), "{leaf}");
            assert_eq!(dm.get("x").unwrap_err().kind(), ErrorKind::NotFound);
            // The name is free, and what hangs is left alone.
            dm.create("x", None, Some("0 96 linear /ram/b/96 0")).await.unwrap();
            assert_eq!(state.borrow().closed, 0, "{leaf}: closed under a request in flight");
            state.borrow_mut().release();
            assert_eq!(hanging.await, Ok(()), "{leaf}");
            drop(device);
            sleep(Nanos::from_millis(1)).await;
            assert_eq!((state.borrow().closed, ended.get()), (1, 2), "{leaf}");
        });
    }
}

#[test]
fn force_gives_an_open_device_errors_while_io_hangs() {
    for leaf in LEAVES {
        Bench::new(1).run(|dm, state| async move {
            let table = format!("0 96 linear {leaf} 0");
            dm.create("x", None, Some(&table)).await.unwrap();
            let above = dm.create("above", None, Some("0 96 linear x 0")).await.unwrap();
            let nth = disk(&state, leaf);
            state.borrow_mut().disks[nth].hung = true;
            let hanging = begin_write(&above, 0);
            let before = now();
            let e = dm.remove("x", Remove::Force).await.unwrap_err();
            assert!(now() - before < TIME_MAX, "{leaf}: it waited for the disk");
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            assert_eq!(dm.table("x").unwrap()[0].kind, "error");
            let x = dm.get("x").unwrap();
            for device in [&above, &x] {
                assert_eq!(write(&**device, 2, 1, 1).await, Err(Status::Io));
                assert_eq!(read(&**device, 1, 1).await, Err(Status::Io));
                // DM-FO4.
                assert_eq!(reactor::flush(&**device, Class::Normal).await, Err(Status::Io));
            }
            // What hangs may still be written: no other table goes live before it has ended.
            dm.load("x", &table).await.unwrap();
            let e = dm.resume("x").await.unwrap_err();
            assert!(e.to_string().contains("has not ended yet"), "{e}");
            // Nor does the device above count as suspended before.
            let suspended = Rc::new(Cell::new(false));
            let (dm2, flag) = (dm.clone(), suspended.clone());
            spawn(async move {
                dm2.suspend("above").await.unwrap();
                flag.set(true);
            });
            sleep(Nanos::from_secs(5)).await;
            assert!(!suspended.get(), "{leaf}");
            state.borrow_mut().release();
            assert_eq!(hanging.await, Ok(()), "{leaf}");
            sleep(Nanos::from_millis(1)).await;
            assert!(suspended.get(), "{leaf}");
            assert_eq!(reactor::flush(&*x, Class::Normal).await, Err(Status::Io), "{leaf}");
            dm.resume("x").await.unwrap();
            dm.resume("above").await.unwrap();
            write(&*above, 3, 1, 1).await.unwrap();
            dm.remove("above", Remove::Force).await.unwrap();
            dm.remove("x", Remove::Force).await.unwrap();
        });
    }
}

#[test]
fn a_load_that_force_overtook_changes_nothing() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("x", None, Some("0 96 linear /ram/a/96 0")).await.unwrap();
        let held = dm.open("x").unwrap();
        let late = Rc::new(Cell::new(None));
        let (dm2, tell) = (dm.clone(), late.clone());
        spawn(async move {
            tell.set(Some(dm2.load("x", "0 96 linear /ram/b/96 0").await.is_err()));
        });
        reactor::yield_now().await;
        dm.remove("x", Remove::Force).await.unwrap_err();
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(late.get(), Some(true));
        assert!(dm.get("x").unwrap().inactive_table().is_empty());
        assert_eq!((state.borrow().opened, state.borrow().closed), (2, 2));
        drop(held);
        dm.remove("x", Remove::IfUnused).await.unwrap();
    });
}

static HUNG: Manual = Manual::new("hung", (1, 0, 0), "is found missing after a minute", "");

/// What the create had made was gone, and it removed the device that had the name since.
#[test]
fn a_create_that_force_overtook_removes_no_other_device() {
    let bench = Bench::new(1);
    bench.dm.register(TargetType::new(&HUNG, |_, _| {
        Box::pin(async {
            sleep(Nanos::from_secs(60)).await;
            Err(Error::not_found("no answer"))
        })
    }));
    bench.run(|dm, _| async move {
        let late = Rc::new(Cell::new(None));
        let (dm2, tell) = (dm.clone(), late.clone());
        spawn(async move {
            tell.set(dm2.create("x", None, Some("0 96 hung")).await.err());
        });
        sleep(Nanos::from_secs(1)).await;
        dm.remove("x", Remove::Force).await.unwrap();
        let other = dm.create("x", None, Some("0 96 linear /ram/a/96 0")).await.unwrap();
        sleep(Nanos::from_secs(60)).await;
        assert_eq!(late.take().unwrap().to_string(), "x: line 1: hung: no answer");
        assert_eq!(dm.get("x").unwrap().minor(), other.minor());
        write(&*other, 1, 0, 1).await.unwrap();
    });
}

/// What hangs may be written over what another table has put there since: attack 3, break 6. The
/// device in between is removed, too, so that its present table leads elsewhere.
#[test]
fn nobody_gets_sectors_where_writes_of_before_may_land() {
    for leaf in LEAVES {
        Bench::new(1).run(move |dm, state| async move {
            let low = format!("0 96 delay {leaf} 0 0");
            dm.create("disk", None, Some(&low)).await.unwrap();
            let top = dm.create("top", None, Some("0 64 delay disk 0 0")).await.unwrap();
            dm.create("other", None, Some("0 96 linear /ram/b/4096 0")).await.unwrap();
            dm.create("above", None, Some("0 96 linear other 0")).await.unwrap();
            let nth = disk(&state, leaf);
            state.borrow_mut().disks[nth].hung = true;
            let hanging = begin_write(&top, 0);
            sleep(Nanos::from_millis(1)).await;
            dm.remove("top", Remove::Force).await.unwrap();
            // It is in use by the table that hangs, and gets a table of errors.
            dm.remove("disk", Remove::Force).await.unwrap_err();
            let refused = |e: Error| {
                assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
                let text = e.chain();
                for part in [leaf, "sectors ", "removed by force", "Wait until"] {
                    assert!(text.contains(part), "{part}: {text}");
                }
            };
            let table = format!("0 64 linear {leaf} 0");
            for name in ["top", "new"] {
                refused(dm.create(name, None, Some(&table)).await.map(drop).unwrap_err());
                assert_eq!(dm.get(name).unwrap_err().kind(), ErrorKind::NotFound);
            }
            refused(dm.load("other", &table).await.unwrap_err());
            refused(dm.load("above", &format!("0 32 delay {leaf} 32 0")).await.unwrap_err());
            // Sectors that the tables did not lead to are free.
            dm.create("beside", None, Some(&format!("0 64 linear {leaf} 96"))).await.unwrap();
            state.borrow_mut().release();
            assert_eq!(hanging.await, Ok(()), "{leaf}");
            sleep(Nanos::from_millis(1)).await;
            // The way out: it has ended.
            dm.create("new", None, Some(&table)).await.unwrap();
            dm.load("other", &table).await.unwrap();
            dm.resume("other").await.unwrap();
            write(&*dm.get("above").unwrap(), 9, 0, 1).await.unwrap();
            assert_eq!(read(&*dm.get("new").unwrap(), 0, 1).await.unwrap()[0], 9);
        });
    }
}
