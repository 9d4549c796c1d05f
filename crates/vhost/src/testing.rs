// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a guest for tests and for fuzzing: an array. Eventfds without a kernel.
use std::cell::RefCell;
use std::rc::Rc;

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
pub struct TestRegion(RefCell<Vec<u8>>);

impl TestRegion {
    /// Zeroes.
    pub fn new(len: u64) -> Rc<TestRegion> {
        TestRegion::with(vec![0; usize::try_from(len).expect("a test's memory is small")])
    }

    /// These bytes.
    pub fn with(bytes: Vec<u8>) -> Rc<TestRegion> {
        Rc::new(TestRegion(RefCell::new(bytes)))
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("within the array")
}

impl Region for TestRegion {
    fn len_bytes(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status> {
        out.copy_from_slice(&self.0.borrow()[place(at)..][..out.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        self.0.borrow_mut()[place(at)..][..bytes.len()].copy_from_slice(bytes);
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

/// An eventfd of a test.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct TestEvent {
    count: std::cell::Cell<u64>,
    changed: reactor::WaitList,
}

#[cfg(test)]
impl TestEvent {
    pub(crate) fn add(&self) {
        self.count.set(self.count.get() + 1);
        self.wake();
    }

    /// Whoever waits looks again.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    /// Waits until it was signalled, and resets it; false when it is over instead.
    pub(crate) async fn take(&self, is_over: impl Fn() -> bool) -> bool {
        self.changed.wait_for(|| self.count.get() > 0 || is_over()).await;
        self.count.replace(0) > 0
    }
}
