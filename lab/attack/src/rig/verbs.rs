// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One verb of the operator while clients work and a disk is in trouble: what it answers, how long
//! it takes, and what is there afterwards.

use super::{BRIEF, BRIEF_SLACK, Deceit, Rig};
use crate::client::Client;
use crate::crowd::Crowd;
use crate::daemon::Ended;
use crate::disk_faults::Ongoing;
use crate::history::Outcome;
use crate::scenario::{Outage, Verb};
use crate::{Result, clock, pause_ms};

/// Seconds that `remove --force` takes at most: no disk is waited for, only a loaded machine.
const FORCED: f64 = 15.0;
/// Seconds until a device whose disks are well again must have answered, be gone, or be made anew.
pub(super) const WELL: f64 = 20.0;
/// Milliseconds that a trouble lasts at most, unless it outlasts the verb.
const TROUBLE_MS: u64 = 1500;

/// What there is after a verb.
enum Left {
    /// The device, and its clients.
    Device(Crowd),
    /// The daemon without the device.
    Daemon,
    /// The daemon, and a device that takes nothing and has to go.
    Ruin,
    /// No daemon; the disks have not been cut.
    Nothing,
}

impl Rig {
    /// A round with one verb.
    pub(super) fn verb_round(&mut self, verbs: &[Verb], outages: &[Outage]) -> Result<()> {
        let only = self.options.orders.unwrap_or_default();
        let verbs = verbs.iter().filter(|v| format!("{v:?}").contains(only));
        let verbs: Vec<_> = verbs.copied().collect();
        if verbs.is_empty() {
            return Err(format!("--orders: no verb of this scenario holds `{only}`"));
        }
        let verb = *self.rng.pick(&verbs);
        let some = if self.options.no_faults { &[Outage::None] } else { outages };
        let trouble = *self.rng.pick(some);
        let number = self.rng.below(self.disks.len().min(2) as u64) as usize;
        let disk = self.disks[number].clone();
        self.forgets = trouble == Outage::Away;
        self.act = format!("{verb:?}, disk {number}: {trouble:?}");
        let crowd = self.crowd()?;
        pause_ms(self.rng.below(300));
        // Verbs that wait for no disk must not see the end of its trouble.
        let lasts = (!verb.waits_for_none()).then(|| self.rng.below(TROUBLE_MS));
        let ongoing = Ongoing::begin(&disk, trouble, lasts);
        pause_ms(*self.rng.pick(&[0, 30, 300, 700]));
        let left = self.give(verb, crowd);
        ongoing.end()?;
        self.after(verb, left?)
    }

    pub(super) fn crowd(&mut self) -> Result<Crowd> {
        Crowd::begin(&self.place, &self.judge, &self.scenario, &mut self.rng)
    }

    pub(super) fn ask(&mut self, words: &[&str]) -> Result<Ended> {
        let ended = self.place.verb(words)?;
        self.has_answered(words, ended)
    }

    fn ask_at_once(&mut self, words: &[&str]) -> Result<Ended> {
        let ended = self.place.verb_within(words, FORCED)?;
        self.has_answered(words, ended)
    }

    /// A verb ends in time, and neither by a signal nor by what it takes for a wrong use.
    pub(super) fn has_answered(&mut self, words: &[&str], ended: Ended) -> Result<Ended> {
        self.figures.orders += 1;
        self.figures.orders_failed += u64::from(ended != Ended::Code(0));
        if let Ended::Code(0 | 1 | 3 | 4) = ended {
            return Ok(ended);
        }
        let (words, log) = (words.join(" "), self.place.log_tail());
        Err(format!("`{words}` ended so: {ended:?}\n{log}"))
    }

    fn give(&mut self, verb: Verb, crowd: Crowd) -> Result<Left> {
        match verb {
            Verb::Remove => {
                self.none_of(&crowd.cut_off()?)?;
                for _ in 0..50 {
                    match self.ask(&["remove", "dev"])? {
                        Ended::Code(0) => return self.is_removed(),
                        Ended::Code(4) => pause_ms(20), // connections are being closed
                        Ended::Code(_) | Ended::Late => break,
                    }
                }
                self.kill()
            }
            Verb::RemoveDeferred => {
                let asked = self.ask(&["remove", "--deferred", "dev"])?;
                self.none_of(&crowd.cut_off()?)?;
                // It goes when the last connection has closed, or stays with what it holds.
                if asked == Ended::Code(0) && self.is_gone_within(2.0)? {
                    return self.is_removed();
                }
                self.kill()
            }
            Verb::RemoveForce => {
                self.remove_by_force("dev")?;
                self.none_of(&crowd.cut_off()?)?;
                Ok(Left::Ruin)
            }
            Verb::Stop | Verb::Terminate => {
                let ended = self.end_daemon(verb);
                let faults = crowd.cut_off()?;
                let ended = ended?;
                self.none_of(&faults)?;
                self.has_ended(ended)
            }
            Verb::Reload if self.options.deceit == Some(Deceit::Forces) => {
                self.none_of(&crowd.cut_off()?)?;
                if let Some(daemon) = self.daemon.take() {
                    daemon.kill();
                }
                self.place.forget_memory();
                self.start()?;
                Ok(Left::Device(self.crowd()?))
            }
            Verb::Reload => {
                let table = self.table.clone();
                self.ask(&["load", "dev", "--table", &table])?;
                self.resume_or_token()?;
                Ok(Left::Device(crowd))
            }
            Verb::Flush => {
                let begun = self.judge().flush_begins();
                if self.ask(&["flush", "dev"])? == Ended::Code(0) {
                    self.judge().flush_ends(0, begun, Outcome::Done);
                }
                Ok(Left::Device(crowd))
            }
            Verb::Drain | Verb::Resize => {
                let word = if verb == Verb::Drain { "drain" } else { "resize" };
                self.ask(&[word, "dev"])?;
                Ok(Left::Device(crowd))
            }
            Verb::Upgrade => {
                let timeout = *self.rng.pick(&["100ms", "1s", "4s"]);
                let daemon = self.daemon.as_mut().ok_or("no daemon to upgrade")?;
                let ended = daemon.upgrade(timeout)?;
                self.has_answered(&["upgrade"], ended)?;
                if self.options.deceit == Some(Deceit::Suspends) {
                    self.ask(&["suspend", "dev"])?;
                }
                Ok(Left::Device(crowd))
            }
            Verb::Uncache => {
                if self.ask(&["uncache", "dev"])? == Ended::Code(0) {
                    self.disks[1].blank(); // it holds nothing then and is free
                }
                Ok(Left::Device(crowd))
            }
            Verb::Replace => {
                let new = self.words[2].clone();
                if self.ask(&["replace-cache", "dev", &new])? == Ended::Code(0) {
                    self.disks.swap(1, 2);
                    self.words.swap(1, 2);
                    self.name_disks();
                    self.configure()?;
                }
                self.disks[2].blank(); // which is in no table now
                Ok(Left::Device(crowd))
            }
        }
    }

    /// The disks are well again.
    fn after(&mut self, verb: Verb, left: Left) -> Result<()> {
        match left {
            Left::Device(crowd) => {
                if verb == Verb::Reload {
                    self.resume_by_hand()?; // who suspends it resumes it
                }
                self.answers()?;
                let faults = crowd.stop(false)?;
                self.none_of(&faults)?;
                if let Some(code) = self.daemon.as_mut().and_then(|d| d.has_ended()) {
                    let log = self.place.log_tail();
                    return Err(format!("the daemon died, with {code}\n{log}"));
                }
                match self.rng.below(4) {
                    0 => {
                        let ended = self.end_daemon(Verb::Terminate)?;
                        self.has_ended(ended)?;
                        self.cut();
                        Ok(())
                    }
                    cut => self.crash(cut > 1),
                }
            }
            Left::Daemon => self.make_anew(),
            Left::Ruin => {
                self.remove_ruin("dev")?;
                self.judge().crash(false);
                self.make_anew()
            }
            Left::Nothing => {
                if self.rng.chance(0.5) {
                    self.cut();
                }
                Ok(())
            }
        }
    }

    /// Fails for the first fault of a client.
    pub(super) fn none_of(&self, faults: &[String]) -> Result<()> {
        match faults.first() {
            Some(fault) => Err(format!("a client: {fault}\n{}", self.place.log_tail())),
            None => Ok(()),
        }
    }

    fn kill(&mut self) -> Result<Left> {
        self.crash(false)?;
        Ok(Left::Nothing)
    }

    /// Removes a device by force, which waits for no disk.
    pub(super) fn remove_by_force(&mut self, name: &str) -> Result<()> {
        let (mut force, give_up) = ("--force".to_owned(), clock() + FORCED);
        loop {
            let ended = self.ask_at_once(&["remove", &force, name])?;
            let token = self.place.token().filter(|_| ended != Ended::Code(0));
            match (ended, token) {
                (Ended::Code(0 | 4), None) => return Ok(()),
                // Of what the device holds at the moment, which changes while clients write.
                (_, Some(token)) if clock() < give_up => force = format!("--force={token}"),
                _ => {
                    let log = self.place.log_tail();
                    return Err(format!("`remove {force} {name}` ended so: {ended:?}\n{log}"));
                }
            }
        }
    }

    /// What was removed by force goes once nobody has it open and its disks are well.
    pub(super) fn remove_ruin(&mut self, name: &str) -> Result<()> {
        let give_up = clock() + WELL;
        loop {
            if let Ended::Code(0 | 3) = self.ask(&["remove", name])? {
                return Ok(());
            }
            if clock() > give_up {
                let log = self.place.log_tail();
                return Err(format!("{name}: removed by force, and still there\n{log}"));
            }
            pause_ms(50);
        }
    }

    /// Ends the daemon in order, in a bounded time whatever its disks do.
    fn end_daemon(&mut self, verb: Verb) -> Result<Ended> {
        let daemon = self.daemon.take().ok_or("no daemon to end")?;
        self.figures.orderly += 1;
        let limit = BRIEF + BRIEF_SLACK;
        let ended = if self.options.deceit == Some(Deceit::Drops) {
            daemon.kill();
            self.place.forget_memory();
            Ended::Code(0)
        } else if verb == Verb::Stop {
            // It says that the daemon has ended; how, this one's own exit code says.
            self.ask_at_once(&["stop"])?;
            daemon.wait_within(limit)
        } else {
            daemon.terminate_within(limit)
        };
        match ended {
            Ended::Code(0 | 1) => Ok(ended),
            Ended::Code(_) | Ended::Late => {
                let log = self.place.log_tail();
                Err(format!("{verb:?}: it ended so: {ended:?}\n{log}"))
            }
        }
    }

    /// Exit code 0 says that all is on the disks, whatever these did.
    fn has_ended(&mut self, ended: Ended) -> Result<Left> {
        self.settle()?;
        if ended == Ended::Code(0) && self.scenario.end_is_flush {
            self.judge().orderly_end();
        } else {
            self.judge().crash(false);
        }
        Ok(Left::Nothing)
    }

    /// Resumes. Without a token nothing is lost by that, unless a disk has ended a connection: then
    /// a FLUSH of the cache device may have failed, and each client is told.
    fn resume_or_token(&mut self) -> Result<Ended> {
        let forgets = self.forgets;
        if forgets {
            self.judge().loading_begins();
        }
        let ended = self.ask(&["resume", "dev"])?;
        if forgets {
            self.judge().loading_ends();
            self.judge().given_up();
        }
        let token = self.place.token_for_memory().filter(|_| ended != Ended::Code(0));
        let Some(token) = token else { return Ok(ended) };
        self.judge().loading_begins();
        let ended = self.ask(&["resume", "dev", "--force", &token]);
        let mut judge = self.judge();
        judge.loading_ends();
        judge.given_up();
        drop(judge);
        ended
    }

    pub(super) fn resume_by_hand(&mut self) -> Result<()> {
        let give_up = clock() + WELL;
        while self.resume_or_token()? != Ended::Code(0) {
            if clock() > give_up {
                let log = self.place.log_tail();
                return Err(format!("the device stays suspended on sound disks\n{log}"));
            }
            pause_ms(50);
        }
        Ok(())
    }

    /// All that was acknowledged is there afterwards.
    fn is_removed(&mut self) -> Result<Left> {
        self.figures.orderly += 1;
        if self.scenario.end_is_flush {
            self.judge().orderly_end();
        } else {
            self.judge().crash(false);
        }
        Ok(Left::Daemon)
    }

    fn is_gone_within(&mut self, seconds: f64) -> Result<bool> {
        let give_up = clock() + seconds;
        loop {
            if self.place.verb(&["info", "dev"])? == Ended::Code(3) {
                return Ok(true);
            }
            if clock() > give_up {
                return Ok(false);
            }
            pause_ms(30);
        }
    }

    /// Creates the device again. It may be refused for as long as requests of the one before may
    /// still do something; the disks are well.
    fn make_anew(&mut self) -> Result<()> {
        let table = self.table.clone();
        self.create("dev", &table, WELL)
    }

    /// Creates a device within so many seconds.
    pub(super) fn create(&mut self, name: &str, table: &str, seconds: f64) -> Result<()> {
        let give_up = clock() + seconds;
        loop {
            let ended = self.ask(&["create", name, "--table", table])?;
            if ended == Ended::Code(0) {
                return Ok(());
            }
            if clock() > give_up {
                let log = self.place.log_tail();
                return Err(format!("`create {name}` is refused for {seconds} s\n{log}"));
            }
            pause_ms(50);
        }
    }

    /// A connection that comes now gets its answers: nothing is suspended for ever.
    fn answers(&mut self) -> Result<()> {
        let client = Client::connect_within(&self.place.socket(), "dev", &self.judge, WELL);
        let mut client =
            client.map_err(|e| format!("connecting: {e}\n{}", self.place.log_tail()))?;
        let read = client.read_all(&self.scenario.load);
        let failed = read.map_err(|e| {
            format!("no answer on sound disks for {WELL} s: {e}\n{}", self.place.log_tail())
        })?;
        self.figures.unread += failed;
        Ok(())
    }
}
