// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of a bio to the parts, on the core of the cache and on any other one.
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use block::{Bio, BlockDevice, Bufs, Limits, MakeDevice, Op, Planted, Sector, Status};
use reactor::{BioFuture, SharedDeviceName, complete_after, io_by, spawn};
use smallvec::SmallVec;

use crate::dm_target::WriteCache;
use crate::parts::layout::Layout;
use crate::planted::Fault;

/// Pieces of one bio in flight: a discard may be as long as the device.
const PIECES_IN_FLIGHT: usize = 64;

/// Sends bios to the parts, here or on other cores.
pub(crate) struct Router {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    /// Limits of the whole device.
    pub(crate) limits: Limits,
    pub(crate) planted: Planted<Fault>,
    /// Each part as a device of this core.
    pub(crate) devices: SmallVec<[Rc<dyn BlockDevice>; 4]>,
}

impl Router {
    /// Makes the same router on any core, for parts that have these names.
    pub(crate) fn on_every_core(&self, parts: Vec<SharedDeviceName>) -> MakeDevice {
        let (name, layout) = (self.name.clone(), self.layout);
        let (limits, planted) = (self.limits.clone(), self.planted);
        Arc::new(move || {
            let devices: Option<_> =
                parts.iter().map(|part| part.device::<WriteCache>(&name, &limits)).collect();
            let (name, limits) = (name.clone(), limits.clone());
            Some(Rc::new(Router { name, layout, limits, planted, devices: devices? }))
        })
    }

    /// Splits a bio, by parts if it is a FLUSH and by chunks otherwise, and starts a task that
    /// waits for the pieces.
    fn split(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        let Bio { op, flags, class, opener, sector, len, bufs, done } = bio;
        let devices = self.devices.clone();
        let (layout, end) = (self.layout, sector + len);
        let send = move |device: &Rc<dyn BlockDevice>, at: Sector, len: Sector, bufs: Bufs| {
            io_by(opener, &**device, op, flags, class, (at, len), bufs)
        };
        if op == Op::Flush {
            let first_only = self.planted.is(Fault::FlushOfFirstPart);
            let mut sent: SmallVec<[BioFuture; 4]> =
                devices.iter().map(|d| send(d, Sector::ZERO, Sector::ZERO, Bufs::new())).collect();
            if first_only {
                sent.truncate(1);
            }
            return complete_after(done, sent);
        }
        spawn(async move {
            let mut worst = Status::Ok;
            let mut in_flight: VecDeque<BioFuture> = VecDeque::new();
            let mut at = sector;
            while at < end || !in_flight.is_empty() {
                if at < end && in_flight.len() < PIECES_IN_FLIGHT {
                    let to = layout.chunk_end(at).min(end);
                    let byte = |at: Sector| usize::try_from((at - sector).bytes());
                    let piece = match (byte(at), byte(to)) {
                        (Ok(from), Ok(to)) if !bufs.is_empty() => bufs.slice(from..to),
                        _ => Bufs::new(),
                    };
                    in_flight.push_back(send(&devices[layout.part_of(at)], at, to - at, piece));
                    at = to;
                } else if let Some(piece) = in_flight.pop_front() {
                    worst = worst.worst(piece.await.into());
                }
            }
            done.complete(worst);
        });
    }
}

impl BlockDevice for Router {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    /// Sends a bio to the parts that it concerns.
    fn submit(&self, bio: Bio) {
        if bio.op != Op::Flush && self.layout.is_within_one(bio.sector, bio.len) {
            return self.devices[self.layout.part_of(bio.sector)].submit(bio);
        }
        self.split(bio);
    }
}
