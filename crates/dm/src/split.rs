// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends one request as several; its status is the worst of theirs. They share its data.
use block::{Bio, BlockDevice, Bufs, Class, Completion, Flags, Op, Opener, Sector, Status};
use reactor::BioFuture;
use smallvec::SmallVec;

/// A request that is being sent in parts.
#[must_use = "a split request ends by `finish`"]
pub(crate) struct Split {
    op: Op,
    flags: Flags,
    class: Class,
    opener: Opener,
    bufs: Bufs,
    parent: Completion,
    parts: SmallVec<[BioFuture; 8]>,
}

impl Split {
    pub(crate) fn new(bio: Bio) -> Split {
        let Bio { op, flags, class, opener, bufs, done, .. } = bio;
        Split { op, flags, class, opener, bufs, parent: done, parts: SmallVec::new() }
    }

    /// Sends `len` sectors to `dev` at `sector`; their data begins `skip` sectors into the request.
    pub(crate) fn send(
        &mut self,
        dev: &dyn BlockDevice,
        sector: Sector,
        len: Sector,
        skip: Sector,
    ) {
        let bufs = match self.op {
            Op::Read | Op::Write => self.bufs.slice(bytes(skip)..bytes(skip + len)),
            Op::Flush | Op::Discard | Op::WriteZeroes => Bufs::new(),
        };
        let part = (sector, len);
        let (op, flags, class, opener) = (self.op, self.flags, self.class, self.opener);
        self.parts.push(reactor::io_by(opener, dev, op, flags, class, part, bufs));
    }

    /// Completes the request when all its parts have ended; at once when it has none.
    pub(crate) fn finish(self) {
        let Split { parent, parts, .. } = self;
        if parts.is_empty() {
            return parent.complete(Status::Ok);
        }
        reactor::complete_after(parent, parts);
    }
}

/// Sends a flush to each of `devices`, in place when there is only one.
pub(crate) fn flush_all<'a>(bio: Bio, devices: impl ExactSizeIterator<Item = &'a dyn BlockDevice>) {
    let mut devices = devices;
    if devices.len() == 1 {
        if let Some(only) = devices.next() {
            only.submit(bio);
        }
        return;
    }
    let mut split = Split::new(bio);
    for device in devices {
        split.send(device, Sector::ZERO, Sector::ZERO, Sector::ZERO);
    }
    split.finish();
}

fn bytes(sectors: Sector) -> usize {
    usize::try_from(sectors.bytes()).expect("within a request's buffers, which are in memory")
}
