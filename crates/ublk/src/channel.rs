// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Channels: how a queue speaks to the kernel. A queue knows no descriptor and no ring, so that
//! tests can take the kernel's part.
use std::future::Future;

use block::{Buf, Status};
use reactor::{FileId, IoFuture, OpResult, SqeOp, driver_io};
use rustix::io::{pread, pwrite};
use zerocopy::IntoBytes;

use crate::abi::{COMMIT_AND_FETCH, FETCH, QueueCommand, data_offset};
use crate::kernel::{Descriptor, QueueMemory};

/// The kernel's side of one queue. All of it is for the core that fetched the tags.
pub trait Channel: 'static {
    /// The answer to a command.
    type Io: Future<Output = OpResult>;

    /// Offers a tag, once. Ends when it has a request, with `Ok`; with `NoDevice` when the device
    /// is stopped.
    fn fetch(&self, tag: u16) -> Self::Io;

    /// Ends the request of a tag, with bytes or an errno below zero, and offers the tag again. Ends
    /// as [`Channel::fetch`].
    fn commit_and_fetch(&self, tag: u16, result: i32) -> Self::Io;

    /// The request of a tag, after a fetch has ended with `Ok`.
    fn descriptor(&self, tag: u16) -> Descriptor;

    /// Fills `buf` with the data of a tag's write.
    fn copy_in(&self, tag: u16, buf: &Buf) -> Result<(), Status>;

    /// Puts `buf` into a tag's read.
    fn copy_out(&self, tag: u16, buf: &Buf) -> Result<(), Status>;
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

    fn command(&self, code: u32, tag: u16, result: i32) -> IoFuture {
        let mut args = [0; 16];
        let command = QueueCommand { queue: self.queue, tag, result, addr: 0 };
        args.copy_from_slice(command.as_bytes());
        driver_io(self.file, SqeOp::Command { code, args })
    }
}

impl Channel for KernelChannel {
    type Io = IoFuture;

    fn fetch(&self, tag: u16) -> IoFuture {
        self.command(FETCH, tag, 0)
    }

    fn commit_and_fetch(&self, tag: u16, result: i32) -> IoFuture {
        self.command(COMMIT_AND_FETCH, tag, result)
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        self.memory.descriptor(tag)
    }

    fn copy_in(&self, tag: u16, buf: &Buf) -> Result<(), Status> {
        let offset = data_offset(self.queue, tag);
        self.memory.copy(buf.len(), |file| buf.write(|bytes| pread(file, bytes, offset)))
    }

    fn copy_out(&self, tag: u16, buf: &Buf) -> Result<(), Status> {
        let offset = data_offset(self.queue, tag);
        self.memory.copy(buf.len(), |file| buf.read(|bytes| pwrite(file, bytes, offset)))
    }
}
