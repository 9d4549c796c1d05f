// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job: one request for a device and its reply, on the way to a core and back.
use std::fmt;

use block::{BlockDevice, Buf, Op, Status};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};

use crate::budget::Permit;
use crate::serve;
use crate::write_lock::WriteLock;

/// A request of the kernel for a core, and its reply.
pub(crate) enum Work {
    Read { offset: u64, len: u32, reply: ReplyData },
    Write { offset: u64, data: Buf, fua: bool, reply: ReplyWrite },
    Flush { reply: ReplyEmpty },
    Zero { offset: u64, len: u64, unmap: bool, reply: ReplyEmpty },
}

impl Work {
    pub(crate) fn refuse(self, why: Errno) {
        match self {
            Work::Read { reply, .. } => reply.error(why),
            Work::Write { reply, .. } => reply.error(why),
            Work::Flush { reply } | Work::Zero { reply, .. } => reply.error(why),
        }
    }
}

/// A request that has been admitted. It is served once; dropped unserved, it fails with EIO.
#[must_use = "somebody waits for the reply"]
pub struct Job {
    work: Work,
    /// FU-F1: goes after the reply.
    permit: Permit,
}

impl Job {
    pub(crate) fn new(work: Work, permit: Permit) -> Job {
        Job { work, permit }
    }

    /// What it asks of the device.
    pub fn op(&self) -> Op {
        match self.work {
            Work::Read { .. } => Op::Read,
            Work::Write { .. } => Op::Write,
            Work::Flush { .. } => Op::Flush,
            Work::Zero { .. } => Op::WriteZeroes,
        }
    }

    /// Whether it changes blocks.
    pub fn is_write(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Zero { .. })
    }

    /// Whether it begins and ends between sectors, or changes none. If not, it must pass the
    /// device's lock on the lock's core.
    pub fn is_whole(&self) -> bool {
        match &self.work {
            Work::Read { .. } | Work::Flush { .. } => true,
            Work::Write { offset, data, .. } => serve::is_whole(*offset, data.len() as u64),
            Work::Zero { offset, len, .. } => serve::is_whole(*offset, *len),
        }
    }

    /// Fails a write, as the device has become read-only since its file was opened.
    pub fn refuse_read_only(self) {
        self.work.refuse(Errno::EROFS);
    }

    /// Does the request on `dev`, by bios of the current core, and replies. `lock` is the device's.
    pub async fn serve(self, dev: &dyn BlockDevice, lock: &WriteLock) {
        let Job { work, permit } = self;
        match work {
            Work::Read { offset, len, reply } => match serve::read(dev, offset, len).await {
                Ok(Some(data)) => data.read(|bytes| reply.data(bytes)),
                Ok(None) => reply.data(&[]),
                Err(status) => reply.error(errno(status)),
            },
            Work::Write { offset, data, fua, reply } => {
                match serve::write(dev, lock, offset, data, fua).await {
                    Ok(written) => reply.written(written),
                    Err(status) => reply.error(errno(status)),
                }
            }
            Work::Flush { reply } => done(reply, serve::flush(dev).await),
            Work::Zero { offset, len, unmap, reply } => {
                done(reply, serve::zero(dev, lock, offset, len, unmap).await);
            }
        }
        drop(permit);
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            Work::Read { offset, len, .. } => write!(f, "Job(read {offset}+{len})"),
            Work::Write { offset, data, .. } => write!(f, "Job(write {offset}+{})", data.len()),
            Work::Flush { .. } => f.write_str("Job(flush)"),
            Work::Zero { offset, len, .. } => write!(f, "Job(zero {offset}+{len})"),
        }
    }
}

fn errno(status: Status) -> Errno {
    Errno::from_i32(status.errno())
}

fn done(reply: ReplyEmpty, outcome: Result<(), Status>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(status) => reply.error(errno(status)),
    }
}
