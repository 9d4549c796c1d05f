// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random openers of leaves on one file and on another: changes, FUA writes and FLUSHes overlap,
//! end in any order, and fail; each outcome is judged from the whole history (`judge`).
//!
//! The leaves of one file are those of several cores, which share its flush errors; here one core
//! runs them all, so that one seed is one history. The success of a FLUSH must be held while a
//! FLUSH or FUA write that was in flight beside it has not ended, and no longer (QU-FE5).

mod judge;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use block::{Buf, Bufs, Class, CoreId, Flags, Limits, Nanos, Op, Opener, Sector, Status};
use judge::{FlushCounts, Home, Judge, LeafOpener};
use queue::FileLeaf;
use reactor::{Driver, Event, FileId, Msg, Reactor, Sqe, SqeOp, io_by, spawn, yield_now};
use sim::{Rng, seeds};

/// What the driver has been given and not ended, by the number of the request that it is for.
#[derive(Clone, Default)]
struct Disk {
    given: Rc<RefCell<BTreeMap<usize, Sqe>>>,
    ended: Rc<RefCell<Vec<Event>>>,
    /// The request that is submitted or goes on now: a flush does not tell whose it is.
    current: Rc<Cell<usize>>,
    now: Rc<Cell<Nanos>>,
}

impl Disk {
    fn end(&self, nth: usize, status: Status) {
        let sqe = self.given.borrow_mut().remove(&nth).expect("the driver has it");
        let event = Event::Cqe { home: sqe.home, key: sqe.key, result: status.into() };
        self.ended.borrow_mut().push(event);
    }
}

impl Driver for Disk {
    fn now(&self) -> Nanos {
        self.now.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        for sqe in batch.drain(..) {
            let at = match &sqe.what {
                SqeOp::Write { offset, .. } | SqeOp::WriteZeroes { offset, .. } => Some(*offset),
                SqeOp::Flush
                | SqeOp::Read { .. }
                | SqeOp::Discard { .. }
                | SqeOp::Command { .. }
                | SqeOp::Accept
                | SqeOp::Recv { .. }
                | SqeOp::Send { .. }
                | SqeOp::Shutdown
                | SqeOp::ShutdownWrite
                | SqeOp::Close => None,
            };
            let nth_at = |offset: u64| usize::try_from(offset / 512).expect("small");
            let nth = at.map_or(self.current.get(), nth_at);
            let before = self.given.borrow_mut().insert(nth, sqe);
            assert!(before.is_none(), "{nth} is there twice");
        }
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.ended.borrow_mut());
        if let (true, Some(deadline)) = (out.is_empty(), deadline) {
            self.now.set(self.now.get().max(deadline));
        }
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// A request of an opener.
struct Request {
    by: LeafOpener,
    op: Op,
    flags: Flags,
    begun: u64,
    /// How the driver has ended it.
    ended: Option<Status>,
    /// FLUSHes and FUA writes of the file that were with the driver at that time.
    beside: Vec<usize>,
    /// What its opener was told.
    outcome: Rc<Cell<Option<Status>>>,
    is_judged: bool,
}

impl Request {
    fn is_fua(&self) -> bool {
        self.flags.contains(Flags::FUA)
    }

    fn is_sync(&self) -> bool {
        self.op == Op::Flush || self.is_fua()
    }
}

struct Run {
    rng: Rng,
    disk: Disk,
    leaves: Vec<(Rc<FileLeaf>, Home)>,
    openers: u64,
    requests: Vec<Request>,
    judge: Judge,
    /// How often, in a thousand, the driver fails a flush or a FUA write, and a plain change.
    fails: u32,
    plain_fails: u32,
    lines: Vec<String>,
}

fn limits() -> Limits {
    Limits { write_zeroes: true, ..Limits::new(Sector(1 << 20)) }
}

/// Until all that can be done without the driver is done.
async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
}

impl Run {
    fn new(seed: u64, disk: Disk) -> Run {
        let mut rng = Rng::new(seed ^ 0x6c6f_7373);
        let openers = rng.range(1, 7);
        let (fails, plain_fails) = (rng.pick(&[30, 150, 400]), rng.pick(&[0, 50]));
        let judge = Judge::default();
        let (leaves, requests, lines) = (Vec::new(), Vec::new(), Vec::new());
        let mut run =
            Run { rng, disk, leaves, openers, requests, judge, fails, plain_fails, lines };
        run.add_leaf(0);
        run.add_leaf(0);
        run.add_leaf(1);
        run
    }

    /// Another core's leaf on a file.
    fn add_leaf(&mut self, file: u32) {
        let first = self.leaves.iter().find(|(_, home)| home.file == file);
        let name = format!("leaf{}", self.leaves.len());
        let leaf = match first {
            Some((first, _)) => {
                let (wbt, errors) = (first.shared_wbt(), first.shared_flush_errors());
                FileLeaf::on_same_file(name, FileId(file), limits(), &wbt, &errors)
            }
            None => FileLeaf::new(name, FileId(file), limits()),
        };
        let made = self.judge.tick();
        self.leaves.push((Rc::new(leaf), Home { file, made }));
    }

    fn draw_who(&mut self) -> LeafOpener {
        // Most of what happens is at the first leaf, so that openers meet there.
        let leaf =
            if self.rng.chance_per_mille(600) { 0 } else { self.rng.index(self.leaves.len()) };
        let opener = u32::try_from(self.rng.below(self.openers)).expect("few");
        LeafOpener { leaf, opener: Opener(opener) }
    }

    fn begin(&mut self, by: LeafOpener, op: Op, flags: Flags) {
        let begun = self.judge.tick();
        let (leaf, home) = &self.leaves[by.leaf];
        if op == Op::Flush {
            self.judge.flush_begins(by, *home);
        }
        let nth = self.requests.len();
        self.lines.push(format!("{begun}: #{nth} {op} {flags:?} of {by:?} is submitted"));
        self.disk.current.set(nth);
        let place = if op == Op::Flush { (0, 0) } else { (nth as u64, 1) };
        let place = (Sector(place.0), Sector(place.1));
        let data = if op == Op::Write { Buf::zeroed(512).into() } else { Bufs::new() };
        let sent = io_by(by.opener, &**leaf, op, flags, Class::Normal, place, data);
        let outcome = Rc::new(Cell::new(None));
        let ended = outcome.clone();
        spawn(async move { ended.set(Some(Status::from(sent.await))) });
        let (ended, beside, is_judged) = (None, Vec::new(), false);
        self.requests.push(Request { by, op, flags, begun, ended, beside, outcome, is_judged });
    }

    fn begin_any(&mut self) {
        let by = self.draw_who();
        let fua = if self.rng.chance_per_mille(150) { Flags::FUA } else { Flags::empty() };
        // Some go past the throttle, which is no matter of who is told.
        let direct = self.rng.pick(&[Flags::empty(), Flags::SYNC | Flags::IDLE]);
        match self.rng.below(10) {
            0..3 => self.begin(by, Op::Flush, Flags::empty()),
            3..9 => self.begin(by, Op::Write, fua | direct),
            _ => self.begin(by, Op::WriteZeroes, fua),
        }
    }

    /// The driver ends one of those that it has.
    async fn end_one(&mut self, may_fail: bool) -> Result<(), String> {
        let given: Vec<usize> = self.disk.given.borrow().keys().copied().collect();
        if given.is_empty() {
            return Ok(());
        }
        let nth = self.rng.pick(&given);
        let often = if self.requests[nth].is_sync() { self.fails } else { self.plain_fails };
        let status = match may_fail && self.rng.chance_per_mille(often) {
            true => self.rng.pick(&[Status::Io, Status::Io, Status::NoSpace, Status::NotSupported]),
            false => Status::Ok,
        };
        let now = self.judge.tick();
        self.disk.current.set(nth);
        self.disk.end(nth, status);
        settle().await;
        if self.disk.given.borrow().contains_key(&nth) {
            return Ok(()); // FUA zeroes: the flush after them
        }
        let outcome = self.requests[nth].outcome.get();
        self.lines.push(format!("{now}: #{nth} {status:?} at the driver: {outcome:?}"));
        let file = self.file_of(nth);
        if self.requests[nth].is_sync() && !matches!(status, Status::Ok | Status::NotSupported) {
            self.judge.lose(file);
        }
        let syncs = self.disk.given.borrow().keys().copied().collect::<Vec<_>>().into_iter();
        let beside = syncs.filter(|&n| self.requests[n].is_sync() && self.file_of(n) == file);
        self.requests[nth].beside = beside.collect();
        self.requests[nth].ended = Some(status);
        let ended = (0..self.requests.len()).filter(|&n| {
            let request = &self.requests[n];
            request.ended.is_some() && !request.is_judged
        });
        for n in ended.collect::<Vec<_>>() {
            self.judge_end(n).map_err(|why| self.report(n, &why))?;
        }
        Ok(())
    }

    fn file_of(&self, nth: usize) -> u32 {
        self.leaves[self.requests[nth].by.leaf].1.file
    }

    fn judge_end(&mut self, nth: usize) -> Result<(), String> {
        let request = &self.requests[nth];
        let &Request { by, op, begun, .. } = request;
        let status = request.ended.expect("the driver has ended it");
        let home = self.leaves[by.leaf].1;
        let unsure = request.beside.iter().any(|n| self.disk.given.borrow().contains_key(n));
        let may_wait = op == Op::Flush && status == Status::Ok && unsure;
        let Some(outcome) = request.outcome.get() else {
            return if may_wait { Ok(()) } else { Err("it never ends".into()) };
        };
        if may_wait {
            return Err("it is reported while one beside it may have failed".into());
        }
        if status != Status::Ok && outcome != status {
            return Err(format!("{outcome:?} instead of {status:?}"));
        }
        let is_fua = request.is_fua();
        self.requests[nth].is_judged = true;
        let fails = outcome != Status::Ok;
        if op == Op::Flush {
            return self.judge.flush_ends(by, home, begun, (status == Status::Ok, fails));
        }
        if status != Status::Ok {
            return Ok(());
        }
        if is_fua {
            return self.judge.fua_ends(home, begun, fails);
        }
        if fails {
            return Err("a change fails for nothing".into());
        }
        self.judge.acknowledge(by, home, begun);
        Ok(())
    }

    fn report(&self, nth: usize, why: &str) -> String {
        let from = self.lines.len().saturating_sub(60);
        format!("#{nth}: {why}\n{}", self.lines[from..].join("\n"))
    }

    async fn work(mut self) -> Result<FlushCounts, String> {
        let (steps, deep) = (self.rng.range(50, 300), self.rng.pick(&[2, 5, 12]));
        for _ in 0..steps {
            if self.rng.below(100) == 0 && self.leaves.len() < 5 {
                self.add_leaf(0);
            }
            if self.disk.given.borrow().len() < self.rng.index(deep + 1) {
                self.begin_any();
                settle().await;
            } else {
                self.end_one(true).await?;
            }
        }
        self.end_all().await?;
        // Who has not been told yet is told now, and nobody the second time.
        for round in 0..2 {
            for leaf in 0..self.leaves.len() {
                for opener in 0..self.openers {
                    let opener = Opener(u32::try_from(opener).expect("few"));
                    let before = self.requests.len();
                    self.begin(LeafOpener { leaf, opener }, Op::Flush, Flags::empty());
                    settle().await;
                    self.end_all().await?;
                    let ended = self.requests[before].outcome.get();
                    if round == 1 && ended != Some(Status::Ok) {
                        return Err(self.report(before, "it was told just before"));
                    }
                }
            }
        }
        for (leaf, _) in &self.leaves {
            assert_eq!(leaf.stats().in_flight(), 0);
        }
        Ok(self.judge.counts)
    }

    async fn end_all(&mut self) -> Result<(), String> {
        while self.requests.iter().any(|request| request.outcome.get().is_none()) {
            self.end_one(false).await?;
        }
        Ok(())
    }
}

fn on_core<T: 'static>(disk: Disk, work: impl Future<Output = T> + 'static) -> T {
    Reactor::enter(CoreId(0), Box::new(disk)).block_on(work)
}

fn simulate(seed: u64) -> Result<FlushCounts, String> {
    let disk = Disk::default();
    on_core(disk.clone(), async move { Run::new(seed, disk).work().await })
}

#[test]
fn each_opener_gets_the_errors_that_the_history_asks_for() {
    let mut all = FlushCounts::default();
    seeds::run(1000, |seed| {
        let counts = simulate(seed)?;
        all.there += counts.there;
        all.changed += counts.changed;
        all.came += counts.came;
        all.inherited += counts.inherited;
        all.fua += counts.fua;
        all.good += counts.good;
        Ok(())
    });
    eprintln!("{all:?}");
    if seeds::count(1000) >= 1000 {
        let FlushCounts { there, changed, came, inherited, fua, good } = all;
        let least = [there, changed, came, inherited, fua, good].into_iter().min();
        assert!(least > Some(50), "each reason is met: {all:?}");
    }
}
