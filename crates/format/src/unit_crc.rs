// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CRC-32C of 4096 bytes on a CPU of x86 with AVX and without AVX-512, where the library has code
//! for SSE only: 800 instructions instead of 1880, 77 ns instead of 170 (an AMD EPYC, 2026-11-27,
//! on which the library's code for AVX-512 takes 64 ns).
//!
//! ```text
//!   0                        1216       2128       3040       3952   4096
//!   │ 19 × 64: four lanes,   │ 19 × 48: │ 19 × 48: │ 19 × 48: │ rest │
//!   │ carry-less products    │ CRC      │ CRC      │ CRC      │      │
//!   └─────── moved on to the rest, added to its first word ───▶│ CRC  │
//! ```
//!
//! The products and the CPU's CRC instruction run in different units of the CPU, at the same time
//! (Peter Cawley, "Faster CRC32-C on x86").
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
    _mm_set_epi64x, _mm_unpackhi_epi64, _mm_xor_si128,
};
use std::sync::LazyLock;

use crate::UNIT;

const LANES: usize = 4;
const STREAMS: usize = 3;
/// Words of each stream for 64 bytes of the lanes: measured, 3 to 7 take 114, 97, 85, 77 and 80 ns.
const WORDS: usize = 6;
const ROUNDS: usize = 19;
/// Bytes of the lanes, of one stream, and of what is left.
const LANE_BYTES: usize = ROUNDS * LANES * 16;
const STREAM_BYTES: usize = ROUNDS * WORDS * 8;
const REST_BYTES: usize = UNIT - LANE_BYTES - STREAMS * STREAM_BYTES;
const _: () = assert!(REST_BYTES > 0 && REST_BYTES.is_multiple_of(8));

/// The polynomial, lowest power in the highest bit, as the checksum has it.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x to the power of `n`, modulo the polynomial.
const fn power(n: usize) -> i64 {
    let (mut value, mut left) = (1u32 << 31, n);
    while left > 0 {
        value = (value >> 1) ^ (POLYNOMIAL * (value & 1));
        left -= 1;
    }
    value as i64
}

/// The factors that move a lane on by so many lanes of 16 bytes: of its upper and its lower half.
const fn fold(lanes: usize) -> (i64, i64) {
    (power(128 * lanes - 33), power(128 * lanes + 31))
}

/// The factor that moves a CRC on by so many bytes, into the word that follows.
const fn shift(bytes: usize) -> i64 {
    power(8 * (bytes + 8) - 33)
}

#[inline]
fn word(bytes: &[u8], nth: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * nth..8 * nth + 8].try_into().expect("eight bytes"))
}

#[inline]
#[target_feature(enable = "avx,pclmulqdq,sse4.2")]
fn lane(bytes: &[u8], nth: usize) -> __m128i {
    _mm_set_epi64x(word(bytes, 2 * nth + 1).cast_signed(), word(bytes, 2 * nth).cast_signed())
}

/// A lane that is moved on by `factors`, and `next` added.
#[inline]
#[target_feature(enable = "avx,pclmulqdq,sse4.2")]
fn fold_into(lane: __m128i, factors: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(lane, factors);
    let high = _mm_clmulepi64_si128::<0x11>(lane, factors);
    _mm_xor_si128(_mm_xor_si128(low, next), high)
}

#[inline]
#[target_feature(enable = "avx,pclmulqdq,sse4.2")]
fn factors((high, low): (i64, i64)) -> __m128i {
    _mm_set_epi64x(high, low)
}

/// The CRC of some bytes, moved on: to be added to the word that follows.
#[inline]
#[target_feature(enable = "avx,pclmulqdq,sse4.2")]
fn moved_on(crc: u64, factor: i64) -> u64 {
    let product =
        _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(crc.cast_signed()), _mm_cvtsi64_si128(factor));
    _mm_cvtsi128_si64(product).cast_unsigned()
}

/// Whether this CPU has what the code needs, and the library has no faster one for it.
static IS_FASTEST: LazyLock<bool> =
    LazyLock::new(|| is_supported() && !is_x86_feature_detected!("avx512vl"));

fn is_supported() -> bool {
    is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// The checksum of `unit`, whose second word is taken as `second`; `None` if the library is faster.
#[inline]
pub(crate) fn fastest(unit: &[u8; UNIT], second: u64) -> Option<u32> {
    // SAFETY: the CPU has the instructions, by `is_supported`.
    IS_FASTEST.then(|| unsafe { checksum(unit, second) })
}

/// The second word of a unit.
#[inline]
pub(crate) fn second_word(unit: &[u8; UNIT]) -> u64 {
    word(unit, 1)
}

#[target_feature(enable = "avx,pclmulqdq,sse4.2")]
fn checksum(unit: &[u8; UNIT], second: u64) -> u32 {
    let (lanes, rest) = unit.split_at(LANE_BYTES);
    let (first, rest) = rest.split_at(STREAM_BYTES);
    let (next, rest) = rest.split_at(STREAM_BYTES);
    let (last, rest) = rest.split_at(STREAM_BYTES);
    let (lanes, _) = lanes.as_chunks::<{ LANES * 16 }>();
    let ((first, _), (next, _), (last, _)) = (
        first.as_chunks::<{ WORDS * 8 }>(),
        next.as_chunks::<{ WORDS * 8 }>(),
        last.as_chunks::<{ WORDS * 8 }>(),
    );

    // The CRC begins with all bits set.
    let begin = word(&lanes[0], 0) ^ 0xffff_ffff;
    let mut a = _mm_set_epi64x(second.cast_signed(), begin.cast_signed());
    let (mut b, mut c, mut d) = (lane(&lanes[0], 1), lane(&lanes[0], 2), lane(&lanes[0], 3));
    let (mut crc0, mut crc1, mut crc2) = (0, 0, 0);
    let by_four = factors(const { fold(LANES) });
    for round in 0..ROUNDS {
        if round > 0 {
            let lanes = &lanes[round];
            a = fold_into(a, by_four, lane(lanes, 0));
            b = fold_into(b, by_four, lane(lanes, 1));
            c = fold_into(c, by_four, lane(lanes, 2));
            d = fold_into(d, by_four, lane(lanes, 3));
        }
        let (first, next, last) = (&first[round], &next[round], &last[round]);
        for nth in 0..WORDS {
            crc0 = _mm_crc32_u64(crc0, word(first, nth));
            crc1 = _mm_crc32_u64(crc1, word(next, nth));
            crc2 = _mm_crc32_u64(crc2, word(last, nth));
        }
    }
    let by_one = factors(const { fold(1) });
    let (ab, cd) = (fold_into(a, by_one, b), fold_into(c, by_one, d));
    let all = fold_into(ab, factors(const { fold(2) }), cd);
    let low = _mm_crc32_u64(0, _mm_cvtsi128_si64(all).cast_unsigned());
    let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(all, all)).cast_unsigned();
    let of_lanes = _mm_crc32_u64(low, high);

    let sum = moved_on(of_lanes, const { shift(3 * STREAM_BYTES) })
        ^ moved_on(crc0, const { shift(2 * STREAM_BYTES) })
        ^ moved_on(crc1, const { shift(STREAM_BYTES) });
    let mut crc = _mm_crc32_u64(crc2, word(rest, 0) ^ sum);
    for nth in 1..REST_BYTES / 8 {
        crc = _mm_crc32_u64(crc, word(rest, nth));
    }
    // The instruction leaves the upper half zero.
    !(crc as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum, even where the library is faster; `None` without the instructions.
    fn checksum_of(unit: &[u8; UNIT], second: u64) -> Option<u32> {
        // SAFETY: as in `fastest`.
        is_supported().then(|| unsafe { checksum(unit, second) })
    }

    /// Each bit of a unit counts as in the library's: the checksum is linear in its bits.
    #[test]
    fn each_bit_counts_as_in_the_library() {
        let mut unit = [0; UNIT];
        for bit in 0..8 * UNIT {
            unit[bit / 8] ^= 1 << (bit % 8);
            if let Some(crc) = checksum_of(&unit, second_word(&unit)) {
                assert_eq!(crc, crc_fast::crc32_iscsi(&unit), "bit {bit}");
            }
            unit[bit / 8] = 0;
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_library(seed: u64, second: Option<u64>) {
            let mut state = seed;
            let mut unit = [0; UNIT];
            for byte in &mut unit {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            let second = second.unwrap_or_else(|| second_word(&unit));
            let crc = checksum_of(&unit, second);
            unit[8..16].copy_from_slice(&second.to_le_bytes());
            prop_assert!(crc.is_none_or(|crc| crc == crc_fast::crc32_iscsi(&unit)));
        }
    }
}
