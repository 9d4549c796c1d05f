// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device under attack: its disks, its daemon, and round after round of requests, orders and
//! crashes.
//!
//! A round: start the daemon (and perhaps kill it while it recovers), read everything, let clients
//! and the operator loose, and end it all: `kill -9`, mostly with a power cut of the disks,
//! SIGTERM, or a removal of the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::client::{Client, End};
use crate::daemon::{Daemon, Ended, Place};
use crate::disk::{Disk, Mood};
use crate::file_client::FileClient;
use crate::judge::Judge;
use crate::media::Lie;
use crate::operator::{self, order};
use crate::report;
use crate::rng::Rng;
use crate::scenario::{Faults, Scenario};
use crate::{Result, held, pause_ms, spawn};

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
    /// Orders of the operator, and those that failed.
    pub orders: u64,
    /// See `orders`.
    pub orders_failed: u64,
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
    Remove,
}

/// See the module.
pub struct Rig {
    scenario: Scenario,
    options: Options,
    table: String,
    place: Place,
    disks: Vec<Disk>,
    judge: Arc<Mutex<Judge>>,
    rng: Rng,
    daemon: Option<Daemon>,
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
        let Scenario { load, rules, .. } = *scenario;
        let judge = Arc::new(Mutex::new(Judge::new(rules, load.first, load.count)));
        let mut disks = Vec::new();
        let mut table = scenario.table.to_owned();
        for (number, bytes) in (0..).zip(scenario.disks) {
            let lie = options.lie.filter(|(n, _)| *n == number).map_or(Lie::None, |(_, lie)| lie);
            let told = Arc::clone(&judge);
            let on_loss = move || held(&told).loss();
            let socket = dir.path().join(format!("disk{number}"));
            let disk = Disk::serve(&socket, *bytes, lie, rng.fork(), on_loss)?;
            table = table.replace(&format!("DISK{number}"), &disk.word());
            disks.push(disk);
        }
        let mut config = format!("cores = {}\n", scenario.cores);
        if scenario.files {
            config.push_str("fuse = './mnt'\n");
            std::fs::create_dir(dir.path().join("mnt")).map_err(|e| format!("mnt: {e}"))?;
        }
        config.push_str(&format!("[[device]]\nname = 'dev'\ntable = '''{table}'''\n"));
        let path = dir.path().join("millpond.toml");
        std::fs::write(&path, config).map_err(|e| format!("{}: {e}", path.display()))?;
        let place = Place { program: program.into(), dir: dir.path().into() };
        Ok(Rig {
            scenario: *scenario,
            options,
            table,
            place,
            disks,
            judge,
            rng,
            daemon: None,
            figures: Figures::default(),
            dir: Some(dir),
        })
    }

    /// The judge.
    pub fn judge(&self) -> std::sync::MutexGuard<'_, Judge> {
        held(&self.judge)
    }

    /// The disks.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// One round; what was found in it, if anything.
    pub fn round(&mut self) -> Result<()> {
        self.figures.rounds += 1;
        let done = self.try_round();
        let found: Vec<String> = self.judge().violations.iter().map(report::violation).collect();
        if found.is_empty() {
            return done;
        }
        let count = self.judge().counts.violations;
        let log = self.place.log_tail();
        let also = done.err().map_or(String::new(), |e| format!("and: {e}\n"));
        Err(format!("{count} violations\n{}{also}the daemon's log\n{log}", found.join("\n")))
    }

    fn try_round(&mut self) -> Result<()> {
        if self.daemon.is_none() {
            self.start()?;
        }
        self.read_all()?;
        let failures = self.failures();
        let ending = self.ending();
        self.disks.iter().for_each(|d| d.set_mood(Mood::default()));
        let moods = self.moods();
        for (disk, mood) in self.disks.iter().zip(&moods) {
            disk.set_mood(*mood);
        }
        self.let_loose(ending)?;
        self.disks.iter().for_each(|d| d.set_mood(Mood::default()));
        let clean = self.failures() == failures;
        match ending {
            Ending::Kill | Ending::KillAndCut => self.crash(ending == Ending::KillAndCut),
            Ending::Remove => self.remove(clean),
            Ending::Terminate | Ending::TerminateAndCut => {
                self.terminate(clean, ending == Ending::TerminateAndCut)
            }
        }
    }

    fn ending(&mut self) -> Ending {
        if self.options.only_cuts {
            return Ending::KillAndCut;
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
        let failed = |d: &Disk| d.figures().flushes_failed + d.figures().writes_failed;
        self.disks.iter().map(failed).sum()
    }

    fn moods(&mut self) -> Vec<Mood> {
        let rng = &mut self.rng;
        let faults = self.scenario.faults;
        let mut mood = |number: usize| {
            let mut mood = Mood {
                slow: *rng.pick(&[0.0, 0.02, 0.2]),
                slow_ms: *rng.pick(&[2, 10, 60]),
                flush_ms: *rng.pick(&[0, 3, 20, 100]),
                ..Mood::default()
            };
            let first = number == 0;
            if first && matches!(faults, Faults::Flushes | Faults::Both) {
                mood.flush_fails = *rng.pick(&[0.0, 0.1, 0.4]);
            }
            if first && matches!(faults, Faults::Writes | Faults::Both) {
                mood.write_fails = *rng.pick(&[0.0, 0.01, 0.1]);
            }
            mood
        };
        (0..self.disks.len()).map(&mut mood).collect()
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
        let mut daemon = Daemon::start(&self.place)?;
        daemon.wait_ready()?;
        self.daemon = Some(daemon);
        Ok(())
    }

    fn read_all(&mut self) -> Result<()> {
        let client = Client::connect(&self.place.socket(), "dev", &self.judge);
        let mut client =
            client.map_err(|e| format!("connecting: {e}\n{}", self.place.log_tail()))?;
        let failed = client.read_all(&self.scenario.load)?;
        if failed > 0 && self.disks.iter().all(|d| d.figures().writes_failed == 0) {
            let log = self.place.log_tail();
            return Err(format!("{failed} reads fail though the disks read well\n{log}"));
        }
        Ok(())
    }

    /// Clients and the operator, until the moment at which the round ends.
    fn let_loose(&mut self, ending: Ending) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_orders = Arc::new(AtomicBool::new(false));
        let load = self.scenario.load;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let client = Client::connect(&self.place.socket(), "dev", &self.judge);
            let client = client.map_err(|e| format!("connecting: {e}"))?;
            let (rng, stop) = (self.rng.fork(), Arc::clone(&stop));
            let depth = *self.rng.pick(&[1, 4, 8]);
            clients.push(spawn(move || client.run(&load, depth, rng, &stop)));
        }
        if self.scenario.files {
            let path = self.place.mount().join("dev/mapper/dev");
            let file = FileClient::open(&path, &self.judge);
            let file = Arc::new(file.map_err(|e| format!("{}: {e}", path.display()))?);
            for _ in 0..3 {
                let (rng, stop, file) = (self.rng.fork(), Arc::clone(&stop), Arc::clone(&file));
                clients.push(spawn(move || file.run(&load, rng, &stop)));
            }
        }
        let operator = {
            let (place, judge, scenario) =
                (self.place.clone(), Arc::clone(&self.judge), self.scenario);
            let (table, rng, stop) =
                (self.table.clone(), self.rng.fork(), Arc::clone(&stop_orders));
            let only = self.options.orders;
            spawn(move || operator::run(&place, &judge, &scenario, only, &table, rng, &stop))
        };
        pause_ms(50 + self.rng.below(900));
        if self.rng.chance(0.2) {
            // The daemon is killed, or goes on, while a disk does not answer.
            self.rng.pick(&self.disks).hang(true);
            pause_ms(self.rng.below(300));
        }
        let died = self.daemon.as_mut().and_then(Daemon::has_ended);
        let killed = matches!(ending, Ending::Kill | Ending::KillAndCut);
        if killed && let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
        self.disks.iter().for_each(|d| d.hang(false));
        stop_orders.store(true, Ordering::SeqCst);
        let orders = operator.join().map_err(|_| "the operator has panicked")?;
        if !killed {
            self.resume()?;
        }
        stop.store(true, Ordering::SeqCst);
        let mut faults = Vec::new();
        for client in clients {
            match client.join().map_err(|_| "a client has panicked")? {
                End::Stopped => {}
                End::Cut if killed => {}
                End::Cut => faults.push("the server closed a connection".to_owned()),
                End::Fault(what) => faults.push(what),
            }
        }
        if let Some(code) = died {
            return Err(format!("the daemon died, with {code}\n{}", self.place.log_tail()));
        }
        if let Some(fault) = faults.first() {
            return Err(format!("a client: {fault}\n{}", self.place.log_tail()));
        }
        let orders = orders?;
        self.figures.orders += orders.done + orders.failed;
        self.figures.orders_failed += orders.failed;
        Ok(())
    }

    /// A device that a failing disk left suspended takes requests again.
    fn resume(&self) -> Result<()> {
        self.disks.iter().for_each(|d| d.set_mood(Mood::default()));
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
        self.disks.iter().try_for_each(Disk::settle)
    }

    /// The power goes: for all disks, or for any of them.
    fn cut(&mut self) {
        let all = self.rng.chance(0.7);
        for disk in &self.disks {
            if all || self.rng.chance(0.5) {
                disk.media().power_cut();
                self.figures.cuts += 1;
            }
        }
    }

    fn terminate(&mut self, clean: bool, cut: bool) -> Result<()> {
        let daemon = self.daemon.take().ok_or("no daemon to end")?;
        let ended = daemon.terminate();
        self.figures.orderly += 1;
        self.settle()?;
        if clean && ended != Ended::Code(0) {
            return Err(format!("SIGTERM: it ended so: {ended:?}\n{}", self.place.log_tail()));
        }
        if clean && self.scenario.end_is_flush {
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
    fn remove(&mut self, clean: bool) -> Result<()> {
        let mut ended = Ended::Code(4);
        for _ in 0..50 {
            ended = order(&self.place, &self.judge, &self.table, "remove dev")?;
            if ended != Ended::Code(4) {
                break;
            }
            pause_ms(20); // connections of a moment ago are just being closed
        }
        if ended != Ended::Code(0) {
            if clean {
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
