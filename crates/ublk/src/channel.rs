// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Channels: how a queue speaks to the kernel. A queue knows no descriptor and no ring, so that
//! tests can take the kernel's part.
use block::{Buf, Completion, Slice, Status};
use reactor::{FileId, SqeOp, push_bio};
use rustix::io::{pread, pwrite};
use zerocopy::IntoBytes;

use crate::abi::{COMMIT_AND_FETCH, FETCH, QueueCommand, data_offset};
use crate::kernel::{Descriptor, QueueMemory};

/// The kernel's side of one queue. All of it is for the core that fetched the tags.
pub trait Channel: 'static {
    /// Offers a tag, once. Finishes `done` when it has a request, with `Ok`; with `NoDevice` when
    /// the device is stopped. `buf`: where the kernel puts the data of a write before that; none
    /// where the server copies data.
    fn fetch(&self, tag: u16, buf: Option<&Buf>, done: Completion);

    /// Ends the request of a tag, with bytes or an errno below zero, and offers the tag again.
    /// Finishes `done` as [`Channel::fetch`]. `buf`: where the kernel takes the data of a read
    /// from, and puts those of the next write.
    fn commit_and_fetch(&self, tag: u16, result: i32, buf: Option<&Buf>, done: Completion);

    /// The request of a tag, after a fetch has ended with `Ok`.
    fn descriptor(&self, tag: u16) -> Descriptor;

    /// Fills `buf` with the data of a tag's write, where the server copies data.
    fn copy_in(&self, tag: u16, buf: &Slice) -> Result<(), Status>;

    /// Puts `buf` into a tag's read, where the server copies data.
    fn copy_out(&self, tag: u16, buf: &Slice) -> Result<(), Status>;
}

/// The kernel's, by the character device of a device.
#[derive(Debug)]
pub struct KernelChannel {
    file: FileId,
    queue: u16,
    memory: QueueMemory,
}

impl KernelChannel {
    /// The channel of queue number `queue` by `file`, the character device in the driver of this
    /// core.
    pub fn new(file: FileId, queue: u16, memory: QueueMemory) -> KernelChannel {
        KernelChannel { file, queue, memory }
    }

    /// The character device.
    pub fn file(&self) -> FileId {
        self.file
    }

    fn command(&self, code: u32, tag: u16, result: i32, buf: Option<&Buf>, done: Completion) {
        let mut args = [0; 16];
        let addr = buf.map_or(0, |buf| buf.as_ptr().expose_provenance() as u64);
        let command = QueueCommand { queue: self.queue, tag, result, addr };
        args.copy_from_slice(command.as_bytes());
        push_bio(done, self.file, SqeOp::Command { code, args, buf: buf.cloned() });
    }
}

impl Channel for KernelChannel {
    fn fetch(&self, tag: u16, buf: Option<&Buf>, done: Completion) {
        self.command(FETCH, tag, 0, buf, done);
    }

    fn commit_and_fetch(&self, tag: u16, result: i32, buf: Option<&Buf>, done: Completion) {
        self.command(COMMIT_AND_FETCH, tag, result, buf, done);
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        self.memory.descriptor(tag)
    }

    fn copy_in(&self, tag: u16, buf: &Slice) -> Result<(), Status> {
        let offset = data_offset(self.queue, tag);
        self.memory.copy(buf.len(), |file| buf.write(|bytes| pread(file, bytes, offset)))
    }

    fn copy_out(&self, tag: u16, buf: &Slice) -> Result<(), Status> {
        let offset = data_offset(self.queue, tag);
        self.memory.copy(buf.len(), |file| buf.read(|bytes| pwrite(file, bytes, offset)))
    }
}
