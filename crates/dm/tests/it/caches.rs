// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write caches in tables: they give their origins back when their device is removed, and several
//! of one table write back.

use std::cell::RefCell;
use std::rc::Rc;

use block::attr::{Kind, Manual, Spec};
use block::value::Value;
use block::{
    Bio, BlockDevice, Error, ErrorKind, Limits, LocalFuture, Nanos, Sector, Status, Target,
    UnsavedBlocks,
};
use dm::{Remove, TargetType};
use reactor::{sleep, spawn};

use crate::common::{Bench, write};

type Log = Rc<RefCell<Vec<String>>>;

/// An empty cache. The one called `bad` can't give its origin back.
struct Cache {
    name: String,
    log: Log,
}

impl Cache {
    fn call(&self, what: &str) -> LocalFuture<Result<(), Error>> {
        self.log.borrow_mut().push(format!("{what} {}", self.name));
        Box::pin(async { Ok(()) })
    }
}

impl BlockDevice for Cache {
    fn name(&self) -> &str {
        &self.name
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(8))
    }
    fn submit(&self, bio: Bio) {
        self.log.borrow_mut().push(format!("bio {}", self.name));
        bio.complete(Status::Ok);
    }
}

impl Target for Cache {
    fn kind(&self) -> &'static str {
        "cache"
    }
    fn table(&self) -> String {
        self.name.clone()
    }
    fn pause_background(self: Rc<Self>, is_paused: bool) -> LocalFuture<()> {
        Box::pin(async move {
            self.log.borrow_mut().push(format!("pause {} {is_paused}", self.name));
            if is_paused && self.name == "slow" {
                sleep(Nanos::from_secs(60)).await;
            }
        })
    }
    fn tracks_dirty(&self) -> bool {
        true
    }
    fn empty(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.log.borrow_mut().push(format!("empty {}", self.name));
        let is_bad = self.name == "bad";
        Box::pin(async move { if is_bad { Err(Error::io("no answer")) } else { Ok(()) } })
    }
    fn cancel_empty(&self) {
        self.log.borrow_mut().push(format!("cancel {}", self.name));
    }
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.call("suspend")
    }
    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.call("resume")
    }
    fn attributes(&self) -> Vec<&'static Spec> {
        vec![&WRITTEN]
    }
    fn get_attribute(self: Rc<Self>, _name: String) -> LocalFuture<Result<Value, Error>> {
        let written = self.name.len() as u64;
        Box::pin(async move { Ok(written.into()) })
    }
    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        self.log.borrow_mut().push(format!("{name} {value} {}", self.name));
        Box::pin(async { Err(Error::busy("it writes nothing back")) })
    }
    fn unsaved(&self) -> Option<UnsavedBlocks> {
        let (copies, cache) = (3, self.name.clone());
        Some(UnsavedBlocks { copies, cache, ..UnsavedBlocks::default() })
    }
    fn drop_copies(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.log.borrow_mut().push(format!("drop {}", self.name));
        let fails = self.name == "stuck";
        Box::pin(async move { if fails { Err(Error::io("no answer")) } else { Ok(()) } })
    }
    fn release_origin(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.log.borrow_mut().push(format!("release {}", self.name));
        Box::pin(async move {
            sleep(Nanos::from_millis(10)).await;
            if self.name == "bad" { Err(Error::io("no answer")) } else { Ok(()) }
        })
    }
}

static WRITTEN: Spec = Spec::new("written", Kind::Text("a number"), "what it has written back");

static CACHE: Manual = Manual::new("cache", (1, 0, 0), "an empty cache", "");

fn bench() -> (Bench, Log) {
    let (bench, log) = (Bench::new(1), Log::default());
    let calls = log.clone();
    bench.dm.register(TargetType::new(&CACHE, move |_, args| {
        let cache = Rc::new(Cache { name: args.concat(), log: calls.clone() });
        Box::pin(async { Ok(cache as Rc<dyn Target>) })
    }));
    (bench, log)
}

/// The first cache served writes that its origin did not know of.
#[test]
fn a_removal_that_fails_claims_the_origins_again() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        let device = dm.create("d", None, Some("0 8 cache good\n8 8 cache bad")).await.unwrap();
        log.borrow_mut().clear();
        let e = dm.remove("d", Remove::IfUnused).await.unwrap_err();
        assert_eq!(e.to_string(), "d: to give its origin back: line 2: cache: no answer");
        write(&*device, 1, 0, 1).await.unwrap();
        let want = [
            "release good",
            "release bad",
            "suspend good",
            "suspend bad",
            "resume good",
            "resume bad",
            "bio good",
        ];
        assert_eq!(*log.borrow(), want);
        assert!(dm.open("d").is_ok() && !dm.info("d").unwrap().suspended);
    });
}

#[test]
fn a_suspended_device_that_is_not_removed_stays_suspended() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 cache bad")).await.unwrap();
        dm.suspend("d").await.unwrap();
        log.borrow_mut().clear();
        dm.remove("d", Remove::IfUnused).await.unwrap_err();
        assert_eq!(*log.borrow(), ["release bad"]);
        assert!(dm.open("d").is_ok() && dm.info("d").unwrap().suspended);
        dm.resume("d").await.unwrap();
    });
}

/// It was opened, written to, and gone under its opener.
#[test]
fn nobody_opens_a_device_that_gives_its_origin_back() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 cache good")).await.unwrap();
        let removing = dm.clone();
        spawn(async move { drop(removing.remove("d", Remove::IfUnused).await.unwrap()) });
        sleep(Nanos::from_millis(5)).await;
        assert_eq!(log.borrow().last().unwrap(), "release good");
        assert_eq!(dm.open("d").unwrap_err().kind(), ErrorKind::NotFound);
        sleep(Nanos::from_millis(10)).await;
        assert_eq!(*log.borrow(), ["resume good", "release good", "suspend good", "drop good"]);
        assert!(dm.get("d").is_err());
    });
}

/// As one that nobody has open: else the origin could not be used without the cache.
#[test]
fn a_deferred_removal_gives_the_origin_back() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 cache good")).await.unwrap();
        let held = dm.open("d").unwrap();
        dm.remove("d", Remove::Deferred).await.unwrap();
        drop(held);
        sleep(Nanos::from_millis(20)).await;
        assert_eq!(*log.borrow(), ["resume good", "release good", "suspend good", "drop good"]);
        assert!(dm.get("d").is_err());
    });
}

/// Blocks that the origin has, too, were served when a table had both again, though the origin had
/// been changed meanwhile.
#[test]
fn a_device_that_goes_drops_its_copies_or_says_why_not() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        let told = Log::default();
        let tell = told.clone();
        dm.on_unsaved(move |name, held| {
            let why = held.copies_kept.clone().unwrap_or_default();
            tell.borrow_mut().push(format!("{name}: {}: {why}", held.cache));
        });
        let lines = "0 8 cache good\n8 8 cache stuck\n16 8 zero\n24 8 cache last";
        for how in [Remove::IfUnused, Remove::Drained, Remove::Force] {
            dm.create("d", None, Some(lines)).await.unwrap();
            log.borrow_mut().clear();
            told.borrow_mut().clear();
            let held = dm.remove("d", how).await.unwrap();
            let kept: Vec<&str> = held.iter().map(|held| &*held.cache).collect();
            let dropped = log.borrow().iter().filter(|l| l.starts_with("drop")).count();
            if how == Remove::Force {
                assert_eq!((kept.len(), dropped), (3, 0), "it waits for nothing");
                continue;
            }
            assert_eq!((kept, dropped), (vec!["stuck"], 3));
            assert_eq!(*told.borrow(), ["d: stuck: no answer"]);
        }
        // A suspended device, and a table that hides one of the caches.
        dm.create("d", None, Some(lines)).await.unwrap();
        dm.load("d", "0 8 cache good\n8 8 zero\n16 8 zero\n24 8 zero").await.unwrap();
        dm.suspend("d").await.unwrap();
        log.borrow_mut().clear();
        told.borrow_mut().clear();
        dm.resume("d").await.unwrap();
        let dropped: Vec<_> =
            log.borrow().iter().filter(|l| l.starts_with("drop")).cloned().collect();
        assert_eq!(dropped, ["drop good", "drop stuck", "drop last"]);
        assert_eq!(*told.borrow(), ["d: stuck: no answer"]);
    });
}

/// Nobody learnt of it, and the device stayed.
#[test]
fn a_deferred_removal_that_fails_is_reported() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 cache bad")).await.unwrap();
        let kept = log.clone();
        dm.on_kept(move |name, e| log.borrow_mut().push(format!("kept {name}: {}", e.chain())));
        let held = dm.open("d").unwrap();
        dm.remove("d", Remove::Deferred).await.unwrap();
        let seen = dm.info("d").unwrap().event_nr;
        drop(held);
        assert!(dm.wait("d", Some(seen)).await.unwrap() > seen);
        sleep(Nanos::from_millis(20)).await;
        let said = kept.borrow().last().cloned();
        let want = "kept d: d: to give its origin back: line 1: cache: no answer";
        assert_eq!(said.as_deref(), Some(want));
        assert!(dm.info("d").unwrap().deferred_remove);
    });
}

/// The second cache of a table was written back for as long as its origin was away: the stop went
/// to the first one alone, and so did the look whether anything is written.
#[test]
fn all_caches_of_a_table_are_counted_and_stopped() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 cache a\n8 8 zero\n16 8 cache bc")).await.unwrap();
        assert_eq!(dm.sum_of("d", "written").await, Some(3));
        assert_eq!(dm.sum_of("d", "other").await, None);
        log.borrow_mut().clear();
        dm.stop_writeback("d", "stop").await;
        assert_eq!(*log.borrow(), ["drain stop a", "drain stop bc"]);
    });
}

/// The first ones wrote back all that they held at their next suspend, which nobody had asked for.
#[test]
fn caches_that_were_emptied_for_nothing_forget_it() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        let table = "0 8 cache a\n8 8 zero\n16 8 cache b\n24 8 cache bad\n32 8 cache c";
        let device = dm.create("d", None, Some(table)).await.unwrap();
        log.borrow_mut().clear();
        let from = dm.live_table("d").unwrap();
        let e = dm.replace_table("d", &from, "0 40 zero").await.unwrap_err();
        assert_eq!(e.to_string(), "d: line 4: cache: no answer");
        assert_eq!(*log.borrow(), ["empty a", "empty b", "empty bad", "cancel a", "cancel b"]);
        write(&*device, 1, 0, 1).await.unwrap();
    });
}

/// An upgrade that failed took the pause back while one cache still waited for its origin: the next
/// one was paused afterwards, wrote nothing back, and ended each flush.
#[test]
fn a_pause_that_was_taken_back_pauses_nothing_later() {
    let (bench, log) = bench();
    bench.run(|dm, _| async move {
        dm.create("d", None, Some("0 8 cache slow\n8 8 cache b")).await.unwrap();
        log.borrow_mut().clear();
        let pausing = dm.clone();
        spawn(async move { pausing.pause_background("d", true).await.unwrap() });
        sleep(Nanos::from_secs(1)).await;
        dm.pause_background("d", false).await.unwrap();
        sleep(Nanos::from_secs(100)).await;
        let want = ["pause slow true", "pause b true", "pause slow false", "pause b false"];
        assert_eq!(*log.borrow(), want);
    });
}
