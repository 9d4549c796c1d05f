// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Images: the contents of a disk outside of a world, cheap to copy, change and compare.
//!
//! Tests that enumerate all outcomes of a power cut make very many images, most of which differ in
//! a sector or two.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::pages::{Page, Pages, each_part, mix};

/// A write that a power cut may lose, keep or tear: on a disk sector by sector, in memory word by
/// word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWrite {
    /// Where it goes.
    pub offset: u64,
    /// What it writes.
    pub data: Vec<u8>,
}

/// The contents of a disk. Missing pages hold zeroes.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pages: BTreeMap<usize, Rc<Page>>,
    /// Sum of the hashes of all pages, independent of their order.
    sum: u64,
}

impl Image {
    pub(crate) fn of(pages: &Pages) -> Image {
        let mut image = Image::default();
        pages.written().for_each(|(number, page)| image.put_page(number, page.clone()));
        image
    }

    fn put_page(&mut self, number: usize, page: Rc<Page>) {
        let hash = |page: &Page| mix(mix(page.hash() ^ mix(number as u64 + 1)) ^ page.hash());
        // Zeroes are the same whether they were written or not.
        let old = if page.is_zero() {
            self.pages.remove(&number)
        } else {
            self.sum = self.sum.wrapping_add(hash(&page));
            self.pages.insert(number, page)
        };
        self.sum = self.sum.wrapping_sub(old.map_or(0, |old| hash(&old)));
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &Rc<Page>)> {
        self.pages.iter().map(|(number, page)| (*number, page))
    }

    /// Reads from the image.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        each_part(offset, out.len(), |number, within, part| match self.pages.get(&number) {
            Some(page) => out[part].copy_from_slice(&page.bytes()[within]),
            None => out[part].fill(0),
        });
    }

    /// Writes into the image.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        each_part(offset, data.len(), |number, within, part| {
            let mut page = match self.pages.get(&number) {
                Some(page) => Page::clone(page),
                None => Page::zeroed(),
            };
            page.bytes_mut()[within].copy_from_slice(&data[part]);
            self.put_page(number, Rc::new(page));
        });
    }

    /// A hash: equal for equal images, different for others with near certainty.
    pub fn hash(&self) -> u64 {
        mix(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_alike_when_their_bytes_are() {
        let (mut a, mut b) = (Image::default(), Image::default());
        a.write(4000, &[7; 200]);
        let mut out = [0; 300];
        a.read(3950, &mut out);
        assert!(
            out.iter().enumerate().all(|(n, &b)| b == if (50..250).contains(&n) { 7 } else { 0 })
        );
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
