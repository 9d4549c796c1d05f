// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of a bio to the parts, on core 0 and on any other one.
//!
//! ```text
//!   bio of one chunk ──▶ its part, as it is (sector rewritten)
//!   longer bio       ──▶ one bio a part: its chunks are adjacent there, buffers gathered
//! ```
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, Class, Edges, Flags, Limits, Op, Sector, Status};
use reactor::{BioFuture, complete_after, io};
use smallvec::SmallVec;

use crate::layout::{Layout, PAGE_SECTORS, is_whole};
use crate::slot::PAGE;

/// Sends bios to the parts, here or on other cores.
pub(crate) struct Router {
    pub(crate) layout: Layout,
    /// Each part as a device of this core.
    pub(crate) devices: SmallVec<[Rc<dyn BlockDevice>; 8]>,
}

/// The device on another core.
pub(crate) struct RoutedDevice {
    pub(crate) router: Router,
    pub(crate) name: String,
    pub(crate) limits: Limits,
}

impl BlockDevice for RoutedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        self.router.submit(bio);
    }
}

impl Router {
    /// Sends a bio, which has been checked, to its parts.
    pub(crate) fn submit(&self, mut bio: Bio) {
        // The parts keep nothing that a FLUSH could make durable.
        if bio.op == Op::Flush {
            return bio.complete(Status::Ok);
        }
        if let [only] = &self.devices[..] {
            return only.submit(bio);
        }
        if !is_whole(&bio) {
            return self.submit_sectors(bio);
        }
        let (slot, pages) = (bio.sector.0 / PAGE_SECTORS, bio.len.0 / PAGE_SECTORS);
        if self.layout.run(slot, pages) == pages {
            let (part, local) = self.layout.local(slot);
            bio.sector = Sector(u64::from(local) * PAGE_SECTORS);
            return self.devices[part as usize].submit(bio);
        }
        self.split(bio, slot, pages);
    }

    /// Sends a bio that is not of whole pages: its edges are bios of their own.
    fn submit_sectors(&self, bio: Bio) {
        let Bio { op, flags, class, bufs, done, sector: start, .. } = bio;
        let Edges { head, whole, tail } = Edges::of(start..start + bio.len, PAGE_SECTORS);
        let mut sent: SmallVec<[BioFuture; 8]> = SmallVec::new();
        for Range { start: piece, end: piece_end } in [head, whole.clone(), tail] {
            if piece == piece_end {
                continue;
            }
            let byte = |at: Sector| usize::try_from((at - start).bytes());
            let data = match (byte(piece), byte(piece_end)) {
                (Ok(at), Ok(to)) if !bufs.is_empty() => bufs.slice(at..to),
                _ => Bufs::new(),
            };
            let (slot, len) = (piece.0 / PAGE_SECTORS, piece_end - piece);
            if (piece..piece_end) == whole {
                sent.extend(self.send_pages((op, flags, class), slot, len.0 / PAGE_SECTORS, &data));
                continue;
            }
            let (part, local) = self.layout.local(slot);
            let at = Sector(u64::from(local) * PAGE_SECTORS + piece.0 % PAGE_SECTORS);
            let device = &*self.devices[part as usize];
            sent.push(io(device, op, flags, class, (at, len), data));
        }
        complete_after(done, sent);
    }

    /// Sends one bio a part, and completes when all have ended.
    fn split(&self, bio: Bio, slot: u64, pages: u64) {
        let Bio { op, flags, class, bufs, done, .. } = bio;
        complete_after(done, self.send_pages((op, flags, class), slot, pages, &bufs));
    }

    /// Sends one bio a part.
    fn send_pages(
        &self,
        (op, flags, class): (Op, Flags, Class),
        slot: u64,
        pages: u64,
        bufs: &Bufs,
    ) -> SmallVec<[BioFuture; 8]> {
        let mut gathered: SmallVec<[Bufs; 8]> = self.devices.iter().map(|_| Bufs::new()).collect();
        let mut at = 0;
        // A discard has no buffers, and may be as long as the device.
        while at < pages && !bufs.is_empty() {
            let run = self.layout.run(slot + at, pages - at);
            let (part, _) = self.layout.local(slot + at);
            let byte = |page: u64| {
                usize::try_from(page).expect("of a bio's buffers, which are in memory") * PAGE
            };
            for slice in bufs.slice(byte(at)..byte(at + run)).iter() {
                gathered[part as usize].push(slice.clone());
            }
            at += run;
        }
        let mut sent: SmallVec<[BioFuture; 8]> = SmallVec::new();
        for ((nth, part), bufs) in (0..).zip(&self.devices).zip(gathered) {
            let slots = self.layout.part_of(nth, slot, slot + pages);
            if !slots.is_empty() {
                let sector = |local: u32| Sector(u64::from(local) * PAGE_SECTORS);
                let range = (sector(slots.start), sector(slots.end - slots.start));
                sent.push(io(&**part, op, flags, class, range, bufs));
            }
        }
        sent
    }
}
