// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One request: checked against its export, turned into bios, answered.
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, Flags, Nanos, Op, Sector, Status};
use reactor::{BioFuture, discard, flush, loop_time, read, write, write_zeroes, zero_out};

use crate::conn::Conn;
use crate::export::{Context, Run};
use crate::handshake::Session;
use crate::reply::Reply;
use crate::request::{Errno, ReplyHead, Request};
use crate::wire::{CommandFlags, ExportFlags, REQUEST_BYTES_MAX, cmd};

/// Length of one call of [`crate::Export::block_status`].
const STATUS_STEP: Sector = Sector::from_bytes(64 << 20);
/// Extents in one block status reply; a client asks again for the rest.
const EXTENTS_MAX: usize = 4096;

/// A checked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write { fua: bool },
    Flush,
    Trim { fua: bool },
    WriteZeroes { fua: bool, no_hole: bool, fast: bool },
    BlockStatus { one: bool },
}

/// A request that has been admitted and waits for its device.
pub(crate) struct Job {
    conn: Rc<Conn>,
    command: Command,
    request: Request,
    /// When it was admitted.
    begun: Nanos,
    /// The buffers of a READ.
    data: Bufs,
    /// The submitted bio, if the request is a single one.
    bio: Option<BioFuture>,
    /// A FLUSH that must fail (NB-U4).
    owes_failure: bool,
}

/// Checks that the session allows the request, and its range.
pub(crate) fn check(session: &Session, request: &Request) -> Result<Command, Errno> {
    let flags = CommandFlags::from_bits(request.flags).ok_or(Errno::Invalid)?;
    let fua = flags.contains(CommandFlags::FUA);
    let (command, extra) = match request.kind {
        cmd::READ if session.terms.structured => (Command::Read, CommandFlags::DF),
        cmd::READ => (Command::Read, CommandFlags::empty()),
        cmd::WRITE => (Command::Write { fua }, CommandFlags::empty()),
        cmd::FLUSH => return Ok(Command::Flush),
        cmd::TRIM => (Command::Trim { fua }, CommandFlags::empty()),
        cmd::WRITE_ZEROES => {
            let no_hole = flags.contains(CommandFlags::NO_HOLE);
            let fast = flags.contains(CommandFlags::FAST_ZERO);
            let extra = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
            (Command::WriteZeroes { fua, no_hole, fast }, extra)
        }
        cmd::BLOCK_STATUS if session.terms.contexts.contains(&true) => {
            let one = flags.contains(CommandFlags::REQ_ONE);
            (Command::BlockStatus { one }, CommandFlags::REQ_ONE)
        }
        _ => return Err(Errno::Invalid),
    };
    // FUA is allowed and ignored on requests that do not write.
    if !(extra | CommandFlags::FUA).contains(flags) {
        return Err(Errno::Invalid);
    }
    let writes = matches!(
        command,
        Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }
    );
    // It may have become read-only since the client was told its flags.
    let read_only =
        || session.terms.flags.contains(ExportFlags::READ_ONLY) || session.export.read_only();
    if writes && read_only() {
        return Err(Errno::Perm);
    }
    let block = u64::from(session.terms.limits.logical_block_bytes);
    let len = u64::from(request.len);
    if len == 0 || !request.offset.is_multiple_of(block) || !len.is_multiple_of(block) {
        return Err(Errno::Invalid);
    }
    if command == Command::Read && request.len > REQUEST_BYTES_MAX {
        return Err(Errno::Invalid);
    }
    let size = session.terms.limits.capacity.bytes();
    let within = request.offset.checked_add(len).is_some_and(|end| end <= size);
    match within {
        true => Ok(command),
        false if fills(command) => Err(Errno::NoSpace),
        false => Err(Errno::Invalid),
    }
}

fn fills(command: Command) -> bool {
    matches!(command, Command::Write { .. } | Command::WriteZeroes { .. })
}

/// Whether a request that lies in the size that the client knows reaches beyond what the device has
/// now: it was made smaller meanwhile.
fn is_beyond_end(session: &Session, request: &Request) -> bool {
    let (at, end) = range(request);
    at.max(end) > session.device.limits().capacity
}

/// Bytes that a request holds from its admission until its reply has left (NB-N2).
pub(crate) fn held_bytes(session: &Session, command: Command, request: &Request) -> u64 {
    let len = u64::from(request.len);
    match command {
        Command::Read | Command::Write { .. } => len,
        Command::Flush | Command::Trim { .. } | Command::WriteZeroes { .. } => 0,
        Command::BlockStatus { one } => {
            let extents = if one { 1 } else { (len >> 9).min(EXTENTS_MAX as u64) };
            let contexts = session.terms.contexts.iter().filter(|on| **on).count() as u64;
            contexts * (4 + extents * 8)
        }
    }
}

/// Starts an admitted request; `payload` is that of a WRITE.
///
/// Many bios have ended when `submit` returns (null, memory, page cache hits): they are answered at
/// once. For each of the others a pooled task waits.
pub(crate) fn start(conn: Rc<Conn>, command: Command, request: Request, payload: Option<Buf>) {
    let dev = &*conn.session().device;
    let at = Sector::from_bytes(request.offset);
    let begun = loop_time();
    let mut data = Bufs::new();
    let mut owes_failure = false;
    let bio = match command {
        Command::Read => {
            data = Buf::alloc(request.len as usize).into();
            Some(read(dev, Class::Foreground, at, data.clone()))
        }
        Command::Write { fua } => {
            let payload = payload.expect("a checked write has its payload");
            let (flags, class) = match fua {
                true => (Flags::FUA | Flags::SYNC, Class::Foreground),
                false => (Flags::empty(), Class::Normal),
            };
            Some(write(dev, flags, class, at, payload.into()))
        }
        Command::Flush => {
            owes_failure = conn.pause.flush_failed.get();
            Some(flush(dev, Class::Foreground))
        }
        Command::Trim { .. } | Command::WriteZeroes { .. } | Command::BlockStatus { .. } => None,
    };
    let bio = match bio.map(BioFuture::into_outcome) {
        Some(Ok(done)) => {
            record(conn.session(), command, begun);
            let done = with_failure(&conn, command, owes_failure, done);
            answer(&conn, command, &request, data, done);
            return;
        }
        Some(Err(bio)) => Some(bio),
        None => None,
    };
    let shared = conn.shared.clone();
    shared.jobs.push(Job { conn, command, request, begun, data, bio, owes_failure });
}

/// The fault [`crate::planted::ServerFault::ExecutePart`].
pub(crate) fn execute_part(conn: &Rc<Conn>, request: &Request, data: &Buf) {
    let (conn, at, data) = (conn.clone(), Sector::from_bytes(request.offset), data.clone());
    reactor::spawn(async move {
        let dev = &*conn.session().device;
        let _ = write(dev, Flags::empty(), Class::Normal, at, data.into()).await;
    });
}

/// Waits for a request's bios, then queues its reply.
pub(crate) async fn run(job: Job) {
    let Job { conn, command, request, begun, data, bio, owes_failure } = job;
    let session = conn.session();
    let dev = &*session.device;
    let at = Sector::from_bytes(request.offset);
    let len = Sector::from_bytes(u64::from(request.len));
    let done = match command {
        Command::Read | Command::Write { .. } | Command::Flush => {
            bio.expect("submitted by `start`").await
        }
        Command::Trim { fua } => then_flush(&conn, fua, trim(dev, at, len)).await,
        Command::WriteZeroes { fua, no_hole, fast } => {
            let zeroed = zero(&conn, (at, len), no_hole, fast);
            then_flush(&conn, fua, zeroed).await
        }
        Command::BlockStatus { .. } if is_beyond_end(session, &request) => Err(Status::Invalid),
        Command::BlockStatus { one } => {
            let bytes = held_bytes(session, command, &request);
            return block_status(&conn, &request, one, bytes).await;
        }
    };
    record(session, command, begun);
    let done = with_failure(&conn, command, owes_failure, done);
    answer(&conn, command, &request, data, done);
}

/// NB-U4: the outcome of a FLUSH of the client, after the FLUSH of a pause has failed. Every one
/// fails that was begun before the first failure was answered.
fn with_failure(
    conn: &Conn,
    command: Command,
    owes_failure: bool,
    done: Result<(), Status>,
) -> Result<(), Status> {
    let failed = &conn.pause.flush_failed;
    if command != Command::Flush || !owes_failure && !failed.get() {
        return done;
    }
    if !conn.dead.get() {
        failed.set(false);
    }
    done.and(Err(Status::Io))
}

/// Records how long the device took for a request, in steps of turns of the event loop.
fn record(session: &Session, command: Command, begun: Nanos) {
    let op = match command {
        Command::Read => Op::Read,
        Command::Write { .. } => Op::Write,
        Command::Flush => Op::Flush,
        Command::Trim { .. } => Op::Discard,
        Command::WriteZeroes { .. } => Op::WriteZeroes,
        Command::BlockStatus { .. } => return,
    };
    if let Some(latencies) = &session.terms.latencies {
        latencies.record(op, loop_time().saturating_sub(begun));
    }
}

/// Queues the reply to a completed request.
fn answer(conn: &Conn, command: Command, request: &Request, data: Bufs, done: Result<(), Status>) {
    let session = conn.session();
    let bytes = held_bytes(session, command, request);
    if let Some(mut error) = done.err().and_then(Errno::from_status) {
        if error == Errno::Invalid && fills(command) && is_beyond_end(session, request) {
            error = Errno::NoSpace;
        }
        conn.count_error();
        conn.reply(Reply::error(session, request, error, bytes));
        return;
    }
    let mut head = ReplyHead::Simple { error: None };
    if command == Command::Read {
        conn.count_read(bytes);
        if session.terms.structured {
            head = ReplyHead::Data { offset: request.offset, len: request.len };
        }
    } else {
        conn.count_write(bytes);
    }
    conn.reply(Reply { cookie: request.cookie, head, data, requests: 1, bytes });
}

/// Discards. TRIM is advice: a device that does not support it succeeds by doing nothing.
async fn trim(dev: &dyn BlockDevice, at: Sector, len: Sector) -> Result<(), Status> {
    match discard(dev, Class::Normal, at, len).await {
        Err(Status::NotSupported) => Ok(()),
        done => done,
    }
}

/// FUA of requests that devices take without FUA: a flush after the change covers it.
///
/// If that flush fails, the error is not the result of a FLUSH of the client, whose own next FLUSH
/// must still fail if other writes were lost. So these flushes have an opener of their own
/// (`device_fua`). All of a connection share it, and the device reports a loss to only one of them:
/// so each fails if any has failed since its change began.
async fn then_flush(
    conn: &Conn,
    fua: bool,
    change: impl Future<Output = Result<(), Status>>,
) -> Result<(), Status> {
    let failures = conn.fua_failures.get();
    change.await?;
    if !fua {
        return Ok(());
    }
    let flushed = flush(&*conn.session().device_fua, Class::Foreground).await;
    if flushed.is_err() {
        conn.fua_failures.set(conn.fua_failures.get() + 1);
    }
    if conn.fua_failures.get() == failures { flushed } else { flushed.and(Err(Status::Io)) }
}

async fn zero(
    conn: &Conn,
    (at, len): (Sector, Sector),
    no_hole: bool,
    fast: bool,
) -> Result<(), Status> {
    let (session, zeroes) = (conn.session(), &conn.shared.zeroes);
    let dev = &*session.device;
    if fast && !session.terms.limits.write_zeroes {
        return Err(Status::NotSupported);
    }
    let flags = if no_hole { Flags::NOUNMAP } else { Flags::empty() };
    if fast {
        return write_zeroes(dev, flags, Class::Normal, at, len).await;
    }
    zero_out(dev, flags, Class::Normal, (at, len), zeroes, || !conn.dead.get()).await
}

/// Queues one chunk for each negotiated context.
async fn block_status(conn: &Conn, request: &Request, one: bool, bytes: u64) {
    let session = conn.session();
    let chosen = || Context::ALL.into_iter().zip(session.terms.contexts).filter(|(_, on)| *on);
    let count = chosen().count();
    for (n, (context, _)) in chosen().enumerate() {
        let extents = extents(session, context, request, one).await;
        let mut out = Vec::with_capacity(4 + extents.len() * 8);
        out.extend_from_slice(&context.id().to_be_bytes());
        for (len, flags) in extents {
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        let last = n + 1 == count;
        let len = u32::try_from(out.len()).expect("extents are bounded");
        conn.reply(Reply {
            cookie: request.cookie,
            head: ReplyHead::Status { len, last },
            data: Buf::copy_of(&out).into(),
            requests: usize::from(last),
            bytes: if last { bytes } else { 0 },
        });
    }
}

/// Lengths in bytes with flags, from the request's offset on, neighbours joined. At least one.
async fn extents(
    session: &Session,
    context: Context,
    request: &Request,
    one: bool,
) -> Vec<(u32, u32)> {
    let mut out: Vec<(u32, u32)> = Vec::new();
    let mut add = |len: Sector, flags: u32| {
        let len = u32::try_from(len.bytes()).expect("within a request's length");
        match out.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.1 == flags => last.0 += len,
            _ => out.push((len, flags)),
        }
        out.len()
    };
    let (mut at, end) = range(request);
    'all: while at < end {
        let step = (end - at).min(STATUS_STEP);
        let stop = at + step;
        let runs = session.export.block_status(context, at, step).await;
        for run in runs.unwrap_or_default() {
            let Run { sector, len, flags } = run;
            let (from, to) = (sector.max(at), (sector + len).min(stop));
            if from >= to {
                continue;
            }
            add(from - at, 0);
            if add(to - from, flags) > EXTENTS_MAX {
                break 'all;
            }
            at = to;
        }
        if add(stop - at, 0) > if one { 1 } else { EXTENTS_MAX } {
            break;
        }
        at = stop;
    }
    out.truncate(if one { 1 } else { EXTENTS_MAX });
    out
}

fn range(request: &Request) -> (Sector, Sector) {
    let at = Sector::from_bytes(request.offset);
    (at, at + Sector::from_bytes(u64::from(request.len)))
}
