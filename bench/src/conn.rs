// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lean connection to an NBD export: as many replies as are there in one read, data skipped.
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nbd::request::{ReplyIn, Request};
use nbd::wire::{OPTION_MAGIC, cmd, opt};

/// One read of the socket takes up to this.
const INBOX_BYTES: usize = 512 << 10;

pub(crate) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A connection to an export.
#[derive(Debug)]
pub struct Conn {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
    inbox: Vec<u8>,
    start: usize,
    end: usize,
}

impl Conn {
    /// Connects by the oldest option, which every server knows: replies are simple then.
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn open(socket: &Path, export: &str) -> io::Result<Conn> {
        let mut stream = UnixStream::connect(socket)?;
        stream.read_exact(&mut [0; 18])?;
        let len = u32::try_from(export.len()).map_err(|_| wrong("export name too long"))?;
        let mut out = vec![0, 0, 0, 3];
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&opt::EXPORT_NAME.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(export.as_bytes());
        stream.write_all(&out)?;
        let mut size = [0; 8];
        stream.read_exact(&mut size)?;
        stream.read_exact(&mut [0; 2])?;
        let size = u64::from_be_bytes(size);
        Ok(Conn { stream, size, inbox: vec![0; INBOX_BYTES], start: 0, end: 0 })
    }

    /// The next reply's cookie, its data skipped; none when more bytes are needed.
    pub(crate) fn reply(&mut self, data: usize) -> io::Result<Option<u64>> {
        let parsed = ReplyIn::parse(&self.inbox[self.start..self.end]);
        match parsed.map_err(|_| wrong("no reply"))? {
            Some((ReplyIn::Simple { cookie, error: 0 }, n)) => {
                if self.end - self.start < n + data {
                    return Ok(None);
                }
                self.start += n + data;
                Ok(Some(cookie))
            }
            Some((other, _)) => Err(wrong(format!("unexpected reply {other:?}"))),
            None => Ok(None),
        }
    }

    /// Asks for a flush, and waits for its end; nothing else is in flight.
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn flush(&mut self) -> io::Result<()> {
        self.ask(cmd::FLUSH, 0, &[])
    }

    /// Writes, and waits for the end; nothing else is in flight.
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(cmd::WRITE, offset, data)
    }

    /// Reads, and waits for the data; nothing else is in flight.
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.send(cmd::READ, offset, data.len())?;
        while self.reply(data.len())?.is_none() {
            self.fill()?;
        }
        data.copy_from_slice(&self.inbox[self.start - data.len()..self.start]);
        Ok(())
    }

    fn ask(&mut self, kind: u16, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send(kind, offset, data.len())?;
        self.stream.write_all(data)?;
        while self.reply(0)?.is_none() {
            self.fill()?;
        }
        Ok(())
    }

    fn send(&mut self, kind: u16, offset: u64, len: usize) -> io::Result<()> {
        let len = u32::try_from(len).map_err(|_| wrong("data too long"))?;
        let request = Request { flags: 0, kind, cookie: 1, offset, len };
        self.stream.write_all(&request.encode())
    }

    /// Reads what is there, at least a byte.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        self.inbox.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.stream.read(&mut self.inbox[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.end += n;
                Ok(())
            }
        }
    }
}
