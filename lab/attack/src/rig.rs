// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device under attack: its disks, its daemon, and round after round of requests, orders and
//! crashes.
//!
//! A round starts the daemon (and sometimes kills it during recovery), reads the whole device, runs
//! clients and the operator, and ends by `kill -9`, mostly with a power cut of the disks, by
//! SIGTERM, or by a removal of the device. Scenarios with an [`Act`] have other rounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::client::{Client, Load};
use crate::crowd::Crowd;
use crate::daemon::{Daemon, Ended, Place};
use crate::disk::Disk;
use crate::disk_faults;
use crate::judge::Judge;
use crate::media::Lie;
use crate::operator::{self, order};
use crate::origin::Origin;
use crate::pattern::{SECTOR, identify};
use crate::report;
use crate::rng::Rng;
use crate::scenario::{Act, BELOW, Scenario};
use crate::{Result, clock, lock, pause_ms, spawn};

mod late;
mod swaps;
mod verbs;

/// Seconds of an orderly end that is asked of a daemon which will hang then; and what is added on
/// a machine under load.
const BRIEF: f64 = 2.0;
const BRIEF_SLACK: f64 = 10.0;
/// Milliseconds between two looks at the origin alone.
const LOOK_MS: u64 = 60;
/// Tries to resume a device whose disks are sound again.
const RESUMES_MAX: u32 = 40;

/// What was done, beside what the judge counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Rounds.
    pub rounds: u64,
    /// `kill -9`, those during recovery included, and how many of those there were.
    pub kills: u64,
    /// See `kills`.
    pub kills_in_recovery: u64,
    /// Power cuts of disks.
    pub cuts: u64,
    /// Orderly ends and removals.
    pub orderly: u64,
    /// Of these, SIGTERMs while clients and disks hang.
    pub hung_ends: u64,
    /// Orderly ends of programs that had given up a disk which did not answer: it must have told
    /// its clients, and need not exit with 0.
    pub gave_up: u64,
    /// Orders of the operator, and those that failed.
    pub orders: u64,
    /// See `orders`.
    pub orders_failed: u64,
    /// Reads that failed on sound disks after a verb met a trouble: what a cache alone held.
    pub unread: u64,
    /// Devices that were refused while writes of another one might still land.
    pub refused: u64,
}

/// What the judge is not told of, as a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deceit {
    /// An orderly end is a `kill -9` and the loss of all memory, and says exit code 0.
    Drops,
    /// A table that is loaded again begins from what survives the loss of all memory.
    Forces,
    /// The device is suspended after an upgrade.
    Suspends,
}

/// How a rig differs from what its scenario says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The disk of this number lies.
    pub lie: Option<(usize, Lie)>,
    /// Every round ends with a power cut.
    pub only_cuts: bool,
    /// The operator gives only orders that hold this text.
    pub orders: Option<&'static str>,
    /// The origin alone is judged although nothing is promised of it, as a control.
    pub origin_alone: bool,
    /// Disks fail in no way, but for being lossy.
    pub no_faults: bool,
    /// The judge is not told of this.
    pub deceit: Option<Deceit>,
    /// Keep the folder.
    pub keep: bool,
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Kill,
    KillAndCut,
    Terminate,
    TerminateAndCut,
    /// SIGTERM while clients and disks hang, and perhaps another one.
    TerminateHung,
    Remove,
}

impl Ending {
    /// The daemon ends while clients are busy.
    fn is_sudden(self) -> bool {
        matches!(self, Ending::Kill | Ending::KillAndCut | Ending::TerminateHung)
    }
}

/// See the module.
pub struct Rig {
    scenario: Scenario,
    options: Options,
    table: String,
    place: Place,
    disks: Vec<Arc<Disk>>,
    /// The words for them in tables.
    words: Vec<String>,
    /// The daemon that runs has to end within a brief time, and will hang then.
    brief: bool,
    judge: Arc<Mutex<Judge>>,
    rng: Rng,
    daemon: Option<Daemon>,
    /// A table that is loaded again may begin from what is durable, and tells clients so.
    forgets: bool,
    /// The last act, in words.
    act: String,
    /// What was done.
    pub figures: Figures,
    dir: Option<TempDir>,
}

impl Rig {
    /// A new device of this scenario, on blank disks.
    pub fn new(
        scenario: &Scenario,
        program: &std::path::Path,
        seed: u64,
        options: Options,
    ) -> Result<Rig> {
        let mut rng = Rng::new(seed);
        let dir = tempfile::Builder::new().prefix("attack-").tempdir();
        let dir = dir.map_err(|e| format!("a folder: {e}"))?;
        let mut scenario = *scenario;
        if options.no_faults {
            scenario.faults = Default::default();
        }
        scenario.origin_alone |= options.origin_alone;
        let Scenario { load, rules, .. } = scenario;
        let mut judge = Judge::new(rules, load.first, load.count);
        judge.origin = scenario.origin_alone.then(|| Origin::new(load.first, load.count));
        let judge = Arc::new(Mutex::new(judge));
        let (mut disks, mut words) = (Vec::new(), Vec::new());
        for (number, bytes) in (0..).zip(scenario.disks) {
            let lie = options.lie.filter(|(n, _)| *n == number).map_or(Lie::None, |(_, lie)| lie);
            let told = Arc::clone(&judge);
            let on_loss = move || lock(&told).loss();
            let socket = dir.path().join(format!("disk{number}"));
            let disk = Disk::serve(&socket, *bytes, lie, rng.fork(), on_loss)?;
            let loses = scenario.faults.get(number).is_some_and(|f| f.connections);
            words.push(disk.word(match scenario.act {
                Some(Act::LateWrites(_)) => "timeout=60s", // what is held is not given up
                _ if loses => "timeout=1s&silence=1s",
                _ => "timeout=5s",
            }));
            disks.push(Arc::new(disk));
        }
        if scenario.files {
            std::fs::create_dir(dir.path().join("mnt")).map_err(|e| format!("mnt: {e}"))?;
        }
        let place = Place { program: program.into(), dir: dir.path().into() };
        let mut rig = Rig {
            scenario,
            options,
            table: String::new(),
            place,
            disks,
            words,
            brief: false,
            judge,
            rng,
            daemon: None,
            forgets: false,
            act: String::new(),
            figures: Figures::default(),
            dir: Some(dir),
        };
        rig.name_disks();
        Ok(rig)
    }

    /// Puts the words for its disks into a table.
    fn with_disks(&self, table: &str) -> String {
        let words = self.words.iter().zip(0..);
        words.fold(table.into(), |text: String, (word, n)| text.replace(&format!("DISK{n}"), word))
    }

    fn name_disks(&mut self) {
        self.table = self.with_disks(self.scenario.table);
    }

    /// The judge.
    pub fn judge(&self) -> std::sync::MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// The disks.
    pub fn disks(&self) -> &[Arc<Disk>] {
        &self.disks
    }

    /// One round; what was found in it, if anything.
    pub fn round(&mut self) -> Result<()> {
        self.figures.rounds += 1;
        let done = self.try_round();
        let act = if self.act.is_empty() { "".into() } else { format!("after {}\n", self.act) };
        let mut found: Vec<String> =
            self.judge().violations.iter().map(report::violation).collect();
        found.extend(self.judge().origin.iter().flat_map(|o| o.found.clone()));
        if found.is_empty() {
            return done.map_err(|what| format!("{act}{what}"));
        }
        let count = self.judge().counts.violations;
        let log = self.place.log_tail();
        let also = done.err().map_or(String::new(), |e| format!("and: {e}\n"));
        Err(format!("{count} violations\n{act}{}{also}the daemon's log\n{log}", found.join("\n")))
    }

    fn try_round(&mut self) -> Result<()> {
        if self.daemon.is_none() {
            self.start()?;
        }
        self.read_all()?;
        if self.judge().counts.violations > 0 {
            return Ok(()); // which are of the round before
        }
        match self.scenario.act {
            None => {}
            Some(Act::Verbs(verbs, outages)) => return self.verb_round(verbs, outages),
            Some(Act::LateWrites(tables)) => return self.late_round(tables),
            Some(Act::Swaps(tables)) => return self.swap_round(tables),
        }
        let (failures, dropped) = (self.failures(), self.dropped());
        let ending = self.ending();
        disk_faults::draw(&self.disks, &self.scenario.faults, &mut self.rng);
        let ended = self.run_clients(ending)?;
        disk_faults::clear(&self.disks);
        let clean = self.failures() == failures;
        match ending {
            Ending::Kill | Ending::KillAndCut => self.crash(ending == Ending::KillAndCut),
            Ending::TerminateHung => self.ended_hung(clean, ended.ok_or("it has not ended")?),
            Ending::Remove => self.remove(clean, dropped),
            Ending::Terminate | Ending::TerminateAndCut => {
                self.terminate(clean, dropped, ending == Ending::TerminateAndCut)
            }
        }
    }

    fn ending(&mut self) -> Ending {
        if self.options.only_cuts {
            return Ending::KillAndCut;
        }
        if self.brief {
            return Ending::TerminateHung;
        }
        match self.rng.below(100) {
            0..15 => Ending::Kill,
            15..80 => Ending::KillAndCut,
            80..87 => Ending::Terminate,
            87..94 => Ending::TerminateAndCut,
            _ => Ending::Remove,
        }
    }

    /// Faults of disks so far.
    fn failures(&self) -> u64 {
        self.disks.iter().map(|d| d.figures().failures()).sum()
    }

    /// Connections that the program has ended without a word so far.
    fn dropped(&self) -> u64 {
        self.disks.iter().map(|d| d.figures().dropped).sum()
    }

    /// Whether the program, which was not killed, has given up a disk since there were so many.
    fn has_given_up(&mut self, dropped: u64) -> bool {
        let has = self.dropped() > dropped;
        self.figures.gave_up += u64::from(has);
        has
    }

    /// Starts the daemon; perhaps it is killed before it is ready, and started again.
    fn start(&mut self) -> Result<()> {
        while self.figures.rounds > 1 && self.rng.chance(0.25) {
            let daemon = Daemon::start(&self.place)?;
            pause_ms(self.rng.below(120));
            self.figures.kills_in_recovery += 1;
            self.daemon = Some(daemon);
            let cut = self.rng.chance(0.7);
            self.crash(cut)?;
        }
        let brief = self.scenario.act.is_some() || self.rng.chance(0.1);
        self.brief = brief && !self.options.only_cuts;
        self.configure()?;
        let mut daemon = Daemon::start(&self.place)?;
        daemon.wait_ready()?;
        self.daemon = Some(daemon);
        Ok(())
    }

    fn configure(&self) -> Result<()> {
        let path = self.place.dir.join("millpond.toml");
        let mut config = format!("cores = {}\n", self.scenario.cores);
        if self.brief {
            config.push_str(&format!("shutdown_timeout = '{BRIEF}s'\n"));
        }
        if self.scenario.files {
            config.push_str("fuse = './mnt'\n");
        }
        let below = self.scenario.below.map(|table| (BELOW, self.with_disks(table)));
        for (name, table) in below.into_iter().chain([("dev", self.table.clone())]) {
            config.push_str(&format!("[[device]]\nname = '{name}'\ntable = '''{table}'''\n"));
        }
        std::fs::write(&path, config).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Judges the origin alone, as it is or as a power cut of now would leave it.
    fn look_at_origin(&self) {
        if !self.scenario.origin_alone {
            return;
        }
        let Load { first, count, .. } = self.scenario.load;
        let image = self.disks[0].media().after_a_cut(first, count);
        let sectors = image.chunks_exact(SECTOR).zip(first..);
        let contents: Vec<_> = sectors.map(|(data, at)| identify(at, data)).collect();
        self.judge().judge_origin(&contents);
    }

    fn read_all(&mut self) -> Result<()> {
        let client = Client::connect(&self.place.socket(), "dev", &self.judge);
        let mut client =
            client.map_err(|e| format!("connecting: {e}\n{}", self.place.log_tail()))?;
        let failed = client.read_all(&self.scenario.load)?;
        if failed > 0 {
            let log = self.place.log_tail();
            return Err(format!("{failed} reads fail though the disks read well\n{log}"));
        }
        Ok(())
    }

    /// Clients and the operator, until the moment at which the round ends.
    fn run_clients(&mut self, ending: Ending) -> Result<Option<Ended>> {
        let stop_orders = Arc::new(AtomicBool::new(false));
        let crowd = Crowd::begin(&self.place, &self.judge, &self.scenario, &mut self.rng)?;
        let operator = {
            let (place, judge, scenario) =
                (self.place.clone(), Arc::clone(&self.judge), self.scenario);
            let (table, rng, stop) =
                (self.table.clone(), self.rng.fork(), Arc::clone(&stop_orders));
            let only = self.options.orders;
            spawn(move || operator::run(&place, &judge, &scenario, only, &table, rng, &stop))
        };
        let losses = disk_faults::disconnect(
            &self.disks,
            &self.scenario.faults,
            &mut self.rng,
            &stop_orders,
        );
        let give_up = clock() + (50 + self.rng.below(900)) as f64 / 1000.0;
        while clock() < give_up {
            self.look_at_origin();
            pause_ms(LOOK_MS.min(((give_up - clock()).max(0.0) * 1000.0) as u64));
        }
        if self.rng.chance(0.2) {
            // The daemon is killed, or goes on, while a disk does not answer.
            self.rng.pick(&self.disks).hang(true);
            pause_ms(self.rng.below(300));
        }
        let died = self.daemon.as_mut().and_then(Daemon::has_ended);
        let killed = ending.is_sudden();
        let mut ended = None;
        if killed && let Some(daemon) = self.daemon.take() {
            if ending == Ending::TerminateHung {
                ended = Some(self.terminate_hung(daemon)?);
            } else {
                daemon.kill();
            }
        }
        self.disks.iter().for_each(|d| d.hang(false));
        stop_orders.store(true, Ordering::SeqCst);
        let orders = operator.join().map_err(|_| "the operator has panicked")?;
        for loss in losses {
            loss.join().map_err(|_| "a disk has panicked")??;
        }
        if !killed {
            self.resume()?;
        }
        let faults = crowd.stop(killed)?;
        if let Some(code) = died {
            return Err(format!("the daemon died, with {code}\n{}", self.place.log_tail()));
        }
        if let Some(fault) = faults.first() {
            return Err(format!("a client: {fault}\n{}", self.place.log_tail()));
        }
        let orders = orders?;
        self.figures.orders += orders.done + orders.failed;
        self.figures.orders_failed += orders.failed;
        Ok(ended)
    }

    /// SIGTERM while one or all disks hang, and a client that takes nothing is there.
    fn terminate_hung(&mut self, daemon: Daemon) -> Result<Ended> {
        let untaken = Client::connect(&self.place.socket(), "dev", &self.judge);
        let untaken = untaken.and_then(|mut client| {
            client.ask_without_end(&self.scenario.load)?;
            Ok(client)
        });
        for disk in &self.disks {
            if self.rng.chance(0.6) {
                disk.hang(true);
            }
        }
        self.figures.hung_ends += 1;
        let twice = self.rng.chance(0.4);
        let ended = if twice {
            daemon.terminate_twice(*self.rng.pick(&[0, 0, 5, 300]))
        } else {
            daemon.terminate_within(BRIEF + BRIEF_SLACK)
        };
        drop(untaken);
        if ended == Ended::Late {
            let times = if twice { "twice" } else { "once" };
            return Err(format!("SIGTERM {times}: it does not end\n{}", self.place.log_tail()));
        }
        Ok(ended)
    }

    /// Exit code 0 says that all is on the disks, whatever hung.
    fn ended_hung(&mut self, clean: bool, ended: Ended) -> Result<()> {
        self.settle()?;
        match ended {
            Ended::Code(0) if clean && self.scenario.end_is_flush => self.judge().orderly_end(),
            Ended::Code(0 | 1 | 143) => self.judge().crash(true),
            Ended::Code(_) | Ended::Late => {
                let log = self.place.log_tail();
                return Err(format!("SIGTERM of a daemon that hangs: {ended:?}\n{log}"));
            }
        }
        self.cut();
        Ok(())
    }

    /// A device that a failing disk left suspended takes requests again.
    fn resume(&self) -> Result<()> {
        disk_faults::clear(&self.disks);
        for _ in 0..RESUMES_MAX {
            if order(&self.place, &self.judge, &self.table, "resume dev")? == Ended::Code(0) {
                return Ok(());
            }
            pause_ms(50);
        }
        Err(format!("the device stays suspended on sound disks\n{}", self.place.log_tail()))
    }

    fn crash(&mut self, cut: bool) -> Result<()> {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
        self.figures.kills += 1;
        self.settle()?;
        self.judge().crash(cut);
        if cut {
            self.cut();
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.disks.iter().try_for_each(|d| d.settle())
    }

    /// The power goes: for all disks, or for any of them.
    fn cut(&mut self) {
        self.look_at_origin();
        let all = self.rng.chance(0.7);
        if all {
            self.place.forget_memory(); // the machine stops with its disks
        }
        for disk in &self.disks {
            if all || self.rng.chance(0.5) {
                disk.media().power_cut();
                self.figures.cuts += 1;
            }
        }
        self.look_at_origin();
    }

    /// `dropped`: connections that the program had ended at the begin of the round.
    fn terminate(&mut self, clean: bool, dropped: u64, cut: bool) -> Result<()> {
        let daemon = self.daemon.take().ok_or("no daemon to end")?;
        let ended = daemon.terminate();
        self.figures.orderly += 1;
        self.settle()?;
        let may_fail = !clean || self.has_given_up(dropped) && ended == Ended::Code(1);
        if !may_fail && ended != Ended::Code(0) || ended == Ended::Late {
            return Err(format!("SIGTERM: it ended so: {ended:?}\n{}", self.place.log_tail()));
        }
        if clean && self.scenario.end_is_flush && ended == Ended::Code(0) {
            self.judge().orderly_end();
        } else {
            self.judge().crash(cut);
        }
        if cut {
            self.cut();
        }
        Ok(())
    }

    /// Removes the device and makes it again, with the daemon running on.
    fn remove(&mut self, clean: bool, dropped: u64) -> Result<()> {
        let mut ended = Ended::Code(4);
        for _ in 0..50 {
            ended = order(&self.place, &self.judge, &self.table, "remove dev")?;
            if ended != Ended::Code(4) {
                break;
            }
            pause_ms(20); // connections of a moment ago are just being closed
        }
        if ended != Ended::Code(0) {
            if clean && !self.has_given_up(dropped) {
                return Err(format!("remove: it ended so: {ended:?}\n{}", self.place.log_tail()));
            }
            return self.crash(true);
        }
        self.figures.orderly += 1;
        if clean && self.scenario.end_is_flush {
            self.judge().orderly_end();
        } else {
            self.judge().crash(false);
        }
        let ended = order(&self.place, &self.judge, &self.table, "create dev --table TABLE")?;
        if ended == Ended::Code(0) {
            Ok(())
        } else {
            Err(format!("create: it ended so: {ended:?}\n{}", self.place.log_tail()))
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.daemon.take());
        if self.options.keep
            && let Some(dir) = self.dir.take()
        {
            println!("kept: {}", dir.keep().display());
        }
    }
}
