// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands to kernel drivers: on their way into the ring, and the answers of those that have many.
use block::{CoreId, OpKey, Status};
use io_uring::{opcode, squeue, types};
use reactor::{CommandMemory, Event, Sqe, SqeOp};

use super::{Shared, Waiting};
use crate::command_stream::Answered;
use crate::request::Request;

/// This bit is set in `user_data` of commands that nothing is kept of. The others say who gets an
/// error.
pub(super) const ERROR_ONLY: u64 = 1 << 61;
const HOME_AT: u32 = 32;

impl Shared {
    /// Nothing of what is done for other requests concerns a command.
    pub(super) fn begin_command(&mut self, sqe: Sqe) {
        if matches!(sqe.what, SqeOp::Command { memory: CommandMemory::OfStream(_), .. }) {
            if !self.backlog.is_empty() || !self.push_of_stream(&sqe) {
                self.backlog.push_back(Waiting::OfStream(Box::new(sqe)));
            }
            return;
        }
        let Sqe { home, key, file, what } = sqe;
        if self.table.begin(file).is_err() {
            let result = Status::NoDevice.into();
            return self.ready.push(Event::Cqe { home, key, result });
        }
        let next =
            if let SqeOp::Command { code, args, memory: CommandMemory::Stream(memory) } = what {
                let command = (code, args);
                match self.streams.begin(&self.ring, (home, key), file, command, memory) {
                    Ok(nth) => Waiting::Stream(nth),
                    Err(_) => return self.end((home, key), file, Status::Io.into()),
                }
            } else {
                Waiting::Start(self.requests.insert(Request::new((home, key), file, what, None)))
            };
        self.push_or_wait(next);
    }

    fn push_or_wait(&mut self, next: Waiting) {
        if !self.backlog.is_empty() || !self.push(&next) {
            self.backlog.push_back(next);
        }
    }

    /// Puts a command that nothing is kept of into the submission ring; false when that is full.
    pub(super) fn push_of_stream(&mut self, sqe: &Sqe) -> bool {
        let Sqe { home, key, file, what } = sqe;
        let SqeOp::Command { code, args, memory: CommandMemory::OfStream(address) } = what else {
            unreachable!("another request");
        };
        let Some(fd) = self.table.fd_in_use(*file) else {
            let (home, key, result) = (*home, *key, Status::NoDevice.into());
            self.ready.push(Event::Cqe { home, key, result });
            return true;
        };
        let command = opcode::UringCmd16::new(types::Fd(fd), *code).cmd(*args);
        let entry = command.addr(Some(*address)).build().flags(squeue::Flags::SKIP_SUCCESS);
        let who = u64::from(home.0) << HOME_AT | u64::from(key.0);
        // SAFETY: UR-U1: the memory is that of a stream. The descriptor stays open until that has
        // ended, and the kernel takes this entry before it is told of more.
        unsafe { self.ring.submission().push(&entry.user_data(ERROR_ONLY | who)) }.is_ok()
    }

    /// A command that nothing was kept of has failed.
    pub(super) fn of_stream_failed(&mut self, user_data: u64, result: i32) {
        let bits = |at: u32| u32::try_from(user_data >> at & u64::from(u32::MAX)).expect("32 bits");
        let home = bits(HOME_AT) & u32::from(u16::MAX);
        let (home, key) = (CoreId(u16::try_from(home).expect("16 bits")), OpKey(bits(0)));
        let status = if result < 0 { Status::from_errno(-result) } else { Status::Io };
        self.ready.push(Event::Cqe { home, key, result: status.into() });
    }

    /// A completion of a command that has many.
    pub(super) fn stream_answered(&mut self, nth: usize, result: i32, flags: u32) {
        let answered = self.streams.completed(nth, result, flags);
        let stream = self.streams.get(nth);
        let (home, key, file) = (stream.home, stream.key, stream.file);
        let mut tell = |status: Status| {
            self.ready.push(Event::Cqe { home, key, result: status.into() });
        };
        match answered {
            Answered::Nothing => {}
            Answered::Came => tell(Status::Ok),
            Answered::Again { came } => {
                if came {
                    tell(Status::Ok);
                }
                if !self.ending {
                    self.push_or_wait(Waiting::Stream(nth));
                }
            }
            Answered::Ended(status) => {
                self.streams.end(&self.ring, nth);
                self.end((home, key), file, status.into());
            }
        }
    }
}
