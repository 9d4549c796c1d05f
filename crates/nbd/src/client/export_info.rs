// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The information of a server about its export, and the limits of the device that follow from it.
use block::{Limits, Sector};

use crate::wire::{ExportFlags, REQUEST_BYTES_MAX};

/// Largest block that a device of ours may have.
const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// The negotiated properties of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size of the export, bytes.
    pub size: u64,
    /// Its flags.
    pub flags: ExportFlags,
    /// Smallest, preferred and largest request, if the server has sent them.
    pub block: Option<[u32; 3]>,
    /// Whether reads are answered in chunks.
    pub structured: bool,
}

impl ExportInfo {
    /// The device's limits.
    ///
    /// # Errors
    /// Why the export can't be served.
    pub fn limits(&self) -> Result<Limits, String> {
        // The protocol's defaults for a client without this information.
        let [min, preferred, max] = self.block.unwrap_or([512, 4096, REQUEST_BYTES_MAX]);
        if !min.is_power_of_two() || min > BLOCK_BYTES_MAX {
            let allowed = format!("a power of two up to {BLOCK_BYTES_MAX} is allowed");
            return Err(format!("its smallest request is {min} bytes: {allowed}"));
        }
        let block = min.max(512);
        let max = max.min(REQUEST_BYTES_MAX) & !(block - 1);
        if max == 0 {
            return Err(format!("its largest request is smaller than a block of {block} bytes"));
        }
        let capacity = Sector::from_bytes(self.size & !u64::from(block - 1));
        if capacity == Sector::ZERO {
            return Err(format!("its size is {} bytes: nothing to use", self.size));
        }
        let preferred = preferred.clamp(block, max) & !(block - 1);
        let writable = self.is_writable();
        let can = |flag| writable && self.flags.contains(flag);
        Ok(Limits {
            logical_block_bytes: block,
            physical_block_bytes: block.max(preferred.min(4096)),
            io_min_bytes: block.max(preferred.min(4096)),
            io_opt_bytes: if preferred > 4096 { preferred } else { 0 },
            max_io_bytes: max,
            discard_granularity_bytes: if can(ExportFlags::TRIM) { block } else { 0 },
            write_zeroes: can(ExportFlags::WRITE_ZEROES),
            volatile_cache: self.flags.contains(ExportFlags::FLUSH),
            // As our server reports it: a device that keeps no data has no flush.
            keeps: self.flags.contains(ExportFlags::FLUSH),
            // A server may still do what a client sent that has died since.
            survives_kill: false,
            flushed_survives_kill: false,
            rotational: self.flags.contains(ExportFlags::ROTATIONAL),
            ..Limits::new(capacity)
        })
    }

    /// Whether it takes writes.
    pub fn is_writable(&self) -> bool {
        !self.flags.contains(ExportFlags::READ_ONLY)
    }

    /// What is different in `other` that a device in use can't survive.
    pub(crate) fn difference(&self, other: &ExportInfo) -> Option<String> {
        if self.size != other.size {
            return Some(format!("its size was {} bytes and is {}", self.size, other.size));
        }
        // Flags that concern only the form of replies do not matter.
        let mut of_none = ExportFlags::DF | ExportFlags::CAN_MULTI_CONN | ExportFlags::FAST_ZERO;
        // Nor do those of changes, where there are none.
        if !(self.is_writable() && other.is_writable()) {
            of_none |= ExportFlags::READ_ONLY | ExportFlags::FUA;
            of_none |= ExportFlags::TRIM | ExportFlags::WRITE_ZEROES;
        }
        let (was, is) = (self.flags - of_none, other.flags - of_none);
        if was != is {
            return Some(format!("its flags were {was:?} and are {is:?}"));
        }
        let sizes = |export_info: &ExportInfo| export_info.block.map(|[min, _, max]| (min, max));
        if sizes(self) != sizes(other) {
            let (was, is) = (self.block, other.block);
            return Some(format!("its request sizes were {was:?} and are {is:?}"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export_info(size: u64, flags: ExportFlags, block: Option<[u32; 3]>) -> ExportInfo {
        ExportInfo { size, flags: ExportFlags::HAS_FLAGS | flags, block, structured: true }
    }

    #[test]
    fn flags_and_sizes_become_limits() {
        let all = ExportFlags::FLUSH | ExportFlags::TRIM | ExportFlags::WRITE_ZEROES;
        let limits = export_info(1 << 20, all | ExportFlags::ROTATIONAL, None).limits().unwrap();
        assert_eq!(limits.capacity, Sector(2048));
        assert_eq!((limits.logical_block_bytes, limits.max_io_bytes), (512, 32 << 20));
        assert!(limits.rotational && limits.write_zeroes && limits.volatile_cache && limits.keeps);
        assert_eq!(limits.discard_granularity_bytes, 512);
        let read_only = export_info(1 << 20, all | ExportFlags::READ_ONLY, None).limits().unwrap();
        assert!(!read_only.write_zeroes && read_only.discard_granularity_bytes == 0);
        let odd = export_info(10_000, ExportFlags::empty(), Some([4096, 65536, u32::MAX])).limits();
        let odd = odd.unwrap();
        assert_eq!((odd.capacity, odd.io_opt_bytes), (Sector(16), 65536));
        assert!(!odd.keeps && !odd.volatile_cache);
        // One that takes any byte.
        let bytes =
            export_info(4096, ExportFlags::empty(), Some([1, 1, 1 << 20])).limits().unwrap();
        assert_eq!((bytes.logical_block_bytes, bytes.io_min_bytes), (512, 512));
    }

    #[test]
    fn an_export_that_becomes_read_only_is_the_same_one() {
        let of_changes = ExportFlags::TRIM | ExportFlags::WRITE_ZEROES | ExportFlags::FUA;
        let writable = export_info(1 << 20, ExportFlags::FLUSH | of_changes, None);
        let read_only = export_info(1 << 20, ExportFlags::FLUSH | ExportFlags::READ_ONLY, None);
        assert_eq!(writable.difference(&read_only), None);
        assert_eq!(read_only.difference(&writable), None);
        let without_trim = export_info(1 << 20, writable.flags - ExportFlags::TRIM, None);
        assert!(writable.difference(&without_trim).is_some());
        let without_flush = export_info(1 << 20, ExportFlags::READ_ONLY, None);
        assert!(writable.difference(&without_flush).is_some());
        let longer = export_info(2 << 20, read_only.flags, None);
        assert!(writable.difference(&longer).is_some());
    }

    #[test]
    fn terms_that_make_no_device_are_refused() {
        for (size, block) in [
            (511, None),
            (1 << 20, Some([0, 4096, 4096])),
            (1 << 20, Some([3000, 4096, 4096])),
            (1 << 20, Some([1 << 31, 4096, 4096])),
            (1 << 20, Some([4096, 4096, 512])),
            (1 << 20, Some([512, 512, 0])),
        ] {
            assert!(
                export_info(size, ExportFlags::empty(), block).limits().is_err(),
                "{size} {block:?}"
            );
        }
        // The largest number there is has no overflow.
        assert!(export_info(u64::MAX, ExportFlags::empty(), None).limits().is_ok());
    }
}
