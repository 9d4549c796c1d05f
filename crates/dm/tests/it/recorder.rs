// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target for tests of verbs: which of its functions are called, and what an error of one does.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::Bench;
use block::attr::{Kind, Manual, Spec};
use block::value::Value;
use block::{Bio, BlockDevice, Error, Limits, LocalFuture, Nanos, Sector, Status, Target};
use dm::TargetType;

/// A target that records the calls that it gets, and fails on request.
struct Recorder {
    name: String,
    log: Rc<RefCell<Vec<String>>>,
    fail: Rc<RefCell<String>>,
}

impl Recorder {
    fn record(&self, what: &str) -> Result<(), Error> {
        let line = format!("{what} {}", self.name);
        self.log.borrow_mut().push(line.clone());
        if *self.fail.borrow() == line { Err(Error::io("on purpose")) } else { Ok(()) }
    }
}

impl BlockDevice for Recorder {
    fn name(&self) -> &str {
        &self.name
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(8))
    }
    fn submit(&self, bio: Bio) {
        self.record("bio").expect("bios do not fail");
        bio.complete(Status::Ok);
    }
}

impl Target for Recorder {
    fn kind(&self) -> &'static str {
        "recorder"
    }
    fn table(&self) -> String {
        self.name.clone()
    }
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        let said = self.record("suspend");
        Box::pin(async { said })
    }
    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        let said = self.record("resume");
        Box::pin(async { said })
    }
    fn takes_while_suspended(&self, words: &[String]) -> bool {
        words == ["note"]
    }
    fn message(self: Rc<Self>, words: Vec<String>) -> LocalFuture<Result<String, Error>> {
        Box::pin(async move {
            reactor::sleep(Nanos::from_millis(10)).await;
            self.record("message").map(|()| words.join("+"))
        })
    }
    fn attributes(&self) -> Vec<&'static Spec> {
        static MOOD: Spec = Spec::new("mood", Kind::Text("words"), "how it is");
        vec![&MOOD]
    }
    fn get_attribute(self: Rc<Self>, _name: String) -> LocalFuture<Result<Value, Error>> {
        Box::pin(async move { Ok(format!("mood of {}", self.name).into()) })
    }
    fn set_attribute(
        self: Rc<Self>,
        _name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            self.record("set")?;
            reactor::sleep(Nanos::from_millis(10)).await;
            self.record(&value)
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.record("drop").ok();
    }
}

static RECORDER: Manual = Manual::new("recorder", (1, 0, 0), "logs its calls", "");

/// What a test and its targets look at.
pub(crate) type Shared<T> = Rc<RefCell<T>>;

pub(crate) fn recorder(bench: &Bench) -> (Shared<Vec<String>>, Shared<String>) {
    let (log, fail) = (Shared::<Vec<String>>::default(), Shared::<String>::default());
    let (l, f) = (log.clone(), fail.clone());
    bench.dm.register(TargetType::new(&RECORDER, move |_, args| {
        let recorder = Rc::new(Recorder { name: args.concat(), log: l.clone(), fail: f.clone() });
        Box::pin(async move {
            recorder.record("construct")?;
            Ok(recorder as Rc<dyn Target>)
        })
    }));
    (log, fail)
}
