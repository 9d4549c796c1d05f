// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Address: where on the backing device a page is, and what it must look like there.
//!
//! ```text
//!   raw      block of the region 32 │ checksum of the page                     32
//!   packed   block of the region 32 │ byte in the block 12 │ check of the object 20
//! ```

const OFFSET_BITS: u32 = 12;
const CHECK_BITS: u32 = 20;

/// Where a page that was written back lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// Of a page that has a block to itself.
    pub(crate) fn raw(block: u32, check: u32) -> Address {
        Address(u64::from(block) << 32 | u64::from(check))
    }

    /// Of an object that begins at byte `offset` of `block`; `check` has 20 bits.
    pub(crate) fn packed(block: u32, offset: usize, check: u32) -> Address {
        assert!(offset < 1 << OFFSET_BITS, "offset {offset} in a block");
        assert!(check < 1 << CHECK_BITS, "check {check:#x}");
        Address(u64::from(block) << 32 | (offset as u64) << CHECK_BITS | u64::from(check))
    }

    pub(crate) fn block(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The checksum of a raw page.
    pub(crate) fn page_check(self) -> u32 {
        self.0 as u32
    }

    /// Where in its block a packed object begins.
    pub(crate) fn offset(self) -> usize {
        (self.0 as u32 >> CHECK_BITS) as usize
    }

    /// The check of a packed object.
    pub(crate) fn object_check(self) -> u32 {
        self.0 as u32 & ((1 << CHECK_BITS) - 1)
    }
}

block::debug_as!(Address, s => "Address({} {:#010x})", s.block(), s.0 as u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gives_back_what_it_was_made_of() {
        let raw = Address::raw(u32::MAX - 1, 0x89ab_cdef);
        assert_eq!((raw.block(), raw.page_check()), (u32::MAX - 1, 0x89ab_cdef));
        let packed = Address::packed(7, 4088, 0xf_fffe);
        assert_eq!((packed.block(), packed.offset()), (7, 4088));
        assert_eq!(packed.object_check(), 0xf_fffe);
    }
}
