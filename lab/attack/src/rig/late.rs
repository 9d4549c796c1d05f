// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Late writes: a device is removed by force while its disk holds writes of it, and another device
//! is made over that disk. What the first one has sent must not land on what the second one has
//! made durable, so the second one is refused until it can't.

use super::{Rig, verbs::WELL};
use crate::client::Client;
use crate::daemon::Ended;
use crate::pattern::{SECTOR, identify};
use crate::scenario::BELOW;
use crate::{Result, clock, pause_ms, spawn};

/// Milliseconds for which the second device is tried while the writes are held, at most.
const TRIED_MS: u64 = 1500;

impl Rig {
    /// A round with one removal by force. Its disks are blank afterwards.
    pub(super) fn late_round(&mut self, tables: &[&str]) -> Result<()> {
        let second = *self.rng.pick(tables);
        let open = self.rng.chance(0.5);
        self.act = format!("{second}, clients are {}", if open { "there" } else { "gone" });
        let crowd = self.crowd()?;
        pause_ms(50 + self.rng.below(300));
        self.disks[0].hold_changes();
        let place = self.place.clone();
        let drain = spawn(move || place.verb(&["drain", "dev"]));
        let give_up = clock() + WELL;
        while self.disks[0].held() == 0 && !drain.is_finished() && clock() < give_up {
            pause_ms(5);
        }
        let crowd = if open {
            Some(crowd)
        } else {
            self.none_of(&crowd.cut_off()?)?;
            None
        };
        self.remove_by_force("dev")?;
        if self.scenario.below.is_some() {
            self.remove_by_force(BELOW)?;
        }
        if let Some(crowd) = crowd {
            self.none_of(&crowd.cut_off()?)?;
        }
        self.disks[0].hold_no_more();
        // From here on what counts is what the second device has made durable.
        self.judge().begin_anew();
        let table = self.with_disks(second);
        let tried = clock() + self.rng.below(TRIED_MS) as f64 / 1000.0;
        let mut made = false;
        while !made && clock() < tried {
            made = self.ask(&["create", "late", "--table", &table])? == Ended::Code(0);
            pause_ms(50);
        }
        if !made {
            self.figures.refused += 1;
            self.disks[0].let_go();
            self.create("late", &table, WELL)?;
        }
        let client = Client::connect(&self.place.socket(), "late", &self.judge);
        let mut client = client.map_err(|e| format!("connecting: {e}"))?;
        client.write_all(&self.scenario.load)?;
        if self.ask(&["flush", "late"])? != Ended::Code(0) {
            return Err(format!("`flush late` fails on sound disks\n{}", self.place.log_tail()));
        }
        self.disks[0].let_go();
        let give_up = clock() + WELL;
        while self.disks[0].held() > 0 && clock() < give_up {
            pause_ms(5);
        }
        drain.join().map_err(|_| "a verb has panicked")??;
        self.judge_disk();
        client.read_all(&self.scenario.load)?;
        drop(client);
        self.renew()
    }

    /// The first disk alone has all that was flushed.
    fn judge_disk(&mut self) {
        let load = self.scenario.load;
        let mut image = vec![0; load.count as usize * SECTOR];
        self.disks[0].media().read(load.first, &mut image);
        let sectors = image.chunks_exact(SECTOR).zip(load.first..);
        let contents: Vec<_> = sectors.map(|(data, at)| identify(at, data)).collect();
        let mut judge = self.judge();
        let begun = judge.read_begins();
        judge.read_ends(begun, load.first, &contents);
    }

    /// Kills the daemon, and begins with blank disks.
    fn renew(&mut self) -> Result<()> {
        self.crash(false)?;
        self.place.forget_memory();
        self.disks.iter().for_each(|d| d.blank());
        self.judge().begin_anew();
        Ok(())
    }
}
