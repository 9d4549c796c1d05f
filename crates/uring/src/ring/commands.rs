// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands to kernel drivers: on their way into the ring, and the answers of those that have many.
use block::Status;
use reactor::{CommandMemory, Event, Sqe, SqeOp};

use super::{Shared, Waiting};
use crate::command_stream::Answered;
use crate::request::Request;

impl Shared {
    /// Nothing of what is done for other requests concerns a command.
    pub(super) fn begin_command(&mut self, Sqe { home, key, file, what }: Sqe) {
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
