// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replies of an NBD server as a load needs them: as many as are there in one read, data skipped.
use std::io::{self, Read};

use nbd::request::ReplyIn;

/// One read of the socket takes up to this.
const INBOX_BYTES: usize = 512 << 10;

/// The simple replies that come through a socket.
#[derive(Debug)]
pub(crate) struct Replies {
    inbox: Vec<u8>,
    start: usize,
    end: usize,
}

pub(crate) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Replies {
    pub(crate) fn new() -> Replies {
        Replies { inbox: vec![0; INBOX_BYTES], start: 0, end: 0 }
    }

    /// The cookie of the next reply, whose `data` bytes are skipped; none when more must be read.
    pub(crate) fn next(&mut self, data: usize) -> io::Result<Option<u64>> {
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

    /// Reads what is there, at least a byte.
    pub(crate) fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
        self.inbox.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match stream.read(&mut self.inbox[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.end += n;
                Ok(())
            }
        }
    }
}
