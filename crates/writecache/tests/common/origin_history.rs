// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an ordered cache promises about its origin alone: the history of all requests and answers,
//! and the judge of the origin without its cache.
//!
//! The origin may hold `c` if there is a moment T at which a disk that lost its power could have
//! held `c`: every block holds a version that was submitted before T, and none that was
//! superseded by one which a FLUSH that completed before T covers, or which was FUA and completed
//! before T. That is the state at the last FLUSH N before T, and any of the writes between N and
//! N + 1. What a recovery has found is as durable as if a FLUSH had come then.
use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Flags, Limits, Op, Status};

use super::suspend_gate::SuspendGate;

const NEVER: u64 = u64::MAX;
/// The content of a block that was never written, or zeroed.
const ZEROES: u64 = 0;

#[derive(Clone, Copy, Debug)]
struct Version {
    content: u64,
    began: u64,
    ended: u64,
    good: bool,
    fua: bool,
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Change { first: usize, end: usize },
    Flush,
}

#[derive(Debug)]
struct Request {
    asked: RequestKind,
    began: u64,
}

/// See the module.
pub(crate) struct History {
    block_bytes: usize,
    clock: u64,
    blocks: Vec<Vec<Version>>,
    /// Flushes that succeeded: when they began and ended.
    flushes: Vec<(u64, u64)>,
    /// What each recovery has found, and when.
    found: Vec<(u64, Vec<u64>)>,
    requests: Vec<Request>,
}

/// The version that a sector of `block` holds by the oracle's stamp.
fn content(block: usize, sector: &[u8]) -> Result<u64, String> {
    let word = |n: usize| u64::from_le_bytes(sector[n * 8..n * 8 + 8].try_into().unwrap());
    // A stamp of 32 bytes, again and again.
    if sector[32..] != sector[..sector.len() - 32] {
        return Err(format!("block {block}: rubbish"));
    }
    match (word(0), word(1), word(2)) {
        (0, 0, 0) => Ok(ZEROES),
        (_, found, version) if found == block as u64 => Ok(version),
        (_, found, version) => Err(format!("block {block}: block {found} version {version}")),
    }
}

impl History {
    pub(crate) fn new(blocks: u64, block_bytes: usize) -> History {
        let initial = Version { content: ZEROES, began: 0, ended: 0, good: true, fua: true };
        History {
            block_bytes,
            clock: 0,
            blocks: vec![vec![initial]; usize::try_from(blocks).unwrap()],
            flushes: Vec::new(),
            found: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Bytes of each block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, bio: &Bio) -> Option<u64> {
        let began = self.tick();
        let first = usize::try_from(bio.sector.bytes()).unwrap() / self.block_bytes;
        let end = first + usize::try_from(bio.len.bytes()).unwrap() / self.block_bytes;
        let asked = match bio.op {
            Op::Read => return None,
            Op::Flush => RequestKind::Flush,
            Op::Write | Op::WriteZeroes => RequestKind::Change { first, end },
            Op::Discard => panic!("an ordered cache knows no discard"),
        };
        for block in first..end {
            let mut sector = [0; 512];
            if bio.op == Op::Write {
                let at = (block - first) * self.block_bytes;
                bio.bufs.slice(at..at + 512).copy_to(&mut sector);
            }
            let content = content(block, &sector).expect("clients write stamps");
            let fua = bio.flags.contains(Flags::FUA);
            self.blocks[block].push(Version { content, began, ended: NEVER, good: false, fua });
        }
        self.requests.push(Request { asked, began });
        Some(self.requests.len() as u64 - 1)
    }

    fn end(&mut self, request: u64, status: Status) {
        let ended = self.tick();
        let good = status == Status::Ok;
        let Request { asked, began } = self.requests[usize::try_from(request).unwrap()];
        match asked {
            RequestKind::Flush if good => self.flushes.push((began, ended)),
            RequestKind::Flush => {}
            RequestKind::Change { first, end } => {
                for versions in &mut self.blocks[first..end] {
                    let version = versions.iter_mut().find(|v| v.began == began).unwrap();
                    (version.ended, version.good) = (ended, good);
                }
            }
        }
    }

    /// The machine has stopped: requests in flight have ended, perhaps without effect.
    pub(crate) fn stop(&mut self) {
        let now = self.tick();
        self.blocks.iter_mut().flatten().for_each(|v| v.ended = v.ended.min(now));
    }

    /// A recovery has found these contents, in the order of blocks.
    pub(crate) fn recovered(&mut self, device: &[u8]) -> Result<(), String> {
        let blocks = device.chunks_exact(self.block_bytes).enumerate();
        let found: Result<Vec<u64>, String> =
            blocks.map(|(block, data)| content(block, &data[..512])).collect();
        let now = self.tick();
        self.found.push((now, found?));
        Ok(())
    }

    /// Judges the contents of the origin without its cache.
    pub(crate) fn judge(&self, origin: &[u8]) -> Result<(), String> {
        let mut holds = Vec::with_capacity(self.blocks.len());
        for (block, data) in origin.chunks_exact(self.block_bytes).enumerate() {
            let sectors: Result<Vec<u64>, String> =
                data.chunks_exact(512).map(|sector| content(block, sector)).collect();
            let mut sectors = sectors?;
            sectors.dedup();
            holds.push(sectors);
        }
        let began = |block: usize, c: u64| {
            let found = self.blocks[block].iter().find(|v| v.content == c);
            found.map(|v| v.began).ok_or_else(|| format!("block {block}: unknown version {c}"))
        };
        // The moment T is the earliest at which all of these had been submitted, or one at which
        // more zeroes had.
        let mut least = 0;
        for (block, contents) in holds.iter().enumerate() {
            for &c in contents.iter().filter(|&&c| c != ZEROES) {
                least = least.max(began(block, c)?);
            }
        }
        let zeroes = self.blocks.iter().flatten().filter(|v| v.content == ZEROES);
        let mut moments: Vec<u64> = zeroes.map(|v| v.began).filter(|&m| m > least).collect();
        moments.push(least);
        moments.sort_unstable();
        moments.dedup();
        let mut why = String::new();
        for (n, &moment) in moments.iter().enumerate() {
            match self.judge_at(moment, &holds) {
                Ok(()) => return Ok(()),
                Err(e) if n == 0 => why = e,
                Err(_) => {}
            }
        }
        Err(format!("the origin alone is no state of any moment: {why}"))
    }

    fn judge_at(&self, moment: u64, holds: &[Vec<u64>]) -> Result<(), String> {
        let done = self.flushes.iter().filter(|f| f.1 <= moment);
        let flushed = done.map(|f| f.0).max().unwrap_or(0);
        let found = self.found.iter().rev().find(|(at, _)| *at < moment);
        for (block, contents) in holds.iter().enumerate() {
            let versions = &self.blocks[block];
            // A version that was lost in a crash is not required, though a later flush follows it.
            let lasts = |v: &Version| found.is_none_or(|(at, _)| v.began > *at);
            let durable = |v: &&Version| {
                let flushed = v.ended < flushed || (v.fua && v.ended <= moment);
                v.good && flushed && lasts(v)
            };
            let floor = versions.iter().filter(durable).map(|v| v.began).max().unwrap_or(0);
            for &c in contents {
                let may_be = |v: &Version| {
                    let since = found.is_none_or(|(at, all)| v.began > *at || all[block] == c);
                    v.content == c && v.began <= moment && v.ended >= floor && since
                };
                if !versions.iter().any(may_be) {
                    let history: Vec<_> = versions.iter().rev().take(6).collect();
                    return Err(format!(
                        "block {block} holds {c} although others are of moment {moment}: floor \
                         {floor}, flushed {flushed}, recovered {:?}, newest versions {history:?}",
                        found.map(|(at, all)| (at, all[block])),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A device that records its requests in a history. It can be closed, like a mapped device while it
/// is suspended.
pub(crate) struct Recorded {
    below: Rc<dyn BlockDevice>,
    history: Rc<RefCell<History>>,
    pub(crate) gate: Rc<SuspendGate>,
}

struct OnDone(Rc<RefCell<History>>);

impl reactor::OnDone for OnDone {
    fn on_done(&self, status: Status, request: u64) {
        self.0.borrow_mut().end(request, status);
    }
}

impl Recorded {
    pub(crate) fn over(below: Rc<dyn BlockDevice>, history: &Rc<RefCell<History>>) -> Rc<Recorded> {
        Rc::new(Recorded { below, history: history.clone(), gate: Rc::default() })
    }
}

impl BlockDevice for Recorded {
    fn name(&self) -> &str {
        "recorded"
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, bio: Bio) {
        let (below, history) = (self.below.clone(), self.history.clone());
        self.gate.pass(bio, move |mut bio| {
            let request = history.borrow_mut().begin(&bio);
            if let Some(request) = request {
                bio.done = reactor::chain(bio.done, Rc::new(OnDone(history)), request);
            }
            below.submit(bio);
        });
    }
}
