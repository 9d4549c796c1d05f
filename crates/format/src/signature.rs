// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of our formats begins at a sector, by its magic alone: what overwrites a device by itself
//! looks for all of them first, those of versions that it does not know included.

use crate::Gone;

/// A format that begins with a magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// A superblock of the native write cache.
    WriteCache,
    /// The superblock of the kernel's write cache.
    KernelWriteCache,
    /// What only an earlier version could open.
    Gone(Gone),
    /// A slot of the guard of an origin.
    Guard,
}

impl Signature {
    /// What begins with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Signature> {
        if let Some(gone) = Gone::of(bytes) {
            Some(Signature::Gone(gone))
        } else if bytes.starts_with(&crate::superblock::MAGIC) {
            Some(Signature::WriteCache)
        } else if crate::dm::has_magic(bytes) {
            Some(Signature::KernelWriteCache)
        } else if crate::GuardSlot::owner(bytes).is_some() {
            Some(Signature::Guard)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_known_by_its_first_bytes() {
        let of = |bytes: &[u8]| {
            let mut sector = [0; 512];
            sector[..bytes.len()].copy_from_slice(bytes);
            Signature::of(&sector)
        };
        assert_eq!(of(b"MPWCSUPR"), Some(Signature::WriteCache));
        assert_eq!(of(&[0x21, 0x93, 0x48, 0x23]), Some(Signature::KernelWriteCache));
        assert_eq!(of(b"MPZRSUPR"), Some(Signature::Gone(Gone::PersistentZram)));
        assert_eq!(of(b"MPWCSUPR\x02"), Some(Signature::Gone(Gone::DividedCache)));
        assert_eq!(of(b"MPWCGRDO"), Some(Signature::Guard));
        assert_eq!(of(b"MPWCGONE"), None, "a replaced cache holds nothing");
        assert_eq!(of(&[]), None);
        assert_eq!(Signature::of(&[]), None);
    }
}
