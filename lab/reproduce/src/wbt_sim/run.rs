// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run: a world with one disk, a leaf on it, a writer and a reader.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Limits, Nanos, Op, Sector, Status, Target as _};
use pagecache::{Config, PageCache};
use policy::wbt::{DeviceTraits, LatencyTarget};
use queue::FileLeaf;
use sim::{Machine, Rng, RunEnd, World};

use super::{
    Case, FILE_BYTES, FLUSHER_BYTES, LONE_FILE_BYTES, Load, Outcome, REQUEST_BYTES, SETTLE_NS,
    Writer,
};
use crate::mixed_load::{SAMPLE_EVERY, Sample};

/// Seed of the reader's addresses and of its jitter.
const SEED: u64 = 1;
const READ_BYTES: u64 = 4096;
/// A read is due up to 1/JITTER of the interval later than the rate says, so that reads do not
/// keep step with the writer.
const JITTER: u64 = 10;
/// How often a writer with too many dirty pages reports that it waits: the longest pause there is.
const DIRTY_PAUSE_NS: u64 = 200_000_000;
/// How long the run waits at its end for reads that are late.
const PATIENCE_NS: u64 = 600_000_000_000;

/// Runs a case.
///
/// # Errors
/// A request that failed, or a run that did not end.
pub fn run(case: Case) -> Result<Outcome, String> {
    let world = World::calm(SEED);
    let file = world.borrow_mut().add_disk(case.disk.spec());
    let limits = world.borrow().leaf(file).limits();
    let max_io_bytes = u32::try_from(case.disk.request_bytes()).expect("a request is small");
    let limits = Limits { max_io_bytes, ..limits };
    let machine = Machine::boot(&world, 1);
    let device = DeviceTraits {
        queue_depth: limits.queue_depth,
        rotational: limits.rotational,
        volatile_cache: limits.volatile_cache,
    };
    let leaf = machine.on(0, || {
        let leaf = FileLeaf::new(case.disk.key(), file, limits);
        match case.throttling.law(device) {
            Some(law) => leaf.wbt().set_control(law),
            None => leaf.wbt().set_target(LatencyTarget::Off),
        }
        Rc::new(leaf)
    });
    let (lone_bytes, writes, reads_per_s, settle_ns, for_ns) = match case.load {
        Load::Lone { bytes } => (Some(bytes), true, None, SETTLE_NS, 0),
        Load::Timed { writer, reads_per_s, settle_ns, for_ns } => {
            (None, writer, reads_per_s, settle_ns, for_ns)
        }
    };
    let to_ns = settle_ns + for_ns;
    let job = Rc::new(Job {
        leaf: leaf.clone(),
        request_bytes: case.disk.request_bytes(),
        file_bytes: if lone_bytes.is_some() { LONE_FILE_BYTES } else { FILE_BYTES },
        left: Cell::new(lone_bytes.unwrap_or(u64::MAX)),
        writers: Cell::new(0),
        settle_ns,
        to_ns,
        position: Cell::new(0),
        written: Cell::new(None),
        stop: Cell::new(false),
        reads: Cell::new(0),
        reader_is_done: Cell::new(reads_per_s.is_none()),
        latencies: RefCell::default(),
        samples: RefCell::default(),
        failure: Cell::new(None),
    });
    match case.writer {
        Writer::Flusher if writes => machine.on(0, || job.clone().start_flusher()),
        Writer::Buffered if writes => {
            let cache = machine.on(0, || buffered(job.leaf.clone(), job.file_bytes))?;
            job.writers.set(1);
            machine.spawn(0, job.clone().client(cache));
        }
        Writer::Flusher | Writer::Buffered => {}
    }
    if let Some(rate) = reads_per_s {
        machine.spawn(0, job.clone().reader(1_000_000_000 / rate));
    }
    machine.spawn(0, job.clone().watch());
    let ended = match lone_bytes {
        Some(_) => machine.run(|| job.writers.get() == 0),
        None => {
            let last_ns = to_ns + PATIENCE_NS;
            let now = || world.borrow().now().0;
            machine.spawn(0, job.clone().meter());
            machine.run(|| {
                let read = job.reader_is_done.get() && job.reads.get() == 0;
                (job.written.get().is_some() && read) || now() >= last_ns
            })
        }
    };
    if ended != RunEnd::Until {
        return Err(format!("the simulation stopped: {ended:?}"));
    }
    if let Some(status) = job.failure.get() {
        return Err(format!("a request failed: {status}"));
    }
    if job.reads.get() > 0 {
        return Err(format!("{} reads did not end", job.reads.get()));
    }
    let took_ns = lone_bytes.map_or(for_ns, |_| world.borrow().now().0);
    let report = leaf.wbt().report();
    job.stop.set(true);
    let mut outcome = Outcome {
        took_ns,
        write_bytes: lone_bytes.map_or(job.written.get().unwrap_or(0), |_| job.disk_bytes()),
        waits: report.waits,
        splits: report.splits,
        probes: report.control.probes,
        samples: job.samples.take(),
        ..Outcome::default()
    };
    for (due_ns, latency_ns) in job.latencies.take() {
        let counts = due_ns >= settle_ns;
        if counts { &mut outcome.read_ns } else { &mut outcome.early_read_ns }.push(latency_ns);
    }
    outcome.read_ns.sort_unstable();
    outcome.early_read_ns.sort_unstable();
    Ok(outcome)
}

fn buffered(below: Rc<FileLeaf>, len_bytes: u64) -> Result<Rc<PageCache>, String> {
    let len = Sector::from_bytes(len_bytes);
    let config = Config::parse(&[]).map_err(|e| e.chain())?;
    PageCache::new("file", config, below, len).map_err(|e| e.chain())
}

struct Job {
    leaf: Rc<FileLeaf>,
    request_bytes: u64,
    /// The length of the writer's file.
    file_bytes: u64,
    /// Bytes that the writer has not sent yet.
    left: Cell<u64>,
    /// Writer's tasks that have not ended.
    writers: Cell<u64>,
    /// The begin and the end of the measured time.
    settle_ns: u64,
    to_ns: u64,
    position: Cell<u64>,
    /// The result of [`Job::meter`].
    written: Cell<Option<u64>>,
    stop: Cell<bool>,
    /// Reads in flight.
    reads: Cell<u64>,
    reader_is_done: Cell<bool>,
    /// (due time, latency).
    latencies: RefCell<Vec<(u64, u64)>>,
    samples: RefCell<Vec<Sample>>,
    failure: Cell<Option<Status>>,
}

impl Job {
    fn disk_bytes(&self) -> u64 {
        self.leaf.stats().of(Op::Write).bytes
    }

    /// Samples the throttle in the measured time.
    async fn watch(self: Rc<Job>) {
        reactor::sleep(Nanos(self.settle_ns)).await;
        let begin = reactor::now();
        while !self.stop.get() && reactor::now().0 < self.to_ns {
            self.samples.borrow_mut().push(Sample::of(&self.leaf, reactor::now().0 - begin.0));
            reactor::sleep(SAMPLE_EVERY).await;
        }
    }

    /// Counts the bytes written to the disk in the measured time.
    async fn meter(self: Rc<Job>) {
        reactor::sleep(Nanos(self.settle_ns)).await;
        let before = self.disk_bytes();
        reactor::sleep(Nanos(self.to_ns - self.settle_ns)).await;
        self.written.set(Some(self.disk_bytes() - before));
    }

    /// Keeps writes in flight as a flusher does, and reports to the leaf that writers wait, as if
    /// too many pages were always dirty.
    fn start_flusher(self: Rc<Job>) {
        let tasks = FLUSHER_BYTES / self.request_bytes;
        self.writers.set(tasks);
        let zeroes = Buf::zeroed(usize_of(self.request_bytes));
        for _ in 0..tasks {
            reactor::spawn(self.clone().write(zeroes.clone()));
        }
        reactor::spawn(async move {
            while !self.stop.get() && self.writers.get() > 0 {
                self.leaf.writer_throttled();
                reactor::sleep(Nanos(DIRTY_PAUSE_NS)).await;
            }
        });
    }

    fn next_position(&self, len: u64) -> Sector {
        let at = self.position.get();
        self.position.set((at + len) % self.file_bytes);
        Sector::from_bytes(at)
    }

    /// Copies a file, as `dd` does.
    async fn client(self: Rc<Job>, cache: Rc<PageCache>) {
        let zeroes = Buf::zeroed(usize_of(REQUEST_BYTES));
        let mut result = cache.clone().resume().await.map_err(|_| Status::Io);
        while result.is_ok() && self.left.get() > 0 && !self.stop.get() {
            let len = REQUEST_BYTES.min(self.left.get());
            self.left.set(self.left.get() - len);
            let data = zeroes.slice(0..usize_of(len)).into();
            let at = self.next_position(REQUEST_BYTES);
            result = reactor::write(&*cache, Flags::empty(), Class::Normal, at, data).await;
        }
        if result.is_ok() && self.left.get() == 0 {
            result = reactor::flush(&*cache, Class::Foreground).await;
        }
        if let Err(status) = result {
            self.failure.set(Some(status));
        }
        self.writers.set(self.writers.get() - 1);
    }

    async fn write(self: Rc<Job>, zeroes: Buf) {
        while self.left.get() > 0 && !self.stop.get() {
            let len = self.request_bytes.min(self.left.get()) / 512 * 512;
            if len == 0 {
                break;
            }
            self.left.set(self.left.get() - len);
            let sector = self.next_position(self.request_bytes);
            let data = zeroes.slice(0..usize_of(len)).into();
            let (flags, class) = (Flags::BACKGROUND, Class::Background);
            if let Err(status) = reactor::write(&*self.leaf, flags, class, sector, data).await {
                self.failure.set(Some(status));
            }
        }
        self.writers.set(self.writers.get() - 1);
    }

    /// RP-S2.
    async fn reader(self: Rc<Job>, every_ns: u64) {
        let mut rng = Rng::new(SEED + 1);
        let mut nth = 0;
        loop {
            let due_ns = nth * every_ns + rng.below(every_ns / JITTER + 1);
            nth += 1;
            if due_ns >= self.to_ns {
                return self.reader_is_done.set(true);
            }
            reactor::sleep(Nanos(due_ns.saturating_sub(reactor::now().0))).await;
            let block = rng.below(FILE_BYTES / READ_BYTES);
            self.reads.set(self.reads.get() + 1);
            reactor::spawn(self.clone().read(due_ns, block));
        }
    }

    async fn read(self: Rc<Job>, due_ns: u64, block: u64) {
        let buf = Buf::alloc(usize_of(READ_BYTES));
        let at = Sector::from_bytes(FILE_BYTES + block * READ_BYTES);
        let data = buf.all().into();
        if let Err(status) = reactor::read(&*self.leaf, Class::Foreground, at, data).await {
            self.failure.set(Some(status));
        }
        self.latencies.borrow_mut().push((due_ns, reactor::now().0 - due_ns));
        self.reads.set(self.reads.get() - 1);
    }
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("sizes of the bench fit in memory")
}
