// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver in virtual time with RAM disks, small enough to be obviously right: what these tests
//! stand on. Latencies are drawn from a seed; data moves at the moment of submission.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::rc::{Rc, Weak};

use block::{
    Base, Bio, BlockDevice, Bufs, Class, CoreId, Error, Flags, Limits, LocalFuture, LostWrites,
    Nanos, OnIoError, Op, Opener, Sector, Status,
};
use dm::{Dm, MappedDevice, Resolver};
use reactor::{
    Driver, Event, FileId, Generation, Msg, OnDone, OpResult, QuiesceCounter, Reactor, Sqe, SqeOp,
};

/// Whether requests go through the device as a pure mapping.
pub(crate) fn is_flat(device: &MappedDevice) -> bool {
    device.map_blocks(Sector::ZERO, Sector(1)).is_some()
}

#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) bytes: Vec<u8>,
    /// What arrived: operation, first sector, length in sectors.
    pub(crate) log: Vec<(Op, u64, u64)>,
    /// The last bio as it was when it arrived, buffers shared, and the sector that was meant.
    pub(crate) last: Option<(Op, Flags, Class, Sector, Sector, Bufs, Sector)>,
    /// Who sent what arrived.
    pub(crate) openers: Vec<Opener>,
    /// How often a disk under `/lossy/` has lost what was acknowledged and not flushed.
    pub(crate) losses: usize,
    /// Requests fail from now on.
    pub(crate) broken: bool,
    /// Requests do not end from now on, until [`State::release`].
    pub(crate) hung: bool,
}

#[derive(Default)]
pub(crate) struct State {
    now: Nanos,
    random: u64,
    seq: u64,
    /// 0: requests end in order at the next park; no allocation then.
    pub(crate) latency_ns_max: u64,
    pub(crate) logging: bool,
    pub(crate) disks: Vec<Disk>,
    names: BTreeMap<String, usize>,
    ready: VecDeque<Event>,
    pending: BTreeMap<(Nanos, u64), Event>,
    held: Vec<Event>,
    /// Leaves opened and closed since the start.
    pub(crate) opened: usize,
    pub(crate) closed: usize,
}

impl State {
    pub(crate) fn random(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Ends the requests of disks that were hung, which then answer again.
    pub(crate) fn release(&mut self) {
        self.disks.iter_mut().for_each(|disk| disk.hung = false);
        self.ready.extend(std::mem::take(&mut self.held));
    }

    /// Requests that disks have not answered yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len() + self.ready.len() + self.held.len()
    }

    fn perform(&mut self, file: FileId, what: &SqeOp) -> Status {
        let disk = &mut self.disks[file.0 as usize];
        let at = |offset: u64| usize::try_from(offset).expect("a small disk");
        let (op, offset, len) = match what {
            SqeOp::Read { offset, bufs } => (Op::Read, *offset, bufs.len_bytes() as u64),
            SqeOp::Write { offset, bufs, .. } => (Op::Write, *offset, bufs.len_bytes() as u64),
            SqeOp::Flush => (Op::Flush, 0, 0),
            SqeOp::Discard { offset, len } => (Op::Discard, *offset, *len),
            SqeOp::WriteZeroes { offset, len, .. } => (Op::WriteZeroes, *offset, *len),
            SqeOp::Command { .. }
            | SqeOp::Accept
            | SqeOp::Recv { .. }
            | SqeOp::Send { .. }
            | SqeOp::Shutdown
            | SqeOp::ShutdownWrite
            | SqeOp::Close => panic!("no disk takes {what:?}"),
        };
        if self.logging {
            disk.log.push((op, offset / 512, len / 512));
        }
        if disk.broken {
            return Status::Io;
        }
        let bytes = &mut disk.bytes[at(offset)..at(offset + len)];
        if let SqeOp::Read { bufs, .. } = what {
            bufs.copy_from(bytes);
        } else if let SqeOp::Write { bufs, .. } = what {
            bufs.copy_to(bytes);
        } else if matches!(op, Op::Discard | Op::WriteZeroes) {
            bytes.fill(0);
        }
        Status::Ok
    }
}

pub(crate) type Shared = Rc<RefCell<State>>;

struct TestDriver(Shared);

impl Driver for TestDriver {
    fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let mut s = self.0.borrow_mut();
        for Sqe { home, key, file, what } in batch.drain(..) {
            let result = OpResult::from(s.perform(file, &what));
            let event = Event::Cqe { home, key, result };
            if s.disks[file.0 as usize].hung {
                s.held.push(event);
            } else if s.latency_ns_max == 0 {
                s.ready.push_back(event);
            } else {
                let latency = s.random() % s.latency_ns_max;
                s.seq += 1;
                let due = (s.now + Nanos(latency), s.seq);
                s.pending.insert(due, event);
            }
        }
    }

    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }

    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        let mut s = self.0.borrow_mut();
        while let Some(event) = s.ready.pop_front() {
            out.push(event);
        }
        if !out.is_empty() {
            return;
        }
        let first = s.pending.first_key_value().map(|((due, _), _)| *due);
        let Some(until) = first.into_iter().chain(deadline).min() else { return };
        s.now = s.now.max(until);
        while s.pending.first_key_value().is_some_and(|((due, _), _)| *due <= s.now) {
            let (_, event) = s.pending.pop_first().expect("seen in the condition");
            out.push(event);
        }
    }

    fn random(&mut self) -> u64 {
        self.0.borrow_mut().random()
    }
}

/// Who has unflushed changes at a leaf, and who must hear that they are lost.
#[derive(Default)]
struct Unflushed {
    writers: RefCell<BTreeSet<Opener>>,
    losers: RefCell<BTreeSet<Opener>>,
    losses: Cell<usize>,
}

impl Unflushed {
    fn lose(&self) {
        self.losers.borrow_mut().append(&mut self.writers.borrow_mut());
    }

    fn see(&self, losses: usize) {
        if self.losses.replace(losses) != losses {
            self.lose();
        }
    }

    fn tell(&self, opener: Opener) -> bool {
        opener != Opener::NOBODY && self.losers.borrow_mut().remove(&opener)
    }
}

impl LostWrites for Unflushed {
    fn has_unflushed(&self) -> bool {
        !self.writers.borrow().is_empty()
    }

    fn must_hear(self: Rc<Self>, opener: Opener) -> Option<Box<dyn FnOnce()>> {
        let must_hear = self.losers.borrow().contains(&opener);
        must_hear.then(|| {
            Box::new(move || {
                self.tell(opener);
            }) as Box<dyn FnOnce()>
        })
    }

    fn are_told(&self) -> bool {
        self.losers.borrow().is_empty()
    }
}

/// A RAM disk as a leaf; under `/opaque/` it is no base of flat mappings, and under `/lossy/` it
/// tells of its losses.
pub(crate) struct Ram {
    name: String,
    file: FileId,
    limits: Limits,
    state: Shared,
    watch: Rc<Watch>,
    unflushed: Rc<Unflushed>,
}

impl Ram {
    fn is_lossy(&self) -> bool {
        self.name.starts_with("/lossy/")
    }

    fn unflushed(&self) -> &Rc<Unflushed> {
        self.unflushed.see(self.state.borrow().disks[self.file.0 as usize].losses);
        &self.unflushed
    }

    /// Notes the bio. Whether it is a FLUSH that fails because of a loss before.
    fn is_told(&self, bio: &Bio) -> bool {
        let unflushed = self.unflushed();
        match bio.op {
            Op::Flush => {
                let fails = self.state.borrow().disks[self.file.0 as usize].broken;
                if fails {
                    unflushed.lose();
                }
                unflushed.writers.borrow_mut().clear();
                unflushed.tell(bio.opener)
            }
            Op::Write => {
                unflushed.writers.borrow_mut().insert(bio.opener);
                false
            }
            Op::Read | Op::Discard | Op::WriteZeroes => false,
        }
    }
}

/// Counts what is in flight and tells faults.
#[derive(Default)]
struct Watch {
    requests: QuiesceCounter,
    watchers: RefCell<Vec<Weak<dyn OnIoError>>>,
}

/// In a tag: it is of a flush.
const FLUSH: u64 = 1 << 63;

impl OnDone for Watch {
    fn on_done(&self, status: Status, tag: u64) {
        self.requests.leave(Generation::from_tag(tag));
        if status != Status::Ok {
            for watcher in self.watchers.borrow().iter().filter_map(Weak::upgrade) {
                let op = if tag & FLUSH == 0 { Op::Write } else { Op::Flush };
                watcher.on_io_error(op, Sector((tag & !FLUSH) >> 1), Sector(1), status);
            }
        }
    }
}

impl BlockDevice for Ram {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        self.submit_at(bio.sector, bio);
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        if self.name.starts_with("/opaque/") { None } else { Some(self) }
    }
}

impl Base for Ram {
    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.watch.requests.quiesced().await })
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.watch.watchers.borrow_mut().push(watcher);
    }

    fn losses(&self) -> Option<Rc<dyn LostWrites>> {
        self.is_lossy().then(|| self.unflushed().clone() as Rc<dyn LostWrites>)
    }

    fn submit_at(&self, sector: Sector, bio: Bio) {
        if self.is_lossy() && self.is_told(&bio) {
            return bio.complete(Status::Io);
        }
        let flush = if bio.op == Op::Flush { FLUSH } else { 0 };
        let tag = flush | sector.0 << 1 | self.watch.requests.enter().tag();
        if self.state.borrow().logging {
            let Bio { op, flags, class, sector: said, len, ref bufs, .. } = bio;
            let last = Some((op, flags, class, said, len, bufs.clone(), sector));
            let disk = &mut self.state.borrow_mut().disks[self.file.0 as usize];
            disk.last = last;
            disk.openers.push(bio.opener);
        }
        let (offset, len) = (sector.bytes(), bio.len.bytes());
        let Bio { op, flags, bufs, done, .. } = bio;
        let done = reactor::chain(done, self.watch.clone(), tag);
        let what = match op {
            Op::Read => SqeOp::Read { offset, bufs },
            Op::Write => SqeOp::Write { offset, bufs, fua: flags.contains(Flags::FUA) },
            Op::Flush => SqeOp::Flush,
            Op::Discard => SqeOp::Discard { offset, len },
            Op::WriteZeroes => SqeOp::WriteZeroes { offset, len, unmap: true },
        };
        reactor::push_bio(done, self.file, what);
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        self.state.borrow_mut().closed += 1;
    }
}

/// Opens `/ram/NAME/SECTORS`, `/ram4k/NAME/SECTORS` (logical blocks of 4 KiB), and
/// `/opaque/NAME/SECTORS` (no base). [`LV`] is a block device of the machine.
struct RamResolver(Shared);

/// A block device of the machine's own device mapper: 1024 sectors.
pub(crate) const LV: &str = "/dev/mapper/lv";

impl Resolver for RamResolver {
    fn has_block_device(&self, path: &str) -> LocalFuture<bool> {
        let is_there = path == LV;
        Box::pin(async move { is_there })
    }

    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let (state, word) = (self.0.clone(), word.to_owned());
        Box::pin(async move {
            reactor::sleep(Nanos(1)).await; // opening takes time: others run meanwhile
            let parts: Vec<_> = match &*word {
                LV => vec!["", "ram", "lv", "1024"],
                word => word.split('/').collect(),
            };
            let ["", kind @ ("ram" | "ram4k" | "opaque" | "lossy"), _, sectors] = parts[..] else {
                return Err(Error::not_found("no such file or directory"));
            };
            let sectors: u64 = sectors.parse().expect("a number of sectors");
            let logical_block_bytes = if kind == "ram4k" { 4096 } else { 512 };
            let limits = Limits {
                logical_block_bytes,
                discard_granularity_bytes: 512,
                write_zeroes: true,
                ..Limits::new(Sector(sectors))
            };
            let mut s = state.borrow_mut();
            s.opened += 1;
            let fresh = s.disks.len();
            let index = *s.names.entry(word.clone()).or_insert(fresh);
            if index == fresh {
                let bytes = usize::try_from(sectors * 512).expect("a small disk");
                s.disks.push(Disk { bytes: vec![0; bytes], ..Disk::default() });
            }
            drop(s);
            let file = FileId(u32::try_from(index).expect("few disks"));
            let ram = Ram {
                name: word,
                file,
                limits,
                state,
                watch: Rc::default(),
                unflushed: Rc::default(),
            };
            Ok(Rc::new(ram) as Rc<dyn BlockDevice>)
        })
    }
}

/// A reactor over RAM disks and a device mapper on it.
pub(crate) struct Bench {
    pub(crate) reactor: Reactor,
    pub(crate) dm: Rc<Dm>,
    pub(crate) state: Shared,
}

impl Bench {
    pub(crate) fn new(seed: u64) -> Bench {
        let state = Shared::default();
        {
            let mut s = state.borrow_mut();
            (s.random, s.latency_ns_max, s.logging) = (seed, 100_000, true);
        }
        let reactor = Reactor::enter(CoreId(0), Box::new(TestDriver(state.clone())));
        let dm = Dm::new(Rc::new(RamResolver(state.clone())));
        Bench { reactor, dm, state }
    }

    /// Runs `f` with the device mapper until its future has ended.
    pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        f: impl FnOnce(Rc<Dm>, Shared) -> F,
    ) -> T {
        let future = self.reactor.on(|| f(self.dm.clone(), self.state.clone()));
        self.reactor.block_on(future)
    }
}

/// A table over disks `a`, `b`, `c`, its lines' areas disjoint: first sectors written `@` are put
/// in. Each line is its length, the sectors that it takes of every disk, and its words.
pub(crate) fn lay_out(lines: Vec<(u64, u64, String)>) -> (u64, String) {
    let (mut start, mut offset, mut text) = (0, 0, String::new());
    for (len, width, line) in lines {
        let line = line.replace('@', &offset.to_string());
        text.push_str(&format!("{start} {len} {line}\n"));
        start += len;
        offset += width;
    }
    (start, text)
}

/// Index of the disk that `word` opened.
pub(crate) fn disk(state: &Shared, word: &str) -> usize {
    state.borrow().names[word]
}

/// What arrived at the disk since the last look.
pub(crate) fn take_log(state: &Shared, word: &str) -> Vec<(Op, u64, u64)> {
    let index = disk(state, word);
    std::mem::take(&mut state.borrow_mut().disks[index].log)
}

/// Buffers of `sectors` sectors filled with `byte`.
pub(crate) fn filled(byte: u8, sectors: u64) -> Bufs {
    let len = usize::try_from(sectors * 512).expect("a small request");
    let buf = block::Buf::alloc(len);
    buf.write(|b| b.fill(byte));
    buf.into()
}

pub(crate) fn bytes(bufs: &Bufs) -> Vec<u8> {
    let mut out = vec![0; bufs.len_bytes()];
    bufs.copy_to(&mut out);
    out
}

pub(crate) async fn write(
    dev: &dyn BlockDevice,
    byte: u8,
    at: u64,
    sectors: u64,
) -> Result<(), Status> {
    let bufs = filled(byte, sectors);
    reactor::write(dev, Flags::empty(), Class::Normal, Sector(at), bufs).await
}

pub(crate) async fn read(dev: &dyn BlockDevice, at: u64, sectors: u64) -> Result<Vec<u8>, Status> {
    let bufs = filled(0xEE, sectors);
    reactor::read(dev, Class::Normal, Sector(at), bufs.clone()).await?;
    Ok(bytes(&bufs))
}
