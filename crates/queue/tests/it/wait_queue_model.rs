// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every execution of the wait queue that the memory model allows, by loom.
//!
//! A leaf's queue belongs to its core, and what others have to tell it comes as a message. So the
//! model is: a thread that wants to write, others that end writes or switch the throttle, a
//! mailbox; and nobody may be left queued once all messages have been read.
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32 as Word;
use loom::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use loom::thread;

use tokens::{Load, Tokens, WakeFlag};

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}

#[allow(dead_code, reason = "the model does not read all of the figures")]
#[path = "../../src/wbt/tokens.rs"]
mod tokens;

/// What is left out, to see that it would be found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Who has queued itself does not try again.
    NoRetry,
    /// Who ends a write looks for waiters before it gives the token back.
    LooksFirst,
    /// Who switches the throttle tells nobody.
    NoWakeOnChange,
    /// A leaf is open to the next message only after it has looked.
    AnswersLate,
}

struct Model {
    tokens: Tokens,
    flag: WakeFlag,
    /// Messages for the leaf that have not been read.
    mail: Word,
    /// As a leaf sees the number of the law's changes.
    limit: Word,
    fault: Fault,
}

impl Model {
    fn new(fault: Fault, in_flight: u32) -> Arc<Model> {
        let tokens = Tokens::new(true);
        for _ in 0..in_flight {
            tokens.take_anyway(0, 8);
        }
        let (mail, limit) = (Word::new(0), Word::new(1));
        Arc::new(Model { tokens, flag: WakeFlag::new(), mail, limit, fault })
    }

    fn wake(&self, waiting: u32) {
        if waiting > 0 && self.flag.set() {
            self.mail.fetch_add(1, SeqCst);
        }
    }

    /// A write has ended.
    fn end(&self) {
        if self.fault == Fault::LooksFirst {
            let waiting = self.tokens.waiting();
            self.tokens.give(0, 8);
            return self.wake(waiting);
        }
        let (_, waiting) = self.tokens.give(0, 8);
        self.wake(waiting);
    }

    fn set_on(&self, on: bool, limit: u32) {
        self.limit.store(limit, Release);
        let waiting = self.tokens.set_on(on);
        if self.fault != Fault::NoWakeOnChange {
            self.wake(waiting);
        }
    }

    /// A write may go, with a token if it needs one.
    fn goes(&self) -> bool {
        let limit = Load { ios: self.limit.load(Acquire), sectors: u64::MAX };
        !self.tokens.is_on() || self.tokens.take(0, 8, limit).is_some()
    }
}

/// The leaf's side: how many of its writes are still queued, and how many hold tokens.
struct Leaf {
    queued: u32,
    held: u32,
}

impl Leaf {
    fn look(&mut self, model: &Model) {
        while self.queued > 0 && model.goes() {
            self.queued -= 1;
            self.held += 1;
        }
    }

    fn submit(&mut self, model: &Model) {
        self.queued += 1;
        if self.queued > 1 {
            return;
        }
        self.look(model);
        if self.queued > 0 {
            model.tokens.announce();
            if model.fault != Fault::NoRetry {
                self.look(model);
            }
        }
    }

    fn read_mail(&mut self, model: &Model) {
        while model.mail.load(SeqCst) > 0 {
            model.mail.fetch_sub(1, SeqCst);
            if model.fault == Fault::AnswersLate {
                self.look(model);
                model.flag.clear();
            } else {
                model.flag.clear();
                self.look(model);
            }
        }
    }

    /// Everybody else is done: what waits for no message must have gone.
    fn finish(mut self, model: &Model) {
        self.read_mail(model);
        // Its own writes end one by one, and each lets the next go.
        let stuck = self.queued > 0 && self.held == 0 && model.tokens.load(0).ios == 0;
        assert!(!stuck, "a write waits although nothing is in flight");
        let off = self.queued > 0 && !model.tokens.is_on();
        assert!(!off, "a write waits although nothing is throttled");
        let room = self.queued > 0 && model.tokens.load(0).ios < model.limit.load(SeqCst);
        assert!(!room, "a write waits although there is room");
    }
}

fn ends_race_with_a_submit(fault: Fault) {
    loom::model(move || {
        let model = Model::new(fault, 1);
        let ender = {
            let model = model.clone();
            thread::spawn(move || model.end())
        };
        let mut leaf = Leaf { queued: 0, held: 0 };
        leaf.submit(&model);
        leaf.read_mail(&model);
        ender.join().expect("it has not panicked");
        leaf.finish(&model);
    });
}

fn two_ends_race_with_two_submits(fault: Fault) {
    let mut checker = loom::model::Builder::new();
    // Three threads that are interrupted at will are too many executions: twice each finds all
    // that is planted here.
    checker.preemption_bound = Some(2);
    checker.check(move || {
        let model = Model::new(fault, 2);
        model.limit.store(2, SeqCst);
        let enders = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.end())
        });
        let mut leaf = Leaf { queued: 0, held: 0 };
        leaf.submit(&model);
        leaf.submit(&model);
        leaf.read_mail(&model);
        for ender in enders {
            ender.join().expect("it has not panicked");
        }
        leaf.finish(&model);
    });
}

fn a_switch_races_with_a_submit(fault: Fault, on: bool, limit: u32) {
    loom::model(move || {
        let model = Model::new(fault, 1);
        let turner = {
            let model = model.clone();
            thread::spawn(move || model.set_on(on, limit))
        };
        let mut leaf = Leaf { queued: 0, held: 0 };
        leaf.submit(&model);
        leaf.read_mail(&model);
        turner.join().expect("it has not panicked");
        leaf.finish(&model);
    });
}

#[test]
fn no_wake_up_is_lost_when_a_write_ends() {
    ends_race_with_a_submit(Fault::None);
}

#[test]
fn no_wake_up_is_lost_when_two_writes_end() {
    two_ends_race_with_two_submits(Fault::None);
}

#[test]
fn who_waits_hears_that_the_throttle_is_off() {
    a_switch_races_with_a_submit(Fault::None, false, 1);
}

#[test]
fn who_waits_hears_of_a_higher_limit() {
    a_switch_races_with_a_submit(Fault::None, true, 3);
}

#[test]
fn limits_hold_between_cores() {
    loom::model(|| {
        let tokens = Arc::new(Tokens::new(true));
        let limit = Load { ios: 2, sectors: 16 };
        let take = move |tokens: &Tokens| tokens.take(0, 8, limit).is_some();
        let others = [(); 2].map(|()| {
            let tokens = tokens.clone();
            thread::spawn(move || u32::from(take(&tokens)))
        });
        let mine = u32::from(take(&tokens));
        let theirs = others.map(|other| other.join().expect("it has not panicked"));
        let theirs: u32 = theirs.iter().sum();
        assert_eq!(mine + theirs, 2);
        assert_eq!(tokens.load(0), Load { ios: 2, sectors: 16 });
    });
}

#[test]
#[should_panic(expected = "although nothing is in flight")]
fn a_waiter_that_does_not_try_again_would_be_found() {
    ends_race_with_a_submit(Fault::NoRetry);
}

#[test]
#[should_panic(expected = "although nothing is in flight")]
fn a_look_before_the_token_is_back_would_be_found() {
    ends_race_with_a_submit(Fault::LooksFirst);
}

#[test]
#[should_panic(expected = "although nothing is throttled")]
fn a_disable_that_wakes_nobody_would_be_found() {
    a_switch_races_with_a_submit(Fault::NoWakeOnChange, false, 1);
}

#[test]
#[should_panic(expected = "although there is room")]
fn a_retarget_that_wakes_nobody_would_be_found() {
    a_switch_races_with_a_submit(Fault::NoWakeOnChange, true, 3);
}

#[test]
#[should_panic(expected = "a write waits although")]
fn a_bell_answered_late_would_be_found() {
    two_ends_race_with_two_submits(Fault::AnswersLate);
}
