// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rounds of one scenario until the time is up or a violation is found, and their figures.

use std::fmt;
use std::path::Path;

use crate::rig::{Options, Rig};
use crate::rng::mix;
use crate::scenario::Scenario;
use crate::{Result, clock};

/// Figures of a campaign, added up.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the line that is printed names them")]
pub struct Total {
    pub rounds: u64,
    pub kills: u64,
    pub kills_in_recovery: u64,
    pub cuts: u64,
    pub orderly: u64,
    pub hung_ends: u64,
    pub disconnected: u64,
    pub gave_up: u64,
    pub orders: u64,
    pub orders_failed: u64,
    pub unread: u64,
    pub refused: u64,
    pub written: u64,
    pub judged: u64,
    pub origins: u64,
    pub flushes: u64,
    pub flushes_failed: u64,
    pub at_risk: u64,
    pub lost: u64,
    pub violations: u64,
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds: {} kills ({} in recovery), {} power cuts, {} orderly ends, {} of hung \
             daemons, {} lost connections, {} times a disk was given up; {} sectors written, {} \
             read and judged, {} origins judged alone; {} FLUSHes, {} failed; {} \
             unflushed sectors at risk, {} lost; {} orders, {} failed; {} reads failed \
             after a trouble, {} devices refused above late writes; {} violations",
            self.rounds,
            self.kills,
            self.kills_in_recovery,
            self.cuts,
            self.orderly,
            self.hung_ends,
            self.disconnected,
            self.gave_up,
            self.written,
            self.judged,
            self.origins,
            self.flushes,
            self.flushes_failed,
            self.at_risk,
            self.lost,
            self.orders,
            self.orders_failed,
            self.unread,
            self.refused,
            self.violations,
        )
    }
}

impl Total {
    /// Adds another.
    pub fn merge(&mut self, other: &Total) {
        self.rounds += other.rounds;
        self.kills += other.kills;
        self.kills_in_recovery += other.kills_in_recovery;
        self.cuts += other.cuts;
        self.orderly += other.orderly;
        self.hung_ends += other.hung_ends;
        self.disconnected += other.disconnected;
        self.gave_up += other.gave_up;
        self.orders += other.orders;
        self.orders_failed += other.orders_failed;
        self.unread += other.unread;
        self.refused += other.refused;
        self.written += other.written;
        self.judged += other.judged;
        self.origins += other.origins;
        self.flushes += other.flushes;
        self.flushes_failed += other.flushes_failed;
        self.at_risk += other.at_risk;
        self.lost += other.lost;
        self.violations += other.violations;
    }

    /// Adds what a rig did.
    pub fn add(&mut self, rig: &Rig) {
        let (did, judged) = (rig.figures, rig.judge().counts);
        self.rounds += did.rounds;
        self.kills += did.kills;
        self.kills_in_recovery += did.kills_in_recovery;
        self.cuts += did.cuts;
        self.orderly += did.orderly;
        self.hung_ends += did.hung_ends;
        self.gave_up += did.gave_up;
        self.orders += did.orders;
        self.orders_failed += did.orders_failed;
        self.unread += did.unread;
        self.refused += did.refused;
        self.written += judged.written;
        self.judged += judged.judged;
        self.origins += judged.origins;
        self.flushes += judged.flushes;
        self.flushes_failed += judged.flushes_failed;
        self.violations += judged.violations;
        for disk in rig.disks() {
            self.at_risk += disk.figures().at_risk;
            self.lost += disk.figures().lost;
            self.disconnected += disk.figures().disconnected;
        }
    }
}

/// Rounds of one scenario, from a seed, for some seconds or until something is found.
pub fn attack(
    scenario: &Scenario,
    program: &Path,
    seed: u64,
    seconds: f64,
    options: Options,
    total: &mut Total,
) -> Result<()> {
    if scenario.files && !Path::new("/dev/fuse").exists() {
        println!("{}: skipped: needs /dev/fuse", scenario.name);
        return Ok(());
    }
    let give_up = clock() + seconds;
    let mut rig = Rig::new(scenario, program, seed, options)?;
    let mut done = Ok(());
    while done.is_ok() && clock() < give_up {
        done = rig.round();
    }
    total.add(&rig);
    let rounds = rig.figures.rounds;
    done.map_err(|what| format!("{}, seed {seed}, round {rounds}: {what}", scenario.name))
}

/// A seed that nobody knows before.
pub fn fresh_seed() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    mix(now.tv_sec as u64 ^ (now.tv_nsec as u64) << 20 ^ u64::from(std::process::id()) << 50)
        % 1_000_000_000
}
