// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients of doors may do with a device: the attributes `ro` and `doors`.
//!
//! Doors ask here when a client connects or opens, and before each write. Devices above are no
//! clients: a table may write to a device that is read-only at every door.
use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::Error;

/// Which doors show a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doors {
    nbd: bool,
    fuse: bool,
    vhost_user: bool,
    ublk: bool,
}

impl Default for Doors {
    /// All that the program serves.
    fn default() -> Doors {
        Doors::of(true, true, true, true)
    }
}

impl Doors {
    /// NBD, FUSE, vhost-user and ublk, or those of them that are true.
    pub const fn of(nbd: bool, fuse: bool, vhost_user: bool, ublk: bool) -> Doors {
        Doors { nbd, fuse, vhost_user, ublk }
    }

    /// Words that mean one, in the order in which the attribute shows them.
    const WORDS: [(&'static str, Doors); 16] = [
        ("all", Doors::of(true, true, true, true)),
        ("nbd", Doors::of(true, false, false, false)),
        ("fuse", Doors::of(false, true, false, false)),
        ("vhost-user", Doors::of(false, false, true, false)),
        ("ublk", Doors::of(false, false, false, true)),
        ("nbd,fuse", Doors::of(true, true, false, false)),
        ("nbd,vhost-user", Doors::of(true, false, true, false)),
        ("nbd,ublk", Doors::of(true, false, false, true)),
        ("fuse,vhost-user", Doors::of(false, true, true, false)),
        ("fuse,ublk", Doors::of(false, true, false, true)),
        ("vhost-user,ublk", Doors::of(false, false, true, true)),
        ("nbd,fuse,vhost-user", Doors::of(true, true, true, false)),
        ("nbd,fuse,ublk", Doors::of(true, true, false, true)),
        ("nbd,vhost-user,ublk", Doors::of(true, false, true, true)),
        ("fuse,vhost-user,ublk", Doors::of(false, true, true, true)),
        ("none", Doors::of(false, false, false, false)),
    ];

    /// The words alone.
    pub(crate) const NAMES: [&'static str; 16] = {
        let mut names = [""; 16];
        let mut n = 0;
        while n < names.len() {
            names[n] = Doors::WORDS[n].0;
            n += 1;
        }
        names
    };

    /// Whether NBD has it as an export.
    pub fn has_nbd(self) -> bool {
        self.nbd
    }

    /// Whether FUSE has it as a file.
    pub fn has_fuse(self) -> bool {
        self.fuse
    }

    /// Whether vhost-user has a socket for it.
    pub fn has_vhost_user(self) -> bool {
        self.vhost_user
    }

    /// Whether it is a block device of the kernel, where the daemon makes those.
    pub fn has_ublk(self) -> bool {
        self.ublk
    }

    /// All words, the one in force in brackets, as sysfs shows a choice.
    pub(crate) fn choice(self) -> String {
        let word = |(word, doors): (&str, Doors)| {
            if doors == self { format!("[{word}]") } else { word.to_owned() }
        };
        Doors::WORDS.map(word).join(" ")
    }
}

impl FromStr for Doors {
    type Err = Error;

    fn from_str(word: &str) -> Result<Doors, Error> {
        let word = block::value::choice("doors", word.trim(), &Doors::NAMES)?;
        let found = Doors::WORDS.iter().find(|(w, _)| *w == word);
        Ok(found.expect("one of these words").1)
    }
}

impl fmt::Display for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Doors::WORDS.iter().find(|(_, doors)| doors == self);
        f.write_str(word.expect("each has its word").0)
    }
}

/// Whether clients of doors may write to a device. Clones are the same one; a door may ask on any
/// thread.
#[derive(Clone, Debug, Default)]
pub struct ReadOnly(Arc<ReadOnlyCauses>);

#[derive(Debug, Default)]
struct ReadOnlyCauses {
    /// The attribute `ro`.
    by_operator: AtomicBool,
    /// The live table is stale: it takes no writes.
    by_table: AtomicBool,
}

impl ReadOnly {
    /// Whether writes are refused.
    pub fn get(&self) -> bool {
        // It orders nothing else: a write that runs beside the change may come before or after it.
        self.by_operator() || self.by_table()
    }

    /// Whether the attribute `ro` was set.
    pub fn by_operator(&self) -> bool {
        self.0.by_operator.load(Ordering::Relaxed)
    }

    pub(crate) fn by_table(&self) -> bool {
        self.0.by_table.load(Ordering::Relaxed)
    }

    pub(crate) fn set_by_table(&self, read_only: bool) {
        self.0.by_table.store(read_only, Ordering::Relaxed);
    }

    fn set(&self, read_only: bool) {
        self.0.by_operator.store(read_only, Ordering::Relaxed);
    }
}

/// The rights of clients at one device.
#[derive(Debug, Default)]
pub(crate) struct ClientRights {
    read_only: ReadOnly,
    doors: Cell<Doors>,
}

impl ClientRights {
    pub(crate) fn read_only(&self) -> &ReadOnly {
        &self.read_only
    }

    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.set(read_only);
    }

    pub(crate) fn doors(&self) -> Doors {
        self.doors.get()
    }

    pub(crate) fn set_doors(&self, doors: Doors) {
        self.doors.set(doors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_doors_has_its_word() {
        for bits in 0..16 {
            let has = |bit: u32| bits & bit != 0;
            let doors = Doors::of(has(1), has(2), has(4), has(8));
            assert_eq!(doors.to_string().parse::<Doors>().unwrap(), doors);
        }
        assert!(Doors::default().choice().starts_with("[all] nbd fuse vhost-user ublk nbd,fuse "));
        assert!("nfs".parse::<Doors>().is_err());
    }
}
