// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A group of buffers out of which the kernel chooses one for each answer of a command that answers
//! again and again. A ring of its own says which are free.
//!
//! ```text
//!   page:  │ free: entry entry entry ... │ buffer 0 │ buffer 1 │ ...
//!            ▲ the kernel takes           ▲ it writes an answer
//!            └ tail: given back           └ read, once the answer was reaped
//! ```
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use block::Buf;
use io_uring::IoUring;
use io_uring::types::BufRingEntry;

/// Number of buffers, a power of two: as many answers wait to be reaped at most. Chosen: then the
/// kernel ends the command, and it is sent again.
const BUFFERS: u16 = 32;
/// The largest answer.
const BUFFER_BYTES: usize = 256;
/// Of the ring of free buffers, which begins at a page.
const RING_BYTES: usize = BUFFERS as usize * size_of::<BufRingEntry>();

/// Fields of an entry, `struct io_uring_buf` of the kernel.
const ENTRY_ADDR_AT: usize = 0;
const ENTRY_LEN_AT: usize = 8;
const ENTRY_BUFFER_AT: usize = 12;
const _: () = assert!(size_of::<BufRingEntry>() == 16);

/// The buffers, registered with a ring. Its memory lives until the group is given up, or for ever
/// if the kernel may still use it (UR-U1).
pub(crate) struct BufferGroup {
    memory: Buf,
    id: u16,
    tail: u16,
}

impl BufferGroup {
    /// Registers group number `id`, all of its buffers free.
    pub(crate) fn register(ring: &IoUring, id: u16) -> io::Result<BufferGroup> {
        let memory = Buf::zeroed(RING_BYTES + usize::from(BUFFERS) * BUFFER_BYTES);
        let at = memory.as_ptr().expose_provenance() as u64;
        let submitter = ring.submitter();
        // SAFETY: UR-U1: the memory lives until the group is unregistered or the ring has ended.
        unsafe { submitter.register_buf_ring_with_flags(at, BUFFERS, id, 0)? };
        let mut group = BufferGroup { memory, id, tail: 0 };
        (0..BUFFERS).for_each(|nth| group.give_back(nth));
        Ok(group)
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    fn at(&self, nth: u16) -> *mut u8 {
        assert!(nth < BUFFERS, "buffer {nth} of {BUFFERS}");
        self.memory.as_ptr().wrapping_add(RING_BYTES + usize::from(nth) * BUFFER_BYTES)
    }

    /// Calls `read` with the first bytes of a buffer that has an answer.
    ///
    /// # Panics
    /// When the kernel names a buffer, or a length, that there is not.
    pub(crate) fn read<R>(&self, nth: u16, bytes: usize, read: impl FnOnce(&[u8]) -> R) -> R {
        assert!(bytes <= BUFFER_BYTES, "an answer of {bytes} bytes");
        // SAFETY: inside the memory. The kernel has written it before its completion, and writes it
        // again only after `give_back`, which can't be called meanwhile.
        read(unsafe { std::slice::from_raw_parts(self.at(nth), bytes) })
    }

    /// How often a buffer was given back.
    #[cfg(test)]
    pub(crate) fn given_back(&self) -> u16 {
        self.tail - BUFFERS
    }

    /// Puts an answer into a buffer, in the kernel's place.
    #[cfg(test)]
    pub(crate) fn fill(&self, nth: u16, answer: &[u8]) {
        assert!(answer.len() <= BUFFER_BYTES);
        // SAFETY: inside the memory, which no kernel knows of in these tests.
        unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), self.at(nth), answer.len()) };
    }

    /// The kernel may choose this buffer again.
    pub(crate) fn give_back(&mut self, nth: u16) {
        let entries = self.memory.as_ptr().cast::<BufRingEntry>();
        let addr = self.at(nth).expose_provenance() as u64;
        let len = u32::try_from(BUFFER_BYTES).expect("few");
        // SAFETY: inside the memory, and aligned to a page. The kernel reads these fields only once
        // the tail is beyond the entry: the group has as many entries as buffers. There is no
        // reference to an entry: the last field of the first one is the tail, which the kernel
        // reads at any moment.
        unsafe {
            let entry = entries.add(usize::from(self.tail % BUFFERS)).cast::<libc::c_void>();
            entry.byte_add(ENTRY_ADDR_AT).cast::<u64>().write(addr);
            entry.byte_add(ENTRY_LEN_AT).cast::<u32>().write(len);
            entry.byte_add(ENTRY_BUFFER_AT).cast::<u16>().write(nth);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is in an unused part of the first entry; both sides use it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Ends the group: the kernel uses its memory no more.
    pub(crate) fn unregister(self, ring: &IoUring) {
        let ended = ring.submitter().unregister_buf_ring(self.id);
        debug_assert!(ended.is_ok(), "{ended:?}");
        if ended.is_err() {
            #[expect(clippy::mem_forget, reason = "UR-U1: the kernel may still write to it")]
            std::mem::forget(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use io_uring::{cqueue, opcode, types};

    use super::*;

    /// Receives what is sent, by a request with many answers; returns the bytes of each, and gives
    /// its buffer back.
    #[test]
    fn the_kernel_gets_each_buffer_again() {
        let mut ring = IoUring::new(4).unwrap();
        let mut group = BufferGroup::register(&ring, 7).unwrap();
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        let fd = types::Fd(receiver.as_raw_fd());
        let receive = opcode::RecvMulti::new(fd, group.id()).build();
        // SAFETY: the buffers live until the group is unregistered below.
        unsafe { ring.submission().push(&receive) }.unwrap();
        // More than there are buffers.
        for nth in 0..3 * u8::try_from(BUFFERS).unwrap() {
            sender.write_all(&[nth; 9]).unwrap();
            ring.submit_and_wait(1).unwrap();
            let answer = ring.completion().next().unwrap();
            assert!(cqueue::more(answer.flags()), "{answer:?}");
            assert_eq!(answer.result(), 9);
            let buffer = cqueue::buffer_select(answer.flags()).unwrap();
            group.read(buffer, 9, |answer| assert_eq!(answer, [nth; 9]));
            group.give_back(buffer);
        }
        drop(sender);
        ring.submit_and_wait(1).unwrap();
        assert!(!cqueue::more(ring.completion().next().unwrap().flags()));
        group.unregister(&ring);
    }
}
