// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store that is a directory: what the library does not do for its durability.
//!
//! The library writes an object to a file of another name, syncs that, links it to its name and
//! syncs the directory. When the link is there and the last step has not come (an error, a kill), a
//! repetition finds the name taken, and syncs nothing. Directories above are synced by the request
//! that makes them alone: another one beside it, or after a kill, finds them and syncs nothing.
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::without_errno;
use objvol::StoreError;

const EIO: i32 = 5;
/// Directories that are remembered as synced. Chosen: more than the kinds of objects of a volume
/// in a few epochs; beyond that all are synced once more.
const SYNCED_MAX: usize = 64;

/// Directories in which a sync has failed, by their places, for each client of this process
/// (OC-C3).
static BROKEN: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());
/// So many are remembered; with more of them no directory takes an object.
const BROKEN_MAX: usize = 1024;

fn broken() -> MutexGuard<'static, BTreeSet<Arc<str>>> {
    BROKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory, and what was synced in it. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    place: Arc<str>,
    /// Directories of objects that all above were synced of.
    synced: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Directory {
    pub(crate) fn new(path: &Path, place: &Arc<str>) -> Directory {
        Directory { path: path.to_owned(), place: place.clone(), synced: Arc::default() }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// `Denied` after a failed sync (OC-C3): the system reports a failure once, and forgets.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let broken = broken();
        if !broken.contains(&self.place) && broken.len() < BROKEN_MAX {
            return Ok(());
        }
        Err(StoreError::Denied(
            "a file or directory could not be synced (EIO): what was written there may be lost. \
             Nothing more is written before the daemon is started again"
                .into(),
        ))
    }

    /// An operation failed with this number of the system.
    pub(crate) fn note_failure(&self, errno: Option<i32>) {
        let mut broken = broken();
        if errno == Some(EIO) && broken.len() < BROKEN_MAX {
            broken.insert(self.place.clone());
        }
    }

    /// Syncs an object that is there, and all directories from its own to the store's (OC-C3).
    pub(crate) async fn sync(&self, name: &str) -> Result<(), StoreError> {
        let object = self.path.join(name);
        self.sync_all(self.with_above(&object)).await
    }

    /// Syncs the directories above that of an object which the library has created (OC-C3).
    ///
    /// Cost: nothing from the second object of a directory on.
    pub(crate) async fn sync_above(&self, name: &str) -> Result<(), StoreError> {
        let object = self.path.join(name);
        let Some(own) = object.parent().filter(|own| *own != self.path) else { return Ok(()) };
        let synced = || self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if synced().contains(own) {
            return Ok(());
        }
        self.sync_all(self.with_above(own).split_off(1)).await?;
        let mut synced = synced();
        if synced.len() >= SYNCED_MAX {
            synced.clear();
        }
        synced.insert(own.to_owned());
        Ok(())
    }

    /// A path and all directories above it up to the store's.
    fn with_above(&self, path: &Path) -> Vec<PathBuf> {
        let all = path.ancestors().take_while(|above| above.starts_with(&self.path));
        all.map(Path::to_owned).collect()
    }

    async fn sync_all(&self, paths: Vec<PathBuf>) -> Result<(), StoreError> {
        let sync = move || paths.iter().try_for_each(|path| File::open(path)?.sync_all());
        match tokio::task::spawn_blocking(sync).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => Ok(()), // deleted meanwhile
            Ok(Err(e)) => {
                self.note_failure(e.raw_os_error());
                self.check()?;
                Err(StoreError::Denied(format!("sync: {}", without_errno(e))))
            }
            Err(_) => Err(StoreError::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that was loaded again, or a device that was made anew, had a client that knew
    /// nothing of the failure, and acknowledged what the system had already dropped.
    #[test]
    fn a_failed_sync_counts_for_each_client_of_the_process() {
        const ENOSPC: i32 = 28;
        let client = |place: &str| Directory::new(Path::new("/srv"), &place.into());
        client("first").note_failure(Some(EIO));
        client("second").note_failure(Some(ENOSPC));
        assert!(matches!(client("first").check(), Err(StoreError::Denied(_))));
        assert_eq!(client("second").check(), Ok(()));
    }
}
