// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receive loop of a connection: requests out of chunks of bytes.
use std::rc::Rc;

use block::{Buf, Status};
use reactor::{loop_time, yield_now};

use crate::conn::{Conn, STEP_BYTES};
use crate::job::{self, check, held_bytes};
use crate::planted::ServerFault;
use crate::reply::Reply;
use crate::request::{REQUEST_BYTES, ReplyHead, Request};
use crate::unread::{RefusedWrite, Stop, Unread};
use crate::wire::{REQUEST_BYTES_MAX, cmd};

/// One receive takes up to this: sixty writes of 4 KiB, and it stays in a core's cache.
const CHUNK_BYTES: usize = 256 << 10;
/// If at least this much of a payload is missing, it is received into its buffer without a copy.
const DIRECT_BYTES_MIN: usize = 64 << 10;
/// Most bytes that a paused session has received and not executed: a request, and a chunk behind
/// it.
pub(crate) const UNREAD_BYTES_MAX: usize = REQUEST_BYTES + REQUEST_BYTES_MAX as usize + CHUNK_BYTES;

/// The receive loop: a chunk of bytes and its unread range.
pub(crate) struct Receiver {
    conn: Rc<Conn>,
    chunk: Buf,
    start: usize,
    end: usize,
    /// What was received before this loop began: it comes before what the socket has.
    earlier: Vec<u8>,
    /// How much of it was taken.
    taken: usize,
    /// The WRITE whose data are being received.
    write: Option<PartOfWrite>,
    refused: Option<RefusedWrite>,
    /// The last request, for a planted fault.
    last: Option<Request>,
}

/// A WRITE, as far as it has come.
struct PartOfWrite {
    request: Request,
    data: Buf,
    filled: usize,
}

impl Receiver {
    /// A loop that goes on with `unread`.
    pub(crate) fn new(conn: Rc<Conn>, unread: Unread) -> Receiver {
        let Unread { refused, bytes: earlier } = unread;
        let chunk = Buf::alloc(CHUNK_BYTES);
        let (start, end, taken, write, last) = (0, 0, 0, None, None);
        Receiver { conn, chunk, start, end, earlier, taken, write, refused, last }
    }

    /// Takes requests until the session ends, or until the server pauses: then it returns what was
    /// received and not executed.
    pub(crate) async fn run(mut self) -> Option<Unread> {
        loop {
            match self.next().await {
                Ok(()) => {}
                Err(Stop::Ended) => return None,
                Err(Stop::Paused) => return Some(self.unread()),
            }
        }
    }

    async fn next(&mut self) -> Result<(), Stop> {
        if self.refused.is_some() {
            return self.refuse().await;
        }
        let request = self.head().await?;
        self.take(request).await
    }

    /// What was received and not executed (NB-U1).
    fn unread(self) -> Unread {
        let planted = &self.conn.shared.planted;
        if planted.is(ServerFault::ExecutePart) {
            self.write
                .as_ref()
                .inspect(|write| job::execute_part(&self.conn, &write.request, &write.data));
        }
        let mut bytes = Vec::new();
        if let Some(last) = self.last {
            bytes.extend_from_slice(&last.encode());
        }
        if let Some(PartOfWrite { request, data, filled }) = self.write
            && !planted.is(ServerFault::DropPart)
        {
            bytes.extend_from_slice(&request.encode());
            data.read(|b| bytes.extend_from_slice(&b[..filled]));
        }
        self.chunk.read(|b| bytes.extend_from_slice(&b[self.start..self.end]));
        bytes.extend_from_slice(&self.earlier[self.taken..]);
        Unread { refused: self.refused, bytes }
    }

    /// One receive.
    async fn receive(&mut self, buf: &Buf, from: usize) -> Result<usize, Stop> {
        if self.taken < self.earlier.len() {
            let n = (self.earlier.len() - self.taken).min(buf.len() - from);
            let part = &self.earlier[self.taken..self.taken + n];
            buf.write(|b| b[from..from + n].copy_from_slice(part));
            self.taken += n;
            return Ok(n);
        }
        self.earlier = Vec::new();
        self.taken = 0;
        let conn = &*self.conn;
        loop {
            if conn.is_ending() {
                return Err(Stop::Ended);
            }
            if conn.pause.is_pausing() {
                return Err(Stop::Paused);
            }
            let waits_ended = conn.pause.waits_ended.get();
            let result = conn.recv(buf.slice(from..buf.len())).await;
            if result.status == Status::Again && conn.pause.waits_ended.get() > waits_ended {
                continue;
            }
            conn.shared.counters.receives.add(1);
            conn.figures.received_at.set(loop_time().0);
            let go_on = result.status == Status::Ok && result.value > 0 && !conn.is_ending();
            return if go_on { Ok(result.value as usize) } else { Err(Stop::Ended) };
        }
    }

    /// Receives more bytes; the unread ones, less than a request, move to the front.
    async fn fill(&mut self) -> Result<(), Stop> {
        let (start, end) = (self.start, self.end);
        assert!(end - start < REQUEST_BYTES, "only a part of a request is left unread");
        self.chunk.write(|b| b.copy_within(start..end, 0));
        (self.start, self.end) = (0, end - start);
        if !self.conn.replies.borrow().is_empty() {
            // The sender sends them before this receive is submitted: clients wait for them.
            yield_now().await;
        }
        let chunk = self.chunk.clone();
        self.end += self.receive(&chunk, self.end).await?;
        Ok(())
    }

    /// The next request.
    async fn head(&mut self) -> Result<Request, Stop> {
        loop {
            if self.conn.is_ending() {
                return Err(Stop::Ended);
            }
            if self.conn.pause.is_pausing() {
                return Err(Stop::Paused);
            }
            match self.chunk.read(|b| Request::parse(&b[self.start..self.end])) {
                Ok(Some(request)) => {
                    self.start += REQUEST_BYTES;
                    return Ok(request);
                }
                Ok(None) => self.fill().await?,
                Err(_) => return Err(Stop::Ended),
            }
        }
    }

    /// Starts one request.
    async fn take(&mut self, request: Request) -> Result<(), Stop> {
        if request.kind == cmd::DISC || request.payload_len() > REQUEST_BYTES_MAX {
            return Err(Stop::Ended); // skipping up to 4 GiB would take too long
        }
        let conn = self.conn.clone();
        let checked = check(conn.session(), &request);
        if let (Err(error), 1..) = (checked, request.payload_len()) {
            self.refused = Some(RefusedWrite { cookie: request.cookie, error, left: request.len });
            return self.refuse().await;
        }
        let bytes = checked.map_or(0, |command| held_bytes(conn.session(), command, &request));
        if let Err(stop) = conn.admit(bytes).await {
            self.start -= REQUEST_BYTES; // it is still there: nothing was received meanwhile
            return Err(stop);
        }
        let mut data = None;
        if request.payload_len() > 0 {
            let buf = Buf::alloc(request.len as usize);
            self.write = Some(PartOfWrite { request, data: buf.clone(), filled: 0 });
            conn.begin_data();
            let whole = self.payload(&buf).await;
            conn.end_data();
            if let Err(stop) = whole {
                // NB-U3: nothing of it was begun.
                conn.release(1, bytes);
                return Err(stop);
            }
            self.write = None;
            data = Some(buf);
        }
        conn.count_request();
        if conn.shared.planted.is(ServerFault::RepeatLast) {
            self.last = (request.kind == cmd::READ).then_some(request);
        }
        match checked {
            Ok(command) => job::start(conn, command, request, data),
            Err(error) => {
                conn.count_error();
                let reply = Reply::error(conn.session(), &request, error, bytes);
                conn.reply(reply);
            }
        }
        Ok(())
    }

    /// Fills `buf` with the next bytes.
    async fn payload(&mut self, buf: &Buf) -> Result<(), Stop> {
        let (mut filled, mut step_end) = (0, STEP_BYTES);
        loop {
            let n = (self.end - self.start).min(buf.len() - filled);
            let from = self.start..self.start + n;
            self.chunk.read(|c| buf.write(|b| b[filled..filled + n].copy_from_slice(&c[from])));
            self.start += n;
            filled += n;
            if filled == buf.len() {
                return Ok(());
            }
            if let Some(write) = &mut self.write {
                write.filled = filled;
            }
            if filled >= step_end {
                step_end = filled + STEP_BYTES;
                self.conn.begin_data_step();
            }
            if buf.len() - filled >= DIRECT_BYTES_MIN {
                filled += self.receive(buf, filled).await?;
            } else {
                self.fill().await?;
            }
        }
    }

    /// Skips what is left of the data of a refused WRITE, and answers it.
    async fn refuse(&mut self) -> Result<(), Stop> {
        let conn = self.conn.clone();
        conn.admit(0).await?;
        conn.begin_data();
        let whole = self.skip().await;
        conn.end_data();
        if let Err(stop) = whole {
            conn.release(1, 0);
            return Err(stop);
        }
        let Some(RefusedWrite { cookie, error, .. }) = self.refused.take() else { return Ok(()) };
        conn.count_request();
        conn.count_error();
        let head = ReplyHead::Simple { error: Some(error) };
        conn.reply(Reply { cookie, head, data: block::Bufs::new(), requests: 1, bytes: 0 });
        Ok(())
    }

    async fn skip(&mut self) -> Result<(), Stop> {
        let mut in_step = 0;
        while let Some(write) = &mut self.refused {
            let n = (self.end - self.start).min(write.left as usize);
            self.start += n;
            write.left -= u32::try_from(n).expect("at most what is left");
            if write.left == 0 {
                break;
            }
            in_step += n;
            if in_step >= STEP_BYTES {
                in_step = 0;
                self.conn.begin_data_step();
            }
            self.fill().await?;
        }
        Ok(())
    }
}
