// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The number by which a thread names its ring to the kernel (registered ring, Linux 5.18): the
//! kernel need not look up and hold the descriptor in each call, which takes locked instructions
//! in a process with threads.
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{EnterFlags, IoUring};

/// `IORING_REGISTER_RING_FDS` and `IORING_UNREGISTER_RING_FDS`.
const REGISTER: libc::c_uint = 20;
const UNREGISTER: libc::c_uint = 21;

/// The kernel's `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// The number of a ring, until it is given back; none where the kernel has none to give.
#[derive(Debug, Default)]
pub(crate) struct RingNumber(Option<RawFd>);

impl RingNumber {
    /// Gets a number for the ring, for this thread. The kernel holds the ring until that is given
    /// back, or the thread ends. A thread has 16 of them.
    pub(crate) fn register(ring: &IoUring) -> RingNumber {
        let fd = u64::try_from(ring.as_raw_fd()).expect("an open descriptor");
        let mut update = Update { offset: u32::MAX, reserved: 0, data: fd };
        let is_registered = call(ring, REGISTER, &mut update);
        RingNumber(is_registered.then(|| RawFd::try_from(update.offset).expect("below 16")))
    }

    /// Gives the number back: calls name the ring by its descriptor from now on.
    pub(crate) fn give_back(&mut self, ring: &IoUring) {
        if let Some(number) = self.0.take() {
            let offset = u32::try_from(number).expect("a number is not negative");
            let is_given_back =
                call(ring, UNREGISTER, &mut Update { offset, reserved: 0, data: 0 });
            debug_assert!(is_given_back, "the kernel has this number");
        }
    }

    /// Submits what is in the submission ring, and waits for so many completions. No system call
    /// where the kernel would have nothing to do.
    pub(crate) fn enter(&self, ring: &mut IoUring, wanted: usize) -> io::Result<()> {
        let entries = ring.submission();
        let submitted = entries.len();
        // What the kernel has deferred it delivers only if it is asked for events.
        let asks = wanted > 0 || entries.cq_overflow() || entries.taskrun();
        drop(entries);
        if submitted == 0 && !asks {
            return Ok(());
        }
        let Some(number) = self.0 else { return ring.submit_and_wait(wanted).map(drop) };
        let mut flags = EnterFlags::REGISTERED_RING;
        flags.set(EnterFlags::GETEVENTS, asks);
        let count = |n: usize| libc::c_uint::try_from(n).expect("at most a ring's entries");
        let no_signals = std::ptr::null::<libc::sigset_t>();
        // SAFETY: the call reads no memory but that of the ring, whose entries their owner vouches
        // for (UR-U1).
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                number,
                count(submitted),
                count(wanted),
                flags.bits(),
                no_signals,
                0_usize,
            )
        };
        if entered < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Registers or gives back one number. Returns whether the kernel has done it.
fn call(ring: &IoUring, what: libc::c_uint, update: &mut Update) -> bool {
    // SAFETY: the kernel reads and writes this one update, during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            what,
            std::ptr::from_mut(update),
            1_u32,
        )
    };
    done == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    fn ring() -> IoUring {
        crate::setup::build().unwrap()
    }

    /// Has the ring do nothing, which is one completion.
    fn does_nothing(ring: &mut IoUring, number: &RingNumber) -> bool {
        let entry = opcode::Nop::new().build().user_data(7);
        // SAFETY: it has no memory.
        unsafe { ring.submission().push(&entry) }.unwrap();
        number.enter(ring, 1).unwrap();
        ring.completion().next().is_some_and(|cqe| cqe.user_data() == 7)
    }

    #[test]
    fn a_ring_works_by_its_number_and_without() {
        let mut ring = ring();
        let mut number = RingNumber::register(&ring);
        assert!(number.0.is_some(), "this kernel has numbers");
        assert!(does_nothing(&mut ring, &number));
        number.give_back(&ring);
        assert!(number.0.is_none() && does_nothing(&mut ring, &number));
    }

    #[test]
    fn numbers_that_are_given_back_are_there_again() {
        for _ in 0..20 {
            let ring = ring();
            let mut number = RingNumber::register(&ring);
            assert!(number.0.is_some(), "a thread has 16 of them");
            number.give_back(&ring);
        }
    }
}
