// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random clients of a block device; the oracle checks every answer.
//!
//! ```text
//!   let load = Workload::new(&world, &oracle, Mix::default());
//!   machine.spawn(0, load.client(device, requests))      as many as you like, overlapping freely
//!   machine.run(|| load.verdict.is_settled(n))
//!   load.verdict.result()?
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, Flags, Nanos, Op, Sector};
use reactor::{WaitList, io};

use crate::oracle::{Change, Client, Oracle};
use crate::world::WorldRef;

/// The mix of a client's requests: weights, sizes, and whether errors are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub write_zeroes: u64,
    /// FUA writes per thousand.
    pub fua_per_mille: u32,
    /// Changes flagged as metadata per thousand.
    pub meta_per_mille: u32,
    /// Longest request in blocks.
    pub blocks_max: u64,
    /// Clients sleep up to this between requests; 0: never.
    pub think_ns_max: u64,
    /// Whether requests may fail because faults are injected; else a failure fails the test.
    pub errors_allowed: bool,
    /// Flushes in flight while a client continues; 0: it waits for each.
    pub flushes_beside: u64,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            reads: 30,
            writes: 50,
            flushes: 10,
            discards: 3,
            write_zeroes: 3,
            fua_per_mille: 50,
            meta_per_mille: 0,
            blocks_max: 4,
            think_ns_max: 20_000,
            errors_allowed: false,
            flushes_beside: 0,
        }
    }
}

/// The common result of all clients.
#[derive(Clone, Debug, Default)]
pub struct Verdict(Rc<Results>);

#[derive(Debug, Default)]
struct Results {
    failure: RefCell<Option<String>>,
    finished: Cell<u64>,
}

impl Verdict {
    /// Records a failure; the first one is kept.
    pub fn fail(&self, why: String) {
        self.0.failure.borrow_mut().get_or_insert(why);
    }

    /// Whether there is a failure, or `clients` clients have finished.
    pub fn is_settled(&self, clients: u64) -> bool {
        self.0.finished.get() >= clients || self.0.failure.borrow().is_some()
    }

    /// The failure, if any.
    pub fn result(&self) -> Result<(), String> {
        self.0.failure.borrow().clone().map_or(Ok(()), Err)
    }
}

/// See the module.
#[derive(Clone)]
pub struct Workload {
    pub verdict: Verdict,
    world: WorldRef,
    oracle: Rc<RefCell<Oracle>>,
    mix: Mix,
    /// Client of these requests.
    by: Client,
    /// Whether a kill undoes a change that began at this time and ends now.
    keeps: Option<KeepsOverKill>,
}

/// Whether a device promises that a kill of its process does not undo a change that began at a time
/// and ends now.
pub type KeepsOverKill = Rc<dyn Fn(Nanos) -> bool>;

/// The flushes in flight while a client continues.
#[derive(Default)]
struct BackgroundFlushes {
    count: Cell<u64>,
    ended: WaitList,
}

impl Workload {
    pub fn new(world: &WorldRef, oracle: &Rc<RefCell<Oracle>>, mix: Mix) -> Workload {
        let (world, oracle) = (world.clone(), oracle.clone());
        Workload { verdict: Verdict::default(), world, oracle, mix, by: 0, keeps: None }
    }

    /// The same workload for a client that the device distinguishes from others.
    pub fn of(&self, by: Client) -> Workload {
        Workload { by, ..self.clone() }
    }

    /// The same workload on a device that promises more than flushes do.
    pub fn keeping(&self, keeps: KeepsOverKill) -> Workload {
        Workload { keeps: Some(keeps), ..self.clone() }
    }

    /// One client: `requests` requests one after the other, anywhere on the oracle's blocks that
    /// the device has.
    pub fn client(
        &self,
        device: Rc<dyn BlockDevice>,
        requests: u64,
    ) -> impl Future<Output = ()> + 'static {
        let this = self.clone();
        async move {
            let beside = Rc::new(BackgroundFlushes::default());
            for _ in 0..requests {
                this.think().await;
                if let Err(why) = this.request(&device, &beside).await {
                    return this.verdict.fail(why);
                }
            }
            beside.ended.wait_for(|| beside.count.get() == 0).await;
            this.verdict.0.finished.set(this.verdict.0.finished.get() + 1);
        }
    }

    async fn think(&self) {
        let think_ns = match self.mix.think_ns_max {
            0 => 0,
            max => self.world.borrow_mut().rng.below(max),
        };
        if think_ns > 0 {
            reactor::sleep(Nanos(think_ns)).await;
        }
    }

    async fn request(
        &self,
        opened: &Rc<dyn BlockDevice>,
        beside: &Rc<BackgroundFlushes>,
    ) -> Result<(), String> {
        let device = &**opened;
        let (mix, blocks) = (&self.mix, self.blocks_of(device));
        let (dice, range, fua) = {
            let rng = &mut self.world.borrow_mut().rng;
            let all = mix.reads + mix.writes + mix.flushes + mix.discards + mix.write_zeroes;
            let count = rng.range(1, mix.blocks_max.min(blocks) + 1);
            let first = rng.below(blocks - count + 1);
            (rng.below(all), first..first + count, rng.chance_per_mille(mix.fua_per_mille))
        };
        let mut edge = mix.reads;
        if dice < edge {
            return self.read(device, range).await;
        }
        edge += mix.writes;
        if dice < edge {
            return self.change(device, range, Change::Write, fua).await;
        }
        edge += mix.flushes;
        if dice < edge {
            if beside.count.get() < mix.flushes_beside {
                self.flush_beside(opened, beside);
                return Ok(());
            }
            return self.flush(device).await;
        }
        edge += mix.discards;
        if dice < edge {
            return self.change(device, range, Change::Discard, false).await;
        }
        self.change(device, range, Change::WriteZeroes, false).await
    }

    /// The oracle's blocks that the device has now: it may grow.
    fn blocks_of(&self, device: &dyn BlockDevice) -> u64 {
        let oracle = self.oracle.borrow();
        let has = device.limits().capacity.bytes() / oracle.block_bytes() as u64;
        oracle.block_count().min(has)
    }

    fn sectors(&self, range: &std::ops::Range<u64>) -> (Sector, Sector, usize) {
        let block_bytes = self.oracle.borrow().block_bytes();
        let unit = Sector::from_bytes(block_bytes as u64).0;
        let len = Sector((range.end - range.start) * unit);
        (Sector(range.start * unit), len, usize::try_from(len.bytes()).expect("fits in memory"))
    }

    fn outcome(&self, what: Op, result: Result<(), block::Status>) -> Result<bool, String> {
        match result {
            Ok(()) => Ok(true),
            Err(_) if self.mix.errors_allowed => Ok(false),
            Err(status) => Err(format!("{what} failed: {status}")),
        }
    }

    /// One read, checked.
    pub async fn read(
        &self,
        device: &dyn BlockDevice,
        range: std::ops::Range<u64>,
    ) -> Result<(), String> {
        let (at, _, bytes) = self.sectors(&range);
        let token = self.oracle.borrow_mut().begin_read(range);
        let buf = Buf::alloc(bytes);
        // A pattern, so that a read that returns no data is detected.
        buf.write(|b| b.fill(0xDD));
        let result = reactor::read(device, Class::Foreground, at, buf.all().into()).await;
        if self.outcome(Op::Read, result)? {
            return buf.read(|b| self.oracle.borrow_mut().check_read(&token, b));
        }
        Ok(())
    }

    /// One write, discard or write zeroes.
    pub async fn change(
        &self,
        device: &dyn BlockDevice,
        range: std::ops::Range<u64>,
        change: Change,
        fua: bool,
    ) -> Result<(), String> {
        let (at, len, bytes) = self.sectors(&range);
        let began = reactor::now();
        let token = self.oracle.borrow_mut().begin_change_by(self.by, range, change, fua);
        let mut flags = if fua { Flags::FUA } else { Flags::empty() };
        if self.world.borrow_mut().rng.chance_per_mille(self.mix.meta_per_mille) {
            flags |= Flags::META;
        }
        let (op, bufs) = match change {
            Change::Write => {
                let buf = Buf::alloc(bytes);
                buf.write(|b| self.oracle.borrow().fill(&token, b));
                (Op::Write, buf.all().into())
            }
            Change::WriteZeroes => (Op::WriteZeroes, Bufs::new()),
            Change::Discard => (Op::Discard, Bufs::new()),
        };
        let result = io(device, op, flags, Class::Normal, (at, len), bufs).await;
        let ok = self.outcome(op, result)?;
        if ok && self.keeps.as_ref().is_some_and(|keeps| keeps(began)) {
            self.oracle.borrow_mut().keep_over_kill(&token);
        }
        self.oracle.borrow_mut().end_write(token, ok);
        Ok(())
    }

    /// One flush.
    pub async fn flush(&self, device: &dyn BlockDevice) -> Result<(), String> {
        let token = self.oracle.borrow_mut().begin_flush_by(self.by, reactor::now());
        let result = reactor::flush(device, Class::Foreground).await;
        let ok = self.outcome(Op::Flush, result)?;
        self.oracle.borrow_mut().end_flush_at(token, ok, reactor::now());
        Ok(())
    }

    /// One flush in the background.
    fn flush_beside(&self, device: &Rc<dyn BlockDevice>, beside: &Rc<BackgroundFlushes>) {
        let (this, device, beside) = (self.clone(), device.clone(), beside.clone());
        beside.count.set(beside.count.get() + 1);
        reactor::spawn(async move {
            if let Err(why) = this.flush(&*device).await {
                this.verdict.fail(why);
            }
            beside.count.set(beside.count.get() - 1);
            beside.ended.wake_all();
        });
    }

    /// Reads the whole device, checked: what to do first after a crash.
    pub fn read_all(
        &self,
        device: Rc<dyn BlockDevice>,
    ) -> impl Future<Output = Result<(), String>> + 'static {
        let this = self.clone();
        async move {
            for block in 0..this.blocks_of(&*device) {
                this.read(&*device, block..block + 1).await?;
            }
            Ok(())
        }
    }
}
