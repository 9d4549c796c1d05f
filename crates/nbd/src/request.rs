// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests and their replies: parsed from bytes, encoded into bytes, for either side.
//!
//! ```text
//!  request  magic 4 │ flags 2 │ type 2 │ cookie 8 │ offset 8 │ length 4 │ payload of a WRITE
//!  simple   magic 4 │ error 4 │ cookie 8 │ payload of a READ
//!  chunk    magic 4 │ flags 2 │ type 2 │ cookie 8 │ length 4 │ payload
//! ```
use block::Status;

use crate::option::Malformed;
use crate::wire::{CHUNK_MAGIC, Cursor, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, chunk, cmd};

/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply before its payload.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of a chunk before its payload.
pub const CHUNK_BYTES: usize = 20;
/// Most bytes that [`ReplyHead::encode`] writes: a chunk head and an offset.
pub const REPLY_HEAD_BYTES_MAX: usize = CHUNK_BYTES + 8;

/// One request as on the wire: only the magic is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags, known or not.
    pub flags: u16,
    /// Type, known or not.
    pub kind: u16,
    /// Identifies the request in its replies.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// `None` when more bytes are needed.
    pub fn parse(input: &[u8]) -> Result<Option<Request>, Malformed> {
        let mut c = Cursor(input);
        let Some(magic) = c.be32() else { return Ok(None) };
        if magic != REQUEST_MAGIC {
            return Err(Malformed);
        }
        let mut rest = || {
            let (flags, kind) = (c.be16()?, c.be16()?);
            let (cookie, offset, len) = (c.be64()?, c.be64()?, c.be32()?);
            Some(Request { flags, kind, cookie, offset, len })
        };
        Ok(rest())
    }

    /// The request's bytes.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Bytes that follow the request.
    pub fn payload_len(&self) -> u32 {
        if self.kind == cmd::WRITE { self.len } else { 0 }
    }
}

/// Errors of the protocol, named as errno; the values are the protocol's, not the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// A resource is short.
    NoMem = 12,
    /// The request is wrong.
    Invalid = 22,
    /// The device is full, or a write reaches beyond its end.
    NoSpace = 28,
    /// Too long for what was asked.
    Overflow = 75,
    /// The device can't do it.
    NotSupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// The error of the protocol for a failed bio.
    pub fn from_status(status: Status) -> Option<Errno> {
        match status {
            Status::Ok => None,
            Status::Io | Status::Checksum | Status::Timeout | Status::NoDevice | Status::Stale => {
                Some(Errno::Io)
            }
            Status::NoSpace => Some(Errno::NoSpace),
            Status::NotSupported => Some(Errno::NotSupported),
            Status::Invalid => Some(Errno::Invalid),
            Status::Again => Some(Errno::NoMem),
            Status::ReadOnly => Some(Errno::Perm),
        }
    }
}

/// The head of a reply, before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// A simple reply.
    Simple {
        /// The outcome.
        error: Option<Errno>,
    },
    /// The only chunk of a structured read.
    Data {
        /// Where the data begins.
        offset: u64,
        /// How much follows.
        len: u32,
    },
    /// The only chunk of a failed structured request.
    Error {
        /// Why.
        error: Errno,
    },
    /// One context's extents.
    Status {
        /// Bytes that follow: context and extents.
        len: u32,
        /// Whether no other chunk follows.
        last: bool,
    },
}

impl ReplyHead {
    /// Writes the head of the reply to `cookie` and returns its length.
    pub fn encode(&self, cookie: u64, out: &mut [u8]) -> usize {
        let (flags, kind, len) = match *self {
            ReplyHead::Simple { error } => {
                out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
                out[4..8].copy_from_slice(&error.map_or(0, |e| e as u32).to_be_bytes());
                out[8..16].copy_from_slice(&cookie.to_be_bytes());
                return SIMPLE_BYTES;
            }
            ReplyHead::Data { len, .. } => (chunk::FLAG_DONE, chunk::OFFSET_DATA, len + 8),
            ReplyHead::Error { .. } => (chunk::FLAG_DONE, chunk::ERROR, 6),
            ReplyHead::Status { len, last } => (u16::from(last), chunk::BLOCK_STATUS, len),
        };
        out[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&kind.to_be_bytes());
        out[8..16].copy_from_slice(&cookie.to_be_bytes());
        out[16..20].copy_from_slice(&len.to_be_bytes());
        match *self {
            ReplyHead::Data { offset, .. } => {
                out[20..28].copy_from_slice(&offset.to_be_bytes());
                28
            }
            ReplyHead::Error { error } => {
                out[20..24].copy_from_slice(&(error as u32).to_be_bytes());
                out[24..26].copy_from_slice(&[0, 0]); // no message
                26
            }
            ReplyHead::Simple { .. } | ReplyHead::Status { .. } => CHUNK_BYTES,
        }
    }
}

/// A reply as a client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyIn {
    /// A simple reply; a successful READ's data follows.
    Simple {
        /// The request.
        cookie: u64,
        /// Zero, or the protocol's error.
        error: u32,
    },
    /// A chunk; `len` bytes follow.
    Chunk {
        /// The request.
        cookie: u64,
        /// Flags.
        flags: u16,
        /// Type.
        kind: u16,
        /// Bytes that follow.
        len: u32,
    },
}

impl ReplyIn {
    /// The reply and the bytes it took; `None` when more are needed.
    pub fn parse(input: &[u8]) -> Result<Option<(ReplyIn, usize)>, Malformed> {
        let mut c = Cursor(input);
        let Some(magic) = c.be32() else { return Ok(None) };
        let mut parse = || match magic {
            SIMPLE_REPLY_MAGIC => {
                let (error, cookie) = (c.be32()?, c.be64()?);
                Some((ReplyIn::Simple { cookie, error }, SIMPLE_BYTES))
            }
            _ => {
                let (flags, kind, cookie, len) = (c.be16()?, c.be16()?, c.be64()?, c.be32()?);
                Some((ReplyIn::Chunk { cookie, flags, kind, len }, CHUNK_BYTES))
            }
        };
        if magic != SIMPLE_REPLY_MAGIC && magic != CHUNK_MAGIC {
            return Err(Malformed);
        }
        Ok(parse())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &[u8; 28] = b"\x25\x60\x95\x13\x00\x04\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\
                              \x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x20\x00";

    #[test]
    fn a_request_is_read_and_written_as_the_protocol_draws_it() {
        let want =
            Request { flags: 4, kind: 0, cookie: 0x0102_0304_0506_0708, offset: 4096, len: 8192 };
        assert_eq!(Request::parse(READ), Ok(Some(want)));
        assert_eq!(want.encode(), *READ);
        for n in 0..28 {
            assert_eq!(Request::parse(&READ[..n]), Ok(None));
        }
        assert_eq!(Request::parse(b"\x25\x60\x95\x14"), Err(Malformed));
    }

    #[test]
    fn a_simple_reply_is_written_as_the_protocol_draws_it() {
        let mut out = [0; REPLY_HEAD_BYTES_MAX];
        let n = ReplyHead::Simple { error: Some(Errno::NoSpace) }.encode(7, &mut out);
        assert_eq!(out[..n], *b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x07");
        let parsed = ReplyIn::parse(&out[..n]);
        assert_eq!(parsed, Ok(Some((ReplyIn::Simple { cookie: 7, error: 28 }, 16))));
    }

    #[test]
    fn chunks_are_written_as_the_protocol_draws_them() {
        let mut out = [0; REPLY_HEAD_BYTES_MAX];
        let n = ReplyHead::Data { offset: 512, len: 4096 }.encode(7, &mut out);
        let want = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x10\x08\0\0\0\0\0\0\x02\0";
        assert_eq!(out[..n], *want);
        let n = ReplyHead::Error { error: Errno::Io }.encode(7, &mut out);
        let want = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x06\0\0\0\x05\0\0";
        assert_eq!(out[..n], *want);
        let n = ReplyHead::Status { len: 12, last: false }.encode(7, &mut out);
        let head = ReplyIn::Chunk { cookie: 7, flags: 0, kind: chunk::BLOCK_STATUS, len: 12 };
        assert_eq!(ReplyIn::parse(&out[..n]), Ok(Some((head, 20))));
        assert_eq!(ReplyIn::parse(&out[..n - 1]), Ok(None));
        assert_eq!(ReplyIn::parse(&[0; 20]), Err(Malformed));
    }
}
