// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All that a power cut may leave, laid open for tests that go through it: what is sure to survive,
//! and the writes of which each may be lost, kept or torn.

use reactor::FileId;

use super::ops::OpKind;
use super::{World, index, usize_of};
use crate::image::{Image, PendingWrite};

impl World {
    /// What is sure to survive a power cut now. Only memory, and a disk that keeps history, know.
    pub fn durable(&self, file: FileId) -> Image {
        self.disks[index(file)].media.durable()
    }

    /// The writes that a power cut now may lose: those of the volatile cache, oldest first, without
    /// what a newer durable one has outlawed; then those in flight, in the order of submission. In
    /// memory, which has both alike: those with stores that no fence covers.
    pub fn pending(&self, file: FileId) -> Vec<PendingWrite> {
        let mut pending = self.disks[index(file)].media.unflushed();
        let here = self.ops.iter().filter(|(_, op)| op.disk == index(file));
        let mut in_flight: Vec<_> = here
            .filter_map(|(_, op)| {
                let data = match &op.what {
                    OpKind::Write { begun: Some(_), .. } => return None,
                    OpKind::Write { data, .. } => data.clone()?,
                    OpKind::Discard | OpKind::WriteZeroes => vec![0; usize_of(op.len)],
                    OpKind::Read { .. } | OpKind::Flush { .. } | OpKind::Refused(_) => return None,
                };
                Some((op.nth, PendingWrite { offset: op.offset, data }))
            })
            .collect();
        in_flight.sort_by_key(|(nth, _)| *nth);
        pending.extend(in_flight.into_iter().map(|(_, write)| write));
        pending
    }

    /// Puts an image on a disk that nothing was written to, durably, taking no time.
    pub fn put_image(&mut self, file: FileId, image: &Image) {
        let disk = &mut self.disks[index(file)];
        image.pages().for_each(|(number, page)| disk.media.put_page(number, page));
    }

    /// A number that changes with whatever changes what a power cut may leave.
    pub fn changes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.ops).sum::<u64>() ^ self.trace
    }
}
