// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiver: takes all replies of a receive, each checked against its request.
//!
//! Data are always copied from the receiver's own buffer. A receive must not point into the buffers
//! of a bio, because another connection could complete the bio meanwhile (NB-C3).
use std::rc::Rc;

use block::{Buf, Status};

use crate::client::link::{Link, LinkEnd};
use crate::client::work::Key;
use crate::request::{CHUNK_BYTES, Errno, ReplyIn};
use crate::wire::{Cursor, chunk};

/// One receive takes up to this: sixty reads of 4 KiB, and it stays in a core's cache.
const INBOX_BYTES: usize = 256 << 10;
/// Longest error chunk: a code, and a message that is ignored.
const ERROR_BYTES_MAX: u32 = 16 << 10;
/// Chunks of one reply, beyond one for each sector.
const CHUNKS_EXTRA: u32 = 64;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Why a reply is invalid; ends the connection.
type Violation = &'static str;

/// Takes replies until the link is broken, then reads to the end of the stream.
pub(crate) async fn run(link: Rc<Link>) {
    let inbox = Buf::alloc(INBOX_BYTES);
    let mut replies = Replies { link: link.clone(), data: None };
    let (mut start, mut end) = (0, 0);
    loop {
        if link.is_broken() {
            (start, end) = (0, 0);
        } else if start > 0 {
            inbox.write(|b| b.copy_within(start..end, 0));
            (start, end) = (0, end - start);
        }
        let result = link.recv(inbox.slice(end..INBOX_BYTES)).await;
        match (result.status, result.value) {
            (Status::Ok, 0) | (Status::NoDevice, _) => {
                link.break_off("the server has ended the connection");
                return link.receiver_ended(LinkEnd::AtServer);
            }
            (Status::Ok, n) => {
                link.note_activity();
                end += n as usize;
            }
            (Status::Timeout, _) => {
                link.break_off("the server's host is silent");
                return link.receiver_ended(LinkEnd::Unknown);
            }
            (status, _) if link.is_broken() => {
                // A second error: this socket is unusable.
                link.break_off(&format!("receiving failed: {status}"));
                return link.receiver_ended(LinkEnd::Unknown);
            }
            (status, _) => {
                let why = link.connection.failure().unwrap_or_else(|| status.to_string());
                link.break_off(&format!("receiving failed: {why}"));
                continue;
            }
        }
        if link.is_broken() {
            continue;
        }
        match inbox.read(|b| replies.take(&b[start..end])) {
            Ok(taken) => start += taken,
            Err(why) => link.break_off(&format!("reply: {why}")),
        }
    }
}

/// Outstanding data of a reply.
struct Data {
    key: Key,
    /// Where in the request's buffers.
    at: u32,
    left: u32,
    /// Whether the reply ends with them.
    last: bool,
}

/// The stream of replies.
struct Replies {
    link: Rc<Link>,
    data: Option<Data>,
}

impl Replies {
    /// Takes whole headers, and the data that have arrived; returns the number of bytes used.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mut at = 0;
        loop {
            let taken = match &mut self.data {
                Some(_) => self.take_data(&bytes[at..])?,
                None => self.take_head(&bytes[at..])?,
            };
            match taken {
                0 => return Ok(at),
                n => at += n,
            }
        }
    }

    fn take_data(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let Some(data) = &mut self.data else { return Ok(0) };
        let n = bytes.len().min(data.left as usize);
        let n32 = u32::try_from(n).map_err(|_| "data")?;
        {
            let mut work = self.link.client.work.borrow_mut();
            work.piece(data.key).bufs.put_at(data.at as usize, &bytes[..n]);
            work.progress(data.key, data.at, n32);
        }
        data.at += n32;
        data.left -= n32;
        if data.left == 0 {
            let Data { key, last, .. } = *data;
            self.data = None;
            if last {
                self.done(key)?;
            }
        }
        Ok(n)
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let parsed = ReplyIn::parse(bytes).map_err(|_| "wrong magic number")?;
        match parsed {
            None => Ok(0),
            Some((ReplyIn::Simple { cookie, error }, used)) => {
                self.simple(cookie, error)?;
                Ok(used)
            }
            Some((ReplyIn::Chunk { cookie, flags, kind, len }, used)) => {
                let body = &bytes[used..];
                Ok(self.chunk(cookie, (flags, kind, len), body)?.map_or(0, |more| used + more))
            }
        }
    }

    fn find(&self, cookie: u64) -> Result<Key, Violation> {
        let found = self.link.client.work.borrow_mut().in_flight(cookie);
        found.ok_or("it answers nothing that was asked") // NB-C1
    }

    fn simple(&mut self, cookie: u64, error: u32) -> Result<(), Violation> {
        let key = self.find(cookie)?;
        if error != 0 {
            return self.failed(key, error);
        }
        let (wants_data, len) = {
            let mut work = self.link.client.work.borrow_mut();
            let piece = work.piece(key);
            (piece.wants_data(), piece.len)
        };
        if !wants_data {
            self.link.finish(key, Status::Ok);
        } else if self.link.structured {
            return Err("a simple reply to a read, where chunks were agreed on");
        } else {
            self.link.client.work.borrow_mut().piece(key).fill.add(0, len);
            self.data = Some(Data { key, at: 0, left: len, last: true });
        }
        Ok(())
    }

    /// Handles a chunk; returns the bytes of its body that were used, `None` if more are needed.
    fn chunk(
        &mut self,
        cookie: u64,
        (flags, kind, len): (u16, u16, u32),
        body: &[u8],
    ) -> Result<Option<usize>, Violation> {
        if !self.link.structured {
            return Err("a chunk, where none were agreed on");
        }
        let key = self.find(cookie)?;
        let last = flags & chunk::FLAG_DONE != 0;
        let is_error = kind & chunk::ERROR_BIT != 0;
        // NB-C2: only short bodies are waited for before they are parsed.
        let needed = match kind {
            chunk::NONE if len == 0 && last => 0,
            chunk::OFFSET_DATA if len > 8 => 8,
            chunk::OFFSET_HOLE if len == 12 => 12,
            _ if is_error && (6..=ERROR_BYTES_MAX).contains(&len) => len as usize,
            _ => return Err("a chunk of unknown type or impossible length"),
        };
        let Some(body) = body.get(..needed) else { return Ok(None) };
        let mut c = Cursor(body);
        {
            let mut work = self.link.client.work.borrow_mut();
            let piece = work.piece(key);
            piece.chunks += 1;
            if piece.chunks > piece.len / 512 + CHUNKS_EXTRA {
                return Err("no end of chunks");
            }
        }
        if is_error {
            let code = c.be32().unwrap_or(0);
            self.note_error(key, code)?;
        } else if kind != chunk::NONE {
            let offset = c.be64().unwrap_or(u64::MAX);
            let bytes = if kind == chunk::OFFSET_DATA { len - 8 } else { c.be32().unwrap_or(0) };
            let at = self.place(key, offset, bytes)?;
            if kind == chunk::OFFSET_DATA {
                self.data = Some(Data { key, at, left: bytes, last });
                return Ok(Some(needed));
            }
            self.hole(key, at, bytes);
        }
        if last {
            self.done(key)?;
        }
        Ok(Some(needed))
    }

    /// The position of data or a hole in the request's buffers.
    fn place(&self, key: Key, offset: u64, bytes: u32) -> Result<u32, Violation> {
        let mut work = self.link.client.work.borrow_mut();
        let piece = work.piece(key);
        let within = offset.checked_sub(piece.offset).filter(|_| piece.wants_data() && bytes > 0);
        let end = within.and_then(|at| at.checked_add(u64::from(bytes)));
        let (Some(at), Some(end)) = (within, end.filter(|&end| end <= u64::from(piece.len))) else {
            return Err("data that were not asked for");
        };
        let (at, end) = (at as u32, end as u32); // within the piece's length
        if !piece.fill.add(at, end) {
            return Err("the same data twice");
        }
        Ok(at)
    }

    fn hole(&self, key: Key, at: u32, bytes: u32) {
        let mut work = self.link.client.work.borrow_mut();
        let bufs = &work.piece(key).bufs;
        let (mut at, end) = (at as usize, (at + bytes) as usize);
        while at < end {
            let n = ZEROES.len().min(end - at);
            bufs.put_at(at, &ZEROES[..n]);
            at += n;
        }
    }

    fn note_error(&self, key: Key, code: u32) -> Result<(), Violation> {
        let status = status_of(code)?;
        let mut work = self.link.client.work.borrow_mut();
        work.piece(key).failed.get_or_insert(status);
        Ok(())
    }

    fn failed(&self, key: Key, code: u32) -> Result<(), Violation> {
        let status = status_of(code)?;
        self.link.finish(key, status);
        Ok(())
    }

    /// Handles the end of a reply.
    fn done(&self, key: Key) -> Result<(), Violation> {
        let status = {
            let mut work = self.link.client.work.borrow_mut();
            let piece = work.piece(key);
            match piece.failed {
                Some(status) => status,
                None if piece.wants_data() && !piece.fill.is_whole(piece.len) => {
                    return Err("a read's data are not complete");
                }
                None => Status::Ok,
            }
        };
        self.link.finish(key, status);
        Ok(())
    }
}

/// The status of a bio for an error of the protocol. A server that shuts down reports that for
/// requests that it has not performed: they are sent again on the next connection.
fn status_of(code: u32) -> Result<Status, Violation> {
    const SHUTDOWN: u32 = Errno::Shutdown as u32;
    const PERM: u32 = Errno::Perm as u32;
    const NO_SPACE: u32 = Errno::NoSpace as u32;
    const INVALID: u32 = Errno::Invalid as u32;
    const NOT_SUPPORTED: u32 = Errno::NotSupported as u32;
    match code {
        0 => Err("an error without a code"),
        SHUTDOWN => Err("the server is shutting down"),
        NO_SPACE => Ok(Status::NoSpace),
        INVALID => Ok(Status::Invalid),
        PERM | NOT_SUPPORTED => Ok(Status::NotSupported),
        _ => Ok(Status::Io),
    }
}

const _: () = assert!(CHUNK_BYTES + ERROR_BYTES_MAX as usize <= INBOX_BYTES);
