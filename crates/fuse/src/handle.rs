// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles of open files: which kind a number is, without a look into a table on the data path.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::OpenId;
use crate::inode::Node;

/// An open file. The two lowest bits say which kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handle {
    Device(OpenId),
    /// An attribute, by its number in [`Opens`].
    Text(u64),
    /// A folder, by its number in [`Opens`].
    Folder(u64),
}

impl Handle {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Handle::Device(OpenId(id)) => {
                assert!(id < 1 << 62, "an OpenId has 62 bits");
                id << 2
            }
            Handle::Text(n) => n << 2 | 1,
            Handle::Folder(n) => n << 2 | 2,
        }
    }

    pub(crate) fn decode(raw: u64) -> Option<Handle> {
        match raw & 3 {
            0 => Some(Handle::Device(OpenId(raw >> 2))),
            1 => Some(Handle::Text(raw >> 2)),
            2 => Some(Handle::Folder(raw >> 2)),
            _ => None,
        }
    }
}

/// An entry of a folder as it was when somebody began to read it.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) node: Node,
    pub(crate) folder: bool,
    pub(crate) name: String,
}

/// What open attributes and folders show: a consistent text or list from one beginning to the next.
#[derive(Debug)]
pub(crate) struct Opens<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    next: u64,
    open: BTreeMap<u64, Arc<T>>,
}

impl<T> Opens<T> {
    pub(crate) fn new() -> Opens<T> {
        Opens(Mutex::new(Table { next: 0, open: BTreeMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        // Nothing under the lock can leave the table half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, what: T) -> u64 {
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.open.insert(number, Arc::new(what));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.lock().open.get(&number).cloned()
    }

    pub(crate) fn replace(&self, number: u64, what: T) -> Arc<T> {
        let what = Arc::new(what);
        if let Some(slot) = self.lock().open.get_mut(&number) {
            *slot = what.clone();
        }
        what
    }

    pub(crate) fn close(&self, number: u64) {
        self.lock().open.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_keep_their_kind() {
        let all = [Handle::Device(OpenId((1 << 62) - 1)), Handle::Text(0), Handle::Folder(9)];
        for handle in all {
            assert_eq!(Handle::decode(handle.encode()), Some(handle));
        }
        assert_eq!(Handle::decode(3), None);
    }
}
