// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contents of pages. Each is a function of its number, so that no copy is needed for comparing.
use super::PAGE_BYTES;

/// What pages contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// As fio writes by default: incompressible.
    Random,
    /// fio's `buffer_compress_percentage=50` with its default chunk of 512 bytes: the first half of
    /// each is random, the other half zeroes.
    Half,
    /// Of each 256 bytes a part is random, the rest is text. The part is the same in a whole page;
    /// it varies from page to page, between nothing and everything.
    Mixed,
}

const TEXT: &[u8] = b"compressed pages of a RAM disk are kept as objects of any length. an object \
lies in a span of frames with others of about its length. when its page is overwritten it goes, \
and another one takes its place. what stays free between objects is what is lost here....";

/// A step of splitmix64: good enough that no compressor finds anything.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn random(seed: u64, out: &mut [u8]) {
    let mut state = mixed(seed.wrapping_add(0x1234_5678_9abc_def1));
    for word in out.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed(state).to_le_bytes()[..word.len()]);
    }
}

impl Data {
    /// Its name in tables and keys.
    pub fn name(self) -> &'static str {
        match self {
            Data::Random => "random",
            Data::Half => "half",
            Data::Mixed => "mixed",
        }
    }

    /// Writes the contents of page `nth`.
    pub fn fill(self, nth: u64, page: &mut [u8]) {
        match self {
            Data::Random => random(nth, page),
            Data::Half => {
                for (piece, bytes) in page.chunks_mut(512).enumerate() {
                    let (first, rest) = bytes.split_at_mut(256);
                    random(nth << 3 | piece as u64, first);
                    rest.fill(0);
                }
            }
            Data::Mixed => {
                let part = usize::try_from(mixed(nth) % 257).expect("at most 256");
                for (piece, bytes) in page.chunks_mut(256).enumerate() {
                    let (first, rest) = bytes.split_at_mut(part);
                    random(nth << 4 | piece as u64, first);
                    rest.copy_from_slice(&TEXT[..256 - part]);
                }
            }
        }
    }

    /// The contents of `count` pages from `first` on.
    pub fn pages(self, first: u64, count: usize) -> Vec<u8> {
        let mut pages = vec![0; count * PAGE_BYTES];
        for (nth, page) in (first..).zip(pages.chunks_mut(PAGE_BYTES)) {
            self.fill(nth, page);
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a page after zstd.
    fn compressed(data: Data, nth: u64) -> usize {
        zstd::bulk::compress(&data.pages(nth, 1), 3).unwrap().len()
    }

    #[test]
    fn pages_differ_and_can_be_made_again() {
        for data in [Data::Random, Data::Half, Data::Mixed] {
            assert_eq!(data.pages(7, 1), data.pages(7, 1));
            assert_ne!(data.pages(7, 1), data.pages(8, 1));
            assert_eq!(data.pages(7, 2)[PAGE_BYTES..], data.pages(8, 1));
        }
    }

    #[test]
    fn pages_compress_as_their_names_say() {
        for nth in 0..100 {
            assert!(compressed(Data::Random, nth) >= PAGE_BYTES);
            assert!((2048..2300).contains(&compressed(Data::Half, nth)));
        }
        let mixed: Vec<usize> = (0..1000).map(|nth| compressed(Data::Mixed, nth)).collect();
        let below = |len: usize| mixed.iter().filter(|l| **l < len).count();
        assert!((150..350).contains(&below(1024)), "{}", below(1024));
        assert!((400..600).contains(&below(2048 + 128)), "{}", below(2048 + 128));
    }
}
