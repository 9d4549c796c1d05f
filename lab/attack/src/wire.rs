// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD protocol as far as both sides here need it: fixed newstyle, simple replies.
//!
//! Written from the protocol's specification, and shared with nothing of the program.

use std::io::{self, Read, Write};

/// The first words of a server.
pub const HELLO: u64 = 0x4E42_444D_4147_4943;
/// What precedes each option.
pub const OPTION: u64 = 0x4948_4156_454F_5054;
/// What precedes each answer to an option.
pub const OPTION_REPLY: u64 = 0x0003_E889_0455_65A9;
/// What precedes each request.
pub const REQUEST: u32 = 0x2560_9513;
/// What precedes each reply.
pub const REPLY: u32 = 0x6744_6698;

/// Options, their answers and what they tell.
pub mod opt {
    /// Take an export, the old way.
    pub const EXPORT_NAME: u32 = 1;
    /// End.
    pub const ABORT: u32 = 2;
    /// Tell about an export.
    pub const INFO: u32 = 6;
    /// Take an export.
    pub const GO: u32 = 7;
    /// Done.
    pub const ACK: u32 = 1;
    /// Something told.
    pub const TELL: u32 = 3;
    /// An option that is not known.
    pub const UNSUPPORTED: u32 = 0x8000_0001;
    /// Size and flags are told.
    pub const INFO_EXPORT: u16 = 0;
    /// Block sizes are told.
    pub const INFO_BLOCK_SIZE: u16 = 3;
}

/// Requests.
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// End of the connection.
    pub const DISC: u16 = 2;
    /// Make durable what has completed.
    pub const FLUSH: u16 = 3;
    /// Give a range up.
    pub const TRIM: u16 = 4;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
}

/// Flag of a request: durable when it completes.
pub const FUA: u16 = 1;
/// Flags of an export: has flags, FLUSH, FUA, TRIM, WRITE_ZEROES.
pub const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;
/// Errors, as the protocol numbers them.
pub const EIO: u32 = 5;
/// What is asked is not allowed.
pub const EINVAL: u32 = 22;
/// The server is about to end.
pub const ESHUTDOWN: u32 = 108;

/// One request without its payload.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its flags.
    pub flags: u16,
    /// Which.
    pub cmd: u16,
    /// By what its reply is known.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// As it is on the wire.
    pub fn encode(&self) -> [u8; 28] {
        let mut out = [0; 28];
        out[0..4].copy_from_slice(&REQUEST.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.cmd.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Reads one.
    pub fn read(from: &mut impl Read) -> io::Result<Request> {
        if u32(from)? != REQUEST {
            return Err(wrong("no request"));
        }
        let (flags, cmd) = (u16(from)?, u16(from)?);
        Ok(Request { flags, cmd, cookie: u64(from)?, offset: u64(from)?, len: u32(from)? })
    }
}

/// A reply's head.
pub fn reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[0..4].copy_from_slice(&REPLY.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Reads a reply's head: cookie and error.
pub fn read_reply(from: &mut impl Read) -> io::Result<(u64, u32)> {
    if u32(from)? != REPLY {
        return Err(wrong("no simple reply"));
    }
    let error = u32(from)?;
    Ok((u64(from)?, error))
}

/// Sends an option.
pub fn send_option(to: &mut impl Write, option: u32, data: &[u8]) -> io::Result<()> {
    let mut out = OPTION.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    to.write_all(&out)
}

/// Sends an answer to an option.
pub fn answer_option(to: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut out = OPTION_REPLY.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    to.write_all(&out)
}

/// What the other side must not send.
pub fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The next two bytes as a number.
pub fn u16(from: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    from.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

/// The next four bytes as a number.
pub fn u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

/// The next eight bytes as a number.
pub fn u64(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The next `len` bytes.
pub fn bytes(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
