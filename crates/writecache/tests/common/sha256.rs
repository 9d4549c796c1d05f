// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SHA-256 (FIPS 180-4), for checksums that come with test data.

/// First 32 bits of the fractional part of a root of each of the first `N` primes: the fifth-grade
/// way, by integers.
fn roots<const N: usize>(root: impl Fn(u128) -> u128) -> [u32; N] {
    let is_prime = |n: &u128| (2..*n).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    let mut primes = (2u128..).filter(is_prime);
    std::array::from_fn(|_| (root(primes.next().unwrap()) & 0xffff_ffff) as u32)
}

/// The largest `r` with `r.pow(power) <= n`.
fn integer_root(n: u128, power: u32) -> u128 {
    let (mut low, mut high) = (0, 1u128 << 37);
    while low < high {
        let middle = (low + high).div_ceil(2);
        match middle.checked_pow(power) {
            Some(p) if p <= n => low = middle,
            _ => high = middle - 1,
        }
    }
    low
}

pub(crate) fn sha256_hex(data: &[u8]) -> String {
    let k: [u32; 64] = roots(|p| integer_root(p << 96, 3));
    let mut h: [u32; 8] = roots(|p| integer_root(p << 64, 2));
    let mut padded = data.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - data.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len() - 8;
    padded[end..].copy_from_slice(&(data.len() as u64 * 8).to_be_bytes());
    for block in padded.as_chunks::<64>().0 {
        let mut w = [0u32; 64];
        for (word, bytes) in w.iter_mut().zip(block.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        for i in 16..64 {
            let (a, b) = (w[i - 15], w[i - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
            w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
        }
        let mut v = h;
        for i in 0..64 {
            let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = (v[4] & v[5]) ^ (!v[4] & v[6]);
            let t1 = v[7].wrapping_add(s1).wrapping_add(choice).wrapping_add(k[i]);
            let t1 = t1.wrapping_add(w[i]);
            let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(t1);
            v[0] = t1.wrapping_add(s0.wrapping_add(majority));
        }
        for (sum, add) in h.iter_mut().zip(v) {
            *sum = sum.wrapping_add(add);
        }
    }
    h.iter().map(|word| format!("{word:08x}")).collect()
}
