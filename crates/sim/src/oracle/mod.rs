// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle: what a block device may answer, independent of its engine.
//!
//! Every change of a block is a *version* with the moment it began and the moment it ended, in the
//! oracle's own count of moments. Two rules decide everything:
//!
//! - a read may return version `w` unless some `x` completed before the read began, and `x` began
//!   after `w` had ended;
//! - after a power cut version `w` may be there unless some *durable* `x` began after `w` had
//!   ended. `x` is durable once a flush that began after `x` had ended is done, or `x` was FUA.
//!
//! A failed flush may have lost what was not durable; its error reports that to its client. A later
//! successful flush of the same client makes that client's writes durable, except those that began
//! before the failed flush, if the client had the error before it sent the later flush. Writes of
//! other clients are made durable by no flush after, or concurrent with, a failed one.
//!
//! Versions that overlap in time exclude nothing, as the border contract says, until a read has
//! shown which came last. Once a flush that began after that read is done, no crash brings the
//! other back. A discarded block may hold zeroes or any earlier data. A failed write may be
//! present, in part, or absent, until it is rewritten. What the first undisturbed read after a
//! crash returns, stays.
//!
//! ```text
//!  client:  begin_write ─ fill ─ submit ... completes ─ end_write
//!           begin_read  ─ submit ... completes ─ check_read
//!           begin_flush ─ submit ... completes ─ end_flush
//!           crash ─ read everything, by check_read or verify_after_crash
//! ```
//!
//! Invariants
//! - SI-O1 `begin_*` is called before the request is submitted and `end_*` after it has completed.
//!   So recorded intervals contain the true ones, and no correct answer is refused.
//! - SI-O2 Every 512-byte sector names seed, block, sector and version: the oracle distinguishes a
//!   mixture, a foreign block, and the data of another run.

mod kill;
mod stamp;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use block::Nanos;
use stamp::{Content, StampError};

/// A logical time of the oracle; also the number of the version that began then.
type Moment = u64;
/// Still in flight.
const NEVER: Moment = u64::MAX;
/// No flush of its client has failed.
const NO_FAILURE: Nanos = Nanos(u64::MAX);
/// Number of a client, to decide what its flushes cover; 0: anonymous.
pub type Client = u32;
/// The version before the first write: zeroes.
const INITIAL: Moment = 0;

/// How a block is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Data made by [`Oracle::fill`].
    Write,
    /// Zeroes.
    WriteZeroes,
    /// The contents become undefined.
    Discard,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    began: Moment,
    ended: Moment,
    change: Change,
    /// It ended with an error: it excludes nothing and may be present in part.
    failed: bool,
    /// The device below has failed it; the client has no result yet.
    failed_below: bool,
    /// After a crash or a kill it is unknown whether it is present: no flush covers it until a read
    /// has shown it.
    uncertain: bool,
    /// A flush that should have covered it failed: later flushes of others do not cover it either.
    lost_flush: bool,
    /// It is durable itself: not by another one that it may have followed.
    durable: bool,
    /// Its client.
    by: Client,
    /// When a flush of its client failed that began after it.
    flush_failed_at: Nanos,
    /// An undisturbed read has shown that it is not the current version.
    not_current: bool,
    /// When that read ended: after a flush that begins later, no crash brings this version back.
    superseded: Moment,
}

#[derive(Clone, Debug)]
struct Block {
    /// Oldest first; versions that can never be read again are removed.
    versions: Vec<Version>,
    /// Latest begin of a completed version: excludes versions that ended before.
    current: Moment,
    /// Latest begin of a durable version: the same, after a crash.
    durable: Moment,
    /// Latest begin of a version that a kill does not undo: the same, after a kill.
    kept: Moment,
    /// Latest begins, for reads that began before.
    zeroes_began: Moment,
    discard_began: Moment,
    failed_ended: Moment,
    /// The last event; a crash or kill counts until the next change or undisturbed read.
    last: LastEvent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastEvent {
    Use,
    Crash,
    Kill,
}

/// A change in flight; to be passed to [`Oracle::end_write`].
#[must_use = "a write must be ended"]
#[derive(Clone, Debug)]
pub struct WriteToken {
    blocks: Range<u64>,
    began: Moment,
    fua: bool,
}

/// A flush in flight; to be passed to [`Oracle::end_flush`].
#[must_use = "a flush must be ended"]
#[derive(Clone, Copy, Debug)]
pub struct FlushToken {
    began: Moment,
    by: Client,
    at: Nanos,
}

/// A read in flight; to be passed to [`Oracle::check_read`], or dropped if the read failed.
#[derive(Clone, Debug)]
pub struct ReadToken {
    first: u64,
    began: Moment,
    allowed: Vec<Allowed>,
}

impl WriteToken {
    /// The blocks it changes.
    pub fn blocks(&self) -> Range<u64> {
        self.blocks.clone()
    }
}

/// What one block may hold at the begin of a read.
#[derive(Clone, Debug)]
struct Allowed {
    versions: Vec<Moment>,
    zeroes: bool,
    /// Discarded: any data ever written here.
    anything: bool,
    /// A failed write may be current: its sectors may be mixed with those of others.
    mixture: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Oracle {
    blocks: Vec<Block>,
    block_bytes: usize,
    seed: u64,
    clock: Moment,
    flushes: BTreeSet<Moment>,
    flush_errors: bool,
    /// Failed writes may leave garbage.
    rubbish: bool,
}

impl Oracle {
    /// A device of `blocks` zero blocks of `block_bytes`. A block is what the device keeps whole
    /// over a power cut: 512 for a plain disk, the block size for an engine that promises more.
    pub fn new(blocks: u64, block_bytes: usize, seed: u64) -> Oracle {
        assert!(block_bytes.is_multiple_of(512), "blocks of {block_bytes} bytes");
        let initial = Version {
            began: INITIAL,
            ended: INITIAL,
            change: Change::WriteZeroes,
            failed: false,
            failed_below: false,
            uncertain: false,
            lost_flush: false,
            durable: false,
            by: 0,
            flush_failed_at: NO_FAILURE,
            not_current: false,
            superseded: NEVER,
        };
        let block = Block {
            versions: vec![initial],
            current: INITIAL,
            durable: INITIAL,
            kept: INITIAL,
            zeroes_began: INITIAL,
            discard_began: INITIAL,
            failed_ended: INITIAL,
            last: LastEvent::Use,
        };
        let count = usize::try_from(blocks).expect("as many blocks as memory holds");
        Oracle {
            blocks: vec![block; count],
            block_bytes,
            seed,
            clock: INITIAL,
            flushes: BTreeSet::new(),
            flush_errors: false,
            rubbish: false,
        }
    }

    /// Allows failing flushes. Then a flush that overlaps another one proves nothing, as the other
    /// may fail and lose the writes of both.
    pub fn expect_flush_errors(&mut self) {
        self.flush_errors = true;
    }

    /// Allows failed writes to leave garbage.
    pub fn expect_rubbish(&mut self) {
        self.rubbish = true;
    }

    /// Records that a device below failed a write of `data` at `offset`, of whole blocks. If they
    /// belong to a client's write in flight, they are undefined from now on, although the client
    /// has no error yet; and they stay so if the power is cut before. If that write then succeeds,
    /// a layer above has kept the data.
    pub fn failed_below(&mut self, offset: u64, data: &[u8]) {
        let now = self.tick();
        let (bytes, seed) = (self.block_bytes, self.seed);
        let first = offset / bytes as u64;
        for (number, data) in (first..).zip(data.chunks_exact(bytes)) {
            let Ok(content) = stamp::read(&data[..512], seed, number, 0) else { continue };
            let block = &mut self.blocks[index(number)];
            let is = |v: &&mut Version| v.ended == NEVER && v.is(content);
            for v in block.versions.iter_mut().filter(is) {
                v.failed_below = true;
                block.failed_ended = now;
            }
        }
    }

    /// Number of blocks.
    pub fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn tick(&mut self) -> Moment {
        self.clock += 1;
        self.clock
    }

    /// To be called before a write of `blocks` is submitted.
    pub fn begin_write(&mut self, blocks: Range<u64>, fua: bool) -> WriteToken {
        self.begin_change(blocks, Change::Write, fua)
    }

    /// To be called before any change of `blocks` is submitted.
    pub fn begin_change(&mut self, blocks: Range<u64>, change: Change, fua: bool) -> WriteToken {
        self.begin_change_by(0, blocks, change, fua)
    }

    /// [`Oracle::begin_change`] of a client.
    pub fn begin_change_by(
        &mut self,
        by: Client,
        blocks: Range<u64>,
        change: Change,
        fua: bool,
    ) -> WriteToken {
        assert!(blocks.start < blocks.end && blocks.end <= self.block_count(), "{blocks:?}");
        let began = self.tick();
        for block in &mut self.blocks[span(&blocks)] {
            block.last = LastEvent::Use;
            block.versions.push(Version {
                began,
                ended: NEVER,
                change,
                failed: false,
                failed_below: false,
                uncertain: false,
                lost_flush: false,
                durable: false,
                by,
                flush_failed_at: NO_FAILURE,
                not_current: false,
                superseded: NEVER,
            });
            match change {
                Change::Write => {}
                Change::WriteZeroes => block.zeroes_began = began,
                Change::Discard => block.discard_began = began,
            }
        }
        WriteToken { blocks, began, fua }
    }

    /// Makes the data of a write.
    pub fn fill(&self, token: &WriteToken, data: &mut [u8]) {
        let count = token.blocks.end - token.blocks.start;
        assert_eq!(data.len() as u64, count * self.block_bytes as u64, "length of {token:?}");
        for (block, data) in token.blocks.clone().zip(data.chunks_exact_mut(self.block_bytes)) {
            stamp::fill(data, self.seed, block, token.began);
        }
    }

    /// Records the end of a write, successful or not.
    pub fn end_write(&mut self, token: WriteToken, ok: bool) {
        let now = self.tick();
        let WriteToken { blocks, began, fua } = token;
        for block in &mut self.blocks[span(&blocks)] {
            let version = block.versions.iter_mut().find(|v| v.began == began);
            let version = version.expect("a version in flight is never removed");
            version.ended = now;
            if !ok {
                version.failed = true;
                block.failed_ended = now;
                continue;
            }
            version.failed_below = false;
            block.current = block.current.max(began);
            if fua {
                version.durable = true;
                block.durable = block.durable.max(began);
            }
            block.prune();
        }
    }

    /// To be called before a flush is submitted.
    pub fn begin_flush(&mut self) -> FlushToken {
        self.begin_flush_by(0, Nanos::ZERO)
    }

    /// [`Oracle::begin_flush`] of a client, at a time of the driver.
    pub fn begin_flush_by(&mut self, by: Client, at: Nanos) -> FlushToken {
        let began = self.tick();
        self.flushes.insert(began);
        FlushToken { began, by, at }
    }

    /// Records the end of a flush, successful or not.
    pub fn end_flush(&mut self, token: FlushToken, ok: bool) {
        self.end_flush_at(token, ok, Nanos::ZERO);
    }

    /// [`Oracle::end_flush`] at a time of the driver. The order of events at one time is unknown
    /// (SI-O1): a client may have submitted a flush just before it got the error of another one.
    pub fn end_flush_at(&mut self, token: FlushToken, ok: bool, now: Nanos) {
        self.tick();
        let FlushToken { began, by, at } = token;
        self.flushes.remove(&began);
        let proves = ok && (!self.flush_errors || self.flushes.is_empty());
        for block in &mut self.blocks {
            for v in &mut block.versions {
                let is_own = by != 0 && v.by == by;
                let covered = v.ended < began && !v.failed && !v.uncertain;
                // SI-O1: the device may have completed a write before it took this flush although
                // the completion arrived later. A failure may concern all versions.
                if !ok {
                    v.superseded = NEVER;
                    v.lost_flush |= !v.durable;
                    if is_own && v.began < began {
                        v.flush_failed_at = v.flush_failed_at.min(now);
                    }
                } else if covered && (proves && !v.lost_flush || is_own && v.flush_failed_at > at) {
                    v.durable = true;
                    block.durable = block.durable.max(v.began);
                }
            }
            if proves {
                block.versions.retain(|v| v.superseded > began);
            }
            block.prune();
        }
    }

    /// To be called before a read of `blocks` is submitted.
    pub fn begin_read(&mut self, blocks: Range<u64>) -> ReadToken {
        assert!(blocks.start < blocks.end && blocks.end <= self.block_count(), "{blocks:?}");
        let began = self.tick();
        let allowed = self.blocks[span(&blocks)].iter().map(Block::allowed).collect();
        ReadToken { first: blocks.start, began, allowed }
    }

    /// Checks whether a completed read may have returned `data`.
    pub fn check_read(&mut self, token: &ReadToken, data: &[u8]) -> Result<(), String> {
        assert_eq!(data.len(), token.allowed.len() * self.block_bytes, "length of {token:?}");
        self.tick();
        let chunks = data.chunks_exact(self.block_bytes);
        for ((number, allowed), data) in (token.first..).zip(&token.allowed).zip(chunks) {
            self.check_block(number, token.began, allowed, data)?;
        }
        Ok(())
    }

    fn check_block(
        &mut self,
        number: u64,
        began: Moment,
        allowed: &Allowed,
        data: &[u8],
    ) -> Result<(), String> {
        let clock = self.clock;
        let block = &mut self.blocks[index(number)];
        let discarded = allowed.anything || block.discard_began > began;
        let may_be = |content: Content| match content {
            Content::Zeroes => allowed.zeroes || discarded || block.zeroes_began > began,
            Content::Version(v) => {
                let ever = v > INITIAL && v < clock;
                allowed.versions.contains(&v) || (v > began && ever) || (discarded && ever)
            }
        };
        let mut ruined = false;
        let undefined = allowed.mixture || block.failed_ended >= began;
        let mut contents = Vec::with_capacity(data.len() / 512);
        for (sector, bytes) in data.chunks_exact(512).enumerate() {
            let content = match stamp::read(bytes, self.seed, number, sector) {
                Ok(content) => content,
                Err(StampError::Rubbish) if self.rubbish && (undefined || discarded) => {
                    ruined = true;
                    continue;
                }
                Err(e) => return Err(mismatch(number, sector, &e, block)),
            };
            if !may_be(content) {
                let what = StampError::NotAllowed(content);
                return Err(mismatch(number, sector, &what, block));
            }
            contents.push(content);
        }
        if ruined {
            return Ok(());
        }
        let first = contents[0];
        if let Some(sector) = contents.iter().position(|&c| c != first) {
            // A failed write may be torn, and a discarded block may hold anything.
            if !undefined && !discarded {
                let what = StampError::Mixture(first, contents[sector]);
                return Err(mismatch(number, sector, &what, block));
            }
            return Ok(());
        }
        block.note_read(first, began, clock);
        Ok(())
    }

    /// Records a power cut: each version in flight or not durable is present or not, and that no
    /// longer changes.
    pub fn crash(&mut self) {
        self.stop(LastEvent::Crash);
    }

    /// Records a kill of the process with the power on. As after a crash, each version that was not
    /// durable is present or not, unless the device has promised to keep it; but it may still be in
    /// a volatile cache, until a flush.
    pub fn kill(&mut self) {
        self.stop(LastEvent::Kill);
    }

    fn stop(&mut self, event: LastEvent) {
        let now = self.tick();
        self.flushes.clear();
        for block in &mut self.blocks {
            for v in &mut block.versions {
                v.ended = v.ended.min(now);
                v.not_current = false;
                v.superseded = NEVER;
                v.uncertain = true;
            }
            if event == LastEvent::Crash {
                block.kept = INITIAL;
            }
            block.current = block.durable.max(block.kept);
            block.last = event;
        }
    }

    /// Reads every block by `read(number, buffer)`, after [`Oracle::crash`].
    pub fn verify_after_crash(
        &mut self,
        mut read: impl FnMut(u64, &mut [u8]),
    ) -> Result<(), String> {
        let mut data = vec![0; self.block_bytes];
        for number in 0..self.block_count() {
            let token = self.begin_read(number..number + 1);
            read(number, &mut data);
            self.check_read(&token, &data)?;
        }
        Ok(())
    }
}

impl Version {
    fn is(&self, content: Content) -> bool {
        match content {
            Content::Zeroes => self.change == Change::WriteZeroes,
            Content::Version(n) => self.began == n,
        }
    }

    fn has_failed(&self) -> bool {
        self.failed || self.failed_below
    }
}

impl Block {
    fn allowed(&self) -> Allowed {
        let now = || self.versions.iter().filter(|v| self.may_be_current(v));
        Allowed {
            versions: now().filter(|v| v.change == Change::Write).map(|v| v.began).collect(),
            zeroes: now().any(|v| v.change == Change::WriteZeroes),
            anything: now().any(|v| v.change == Change::Discard),
            mixture: self.has_failed(),
        }
    }

    fn may_be_current(&self, v: &Version) -> bool {
        !v.not_current && v.ended >= self.current
    }

    fn has_failed(&self) -> bool {
        self.versions.iter().any(|v| v.has_failed() && self.may_be_current(v))
    }

    /// Removes the versions that a durable version excludes, now and after any crash.
    fn prune(&mut self) {
        let durable = self.durable;
        self.versions.retain(|v| v.ended >= durable);
    }

    /// Records that a read found `content` in the whole block. If nothing overlapped the read,
    /// `content` is the current version; if it is the first read since a crash, it is durable.
    fn note_read(&mut self, content: Content, read_began: Moment, now_is: Moment) {
        let fixed = |v: &Version| self.last == LastEvent::Crash || !v.has_failed();
        let now = || self.versions.iter().filter(|v| self.may_be_current(v));
        let quiet = self.versions.iter().all(|v| v.ended < read_began)
            && now().all(|v| fixed(v) && v.change != Change::Discard);
        let is = |v: &Version| v.is(content);
        if !quiet || !now().any(is) {
            return;
        }
        // A version that a failed flush may have lost may be replaced by one that it superseded.
        let lost = self.versions.iter().any(|v| is(v) && v.lost_flush);
        for v in &mut self.versions {
            if is(v) {
                v.uncertain = false;
                if self.last == LastEvent::Crash {
                    (v.failed, v.failed_below) = (false, false);
                }
            } else {
                v.not_current = true;
                v.superseded = if lost { NEVER } else { v.superseded.min(now_is) };
            }
        }
        if self.last == LastEvent::Crash {
            self.versions.retain(is);
        }
        self.last = LastEvent::Use;
    }
}

fn mismatch(number: u64, sector: usize, what: &StampError, block: &Block) -> String {
    let mut line = format!("block {number} sector {sector}: {what}; it may hold");
    for v in &block.versions {
        let state = match (v.failed, v.ended) {
            (true, _) => "failed",
            _ if v.failed_below => "failed below",
            (_, NEVER) => "in flight",
            _ if v.uncertain => "uncertain since a crash",
            _ => "ended",
        };
        let current = if block.may_be_current(v) { "" } else { ", not current" };
        let _ = write!(line, " [{:?} {} {state}{current}]", v.change, v.began);
    }
    let _ = write!(line, ", completed floor {}, durable floor {}", block.current, block.durable);
    line
}

fn span(blocks: &Range<u64>) -> Range<usize> {
    index(blocks.start)..index(blocks.end)
}

fn index(block: u64) -> usize {
    usize::try_from(block).expect("as many blocks as memory holds")
}
