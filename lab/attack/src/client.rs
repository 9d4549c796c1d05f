// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An NBD client with several requests in flight, which overlap with its own and others'.
//!
//! It reports each request to the judge before sending it, and its outcome after the reply.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::history::{Kind, Outcome};
use crate::judge::Judge;
use crate::pattern::{SECTOR, fill, identify};
use crate::rng::Rng;
use crate::wire::{self, Request, cmd, opt};
use crate::{Result, clock, lock};

/// Seconds to wait for an answer. Disks hang for seconds at most, an operator's pauses are shorter.
const PATIENCE: f64 = 90.0;

/// Sectors that long zeroes have at least: 128 KiB.
const LONG: u64 = 256;
/// A client that leaves does so before it has sent so many requests.
const LEAVE_MAX: u64 = 200;
/// Bytes that a client asks for and does not take: more than a socket holds.
const UNTAKEN: u64 = 8 << 20;

/// Zeroes and discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroes {
    /// None.
    None,
    /// Without FUA.
    Plain,
    /// With FUA, too.
    Fua,
}

/// What is asked for, of sectors that all clients share.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// First sector that is used.
    pub first: u64,
    /// How many are.
    pub count: u64,
    /// Sectors that a request has at least, and begins at a multiple of: 1, or 8.
    pub grain: u64,
    /// Whether zeroes and discards are sent.
    pub zeroes: Zeroes,
    /// Some zeroes are long, up to all sectors, and begin and end anywhere; and there are no
    /// discards.
    pub long_zeroes: bool,
    /// FLUSHes that a connection has in flight at most.
    pub flushes: usize,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read.
    Read,
    /// Write, zero or discard; with FUA or not.
    Change(Kind, bool),
    /// Make durable.
    Flush,
}

impl Load {
    /// A request, and sectors for it: many where others are, some anywhere.
    pub fn draw(&self, rng: &mut Rng) -> (Ask, u64, u64) {
        let ask = match rng.below(100) {
            0..30 => Ask::Read,
            30..76 => Ask::Change(Kind::Data, false),
            76..82 => Ask::Change(Kind::Data, true),
            82..86 if self.zeroes != Zeroes::None => {
                Ask::Change(Kind::Zeroes, self.zeroes == Zeroes::Fua && rng.chance(0.2))
            }
            86..88 if self.zeroes != Zeroes::None && !self.long_zeroes => {
                Ask::Change(Kind::Discard, false)
            }
            82..88 => Ask::Change(Kind::Data, false),
            _ => Ask::Flush,
        };
        if self.long_zeroes && matches!(ask, Ask::Change(Kind::Zeroes, _)) && rng.chance(0.2) {
            let most = LONG << rng.below(u64::from((self.count / LONG).ilog2()) + 1);
            let count = (LONG + rng.below(most)).min(self.count);
            return (ask, self.first + rng.below(self.count - count + 1), count);
        }
        // Where requests may be smaller than a block of 8 sectors, half of them are not.
        let grain = if rng.chance(0.5) { self.grain.max(8) } else { self.grain };
        let grains = self.count / grain;
        let most = if rng.chance(0.1) { 16 } else { 3 };
        let len = (1 + rng.below(most)).min(grains);
        let region = if rng.chance(0.6) { grains.min(64) } else { grains };
        let start = rng.below(region).min(grains - len);
        (ask, self.first + start * grain, len * grain)
    }
}

#[derive(Clone, Copy, Debug)]
enum Waiting {
    Read { begun: u64, sector: u64, count: u64 },
    Change { write: u64, sector: u64, count: u64 },
    Flush { begun: u64 },
}

/// A connection.
pub struct Client {
    stream: UnixStream,
    judge: Arc<Mutex<Judge>>,
    opener: u64,
    /// By cookie: when it was sent, and what it was.
    in_flight: BTreeMap<u64, (u64, Waiting)>,
    cookie: u64,
}

/// How a client's work ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to stop, and everything was answered.
    Stopped,
    /// It has gone with requests in flight.
    Left,
    /// The server has gone.
    Cut,
    /// The server did what no server may do.
    Fault(String),
}

impl Client {
    /// Connects to an export.
    pub fn connect(socket: &Path, export: &str, judge: &Arc<Mutex<Judge>>) -> io::Result<Client> {
        Client::connect_within(socket, export, judge, PATIENCE)
    }

    /// Connects to an export, and waits for each answer only so many seconds.
    pub fn connect_within(
        socket: &Path,
        export: &str,
        judge: &Arc<Mutex<Judge>>,
        seconds: f64,
    ) -> io::Result<Client> {
        let opener = lock(judge).open();
        let mut stream = UnixStream::connect(socket)?;
        let patience = Some(Duration::from_secs_f64(seconds));
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        if wire::u64(&mut stream)? != wire::HELLO || wire::u64(&mut stream)? != wire::OPTION {
            return Err(wire::wrong("no NBD server"));
        }
        let _ = wire::u16(&mut stream)?;
        stream.write_all(&3u32.to_be_bytes())?;
        let mut go = (export.len() as u32).to_be_bytes().to_vec();
        go.extend(export.as_bytes());
        go.extend([0, 1, 0, 3]); // tell me the block sizes
        wire::send_option(&mut stream, opt::GO, &go)?;
        loop {
            if wire::u64(&mut stream)? != wire::OPTION_REPLY {
                return Err(wire::wrong("no answer to an option"));
            }
            let _ = wire::u32(&mut stream)?;
            let (kind, len) = (wire::u32(&mut stream)?, wire::u32(&mut stream)?);
            let text = wire::bytes(&mut stream, len.min(1 << 16) as usize)?;
            match kind {
                opt::ACK => break,
                opt::TELL => {}
                _ => return Err(wire::wrong(&String::from_utf8_lossy(&text))),
            }
        }
        let judge = Arc::clone(judge);
        Ok(Client { stream, judge, opener, in_flight: BTreeMap::new(), cookie: 0 })
    }

    /// Its connection, for who cuts it.
    pub fn line(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    fn send(&mut self, ask: Ask, sector: u64, count: u64) -> io::Result<()> {
        self.cookie += 1;
        let cookie = self.cookie;
        let mut judge = lock(&self.judge);
        let (cmd, fua, waiting) = match ask {
            Ask::Read => {
                (cmd::READ, false, Waiting::Read { begun: judge.read_begins(), sector, count })
            }
            Ask::Flush => {
                let begun = judge.flush_begins();
                (cmd::FLUSH, false, Waiting::Flush { begun })
            }
            Ask::Change(kind, fua) => {
                let write = judge.write_begins(self.opener, sector, count, kind, fua);
                let cmd = match kind {
                    Kind::Data => cmd::WRITE,
                    Kind::Zeroes => cmd::WRITE_ZEROES,
                    Kind::Discard => cmd::TRIM,
                };
                (cmd, fua, Waiting::Change { write, sector, count })
            }
        };
        let sent = judge.tick();
        drop(judge);
        self.in_flight.insert(cookie, (sent, waiting));
        let (offset, len) = match ask {
            Ask::Flush => (0, 0),
            Ask::Read | Ask::Change(..) => (sector * 512, count as u32 * 512),
        };
        let flags = if fua { wire::FUA } else { 0 };
        let mut out = Request { flags, cmd, cookie, offset, len }.encode().to_vec();
        if let (Ask::Change(Kind::Data, _), Waiting::Change { write, .. }) = (ask, waiting) {
            let head = out.len();
            out.resize(head + len as usize, 0);
            fill(write, sector, &mut out[head..]);
        }
        self.stream.write_all(&out)
    }

    fn receive(&mut self) -> io::Result<()> {
        let (cookie, error) = wire::read_reply(&mut self.stream)?;
        if error == wire::ESHUTDOWN {
            return Err(io::Error::from(ErrorKind::UnexpectedEof)); // it ends: nothing is known
        }
        let waiting = self.in_flight.remove(&cookie);
        let (sent, waiting) = waiting.ok_or_else(|| wire::wrong("an answer to nothing"))?;
        lock(&self.judge).answered(self.opener, sent);
        if ![0, wire::EIO].contains(&error) {
            return Err(wire::wrong(&format!("{waiting:?} was answered with error {error}")));
        }
        let outcome = if error == 0 { Outcome::Done } else { Outcome::Failed };
        let done = outcome == Outcome::Done;
        match waiting {
            Waiting::Flush { begun } => {
                lock(&self.judge).flush_ends(self.opener, begun, outcome);
            }
            Waiting::Change { write, sector, count } => {
                lock(&self.judge).write_ends(write, sector, count, outcome);
            }
            Waiting::Read { begun, .. } if !done => lock(&self.judge).read_fails(begun),
            Waiting::Read { begun, sector, count } => {
                let mut data = vec![0; count as usize * SECTOR];
                self.stream.read_exact(&mut data)?;
                let contents: Vec<_> = data
                    .chunks_exact(SECTOR)
                    .zip(sector..)
                    .map(|(d, at)| identify(at, d))
                    .collect();
                lock(&self.judge).read_ends(begun, sector, &contents);
            }
        }
        Ok(())
    }

    /// Sends requests until it is told to stop or the server goes, or leaves in the middle.
    pub fn run(mut self, load: &Load, depth: usize, rng: &mut Rng, stop: &AtomicBool) -> End {
        end_of(self.work(load, depth, rng, stop))
    }

    /// Asks for more than it takes, and takes nothing.
    pub fn ask_without_end(&mut self, load: &Load) -> io::Result<()> {
        let count = load.count.min(2048);
        for _ in 0..UNTAKEN / (count * 512) {
            self.send(Ask::Read, load.first, count)?;
        }
        Ok(())
    }

    fn work(
        &mut self,
        load: &Load,
        depth: usize,
        rng: &mut Rng,
        stop: &AtomicBool,
    ) -> io::Result<End> {
        let leave_at = if rng.chance(0.2) { rng.below(LEAVE_MAX) } else { u64::MAX };
        loop {
            let stopping = stop.load(Ordering::SeqCst);
            if stopping && self.in_flight.is_empty() {
                return Ok(End::Stopped);
            }
            if self.cookie > leave_at && !self.in_flight.is_empty() {
                return Ok(End::Left);
            }
            while !stopping && self.in_flight.len() < depth {
                let (mut ask, sector, count) = load.draw(rng);
                // FLUSHes beside each other: all of them must tell the truth.
                let again = if rng.chance(0.4) { 2 } else { 1 };
                let flushing = |w: &&(u64, Waiting)| matches!(w.1, Waiting::Flush { .. });
                let flushes = self.in_flight.values().filter(flushing).count();
                if ask == Ask::Flush && flushes + again > load.flushes {
                    ask = Ask::Read;
                }
                for _ in 0..if ask == Ask::Flush { again } else { 1 } {
                    self.send(ask, sector, count)?;
                }
            }
            self.receive()?;
        }
    }

    /// Works for so many milliseconds, until all is answered.
    pub fn burst(&mut self, load: &Load, ms: u64, rng: &mut Rng) -> io::Result<()> {
        let until = clock() + ms as f64 / 1000.0;
        let depth = *rng.pick(&[1, 4, 8]);
        while clock() < until || !self.in_flight.is_empty() {
            while clock() < until && self.in_flight.len() < depth {
                let (ask, sector, count) = load.draw(rng);
                self.send(ask, sector, count)?;
            }
            if !self.in_flight.is_empty() {
                self.receive()?;
            }
        }
        Ok(())
    }

    /// A write with nothing beside it.
    pub fn write(&mut self, load: &Load) -> io::Result<()> {
        self.send(Ask::Change(Kind::Data, false), load.first, 1)?;
        self.receive()
    }

    /// A FLUSH with nothing beside it.
    pub fn flush(&mut self) -> io::Result<Outcome> {
        let before = lock(&self.judge).counts.flushes_failed;
        self.send(Ask::Flush, 0, 0)?;
        self.receive()?;
        let failed = lock(&self.judge).counts.flushes_failed > before;
        Ok(if failed { Outcome::Failed } else { Outcome::Done })
    }

    /// Writes all of `load` once, and flushes it.
    pub fn write_all(&mut self, load: &Load) -> Result<()> {
        let piece = 128.min(load.count);
        let before = lock(&self.judge).counts.writes_failed;
        for at in (load.first..load.first + load.count).step_by(piece as usize) {
            let count = piece.min(load.first + load.count - at);
            let ask = Ask::Change(Kind::Data, false);
            let written = self.send(ask, at, count).and_then(|()| self.receive());
            written.map_err(|e| format!("writing all: {e}"))?;
        }
        let flushed = self.flush().map_err(|e| format!("writing all: {e}"))?;
        let failed = lock(&self.judge).counts.writes_failed > before;
        if failed || flushed == Outcome::Failed {
            return Err("writing all fails on sound disks".into());
        }
        Ok(())
    }

    /// Reads all of `load` once; how many reads failed.
    pub fn read_all(&mut self, load: &Load) -> Result<u64> {
        let piece = 128.min(load.count);
        let mut failed = 0;
        for at in (load.first..load.first + load.count).step_by(piece as usize) {
            let count = piece.min(load.first + load.count - at);
            let before = lock(&self.judge).counts.reads_failed;
            let read = self.send(Ask::Read, at, count).and_then(|()| self.receive());
            read.map_err(|e| format!("reading all: {e}"))?;
            failed += lock(&self.judge).counts.reads_failed - before;
        }
        Ok(failed)
    }
}

/// Nobody will know what came of what was in flight.
impl Drop for Client {
    fn drop(&mut self) {
        let mut judge = lock(&self.judge);
        for (_, waiting) in self.in_flight.values() {
            match *waiting {
                Waiting::Read { begun, .. } => judge.read_is_left(begun),
                Waiting::Change { .. } => {}
                Waiting::Flush { begun } => judge.flush_is_left(self.opener, begun),
            }
        }
    }
}

fn end_of(done: io::Result<End>) -> End {
    let e = match done {
        Ok(end) => return end,
        Err(e) => e,
    };
    let is = |kinds: &[ErrorKind]| kinds.contains(&e.kind());
    if is(&[ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset]) {
        End::Cut
    } else if is(&[ErrorKind::WouldBlock, ErrorKind::TimedOut]) {
        End::Fault(format!("no answer in {PATIENCE} s"))
    } else {
        End::Fault(e.to_string())
    }
}
