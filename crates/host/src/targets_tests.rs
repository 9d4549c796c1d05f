// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What devices the engines may be built on, and which dirty blocks may become unreachable.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, CoreId, Error, ErrorKind, Flags, Nanos, Sector};
use dm::{Dm, Remove};
use reactor::{Reactor, flush, now, sleep, spawn, write, yield_now};
use uring::Uring;

use crate::leaves::Leaves;

fn with_dm<F: Future<Output = ()>>(test: impl FnOnce(Rc<Dm>) -> F + 'static) {
    let core = Reactor::enter(CoreId(0), Box::new(Uring::new().unwrap()));
    core.block_on(async {
        let leaves = Leaves::in_memory();
        let dm = Dm::new(Rc::new(leaves.clone()));
        let _engines = super::register(&dm, &leaves, &[CoreId(0)]);
        test(dm.clone()).await;
        dm.remove_all(Remove::IfUnused).await.unwrap();
    });
}

async fn create(dm: &Dm, name: &str, table: &str) -> Result<(), Error> {
    dm.create(name, None, Some(table)).await.map(drop)
}

async fn make(dm: &Dm, name: &str, table: &str) {
    create(dm, name, table).await.unwrap();
}

/// The refusal of a table; `parts` are in it, and no device is left.
async fn refused(dm: &Dm, name: &str, table: &str, parts: &[&str]) -> Error {
    let e = create(dm, name, table).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert!(parts.iter().all(|part| e.to_string().contains(part)), "{parts:?}: {e}");
    assert!(dm.get(name).is_err());
    e
}

async fn dirty(dm: &Dm, name: &str) {
    let device = dm.open(name).unwrap();
    let block = Buf::alloc(4096);
    block.write(|bytes| bytes.fill(7));
    let at = Sector(64);
    write(&**device.device(), Flags::default(), Class::Foreground, at, block.into()).await.unwrap();
    flush(&**device.device(), Class::Foreground).await.unwrap();
}

const W: &str = "0 32768 writecache s mem:16M,o mem:16M,c 4096 0";

/// An attack from outside reached the cache device of a live cache by the name of a `linear` over
/// it: two caches wrote to the same log, and flushed data were lost.
#[test]
fn two_caches_on_one_device_are_refused_through_any_stack() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        make(&dm, "half", "0 16384 zero\n16384 16384 linear mem:16M,x 0").await;
        for below in [
            "0 8192 linear mem:16M,c 1024",
            "0 16384 striped 2 16 mem:16M,x 0 mem:16M,c 8192",
            "0 32768 delay mem:16M,c 0 0",
        ] {
            // A mapping alone may be forced; a second cache on it is never right.
            let len = below.split(' ').nth(1).unwrap();
            let token = refused(&dm, "l", below, &["l (", "cache device of w"]).await;
            let token = token.token().unwrap().to_owned();
            dm.create_at("l", None, None, Some(below), Some(&token), &|| true).await.unwrap();
            let above = format!("0 {len} linear l 0");
            let e = refused(&dm, "ll", &above, &["ll (linear)"]).await;
            dm.create_at("ll", None, None, Some(&above), e.token(), &|| true).await.unwrap();
            for (origin, cache) in [("mem:16M,p", "ll"), ("ll", "mem:16M,p")] {
                let table = format!("0 8192 writecache s {origin} {cache} 4096 0");
                let parts = ["line 1: writecache: ", "of mem:16M,c", "cache device of w"];
                let e = refused(&dm, "w4", &table, &parts).await;
                assert_eq!(e.token(), None, "{e}");
            }
            refused(&dm, "b", &format!("0 {len} buffered ll"), &["cache device of w"]).await;
            let zram = "0 8192 zram lz4 2 backing_dev ll";
            refused(&dm, "z", zram, &["backing device of z", "cache device of w"]).await;
            dm.remove("ll", Remove::IfUnused).await.unwrap();
            dm.remove("l", Remove::IfUnused).await.unwrap();
        }
    });
}

/// The same attack: a cache on its own origin reported no error, and read wrong data.
#[test]
fn a_cache_on_its_own_origin_is_refused() {
    with_dm(|dm| async move {
        make(&dm, "lo", "0 32768 linear mem:16M,o 0").await;
        let parts = ["sectors 0 to 32767 of mem:16M,o", "origin of self", "cache device of self"];
        refused(&dm, "self", "0 32768 writecache s mem:16M,o lo 4096 0", &parts).await;
        refused(&dm, "self", "0 8192 writecache s lo mem:16M,o 4096 0", &["8191"]).await;
        let lines = "0 8192 writecache s mem:16M,p mem:16M,c 4096 0\n\
                     8192 8192 writecache s mem:16M,q mem:16M,c 4096 0";
        refused(&dm, "both", lines, &["line 1: writecache: ", "of mem:16M,c"]).await;
    });
}

#[test]
fn parts_of_one_device_that_do_not_meet_are_allowed() {
    with_dm(|dm| async move {
        make(&dm, "a", "0 16384 linear mem:32M,d 0").await;
        make(&dm, "b", "0 16384 linear mem:32M,d 16384").await;
        make(&dm, "c", "0 32768 linear mem:32M,d 32768").await;
        make(&dm, "w", "0 16384 writecache s a c 4096 0").await;
        make(&dm, "buf", "0 16384 buffered b").await;
        make(&dm, "over", "0 16384 linear w 0").await;
        // All of the device, by one sector.
        let parts = ["sectors 16383 to 16383 of mem:32M,d", "origin of w"];
        refused(&dm, "x", "0 1 linear mem:32M,d 16383", &parts).await;
        for name in ["over", "buf", "w", "c", "b", "a"] {
            dm.remove(name, Remove::IfUnused).await.unwrap();
        }
    });
}

#[test]
fn engines_may_stand_on_each_other_but_not_twice() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        make(&dm, "b", "0 32768 buffered w").await;
        refused(&dm, "b2", "0 8192 buffered w", &["origin of b (buffered)"]).await;
        make(&dm, "l", "0 8192 linear b 0").await;
        // The table that takes the cache away names its origin; those above go through it.
        dm.load("w", "0 32768 linear mem:16M,o 0").await.unwrap();
        make(&dm, "m", "0 8192 linear b 8192").await;
        dm.clear("w").await.unwrap();
        for name in ["m", "l", "b", "w"] {
            dm.remove(name, Remove::IfUnused).await.unwrap();
        }
    });
}

/// What lies below a cache may change after it was made: a device below gets another table.
#[test]
fn a_reload_below_a_cache_is_checked_too() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        make(&dm, "l", "0 32768 linear mem:16M,x 0").await;
        make(&dm, "w4", "0 32768 writecache s mem:16M,p l 4096 0").await;
        let e = dm.load("l", "0 32768 linear mem:16M,c 0").await.unwrap_err();
        assert_eq!((e.kind(), e.token()), (ErrorKind::Busy, None), "{e}");
        assert!(
            e.to_string().contains(": sectors 0 to 32767 of mem:16M,c would be the cache device"),
            "{e}"
        );
        assert!(!dm.info("l").unwrap().inactive_table);
        dm.load("l", "0 32768 linear mem:16M,y 0").await.unwrap();
        let e = dm.load("l", "0 32768 linear mem:16M,p 0").await.unwrap_err();
        assert!(e.to_string().contains("cache device of w4"), "{e}");
        assert!(dm.info("l").unwrap().inactive_table, "what was there before stays");
        for name in ["w4", "l", "w"] {
            dm.remove(name, Remove::IfUnused).await.unwrap();
        }
    });
}

#[test]
fn a_mapping_past_a_live_cache_needs_its_token() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        let table = "0 32768 linear mem:16M,o 0";
        let parts =
            ["m: line 1: linear: sectors 0 to 32767 of mem:16M,o", "origin of w", "--force="];
        let e = refused(&dm, "m", table, &parts).await;
        let token = e.token().unwrap();
        let wrong = dm
            .create_at("m", None, None, Some(table), Some("00000000"), &|| true)
            .await
            .unwrap_err();
        assert!(wrong.to_string().contains("the token 00000000 does not stand for"), "{wrong}");
        let other =
            dm.create_at("n", None, None, Some(table), Some(token), &|| true).await.unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Busy, "a token is for one device: {other}");
        dm.create_at("m", None, None, Some(table), Some(token), &|| true).await.unwrap();
        // What was permitted is not asked again, and other tables are not held up by it.
        dm.load("m", table).await.unwrap();
        make(&dm, "other", "0 8192 writecache s mem:16M,p mem:16M,q 4096 0").await;
        for name in ["other", "m", "w"] {
            dm.remove(name, Remove::IfUnused).await.unwrap();
        }
        // The same when the mapping is there first.
        make(&dm, "m", "0 8192 linear mem:16M,o 0").await;
        let e = refused(&dm, "w", W, &["line 1: writecache: ", "mapped by m (linear)"]).await;
        dm.create_at("w", None, None, Some(W), e.token(), &|| true).await.unwrap();
    });
}

/// The documented way to remove a cache from a stack: flush it, and map the devices above past it.
#[test]
fn a_stack_may_leave_a_cache_that_is_clean() {
    with_dm(|dm| async move {
        make(&dm, "stripes", "0 32768 striped 2 16 mem:8M,a 0 mem:8M,b 0").await;
        make(&dm, "w", "0 32768 writecache s stripes mem:16M,c 4096 0").await;
        make(&dm, "disk", "0 32768 linear w 0").await;
        dirty(&dm, "disk").await;
        let past = "0 32768 linear stripes 0";
        let e = dm.load("disk", past).await.unwrap_err();
        assert!(e.to_string().contains("origin of w") && e.token().is_some(), "{e}");
        dm.message("w", Sector::ZERO, vec!["flush".into()]).await.unwrap();
        dm.load("disk", past).await.unwrap();
        dm.resume("disk").await.unwrap();
        for name in ["w", "disk", "stripes"] {
            dm.remove(name, Remove::IfUnused).await.unwrap();
        }
    });
}

/// Tried as a new user would: a table swap that is harmless with linear took a megabyte of flushed
/// data out of sight without a word.
#[test]
fn a_table_that_hides_dirty_blocks_needs_its_token() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        dirty(&dm, "w").await;
        let bare = "0 32768 linear mem:16M,o 0";
        for table in [bare, "0 32768 writecache s mem:16M,o mem:16M,new 4096 0", "0 32768 error"] {
            dm.load("w", table).await.unwrap();
            let e = dm.resume("w").await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            let parts = ["1 dirty block (4.0 KiB) on mem:16M,c", "mem:16M,o", "message w 0 flush"];
            assert!(parts.iter().all(|part| e.to_string().contains(part)), "{e}");
            let info = dm.info("w").unwrap();
            assert!(info.inactive_table && !info.suspended, "as it was");
        }
        dirty(&dm, "w").await; // it serves on
        dm.suspend("w").await.unwrap();
        let e = dm.resume("w").await.unwrap_err();
        assert!(e.to_string().contains("`millpond clear w`"), "{e}");
        assert!(dm.info("w").unwrap().suspended);
        // The same cache is kept, whatever else the table has.
        dm.load("w", &W.replace("4096 0", "4096 2 high_watermark 60")).await.unwrap();
        dm.resume("w").await.unwrap();
        dm.load("w", bare).await.unwrap();
        dm.message("w", Sector::ZERO, vec!["flush_on_suspend".into()]).await.unwrap();
        dm.resume("w").await.unwrap();
    });
}

#[test]
fn the_token_of_a_hiding_table_lets_it_go_live() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        dirty(&dm, "w").await;
        dm.load("w", "0 32768 error").await.unwrap();
        let e = dm.resume("w").await.unwrap_err();
        assert!(dm.resume_forced("w", Some("12345678")).await.is_err());
        dm.resume_forced("w", e.token()).await.unwrap();
        assert_eq!(dm.table("w").unwrap()[0].kind, "error");
    });
}

#[test]
fn a_removal_reports_what_stays_or_drains_it() {
    with_dm(|dm| async move {
        make(&dm, "w", W).await;
        dirty(&dm, "w").await;
        let kept = dm.remove("w", Remove::IfUnused).await.unwrap();
        let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["1 dirty block (4.0 KiB) on mem:16M,c"]);
        make(&dm, "w", &W.replace(",c", ",d")).await;
        dirty(&dm, "w").await;
        let held = dm.open("w").unwrap();
        let e = dm.remove("w", Remove::Drained).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
        drop(held);
        assert_eq!(dm.remove("w", Remove::Drained).await.unwrap(), []);
        assert!(dm.get("w").is_err());
    });
}

/// Tried as a new user would: a cache was removed without a word while its origin refused 2064
/// blocks.
#[test]
fn a_cache_with_failing_blocks_is_removed_by_token_only() {
    with_dm(|dm| async move {
        make(&dm, "o", "0 32768 linear mem:16M,o 0").await;
        make(&dm, "w", &W.replace("mem:16M,o", "o")).await;
        dm.load("o", "0 32768 error").await.unwrap();
        dm.resume("o").await.unwrap();
        dirty(&dm, "w").await;
        dm.message("w", Sector::ZERO, vec!["flush".into()]).await.unwrap_err();
        let mut token = None;
        for how in [Remove::IfUnused, Remove::Force, Remove::Deferred] {
            let e = dm.remove("w", how).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            let parts = ["1 dirty block (4.0 KiB) on mem:16M,c, 1 of which the origin refuses"];
            assert!(parts.iter().all(|part| e.to_string().contains(part)), "{e}");
            assert!(!dm.info("w").unwrap().suspended, "as it was");
            token = e.token().map(str::to_owned);
        }
        dm.remove("w", Remove::Drained).await.unwrap_err();
        assert!(dm.remove_all(Remove::Force).await.is_err());
        assert!(dm.remove_forced("w", Remove::Force, Some("12345678")).await.is_err());
        let kept = dm.remove_forced("w", Remove::Force, token.as_deref()).await.unwrap();
        assert_eq!(kept.len(), 1);
        assert!(dm.get("w").is_err());
    });
}

/// Blocks that stay in a cache whose removal waited for its last opener.
#[test]
fn a_deferred_removal_reports_or_stays_too() {
    with_dm(|dm| async move {
        let told = Rc::new(RefCell::new(Vec::new()));
        let log = told.clone();
        dm.on_unsaved(move |name, unsaved| log.borrow_mut().push(format!("{name}: {unsaved}")));
        make(&dm, "w", W).await;
        let held = dm.open("w").unwrap();
        dirty(&dm, "w").await;
        assert_eq!(dm.remove("w", Remove::Deferred).await.unwrap(), []);
        drop(held);
        while dm.get("w").is_ok() {
            yield_now().await;
        }
        assert_eq!(*told.borrow(), ["w: 1 dirty block (4.0 KiB) on mem:16M,c"]);
    });
}

/// Overlaps of one sector: behind other runs, at the last sector, in one stripe.
#[test]
fn the_smallest_overlap_is_found_wherever_it_is() {
    with_dm(|dm| async move {
        make(&dm, "c", "0 8192 linear mem:16M,c 4096").await;
        make(&dm, "w", "0 32768 writecache s mem:16M,o c 4096 0").await;
        let striped = "0 65536 striped 2 16 mem:16M,x 0 mem:16M,c 0";
        let e = refused(&dm, "stripes", striped, &["cache device of w"]).await;
        dm.create_at("stripes", None, None, Some(striped), e.token(), &|| true).await.unwrap();
        for (table, at) in [
            ("0 4097 linear mem:16M,c 0", "4096 to 4096"),
            ("0 1 linear mem:16M,c 12287", "12287 to 12287"),
            (
                "0 8 linear mem:16M,c 0\n8 8 linear mem:16M,c 16384\n16 8 linear mem:16M,c 5000",
                "5000 to 5007",
            ),
            // The second run lies within the first.
            ("0 4100 linear mem:16M,c 0\n4100 8 linear mem:16M,c 8", "4096 to 4099"),
            // The sectors of a stripe are others than those of the device.
            ("0 16 linear stripes 20496", "of mem:16M,c"),
        ] {
            refused(&dm, "m", table, &[at, "cache device of w"]).await;
        }
        for table in ["0 4096 linear mem:16M,c 0", "0 20480 linear mem:16M,c 12288"] {
            make(&dm, "m", table).await;
            dm.remove("m", Remove::IfUnused).await.unwrap();
        }
        for name in ["stripes", "w", "c"] {
            dm.remove(name, Remove::IfUnused).await.unwrap();
        }
    });
}

/// A cache that was removed while its disk hung may still write there.
#[test]
fn a_cache_removed_by_force_holds_its_devices_until_settled() {
    with_dm(|dm| async move {
        make(&dm, "slow", "0 32768 delay mem:16M,c 0 0").await;
        make(&dm, "w", "0 32768 writecache s mem:16M,o slow 4096 0").await;
        dm.load("slow", "0 32768 delay mem:16M,c 0 0 mem:16M,c 0 500").await.unwrap();
        dm.resume("slow").await.unwrap();
        let device = dm.open("w").unwrap();
        let block = Buf::zeroed(4096);
        let at = &**device.device();
        let writing = write(at, Flags::default(), Class::Foreground, Sector(0), block.all().into());
        dm.remove_forced("w", Remove::Force, None).await.unwrap_err(); // it is open
        drop(device);
        dm.remove_forced("w", Remove::Force, None).await.unwrap();
        assert!(dm.get("w").is_err());
        let second = "0 32768 writecache s mem:16M,p slow 4096 0";
        refused(&dm, "w2", second, &["mem:16M,c", "the table of w that was removed"]).await;
        let _ = writing.await;
        while let Err(e) = create(&dm, "w2", second).await {
            assert!(e.kind() == ErrorKind::Busy && now() < Nanos::from_secs(60), "{e}");
            sleep(Nanos::from_millis(50)).await;
        }
    });
}

/// A token is valid for one operation, and for the blocks at stake when it was given.
#[test]
fn a_token_is_for_one_operation_and_all_blocks_at_stake() {
    with_dm(|dm| async move {
        let two = "0 16384 writecache s mem:8M,o mem:16M,c 4096 0\n\
                   16384 16384 writecache s mem:8M,p mem:16M,d 4096 0";
        make(&dm, "w", two).await;
        let device = dm.open("w").unwrap();
        let at = async |sector| {
            let block = Buf::zeroed(4096).into();
            let dev = &**device.device();
            write(dev, Flags::default(), Class::Foreground, Sector(sector), block).await.unwrap();
            flush(dev, Class::Foreground).await.unwrap();
        };
        at(16384).await;
        dm.load("w", "0 32768 error").await.unwrap();
        let e = dm.resume("w").await.unwrap_err();
        assert!(e.to_string().contains("1 dirty block (4.0 KiB) on mem:16M,d"), "{e}");
        let first = e.token().unwrap().to_owned();
        at(0).await;
        let e = dm.resume_forced("w", Some(&first)).await.unwrap_err();
        assert!(e.to_string().contains("does not stand for"), "the other cache is dirty, too: {e}");
        drop(device);
        dm.resume_forced("w", e.token()).await.unwrap();
    });
}

/// The device exists until its opener closes it, and by then blocks of it fail.
#[test]
fn a_cache_with_failing_blocks_is_not_removed_deferred() {
    with_dm(|dm| async move {
        make(&dm, "o", "0 32768 linear mem:16M,o 0").await;
        make(&dm, "w", &W.replace("mem:16M,o", "o")).await;
        let held = dm.open("w").unwrap();
        dirty(&dm, "w").await;
        assert_eq!(dm.remove("w", Remove::Deferred).await.unwrap(), []);
        dm.load("o", "0 32768 error").await.unwrap();
        dm.resume("o").await.unwrap();
        dm.message("w", Sector::ZERO, vec!["flush".into()]).await.unwrap_err();
        drop(held);
        for _ in 0..100 {
            yield_now().await;
        }
        let e = dm.remove("w", Remove::IfUnused).await.unwrap_err();
        // A token of another operation is not valid for this one.
        dm.load("w", "0 32768 error").await.unwrap();
        let other = dm.resume("w").await.unwrap_err();
        dm.clear("w").await.unwrap();
        dm.remove_forced("w", Remove::IfUnused, other.token()).await.unwrap_err();
        dm.remove_forced("w", Remove::Force, e.token()).await.unwrap();
    });
}

/// Blocks that the cache device can't read are at stake as those that the origin refuses are.
#[test]
fn a_cache_with_unreadable_blocks_is_removed_by_token_only() {
    with_dm(|dm| async move {
        make(&dm, "c", "0 32768 linear mem:16M,c 0").await;
        make(&dm, "w", &W.replace("mem:16M,c", "c")).await;
        dirty(&dm, "w").await;
        dm.load("c", "0 32768 flakey mem:16M,c 0 0 1000 1 error_reads").await.unwrap();
        dm.resume("c").await.unwrap();
        dm.message("w", Sector::ZERO, vec!["flush".into()]).await.unwrap_err();
        let e = dm.remove("w", Remove::IfUnused).await.unwrap_err();
        assert!(e.to_string().contains("1 of which can't be read"), "{e}");
        dm.remove_forced("w", Remove::Force, e.token()).await.unwrap();
    });
}

/// A client that writes during `remove --drain` gets no error when its blocks stay in the cache.
#[test]
fn a_draining_removal_leaves_no_block_written_meanwhile() {
    with_dm(|dm| async move {
        make(&dm, "o", "0 32768 delay mem:16M,o 0 0 mem:16M,o 0 300").await;
        make(&dm, "w", &W.replace("mem:16M,o", "o")).await;
        dirty(&dm, "w").await;
        let (of, done) = (dm.clone(), Rc::new(Cell::new(None)));
        let tell = done.clone();
        spawn(async move {
            tell.set(Some(of.remove("w", Remove::Drained).await));
        });
        sleep(Nanos::from_millis(50)).await;
        let device = dm.open("w").unwrap();
        let block = Buf::zeroed(4096).into();
        let dev = &**device.device();
        write(dev, Flags::default(), Class::Foreground, Sector(800), block).await.unwrap();
        drop(device);
        let removed = loop {
            match done.take() {
                Some(removed) => break removed,
                None => sleep(Nanos::from_millis(10)).await,
            }
        };
        if let Ok(kept) = removed {
            assert_eq!(kept, [], "a drain that took it along");
        } else {
            dm.remove("w", Remove::Drained).await.unwrap();
        }
    });
}

/// A token is valid for one device, not for another with its number or its name.
#[test]
fn a_token_is_for_one_device() {
    with_dm(|dm| async move {
        let hides = async |name: &str| {
            make(&dm, name, W).await;
            dirty(&dm, name).await;
            dm.load(name, "0 32768 error").await.unwrap();
            let e = dm.resume(name).await.unwrap_err();
            (dm.info(name).unwrap().minor, e.token().unwrap().to_owned())
        };
        let (minor, token) = hides("w").await;
        dm.remove("w", Remove::IfUnused).await.unwrap();
        let (same_minor, _) = hides("v").await;
        assert_eq!(same_minor, minor);
        assert!(dm.resume_forced("v", Some(&token)).await.is_err(), "a token of w");
        dm.remove("v", Remove::IfUnused).await.unwrap();
        make(&dm, "first", "0 8 zero").await;
        let (other_minor, right) = hides("w").await;
        assert_ne!(other_minor, minor);
        assert!(dm.resume_forced("w", Some(&token)).await.is_err(), "a token of another w");
        dm.resume_forced("w", Some(&right)).await.unwrap();
    });
}
