// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a guest for tests and for fuzzing. Eventfds without a kernel.
#[cfg(test)]
use std::future::poll_fn;
use std::sync::Arc;
#[cfg(test)]
use std::sync::{Mutex, MutexGuard};
#[cfg(test)]
use std::task::{Poll, Waker};

use block::Ram;

use crate::message::RegionInfo;

/// What an address of the front end is beyond that of the guest.
pub const USER_OFFSET: u64 = 1 << 40;

/// A region at `guest`.
pub fn region_at(guest: u64, len: u64) -> RegionInfo {
    RegionInfo { guest, len, user: guest.saturating_add(USER_OFFSET), offset: 0 }
}

/// Memory of a guest: zeroes.
pub fn ram(len: u64) -> Arc<Ram> {
    Arc::new(Ram::new(len).expect("a test's memory is small, and has a byte"))
}

/// The same with these bytes.
pub fn ram_with(bytes: &[u8]) -> Arc<Ram> {
    let ram = ram(bytes.len() as u64);
    ram.write(0, bytes);
    ram
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
