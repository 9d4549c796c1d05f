// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks of the simulated disks, as the kernel has them: of open file descriptions. A lock falls
//! with the last descriptor of its description, in whichever process that is, or on its way to one.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::Error;

/// An open file description with its lock. Clones of the `Rc` are its descriptors.
#[derive(Debug)]
pub(super) struct LockedFile {
    pub(super) name: String,
}

/// The locks of a machine.
#[derive(Default)]
pub(super) struct Locks(RefCell<BTreeMap<String, Weak<LockedFile>>>);

impl Locks {
    pub(super) fn is_free(&self, name: &str) -> bool {
        let all = self.0.borrow();
        all.get(name).is_none_or(|file| file.strong_count() == 0)
    }

    /// Opens a file, with its lock.
    pub(super) fn open(&self, name: &str) -> Result<Rc<LockedFile>, Error> {
        if !self.is_free(name) {
            return Err(Error::busy(format!("{name}: another process has it")));
        }
        let file = Rc::new(LockedFile { name: name.to_owned() });
        self.0.borrow_mut().insert(name.to_owned(), Rc::downgrade(&file));
        Ok(file)
    }
}
