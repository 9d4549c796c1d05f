// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver with RAM disks that end every request at the next park, in order, and allocate nothing
//! in steady state: allocations above them are the engine's.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Bio, BlockDevice, CoreId, Flags, Limits, Nanos, Op, Sector, Status};
use reactor::{Driver, Event, FileId, Msg, OpResult, Reactor, Sqe, SqeOp};

/// Time from a request to its end.
const LATENCY: Nanos = Nanos(1000);

#[derive(Default)]
struct State {
    now: Nanos,
    disks: Vec<Vec<u8>>,
    ready: VecDeque<Event>,
}

impl State {
    fn perform(&mut self, file: FileId, what: &SqeOp) {
        let disk = &mut self.disks[file.0 as usize];
        let part = |offset: u64, len: usize| {
            let start = usize::try_from(offset).unwrap();
            start..start + len
        };
        match what {
            SqeOp::Read { offset, bufs } => bufs.copy_from(&disk[part(*offset, bufs.len_bytes())]),
            SqeOp::Write { offset, bufs, .. } => {
                bufs.copy_to(&mut disk[part(*offset, bufs.len_bytes())]);
            }
            SqeOp::Flush => {}
            SqeOp::Discard { .. }
            | SqeOp::WriteZeroes { .. }
            | SqeOp::Command { .. }
            | SqeOp::Accept
            | SqeOp::Recv { .. }
            | SqeOp::Send { .. }
            | SqeOp::Shutdown
            | SqeOp::ShutdownWrite
            | SqeOp::Close => panic!("no test asks for {what:?}"),
        }
    }
}

impl State {
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        if self.ready.is_empty() {
            self.now = self.now.max(deadline.unwrap_or(self.now));
        } else {
            self.now = self.now + LATENCY;
            out.extend(self.ready.drain(..));
        }
    }
}

struct RamDriver(Rc<RefCell<State>>);

impl Driver for RamDriver {
    fn now(&self) -> Nanos {
        self.0.borrow().now
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let mut s = self.0.borrow_mut();
        for Sqe { home, key, file, what } in batch.drain(..) {
            s.perform(file, &what);
            s.ready.push_back(Event::Cqe { home, key, result: OpResult::from(Status::Ok) });
        }
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        self.0.borrow_mut().park(deadline, out);
    }
    fn random(&mut self) -> u64 {
        0x0123_4567_89ab_cdef
    }
}

struct Ram {
    name: &'static str,
    file: FileId,
    capacity: Sector,
}

impl BlockDevice for Ram {
    fn name(&self) -> &str {
        self.name
    }
    fn limits(&self) -> Limits {
        Limits::new(self.capacity)
    }
    fn submit(&self, bio: Bio) {
        let offset = bio.sector.bytes();
        let what = match bio.op {
            Op::Read => SqeOp::Read { offset, bufs: bio.bufs },
            Op::Write => {
                SqeOp::Write { offset, bufs: bio.bufs, fua: bio.flags.contains(Flags::FUA) }
            }
            Op::Flush => SqeOp::Flush,
            Op::Discard | Op::WriteZeroes => panic!("no test asks for {:?}", bio.op),
        };
        reactor::push_bio(bio.done, self.file, what);
    }
}

/// A core with two RAM disks.
pub(crate) struct Bench {
    pub(crate) reactor: Reactor,
    pub(crate) origin: Rc<dyn BlockDevice>,
    pub(crate) cache: Rc<dyn BlockDevice>,
    state: Rc<RefCell<State>>,
}

impl Bench {
    pub(crate) fn new(origin: Sector, cache: Sector) -> Bench {
        let state = Rc::new(RefCell::new(State::default()));
        let disk = |name, capacity: Sector| -> Rc<dyn BlockDevice> {
            let mut s = state.borrow_mut();
            let file = FileId(u32::try_from(s.disks.len()).unwrap());
            s.disks.push(vec![0; usize::try_from(capacity.bytes()).unwrap()]);
            Rc::new(Ram { name, file, capacity })
        };
        let (origin, cache) = (disk("origin", origin), disk("cache", cache));
        let reactor = Reactor::enter(CoreId(0), Box::new(RamDriver(state.clone())));
        Bench { reactor, origin, cache, state }
    }

    /// How many times tasks are polled until `work` has ended and no task is ready.
    pub(crate) fn polls(&self, work: impl Future<Output = ()> + 'static) -> usize {
        let (core, mut events, mut polls) = (self.reactor.core(), Vec::new(), 0);
        self.reactor.on(|| reactor::spawn(work));
        loop {
            while core.ready() > 0 {
                core.poll_nth(0);
                polls += 1;
            }
            core.flush_sq();
            if self.state.borrow().ready.is_empty() {
                return polls;
            }
            self.state.borrow_mut().park(None, &mut events);
            events.drain(..).for_each(|event| core.deliver(event));
        }
    }
}
