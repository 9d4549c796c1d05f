// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dress: the oracle's blocks are all alike to a compressor; this gives each block and version a
//! look of its own on its way to the device, and takes it off again.
//!
//! ```text
//!   as the oracle has it   same-filled │ compressible │ half noise │ all noise
//! ```
//! A page that does not come back exactly as it went is delivered as rubbish.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Limits, Op, Status};

const SECTOR: usize = 512;
const UNIT: usize = 32;

/// A device below the oracle's clients.
pub(crate) struct Dress {
    below: Rc<dyn BlockDevice>,
    /// Bytes that clients write together: a page, or sectors of it.
    unit: usize,
    /// The meaning of the word of a same-filled page.
    same: Rc<RefCell<BTreeMap<u64, Vec<u8>>>>,
}

impl Dress {
    pub(crate) fn by_units(below: Rc<dyn BlockDevice>, unit: usize) -> Rc<Dress> {
        Rc::new(Dress { below, unit, same: Rc::default() })
    }
}

fn word(unit: &[u8], nth: usize) -> u64 {
    u64::from_le_bytes(unit[nth * 8..nth * 8 + 8].try_into().expect("eight bytes"))
}

/// How many sectors of a page are noise, by what it holds; more than there are: it is same-filled.
fn noisy(page: &[u8]) -> usize {
    // Block and version: the same for all sectors of the page.
    match (word(page, 1) ^ word(page, 2).wrapping_mul(7)) % 8 {
        0 => usize::MAX,
        1 | 2 => 0,
        3 | 4 => 3,
        _ => 8,
    }
}

fn noise(unit: &[u8], out: &mut [u8]) {
    let mut x = word(unit, 3);
    for bytes in out.chunks_exact_mut(8) {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.copy_from_slice(&(x ^ x >> 29).to_le_bytes());
    }
}

fn is_plain(page: &[u8]) -> bool {
    page.iter().all(|b| *b == 0)
}

fn put_on(page: &mut [u8], same: &RefCell<BTreeMap<u64, Vec<u8>>>) {
    if is_plain(page) {
        return;
    }
    let sectors = noisy(page);
    if sectors == usize::MAX {
        let word = word(page, 3);
        same.borrow_mut().insert(word, page.to_vec());
        page.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&word.to_le_bytes()));
        return;
    }
    for sector in page.chunks_exact_mut(SECTOR).take(sectors) {
        let (unit, rest) = sector.split_at_mut(UNIT);
        noise(unit, rest);
    }
}

fn take_off(page: &mut [u8], same: &RefCell<BTreeMap<u64, Vec<u8>>>) {
    let as_it_came = page.to_vec();
    if let Some(was) = same.borrow().get(&word(page, 0)) {
        page.copy_from_slice(was);
    } else {
        for sector in page.chunks_exact_mut(SECTOR) {
            let (unit, rest) = sector.split_at_mut(UNIT);
            rest.chunks_exact_mut(UNIT).for_each(|c| c.copy_from_slice(unit));
        }
    }
    let mut again = page.to_vec();
    put_on(&mut again, &RefCell::default());
    if again != as_it_came {
        page.fill(0xEE);
    }
}

impl BlockDevice for Dress {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let (same, unit) = (self.same.clone(), self.unit);
        match bio.op {
            Op::Write => {
                let mut data = vec![0; bio.bufs.len_bytes()];
                bio.bufs.copy_to(&mut data);
                data.chunks_exact_mut(unit).for_each(|page| put_on(page, &same));
                bio.bufs = Buf::copy_of(&data).into();
                self.below.submit(bio);
            }
            Op::Read => {
                let below = self.below.clone();
                reactor::spawn(async move {
                    let read =
                        reactor::read(&*below, bio.class, bio.sector, bio.bufs.clone()).await;
                    if read.is_ok() {
                        let mut data = vec![0; bio.bufs.len_bytes()];
                        bio.bufs.copy_to(&mut data);
                        data.chunks_exact_mut(unit).for_each(|page| take_off(page, &same));
                        bio.bufs.copy_from(&data);
                    }
                    bio.complete(Status::from(read));
                });
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => self.below.submit(bio),
        }
    }
}
