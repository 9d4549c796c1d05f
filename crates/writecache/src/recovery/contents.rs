// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device holds that is no cache, as far as its first 4 KiB say: for a message.

/// A signature: its offset, its bytes, and what has it. The first that matches counts: a partition
/// table may lie before a file system.
const SIGNATURES: [(usize, &[u8], &str); 8] = [
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (536, b"LVM2 001", "a volume of LVM"),
    (3, b"NTFS    ", "an NTFS file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"EFI PART", "a partition table"),
    (510, &[0x55, 0xaa], "a boot sector or a partition table"),
];

/// What `head`, the first bytes of a device, is the beginning of.
pub(crate) fn contents_of(head: &[u8]) -> Option<&'static str> {
    let is_there = |at: usize, bytes: &[u8]| head.get(at..at + bytes.len()) == Some(bytes);
    SIGNATURES.iter().find(|(at, bytes, _)| is_there(*at, bytes)).map(|(.., what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_known_and_others_are_not() {
        for (at, bytes, what) in SIGNATURES {
            let mut head = vec![0; 4096];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(contents_of(&head), Some(what));
        }
        assert_eq!(contents_of(&[0; 4096]), None);
        assert_eq!(contents_of(&[7; 100]), None);
    }
}
