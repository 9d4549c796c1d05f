// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The medium of a device: a disk behind a volatile cache, or memory behind the caches of the CPU.

use std::rc::Rc;

use crate::image::{Image, PendingWrite};
use crate::lines::Lines;
use crate::media::{FlushMark, InFlight, Media};
use crate::pages::Page;
use crate::rng::Rng;

#[derive(Debug)]
pub(crate) enum Medium {
    Disk(Media),
    Memory(Lines),
}

impl Medium {
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        match self {
            Medium::Disk(media) => media.read(offset, out),
            Medium::Memory(lines) => lines.read(offset, out),
        }
    }

    pub(crate) fn read_durable(&self, offset: u64, out: &mut [u8]) {
        match self {
            Medium::Disk(media) => media.read_durable(offset, out),
            Medium::Memory(lines) => lines.read_durable(offset, out),
        }
    }

    pub(crate) fn durable(&self) -> Image {
        match self {
            Medium::Disk(media) => media.durable(),
            Medium::Memory(lines) => lines.durable(),
        }
    }

    pub(crate) fn unflushed(&self) -> Vec<PendingWrite> {
        match self {
            Medium::Disk(media) => media.unflushed(),
            Medium::Memory(lines) => lines.unfenced(),
        }
    }

    /// Stores a page durably on an unwritten medium.
    pub(crate) fn put_page(&mut self, number: usize, page: &Rc<Page>) {
        match self {
            Medium::Disk(media) => media.put_page(number, page),
            Medium::Memory(lines) => lines.put_page(number, page),
        }
    }

    /// Begins a write. Memory stores it at once and returns its number.
    pub(crate) fn begin_write(&mut self, offset: u64, data: &[u8]) -> Option<u64> {
        match self {
            Medium::Disk(_) => None,
            Medium::Memory(lines) => Some(lines.store(offset, data)),
        }
    }

    /// Completes a write.
    pub(crate) fn end_write(&mut self, begun: Option<u64>, offset: u64, data: &[u8], fua: bool) {
        match (self, begun) {
            (Medium::Disk(media), _) => media.write(offset, data, fua),
            (Medium::Memory(lines), Some(write)) => lines.complete(write, fua),
            (Medium::Memory(lines), None) => {
                let write = lines.store(offset, data);
                lines.complete(write, fua);
            }
        }
    }

    /// Begins and completes a write.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], fua: bool) {
        let begun = self.begin_write(offset, data);
        self.end_write(begun, offset, data, fua);
    }

    /// The same of zeroes that other writes share.
    pub(crate) fn write_zeroes(&mut self, offset: u64, zeroes: &Rc<[u8]>) {
        match self {
            Medium::Disk(media) => media.write_shared(offset, zeroes),
            Medium::Memory(_) => self.write(offset, zeroes, false),
        }
    }

    pub(crate) fn flush_mark(&self) -> FlushMark {
        match self {
            Medium::Disk(media) => media.flush_mark(),
            Medium::Memory(lines) => lines.flush_mark(),
        }
    }

    pub(crate) fn flush(&mut self, mark: FlushMark) {
        match self {
            Medium::Disk(media) => media.flush(mark),
            Medium::Memory(lines) => lines.flush(mark),
        }
    }

    pub(crate) fn fail_flush(&mut self, mark: FlushMark) {
        match self {
            Medium::Disk(media) => media.fail_flush(mark),
            Medium::Memory(lines) => lines.fail_flush(mark),
        }
    }

    /// Marks the newest write as lost with the failed flush.
    pub(crate) fn abandon_newest(&mut self) {
        match self {
            Medium::Disk(media) => media.abandon_newest(),
            Medium::Memory(_) => {}
        }
    }

    /// Cuts the power with these requests in flight to a disk.
    pub(crate) fn power_cut(&mut self, in_flight: Vec<InFlight>, rng: &mut Rng) {
        match self {
            Medium::Disk(media) => media.power_cut(in_flight, rng),
            Medium::Memory(lines) => lines.power_cut(rng),
        }
    }

    /// Kills the process: each write in flight to a disk takes effect or not.
    pub(crate) fn kill(&mut self, mut in_flight: Vec<InFlight>, rng: &mut Rng) {
        match self {
            Medium::Disk(media) => {
                media.reopen();
                rng.shuffle(&mut in_flight);
                for write in in_flight {
                    if rng.chance_per_mille(700) {
                        media.write(write.offset, &write.data, false);
                    }
                }
            }
            Medium::Memory(lines) => {
                lines.reopen();
                lines.kill(rng);
            }
        }
    }

    pub(crate) fn flip_bit(&mut self, offset: u64, bit: u32) {
        match self {
            Medium::Disk(media) => media.flip_bit(offset, bit),
            Medium::Memory(lines) => lines.flip_bit(offset, bit),
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        match self {
            Medium::Disk(media) => media.resident_bytes(),
            Medium::Memory(lines) => lines.resident_bytes(),
        }
    }
}
