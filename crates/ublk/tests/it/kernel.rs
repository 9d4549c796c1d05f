// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's side of a queue, as its driver behaves: tags, requests that wait, and recovery. It
//! panics where the driver would refuse a command, or give a client what it may not get.
//!
//! ```text
//!   waiting ─▶ a tag that was offered ─▶ owned by the server ─▶ committed: the client has it
//!      ▲                                        │
//!      └───────────── the server dies ──────────┘
//! ```
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use block::{Bufs, Nanos, Status};
use reactor::{OpResult, WaitList, sleep};
use sim::Rng;
use ublk::{Channel, Descriptor};

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
    Offered,
    Owned(ClientRequest),
    Ended,
}

struct State {
    rng: Rng,
    tags: Vec<Tag>,
    waiting: VecDeque<ClientRequest>,
    completed: VecDeque<Completed>,
    /// Requests are given to the server.
    is_live: bool,
    is_stopped: bool,
    commits: u64,
}

/// The kernel; it outlives the server.
#[derive(Clone)]
pub(crate) struct Kernel(Rc<RefCell<State>>);

/// The server's connection, of one life.
pub(crate) struct Connection {
    kernel: Kernel,
    changed: Rc<WaitList>,
}

/// Wakes what waits on a connection; for the life in which it was made.
pub(crate) struct ClientSignal(Rc<WaitList>);

impl Kernel {
    pub(crate) fn new(rng: Rng, depth: usize) -> Kernel {
        let tags = (0..depth).map(|_| Tag::Unknown).collect();
        Kernel(Rc::new(RefCell::new(State {
            rng,
            tags,
            waiting: VecDeque::new(),
            completed: VecDeque::new(),
            is_live: false,
            is_stopped: false,
            commits: 0,
        })))
    }

    /// A server opens the device.
    pub(crate) fn connect(&self) -> (Connection, ClientSignal) {
        let changed = Rc::new(WaitList::new());
        (Connection { kernel: self.clone(), changed: changed.clone() }, ClientSignal(changed))
    }

    /// All tags were fetched: requests flow.
    pub(crate) fn go_live(&self, signal: &ClientSignal) {
        let mut state = self.0.borrow_mut();
        assert!(state.tags.iter().all(|tag| matches!(tag, Tag::Offered)), "half fetched");
        state.is_live = true;
        state.deliver();
        signal.0.wake_all();
    }

    /// The server has died: what it had waits again, in any order, for the next one.
    pub(crate) fn server_died(&self) {
        let mut guard = self.0.borrow_mut();
        let state = &mut *guard;
        for tag in &mut state.tags {
            if let Tag::Owned(request) = std::mem::replace(tag, Tag::Unknown) {
                let request = ClientRequest { is_filled: false, ..request };
                let at = state.rng.index(state.waiting.len() + 1);
                state.waiting.insert(at, request);
            }
        }
        state.is_live = false;
    }

    /// Stops the device: tags without a request end now, the others after their commit.
    pub(crate) fn stop(&self, signal: &ClientSignal) {
        let mut state = self.0.borrow_mut();
        state.is_stopped = true;
        for tag in &mut state.tags {
            if matches!(tag, Tag::Offered) {
                *tag = Tag::Ended;
            }
        }
        signal.0.wake_all();
    }

    pub(crate) fn submit(&self, request: ClientRequest, signal: &ClientSignal) {
        let mut state = self.0.borrow_mut();
        state.waiting.push_back(request);
        state.deliver();
        signal.0.wake_all();
    }

    pub(crate) fn take_completed(&self) -> Vec<Completed> {
        self.0.borrow_mut().completed.drain(..).collect()
    }

    pub(crate) fn commits(&self) -> u64 {
        self.0.borrow().commits
    }

    /// Requests that the server has.
    pub(crate) fn owned(&self) -> usize {
        self.0.borrow().tags.iter().filter(|tag| matches!(tag, Tag::Owned(_))).count()
    }
}

impl State {
    fn deliver(&mut self) {
        while self.is_live && !self.is_stopped && !self.waiting.is_empty() {
            let free: Vec<usize> = (0..self.tags.len())
                .filter(|nth| matches!(self.tags[*nth], Tag::Offered))
                .collect();
            if free.is_empty() {
                return;
            }
            let nth = free[self.rng.index(free.len())];
            let next = self.waiting.pop_front().expect("not empty");
            self.tags[nth] = Tag::Owned(next);
        }
    }

    fn owned_by(&mut self, tag: u16) -> &mut ClientRequest {
        match &mut self.tags[usize::from(tag)] {
            Tag::Owned(request) => request,
            other @ (Tag::Unknown | Tag::Offered | Tag::Ended) => panic!("tag {tag} is {other:?}"),
        }
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.commits += 1;
        let request = self.owned_by(tag).clone();
        let bytes = i32::try_from(request.data.len()).unwrap();
        if result >= 0 && request.op_flags & 0xff <= WRITE {
            assert_eq!(result, bytes, "a part of {request:?}");
            assert!(request.op_flags & 0xff != READ || request.is_filled, "no data: {request:?}");
        }
        self.completed.push_back(Completed { request, result });
        let next = if self.is_stopped { Tag::Ended } else { Tag::Offered };
        self.tags[usize::from(tag)] = next;
        self.deliver();
    }
}

impl Connection {
    fn delay(&self) -> Nanos {
        Nanos(self.kernel.0.borrow_mut().rng.below(30_000))
    }

    fn answer(&self, tag: u16) -> <Connection as Channel>::Io {
        let (kernel, changed) = (self.kernel.clone(), self.changed.clone());
        Box::pin(async move {
            let nth = usize::from(tag);
            let is_over = || matches!(kernel.0.borrow().tags[nth], Tag::Owned(_) | Tag::Ended);
            changed.wait_for(is_over).await;
            let has_ended = matches!(kernel.0.borrow().tags[nth], Tag::Ended);
            (if has_ended { Status::NoDevice } else { Status::Ok }).into()
        })
    }

    fn copy(
        &self,
        tag: u16,
        copy: impl FnOnce(&mut ClientRequest) + 'static,
    ) -> <Self as Channel>::Io {
        let (kernel, delay) = (self.kernel.clone(), self.delay());
        Box::pin(async move {
            sleep(delay).await;
            copy(kernel.0.borrow_mut().owned_by(tag));
            Status::Ok.into()
        })
    }
}

impl Channel for Connection {
    type Io = Pin<Box<dyn Future<Output = OpResult>>>;

    fn fetch(&self, tag: u16) -> Self::Io {
        let mut state = self.kernel.0.borrow_mut();
        let slot = &mut state.tags[usize::from(tag)];
        assert!(matches!(slot, Tag::Unknown), "tag {tag} is fetched twice: {slot:?}");
        *slot = Tag::Offered;
        drop(state);
        self.answer(tag)
    }

    fn commit_and_fetch(&self, tag: u16, result: i32) -> Self::Io {
        self.kernel.0.borrow_mut().commit(tag, result);
        self.changed.wake_all();
        self.answer(tag)
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        let mut state = self.kernel.0.borrow_mut();
        let ClientRequest { op_flags, sector, sectors, .. } = *state.owned_by(tag);
        Descriptor { op_flags, sectors, sector, addr: 0 }
    }

    fn copy_in(&self, tag: u16, bufs: Bufs) -> Self::Io {
        self.copy(tag, move |request| {
            assert_eq!(request.op_flags & 0xff, WRITE, "only a write has data to read");
            bufs.copy_from(&request.data);
        })
    }

    fn copy_out(&self, tag: u16, bufs: Bufs) -> Self::Io {
        self.copy(tag, move |request| {
            assert_eq!(request.op_flags & 0xff, READ, "only a read takes data");
            bufs.copy_to(&mut request.data);
            request.is_filled = true;
        })
    }
}
