// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Columns of numbers in as many bits as their values need.
//!
//! ```text
//! column:  │ least value, varint │ shift │ width │ (value - least) >> shift, `width` bits each … │
//! ```
//!
//! Blocks of a file system begin at multiples of their size, and neighbours lie in few segments: so
//! an extent takes 7 bytes and not 24, 4 of which are its checksum. Those have no pattern, and are
//! stored as they are: an object has 4 bytes for each extent at least (FM-OV1).

use super::ObjectDamage;
use super::checkpoint::CheckpointExtent;

/// Extents of a block, the columns of which have widths of their own. Chosen: what the head of a
/// column takes, 4 bytes, is little beside its values, and one large value widens few others.
const BLOCK: usize = 256;
/// Columns beside the checksum: gap, sectors, segment, at, skip, whole.
const COLUMNS: usize = 6;
/// Bytes of an extent at least.
const CRC_BYTES: usize = 4;

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(bytes)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn pack(values: &[u64], out: &mut Vec<u8>) {
    let least = values.iter().copied().min().unwrap_or(0);
    let all = values.iter().fold(0, |all, value| all | (value - least));
    let shift = if all == 0 { 0 } else { all.trailing_zeros() };
    let width = u64::BITS - (all >> shift).leading_zeros();
    push_varint(least, out);
    out.extend([shift, width].map(|n| n.to_le_bytes()[0]));
    let (mut held, mut bits) = (0u128, 0);
    for value in values {
        held |= u128::from((value - least) >> shift) << bits;
        bits += width;
        while bits >= 8 {
            out.push(held.to_le_bytes()[0]);
            held >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(held.to_le_bytes()[0]);
    }
}

/// Fills `values`; `None` if the bytes are no column of so many.
fn unpack(bytes: &mut &[u8], values: &mut [u64]) -> Option<()> {
    let least = take_varint(bytes)?;
    let shift = u32::from(take_byte(bytes)?);
    let width = u32::from(take_byte(bytes)?);
    if shift + width > u64::BITS {
        return None;
    }
    if width == 0 {
        values.fill(least);
        return Some(());
    }
    let mask = u64::MAX >> (u64::BITS - width);
    let (mut held, mut bits) = (0u128, 0);
    for value in values {
        while bits < width {
            held |= u128::from(take_byte(bytes)?) << bits;
            bits += 8;
        }
        let low = u64::from_le_bytes(held.to_le_bytes()[..8].try_into().ok()?);
        *value = least.checked_add((low & mask) << shift)?;
        held >>= width;
        bits -= width;
    }
    Some(())
}

/// The packed bytes of ascending extents.
pub(super) fn pack_extents(extents: &[CheckpointExtent], out: &mut Vec<u8>) {
    let mut end = 0;
    for block in extents.chunks(BLOCK) {
        let mut columns = [[0; BLOCK]; COLUMNS];
        for (nth, extent) in block.iter().enumerate() {
            let CheckpointExtent { start, sectors, segment, at, skip, whole, .. } = *extent;
            let gap = start - end;
            end = start + u64::from(sectors);
            let small = [sectors, at, skip, whole].map(u64::from);
            let [sectors, at, skip, whole] = small;
            let row = [gap, sectors, u64::from(segment), at, skip, whole];
            for (column, value) in columns.iter_mut().zip(row) {
                column[nth] = value;
            }
        }
        for column in &columns {
            pack(&column[..block.len()], out);
        }
        for extent in block {
            out.extend(extent.crc.to_le_bytes());
        }
    }
}

/// So many extents, which are all of the bytes.
pub(super) fn unpack_extents(
    bytes: &[u8],
    count: u64,
) -> Result<Vec<CheckpointExtent>, ObjectDamage> {
    let wrong = ObjectDamage::Field("extents");
    let count = usize::try_from(count).map_err(|_| wrong)?;
    if count > bytes.len() / CRC_BYTES {
        return Err(wrong); // FM-OV1
    }
    let mut extents = Vec::with_capacity(count);
    let (mut rest, mut end) = (bytes, 0);
    while extents.len() < count {
        let here = BLOCK.min(count - extents.len());
        unpack_block(&mut rest, here, &mut end, &mut extents).ok_or(wrong)?;
    }
    // FM-OV2: there are other bytes that unpack to the same.
    let mut again = Vec::with_capacity(bytes.len());
    pack_extents(&extents, &mut again);
    if again == bytes { Ok(extents) } else { Err(wrong) }
}

fn unpack_block(
    rest: &mut &[u8],
    count: usize,
    end: &mut u64,
    extents: &mut Vec<CheckpointExtent>,
) -> Option<()> {
    let mut columns = [[0; BLOCK]; COLUMNS];
    for column in &mut columns {
        unpack(rest, &mut column[..count])?;
    }
    let (crcs, behind) = rest.split_at_checked(count * CRC_BYTES)?;
    *rest = behind;
    let narrow = |n: u64| u16::try_from(n).ok();
    for (nth, crc) in crcs.chunks_exact(CRC_BYTES).enumerate() {
        let [gap, sectors, segment, at, skip, whole] = columns.map(|column| column[nth]);
        let start = end.checked_add(gap)?;
        *end = start.checked_add(sectors)?;
        extents.push(CheckpointExtent {
            start,
            sectors: narrow(sectors)?,
            segment: u32::try_from(segment).ok()?,
            at: narrow(at)?,
            skip: narrow(skip)?,
            whole: narrow(whole)?,
            crc: u32::from_le_bytes(crc.try_into().ok()?),
        });
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_column_has_the_bytes_of_the_format_page() {
        let mut out = Vec::new();
        pack(&[300, 308, 332], &mut out);
        // 300 as a varint; multiples of 8; 3 bits each: 0, 1, 4.
        assert_eq!(out, [0xac, 2, 3, 3, 0b0000_1000, 1]);
        out.clear();
        pack(&[7; 9], &mut out);
        assert_eq!(out, [7, 0, 0]);
    }

    proptest! {
        #[test]
        fn a_column_is_read_back(
            values in proptest::collection::vec(any::<u64>(), 1..40), bits in 0u32..64
        ) {
            let values: Vec<u64> = values.into_iter().map(|value| value >> bits).collect();
            let mut out = Vec::new();
            pack(&values, &mut out);
            let (mut rest, mut found) = (&out[..], vec![0; values.len()]);
            prop_assert_eq!(unpack(&mut rest, &mut found), Some(()));
            prop_assert_eq!((rest.len(), found), (0, values));
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0u64..80
        ) {
            let _ = unpack_extents(&bytes, count);
        }
    }
}
