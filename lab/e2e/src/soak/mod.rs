// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Upgrades and kills of a daemon at random moments, under clients that verify every byte.
//!
//! ```text
//!   upgrades   fio ──NBD──▶ wc                      the connections stay
//!              fio ──NBD──▶ qemu ──NBD──▶ ordered
//!              probe ─NBD─▶ wc                      the longest read it sees is the pause
//!              flush, drain, resize at the same time
//!   kills      fio ──NBD──▶ qemu ──NBD──▶ wc, ordered: qemu connects again, fio sees no error
//!              also of either process of an upgrade that is under way
//! ```
//!
//! A client that gets an error, or reads anything but what it wrote, ends the run. At the end the
//! origins have to be what the devices were, byte for byte.
mod clients;
mod site;

use std::path::Path;
use std::time::Duration;

use self::clients::{Clients, Probe};
use self::site::Site;
use crate::process::Job;
use crate::stamp::Random;
use crate::{Result, clock, pause};

/// Longest wait for a verb that runs beside an upgrade.
const VERB: Duration = Duration::from_secs(300);

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Upgrades of the first part.
    pub upgrades: u32,
    /// Kills of the second part.
    pub kills: u32,
    /// Draws the moments.
    pub seed: u64,
    /// Size of the cache device of `wc`.
    pub cache_bytes: u64,
    /// The same of `ordered`.
    pub ordered_bytes: u64,
    /// What each fio writes in a round.
    pub area_bytes: u64,
    /// Bytes that are dirty in the cache `wc` before the first upgrade, and stay so.
    pub dirty_bytes: u64,
}

/// What was done and seen.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the stop of the first client to COMMIT, of each upgrade in ms: what the daemon reports.
    pub pauses_ms: Vec<f64>,
    /// The longest read of a client with one request at a time beside each upgrade, in ms.
    pub longest_reads_ms: Vec<f64>,
    /// Verbs that ran beside an upgrade: flush, drain, resize.
    pub verbs: [u32; 3],
    /// Kills of a daemon that served.
    pub kills: u32,
    /// Kills of the daemon while it handed over, and of its successor.
    pub kills_in_upgrade: [u32; 2],
    /// Of these, how often a daemon went on without a start.
    pub went_on: u32,
    /// Time from a start to `ready` after each kill, in ms.
    pub starts_ms: Vec<f64>,
    /// Rounds of fio, all verified, and its writes and reads.
    pub rounds: u64,
    /// Writes that were verified.
    pub writes: u64,
    /// Reads that verified.
    pub reads: u64,
}

/// Does all of `plan` with `program` in the empty folder `dir`; `progress` gets lines to show.
///
/// # Errors
/// The first client that failed, or the byte that is wrong.
pub fn run(program: &Path, dir: &Path, plan: Plan, progress: &dyn Fn(&str)) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut site = Site::start(program, dir, plan)?;
    let mut random = Random::new(plan.seed);
    if plan.dirty_bytes > 0 {
        let dirty = site.fill(plan.dirty_bytes)?;
        progress(&format!("{dirty} blocks are dirty before the first upgrade"));
    }
    if plan.upgrades > 0 {
        upgrade_all(&mut site, plan, &mut random, &mut outcome, progress)?;
    }
    if plan.kills > 0 {
        kill_all(&mut site, plan, &mut random, &mut outcome, progress)?;
    }
    site.compare()?;
    Ok(outcome)
}

fn upgrade_all(
    site: &mut Site,
    plan: Plan,
    random: &mut Random,
    outcome: &mut Outcome,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let [direct, behind] = [site.uri("wc"), site.qemu("ordered")?];
    let clients = Clients::start(site.dir(), plan.area_bytes, &[&direct, &behind], plan.seed);
    let mut probe = Probe::start(site.connect("wc")?);
    let mut shown = clock();
    for nth in 1..=plan.upgrades {
        pause(Duration::from_millis(random.below(200)));
        clients.check()?;
        let verb = start_verb(site, random.below(12))?;
        let before = site.pid()?;
        probe.begin();
        let pause_ms = site.upgrade()?;
        let longest = probe.end()?;
        if let Some((kind, job)) = verb {
            job.wait(VERB)?.ok().map_err(|e| format!("beside upgrade {nth}: {e}"))?;
            outcome.verbs[kind] += 1;
        }
        if site.pid()? == before {
            return Err(format!("upgrade {nth}: process {before} serves as before"));
        }
        outcome.pauses_ms.push(pause_ms);
        outcome.longest_reads_ms.push(longest);
        if clock() - shown > 2.0 || nth == plan.upgrades {
            progress(&format!("{nth} of {} upgrades", plan.upgrades));
            shown = clock();
        }
    }
    drop(probe);
    clients.finish(outcome)
}

/// Begins a verb, one time in four.
fn start_verb(site: &Site, drawn: u64) -> Result<Option<(usize, Job)>> {
    let (kind, words) = match drawn {
        0 => (0, ["flush", "wc"]),
        1 => (1, ["drain", "ordered"]),
        2 => {
            site.grow_disk()?;
            (2, ["resize", "disk"])
        }
        _ => return Ok(None),
    };
    Ok(Some((kind, site.start_verb(&words)?)))
}

fn kill_all(
    site: &mut Site,
    plan: Plan,
    random: &mut Random,
    outcome: &mut Outcome,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let uris = [site.qemu("wc")?, site.qemu("ordered")?];
    let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
    let clients = Clients::start(site.dir(), plan.area_bytes, &uris, plan.seed + 1);
    let mut shown = clock();
    for nth in 1..=plan.kills {
        pause(Duration::from_millis(random.below(400)));
        clients.check()?;
        let started = match random.below(4) {
            0 => {
                let of_successor = random.below(2) == 1;
                outcome.kills_in_upgrade[usize::from(of_successor)] += 1;
                let time = Duration::from_micros(random.below(120_000));
                site.kill_in_upgrade(of_successor, time)?
            }
            _ => {
                outcome.kills += 1;
                Some(site.kill()?)
            }
        };
        match started {
            Some(ms) => outcome.starts_ms.push(ms),
            None => outcome.went_on += 1,
        }
        if clock() - shown > 2.0 || nth == plan.kills {
            progress(&format!("{nth} of {} kills", plan.kills));
            shown = clock();
        }
    }
    clients.finish(outcome)
}
