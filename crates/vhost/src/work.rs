// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests of a queue: taken, turned into bios, answered.
//!
//! ```text
//!   kick ─▶ run: peek · chain · parse · admit ─▶ take ─▶ start ──Bio──▶ device
//!                                                          │ ended at once   │ later: a task
//!   call ◀─ calls: does the guest want it? ◀── used ring ◀─┴── finish ◀──────┘
//! ```
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, Flags, Nanos, Op, Sector, Status};
use reactor::{BioFuture, discard, flush, loop_time, read, write, yield_now, zero_out};

use crate::memory::Memory;
use crate::queue::Queue;
use crate::request::{Command, ID_BYTES, Range, Request, STATUS_IO_ERROR, STATUS_OK, status_of};
use crate::ring::{Chain, RingError};
use crate::session::Shared;

/// Requests taken from a queue before others get a turn.
const TAKEN_AT_ONCE: usize = 128;

/// A request that was taken and waits for its device.
pub(crate) struct Job {
    session: Rc<Shared>,
    queue: Rc<Queue>,
    request: Request,
    /// The guest's memory as it was when the request was taken.
    memory: Rc<Memory>,
    /// Its data.
    data: Bufs,
    /// When it was taken.
    begun: Nanos,
    /// The submitted bio, if the request is a single one.
    bio: Option<BioFuture>,
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
        let Some(ring) = queue.ring() else { return Ok(()) };
        let chain = ring.chain(&session.memory(), head)?;
        if !issue(session, queue, chain, false).await? {
            return Ok(());
        }
    }
    loop {
        take_all(session, queue).await?;
        let kick = queue.kick.borrow().clone();
        let Some(kick) = kick.filter(|_| !queue.is_stopping.get()) else { return Ok(()) };
        if !kick.wait().await {
            return Ok(());
        }
    }
}

/// Takes all available requests. Returns when the guest was asked to kick, and when the queue stops
/// or is disabled.
async fn take_all(session: &Rc<Shared>, queue: &Rc<Queue>) -> Result<(), RingError> {
    let goes_on = || queue.enabled.get() && !queue.is_stopping.get() && !session.has_failed();
    let mut taken = 0;
    while goes_on() {
        let Some(ring) = queue.ring() else { return Ok(()) };
        ring.stop_kicks()?;
        while goes_on() {
            // The front end may have moved the ring while this task waited.
            let Some(ring) = queue.ring() else { return Ok(()) };
            let Some(head) = ring.peek()? else { break };
            let chain = ring.chain(&session.memory(), head)?;
            if !issue(session, queue, chain, true).await? {
                return Ok(());
            }
            taken += 1;
            if taken % TAKEN_AT_ONCE == 0 {
                yield_now().await;
            }
        }
        let Some(ring) = queue.ring() else { return Ok(()) };
        ring.ask_for_kicks()?;
        if ring.peek()?.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

/// Issues the request of a chain when there is memory for it; `is_new`: it is taken from the ring
/// now. False when the queue stops first: then it is still available, or noted as in flight.
async fn issue(
    session: &Rc<Shared>,
    queue: &Rc<Queue>,
    chain: Chain,
    is_new: bool,
) -> Result<bool, RingError> {
    let memory = session.memory();
    let request = Request::parse(&memory, chain)?;
    let bytes = u64::from(request.data_bytes);
    if !session.admit(queue, bytes).await {
        return Ok(false);
    }
    let begin = || {
        queue.begin_request(request.head)?;
        if let (true, Some(notes)) = (is_new, queue.notes()) {
            notes.begin(request.head)?;
        }
        Ok(())
    };
    if let Err(e) = begin() {
        session.release(bytes);
        return Err(e);
    }
    if let (true, Some(ring)) = (is_new, queue.ring()) {
        ring.take();
    }
    let (session, queue) = (session.clone(), queue.clone());
    let (data, begun, bio) = (Bufs::new(), loop_time(), None);
    start(Job { session, queue, request, memory, data, begun, bio });
    Ok(true)
}

/// Starts a request. Many bios have ended when `submit` returns: they are answered at once. For
/// each of the others a pooled task waits.
fn start(mut job: Job) {
    let session = job.session.clone();
    let dev = &session.device;
    let command = match job.request.command {
        Ok(command) => command,
        Err(status) => return finish(job, status),
    };
    let writes = matches!(command, Command::Write(_) | Command::Discard | Command::WriteZeroes);
    if writes && session.is_read_only() {
        return finish(job, STATUS_IO_ERROR);
    }
    let bytes = job.request.data_bytes as usize;
    job.bio = match command {
        Command::Read(at) | Command::Write(at) if !lies_on(dev, at, bytes) => {
            return finish(job, STATUS_IO_ERROR);
        }
        Command::Read(at) => {
            job.data = Buf::alloc(bytes).into();
            Some(read(dev, Class::Foreground, at, job.data.clone()))
        }
        Command::Write(at) => {
            job.data = Buf::alloc(bytes).into();
            let runs = job.request.data.iter().copied();
            if let Err(e) = job.memory.gather(runs, &job.data) {
                session.fail(format!("queue {}: {e}", job.queue.number));
                return finish(job, STATUS_IO_ERROR);
            }
            let (flags, class) = match session.writes_through() {
                true => (Flags::FUA | Flags::SYNC, Class::Foreground),
                false => (Flags::empty(), Class::Normal),
            };
            Some(write(dev, flags, class, at, job.data.clone()))
        }
        Command::Flush => Some(flush(dev, Class::Foreground)),
        Command::GetId => {
            let mut id = [0; ID_BYTES as usize];
            let name = session.name();
            let len = name.len().min(id.len());
            id[..len].copy_from_slice(&name.as_bytes()[..len]);
            job.data = Buf::copy_of(&id[..bytes]).into();
            return finish(job, STATUS_OK);
        }
        Command::Discard | Command::WriteZeroes => None,
    };
    match job.bio.as_ref().and_then(BioFuture::outcome) {
        Some(done) => {
            record(&job, command);
            finish(job, status_of(done));
        }
        None => session.server.jobs.push(job),
    }
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
    record(&job, command);
    finish(job, status);
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
    let place = (range.sector, range.len);
    zero_out(&session.device, flags, Class::Normal, place, &session.server.zeroes).await
}

/// Records how long the device took for a request, in steps of turns of the event loop.
fn record(job: &Job, command: Command) {
    let op = match command {
        Command::Read(_) => Op::Read,
        Command::Write(_) => Op::Write,
        Command::Flush => Op::Flush,
        Command::Discard => Op::Discard,
        Command::WriteZeroes => Op::WriteZeroes,
        Command::GetId => return,
    };
    if let Some(latencies) = &job.session.latencies {
        latencies.record(op, loop_time().saturating_sub(job.begun));
    }
}

/// Answers a request and releases what it held.
fn finish(job: Job, status: u8) {
    let Job { session, queue, request, memory, data, .. } = job;
    if !session.has_failed()
        && let Err(e) = answer(&queue, &request, &memory, &data, status)
    {
        session.fail(format!("queue {}: {e}", queue.number));
    }
    session.count(&request, status);
    session.release(request.data_bytes.into());
    queue.end_request(request.head);
}

fn answer(
    queue: &Queue,
    request: &Request,
    memory: &Memory,
    data: &Bufs,
    status: u8,
) -> Result<(), RingError> {
    let returns_data = matches!(request.command, Ok(Command::Read(_) | Command::GetId));
    let mut written = 1;
    if status == STATUS_OK && returns_data {
        memory.scatter(request.data.iter().copied(), data)?;
        written += request.data_bytes;
    }
    memory.write(request.status, &[status])?;
    let Some(ring) = queue.ring() else { return Ok(()) };
    match queue.notes() {
        Some(notes) => notes.put_used(&ring, request.head, written),
        None => ring.put_used(request.head, written),
    }
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
                let call = queue.call.borrow().clone();
                if let Some(call) = call {
                    call.signal().await;
                }
            }
            Ok(_) => {}
            Err(e) => session.fail(format!("queue {}: {e}", queue.number)),
        }
    }
    queue.end_task();
}
