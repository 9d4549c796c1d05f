// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests to disks: submitted by a core, timed by a model, and performed on the medium when they
//! complete.

use block::{Bufs, CoreId, Nanos, OpKey, SECTOR_SIZE, Status};
use reactor::{Event, OpResult, Sqe, SqeOp};

use super::streams::is_stream;
use super::{Scheduled, World, usize_of};
use crate::disk::DiskState;
use crate::events::{TraceEvent, record};
use crate::media::{FlushMark, parts};
use crate::model::{Cmd, Kind};
use crate::rng::Rng;

#[derive(Debug)]
pub(super) enum OpKind {
    Read {
        bufs: Bufs,
        early: Option<Vec<u8>>,
    },
    /// `data` is `None` on a disk that keeps none.
    Write {
        bufs: Bufs,
        data: Option<Vec<u8>>,
        /// Number of the write if it is already stored: in memory.
        begun: Option<u64>,
        fua: bool,
    },
    Flush {
        mark: FlushMark,
    },
    Discard,
    WriteZeroes,
    /// An unsupported or invalid request.
    Refused(Status),
}

#[derive(Debug)]
pub(super) struct Op {
    pub(super) core: CoreId,
    pub(super) home: CoreId,
    pub(super) key: OpKey,
    pub(super) disk: usize,
    pub(super) submitted: Nanos,
    /// Index among the requests of its disk.
    pub(super) nth: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Number of failed flushes of the disk at submission.
    pub(super) flush_failures: u64,
    /// Its process has been killed: it ends, and nobody gets its outcome.
    pub(super) is_orphan: bool,
    pub(super) what: OpKind,
}

impl Op {
    fn name(&self) -> &'static str {
        match self.what {
            OpKind::Read { .. } => "read",
            OpKind::Write { .. } => "write",
            OpKind::Flush { .. } => "flush",
            OpKind::Discard => "discard",
            OpKind::WriteZeroes => "write zeroes",
            OpKind::Refused(_) => "refused request",
        }
    }
}

impl World {
    pub(crate) fn submit(&mut self, core: CoreId, sqe: Sqe) {
        if is_stream(sqe.file) {
            return self.submit_stream(core, sqe);
        }
        let Sqe { home, key, file, what } = sqe;
        let disk = file.0 as usize;
        *self.requests.entry(core).or_default() += 1;
        let refused = |status| (0, 0, OpKind::Refused(status));
        let (offset, len, what) = match what {
            SqeOp::Read { offset, bufs } => {
                (offset, bufs.len_bytes() as u64, OpKind::Read { bufs, early: None })
            }
            SqeOp::Write { offset, bufs, fua } => {
                let keeps = self.disks.get(disk).is_some_and(|d| d.keeps_data);
                let data = keeps.then(|| {
                    let mut data = vec![0; bufs.len_bytes()];
                    bufs.copy_to(&mut data);
                    data
                });
                (offset, bufs.len_bytes() as u64, OpKind::Write { bufs, data, begun: None, fua })
            }
            SqeOp::Flush => (0, 0, OpKind::Flush { mark: FlushMark::default() }),
            SqeOp::Discard { offset, len } => (offset, len, OpKind::Discard),
            SqeOp::WriteZeroes { offset, len, .. } => (offset, len, OpKind::WriteZeroes),
            SqeOp::Command { .. }
            | SqeOp::Accept
            | SqeOp::Recv { .. }
            | SqeOp::Send { .. }
            | SqeOp::Shutdown
            | SqeOp::ShutdownWrite
            | SqeOp::Close => refused(Status::NotSupported),
        };
        let op = Op {
            core,
            home,
            key,
            disk,
            submitted: self.now,
            nth: 0,
            offset,
            len,
            flush_failures: 0,
            is_orphan: false,
            what,
        };
        self.submit_op(op);
    }

    fn submit_op(&mut self, mut op: Op) {
        let known = self.disks.get_mut(op.disk);
        let refused = match (&op.what, &known) {
            (OpKind::Refused(status), _) => Some(*status),
            (_, None) => Some(Status::NoDevice),
            (OpKind::Flush { .. }, Some(_)) => None,
            (OpKind::Discard | OpKind::WriteZeroes, Some(disk)) if !disk.limits.write_zeroes => {
                Some(Status::NotSupported)
            }
            (_, Some(disk)) => (!disk.has(op.offset, op.len)).then_some(Status::Invalid),
        };
        let Some(disk) = known.filter(|_| refused.is_none()) else {
            op.what = OpKind::Refused(refused.unwrap_or(Status::NoDevice));
            let id = self.ops.insert(op);
            return self.at(self.now + Nanos(1_000), Scheduled::Op(id));
        };
        op.nth = disk.ops;
        op.flush_failures = disk.media.flush_mark().failures;
        disk.ops += 1;
        let kind = match &mut op.what {
            OpKind::Read { early, .. } => {
                if self.rng.chance_per_mille(self.swarm.early_read_per_mille) {
                    let mut data = vec![0; usize_of(op.len)];
                    disk.media.read(op.offset, &mut data);
                    *early = Some(data);
                }
                disk.stats.reads += 1;
                disk.stats.read_bytes += op.len;
                Kind::Read
            }
            OpKind::Write { data, begun, .. } => {
                *begun = data.as_ref().and_then(|data| disk.media.begin_write(op.offset, data));
                disk.stats.writes += 1;
                disk.stats.write_bytes += op.len;
                Kind::Write
            }
            OpKind::WriteZeroes => {
                disk.stats.writes += 1;
                disk.stats.write_bytes += op.len;
                Kind::Write
            }
            OpKind::Flush { mark } => {
                *mark = disk.media.flush_mark();
                disk.stats.flushes += 1;
                Kind::Flush
            }
            OpKind::Discard => {
                disk.stats.discards += 1;
                Kind::Discard
            }
            OpKind::Refused(_) => unreachable!("handled above"),
        };
        let fua = matches!(op.what, OpKind::Write { fua: true, .. });
        let (number, offset, len, name) = (op.disk, op.offset, op.len, op.name());
        let id = self.ops.insert(op);
        record(self.now, TraceEvent::Submitted { disk: number, op: name, id, offset, len, fua });
        let cmd = Cmd { kind, offset_bytes: offset, len_bytes: len, fua };
        disk.model.submit(self.now.0, id as u64, cmd);
    }

    /// Ends a request; returns its outcome, if somebody waits for it.
    pub(super) fn end_op(&mut self, id: usize) -> Option<(CoreId, Event)> {
        let op = self.ops.remove(id);
        let status = self.perform(id, &op);
        let Op { core, home, key, disk, offset, len, is_orphan, .. } = op;
        record(self.now, TraceEvent::Completed { disk, op: op.name(), id, offset, len, status });
        self.mix(u64::from(status.errno().unsigned_abs()) << 32 | id as u64);
        if is_orphan {
            self.orphan_ended(core);
            return None;
        }
        Some((core, Event::Cqe { home, key, result: OpResult { status, value: 0 } }))
    }

    /// Performs the completed request on the medium.
    fn perform(&mut self, id: usize, op: &Op) -> Status {
        let (now, rng) = (self.now, &mut self.rng);
        if let OpKind::Refused(status) = op.what {
            return status;
        }
        let disk = &mut self.disks[op.disk];
        let (faults, offset, len) = (disk.faults, op.offset, usize_of(op.len));
        let broken = faults.break_request(op.nth);
        match &op.what {
            OpKind::Read { bufs, early } => {
                let error = rng.chance_per_mille(faults.read_error_per_mille);
                if broken || error || disk.bad_in(offset, len) {
                    bufs.copy_from(&vec![0xEE; len]);
                    return Status::Io;
                }
                if rng.chance_per_mille(faults.rot_per_mille) {
                    let at = offset + rng.below(op.len);
                    let bit = u32::try_from(rng.below(8)).expect("below 8");
                    disk.media.flip_bit(at, bit);
                    record(now, TraceEvent::Rotted { disk: op.disk, offset: at });
                }
                if let Some(data) = early {
                    bufs.copy_from(data);
                } else {
                    let mut data = vec![0; len];
                    disk.media.read(offset, &mut data);
                    bufs.copy_from(&data);
                }
            }
            OpKind::Write { data: None, .. } => {
                if broken || rng.chance_per_mille(faults.write_error_per_mille) {
                    return Status::Io;
                }
            }
            OpKind::Write { bufs, data: Some(data), begun, fua } => {
                let mut found = vec![0; data.len()];
                bufs.copy_to(&mut found);
                assert!(
                    found == *data,
                    "buffer of write #{id} at byte {offset} modified in flight"
                );
                if broken || rng.chance_per_mille(faults.write_error_per_mille) {
                    if begun.is_none() {
                        fail_write(disk, rng, offset, data);
                    }
                    return Status::Io;
                }
                if begun.is_some() {
                    disk.heal(offset, len);
                    disk.media.end_write(*begun, offset, data, *fua);
                    return Status::Ok;
                }
                if rng.chance_per_mille(faults.lost_write_per_mille) {
                    record(now, TraceEvent::Misplaced { disk: op.disk, id, to: None });
                    return Status::Ok;
                }
                let mut to = offset;
                if rng.chance_per_mille(faults.misdirected_write_per_mille) {
                    let places = (disk.limits.capacity.bytes() - op.len) / SECTOR_SIZE as u64 + 1;
                    to = rng.below(places) * SECTOR_SIZE as u64;
                    record(now, TraceEvent::Misplaced { disk: op.disk, id, to: Some(to) });
                }
                disk.heal(to, len);
                disk.media.write(to, data, *fua);
                if !*fua {
                    lose_with_flush(disk, rng, op);
                }
            }
            OpKind::Flush { mark } => {
                if broken || rng.chance_per_mille(faults.flush_error_per_mille) {
                    disk.media.fail_flush(*mark);
                    return Status::Io;
                }
                disk.media.flush(*mark);
            }
            OpKind::Discard | OpKind::WriteZeroes if !disk.keeps_data => {
                if broken || rng.chance_per_mille(faults.write_error_per_mille) {
                    return Status::Io;
                }
            }
            OpKind::Discard | OpKind::WriteZeroes => {
                if self.zeroes.len() != len {
                    self.zeroes = vec![0; len].into();
                }
                let zeroes = &self.zeroes;
                if broken || rng.chance_per_mille(faults.write_error_per_mille) {
                    fail_write(disk, rng, offset, zeroes);
                    return Status::Io;
                }
                let whole = matches!(op.what, OpKind::WriteZeroes);
                if whole || rng.chance_per_mille(self.swarm.discard_zeroes_per_mille) {
                    disk.heal(offset, len);
                    disk.media.write_zeroes(offset, zeroes);
                    lose_with_flush(disk, rng, op);
                }
            }
            OpKind::Refused(_) => unreachable!("returned above"),
        }
        Status::Ok
    }
}

/// Fails a write: each of its sectors holds the old data, the new data, or garbage.
fn fail_write(disk: &mut DiskState, rng: &mut Rng, offset: u64, data: &[u8]) {
    let new_per_mille = rng.pick(&[0, 500, 1000]);
    let ruins = rng.chance_per_mille(disk.faults.rubbish_per_mille);
    let ruined_per_mille = if ruins { rng.pick(&[100, 500]) } else { 0 };
    for part in parts(offset, data.len(), SECTOR_SIZE as u64) {
        let at = offset + part.start as u64;
        if rng.chance_per_mille(ruined_per_mille) {
            let rubbish: Vec<u8> = (0..=u8::MAX).cycle().take(part.len()).collect();
            disk.media.write(at, &rubbish, false);
        } else if rng.chance_per_mille(new_per_mille) {
            disk.media.write(at, &data[part], false);
        }
    }
    if let Some(notify) = &disk.on_failed_write {
        notify(offset, data);
    }
}

/// Handles the completion of a write that was in flight when a flush failed: the write may have
/// been in the disk's cache, so it may be lost, too.
fn lose_with_flush(disk: &mut DiskState, rng: &mut Rng, op: &Op) {
    let may = disk.faults.flush_error_takes_in_flight;
    let failures = disk.media.flush_mark().failures;
    if may && op.flush_failures < failures && rng.chance_per_mille(500) {
        disk.media.abandon_newest();
    }
}
