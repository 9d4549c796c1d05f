// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of a device as the kernel takes them.
use block::{Limits, Sector};

use crate::abi::{
    BasicParams, DeviceParams, DiscardParams, MAX_IO_BYTES, PARAMS_BASIC, PARAMS_DISCARD, attribute,
};

/// Largest discard, and largest run of zeroes, sectors. Chosen: 1 GiB is one request of an engine.
const RANGE_SECTORS_MAX: u32 = 1 << 21;
/// Largest logical block that the driver takes: a page.
const LOGICAL_MAX: u32 = 4096;

/// Parameters of a device, made from its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params(pub(crate) DeviceParams);

/// The power of two of a size; of one that is no power, the next lower.
fn shift(bytes: u32) -> u8 {
    u8::try_from(bytes.max(1).ilog2()).expect("below 32")
}

impl Params {
    /// Those of a device with these limits.
    ///
    /// # Errors
    /// A sentence that says what the kernel can't have.
    pub fn new(limits: &Limits, read_only: bool) -> Result<Params, String> {
        let logical = limits.logical_block_bytes;
        if logical > LOGICAL_MAX {
            return Err(format!(
                "logical blocks of {logical} bytes: the kernel takes at most {LOGICAL_MAX}"
            ));
        }
        if limits.capacity == Sector::ZERO {
            return Err("it has no sectors".to_owned());
        }
        let physical = limits.physical_block_bytes.max(logical);
        let io_min = limits.io_min_bytes.max(physical);
        // No preferred size is 1 byte: a shift has no zero.
        let io_opt = if limits.io_opt_bytes >= io_min { limits.io_opt_bytes } else { 1 };
        let max_io = limits.max_io_bytes.clamp(LOGICAL_MAX, MAX_IO_BYTES) & !(LOGICAL_MAX - 1);
        let flag = |on: bool, flag| if on { flag } else { 0 };
        // Where nothing that was flushed is kept, a flush would mean nothing.
        let has_flush = limits.volatile_cache && limits.keeps;
        let attributes = flag(read_only, attribute::READ_ONLY)
            | flag(limits.rotational, attribute::ROTATIONAL)
            | flag(has_flush, attribute::VOLATILE_CACHE | attribute::FUA);
        let basic = BasicParams {
            attributes,
            logical_shift: shift(logical),
            physical_shift: shift(physical),
            io_opt_shift: shift(io_opt),
            io_min_shift: shift(io_min),
            max_sectors: max_io >> 9,
            chunk_sectors: 0,
            sectors: limits.capacity.0,
            virt_boundary_mask: 0,
        };
        let can_discard = limits.discard_granularity_bytes > 0;
        let discard = DiscardParams {
            alignment: 0,
            granularity: limits.discard_granularity_bytes.max(logical),
            max_discard_sectors: flag(can_discard, RANGE_SECTORS_MAX),
            max_write_zeroes_sectors: flag(limits.write_zeroes, RANGE_SECTORS_MAX),
            max_discard_segments: 1,
            reserved: 0,
        };
        let len = u32::try_from(size_of::<DeviceParams>()).expect("a small structure");
        let types = PARAMS_BASIC | PARAMS_DISCARD;
        Ok(Params(DeviceParams { len, types, basic, discard, pad: 0 }))
    }

    /// The same, with requests of at most `bytes`, a multiple of a page.
    #[must_use]
    pub fn with_max_io(mut self, bytes: u32) -> Params {
        let max = &mut self.0.basic.max_sectors;
        *max = (*max).min(bytes >> 9);
        self
    }

    /// Size of the device.
    pub fn capacity(&self) -> Sector {
        Sector(self.0.basic.sectors)
    }

    /// Bytes of a logical block.
    pub fn logical_block_bytes(&self) -> u32 {
        1 << self.0.basic.logical_shift.min(31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_parameters() {
        let limits = Limits {
            physical_block_bytes: 4096,
            io_min_bytes: 4096,
            io_opt_bytes: 98_304,
            max_io_bytes: 32 << 20,
            discard_granularity_bytes: 4096,
            write_zeroes: true,
            ..Limits::new(Sector(1000))
        };
        let params = Params::new(&limits, false).unwrap();
        let DeviceParams { basic, discard, types, len, .. } = params.0;
        assert_eq!((types, len as usize), (3, size_of::<DeviceParams>()));
        assert_eq!((basic.logical_shift, basic.physical_shift), (9, 12));
        assert_eq!((basic.io_min_shift, basic.io_opt_shift), (12, 16));
        assert_eq!((basic.max_sectors, basic.sectors), (2048, 1000));
        assert_eq!(basic.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!(discard.granularity, 4096);
        assert_eq!(discard.max_discard_sectors, discard.max_write_zeroes_sectors);
        assert_eq!((params.capacity(), params.logical_block_bytes()), (Sector(1000), 512));
        assert_eq!(params.with_max_io(1 << 18).0.basic.max_sectors, 512);
        assert_eq!(params.with_max_io(1 << 24).0.basic.max_sectors, 2048);
    }

    #[test]
    fn a_device_that_keeps_nothing_has_no_flush() {
        let limits = Limits { keeps: false, rotational: true, ..Limits::new(Sector(8)) };
        let params = Params::new(&limits, true).unwrap();
        assert_eq!(params.0.basic.attributes, attribute::READ_ONLY | attribute::ROTATIONAL);
        assert_eq!((params.0.basic.io_opt_shift, params.0.discard.max_discard_sectors), (0, 0));
        assert_eq!(params.0.discard.granularity, 512, "the driver refuses zero");
    }

    #[test]
    fn what_the_kernel_can_not_have_is_said() {
        let large = Limits { logical_block_bytes: 65_536, ..Limits::new(Sector(1024)) };
        assert!(Params::new(&large, false).unwrap_err().contains("65536 bytes"));
        assert!(Params::new(&Limits::new(Sector::ZERO), false).unwrap_err().contains("no sectors"));
    }
}
