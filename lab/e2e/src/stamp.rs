// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Self-describing blocks, and the check of what a crash may leave of them.
//!
//! ```text
//!   block  4096 bytes: 512 little-endian words
//!          word 0 block number · word 1 version · the others follow from both
//! ```
//!
//! A version of a block is written once, and the next only after the answer to the one before.
//!
//! Invariants
//! - EE-S1 After a crash a block holds the version that was durable (`floor`), or a later one that
//!   was written since the crash before this one. A version that was lost never returns.
//! - EE-S2 A flush raises the floor to the versions whose writes had replies before it was sent; a
//!   FUA write raises it by itself.
//! - EE-S3 A device that keeps an order holds after a crash what it held at one moment of its
//!   writes: a version that is there has with it all that had replies before it was sent
//!   (`Order::Writes`), or before a flush that was completed by then was sent (`Order::Flushes`).
use std::io;
use std::ops::Range;

use nbd::request::Request;
use nbd::wire::cmd;
use serde_json::{Value, json};

use crate::Result;
use crate::client::{Answer, Client};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Requests in flight.
const DEPTH: usize = 16;
/// Longest write.
const RUN_BLOCKS_MAX: u64 = 4;
/// One write in so many is FUA.
const FUA_ONE_IN: u64 = 16;
/// One request in so many is a flush, usually.
pub const FLUSH_ONE_IN: Option<u64> = Some(64);
/// Blocks read at a time to check them.
const CHECK_BLOCKS: u64 = 256;

/// Numbers without a pattern (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }
}

/// Fills `data` with the words that `next` returns. Tests are built without optimisation: what goes
/// byte by byte takes ten times as long.
pub fn fill_words(data: &mut [u8], mut next: impl FnMut() -> u64) {
    let (words, rest) = data.as_chunks_mut::<8>();
    for word in words {
        *word = next().to_le_bytes();
    }
    if !rest.is_empty() {
        let len = rest.len();
        rest.copy_from_slice(&next().to_le_bytes()[..len]);
    }
}

/// How many words of a block are equal, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grain {
    /// None: nothing can compress it.
    Word = 1,
    /// Those of a sector: a torn block is noticed, and an archive of blocks is small.
    Sector = 64,
}

/// Fills `data` with version `version` of block `block`.
pub fn fill(data: &mut [u8], block: u64, version: u64) {
    fill_grains(data, block, version, Grain::Word);
}

fn fill_grains(data: &mut [u8], block: u64, version: u64, grain: Grain) {
    assert_eq!(data.len(), BLOCK_BYTES);
    let mut word = (block ^ version.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut nth = 0;
    fill_words(data, || {
        if nth % grain as u32 == 0 {
            word = word.wrapping_mul(0xd129_0d3d_1d1c_3f45).wrapping_add(0x1405_7b7e_f767_814f);
        }
        nth += 1;
        word
    });
    data[..8].copy_from_slice(&block.to_le_bytes());
    data[8..16].copy_from_slice(&version.to_le_bytes());
}

/// The version that `data` is of block `block`, if it is one, and whole.
pub fn version_of(data: &[u8], block: u64) -> Option<u64> {
    version_in_grains(data, block, Grain::Word)
}

fn version_in_grains(data: &[u8], block: u64, grain: Grain) -> Option<u64> {
    let version = u64::from_le_bytes(data[8..16].try_into().expect("eight bytes"));
    let mut whole = [0; BLOCK_BYTES];
    fill_grains(&mut whole, block, version, grain);
    (data == whole).then_some(version)
}

/// What is known of one block.
#[derive(Clone, Copy, Debug, Default)]
struct BlockState {
    /// Durable.
    floor: u64,
    /// Last that was answered.
    answered: u64,
    /// Last that was sent.
    sent: u64,
    /// Last that was sent before the last crash.
    sent_before_crash: u64,
    in_flight: bool,
}

impl BlockState {
    fn allows(&self, version: u64) -> bool {
        // EE-S1
        version == self.floor
            || (self.floor.max(self.sent_before_crash) < version && version <= self.sent)
    }
}

/// A version of a block, and when it was written: each request and each answer is one tick.
#[derive(Clone, Copy, Debug)]
struct Event {
    version: u64,
    sent: u64,
    answered: Option<u64>,
}

/// What a device promises of the order in which its writes are lost (EE-S3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A write is lost only with all that were sent after its answer.
    Writes,
    /// The same of what was sent after a flush that covers it had completed.
    Flushes,
}

/// What the server was asked to do.
#[derive(Debug)]
enum Sent {
    Write {
        blocks: Range<u64>,
        fua: bool,
    },
    /// With what had been answered before.
    Flush {
        answered: Vec<(u64, u64)>,
        sent: u64,
    },
}

/// How much a writer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Writes that were answered.
    pub writes: u64,
    /// Flushes that were answered.
    pub flushes: u64,
}

/// What a check after a crash has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Blocks whose last answered write is there.
    pub newest: u64,
    /// Blocks that lost writes which nobody had flushed, as they may.
    pub older: u64,
    /// Blocks with versions that only a flush or FUA write had to keep.
    pub owed: u64,
}

/// A range of stamped blocks, and what is known of them.
#[derive(Debug)]
pub struct Stamps {
    first: u64,
    known: Vec<BlockState>,
    /// The versions of each block that may be there, ascending; version 0 is not among them.
    history: Vec<Vec<Event>>,
    /// When flushes were sent, and answered.
    flushes: Vec<(u64, u64)>,
    tick: u64,
    /// Blocks answered since the last flush was sent.
    fresh: Vec<u64>,
    random: Random,
    /// One request in so many is a flush; without, none is, and no write is FUA.
    flush_one_in: Option<u64>,
    grain: Grain,
}

impl Stamps {
    /// Blocks that all hold version 0 by now, or nothing yet: see [`Stamps::lay`].
    pub fn new(blocks: Range<u64>, seed: u64) -> Stamps {
        let count = (blocks.end - blocks.start) as usize;
        Stamps {
            first: blocks.start,
            known: vec![BlockState::default(); count],
            history: vec![Vec::new(); count],
            flushes: Vec::new(),
            tick: 0,
            fresh: Vec::new(),
            random: Random::new(seed),
            flush_one_in: FLUSH_ONE_IN,
            grain: Grain::Word,
        }
    }

    /// Blocks that a compressor makes small, for media that are kept as files of the repository.
    pub fn compressible(mut self) -> Stamps {
        self.grain = Grain::Sector;
        self
    }

    /// What has to be known to check media that a crash has left, for another process: see
    /// [`Stamps::of_record`].
    pub fn record(&self) -> Value {
        let blocks: Vec<_> = self.known.iter().map(|k| [k.floor, k.answered, k.sent]).collect();
        json!({
            "first": self.first,
            "compressible": self.grain == Grain::Sector,
            "floor, answered, sent": blocks,
        })
    }

    /// What [`Stamps::record`] has told, for one check by [`Stamps::check`].
    pub fn of_record(record: &Value) -> Option<Stamps> {
        let first = record["first"].as_u64()?;
        let blocks = record["floor, answered, sent"].as_array()?;
        let mut stamps = Stamps::new(first..first + blocks.len() as u64, 1);
        if record["compressible"].as_bool()? {
            stamps = stamps.compressible();
        }
        for (known, block) in stamps.known.iter_mut().zip(blocks) {
            known.floor = block[0].as_u64()?;
            known.answered = block[1].as_u64()?;
            known.sent = block[2].as_u64()?;
        }
        Some(stamps)
    }

    /// How often [`Stamps::write`] flushes: one request in so many, or never; then no write is FUA
    /// either.
    pub fn flush_one_in(&mut self, requests: Option<u64>) {
        self.flush_one_in = requests;
    }

    /// The blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.known.len() as u64
    }

    fn known(&mut self, block: u64) -> &mut BlockState {
        &mut self.known[(block - self.first) as usize]
    }

    fn now(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// The next version of each of these blocks is sent.
    fn begin(&mut self, blocks: Range<u64>) {
        let sent = self.now();
        for block in blocks {
            let known = self.known(block);
            known.sent += 1;
            known.in_flight = true;
            let event = Event { version: known.sent, sent, answered: None };
            self.history[(block - self.first) as usize].push(event);
        }
    }

    /// All blocks, some at a time.
    fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let all = self.blocks();
        let starts = all.clone().step_by(CHECK_BLOCKS as usize);
        starts.map(move |start| start..all.end.min(start + CHECK_BLOCKS))
    }

    /// Writes version 0 of every block and flushes.
    pub fn lay(&self, client: &mut Client) -> io::Result<()> {
        let mut data = Vec::new();
        for run in self.runs() {
            let start = run.start;
            stamp(&mut data, run, self.grain, |_| 0);
            client.write(start * BLOCK_BYTES as u64, &data)?;
        }
        client.flush()
    }

    /// Writes random blocks, with flushes, until `enough` says so; then waits for all answers.
    ///
    /// # Errors
    /// When the connection breaks (what is known stays right), or the server answers with an
    /// error.
    pub fn write(
        &mut self,
        client: &mut Client,
        written: &mut Written,
        mut enough: impl FnMut(&Written) -> bool,
    ) -> io::Result<()> {
        let mut asked: Vec<Option<Sent>> = (0..DEPTH).map(|_| None).collect();
        let mut in_flight = 0;
        let outcome = loop {
            if !enough(written) {
                if let Some(cookie) = asked.iter().position(Option::is_none) {
                    match self.ask(client, cookie as u64) {
                        Ok(new) => asked[cookie] = Some(new),
                        Err((new, e)) => {
                            // Part of it may have arrived.
                            asked[cookie] = Some(new);
                            break Err(e);
                        }
                    }
                    in_flight += 1;
                    continue;
                }
            } else if in_flight == 0 {
                break Ok(());
            }
            match client.receive() {
                Ok(Answer { cookie, error: 0 }) => {
                    let done = asked.get_mut(cookie as usize).and_then(Option::take);
                    let Some(done) = done else {
                        break Err(io::Error::other(format!("answer to nothing: {cookie}")));
                    };
                    in_flight -= 1;
                    self.answered(done, written);
                }
                Ok(Answer { error, .. }) => {
                    break Err(io::Error::other(format!("the server says error {error}")));
                }
                Err(e) => break Err(e),
            }
        };
        self.known.iter_mut().for_each(|k| k.in_flight = false);
        outcome
    }

    fn ask(&mut self, client: &mut Client, cookie: u64) -> Result<Sent, (Sent, io::Error)> {
        if self.flush_one_in.is_some_and(|of| self.random.below(of) == 0) {
            // EE-S2: what is answered later is not covered.
            let fresh = std::mem::take(&mut self.fresh);
            let answered = fresh.into_iter().map(|b| (b, self.known(b).answered)).collect();
            let request = Request { flags: 0, kind: cmd::FLUSH, cookie, offset: 0, len: 0 };
            let asked = Sent::Flush { answered, sent: self.now() };
            return match client.send(request, &[]) {
                Ok(()) => Ok(asked),
                Err(e) => Err((asked, e)),
            };
        }
        let blocks = self.idle_run();
        self.begin(blocks.clone());
        let mut data = Vec::new();
        stamp(&mut data, blocks.clone(), self.grain, |b| {
            self.known[(b - self.first) as usize].sent
        });
        let fua = self.flush_one_in.is_some() && self.random.below(FUA_ONE_IN) == 0;
        let offset = blocks.start * BLOCK_BYTES as u64;
        let len = u32::try_from(data.len()).expect("a few blocks");
        let request = Request { flags: u16::from(fua), kind: cmd::WRITE, cookie, offset, len };
        let asked = Sent::Write { blocks, fua };
        match client.send(request, &data) {
            Ok(()) => Ok(asked),
            Err(e) => Err((asked, e)),
        }
    }

    /// Some blocks of which none is being written.
    fn idle_run(&mut self) -> Range<u64> {
        let all = self.blocks();
        loop {
            let start = all.start + self.random.below(all.end - all.start);
            let end = all.end.min(start + 1 + self.random.below(RUN_BLOCKS_MAX));
            if (start..end).all(|b| !self.known(b).in_flight) {
                return start..end;
            }
        }
    }

    fn answered(&mut self, done: Sent, written: &mut Written) {
        let now = self.now();
        match done {
            Sent::Write { blocks, fua } => {
                written.writes += 1;
                for block in blocks {
                    let known = self.known(block);
                    known.in_flight = false;
                    known.answered = known.sent;
                    if fua {
                        known.floor = known.floor.max(known.answered);
                    }
                    self.fresh.push(block);
                    let history = &mut self.history[(block - self.first) as usize];
                    history.last_mut().expect("it was sent").answered = Some(now);
                }
            }
            Sent::Flush { answered, sent } => {
                written.flushes += 1;
                self.flushes.push((sent, now));
                for (block, version) in answered {
                    let known = self.known(block);
                    known.floor = known.floor.max(version);
                }
            }
        }
    }

    /// Everything answered is durable: the caller has flushed, or ended the daemon in order.
    pub fn all_durable(&mut self) {
        self.fresh.clear();
        for known in &mut self.known {
            known.floor = known.floor.max(known.answered);
        }
    }

    /// Reads every block after a crash and says which are there without what `order` has before
    /// them (EE-S3). Versions may be as old as they like: what an origin lacks, its cache has.
    pub fn check_order(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
        order: Order,
    ) -> Result<()> {
        // The last that is there, and the first that is not.
        let (mut there, mut lost) = ((0, 0, 0), None);
        for run in self.runs() {
            let mut data = vec![0; (run.end - run.start) as usize * BLOCK_BYTES];
            read(run.start * BLOCK_BYTES as u64, &mut data).map_err(|e| format!("reading: {e}"))?;
            for (block, data) in run.zip(data.chunks_exact(BLOCK_BYTES)) {
                let history = &self.history[(block - self.first) as usize];
                let version = version_in_grains(data, block, self.grain);
                let found = version.and_then(|v| history.iter().position(|e| e.version == v));
                let behind = match (version, found) {
                    (Some(0), _) => history.first(),
                    (Some(version), Some(at)) => {
                        there = there.max((history[at].sent, block, version));
                        history.get(at + 1)
                    }
                    (_, None) | (None, Some(_)) => {
                        return Err(format!("block {block} holds {}", told(version, data)));
                    }
                };
                let answered = behind.and_then(|e| Some((e.answered?, block, e.version)));
                lost = lost.into_iter().chain(answered).min();
            }
        }
        let Some(lost) = lost else { return Ok(()) };
        let covered = match order {
            Order::Writes => Some(lost.0),
            Order::Flushes => {
                let covering = self.flushes.iter().filter(|(sent, _)| *sent > lost.0);
                covering.map(|(_, answered)| *answered).min()
            }
        };
        match covered {
            Some(covered) if there.0 > covered => Err(format!(
                "block {} holds version {}, which was sent at {}, and block {} lacks version {}, \
                 which was answered at {}",
                there.1, there.2, there.0, lost.1, lost.2, lost.0
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Reads every block after a crash, says which is not what it may be (EE-S1), and goes on from
    /// what is there.
    pub fn check(
        &mut self,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<Found> {
        let mut found = Found::default();
        let now = self.now();
        let mut data = Vec::new();
        for run in self.runs() {
            data.resize((run.end - run.start) as usize * BLOCK_BYTES, 0);
            read(run.start * BLOCK_BYTES as u64, &mut data).map_err(|e| format!("reading: {e}"))?;
            for (block, data) in run.zip(data.chunks_exact(BLOCK_BYTES)) {
                let version = version_in_grains(data, block, self.grain);
                let known = self.known(block);
                let Some(version) = version.filter(|v| known.allows(*v)) else {
                    return Err(format!("block {block} holds {}: {known:?}", told(version, data)));
                };
                found.owed += u64::from(known.floor > 0);
                if version < known.answered {
                    found.older += 1;
                } else {
                    found.newest += 1;
                }
                *known = BlockState {
                    floor: version,
                    answered: version,
                    sent: known.sent,
                    sent_before_crash: known.sent,
                    in_flight: false,
                };
                let history = &mut self.history[(block - self.first) as usize];
                history.retain(|event| event.version <= version);
                if let Some(last) = history.last_mut() {
                    last.answered.get_or_insert(now);
                }
            }
        }
        // What a crash has left is durable.
        let flushed = self.now();
        self.flushes.push((flushed, flushed));
        self.fresh.clear();
        Ok(found)
    }
}

fn told(version: Option<u64>, data: &[u8]) -> String {
    match version {
        Some(version) => format!("version {version}"),
        None => format!("no version of it, it begins {:02x?}", &data[..16]),
    }
}

/// Makes `data` these blocks.
fn stamp(data: &mut Vec<u8>, blocks: Range<u64>, grain: Grain, version: impl Fn(u64) -> u64) {
    data.resize((blocks.end - blocks.start) as usize * BLOCK_BYTES, 0);
    for (block, data) in blocks.zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        fill_grains(data, block, version(block), grain);
    }
}

#[cfg(test)]
#[path = "stamp_tests.rs"]
mod tests;
