// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests of a queue: taken, turned into bios, answered.
//!
//! ```text
//!   kick ─▶ run: peek · chain · parse · admit ─▶ take ─▶ start ──Bio──▶ device
//!                                                          │ ended at once   │ later: a task
//!   call ◀─ calls: does the guest want it? ◀── used ring ◀─┴── finish ◀──────┘
//!      ◀──── early, after several ───────────────┘ shown to the guest together
//! ```
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, Flags, Nanos, Op, Sector, Status};
use reactor::{BioFuture, Poller, discard, flush, io, loop_time, yield_now, zero_out};

use crate::memory::{AccessError, Memory};
use crate::queue::Queue;
use crate::request::{Command, ID_BYTES, Range, Request, STATUS_IO_ERROR, STATUS_OK, status_of};
use crate::ring::{Ring, RingError};
use crate::session::Shared;

/// Requests taken from a queue before others get a turn.
const TAKEN_AT_ONCE: usize = 128;
/// Requests at once that are few: their guest can't be kept awake.
const FEW: usize = 4;
/// Chains that are walked before the first of them is served. With 8 a request takes as long.
const LOOKED_AHEAD: u16 = 4;

/// A request that was taken and waits for its device.
pub(crate) struct Job {
    session: Rc<Shared>,
    queue: Rc<Queue>,
    request: Request,
    /// The guest's memory as it was when the request was taken.
    memory: Rc<Memory>,
    data: Data,
    /// When it was taken.
    begun: Nanos,
    /// The submitted bio, if the request is a single one.
    bio: Option<BioFuture>,
}

/// Where the data of a request are while its device has it (VH-V3).
enum Data {
    /// In the guest's memory.
    Lent,
    /// In a buffer of our own, whose contents a read copies to the guest; none where there is
    /// nothing to copy.
    Own(Bufs),
}

/// Serves a queue until it stops. First it issues `again`, which an earlier process has taken.
pub(crate) async fn run(session: Rc<Shared>, queue: Rc<Queue>, again: Vec<u16>) {
    if let Err(e) = serve(&session, &queue, again).await {
        session.fail(format!("queue {}: {e}", queue.number));
    }
    queue.end_task();
}

async fn serve(session: &Rc<Shared>, queue: &Rc<Queue>, again: Vec<u16>) -> Result<(), RingError> {
    for head in again {
        let (Some(ring), memory) = (queue.ring(), session.memory()) else { return Ok(()) };
        let mut request = Request::parse(&memory, ring.chain(&memory, head)?)?;
        let bytes = request.held_bytes();
        if !session.admit(bytes) && !session.wait_for_budget(queue, bytes).await {
            return Ok(()); // it is noted as in flight
        }
        issue(session, queue, &memory, &mut request, false)?;
        queue.publish()?;
    }
    let poller = Poller::new({
        let (session, queue) = (session.clone(), queue.clone());
        move || queue.is_stopping.get() || queue.enabled.get() && has_next(&session, &queue)
    });
    loop {
        let taken = take_all(session, queue).await?;
        if queue.is_stopping.get() {
            return Ok(());
        }
        // While this core is awake the guest need not kick. But one that sleeps is kept awake by
        // that, if it has many requests: as it has kicked, it finds the first answers. Without
        // kicks it slept after each batch (docs/decisions/0052-pollers.md). Nobody reads that kick
        // while the core finds the requests by its look.
        let kicks_first = taken >= FEW && queue.ring().is_some_and(|ring| ring.guest_sleeps());
        let has_more = match kicks_first {
            true => ask_for_kicks(session, queue)? || poller.wait().await,
            false => poller.wait().await || ask_for_kicks(session, queue)?,
        };
        if has_more {
            continue;
        }
        let kick = queue.kick.borrow().clone();
        let Some(kick) = kick.filter(|_| !queue.is_stopping.get()) else { return Ok(()) };
        if !kick.wait().await {
            return Ok(());
        }
    }
}

/// Whether there is a request to take, or an error to find.
fn has_next(session: &Shared, queue: &Queue) -> bool {
    !session.has_failed() && queue.ring().is_some_and(|ring| ring.peek() != Ok(None))
}

/// Asks the guest to kick when it has more requests. Returns whether it has some already: it may
/// have stored them before it knew.
fn ask_for_kicks(session: &Shared, queue: &Queue) -> Result<bool, RingError> {
    let Some(ring) = queue.ring().filter(|_| may_take(session, queue)) else { return Ok(false) };
    ring.ask_for_kicks()?;
    Ok(ring.peek()?.is_some())
}

fn may_take(session: &Shared, queue: &Queue) -> bool {
    queue.enabled.get() && !queue.is_stopping.get() && !session.has_failed()
}

/// Takes all available requests, until there are none, or the queue stops or is disabled. The guest
/// need not kick then. Returns how many they were.
async fn take_all(session: &Rc<Shared>, queue: &Rc<Queue>) -> Result<usize, RingError> {
    let taken = take_until_empty(session, queue).await;
    if let Some(latencies) = &session.latencies {
        queue.ended_at_once.record(latencies);
    }
    let taken = taken?;
    queue.publish()?;
    Ok(taken)
}

/// The same. The guest may not see all that has ended.
async fn take_until_empty(session: &Rc<Shared>, queue: &Rc<Queue>) -> Result<usize, RingError> {
    let Some(mut ring) = queue.ring() else { return Ok(0) };
    let (mut memory, mut taken, mut ahead) = (session.memory(), 0, LookAhead::default());
    ring.stop_kicks()?;
    while may_take(session, queue) {
        let Some(request) = ahead.next(&ring, &memory)? else { break };
        let bytes = request.held_bytes();
        taken += 1;
        let is_admitted = session.admit(bytes);
        if !is_admitted {
            queue.publish()?;
            if !session.wait_for_budget(queue, bytes).await {
                return Ok(taken); // it is still available
            }
        }
        issue(session, queue, &memory, request, true)?;
        if taken % TAKEN_AT_ONCE == 0 {
            queue.publish()?;
            yield_now().await;
        }
        if !is_admitted || taken % TAKEN_AT_ONCE == 0 {
            // The front end may have moved the ring while this task waited.
            let Some(now) = queue.ring() else { return Ok(taken) };
            (ring, memory) = (now, session.memory());
            ahead.forget();
        }
    }
    Ok(taken)
}

/// Requests whose chains were walked before their turn.
#[derive(Default)]
struct LookAhead {
    requests: [Request; LOOKED_AHEAD as usize],
    /// Those that are not taken.
    left: std::ops::Range<usize>,
}

impl LookAhead {
    /// The next request, if one is available. It stays here: nothing of it is moved before its
    /// device takes longer.
    #[inline]
    fn next(&mut self, ring: &Ring, memory: &Memory) -> Result<Option<&mut Request>, RingError> {
        if self.left.is_empty() {
            self.fill(ring, memory)?;
        }
        let Some(nth) = self.left.next() else { return Ok(None) };
        let request = &mut self.requests[nth];
        request.parse_chain(memory).map(|()| Some(request))
    }

    /// Walks the chains that come next, and begins to load their headers, which the guest's
    /// processor has stored: the loads of several take as long as that of one. The status goes to
    /// the same line, as a rule, which that processor gives up at once then.
    fn fill(&mut self, ring: &Ring, memory: &Memory) -> Result<(), RingError> {
        let mut found = 0;
        for (further, request) in (0..LOOKED_AHEAD).zip(&mut self.requests) {
            let chain = &mut request.chain;
            let walked = ring
                .peek_behind(further)
                .and_then(|head| head.map(|head| ring.walk(memory, head, chain)).transpose());
            match walked {
                Ok(Some(())) => found += 1,
                Ok(None) => break,
                // The ones before it are served first.
                Err(_) if further > 0 => break,
                Err(e) => return Err(e),
            }
            if let (Some(header), Some(status)) = (chain.extents.first(), chain.extents.last()) {
                memory.prefetch_to_store(status);
                memory.prefetch(header);
            }
        }
        self.left = 0..found;
        Ok(())
    }

    /// Forgets the requests: the ring may be another one now.
    fn forget(&mut self) {
        self.left = 0..0;
    }
}

/// Issues a request that was admitted; `is_new`: it is taken from the ring now.
#[inline]
fn issue(
    session: &Rc<Shared>,
    queue: &Rc<Queue>,
    memory: &Rc<Memory>,
    request: &mut Request,
    is_new: bool,
) -> Result<(), RingError> {
    if let Err(e) = queue.begin_request(request.head(), is_new) {
        session.release(request.held_bytes());
        return Err(e);
    }
    if is_new {
        queue.take();
    }
    start(session, queue, memory, request);
    Ok(())
}

/// Starts a request. Many bios have ended when `submit` returns: they are answered at once. For
/// each of the others a pooled task waits.
#[inline]
fn start(session: &Rc<Shared>, queue: &Rc<Queue>, memory: &Rc<Memory>, request: &mut Request) {
    let dev = &session.device;
    let (mut data, bytes) = (Data::Own(Bufs::new()), request.data_bytes as usize);
    // Several are shown to the guest together, and it is told of them.
    let end = |request: &Request, data: &Data, status| {
        finish(session, queue, memory, request, data, status);
        session.fail_on(queue, queue.publish_some());
    };
    let command = match request.command {
        Ok(command) => command,
        Err(status) => return end(request, &data, status),
    };
    let writes = matches!(command, Command::Write(_) | Command::Discard | Command::WriteZeroes);
    if writes && session.is_read_only() {
        return end(request, &data, STATUS_IO_ERROR);
    }
    let bio = match command {
        Command::Read(at) | Command::Write(at) if !lies_on(dev, at, bytes) => {
            return end(request, &data, STATUS_IO_ERROR);
        }
        Command::Read(at) | Command::Write(at) => {
            let bufs = if let Some(bufs) = lend(session, memory, request) {
                data = Data::Lent;
                bufs
            } else {
                let own = match own_buffer(memory, request) {
                    Ok(own) => own,
                    Err(e) => {
                        session.fail(format!("queue {}: {e}", queue.number));
                        return end(request, &data, STATUS_IO_ERROR);
                    }
                };
                if !writes {
                    data = Data::Own(own.clone());
                }
                own
            };
            let (op, flags, class) = match (writes, session.writes_through()) {
                (false, _) => (Op::Read, Flags::empty(), Class::Foreground),
                (true, true) => (Op::Write, Flags::FUA | Flags::SYNC, Class::Foreground),
                (true, false) => (Op::Write, Flags::empty(), Class::Normal),
            };
            let len = Sector::from_bytes(bytes as u64);
            Some(io(dev, op, flags, class, (at, len), bufs))
        }
        Command::Flush => Some(flush(dev, Class::Foreground)),
        Command::GetId => {
            let mut id = [0; ID_BYTES as usize];
            let name = session.name();
            let len = name.len().min(id.len());
            id[..len].copy_from_slice(&name.as_bytes()[..len]);
            return end(request, &Data::Own(Buf::copy_of(&id[..bytes]).into()), STATUS_OK);
        }
        Command::Discard | Command::WriteZeroes => None,
    };
    let bio = match bio.map(BioFuture::into_outcome) {
        Some(Ok(done)) => {
            if let Some(op) = op_of(command) {
                queue.ended_at_once.count(op);
            }
            return end(request, &data, status_of(done));
        }
        Some(Err(bio)) => Some(bio),
        None => None,
    };
    let (begun, request) = (loop_time(), std::mem::take(request));
    let (of_session, queue, memory) = (session.clone(), queue.clone(), memory.clone());
    session.server.jobs.push(Job { session: of_session, queue, request, memory, data, begun, bio });
}

/// The guest's memory as the data of a bio, if the device takes it.
#[inline(always)]
fn lend(session: &Shared, memory: &Memory, request: &Request) -> Option<Bufs> {
    session.device.takes_client_memory().then(|| memory.lend(request.data())).flatten()
}

/// A buffer of our own for the data of a request, with those of a write.
#[inline(never)]
fn own_buffer(memory: &Memory, request: &Request) -> Result<Bufs, AccessError> {
    let own = Bufs::from(Buf::alloc(request.data_bytes as usize));
    if matches!(request.command, Ok(Command::Write(_))) {
        memory.gather(request.data(), &own)?;
    }
    Ok(own)
}

fn lies_on(dev: &dyn BlockDevice, at: Sector, bytes: usize) -> bool {
    let len = Sector::from_bytes(bytes as u64);
    at.checked_add(len).is_some_and(|end| end <= dev.limits().capacity)
}

/// Waits for a request's bios, then answers it.
pub(crate) async fn wait(mut job: Job) {
    let command = job.request.command.expect("`start` has answered the others");
    let status = match job.bio.take() {
        Some(bio) => status_of(bio.await),
        None => match job.request.ranges(&job.memory) {
            Ok(Ok(ranges)) => on_ranges(&job.session, command, &ranges).await,
            Ok(Err(status)) => status,
            Err(e) => {
                job.session.fail(format!("queue {}: {e}", job.queue.number));
                STATUS_IO_ERROR
            }
        },
    };
    record(&job.session, command, job.begun);
    let (session, queue) = (&job.session, &job.queue);
    finish(session, queue, &job.memory, &job.request, &job.data, status);
    session.fail_on(queue, queue.publish().and_then(|()| queue.call_early()));
}

async fn on_ranges(session: &Shared, command: Command, ranges: &[Range]) -> u8 {
    let dev = &session.device;
    let capacity = dev.limits().capacity;
    let fits = |range: &Range| range.sector.checked_add(range.len).is_some_and(|e| e <= capacity);
    if !ranges.iter().all(fits) {
        return STATUS_IO_ERROR;
    }
    let mut worst = Ok(());
    for range in ranges.iter().filter(|range| range.len > Sector::ZERO) {
        let done = if command == Command::WriteZeroes {
            zero(session, range).await
        } else {
            match discard(dev, Class::Normal, range.sector, range.len).await {
                // Advice: a device that can't do this part of it does nothing.
                Err(Status::NotSupported) => Ok(()),
                done => done,
            }
        };
        if worst.is_ok() {
            worst = done;
        }
    }
    if worst.is_ok() && command == Command::WriteZeroes && session.writes_through() {
        worst = flush(dev, Class::Foreground).await;
    }
    status_of(worst)
}

async fn zero(session: &Shared, range: &Range) -> Result<(), Status> {
    let flags = if range.unmap { Flags::empty() } else { Flags::NOUNMAP };
    let (place, zeroes) = ((range.sector, range.len), &session.server.zeroes);
    let is_wanted = || !session.is_cut_off();
    zero_out(&session.device, flags, Class::Normal, place, zeroes, is_wanted).await
}

fn op_of(command: Command) -> Option<Op> {
    match command {
        Command::Read(_) => Some(Op::Read),
        Command::Write(_) => Some(Op::Write),
        Command::Flush => Some(Op::Flush),
        Command::Discard => Some(Op::Discard),
        Command::WriteZeroes => Some(Op::WriteZeroes),
        Command::GetId => None,
    }
}

/// Records how long the device took for a request, in steps of turns of the event loop.
fn record(session: &Shared, command: Command, begun: Nanos) {
    if let (Some(latencies), Some(op)) = (&session.latencies, op_of(command)) {
        latencies.record(op, loop_time().saturating_sub(begun));
    }
}

/// Answers a request and releases what it held. The guest sees the answer when it is published.
fn finish(
    session: &Shared,
    queue: &Queue,
    memory: &Memory,
    request: &Request,
    data: &Data,
    status: u8,
) {
    if !session.has_failed() {
        session.fail_on(queue, answer(queue, request, memory, data, status));
    }
    session.count(request, status);
    session.release(request.held_bytes());
    queue.end_request(request.head());
}

fn answer(
    queue: &Queue,
    request: &Request,
    memory: &Memory,
    data: &Data,
    status: u8,
) -> Result<(), RingError> {
    let returns_data = matches!(request.command, Ok(Command::Read(_) | Command::GetId));
    let is_ok = status == STATUS_OK;
    let mut written = 1;
    if is_ok && returns_data {
        written += request.data_bytes;
    }
    match data {
        Data::Lent => memory.check_lent(request.data(), !is_ok)?,
        Data::Own(own) if is_ok && returns_data => {
            memory.scatter(request.data(), own)?;
        }
        Data::Own(_) => {}
    }
    memory.write_extent(request.status(), &[status])?;
    queue.put_used(request.head(), written)
}

/// Tells the guest about used requests, as often as it wants, until the queue stops.
pub(crate) async fn calls(session: Rc<Shared>, queue: Rc<Queue>) {
    loop {
        queue.call_due.wait_for(|| queue.is_call_due.get() || queue.has_ended_but_calls()).await;
        if !queue.is_call_due.replace(false) {
            break;
        }
        let Some(ring) = queue.ring() else { continue };
        match ring.wants_call() {
            Ok(true) if !session.has_failed() => {
                if let Some(call) = &*queue.call.borrow() {
                    call.signal();
                }
            }
            Ok(_) => {}
            Err(e) => session.fail(format!("queue {}: {e}", queue.number)),
        }
    }
    queue.end_task();
}
