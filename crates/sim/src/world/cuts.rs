// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The possible outcomes of a power cut, for tests that enumerate them: the durable contents, and
//! the writes of which each may be lost, kept or torn.

use reactor::FileId;

use super::ops::OpKind;
use super::{World, index, usize_of};
use crate::image::{Image, PendingWrite};

impl World {
    /// The contents that survive a power cut now in any case. Only for memory, and for disks that
    /// keep history.
    pub fn durable(&self, file: FileId) -> Image {
        self.disks[index(file)].media.durable()
    }

    /// The writes that a power cut now may lose: those in the volatile cache, oldest first, without
    /// sectors that a newer durable write replaces; then those in flight, in order of submission.
    /// Of memory: the writes with stores that no fence covers.
    pub fn pending(&self, file: FileId) -> Vec<PendingWrite> {
        let mut pending = self.disks[index(file)].media.unflushed();
        pending.extend(self.in_flight(file));
        pending
    }

    /// Those of them that are in flight, which a kill may undo, too.
    pub fn in_flight(&self, file: FileId) -> Vec<PendingWrite> {
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
        in_flight.into_iter().map(|(_, write)| write).collect()
    }

    /// Stores an image durably on an unwritten disk, in no time.
    pub fn put_image(&mut self, file: FileId, image: &Image) {
        let disk = &mut self.disks[index(file)];
        image.pages().for_each(|(number, page)| disk.media.put_page(number, page));
    }

    /// From now on [`crate::Machine::run`] asks whether to go on while requests are in flight, too,
    /// and not only when one has ended: for who looks at all that a kill may leave.
    pub fn show_requests(&mut self) {
        self.shows_requests = true;
    }

    pub(crate) fn shows_requests(&self) -> bool {
        self.shows_requests
    }

    /// Requests to disks so far.
    pub(crate) fn sent(&self) -> u64 {
        self.disks.iter().map(|disk| disk.ops).sum()
    }

    /// A number that changes whenever the possible outcomes of a power cut change.
    pub fn changes(&self) -> u64 {
        self.sent() ^ self.trace
    }
}
