// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that a kernel driver answers again and again (multishot), each answer in a buffer of a
//! group. It is copied, and the buffer given back, as the completion is reaped.
//!
//! Invariants
//! - UR-S1 Answers reach the [`StreamMemory`] in order, and none is lost, also when the kernel had
//!   no buffer for it: then it has ended the command, keeps what it has to say, and gets the
//!   command again.
//! - UR-S2 The memory of a stream, and what it keeps, live until the last completion of its command
//!   (UR-U1), and the file counts it as one request until then (UR-U3).
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use block::{CoreId, OpKey, Status};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use reactor::{FileId, StreamMemory};
use slab::Slab;

use crate::buffer_group::BufferGroup;

/// This bit is set in `user_data` of such commands; no slab has that many entries.
pub(crate) const STREAM: u64 = 1 << 62;

/// The flag of a command with many answers (`IORING_URING_CMD_MULTISHOT`), and where an entry has
/// the flags of commands and the group of buffers.
const MULTISHOT: u32 = 1 << 1;
const FLAGS_AT: usize = 28;
const GROUP_AT: usize = 40;

/// A command that the kernel has, or gets.
pub(crate) struct CommandStream {
    /// Who gets events.
    pub(crate) home: CoreId,
    pub(crate) key: OpKey,
    pub(crate) file: FileId,
    code: u32,
    args: [u8; 16],
    group: BufferGroup,
    memory: Rc<StreamMemory>,
}

/// What a completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// Nothing new.
    Nothing,
    /// Who waits for answers is to be told.
    Came,
    /// The command is to be sent again, after the same if `came`.
    Again {
        /// Answers have come.
        came: bool,
    },
    /// It was the last one.
    Ended(Status),
}

/// All of a driver.
#[derive(Default)]
pub(crate) struct CommandStreams(Slab<CommandStream>);

impl CommandStreams {
    /// Begins a stream; its command is to be sent.
    pub(crate) fn begin(
        &mut self,
        ring: &IoUring,
        (home, key): (CoreId, OpKey),
        file: FileId,
        (code, args): (u32, [u8; 16]),
        memory: Rc<StreamMemory>,
    ) -> io::Result<usize> {
        let entry = self.0.vacant_entry();
        let nth = entry.key();
        let id = u16::try_from(nth).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let group = BufferGroup::register(ring, id)?;
        entry.insert(CommandStream { home, key, file, code, args, group, memory });
        Ok(nth)
    }

    /// The command has been answered.
    pub(crate) fn completed(&mut self, nth: usize, result: i32, flags: u32) -> Answered {
        let CommandStream { group, memory, .. } = &mut self.0[nth];
        let mut came = false;
        if let Some(buffer) = cqueue::buffer_select(flags) {
            if let Ok(bytes @ 1..) = usize::try_from(result) {
                came = group.read(buffer, bytes, |answer| memory.add(answer));
            }
            group.give_back(buffer);
        }
        match (cqueue::more(flags), result) {
            (true, _) if came => Answered::Came,
            (true, _) => Answered::Nothing,
            // UR-S1
            (false, 0..) => Answered::Again { came },
            (false, errno) if errno == -libc::ENOBUFS => Answered::Again { came },
            (false, errno) => Answered::Ended(Status::from_errno(-errno)),
        }
    }

    /// The entry of a command that is to be sent.
    pub(crate) fn entry(&self, nth: usize, fd: RawFd) -> squeue::Entry {
        let stream = &self.0[nth];
        let command = opcode::UringCmd16::new(types::Fd(fd), stream.code).cmd(stream.args);
        let mut entry = command.build().flags(squeue::Flags::BUFFER_SELECT);
        let at = std::ptr::from_mut(&mut entry).cast::<u8>();
        // SAFETY: an entry is the kernel's `struct io_uring_sqe`, of 64 bytes, in which these
        // fields, any bits of which are valid, are at these places.
        unsafe {
            at.add(FLAGS_AT).cast::<u32>().write_unaligned(MULTISHOT);
            at.add(GROUP_AT).cast::<u16>().write_unaligned(stream.group.id());
        }
        entry.user_data(STREAM | nth as u64)
    }

    pub(crate) fn get(&self, nth: usize) -> &CommandStream {
        &self.0[nth]
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends a stream whose last answer has come.
    pub(crate) fn end(&mut self, ring: &IoUring, nth: usize) {
        self.0.remove(nth).group.unregister(ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a completion: the command goes on; a buffer was chosen, whose number is above.
    const MORE: u32 = 2;
    const BUFFER: u32 = 1;

    struct Stream {
        streams: CommandStreams,
        nth: usize,
        memory: Rc<StreamMemory>,
        ring: IoUring,
    }

    impl Stream {
        fn new() -> Stream {
            let (ring, mut streams) = (IoUring::new(2).unwrap(), CommandStreams::default());
            let memory = Rc::new(StreamMemory::new(Rc::new(())));
            let (op, command) = ((CoreId(0), OpKey(1)), (5, [1; 16]));
            let nth = streams.begin(&ring, op, FileId(3), command, memory.clone()).unwrap();
            Stream { streams, nth, memory, ring }
        }

        /// The kernel answers with buffer `buffer`.
        fn answer(&mut self, buffer: u16, answer: &[u8], flags: u32) -> Answered {
            self.streams.0[self.nth].group.fill(buffer, answer);
            let flags = u32::from(buffer) << 16 | BUFFER | flags;
            self.streams.completed(self.nth, i32::try_from(answer.len()).unwrap(), flags)
        }

        fn taken(&self) -> Vec<u8> {
            let mut taken = Vec::new();
            self.memory.take(|answers| taken.extend_from_slice(answers));
            taken
        }
    }

    #[test]
    fn answers_are_told_once_and_kept_in_order() {
        let mut stream = Stream::new();
        assert_eq!(stream.answer(4, &[1, 2], MORE), Answered::Came);
        assert_eq!(stream.answer(0, &[3], MORE), Answered::Nothing, "the first were not taken");
        assert_eq!(stream.taken(), [1, 2, 3]);
        assert_eq!(stream.answer(1, &[4], MORE), Answered::Came);
        assert_eq!(stream.taken(), [4]);
    }

    #[test]
    fn a_command_that_the_kernel_has_ended_is_sent_again() {
        let mut stream = Stream::new();
        let completed =
            |stream: &mut Stream, result| stream.streams.completed(stream.nth, result, 0);
        assert_eq!(completed(&mut stream, -libc::ENOBUFS), Answered::Again { came: false });
        assert_eq!(stream.answer(2, &[7, 8], 0), Answered::Again { came: true });
        assert_eq!(stream.taken(), [7, 8]);
        assert_eq!(completed(&mut stream, -libc::ENODEV), Answered::Ended(Status::NoDevice));
        stream.streams.end(&stream.ring, stream.nth);
        assert!(stream.streams.is_empty());
    }

    #[test]
    fn an_answer_of_nothing_gives_its_buffer_back() {
        let mut stream = Stream::new();
        let nothing = stream.streams.completed(stream.nth, 0, 4 << 16 | BUFFER | MORE);
        assert_eq!(nothing, Answered::Nothing);
        assert_eq!(stream.streams.0[stream.nth].group.given_back(), 1);
    }
}
