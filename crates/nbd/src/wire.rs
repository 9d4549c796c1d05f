// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers of the NBD protocol and a cursor over its bytes. Everything on the wire is big-endian.
//!
//! Names and values: `doc/proto.md` of github.com/NetworkBlockDevice/nbd.
use bitflags::bitflags;

/// First eight bytes of a newstyle server, "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": second magic of the server, and head of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Head of each option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Head of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Head of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Head of each structured reply chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Largest option payload that is taken; the protocol's strings are 4 KiB, so this is plenty.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Largest string of the protocol, thus of an export name.
pub const NAME_BYTES_MAX: usize = 4096;
/// Largest READ or WRITE, as the protocol proposes for all.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

bitflags! {
    /// Handshake flags of both sides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HandshakeFlags: u32 {
        /// Unknown options get an answer.
        const FIXED_NEWSTYLE = 1;
        /// No 124 zero bytes after EXPORT_NAME.
        const NO_ZEROES = 1 << 1;
    }
}

bitflags! {
    /// What an export can do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ExportFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1;
        /// No writes.
        const READ_ONLY = 1 << 1;
        /// Takes FLUSH.
        const FLUSH = 1 << 2;
        /// Takes FUA.
        const FUA = 1 << 3;
        /// Seeks cost.
        const ROTATIONAL = 1 << 4;
        /// Takes TRIM.
        const TRIM = 1 << 5;
        /// Takes WRITE_ZEROES.
        const WRITE_ZEROES = 1 << 6;
        /// Takes DF.
        const DF = 1 << 7;
        /// A flush on one connection covers the writes of all.
        const CAN_MULTI_CONN = 1 << 8;
        /// Takes FAST_ZERO.
        const FAST_ZERO = 1 << 11;
    }
}

bitflags! {
    /// Flags of a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// Durable before the reply.
        const FUA = 1;
        /// Write zeroes without a hole.
        const NO_HOLE = 1 << 1;
        /// The read comes in one chunk.
        const DF = 1 << 2;
        /// One extent of block status is enough.
        const REQ_ONE = 1 << 3;
        /// Fail write zeroes unless it is fast.
        const FAST_ZERO = 1 << 4;
    }
}

/// Option numbers.
pub mod opt {
    #![expect(missing_docs, reason = "the protocol's names without NBD_OPT_")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types.
pub mod rep {
    #![expect(missing_docs, reason = "the protocol's names without NBD_REP_")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const FLAG_ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = 1 << 31 | 8;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Information types of INFO and GO.
pub mod info {
    #![expect(missing_docs, reason = "the protocol's names without NBD_INFO_")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Request types.
pub mod cmd {
    #![expect(missing_docs, reason = "the protocol's names without NBD_CMD_")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Structured reply chunk types, and the flag of the last chunk.
pub mod chunk {
    #![expect(missing_docs, reason = "the protocol's names without NBD_REPLY_TYPE_")]
    pub const FLAG_DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR_BIT: u16 = 1 << 15;
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Reads big-endian fields off the front of a byte string; `None` when it is too short.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    /// The next two bytes.
    pub fn be16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four bytes.
    pub fn be32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight bytes.
    pub fn be64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string behind its 32-bit length. Its characters are not looked at.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.be32()?;
        self.take(usize::try_from(len).ok()?)
    }
}
