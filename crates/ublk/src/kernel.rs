// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is shared with the kernel: a ring for control commands, the descriptors of requests, which
//! the kernel writes into memory that it shares with us, and the data of requests.
//!
//! Invariants
//! - UB-K1 A buffer of a control command is borrowed until the command has completed: the call
//!   waits for that.
//! - UB-K2 A descriptor is read while its tag is ours: the kernel writes it before it completes a
//!   fetch, and not again before the next one.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use block::Status;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::IntoBytes;

use crate::abi::{ControlCommand, DESCRIPTORS_STRIDE};

/// Control commands go one at a time.
const ENTRIES: u32 = 2;

/// A ring for control commands, which are longer than other entries.
pub(crate) struct ControlRing(IoUring<squeue::Entry128, cqueue::Entry>);

impl ControlRing {
    pub(crate) fn new() -> io::Result<ControlRing> {
        Ok(ControlRing(IoUring::builder().build(ENTRIES)?))
    }

    /// Sends a command to `file` and waits for its answer, for as long as that takes. `buf` is what
    /// the kernel reads or writes.
    pub(crate) fn send(
        &mut self,
        file: &OwnedFd,
        code: u32,
        mut command: ControlCommand,
        buf: &mut [u8],
    ) -> io::Result<u32> {
        command.len = u16::try_from(buf.len()).expect("buffers of commands are small");
        if !buf.is_empty() {
            command.addr = buf.as_mut_ptr().expose_provenance() as u64;
        }
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        let fd = types::Fd(file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, code).cmd(bytes).build();
        // SAFETY: UB-K1: `buf` and `file` are borrowed, and this function does not return before
        // the command has completed.
        unsafe { self.0.submission().push(&entry) }.expect("no command is in the ring");
        loop {
            match self.0.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The entry may be on its way: its buffer must stay.
                Err(e) => panic!("io_uring_enter for a control command: {e}"),
            }
            if let Some(answer) = self.0.completion().next() {
                let result = answer.result();
                let errno = || io::Error::from_raw_os_error(-result);
                return u32::try_from(result).map_err(|_| errno());
            }
        }
    }
}

block::debug_as!(ControlRing, _s => "ControlRing");

/// A request as the kernel describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// The operation, and flags above it.
    pub op_flags: u32,
    /// Length.
    pub sectors: u32,
    /// First sector.
    pub sector: u64,
    /// The tag's buffer; zero with user copy.
    pub addr: u64,
}

/// What the requests of one queue are, and their data: descriptors, mapped from the character
/// device, and the device itself, in which the data are read and written.
pub struct QueueMemory {
    device: OwnedFd,
    first: NonNull<Descriptor>,
    depth: u16,
    bytes: usize,
}

impl QueueMemory {
    /// That of queue number `queue` with `depth` tags. It keeps the device open.
    pub fn map(file: &OwnedFd, queue: u16, depth: u16) -> io::Result<QueueMemory> {
        let device = file.try_clone()?;
        let bytes = (usize::from(depth) * size_of::<Descriptor>())
            .next_multiple_of(rustix::param::page_size());
        let offset = u64::from(queue) * DESCRIPTORS_STRIDE;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else is there.
        let at = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, offset)?
        };
        let first = NonNull::new(at.cast()).expect("the kernel maps nothing at zero");
        Ok(QueueMemory { device, first, depth, bytes })
    }

    /// Number of tags.
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// The request of a tag that is ours (UB-K2).
    pub(crate) fn descriptor(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: inside the mapping, which lives as long as self; any bits are a valid value.
        // Volatile, as the kernel writes it.
        unsafe { self.first.as_ptr().add(usize::from(tag)).read_volatile() }
    }

    /// Copies `len` bytes by `copy`, which reads or writes the device. It waits for nothing: the
    /// kernel copies between our memory and pages that it has. By the ring it would cost 3,000
    /// instructions more, of 30,000 of a request (`make bench-ublk`, 2026-11-27).
    pub(crate) fn copy(
        &self,
        len: usize,
        copy: impl FnOnce(&OwnedFd) -> rustix::io::Result<usize>,
    ) -> Result<(), Status> {
        match copy(&self.device) {
            Ok(done) if done == len => Ok(()),
            // The device was stopped.
            _ => Err(Status::Io),
        }
    }
}

// SAFETY: the mapping is the process's, and no reference into it is ever given out: any thread that
// has it may read it and unmap it.
unsafe impl Send for QueueMemory {}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference into it is ever given out.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

block::debug_as!(QueueMemory, s => "QueueMemory({} tags)", s.depth);
