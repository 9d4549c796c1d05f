// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles of open files: the number contains the kind, so the data path needs no table.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::OpenId;
use crate::inode::Node;

/// An open file. The two lowest bits are the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handle {
    Device(OpenId),
    /// An attribute, by its number in [`OpenTable`].
    Text(u64),
    /// A folder, by its number in [`OpenTable`].
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

/// An entry of a folder, from the time at which its reader started.
#[derive(Clone, Debug)]
pub(crate) struct DirEntry {
    pub(crate) node: Node,
    pub(crate) folder: bool,
    pub(crate) name: String,
}

/// The contents of open attributes and folders: consistent until the reader starts again at offset
/// 0.
#[derive(Debug)]
pub(crate) struct OpenTable<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    next: u64,
    open: BTreeMap<u64, Arc<T>>,
}

impl<T> OpenTable<T> {
    pub(crate) fn new() -> OpenTable<T> {
        OpenTable(Mutex::new(Table { next: 0, open: BTreeMap::new() }))
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
