// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sparse memory: unwritten pages hold zeroes and use no memory. Copies share pages until one of
//! them is written.

use std::cell::OnceCell;
use std::rc::Rc;

pub(crate) const PAGE_BYTES: u64 = 4096;
/// For comparisons: comparing slices is many times faster than testing each byte.
static ZERO_PAGE: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// A page and its lazily computed hash.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    bytes: Box<[u8]>,
    hash: OnceCell<u64>,
}

impl Page {
    pub(crate) fn zeroed() -> Page {
        Page { bytes: vec![0; PAGE_BYTES as usize].into(), hash: OnceCell::new() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, to be changed: drops the hash.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.hash = OnceCell::new();
        &mut self.bytes
    }

    pub(crate) fn hash(&self) -> u64 {
        let word = |w: &[u8]| u64::from_le_bytes(w.try_into().expect("chunks of eight"));
        let all = || self.bytes.chunks_exact(8).map(word).fold(0, |h, w| mix(h ^ w));
        *self.hash.get_or_init(all)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.hash() == 0 && *self.bytes == ZERO_PAGE
    }
}

/// A mixing function with `mix(0) == 0`.
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 32)
}

/// Bytes by offset, in pages of 4 KiB.
#[derive(Debug)]
pub(crate) struct Pages {
    pages: Vec<Option<Rc<Page>>>,
}

impl Pages {
    pub(crate) fn new(capacity_bytes: u64) -> Pages {
        let count = usize::try_from(capacity_bytes.div_ceil(PAGE_BYTES)).expect("fits in memory");
        Pages { pages: std::iter::repeat_with(|| None).take(count).collect() }
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        each_part(offset, out.len(), |page, within, part| match &self.pages[page] {
            Some(found) => out[part].copy_from_slice(&found.bytes[within]),
            None => out[part].fill(0),
        });
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        each_part(offset, data.len(), |page, within, part| {
            let data = &data[part];
            if self.pages[page].is_none() && *data == ZERO_PAGE[within.clone()] {
                return;
            }
            let page = self.pages[page].get_or_insert_with(|| Rc::new(Page::zeroed()));
            Rc::make_mut(page).bytes_mut()[within].copy_from_slice(data);
        });
    }

    /// Copies one page of `from`.
    pub(crate) fn copy_page(&mut self, page: usize, from: &Pages) {
        self.pages[page].clone_from(&from.pages[page]);
    }

    /// The pages that were written.
    pub(crate) fn written(&self) -> impl Iterator<Item = (usize, &Rc<Page>)> {
        let pages = self.pages.iter().enumerate();
        pages.filter_map(|(number, page)| Some((number, page.as_ref()?)))
    }

    /// Replaces a whole page.
    pub(crate) fn put_page(&mut self, number: usize, page: Rc<Page>) {
        self.pages[number] = Some(page);
    }

    /// Bytes of memory that the contents take.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.pages.iter().flatten().count() as u64 * PAGE_BYTES
    }
}

/// Calls `f(page, range within the page, range within the data)` for each page touched.
pub(crate) fn each_part(
    offset: u64,
    len: usize,
    mut f: impl FnMut(usize, std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let mut at = 0;
    while at < len {
        let pos = offset + at as u64;
        let page = usize::try_from(pos / PAGE_BYTES).expect("within the capacity");
        let within = usize::try_from(pos % PAGE_BYTES).expect("below a page");
        let n = (len - at).min(PAGE_BYTES as usize - within);
        f(page, within..within + n, at..at + n);
        at += n;
    }
}

/// The pages that `len` bytes at `offset` touch.
pub(crate) fn pages_of(offset: u64, len: usize) -> std::ops::Range<usize> {
    let end = (offset + len as u64).div_ceil(PAGE_BYTES);
    let index = |page: u64| usize::try_from(page).expect("within the capacity");
    index(offset / PAGE_BYTES)..index(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_across_pages_are_read_back_and_the_rest_is_zero() {
        let mut pages = Pages::new(1 << 30);
        let data: Vec<u8> = (0..9000u32).map(|i| (i % 251) as u8 + 1).collect();
        pages.write(4096 * 5 + 512, &data);
        let mut out = vec![0xAA; 9000 + 1024];
        pages.read(4096 * 5, &mut out);
        assert!(out[..512].iter().all(|&b| b == 0));
        assert_eq!(&out[512..9512], &data[..]);
        assert!(out[9512..].iter().all(|&b| b == 0));
        assert_eq!(pages.resident_bytes(), 3 * PAGE_BYTES);
        pages.write(0, &[0; 8192]);
        pages.write(4096 - 100, &[0; 300]);
        assert_eq!(pages.resident_bytes(), 3 * PAGE_BYTES);
    }
}
