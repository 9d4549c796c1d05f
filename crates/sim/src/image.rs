// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Images: the contents of a disk apart from any world, cheap to copy, change and compare.
//!
//! Tests that go through all that a power cut may leave make very many of them, most of which
//! differ in a sector or two.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::pages::{PAGE_BYTES, each_part};

#[derive(Debug)]
struct Page {
    bytes: Box<[u8]>,
    hash: u64,
}

impl Page {
    fn new(bytes: Box<[u8]>) -> Rc<Page> {
        let word = |w: &[u8]| u64::from_le_bytes(w.try_into().expect("chunks of eight"));
        let hash = bytes.chunks_exact(8).map(word).fold(0, |h, w| mix(h ^ w));
        Rc::new(Page { bytes, hash })
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 32)
}

/// What a disk holds. Pages that are not there hold zeroes.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pages: BTreeMap<usize, Rc<Page>>,
}

impl Image {
    pub(crate) fn put_page(&mut self, number: usize, bytes: &[u8]) {
        // Zeroes are the same whether they were written or not.
        if bytes.iter().any(|&b| b != 0) {
            self.pages.insert(number, Page::new(bytes.into()));
        } else {
            self.pages.remove(&number);
        }
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.pages.iter().map(|(number, page)| (*number, &page.bytes[..]))
    }

    /// Writes into the image.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        each_part(offset, data.len(), |number, within, part| {
            let mut bytes = match self.pages.get(&number) {
                Some(page) => page.bytes.clone(),
                None => vec![0; PAGE_BYTES as usize].into_boxed_slice(),
            };
            bytes[within].copy_from_slice(&data[part]);
            self.put_page(number, &bytes);
        });
    }

    /// The same for equal images, and different, but for one chance in billions, for others.
    pub fn hash(&self) -> u64 {
        self.pages.iter().fold(0, |h, (number, page)| mix(h ^ mix(page.hash ^ *number as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_alike_when_their_bytes_are() {
        let (mut a, mut b) = (Image::default(), Image::default());
        a.write(4000, &[7; 200]);
        assert_ne!(a.hash(), b.hash());
        b.write(4000, &[7; 100]);
        let half = b.clone();
        b.write(4100, &[7; 100]);
        assert_eq!(a.hash(), b.hash());
        assert_ne!(half.hash(), b.hash(), "a copy stays as it was");
        b.write(0, &[0; 8192]);
        assert_eq!(b.hash(), Image::default().hash(), "written zeroes are zeroes");
        a.write(8192, &[1]);
        b.write(12288, &[1]);
        assert_ne!(a.hash(), b.hash());
    }
}
