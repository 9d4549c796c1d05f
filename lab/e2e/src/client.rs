// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small NBD client: simple replies, any number of requests in flight.
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nbd::request::{ReplyIn, Request, SIMPLE_BYTES};
use nbd::wire::{OPTION_MAGIC, OPTION_REPLY_MAGIC, cmd, info, opt, rep};

/// Longest wait for an answer (EE-E2).
const ANSWER: Duration = Duration::from_secs(60);
/// `NBD_CMD_FLAG_FUA`
const FUA: u16 = 1;

/// A connection to an export.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    size: u64,
    flags: u16,
}

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which request.
    pub cookie: u64,
    /// Zero, or the protocol's error number.
    pub error: u32,
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn array<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Connects and says that we are a fixed newstyle client that wants no zeroes.
pub fn greet(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let greeting: [u8; 18] = array(&mut stream)?;
    if !greeting.starts_with(b"NBDMAGICIHAVEOPT") {
        return Err(wrong("no NBD server"));
    }
    stream.write_all(&[0, 0, 0, 3])?;
    Ok(stream)
}

/// Sends an option.
pub fn send_option(stream: &mut UnixStream, option: u32, data: &[u8]) -> io::Result<()> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(u32::try_from(data.len()).map_err(|_| wrong("option too long"))?.to_be_bytes());
    out.extend_from_slice(data);
    stream.write_all(&out)
}

/// Receives one reply to an option: its type and data.
pub fn option_reply(stream: &mut UnixStream) -> io::Result<(u32, Vec<u8>)> {
    let head: [u8; 20] = array(stream)?;
    let be32 = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    if head[..8] != OPTION_REPLY_MAGIC.to_be_bytes() {
        return Err(wrong("no option reply"));
    }
    let mut data = vec![0; be32(16) as usize];
    stream.read_exact(&mut data)?;
    Ok((be32(12), data))
}

impl Client {
    /// Connects to the export `name`.
    pub fn connect(socket: &Path, name: &str) -> io::Result<Client> {
        let mut stream = greet(socket)?;
        let mut data = u32::try_from(name.len()).map_err(|_| wrong("long name"))?.to_be_bytes();
        let mut go = data.to_vec();
        go.extend_from_slice(name.as_bytes());
        go.extend([0, 0]); // no further information wanted
        send_option(&mut stream, opt::GO, &go)?;
        let (mut size, mut flags) = (0, 0);
        loop {
            match option_reply(&mut stream)? {
                (rep::ACK, _) => return Ok(Client { stream, size, flags }),
                (rep::INFO, export) if export[..2] == info::EXPORT.to_be_bytes() => {
                    let [size_at, flags_at] = [&export[2..10], &export[10..12]];
                    size = u64::from_be_bytes(size_at.try_into().expect("eight bytes"));
                    flags = u16::from_be_bytes(flags_at.try_into().expect("two bytes"));
                }
                (rep::INFO, _) => {}
                (other, text) => {
                    data = other.to_be_bytes();
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Err(wrong(format!("refused with {data:x?}: {text}")));
                }
            }
        }
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The export's flags.
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// The connection itself, for what no decent client does.
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// Sends a request and, for a write, its data.
    pub fn send(&mut self, request: Request, data: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(64 + data.len());
        out.extend(request.encode());
        out.extend_from_slice(data);
        self.stream.write_all(&out)
    }

    /// Receives the next answer that has no data behind it.
    pub fn receive(&mut self) -> io::Result<Answer> {
        let head: [u8; SIMPLE_BYTES] = array(&mut self.stream)?;
        match ReplyIn::parse(&head) {
            Ok(Some((ReplyIn::Simple { cookie, error }, _))) => Ok(Answer { cookie, error }),
            other => Err(wrong(format!("no simple reply: {other:?}"))),
        }
    }

    fn call(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let len = u32::try_from(len).map_err(|_| wrong("request too long"))?;
        self.send(Request { flags, kind, cookie: 7, offset, len }, data)?;
        match self.receive()? {
            Answer { cookie: 7, error: 0 } => Ok(()),
            Answer { cookie: 7, error } => Err(wrong(format!("the server says error {error}"))),
            other => Err(wrong(format!("answer to nothing: {other:?}"))),
        }
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.call(cmd::READ, 0, offset, data.len() as u64, &[])?;
        self.stream.read_exact(data)
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call(cmd::WRITE, 0, offset, data.len() as u64, data)
    }

    /// Writes, durable when it returns.
    pub fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call(cmd::WRITE, FUA, offset, data.len() as u64, data)
    }

    /// Gives a range up.
    pub fn trim(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.call(cmd::TRIM, 0, offset, len, &[])
    }

    /// Writes zeroes.
    pub fn write_zeroes(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.call(cmd::WRITE_ZEROES, 0, offset, len, &[])
    }

    /// Makes what was written durable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.call(cmd::FLUSH, 0, 0, 0, &[])
    }
}
