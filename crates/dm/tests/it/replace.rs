// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live table that is replaced by one that was made from it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::attr::Manual;
use block::{
    Bio, BlockDevice, Error, ErrorKind, Limits, LocalFuture, Nanos, Sector, Status, Target,
};
use dm::{Remove, TargetType};
use reactor::{WaitList, sleep, spawn};

use crate::common::{Bench, write};

const A: &str = "/ram/a/1024";

#[test]
fn a_table_made_of_one_that_is_live_no_more_is_refused() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("d", None, Some("0 64 zero")).await.unwrap();
        let from = dm.live_table("d").unwrap();
        dm.load("d", &format!("0 64 linear {A} 8")).await.unwrap();
        dm.resume("d").await.unwrap();
        let late = dm.replace_table("d", &from, "0 128 zero").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Busy);
        assert_eq!(
            late.to_string(),
            "d: another table has become live meanwhile: nothing was changed, try again"
        );
        assert_eq!(dm.table("d").unwrap()[0].params, format!("{A} 8"));
        let from = dm.live_table("d").unwrap();
        dm.replace_table("d", &from, "0 128 zero").await.unwrap();
        assert_eq!(dm.table("d").unwrap()[0].kind, "zero");
    });
}

/// A target whose claim of its origin hangs until it is let go.
#[derive(Default)]
struct SlowClaim {
    calls: RefCell<Vec<&'static str>>,
    is_let_go: Cell<bool>,
    let_go: WaitList,
}

impl SlowClaim {
    fn call(&self, what: &'static str) -> LocalFuture<Result<(), Error>> {
        self.calls.borrow_mut().push(what);
        Box::pin(async { Ok(()) })
    }
}

impl BlockDevice for SlowClaim {
    fn name(&self) -> &str {
        "slow"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(64))
    }
    fn submit(&self, bio: Bio) {
        bio.complete(Status::Ok);
    }
}

impl Target for SlowClaim {
    fn kind(&self) -> &'static str {
        "slow"
    }
    fn table(&self) -> String {
        String::new()
    }
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.call("suspend")
    }
    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.call("resume")
    }
    fn claim_origin(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move {
            self.calls.borrow_mut().push("claim");
            self.let_go.wait_for(|| self.is_let_go.get()).await;
        })
    }
}

static SLOW: Manual = Manual::new("slow", (1, 0, 0), "claims its origin slowly", "");

/// DM-FO2: the replace went on, and its table took the place of that of errors.
#[test]
fn a_replace_that_force_overtook_changes_nothing() {
    let bench = Bench::new(1);
    let slow = Rc::new(SlowClaim::default());
    let target = slow.clone();
    bench.dm.register(TargetType::new(&SLOW, move |_, _| {
        let target = target.clone() as Rc<dyn Target>;
        Box::pin(async { Ok(target) })
    }));
    bench.run(|dm, _| async move {
        let device = dm.create("d", None, Some("0 64 zero")).await.unwrap();
        let held = dm.open("d").unwrap();
        let from = dm.live_table("d").unwrap();
        let replaced = Rc::new(Cell::new(None));
        let (dm2, tell) = (dm.clone(), replaced.clone());
        spawn(async move {
            tell.set(Some(dm2.replace_table("d", &from, "0 64 slow").await.is_ok()));
        });
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(*slow.calls.borrow(), ["resume", "claim"]);
        dm.remove("d", Remove::Force).await.unwrap_err();
        slow.is_let_go.set(true);
        slow.let_go.wake_all();
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(replaced.get(), Some(false));
        assert_eq!(*slow.calls.borrow(), ["resume", "claim", "suspend"]);
        assert_eq!(dm.table("d").unwrap()[0].kind, "error");
        assert_eq!(write(&*device, 1, 0, 1).await, Err(Status::Io));
        drop(held);
    });
}
