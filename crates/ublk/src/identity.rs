// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sign that a device of ours carries in the kernel, so that the next daemon finds it.
//!
//! ```text
//!   bits 63..48  "mp"    47..24  hash of the run directory    23..0  hash of the device's name
//! ```
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The letters "mp".
const SIGN: u64 = 0x6d70;
const HASH_BITS: u32 = 24;
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;

/// Who made a device, and what it was called then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64);

/// FNV-1a: the same on each machine and in each version.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let full = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    (full ^ (full >> HASH_BITS) ^ (full >> (2 * HASH_BITS))) & HASH_MASK
}

impl Identity {
    /// That of the device `name` of the daemon with this run directory, absolute.
    pub fn new(run_dir: &Path, name: &str) -> Identity {
        let dir: &OsStr = run_dir.as_os_str();
        Identity(SIGN << 48 | hash(dir.as_bytes()) << HASH_BITS | hash(name.as_bytes()))
    }

    /// What the kernel keeps; `None` for a device of another program.
    pub fn of_flags(flags: u64) -> Option<Identity> {
        (flags >> 48 == SIGN).then_some(Identity(flags))
    }

    /// For the kernel.
    pub fn flags(self) -> u64 {
        self.0
    }

    /// Whether it was made by a daemon of the same run directory as `other`.
    pub fn has_run_dir_of(self, other: Identity) -> bool {
        self.0 >> HASH_BITS == other.0 >> HASH_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_run_directories_differ() {
        let at = |dir: &str, name| Identity::new(Path::new(dir), name);
        let a = at("/run/millpond", "a");
        assert_eq!(Identity::of_flags(a.flags()), Some(a));
        assert_eq!(Identity::of_flags(a.flags() & !(0xffff << 48)), None);
        assert_eq!(Identity::of_flags(0), None);
        assert!(a != at("/run/millpond", "b") && a.has_run_dir_of(at("/run/millpond", "b")));
        assert!(!a.has_run_dir_of(at("/run/other", "a")));
        // The kernel keeps it while programs change: so its value may not.
        assert_eq!(a.flags() >> 48, 0x6d70);
        assert_eq!(a.flags(), at("/run/millpond", "a").flags());
    }
}
