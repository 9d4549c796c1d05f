// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reader at a fixed rate and a buffered writer without end, in one process. That measures the
//! disk and our path to it, not how two CPUs share the work of sockets.
//!
//! Invariants
//! - RP-B1 The latency of a read counts from the time when it was due, not from the time when it
//!   was sent: a device that stalls does not get fewer reads because it stalls.
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use block::{
    BlockDevice, Buf, Class, Error, Flags, LocalFuture, Nanos, Op, OpenDevice, SECTOR_SIZE, Sector,
    Status, Target,
};
use dm::{Dm, MappedDevice, Resolver};
use hdrhistogram::Histogram;
use pagecache::{Config, PageCache};
use queue::FileLeaf;
use reactor::{Reactor, WaitList, io, new_opener, now, sleep, spawn, yield_now};
use sim::Rng;
use uring::{OpenOptions, Uring};

/// Bytes of a read.
const READ_BYTES: usize = 4096;
/// Bytes of a write: small enough that its copy does not delay other tasks.
const WRITE_BYTES: usize = 256 << 10;
/// Writes in flight.
const WRITE_DEPTH: usize = 8;

/// Latencies above a minute count as a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A histogram of nanoseconds.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds")
}

/// The result of a run of the reader, the writer, or both.
#[derive(Debug, Default)]
pub struct LoadResult {
    /// Nanoseconds.
    pub latency_ns: Option<Histogram<u64>>,
    pub written_bytes_per_s: Option<f64>,
    /// The state of the throttle during the run.
    pub samples: Vec<Sample>,
}

/// The state of a throttle at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at_ns: u64,
    pub step: i32,
    /// Requests that writeback may have in flight.
    pub depth: u32,
    /// Bytes that writeback may have in flight while there are reads; `u64::MAX`: no limit.
    pub bytes: u64,
}

impl Sample {
    /// The state of `leaf`'s throttle now, `at_ns` after the begin of the run.
    pub fn of(leaf: &FileLeaf, at_ns: u64) -> Sample {
        let report = leaf.wbt().report();
        Sample {
            at_ns,
            step: report.step,
            depth: report.depth.background,
            bytes: report.control.limit_bytes,
        }
    }
}

/// How often the throttle is sampled.
pub const SAMPLE_EVERY: Nanos = Nanos::from_millis(20);

async fn watch(run: Rc<Run>, leaf: Rc<FileLeaf>, begin: Nanos) {
    while !run.stop.get() {
        run.samples.borrow_mut().push(Sample::of(&leaf, now().0 - begin.0));
        sleep(SAMPLE_EVERY).await;
    }
}

/// Resolves every name to one leaf.
struct SingleLeaf(Rc<FileLeaf>);

impl Resolver for SingleLeaf {
    fn open(&self, _word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let leaf: Rc<dyn BlockDevice> = self.0.clone();
        Box::pin(async move { Ok(leaf) })
    }
}

/// The device of the reader and that of the writer, on one disk with one throttle.
pub trait Devices {
    /// Reads an attribute of the disk.
    ///
    /// # Errors
    /// The error of the disk.
    fn attribute(&self, name: &str) -> Result<String, String>;

    /// Sets an attribute of the disk.
    ///
    /// # Errors
    /// The error of the disk.
    fn set_attribute(&self, name: &str, value: &str) -> Result<(), String>;

    /// Runs a reader of `rate` reads a second, a writer, or both; first without measuring, for
    /// `time.0` seconds, then for `time.1` seconds.
    ///
    /// # Errors
    /// The error of a device.
    fn run(
        &self,
        rate: Option<f64>,
        writes: bool,
        time: (f64, f64),
        seed: u64,
    ) -> Result<LoadResult, String>;
}

/// Both devices on one file, on a core that is this thread.
pub struct Local {
    reactor: Reactor,
    _dm: Rc<Dm>,
    leaf: Rc<FileLeaf>,
    reader: Rc<MappedDevice>,
    writer: Rc<PageCache>,
}

/// State that reader and writer share.
struct Run {
    stop: Cell<bool>,
    written: Cell<u64>,
    /// Tasks that have not ended.
    running: Cell<usize>,
    failed: Cell<Option<Status>>,
    changed: WaitList,
    latency_ns: RefCell<Histogram<u64>>,
    samples: RefCell<Vec<Sample>>,
}

impl Run {
    fn ended(&self, result: Result<(), Status>) {
        if let Err(status) = result {
            self.failed.set(Some(status));
        }
        self.running.set(self.running.get() - 1);
        self.changed.wake_all();
    }
}

impl Local {
    /// Both devices on the file `leaf` of `bytes`, half of it each.
    ///
    /// # Errors
    /// Why they could not be made.
    pub fn new(leaf: &Path, bytes: u64, memory_mib: u64) -> Result<Local, String> {
        let uring = Uring::new().map_err(|e| e.chain())?;
        let opened =
            uring.files().open_path(leaf, OpenOptions::default()).map_err(|e| e.chain())?;
        let leaf = Rc::new(FileLeaf::new("leaf", opened.file, opened.limits));
        let reactor = Reactor::enter(CORE, Box::new(uring));
        let (on, half) = (leaf.clone(), bytes / 2 / SECTOR_SIZE as u64);
        let made = reactor.block_on(async move {
            let dm = Dm::new(Rc::new(SingleLeaf(on)));
            let (low, high) =
                (format!("0 {half} linear leaf 0"), format!("0 {half} linear leaf {half}"));
            let reader = dm.create("reader", None, Some(&low)).await?;
            let below = dm.create("low", None, Some(&high)).await?;
            let config = Config::parse(&["2", "memory", &format!("{memory_mib}M")])?;
            let writer = PageCache::new("writer", config, below, Sector(half))?;
            writer.clone().resume().await?;
            Ok((dm, reader, writer))
        });
        let (dm, reader, writer) = made.map_err(|e: Error| e.chain())?;
        Ok(Local { reactor, _dm: dm, leaf, reader, writer })
    }
}

impl Devices for Local {
    fn attribute(&self, name: &str) -> Result<String, String> {
        let value = self.reactor.on(|| self.leaf.wbt().get(name)).map_err(|e| e.chain())?;
        Ok(value.to_string())
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<(), String> {
        self.reactor.on(|| self.leaf.wbt().set(name, value)).map_err(|e| e.chain())
    }

    fn run(
        &self,
        rate: Option<f64>,
        writes: bool,
        (warm_up, seconds): (f64, f64),
        seed: u64,
    ) -> Result<LoadResult, String> {
        let run = Rc::new(Run {
            stop: Cell::new(false),
            written: Cell::new(0),
            running: Cell::new(0),
            failed: Cell::new(None),
            changed: WaitList::new(),
            latency_ns: RefCell::new(histogram()),
            samples: RefCell::default(),
        });
        let (reader, writer, of_run) = (self.reader.clone(), self.writer.clone(), run.clone());
        let leaf = self.leaf.clone();
        let bytes_per_s = self.reactor.block_on(async move {
            let run = of_run;
            if writes {
                write_on(&run, &writer);
            }
            if let Some(rate) = rate {
                run.running.set(run.running.get() + 1);
                spawn(read_at_rate(run.clone(), reader, rate, (warm_up, seconds), seed));
            }
            sleep(nanos(warm_up)).await;
            let (from, begin) = (run.written.get(), now());
            spawn(watch(run.clone(), leaf, begin));
            sleep(nanos(seconds)).await;
            let bytes = run.written.get() - from;
            let bytes_per_s = bytes as f64 * 1e9 / (now().0 - begin.0) as f64;
            run.stop.set(true);
            run.changed.wait_for(|| run.running.get() == 0).await;
            if writes && let Err(status) = reactor::flush(&*writer, Class::Foreground).await {
                run.failed.set(Some(status));
            }
            bytes_per_s
        });
        if let Some(status) = run.failed.get() {
            return Err(format!("a request failed: {status}"));
        }
        let latency_ns = rate.map(|_| run.latency_ns.borrow().clone());
        let written_bytes_per_s = writes.then_some(bytes_per_s);
        Ok(LoadResult { latency_ns, written_bytes_per_s, samples: run.samples.take() })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let writer = self.writer.clone();
        // Nobody needs its data.
        let _ = self.reactor.block_on(async move { writer.suspend().await });
    }
}

/// The only core.
const CORE: block::CoreId = block::CoreId(0);

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

/// Writes in ascending order, again and again, until the run stops.
fn write_on(run: &Rc<Run>, cache: &Rc<PageCache>) {
    let device: Rc<dyn BlockDevice> = Rc::new(OpenDevice::new(cache.clone(), new_opener()));
    let pieces = device.limits().capacity.bytes() / WRITE_BYTES as u64;
    let next = Rc::new(Cell::new(0_u64));
    run.running.set(run.running.get() + WRITE_DEPTH);
    for _ in 0..WRITE_DEPTH {
        let (run, device, next) = (run.clone(), device.clone(), next.clone());
        spawn(async move {
            let data = Buf::copy_of(&vec![0x77; WRITE_BYTES]);
            let mut result = Ok(());
            while result.is_ok() && !run.stop.get() {
                let nth = next.replace(next.get() + 1) % pieces;
                let at = Sector::from_bytes(nth * WRITE_BYTES as u64);
                let (none, class) = (Flags::empty(), Class::Normal);
                result = reactor::write(&*device, none, class, at, data.all().into()).await;
                run.written.set(run.written.get() + WRITE_BYTES as u64);
                // Writes that end at once must not keep the reader from running.
                yield_now().await;
            }
            run.ended(result);
        });
    }
}

/// RP-B1
async fn read_at_rate(
    run: Rc<Run>,
    device: Rc<MappedDevice>,
    rate: f64,
    (warm_up, seconds): (f64, f64),
    seed: u64,
) {
    let blocks = device.limits().capacity.bytes() / READ_BYTES as u64;
    let mut rng = Rng::new(seed);
    let begin = now();
    let due = |nth: u64| Nanos(begin.0 + (nth as f64 / rate * 1e9) as u64);
    let counts_from = Nanos(begin.0 + nanos(warm_up).0);
    for nth in 0..((warm_up + seconds) * rate) as u64 {
        let due = due(nth);
        if now() < due {
            sleep(Nanos(due.0 - now().0)).await;
        }
        let at = Sector::from_bytes(rng.below(blocks) * READ_BYTES as u64);
        let (run, device) = (run.clone(), device.clone());
        run.running.set(run.running.get() + 1);
        spawn(async move {
            let (none, class, into) = (Flags::empty(), Class::Foreground, Buf::alloc(READ_BYTES));
            let len = Sector::from_bytes(READ_BYTES as u64);
            let read = io(&*device, Op::Read, none, class, (at, len), into.all().into()).await;
            if due >= counts_from {
                run.latency_ns.borrow_mut().saturating_record(now().0 - due.0);
            }
            run.ended(read);
        });
    }
    run.ended(Ok(()));
}
