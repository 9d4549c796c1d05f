// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's side of a device, as its driver behaves: queues with their tags, requests that
//! wait, recovery, and the copy of data into and out of buffers of tags where it is to copy them.
//! It panics where the driver would refuse a command (also one of another core
//! than that which fetched the tag), or give a client what it may not get. Each tag has commands of
//! its own, or it says which of several tags have a request.
//!
//! ```text
//!   waiting at a queue ─▶ an offered tag ─▶ owned by a core ─▶ committed: the client has it
//!      ▲                                       │
//!      └──────────── the server dies ──────────┘
//! ```
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Buf, Completion, CoreId, Nanos, Slice, Status};
use reactor::{CoreLocal, KeptOp, Msg, WaitList, core_id, post, sleep, spawn};
use sim::Rng;
use ublk::{Channel, Descriptor, TagBuffers, TagResult};

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 2;
pub(crate) const DISCARD: u32 = 3;
pub(crate) const ZEROES: u32 = 5;

/// A request of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientRequest {
    pub(crate) id: u64,
    pub(crate) op_flags: u32,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    /// Of a write what it writes; of a read what it got.
    pub(crate) data: Vec<u8>,
    /// A read whose data the server has put in.
    pub(crate) is_filled: bool,
}

/// What a client gets.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) request: ClientRequest,
    pub(crate) result: i32,
}

#[derive(Debug)]
enum Tag {
    /// Not fetched in this life of the server.
    Unknown,
    Offered(CoreId),
    Owned(CoreId, ClientRequest),
    Ended,
}

struct KernelQueue {
    tags: Vec<Tag>,
    waiting: VecDeque<ClientRequest>,
    /// With which buffer each tag is offered, where the kernel copies.
    bufs: Vec<Option<Buf>>,
    /// Those of all tags, where the server takes several at a time.
    all_bufs: Option<Rc<TagBuffers>>,
    /// Tags whose request the server has not been told of, and how often it was told.
    untold: VecDeque<u16>,
    told: u64,
    /// Where the server waits for its tags: a [`WaitList`] of that core.
    server: Option<(CoreId, CoreLocal)>,
    /// Its fetches are refused.
    is_refused: bool,
}

struct State {
    rng: Rng,
    queues: Vec<KernelQueue>,
    completed: VecDeque<Completed>,
    /// Requests are given to the server.
    is_live: bool,
    is_stopped: bool,
    commits: u64,
}

/// The kernel; it outlives the server.
#[derive(Clone)]
pub(crate) struct Kernel(Rc<RefCell<State>>);

/// The server's connection to one queue, of one life.
pub(crate) struct Connection {
    kernel: Kernel,
    queue: u16,
    changed: Rc<WaitList>,
    takes_several: bool,
}

impl Kernel {
    /// A device with so many queues, each with `depth` tags.
    pub(crate) fn new(rng: Rng, queues: usize, depth: usize) -> Kernel {
        let queue = || KernelQueue {
            tags: (0..depth).map(|_| Tag::Unknown).collect(),
            waiting: VecDeque::new(),
            bufs: vec![None; depth],
            all_bufs: None,
            untold: VecDeque::new(),
            told: 0,
            server: None,
            is_refused: false,
        };
        Kernel(Rc::new(RefCell::new(State {
            rng,
            queues: (0..queues).map(|_| queue()).collect(),
            completed: VecDeque::new(),
            is_live: false,
            is_stopped: false,
            commits: 0,
        })))
    }

    /// A server opens the device, on the core that is to serve this queue.
    pub(crate) fn connect(&self, queue: u16) -> Connection {
        let changed = Rc::new(WaitList::new());
        let name = CoreLocal::keep(changed.clone());
        self.0.borrow_mut().queues[usize::from(queue)].server = Some((core_id(), name));
        Connection { kernel: self.clone(), queue, changed, takes_several: false }
    }

    /// The same; the server takes several tags at a time.
    pub(crate) fn connect_for_several(&self, queue: u16) -> Connection {
        Connection { takes_several: true, ..self.connect(queue) }
    }

    /// All tags of all queues were fetched: requests flow.
    pub(crate) fn go_live(&self) {
        let mut state = self.0.borrow_mut();
        let mut tags = state.queues.iter().flat_map(|queue| &queue.tags);
        assert!(tags.all(|tag| matches!(tag, Tag::Offered(_))), "half fetched");
        state.is_live = true;
        (0..state.queues.len()).for_each(|queue| state.deliver(queue));
        state.wake_all();
    }

    /// The server has died: what it had waits again at its queue, in any order, for the next one.
    pub(crate) fn server_died(&self) {
        let mut guard = self.0.borrow_mut();
        let state = &mut *guard;
        for queue in &mut state.queues {
            for tag in &mut queue.tags {
                if let Tag::Owned(_, request) = std::mem::replace(tag, Tag::Unknown) {
                    let request = ClientRequest { is_filled: false, ..request };
                    let at = state.rng.index(queue.waiting.len() + 1);
                    queue.waiting.insert(at, request);
                }
            }
            queue.server = None;
            queue.bufs.fill(None);
            queue.all_bufs = None;
            queue.untold.clear();
        }
        state.is_live = false;
    }

    /// Fetches of this queue are refused from now on.
    pub(crate) fn refuse(&self, queue: usize) {
        self.0.borrow_mut().queues[queue].is_refused = true;
    }

    /// Stops the device: tags without a request end now, the others after their commit.
    pub(crate) fn stop(&self) {
        let mut state = self.0.borrow_mut();
        state.is_stopped = true;
        for tag in state.queues.iter_mut().flat_map(|queue| &mut queue.tags) {
            if matches!(tag, Tag::Offered(_)) {
                *tag = Tag::Ended;
            }
        }
        state.wake_all();
    }

    /// A client sends a request, from a processor of any queue.
    pub(crate) fn submit(&self, request: ClientRequest) {
        let mut state = self.0.borrow_mut();
        let count = state.queues.len();
        let queue = state.rng.index(count);
        state.queues[queue].waiting.push_back(request);
        state.deliver(queue);
        state.wake(queue);
    }

    pub(crate) fn take_completed(&self) -> Vec<Completed> {
        self.0.borrow_mut().completed.drain(..).collect()
    }

    pub(crate) fn commits(&self) -> u64 {
        self.0.borrow().commits
    }

    /// Requests that the server has.
    pub(crate) fn owned(&self) -> usize {
        let state = self.0.borrow();
        let tags = state.queues.iter().flat_map(|queue| &queue.tags);
        tags.filter(|tag| matches!(tag, Tag::Owned(..))).count()
    }
}

impl State {
    fn wake(&self, queue: usize) {
        let Some((core, name)) = self.queues[queue].server else { return };
        let wake = move || {
            if let Some(changed) = name.get::<WaitList>() {
                changed.wake_all();
            }
        };
        if core == core_id() { wake() } else { post(core, Msg::Call(Box::new(wake))) }
    }

    fn wake_all(&self) {
        (0..self.queues.len()).for_each(|queue| self.wake(queue));
    }

    fn deliver(&mut self, nth: usize) {
        let queue = &mut self.queues[nth];
        while self.is_live && !self.is_stopped && !queue.waiting.is_empty() {
            let offered = |tag: &Tag| match tag {
                Tag::Offered(core) => Some(*core),
                Tag::Unknown | Tag::Owned(..) | Tag::Ended => None,
            };
            let free = queue.tags.iter().enumerate();
            let free: Vec<_> = free.filter_map(|(at, tag)| Some((at, offered(tag)?))).collect();
            if free.is_empty() {
                return;
            }
            let (at, core) = free[self.rng.index(free.len())];
            let next = queue.waiting.pop_front().expect("not empty");
            if let (Some(buf), WRITE) = (queue.bufs[at].take(), next.op_flags & 0xff) {
                buf.write(|bytes| bytes[..next.data.len()].copy_from_slice(&next.data));
            }
            if let Some(bufs) = &queue.all_bufs {
                let tag = u16::try_from(at).unwrap();
                if next.op_flags & 0xff == WRITE {
                    let buf = bufs.data(tag, next.data.len());
                    buf.write(|bytes| bytes.copy_from_slice(&next.data));
                }
                queue.untold.push_back(tag);
            }
            queue.tags[at] = Tag::Owned(core, next);
        }
    }

    fn owned_by_this_core(&mut self, (queue, tag): (u16, u16)) -> &mut ClientRequest {
        match &mut self.queues[usize::from(queue)].tags[usize::from(tag)] {
            Tag::Owned(core, request) => {
                assert_eq!(*core, core_id(), "tag {tag} of queue {queue} is another core's");
                request
            }
            other @ (Tag::Unknown | Tag::Offered(_) | Tag::Ended) => {
                panic!("tag {tag} of queue {queue} is {other:?}")
            }
        }
    }

    fn commit(&mut self, at: (u16, u16), result: i32, buf: Option<&Buf>) {
        self.commits += 1;
        let request = self.owned_by_this_core(at);
        if let (Some(buf), READ, 0..) = (buf, request.op_flags & 0xff, result) {
            let (data, len) = (&mut request.data, request.sectors as usize * 512);
            buf.read(|bytes| data.copy_from_slice(&bytes[..len]));
            request.is_filled = true;
        }
        let request = request.clone();
        let bytes = i32::try_from(request.data.len()).unwrap();
        if result >= 0 && request.op_flags & 0xff <= WRITE {
            assert_eq!(result, bytes, "a part of {request:?}");
            assert!(request.op_flags & 0xff != READ || request.is_filled, "no data: {request:?}");
        }
        self.completed.push_back(Completed { request, result });
        let next = if self.is_stopped { Tag::Ended } else { Tag::Offered(core_id()) };
        let queue = usize::from(at.0);
        self.queues[queue].tags[usize::from(at.1)] = next;
        if self.queues[queue].all_bufs.is_none() {
            self.queues[queue].bufs[usize::from(at.1)] = buf.cloned();
        }
        self.deliver(queue);
    }
}

impl Connection {
    fn answer(&self, tag: u16, done: Completion) {
        let (kernel, changed) = (self.kernel.clone(), self.changed.clone());
        let (queue, nth) = (usize::from(self.queue), usize::from(tag));
        spawn(async move {
            let is_over = || {
                let tag = &kernel.0.borrow().queues[queue].tags[nth];
                matches!(tag, Tag::Owned(..) | Tag::Ended)
            };
            changed.wait_for(is_over).await;
            let queue = &kernel.0.borrow().queues[queue];
            let has_ended = matches!(queue.tags[nth], Tag::Ended);
            let refused = if queue.is_refused { Status::Io } else { Status::NoDevice };
            done.complete(if has_ended { refused } else { Status::Ok });
        });
    }
}

impl Channel for Connection {
    fn fetch(&self, tag: u16, buf: Option<&Buf>, done: Completion) {
        let mut state = self.kernel.0.borrow_mut();
        let queue = &mut state.queues[usize::from(self.queue)];
        let slot = &mut queue.tags[usize::from(tag)];
        assert!(matches!(slot, Tag::Unknown), "tag {tag} is fetched twice: {slot:?}");
        *slot = if queue.is_refused { Tag::Ended } else { Tag::Offered(core_id()) };
        queue.bufs[usize::from(tag)] = buf.cloned();
        drop(state);
        self.answer(tag, done);
    }

    fn commit_and_fetch(&self, tag: u16, result: i32, buf: Option<&Buf>, done: Completion) {
        self.kernel.0.borrow_mut().commit((self.queue, tag), result, buf);
        self.changed.wake_all();
        self.answer(tag, done);
    }

    fn takes_several(&self) -> bool {
        self.takes_several
    }

    fn prepare(&self, buffers: &Rc<TagBuffers>, done: Completion) {
        let mut state = self.kernel.0.borrow_mut();
        let queue = &mut state.queues[usize::from(self.queue)];
        if queue.is_refused {
            return done.complete(Status::Io);
        }
        for slot in &mut queue.tags {
            assert!(matches!(slot, Tag::Unknown), "a tag is prepared twice: {slot:?}");
            *slot = Tag::Offered(core_id());
        }
        queue.all_bufs = Some(buffers.clone());
        drop(state);
        done.complete(Status::Ok);
    }

    fn take(&self, _buffers: &Rc<TagBuffers>, place: &Rc<KeptOp>) {
        let (kernel, changed, place) = (self.kernel.clone(), self.changed.clone(), place.clone());
        let queue = usize::from(self.queue);
        spawn(async move {
            let has_some = || !kernel.0.borrow().queues[queue].untold.is_empty();
            let has_ended = || {
                let tags = &kernel.0.borrow().queues[queue].tags;
                tags.iter().all(|tag| matches!(tag, Tag::Ended))
            };
            loop {
                changed.wait_for(|| has_some() || has_ended()).await;
                if !has_some() {
                    return place.repeated().complete(Status::NoDevice);
                }
                let told = || kernel.0.borrow().queues[queue].told;
                let before = told();
                place.repeated().complete(Status::Ok);
                changed.wait_for(|| told() != before).await;
            }
        });
    }

    fn taken(&self, each: &mut dyn FnMut(u16)) {
        let mut state = self.kernel.0.borrow_mut();
        let untold = state.queues[usize::from(self.queue)].untold.len();
        // It tells as many as there is room for.
        let told = state.rng.index(untold) + 1;
        let queue = &mut state.queues[usize::from(self.queue)];
        queue.untold.drain(..told).for_each(each);
        queue.told += 1;
        drop(state);
        self.changed.wake_all();
    }

    fn commit(
        &self,
        results: &[TagResult],
        buffers: &Rc<TagBuffers>,
        tells: bool,
        place: &Rc<KeptOp>,
    ) {
        let mut state = self.kernel.0.borrow_mut();
        for TagResult { tag, result } in results {
            let buf = &buffers.all()[usize::from(*tag)];
            state.commit((self.queue, *tag), *result, Some(buf));
        }
        let pause = Nanos(state.rng.below(20_000));
        drop(state);
        self.changed.wake_all();
        if tells {
            // Later, if others are told meanwhile.
            let place = place.clone();
            spawn(async move {
                sleep(pause).await;
                place.repeated().complete(Status::Ok);
            });
        }
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        let mut state = self.kernel.0.borrow_mut();
        let request = state.owned_by_this_core((self.queue, tag));
        let ClientRequest { op_flags, sector, sectors, .. } = *request;
        Descriptor { op_flags, sectors, sector, addr: 0 }
    }

    fn copy_in(&self, tag: u16, buf: &Slice) -> Result<(), Status> {
        let mut state = self.kernel.0.borrow_mut();
        let request = state.owned_by_this_core((self.queue, tag));
        assert_eq!(request.op_flags & 0xff, WRITE, "only a write has data to read");
        buf.write(|bytes| bytes.copy_from_slice(&request.data));
        Ok(())
    }

    fn copy_out(&self, tag: u16, buf: &Slice) -> Result<(), Status> {
        let mut state = self.kernel.0.borrow_mut();
        let request = state.owned_by_this_core((self.queue, tag));
        assert_eq!(request.op_flags & 0xff, READ, "only a read takes data");
        buf.read(|bytes| request.data.copy_from_slice(bytes));
        request.is_filled = true;
        Ok(())
    }
}
