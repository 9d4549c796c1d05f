// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring: submission and completion, one system call per park.
//!
//! Files are not registered with the ring. Measured (2026-11, Linux 6.18, 4 KiB reads of a tmpfs
//! file at depth 32, best of five by turns) the CPU time of a request is 1.8 us either way, and the
//! kernel keeps the lock of a registered file 30 to 40 ms after a `kill -9`, instead of 10. Buffers
//! are not registered either: 1.4 us against 1.5 with O_DIRECT on ext4, within the spread.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Instant;

use block::{CoreId, Error, ErrorKind, Nanos, OpKey, Status};
use io_uring::{IoUring, opcode, squeue, types};
use reactor::{Driver, Event, FileId, Found, Msg, OpResult, Sqe, SqeOp};
use slab::Slab;

use crate::command_stream::{CommandStreams, STREAM};
use crate::files::Files;
use crate::mailbox::{Mailbox, Sender};
use crate::passed_files::{PassedFiles, attach_lifeline};
use crate::pmem::MappedOutcome;
use crate::poll::PollTime;
use crate::request::{Latest, Outcome, Request, Vectors};
use crate::ring_number::RingNumber;
use crate::ring_timeout::{RingTimeout, TIMEOUT};
use crate::setup;
use crate::sleep_check::SleepCheck;
use crate::socket;
use crate::table::{CloseResult, Closer, Table};
use crate::wakeup::{WAKEUP, WakeupRead};
use commands::ERROR_ONLY;
use sleep::Waited;

mod commands;
mod sleep;

/// Kernel threads for requests that may block: enough, so that a file that does not answer leaves
/// some for others. The default, four per processor, is less than one client may have in flight.
const BOUNDED_WORKERS_MAX: u32 = 1024;
/// How long a dropped driver waits until the kernel has released its buffers.
const DRAIN_SECS_MAX: u64 = 30;

/// The completion of a cancellation: the request that it has ended has a completion of its own.
const CANCELLATION: u64 = WAKEUP - 1;

/// What waits for room in the submission ring, in this order.
enum Waiting {
    /// A request.
    Start(usize),
    /// The end of a request that was submitted or waits before it.
    Cancel(usize),
    /// A command that is answered again and again.
    Stream(usize),
    /// A command that nothing is kept of.
    OfStream(Box<Sqe>),
}

/// Start of the clock, common to all cores, so that their times can be compared.
#[expect(clippy::disallowed_methods, reason = "this is the clock of production")]
static CLOCK_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The state that the driver and its [`Files`] share.
pub(crate) struct Shared {
    ring: IoUring,
    number: RingNumber,
    pub(crate) table: Table,
    requests: Slab<Request>,
    streams: CommandStreams,
    backlog: VecDeque<Waiting>,
    spare: Vec<Vectors>,
    /// Events for the reactor.
    ready: Vec<Event>,
    /// Files that another process has passed.
    pub(crate) held: PassedFiles,
    pub(crate) wakeup: WakeupRead,
    timeout: RingTimeout,
    /// Prompt requests in the ring (`sleep`).
    prompt: usize,
    /// The last park returned events.
    busy: bool,
    sleep_check: SleepCheck,
    poll_time: PollTime,
    /// It has polled since then and found nothing: the next sleep begins at once.
    has_polled: Option<Nanos>,
    /// The driver is being dropped: nothing is retried.
    ending: bool,
}

/// The driver of one core: [`reactor::Reactor::enter`] takes it. It stays on the thread that made
/// it.
pub struct Uring {
    id: CoreId,
    shared: Rc<RefCell<Shared>>,
    mailboxes: Vec<Mailbox>,
    messages: Vec<Msg>,
    clock_start: Instant,
}

impl Uring {
    /// The driver of a program with one core, called 0.
    pub fn new() -> Result<Uring, Error> {
        Uring::with_mailboxes(CoreId(0), vec![Mailbox::new()?])
    }

    /// The driver of core `id`; `mailboxes` are those of all cores, its own among them.
    pub fn with_mailboxes(id: CoreId, mailboxes: Vec<Mailbox>) -> Result<Uring, Error> {
        assert!(usize::from(id.0) < mailboxes.len(), "core {} has no mailbox", id.0);
        let ring = setup::build().map_err(|e| {
            let hint = "io_uring is not available: needs Linux 5.15 or later, sysctl \
                        kernel.io_uring_disabled = 0, and no seccomp filter against it";
            Error::new(ErrorKind::NotSupported, hint).because(e)
        })?;
        // A kernel before 5.15 refuses this: the ring also works with fewer.
        let _ = ring.submitter().register_iowq_max_workers(&mut [BOUNDED_WORKERS_MAX, 0]);
        attach_lifeline(&ring)?;
        let number = RingNumber::register(&ring);
        let shared = Shared {
            ring,
            number,
            table: Table::default(),
            requests: Slab::with_capacity(setup::SQ_ENTRIES as usize),
            streams: CommandStreams::default(),
            backlog: VecDeque::new(),
            spare: Vec::new(),
            ready: Vec::new(),
            held: PassedFiles::default(),
            wakeup: WakeupRead::new(mailboxes[usize::from(id.0)].clone()),
            timeout: RingTimeout::default(),
            prompt: 0,
            busy: false,
            sleep_check: SleepCheck::default(),
            poll_time: PollTime::default(),
            has_polled: None,
            ending: false,
        };
        let shared = Rc::new(RefCell::new(shared));
        mailboxes[usize::from(id.0)].open();
        Ok(Uring { id, shared, mailboxes, messages: Vec::new(), clock_start: *CLOCK_START })
    }

    /// The handle that opens and closes this driver's files.
    pub fn files(&self) -> Files {
        Files::new(self.shared.clone())
    }

    /// The handle by which other threads call this core.
    pub fn sender(&self) -> Sender {
        self.mailbox().sender()
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailboxes[usize::from(self.id.0)]
    }
}

impl Shared {
    fn begin(&mut self, sqe: Sqe, latest: &mut Latest) {
        if matches!(sqe.what, SqeOp::Command { .. }) {
            return self.begin_command(sqe);
        }
        let Sqe { home, key, file, what } = sqe;
        if matches!(what, SqeOp::Close) {
            *latest = Latest::default(); // they may be sent now
            let status = match self.close(file, Some((home, key))) {
                CloseResult::Done => Status::Ok,
                CloseResult::Deferred => return,
                CloseResult::NoSuchFile => Status::NoDevice,
            };
            return self.ready.push(Event::Cqe { home, key, result: status.into() });
        }
        let mut end = |status: Status| {
            self.ready.push(Event::Cqe { home, key, result: status.into() });
        };
        if let Some(MappedOutcome::Done(status)) = self.table.serve(file, &what) {
            return end(status);
        }
        if self.table.is_listener(file) {
            if matches!(what, SqeOp::Shutdown) {
                end(Status::Ok);
                *latest = Latest::default(); // they are sent now
                return self.end_accepts(file);
            }
            if matches!(what, SqeOp::Accept) && self.table.accepts_ended(file) {
                return end(Status::Invalid);
            }
        }
        let Ok(direct) = self.table.begin(file) else { return end(Status::NoDevice) };
        if let SqeOp::Send { bufs } = &what
            && bufs.iter().any(|s| s.len() >= socket::LARGE_BYTES)
        {
            self.table.enlarge_send_buffer(file);
        }
        let neighbour = latest.of(&what);
        let request = Request::new((home, key), file, what, direct);
        if request.is_empty() {
            return self.end((home, key), file, Status::Ok.into());
        }
        if let Some(Some(slot)) = neighbour {
            let before = &mut self.requests[*slot];
            if before.is_followed_by(&request) {
                return before.join(request);
            }
        }
        let slot = self.requests.insert(request);
        if let Some(latest) = neighbour {
            *latest = Some(slot);
        } else if self.backlog.is_empty() && self.push(&Waiting::Start(slot)) {
            return;
        }
        self.backlog.push_back(Waiting::Start(slot));
    }

    /// Closes a file now, or when the last request on it has ended (UR-U3).
    pub(crate) fn close(&mut self, file: FileId, closer: Closer) -> CloseResult {
        let result = self.table.close(file, closer);
        if matches!(result, CloseResult::Deferred) && self.table.ends_by_cancel(file) {
            self.end_accepts(file);
        }
        result
    }

    /// Ends what waits on a listener or an eventfd, now and later, and leaves it as it is (UR-U8).
    fn end_accepts(&mut self, file: FileId) {
        self.table.end_accepts(file);
        let waiting = self.requests.iter().filter(|(_, request)| request.file == file);
        self.backlog.extend(waiting.map(|(slot, _)| Waiting::Cancel(slot)));
        self.fill();
    }

    /// Ends what waits on a socket, and leaves the socket as it is (UR-U11).
    fn end_waits(&mut self, file: FileId) {
        let on_it = self.requests.iter_mut().filter(|(_, request)| request.file == file);
        let waiting = on_it.filter_map(|(slot, request)| request.end_wait().then_some(slot));
        self.backlog.extend(waiting.map(Waiting::Cancel));
        self.fill();
    }

    fn end(&mut self, (home, key): (CoreId, OpKey), file: FileId, result: OpResult) {
        self.ready.push(Event::Cqe { home, key, result });
        self.end_use(file);
    }

    /// A request of a file is over.
    fn end_use(&mut self, file: FileId) {
        if let Some((home, key)) = self.table.end(file) {
            self.ready.push(Event::Cqe { home, key, result: Status::Ok.into() });
        }
    }

    /// Ends the request of a slot, or the requests that were sent as one.
    fn end_slot(&mut self, slot: usize, result: OpResult) {
        let mut request = self.requests.remove(slot);
        if let Some(vectors) = request.take_vectors() {
            self.spare.push(vectors);
        }
        let (home, key, file) = (request.home, request.key, request.file);
        if request.parts().is_empty() {
            return self.end((home, key), file, result);
        }
        if result.status == Status::Ok || self.ending {
            for part in request.parts() {
                self.end((part.home, part.key), file, result);
            }
            return;
        }
        for (part, alone) in request.split() {
            let Some(alone) = alone else {
                self.end((part.home, part.key), file, Status::Ok.into());
                continue;
            };
            self.backlog.push_back(Waiting::Start(self.requests.insert(alone)));
        }
    }

    /// Moves the backlog into the submission ring, as far as it has room.
    fn fill(&mut self) {
        while let Some(next) = self.backlog.pop_front() {
            if !self.push(&next) {
                self.backlog.push_front(next);
                // EBUSY, EAGAIN, EINTR: reaping completions makes room.
                if self.number.enter(&mut self.ring, 0).is_err() {
                    break;
                }
            }
        }
    }

    /// Puts an entry into the submission ring; false when that is full.
    fn push(&mut self, next: &Waiting) -> bool {
        let entry = match *next {
            Waiting::Start(slot) => {
                let request = &mut self.requests[slot];
                let entry = request.entry(self.table.fd(request.file), &mut self.spare);
                let entry = entry.user_data(slot as u64);
                match self.table.may_block(request.file) {
                    true => entry.flags(squeue::Flags::ASYNC), // UR-U7
                    false => entry,
                }
            }
            // The kernel takes entries in order: a later request in the same slot, should this
            // one have ended, has not begun yet.
            Waiting::Cancel(slot) => {
                opcode::AsyncCancel::new(slot as u64).build().user_data(CANCELLATION)
            }
            Waiting::Stream(nth) => {
                self.streams.entry(nth, self.table.fd(self.streams.get(nth).file))
            }
            Waiting::OfStream(ref sqe) => return self.push_of_stream(sqe),
        };
        // SAFETY: UR-U1: `requests` holds buffers and arrays until the completion is reaped;
        // `streams` does until the last one.
        let is_pushed = unsafe { self.ring.submission().push(&entry) }.is_ok();
        if let (Waiting::Start(slot), true) = (next, is_pushed)
            && self.requests[*slot].is_prompt()
        {
            self.prompt += 1;
        }
        is_pushed
    }

    /// Takes all completions.
    fn reap(&mut self) {
        loop {
            let Some(cqe) = self.ring.completion().next() else { return };
            match cqe.user_data() {
                WAKEUP => self.wakeup.armed = false,
                TIMEOUT => self.timeout.has_ended(),
                _ => {}
            }
            if matches!(cqe.user_data(), WAKEUP | TIMEOUT | CANCELLATION) {
                continue;
            }
            if cqe.user_data() & ERROR_ONLY != 0 {
                self.of_stream_failed(cqe.user_data(), cqe.result());
                continue;
            }
            if cqe.user_data() & STREAM != 0 {
                let nth = usize::try_from(cqe.user_data() & !STREAM).expect("a slab index");
                self.stream_answered(nth, cqe.result(), cqe.flags());
                continue;
            }
            let slot = usize::try_from(cqe.user_data()).expect("made from a slab index");
            if self.requests[slot].is_prompt() {
                self.prompt -= 1;
                if self.requests[slot].is_done(cqe.result()) {
                    let file = self.requests.remove(slot).file;
                    self.end_use(file); // nobody is told
                    continue;
                }
            }
            let result = match self.requests[slot].outcome(cqe.result()) {
                Outcome::Retry if self.ending => Status::Io.into(),
                // Its cancellation has found nothing to end.
                Outcome::Retry if self.table.accepts_ended(self.requests[slot].file) => {
                    Status::Invalid.into()
                }
                Outcome::Retry => {
                    self.backlog.push_back(Waiting::Start(slot));
                    continue;
                }
                Outcome::Done(result) => result,
                Outcome::Flushed => {
                    let request = &mut self.requests[slot];
                    if self.table.keeps_size(request.file) && !self.ending {
                        request.look_at_size(); // UR-U9
                        self.backlog.push_back(Waiting::Start(slot));
                        continue;
                    }
                    Status::Ok.into()
                }
                Outcome::Size(bytes) => {
                    let is_whole = self.table.size_found(self.requests[slot].file, bytes);
                    (if is_whole { Status::Ok } else { Status::Io }).into()
                }
                Outcome::Accepted(fd) => {
                    // SAFETY: accept has just returned this descriptor: it has no other owner.
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    let FileId(value) = socket::insert(&mut self.table, fd);
                    OpResult { status: Status::Ok, value }
                }
            };
            self.end_slot(slot, result);
        }
    }
}

impl Driver for Uring {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.clock_start.elapsed().as_nanos()).expect("584 years"))
    }

    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let mut shared = self.shared.borrow_mut();
        let mut latest = Latest::default();
        for sqe in batch.drain(..) {
            shared.begin(sqe, &mut latest);
        }
        shared.fill();
    }

    fn end_waits(&mut self, file: FileId) {
        self.shared.borrow_mut().end_waits(file);
    }

    fn post(&mut self, to: CoreId, msg: Msg) {
        self.post_batch(to, &mut vec![msg]);
    }

    fn post_batch(&mut self, to: CoreId, batch: &mut Vec<Msg>) {
        let to = self.mailboxes.get(usize::from(to.0)).expect("a core that exists");
        to.send_all(batch);
        // Messages left are for a core that has ended: its devices are gone.
        let ready = &mut self.shared.borrow_mut().ready;
        for msg in batch.extract_if(.., |msg| matches!(msg, Msg::Submit { .. })) {
            if let Msg::Submit { device: _, bio } = msg {
                let (home, key) = bio.done.into_raw();
                ready.push(Event::Cqe { home, key, result: Status::NoDevice.into() });
            }
        }
    }

    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        let shared = &mut *self.shared.borrow_mut();
        let mailbox = &self.mailboxes[usize::from(self.id.0)];
        let had_work = std::mem::take(&mut shared.busy);
        let polled = shared.has_polled.take();
        let submits = !shared.ring.submission().is_empty();
        let left = match shared.ready.is_empty() && !mailbox.has_mail() {
            true => deadline.and_then(|time| self.left(shared, time)),
            false => Some(Nanos::ZERO),
        };
        let checks = had_work && left != Some(Nanos::ZERO) && shared.sleep_check.is_due(submits);
        let mut waited = None;
        if checks || left == Some(Nanos::ZERO) {
            shared.wait(Some(Nanos::ZERO));
        } else {
            waited = self.sleep(shared, left, polled);
        }
        shared.reap();
        shared.fill();
        shared.busy = !shared.ready.is_empty();
        let has_events = shared.busy || mailbox.has_mail();
        if checks {
            shared.sleep_check.checked(submits, has_events);
        }
        // At a deadline no event came.
        if let Some(Waited { time, has_slept }) = waited.filter(|_| has_events) {
            shared.poll_time.event_came(time, has_slept);
        }
        // Both lists stay, and nothing is copied.
        match out.is_empty() {
            true => std::mem::swap(out, &mut shared.ready),
            false => out.append(&mut shared.ready),
        }
        mailbox.take(&mut self.messages);
        out.extend(self.messages.drain(..).map(Event::Msg));
    }

    fn polls(&self) -> bool {
        self.shared.borrow().poll_time.next() > Nanos::ZERO
    }

    fn poll(&mut self, deadline: Option<Nanos>, is_ready: &dyn Fn() -> bool) -> Found {
        self.poll_awake(deadline, is_ready)
    }

    fn may_have_come(&self, deadline: Nanos) -> bool {
        !self.shared.borrow().timeout.ends_by(deadline)
    }

    fn begin(&mut self) {
        self.shared.borrow_mut().wait(Some(Nanos::ZERO));
    }

    fn random(&mut self) -> u64 {
        let mut bytes = [0; 8];
        // Up to 256 bytes are returned whole and uninterrupted once the system has started.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .expect("getrandom works since Linux 3.17");
        u64::from_le_bytes(bytes)
    }

    fn expects_calls(&self) -> bool {
        self.mailbox().expects_calls()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        for message in self.mailbox().close() {
            if let Msg::Submit { device: _, bio } = message {
                let (home, key) = bio.done.into_raw();
                let gone = Msg::Complete { key, result: Status::NoDevice.into() };
                // No receiver if that core has ended, too.
                let _ = self.mailboxes[usize::from(home.0)].send(gone);
            }
        }
        let shared = &mut *self.shared.borrow_mut();
        shared.ending = true;
        for waiting in std::mem::take(&mut shared.backlog) {
            if let Waiting::Start(slot) = waiting {
                shared.requests.remove(slot);
            }
        }
        shared.wait(Some(Nanos::ZERO));
        // Cancels requests on sockets and the eventfd; disk requests end by themselves.
        let second = types::Timespec::new().sec(1);
        let _ =
            shared.ring.submitter().register_sync_cancel(Some(second), types::CancelBuilder::any());
        for _ in 0..DRAIN_SECS_MAX {
            shared.reap();
            // Commands end with the ring, after the process if need be.
            let others = shared.requests.iter().any(|(_, request)| !request.is_command());
            if !others && !shared.wakeup.armed {
                break;
            }
            shared.wait(Some(Nanos::from_secs(1)));
        }
        shared.number.give_back(&shared.ring);
        if shared.requests.is_empty() && !shared.wakeup.armed && shared.streams.is_empty() {
            return;
        }
        #[expect(clippy::mem_forget, reason = "UR-U1: the kernel may still write to the buffers")]
        std::mem::forget((
            std::mem::take(&mut shared.requests),
            std::mem::take(&mut shared.streams),
            std::mem::take(&mut shared.wakeup.counter),
        ));
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared.borrow();
        write!(f, "Uring(core {}, {} in flight)", self.id.0, shared.requests.len())
    }
}
