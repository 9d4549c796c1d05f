// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle: what a block device may answer, whichever engine it is.
//!
//! Every change of a block is a *version* with the moment it began and the moment it ended, in the
//! oracle's own count of moments. Two rules decide everything:
//!
//! - a read may return version `w` unless some `x` completed before the read began, and `x` began
//!   after `w` had ended;
//! - after a power cut version `w` may be there unless some *durable* `x` began after `w` had
//!   ended. `x` is durable once a flush that began after `x` had ended is done, or `x` was FUA.
//!
//! A failed flush may have lost what was not durable, and tells its client of that. A later flush
//! of the same client makes its own writes durable all the same, but for those that it was told of
//! before that flush was sent: the ones that began before the failed flush. What other clients
//! wrote is made durable by no flush after, or beside, one that has failed.
//!
//! Versions that only overlap in time exclude nothing, as the border contract says, until a read
//! has shown which came last; and once a flush that began after that read is done, no crash brings
//! back the other. A discarded
//! block may hold zeroes or anything it ever held. A failed write may be there, in part, or not,
//! until it is rewritten. What the first quiet read after a crash finds is there for good.
//!
//! ```text
//!  client:  begin_write ─ fill ─ submit ... completes ─ end_write
//!           begin_read  ─ submit ... completes ─ check_read
//!           begin_flush ─ submit ... completes ─ end_flush
//!           crash ─ read everything, by check_read or verify_after_crash
//! ```
//!
//! Invariants
//! - SI-O1 `begin_*` is called before the request is submitted and `end_*` after it has completed,
//!   so recorded times contain the true ones and no right answer is ever refused.
//! - SI-O2 Every 512-byte sector names seed, block, sector and version: a mixture, a foreign block,
//!   and another run's data are all told apart.

mod stamp;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use block::Nanos;
use stamp::{Content, StampError};

/// A moment in the oracle's count; also the name of the version that began then.
type Moment = u64;
/// Still in flight.
const NEVER: Moment = u64::MAX;
/// No flush of its client has failed.
const UNTOLD: Nanos = Nanos(u64::MAX);
/// Names a client, to tell whose flush covers what; 0: one that is not told from others.
pub type Client = u32;
/// What was there before the first write: zeroes.
const INITIAL: Moment = 0;

/// How a block is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Data made by [`Oracle::fill`].
    Write,
    /// Zeroes.
    WriteZeroes,
    /// Nothing to rely on.
    Discard,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    began: Moment,
    ended: Moment,
    change: Change,
    /// Its outcome is an error: it excludes nothing and may be there in part.
    failed: bool,
    /// The device below has failed it, of which nobody has heard yet.
    failed_below: bool,
    /// A crash or a kill left open whether it is there: no flush covers it until a read has shown
    /// it.
    open: bool,
    /// A flush that should have covered it failed: later flushes of others do not cover it either.
    lost_flush: bool,
    /// Whose it is.
    by: Client,
    /// The time when a flush had failed of the client whose it is, which began after it.
    told: Nanos,
    /// A quiet read has shown that it is not what is there now.
    not_current: bool,
    /// When that read had ended: a flush that begins later makes it good for any crash.
    outdone: Moment,
}

#[derive(Clone, Debug)]
struct Block {
    /// Oldest first; those that can never be seen again are gone.
    versions: Vec<Version>,
    /// Latest beginning of a completed version: excludes what ended before it.
    current: Moment,
    /// Latest beginning of a durable version: the same, after a crash.
    durable: Moment,
    /// Latest beginnings, for reads that began before.
    zeroes_began: Moment,
    discard_began: Moment,
    failed_ended: Moment,
    /// Neither a change nor a quiet read since.
    since: Since,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Use,
    Crash,
    Kill,
}

/// A change in flight; give it back to [`Oracle::end_write`].
#[must_use = "a write must be ended"]
#[derive(Clone, Debug)]
pub struct WriteToken {
    blocks: Range<u64>,
    began: Moment,
    fua: bool,
}

/// A flush in flight; give it back to [`Oracle::end_flush`].
#[must_use = "a flush must be ended"]
#[derive(Clone, Copy, Debug)]
pub struct FlushToken {
    began: Moment,
    by: Client,
    at: Nanos,
}

/// A read in flight; give it to [`Oracle::check_read`], or drop it when the read failed.
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

/// What one block may hold at the beginning of a read.
#[derive(Clone, Debug)]
struct Allowed {
    versions: Vec<Moment>,
    zeroes: bool,
    /// A discard is in force: anything ever written here.
    anything: bool,
    /// A failed write is in force: its sectors may be mixed with others'.
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
    /// What a failed write leaves may be rubbish.
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
            open: false,
            lost_flush: false,
            by: 0,
            told: UNTOLD,
            not_current: false,
            outdone: NEVER,
        };
        let block = Block {
            versions: vec![initial],
            current: INITIAL,
            durable: INITIAL,
            zeroes_began: INITIAL,
            discard_began: INITIAL,
            failed_ended: INITIAL,
            since: Since::Use,
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

    /// Flushes may fail: one that overlaps another proves nothing, as the other may fail and take
    /// the writes of both with it.
    pub fn expect_flush_errors(&mut self) {
        self.flush_errors = true;
    }

    /// A failed write may leave rubbish, too.
    pub fn expect_rubbish(&mut self) {
        self.rubbish = true;
    }

    /// A device below has failed a write of `data` at `offset`, of whole blocks. Those of a write
    /// of a client that is in flight are undefined from now on, though nobody has heard of it, and
    /// for good if the power goes before anybody does. If that write ends well after all, something
    /// above has kept them.
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

    /// A write of `blocks` is about to be submitted.
    pub fn begin_write(&mut self, blocks: Range<u64>, fua: bool) -> WriteToken {
        self.begin_change(blocks, Change::Write, fua)
    }

    /// Any change of `blocks` is about to be submitted.
    pub fn begin_change(&mut self, blocks: Range<u64>, change: Change, fua: bool) -> WriteToken {
        self.begin_change_by(0, blocks, change, fua)
    }

    /// The same, by a client.
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
            block.since = Since::Use;
            block.versions.push(Version {
                began,
                ended: NEVER,
                change,
                failed: false,
                failed_below: false,
                open: false,
                lost_flush: false,
                by,
                told: UNTOLD,
                not_current: false,
                outdone: NEVER,
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

    /// The write has completed, well or not.
    pub fn end_write(&mut self, token: WriteToken, ok: bool) {
        let now = self.tick();
        let WriteToken { blocks, began, fua } = token;
        for block in &mut self.blocks[span(&blocks)] {
            let version = block.versions.iter_mut().find(|v| v.began == began);
            let version = version.expect("a version in flight is never forgotten");
            version.ended = now;
            if !ok {
                version.failed = true;
                block.failed_ended = now;
                continue;
            }
            version.failed_below = false;
            block.current = block.current.max(began);
            if fua {
                block.durable = block.durable.max(began);
            }
            block.forget();
        }
    }

    /// A flush is about to be submitted.
    pub fn begin_flush(&mut self) -> FlushToken {
        self.begin_flush_by(0, Nanos::ZERO)
    }

    /// The same, by a client at a time of the driver.
    pub fn begin_flush_by(&mut self, by: Client, at: Nanos) -> FlushToken {
        let began = self.tick();
        self.flushes.insert(began);
        FlushToken { began, by, at }
    }

    /// The flush has completed, well or not.
    pub fn end_flush(&mut self, token: FlushToken, ok: bool) {
        self.end_flush_at(token, ok, Nanos::ZERO);
    }

    /// The same, at a time of the driver. Of what happens at one time nobody can tell what came
    /// first (SI-O1): a flush of a client may have been submitted when another one had failed of
    /// which the client was about to hear.
    pub fn end_flush_at(&mut self, token: FlushToken, ok: bool, now: Nanos) {
        self.tick();
        let FlushToken { began, by, at } = token;
        self.flushes.remove(&began);
        let proves = ok && (!self.flush_errors || self.flushes.is_empty());
        for block in &mut self.blocks {
            for v in &mut block.versions {
                let is_own = by != 0 && v.by == by;
                let covered = v.ended < began && !v.failed && !v.open;
                // SI-O1: the device may have completed a write before it took this flush although
                // we heard of it later. A failure may have hit all there is.
                if !ok {
                    v.outdone = NEVER;
                    v.lost_flush |= v.began > block.durable;
                    if is_own && v.began < began {
                        v.told = v.told.min(now);
                    }
                } else if covered && (proves && !v.lost_flush || is_own && v.told > at) {
                    block.durable = block.durable.max(v.began);
                }
            }
            if proves {
                block.versions.retain(|v| v.outdone > began);
            }
            block.forget();
        }
    }

    /// A read of `blocks` is about to be submitted.
    pub fn begin_read(&mut self, blocks: Range<u64>) -> ReadToken {
        assert!(blocks.start < blocks.end && blocks.end <= self.block_count(), "{blocks:?}");
        let began = self.tick();
        let allowed = self.blocks[span(&blocks)].iter().map(Block::allowed).collect();
        ReadToken { first: blocks.start, began, allowed }
    }

    /// The read has completed: may it have returned this?
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
                Err(e) => return Err(complaint(number, sector, &e, block)),
            };
            if !may_be(content) {
                let what = StampError::NotAllowed(content);
                return Err(complaint(number, sector, &what, block));
            }
            contents.push(content);
        }
        if ruined {
            return Ok(());
        }
        let first = contents[0];
        if let Some(sector) = contents.iter().position(|&c| c != first) {
            // A failed write may have torn, and a discarded block is anything at all.
            if !undefined && !discarded {
                let what = StampError::Mixture(first, contents[sector]);
                return Err(complaint(number, sector, &what, block));
            }
            return Ok(());
        }
        block.seen(first, began, clock);
        Ok(())
    }

    /// The power has gone: what was in flight or not durable is there or not, and no longer
    /// changes.
    pub fn crash(&mut self) {
        self.stop(Since::Crash);
    }

    /// The process was killed, the power stayed. As after a crash, all that was not durable is
    /// there or not; but what is there may still be in a volatile cache, until a flush.
    pub fn kill(&mut self) {
        self.stop(Since::Kill);
    }

    fn stop(&mut self, since: Since) {
        let now = self.tick();
        self.flushes.clear();
        for block in &mut self.blocks {
            for v in &mut block.versions {
                v.ended = v.ended.min(now);
                v.not_current = false;
                v.outdone = NEVER;
                v.open = true;
            }
            block.current = block.durable;
            block.since = since;
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

    /// Drops what a durable version has excluded: it is excluded now and after any crash.
    fn forget(&mut self) {
        let durable = self.durable;
        self.versions.retain(|v| v.ended >= durable);
    }

    /// A read has found `content` all over the block. If nothing overlapped it, that is what is
    /// there now; and if it is the first since a crash, it is on the medium.
    fn seen(&mut self, content: Content, read_began: Moment, now_is: Moment) {
        let fixed = |v: &Version| self.since == Since::Crash || !v.has_failed();
        let now = || self.versions.iter().filter(|v| self.may_be_current(v));
        let quiet = self.versions.iter().all(|v| v.ended < read_began)
            && now().all(|v| fixed(v) && v.change != Change::Discard);
        let is = |v: &Version| v.is(content);
        if !quiet || !now().any(is) {
            return;
        }
        // What a failed flush may have lost may give way to what it had outdone.
        let lost = self.versions.iter().any(|v| is(v) && v.lost_flush);
        for v in &mut self.versions {
            if is(v) {
                v.open = false;
                if self.since == Since::Crash {
                    (v.failed, v.failed_below) = (false, false);
                }
            } else {
                v.not_current = true;
                v.outdone = if lost { NEVER } else { v.outdone.min(now_is) };
            }
        }
        if self.since == Since::Crash {
            self.versions.retain(is);
        }
        self.since = Since::Use;
    }
}

fn complaint(number: u64, sector: usize, what: &StampError, block: &Block) -> String {
    let mut line = format!("block {number} sector {sector}: {what}; it may hold");
    for v in &block.versions {
        let state = match (v.failed, v.ended) {
            (true, _) => "failed",
            _ if v.failed_below => "failed below",
            (_, NEVER) => "in flight",
            _ if v.open => "open since a crash",
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
