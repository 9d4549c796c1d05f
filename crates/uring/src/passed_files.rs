// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that another process has opened and passed to this one, until this one opens them: the
//! opening then takes the description that was passed, with its lock or claim (UR-U12).
//!
//! And the lifeline: a descriptor that the rings of this process hold. The kernel lets go of it
//! when the last request of the last ring has ended, maybe after the end of the process.
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use block::{Error, ErrorKind};
use io_uring::IoUring;

use crate::file::identity_of_open;

/// The files by their identities.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassedFiles(Arc<Mutex<BTreeMap<String, OwnedFd>>>);

impl PassedFiles {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        // No panic under the lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a file.
    pub(crate) fn hold(&self, fd: OwnedFd) -> Result<(), Error> {
        let identity = identity_of_open(&fd);
        let identity = identity.map_err(|e| Error::io(format!("a file that was passed: {e}")))?;
        self.files().insert(identity, fd);
        Ok(())
    }

    /// The file of this identity, which is held no more.
    pub(crate) fn take(&self, identity: &str) -> Option<OwnedFd> {
        self.files().remove(identity)
    }

    /// Closes what is still held. Returns how many files that are.
    pub(crate) fn clear(&self) -> usize {
        std::mem::take(&mut *self.files()).len()
    }
}

static LIFELINE: OnceLock<OwnedFd> = OnceLock::new();

/// Has each ring that this process makes from now on hold `fd`: the other end of a pipe or socket
/// sees its end only when no request of this process is under way any more, though it was killed.
/// Only the first call in a process has an effect.
pub fn set_lifeline(fd: OwnedFd) {
    let _ = LIFELINE.set(fd);
}

/// Gives the lifeline to a ring, if there is one.
pub(crate) fn attach_lifeline(ring: &IoUring) -> Result<(), Error> {
    let Some(fd) = LIFELINE.get() else { return Ok(()) };
    ring.submitter().register_files(&[fd.as_raw_fd()]).map_err(|e| {
        let hint = "io_uring does not hold the socket to the daemon before";
        Error::new(ErrorKind::NotSupported, hint).because(e)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{OpenOptions, Uring};

    /// UR-U12.
    #[test]
    fn a_file_that_was_passed_is_opened_with_its_lock() {
        let path = std::env::temp_dir().join(format!("millpond-passed-{}", std::process::id()));
        fs::write(&path, [0; 4096]).unwrap();
        let [old, new, other] = [(); 3].map(|()| Uring::new().unwrap().files());
        let open = |files: &crate::Files| files.open_path(&path, OpenOptions::default());
        let first = open(&old).unwrap();
        assert_eq!(open(&new).unwrap_err().kind(), ErrorKind::Busy);
        new.hold(old.copy_of_file(first.file).unwrap()).unwrap();
        let second = open(&new).unwrap();
        assert_eq!(second.in_page_cache, first.in_page_cache);
        assert_eq!(second.limits.capacity, first.limits.capacity);
        assert_eq!(new.end_holding(), 0, "it was taken");
        old.close(first.file);
        crate::wait_for_closes(std::time::Duration::from_secs(10));
        assert_eq!(open(&other).unwrap_err().kind(), ErrorKind::Busy, "the lock went with it");
        new.close(second.file);
        // A process that another test starts has all descriptors until it is another program.
        let tries = (0..2000).find_map(|_| {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
            open(&other).ok()
        });
        tries.expect("the lock falls with the last descriptor");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_nobody_opens_is_closed_in_the_end() {
        let path = std::env::temp_dir().join(format!("millpond-passed2-{}", std::process::id()));
        fs::write(&path, [0; 4096]).unwrap();
        let files = Uring::new().unwrap().files();
        files.hold(fs::File::open(&path).unwrap().into()).unwrap();
        assert_eq!((files.end_holding(), files.end_holding()), (1, 0));
        fs::remove_file(&path).unwrap();
    }
}
