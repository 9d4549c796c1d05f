// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Life of a mapped device: verbs, slots, and bios across suspend and table swaps.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Bench, filled, read, take_log, write};
use crate::recorder::recorder;
use block::{Class, ErrorKind, Flags, Nanos, Op, Sector, Status};
use dm::Remove;

const A: &str = "/ram/a/1024";

#[test]
fn a_device_goes_from_notable_to_live_and_away() {
    Bench::new(1).run(|dm, state| async move {
        let dev = dm.create("d", Some("U-1"), None).await.unwrap();
        let info = dev.info();
        // As in Linux 7.3: not suspended before its first table, and a resume without one is none.
        assert!(!info.suspended && !info.live_table && !info.inactive_table);
        assert_eq!(read(&*dev, 0, 1).await, Err(Status::Io), "no live table");
        dm.resume("d").await.unwrap();
        let e = dm.flush("d").await.unwrap_err();
        assert_eq!(e.to_string(), "d: it has no live table: load one and resume it first");
        dm.load("d", &format!("0 64 linear {A} 8\n64 64 zero")).await.unwrap();
        assert!(!dev.info().suspended && dev.info().inactive_table);
        assert_eq!(read(&*dev, 0, 1).await, Err(Status::Io), "still no live table");
        assert_eq!(dev.inactive_table()[0].params, format!("{A} 8"));
        dm.resume("d").await.unwrap();
        let info = dm.info("d").unwrap();
        assert!(!info.suspended && info.live_table && !info.inactive_table);
        assert_eq!((info.targets, info.size_sectors, info.minor), (2, 128, 0));
        assert_eq!(info.uuid.as_deref(), Some("U-1"));

        write(&*dev, 7, 1, 2).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Write, 9, 2)]);
        assert_eq!(read(&*dev, 1, 2).await.unwrap(), vec![7; 1024]);
        assert_eq!(read(&*dev, 127, 2).await, Err(Status::Invalid), "beyond the end");
        let deps = dm.deps("d").unwrap();
        assert_eq!((deps.len(), &*deps[0].name, deps[0].number), (1, A, None));
        let table = dm.table("d").unwrap();
        assert_eq!((table[1].start, table[1].len, &*table[1].kind), (64, 64, "zero"));
        assert_eq!(dm.status("d").unwrap()[0].params, "");

        dm.remove("d", Remove::IfUnused).await.unwrap();
        assert_eq!(dm.info("d").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read(&*dev, 0, 1).await, Err(Status::Io));
        assert_eq!(state.borrow().closed, 1, "the leaf is closed with the table");
    });
}

#[test]
fn a_minor_number_is_the_lowest_free_one_or_the_one_asked_for() {
    Bench::new(1).run(|dm, _| async move {
        let at = |minor| dm.create_at("d", None, minor, None, None, &|| true);
        assert_eq!(at(Some(7)).await.unwrap().minor(), 7);
        assert_eq!(dm.create("e", None, None).await.unwrap().minor(), 0);
        dm.remove("e", Remove::IfUnused).await.unwrap();
        let taken = dm.create_at("e", None, Some(7), None, None, &|| true).await.unwrap_err();
        assert_eq!(taken.to_string(), "e: minor number 7 is d's");
        assert_eq!(taken.kind(), ErrorKind::Busy);
        let high = dm.create_at("e", None, Some(1 << 20), None, None, &|| true).await.unwrap_err();
        assert_eq!(high.to_string(), "e: minor number 1048576: at most 1048575 is allowed");
        assert_eq!(dm.list().len(), 1);
    });
}

#[test]
fn what_create_can_not_finish_leaves_no_device() {
    Bench::new(1).run(|dm, _| async move {
        let e = dm.create("d", None, Some("0 8 linear /nowhere 0")).await.unwrap_err();
        assert_eq!(
            e.to_string(),
            "d: line 1: linear: Device lookup failed: `/nowhere`: no such file or directory"
        );
        assert!(dm.list().is_empty());
        let e = dm.create("d", None, Some("")).await.unwrap_err();
        assert!(e.to_string().starts_with("d: the table has no line: START_SECTOR LENGTH"), "{e}");
        assert!(dm.list().is_empty());
        dm.create("d", None, None).await.unwrap();
        let e = dm.create("d", None, None).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Exists);
    });
}

#[test]
fn a_device_renamed_during_its_creation_becomes_live() {
    let bench = Bench::new(1);
    bench.run(|dm, _| async move {
        let other = dm.clone();
        reactor::spawn(async move {
            other.rename("a", "b").unwrap(); // while the disk is being opened
            other.create("a", None, None).await.unwrap();
        });
        dm.create("a", None, Some("0 8 linear /ram/d/8 0")).await.unwrap();
        assert!(dm.info("b").unwrap().live_table);
        assert!(!dm.info("a").unwrap().live_table, "somebody else's");
    });
}

#[test]
fn load_errors_name_line_target_argument_and_what_is_allowed() {
    let cases = [
        (
            "0 8 lineal a 0".to_owned(),
            "line 1: lineal: unknown target type: known are delay, error, flakey, linear, \
             striped, zero",
        ),
        (
            "0 8 zero\n8 8 linear a".to_owned(),
            "line 2: linear: Invalid argument count: 1 given, must be 2: <dev> <offset>",
        ),
        (
            format!("0 8 linear {A} x"),
            "line 1: linear: Invalid device sector: argument 2 is `x`, must be a decimal number \
             of sectors, or a size (64M) that is a multiple of 512",
        ),
        (
            format!("0 8 linear {A} 1020"),
            "line 1: linear: /ram/a/1024 too small for target: start=1020, len=8, dev_size=1024 \
             sectors: at most 4 sectors from there",
        ),
        (
            "0 8 linear /ram4k/x/64 4".to_owned(),
            "line 1: linear: start=4 not aligned to h/w logical block size 4096 of /ram4k/x/64: \
             must be a multiple of 8 sectors",
        ),
        (
            "0 12 zero\n12 8 linear /ram4k/x/64 0".to_owned(),
            "line 1: zero: table line (start sect 0 len 12) not aligned to h/w logical block \
             size 4096: must be multiples of 8 sectors",
        ),
        (
            "0 8 linear d 0".to_owned(),
            "line 1: linear: Device lookup failed: `d`: it is d itself or stands on it: a table \
             can't contain its own device",
        ),
        ("0 8 zero x".to_owned(), "line 1: zero: No arguments required: 1 given, must be 0"),
        ("0 8 striped 2".to_owned(), "Not enough arguments: 1 given"),
        ("0 8 striped 0 8".to_owned(), "Invalid stripe count: argument 1 is 0"),
        ("0 8 striped 2 x".to_owned(), "Invalid chunk_size: argument 2 is `x`"),
        (
            "0 9 striped 2 4 a 0 b 0".to_owned(),
            "Target length not divisible by number of stripes: length 9, 2 stripes",
        ),
        (
            "0 12 striped 2 4 a 0 b 0".to_owned(),
            "Target length not divisible by chunk size: 6 sectors a stripe, chunk 4",
        ),
        (
            "0 16 striped 2 4 a 0".to_owned(),
            "Not enough destinations specified: 2 stripes need 6 arguments, 4 given",
        ),
        (
            format!("0 16 striped 2 4 {A} 0 {A} q"),
            "Couldn't parse stripe destination: Invalid device sector: argument 6 is `q`",
        ),
        (format!("0 8 delay {A} 0"), "Requires exactly 3, 6 or 9 arguments, 2 given"),
        (format!("0 8 delay {A} 0 -1"), "Invalid delay: argument 3 is `-1`"),
        (format!("0 8 flakey {A} 0 0 0"), "Total (up + down) interval is zero"),
    ];
    Bench::new(1).run(|dm, state| async move {
        dm.create("d", None, None).await.unwrap();
        for (table, want) in cases {
            let e = dm.load("d", &table).await.unwrap_err();
            assert!(e.to_string().contains(want), "{table}: {e}");
            assert_eq!(e.kind(), ErrorKind::Invalid, "{table}");
            assert!(!dm.info("d").unwrap().inactive_table);
        }
        let s = state.borrow();
        assert_eq!(s.opened, s.closed, "a failed load holds no device");
    });
}

#[test]
fn bios_wait_in_order_while_suspended() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 64 linear {A} 0");
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        dm.suspend("d").await.unwrap();
        dm.suspend("d").await.unwrap(); // a second one does nothing
        assert!(dev.is_suspended());
        let writes: Vec<_> = (0..10)
            .map(|i| {
                let class = Class::Normal;
                reactor::write(&*dev, Flags::empty(), class, Sector(i), filled(i as u8, 1))
            })
            .collect();
        reactor::sleep(Nanos::from_secs(1)).await;
        assert_eq!(take_log(&state, A), []);
        dm.resume("d").await.unwrap();
        for w in writes {
            w.await.unwrap();
        }
        let at: Vec<_> = take_log(&state, A).iter().map(|l| l.1).collect();
        assert_eq!(at, (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn suspend_waits_for_what_is_below() {
    Bench::new(1).run(|dm, _| async move {
        let dev = dm.create("d", None, Some(&format!("0 64 delay {A} 0 50"))).await.unwrap();
        let ended = Rc::new(Cell::new(false));
        let (flag, d) = (ended.clone(), dev.clone());
        reactor::spawn(async move {
            write(&*d, 1, 0, 1).await.unwrap();
            flag.set(true);
        });
        reactor::sleep(Nanos::from_millis(1)).await;
        assert!(!ended.get());
        let before = reactor::now();
        dm.suspend("d").await.unwrap();
        assert!(reactor::now() - before >= Nanos::from_millis(49), "drained");
        reactor::sleep(Nanos(1)).await;
        assert!(ended.get());
    });
}

/// Clients write and verify their own sectors while the table is swapped between spellings of the
/// same mapping; each bio must end exactly once (twice panics in the op table, never hangs the
/// client) and what was written must be read, whichever table carried it.
#[test]
fn a_table_swap_under_load_loses_and_duplicates_nothing() {
    let tables = [
        format!("0 96 linear {A} 0"),
        format!("0 30 linear {A} 0\n30 66 linear {A} 30"),
        format!("0 96 striped 1 8 {A} 0"),
        format!("0 50 delay {A} 0 1\n50 46 linear {A} 50"),
    ];
    for seed in 0..8 {
        let tables = tables.clone();
        Bench::new(seed).run(|dm, _| async move {
            let dev = dm.create("d", None, Some(&tables[0])).await.unwrap();
            let (running, done) = (Rc::new(Cell::new(8)), Rc::new(Cell::new(0)));
            for client in 0..8_u64 {
                let (dev, running, done) = (dev.clone(), running.clone(), done.clone());
                reactor::spawn(async move {
                    for round in 0..200_u64 {
                        let (byte, at) = ((client * 31 + round) as u8, client * 12);
                        let len = 1 + round % 12;
                        write(&*dev, byte, at, len).await.unwrap();
                        let got = read(&*dev, at, len).await.unwrap();
                        assert!(got.iter().all(|&b| b == byte), "client {client} round {round}");
                        done.set(done.get() + 1);
                    }
                    running.set(running.get() - 1);
                });
            }
            let mut swaps = 0;
            while running.get() > 0 {
                dm.load("d", &tables[swaps % tables.len()]).await.unwrap();
                if swaps % 3 == 0 {
                    dm.suspend("d").await.unwrap();
                    reactor::sleep(Nanos::from_micros(reactor::random() % 500)).await;
                }
                dm.resume("d").await.unwrap();
                reactor::sleep(Nanos::from_micros(reactor::random() % 1000)).await;
                swaps += 1;
            }
            assert_eq!(done.get(), 8 * 200);
            assert!(swaps > 10, "{swaps} swaps are no load test");
            dm.remove("d", Remove::IfUnused).await.unwrap();
        });
    }
}

#[test]
fn a_swap_suspends_the_old_table_before_it_resumes_the_new_one() {
    let bench = Bench::new(1);
    let (log, _) = recorder(&bench);
    bench.run(|dm, _| async move {
        let dev = dm.create("d", None, Some("0 8 recorder old")).await.unwrap();
        dm.load("d", "0 8 recorder new").await.unwrap();
        dm.resume("d").await.unwrap();
        write(&*dev, 0, 0, 1).await.unwrap();
        dm.remove("d", Remove::IfUnused).await.unwrap();
        let want = [
            "construct old",
            "resume old",
            "construct new",
            "suspend old",
            "resume new",
            "drop old",
            "bio new",
            "suspend new",
            "drop new",
        ];
        assert_eq!(*log.borrow(), want);
    });
}

/// As `dmsetup deps` of Linux 7.3: what was opened last stands first.
#[test]
fn dependencies_stand_in_the_order_of_the_kernel() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("low", None, Some("0 64 zero")).await.unwrap();
        let table = format!("0 64 striped 2 8 {A} 0 low 0\n64 64 linear /ram/b/1024 0");
        dm.create("d", None, Some(&table)).await.unwrap();
        let deps = dm.deps("d").unwrap();
        let names: Vec<&str> = deps.iter().map(|dep| &*dep.name).collect();
        assert_eq!(names, ["/ram/b/1024", "low", A]);
    });
}

/// Once it was suspended, there is something to resume, and no table for it.
#[test]
fn a_device_without_a_table_can_be_suspended() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("d", None, None).await.unwrap();
        dm.suspend("d").await.unwrap();
        assert!(dm.info("d").unwrap().suspended);
        assert_eq!(dm.resume("d").await.unwrap_err().kind(), ErrorKind::Invalid);
        dm.load("d", "0 8 zero").await.unwrap();
        dm.resume("d").await.unwrap();
        assert!(!dm.info("d").unwrap().suspended);
    });
}

#[test]
fn a_device_whose_first_table_fails_is_as_new() {
    let bench = Bench::new(1);
    let (_, fail) = recorder(&bench);
    bench.run(|dm, _| async move {
        dm.create("d", None, None).await.unwrap();
        dm.load("d", "0 8 recorder first").await.unwrap();
        *fail.borrow_mut() = "resume first".into();
        dm.resume("d").await.unwrap_err();
        let info = dm.info("d").unwrap();
        assert!(!info.suspended && !info.live_table && info.inactive_table);
        fail.borrow_mut().clear();
        dm.resume("d").await.unwrap();
        assert!(dm.info("d").unwrap().live_table);
    });
}

#[test]
fn a_failed_resume_leaves_the_device_suspended() {
    let bench = Bench::new(1);
    let (log, fail) = recorder(&bench);
    bench.run(|dm, _| async move {
        let dev = dm.create("d", None, Some("0 8 recorder old")).await.unwrap();
        dm.load("d", "0 8 recorder x\n8 8 recorder y").await.unwrap();
        *fail.borrow_mut() = "resume y".into();
        log.borrow_mut().clear();
        let e = dm.resume("d").await.unwrap_err();
        assert_eq!(
            e.to_string(),
            "d: resume failed, the device stays suspended: line 2: recorder: on purpose"
        );
        assert_eq!(*log.borrow(), ["suspend old", "resume x", "resume y", "suspend x"]);
        let info = dm.info("d").unwrap();
        assert!(info.suspended && info.live_table && info.inactive_table);
        let waits = write(&*dev, 0, 0, 1);

        dm.clear("d").await.unwrap();
        log.borrow_mut().clear();
        dm.resume("d").await.unwrap();
        waits.await.unwrap();
        assert_eq!(*log.borrow(), ["resume old", "bio old"]);
    });
}

#[test]
fn a_target_that_can_not_suspend_stops_a_removal() {
    let bench = Bench::new(1);
    let (_, fail) = recorder(&bench);
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 recorder t")).await.unwrap();
        *fail.borrow_mut() = "suspend t".into();
        let e = dm.remove("d", Remove::IfUnused).await.unwrap_err();
        assert_eq!(e.to_string(), "d: suspended, but not cleanly: line 1: recorder: on purpose");
        assert!(dm.info("d").unwrap().suspended);
        // It is asked again: what it could not keep is not dropped by a second try.
        *fail.borrow_mut() = "suspend t".into();
        let e = dm.remove("d", Remove::IfUnused).await.unwrap_err();
        assert_eq!(e.to_string(), "d: suspended, but not cleanly: line 1: recorder: on purpose");
        *fail.borrow_mut() = "suspend t".into();
        assert!(dm.suspend("d").await.is_err());
        dm.resume("d").await.unwrap();
        dm.remove("d", Remove::Force).await.unwrap();
        assert!(dm.list().is_empty());
    });
}

/// What a target keeps until it is suspended is kept by force too.
#[test]
fn force_suspends_the_table_that_it_replaces() {
    let bench = Bench::new(1);
    let (log, _) = recorder(&bench);
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 recorder t")).await.unwrap();
        let held = dm.open("d").unwrap();
        log.borrow_mut().clear();
        dm.remove("d", Remove::Force).await.unwrap_err();
        assert_eq!(*log.borrow(), ["suspend t", "drop t"]);
        drop(held);
    });
}

#[test]
fn writing_an_attribute_delays_no_read_and_no_suspend() {
    let bench = Bench::new(1);
    let (log, _) = recorder(&bench);
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 recorder a")).await.unwrap();
        log.borrow_mut().clear();
        let (other, written) = (dm.clone(), Rc::new(Cell::new(false)));
        let done = written.clone();
        reactor::spawn(async move {
            other.set_attribute("d", "mood", "merry").await.unwrap();
            done.set(true);
        });
        reactor::sleep(Nanos(1)).await;
        assert_eq!(*log.borrow(), ["set a"]);
        assert_eq!(dm.get_attribute("d", "mood").await.unwrap(), "mood of a");
        dm.suspend("d").await.unwrap();
        assert!(!written.get());
        assert_eq!(*log.borrow(), ["set a", "suspend a"]);
        reactor::sleep(Nanos::from_millis(11)).await;
        assert!(written.get());
    });
}

#[test]
fn a_message_goes_to_its_sector_and_delays_a_suspend() {
    let bench = Bench::new(1);
    let (log, _) = recorder(&bench);
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 recorder a\n8 8 zero")).await.unwrap();
        let words = |w: &str| w.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(dm.message("d", Sector(7), words("x y")).await.unwrap(), "x+y");
        let e = dm.message("d", Sector(8), words("x y")).await.unwrap_err();
        assert_eq!(e.to_string(), "d: line 2: zero: unknown message `x y`: it takes none");
        let e = dm.message("d", Sector(16), words("x")).await.unwrap_err();
        assert!(e.to_string().contains("Target message sector outside device"), "{e}");
        let e = dm.message("d", Sector(0), vec![]).await.unwrap_err();
        assert_eq!((e.kind(), e.to_string()), (ErrorKind::Invalid, "d: Empty message".into()));

        log.borrow_mut().clear();
        let other = dm.clone();
        let slow = words("slow");
        reactor::spawn(async move {
            other.message("d", Sector(0), slow).await.unwrap();
        });
        reactor::sleep(Nanos(1)).await;
        dm.suspend("d").await.unwrap();
        assert_eq!(*log.borrow(), ["message a", "suspend a"]);
        let e = dm.message("d", Sector(0), words("x")).await.unwrap_err();
        assert_eq!(
            (e.kind(), e.to_string()),
            (ErrorKind::Busy, "d: is suspended: resume it first".into())
        );
        assert_eq!(dm.message("d", Sector(0), words("note")).await.unwrap(), "note");
        assert_eq!(dm.get_attribute("d", "mood").await.unwrap(), "mood of a");
        let e = dm.get_attribute("d", "size").await.unwrap_err();
        let there = "there are doors, mood, queue/iostats, ro, stat";
        assert_eq!(e.to_string(), format!("d: no attribute `size`: {there}"));
    });
}

#[test]
fn an_open_device_is_removed_at_its_last_close_if_so_wished() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("d", None, Some("0 8 zero")).await.unwrap();
        let (one, two) = (dm.open("d").unwrap(), dm.open("d").unwrap());
        assert_eq!(dm.info("d").unwrap().open_count, 2);
        let e = dm.remove("d", Remove::IfUnused).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
        dm.remove("d", Remove::Deferred).await.unwrap();
        assert!(dm.info("d").unwrap().deferred_remove);
        let words = vec!["@cancel_deferred_remove".to_owned()];
        dm.message("d", Sector(0), words).await.unwrap();
        assert!(!dm.info("d").unwrap().deferred_remove);
        dm.remove("d", Remove::Deferred).await.unwrap();
        drop(one);
        reactor::sleep(Nanos(1)).await;
        assert!(dm.info("d").is_ok());
        drop(two);
        reactor::sleep(Nanos(1)).await;
        assert_eq!(dm.info("d").unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_forced_removal_of_an_open_device_makes_its_io_fail() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("d", None, Some("0 8 zero")).await.unwrap();
        let open = dm.open("d").unwrap();
        let e = dm.remove("d", Remove::Force).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
        assert_eq!(dm.table("d").unwrap()[0].kind, "error");
        assert_eq!(read(&**open.device(), 0, 1).await, Err(Status::Io));
        drop(open);
        dm.remove("d", Remove::Force).await.unwrap();
        assert!(dm.list().is_empty());
    });
}

#[test]
fn bios_that_wait_on_a_removed_device_fail() {
    Bench::new(1).run(|dm, _| async move {
        let dev = dm.create("d", None, Some("0 8 zero")).await.unwrap();
        dm.suspend("d").await.unwrap();
        let waits = reactor::flush(&*dev, Class::Normal);
        dm.remove("d", Remove::IfUnused).await.unwrap();
        assert_eq!(waits.await, Err(Status::NoDevice));
    });
}

#[test]
fn a_rename_raises_an_event_and_keeps_what_stands_on_the_device() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("old", None, Some("0 8 zero")).await.unwrap();
        let top = dm.create("top", None, Some("0 8 linear old 0")).await.unwrap();
        let seen = Rc::new(Cell::new(None));
        let (waiter, out) = (dm.clone(), seen.clone());
        reactor::spawn(async move { out.set(Some(waiter.wait("old", None).await.unwrap())) });
        reactor::sleep(Nanos(1)).await;
        assert_eq!(seen.get(), None);
        assert_eq!(dm.rename("old", "top").unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(dm.rename("old", "a/b").unwrap_err().kind(), ErrorKind::Invalid);
        dm.rename("old", "new").unwrap();
        reactor::sleep(Nanos(1)).await;
        assert_eq!(seen.get(), Some(1));
        assert_eq!(dm.wait("new", Some(0)).await.unwrap(), 1, "an event in the past");
        assert!(dm.get("old").is_err());
        assert_eq!(dm.table("top").unwrap()[0].params, "new 0");
        assert_eq!(read(&*top, 0, 1).await.unwrap(), vec![0; 512]);
        dm.set_uuid("new", "U").unwrap();
        assert_eq!(dm.set_uuid("top", "U").unwrap_err().kind(), ErrorKind::Exists);
    });
}
