// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversions between bytes, sectors and pages.
use std::ops::Range;

use block::{PAGE, SECTOR_SIZE};

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = (PAGE / SECTOR_SIZE) as u64;

/// The pages that bytes `from..to` of the device touch.
pub(crate) fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    bytes.start / page..bytes.end.div_ceil(page)
}

/// An offset inside one request or folio, as an index into memory.
pub(crate) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("within one request or folio")
}
