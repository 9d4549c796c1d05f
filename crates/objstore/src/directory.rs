// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store that is a directory: what the library does not do for its durability.
//!
//! The library writes an object to a file of another name, syncs that, links it to its name and
//! syncs the directory. When the link is there and the last step has not come (an error, a kill), a
//! repetition finds the name taken, and syncs nothing.
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::without_errno;
use objvol::StoreError;

const EIO: i32 = 5;

/// A directory, and whether a sync in it has failed. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    is_broken: Arc<AtomicBool>,
}

impl Directory {
    pub(crate) fn new(path: &Path) -> Directory {
        Directory { path: path.to_owned(), is_broken: Arc::default() }
    }

    /// `Denied` after a failed sync (OC-C3): the system reports a failure once, and forgets.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if !self.is_broken.load(Ordering::Relaxed) {
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
        if errno == Some(EIO) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    /// Syncs an object that is there, and all directories from its own to the store's (OC-C3).
    pub(crate) async fn sync(&self, name: &str) -> Result<(), StoreError> {
        let (of, object) = (self.clone(), self.path.join(name));
        let synced = tokio::task::spawn_blocking(move || of.sync_now(&object)).await;
        match synced {
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

    fn sync_now(&self, object: &Path) -> io::Result<()> {
        let above = object.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.path));
        std::iter::once(object).chain(above).try_for_each(|path| File::open(path)?.sync_all())
    }
}
