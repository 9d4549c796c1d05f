// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a guest for tests and for fuzzing: an array. Eventfds without a kernel.
#[cfg(test)]
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
#[cfg(test)]
use std::task::{Poll, Waker};

use block::{Slice, Status};

use crate::memory::Region;
use crate::message::RegionInfo;

/// What an address of the front end is beyond that of the guest.
pub const USER_OFFSET: u64 = 1 << 40;

/// A region at `guest`.
pub fn region_at(guest: u64, len: u64) -> RegionInfo {
    RegionInfo { guest, len, user: guest.saturating_add(USER_OFFSET), offset: 0 }
}

/// A region in an array.
#[derive(Debug)]
pub struct TestRegion(Mutex<Vec<u8>>);

impl TestRegion {
    /// Zeroes.
    pub fn new(len: u64) -> Arc<TestRegion> {
        TestRegion::with(vec![0; usize::try_from(len).expect("a test's memory is small")])
    }

    /// These bytes.
    pub fn with(bytes: Vec<u8>) -> Arc<TestRegion> {
        Arc::new(TestRegion(Mutex::new(bytes)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("no test panics under the lock")
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("within the array")
}

impl Region for TestRegion {
    fn len_bytes(&self) -> u64 {
        self.lock().len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status> {
        out.copy_from_slice(&self.lock()[place(at)..][..out.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        self.lock()[place(at)..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status> {
        to.write(|to| self.read(at, to))
    }

    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status> {
        from.read(|from| self.write(at, from))
    }

    fn load_u16(&self, at: u64) -> Result<u16, Status> {
        assert!(at.is_multiple_of(2), "a number at an odd place");
        let mut bytes = [0; 2];
        self.read(at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status> {
        assert!(at.is_multiple_of(2), "a number at an odd place");
        self.write(at, &value.to_le_bytes())
    }
}

/// An eventfd of a test. A simulated core may signal the one that another core waits on, as a guest
/// does.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct TestEvent(Mutex<TestCounter>);

#[cfg(test)]
#[derive(Debug, Default)]
struct TestCounter {
    count: u64,
    waiting: Vec<Waker>,
}

#[cfg(test)]
impl TestEvent {
    fn lock(&self) -> MutexGuard<'_, TestCounter> {
        self.0.lock().expect("no test panics under the lock")
    }

    pub(crate) fn add(&self) {
        self.lock().count += 1;
        self.wake();
    }

    /// Signals that nobody has waited for yet.
    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    /// Whoever waits looks again.
    pub(crate) fn wake(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until it was signalled, and resets it; false when it is over instead.
    pub(crate) async fn take(&self, is_over: impl Fn() -> bool) -> bool {
        poll_fn(|context| {
            let mut counter = self.lock();
            if counter.count == 0 && !is_over() {
                counter.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut counter.count) > 0)
        })
        .await
    }
}
