// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Swaps: other tables are loaded and the first one again, while a disk loses what was not flushed.
//! Each opener that was there is told of the loss by its next FLUSH, once.

use std::time::Duration;

use super::Rig;
use crate::client::Client;
use crate::crowd::CLIENTS;
use crate::daemon::Ended;
use crate::history::Outcome;
use crate::scenario::UPGRADE;
use crate::{Result, spawn};

impl Rig {
    /// A round with one or two swaps away from the table and back.
    pub(super) fn swap_round(&mut self, tables: &[&str]) -> Result<()> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let client = Client::connect(&self.place.socket(), "dev", &self.judge);
            clients.push(client.map_err(|e| format!("connecting: {e}"))?);
        }
        let mut busy = Vec::new();
        for mut client in clients {
            let (load, mut rng, ms) = (self.scenario.load, self.rng.fork(), self.rng.below(200));
            // Who has changed nothing has lost nothing, and is not told.
            let work = move || {
                client.write(&load)?;
                client.burst(&load, ms, &mut rng).map(|()| client)
            };
            busy.push(spawn(work));
        }
        let mut clients = Vec::new();
        for client in busy {
            let client = client.join().map_err(|_| "a client has panicked")?;
            clients.push(client.map_err(|e| format!("a client: {e}"))?);
        }
        // Nothing is in flight: what is lost from here on was acknowledged.
        let lost = self.disks[0].figures().lost;
        let (moment, swaps) = (self.rng.below(4), 1 + self.rng.below(2));
        self.act = format!("a loss at moment {moment}:");
        self.lose_if(moment == 0)?;
        for _ in 0..swaps {
            let other = *self.rng.pick(tables);
            self.act += &format!(" {other},");
            if other == UPGRADE {
                let daemon = self.daemon.as_mut().ok_or("no daemon to upgrade")?;
                let ended = daemon.upgrade("30s")?;
                self.has_answered(&["upgrade"], ended)?;
                continue;
            }
            let table = self.with_disks(other);
            self.swap(&table)?;
            self.lose_if(moment == 1)?;
            let table = self.table.clone();
            self.swap(&table)?;
        }
        self.lose_if(moment == 2)?;
        let has_lost = self.disks[0].figures().lost > lost;
        let mut answers = Vec::new();
        for client in &mut clients {
            let mut flush = || client.flush().map_err(|e| format!("a client: {e}"));
            answers.push([flush()?, flush()?]);
        }
        if let Some(wrong) = untold(has_lost, &answers) {
            return Err(format!("{wrong}\n{}", self.place.log_tail()));
        }
        drop(clients);
        let cut = self.rng.chance(0.7);
        self.crash(cut)
    }

    fn swap(&mut self, table: &str) -> Result<()> {
        self.ask(&["suspend", "dev"])?; // which may tell the operator of a loss
        if self.ask(&["load", "dev", "--table", table])? != Ended::Code(0) {
            return Err(format!("`load` fails on sound disks\n{}", self.place.log_tail()));
        }
        self.resume_by_hand()
    }

    /// The first disk is restarted, without what was not flushed.
    fn lose_if(&mut self, loses: bool) -> Result<()> {
        if loses { self.disks[0].disconnect(Duration::ZERO, true) } else { Ok(()) }
    }
}

/// Who was not told of a loss by the first of two FLUSHes, or was told twice.
fn untold(has_lost: bool, answers: &[[Outcome; 2]]) -> Option<String> {
    answers.iter().zip(0..).find_map(|([first, second], opener)| {
        if has_lost && *first == Outcome::Done {
            let of = answers.len();
            return Some(format!(
                "data are lost, and FLUSH of opener {opener} of {of} does not say so"
            ));
        }
        let twice = *second == Outcome::Failed;
        twice.then(|| format!("the second FLUSH of opener {opener} fails on sound disks"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opener_is_told_once() {
        const TOLD: [Outcome; 2] = [Outcome::Failed, Outcome::Done];
        const UNTOLD: [Outcome; 2] = [Outcome::Done, Outcome::Done];
        const TWICE: [Outcome; 2] = [Outcome::Failed, Outcome::Failed];
        assert_eq!(untold(true, &[TOLD, TOLD]), None);
        assert_eq!(untold(false, &[TOLD, UNTOLD]), None, "it may have been lost");
        assert!(untold(true, &[TOLD, UNTOLD]).is_some());
        assert!(untold(true, &[UNTOLD, UNTOLD]).is_some());
        assert!(untold(true, &[TOLD, TWICE]).is_some());
        assert!(untold(false, &[TWICE]).is_some());
    }
}
