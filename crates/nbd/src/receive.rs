// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receive loop of a connection: requests out of chunks of bytes.
use std::rc::Rc;

use block::{Buf, Status};
use reactor::loop_time;

use crate::conn::{Conn, STEP_BYTES};
use crate::job::{self, check, held_bytes};
use crate::reply::Reply;
use crate::request::{REQUEST_BYTES, Request};
use crate::wire::{REQUEST_BYTES_MAX, cmd};

/// One receive takes up to this: sixty writes of 4 KiB, and it stays in a core's cache.
const CHUNK_BYTES: usize = 256 << 10;
/// If at least this much of a payload is missing, it is received into its buffer without a copy.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// The receive loop: a chunk of bytes and its unread range.
pub(crate) struct Receiver {
    conn: Rc<Conn>,
    chunk: Buf,
    start: usize,
    end: usize,
}

impl Receiver {
    pub(crate) fn new(conn: Rc<Conn>, rest: &[u8]) -> Receiver {
        let chunk = Buf::alloc(CHUNK_BYTES);
        assert!(rest.len() <= CHUNK_BYTES, "an option fits into a chunk");
        chunk.write(|b| b[..rest.len()].copy_from_slice(rest));
        Receiver { conn, chunk, start: 0, end: rest.len() }
    }

    pub(crate) async fn run(mut self) {
        while let Some(request) = self.head().await {
            if !self.take(request).await {
                break;
            }
        }
    }

    /// One receive; `None` when the connection ends.
    async fn receive(&self, buf: &Buf, from: usize) -> Option<usize> {
        let result = self.conn.recv(buf.slice(from..buf.len())).await;
        self.conn.shared.counters.receives.add(1);
        self.conn.figures.received_at.set(loop_time().0);
        let go_on = result.status == Status::Ok && result.value > 0;
        let over = self.conn.draining.get() || self.conn.dead.get();
        (go_on && !over).then_some(result.value as usize)
    }

    /// Receives more bytes; the unread ones, less than a request, move to the front.
    async fn fill(&mut self) -> bool {
        let (start, end) = (self.start, self.end);
        assert!(end - start < REQUEST_BYTES, "only a part of a request is left unread");
        self.chunk.write(|b| b.copy_within(start..end, 0));
        (self.start, self.end) = (0, end - start);
        let Some(n) = self.receive(&self.chunk, self.end).await else { return false };
        self.end += n;
        true
    }

    /// The next request; `None` when the session ends.
    async fn head(&mut self) -> Option<Request> {
        loop {
            if self.conn.draining.get() || self.conn.dead.get() {
                return None;
            }
            match self.chunk.read(|b| Request::parse(&b[self.start..self.end])) {
                Ok(Some(request)) => {
                    self.start += REQUEST_BYTES;
                    return Some(request);
                }
                Ok(None) => {
                    if !self.fill().await {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
    }

    /// Starts one request; false if the session ends with it.
    async fn take(&mut self, request: Request) -> bool {
        if request.kind == cmd::DISC || request.payload_len() > REQUEST_BYTES_MAX {
            return false; // skipping up to 4 GiB would take too long
        }
        let conn = self.conn.clone();
        let checked = check(conn.session(), &request);
        let bytes = checked.map_or(0, |command| held_bytes(conn.session(), command, &request));
        if !conn.admit(bytes).await {
            return false;
        }
        conn.count_request();
        let mut data = None;
        if request.payload_len() > 0 {
            conn.receiving.set(true);
            conn.begin_step(&conn.data_due);
            let whole = if checked.is_ok() {
                let buf = Buf::alloc(request.len as usize);
                let whole = self.payload(&buf).await;
                data = Some(buf);
                whole
            } else {
                self.skip(request.len as usize).await
            };
            conn.receiving.set(false);
            conn.data_due.take();
            if !whole {
                conn.release(1, bytes);
                return false;
            }
        }
        match checked {
            Ok(command) => job::start(conn, command, request, data),
            Err(error) => {
                conn.count_error();
                let reply = Reply::error(conn.session(), &request, error, bytes);
                conn.reply(reply);
            }
        }
        true
    }

    /// Fills `buf` with the next bytes.
    async fn payload(&mut self, buf: &Buf) -> bool {
        let (mut filled, mut step_end) = (0, STEP_BYTES);
        loop {
            let n = (self.end - self.start).min(buf.len() - filled);
            let from = self.start..self.start + n;
            self.chunk.read(|c| buf.write(|b| b[filled..filled + n].copy_from_slice(&c[from])));
            self.start += n;
            filled += n;
            if filled == buf.len() {
                return true;
            }
            if filled >= step_end {
                step_end = filled + STEP_BYTES;
                self.conn.begin_step(&self.conn.data_due);
            }
            if buf.len() - filled >= DIRECT_BYTES_MIN {
                let Some(n) = self.receive(buf, filled).await else { return false };
                filled += n;
            } else if !self.fill().await {
                return false;
            }
        }
    }

    /// Skips the next `len` bytes.
    async fn skip(&mut self, len: usize) -> bool {
        let (mut left, mut step_end) = (len, len.saturating_sub(STEP_BYTES));
        loop {
            let n = (self.end - self.start).min(left);
            self.start += n;
            left -= n;
            if left == 0 {
                return true;
            }
            if left <= step_end {
                step_end = left.saturating_sub(STEP_BYTES);
                self.conn.begin_step(&self.conn.data_due);
            }
            if !self.fill().await {
                return false;
            }
        }
    }
}
