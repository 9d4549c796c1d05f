// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts: the shards of a device as core 0 has them, wherever they are.
//!
//! ```text
//!   bio of one chunk ──▶ its shard, in place (sector rewritten)
//!   longer bio       ──▶ one bio a shard: its chunks lie in a row there, buffers gathered
//!   ask              ──▶ a task on the shard's core, its answer back here
//! ```
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, Class, Completion, CoreId, Error, Flags, Op, Sector, Status};
use reactor::{
    BioFuture, CoreLocal, Export, Msg, Remote, call, core_id, export, io, post, spawn, unexport,
};
use smallvec::SmallVec;

use crate::layout::{Layout, PAGE_SECTORS};
use crate::merge::{down, is_whole, up};
use crate::shard::{Plan, Shard};
use crate::slot::PAGE;

/// A device of another core, on its way to one that shall use it.
struct Lent {
    core: CoreId,
    export: Export,
    name: String,
    limits: block::Limits,
}

/// A shard as core 0 has it.
struct Part {
    core: CoreId,
    local: CoreLocal,
    export: Option<Export>,
    device: Rc<dyn BlockDevice>,
}

/// All shards of a device.
pub(crate) struct Parts {
    layout: Layout,
    parts: Vec<Part>,
    /// The backing device as other cores reach it.
    lent: Option<Export>,
}

/// How a shard is made on its core, of a plan and the backing device as that core has it.
pub(crate) type Make<Fut> = fn(Plan, Option<Rc<dyn BlockDevice>>) -> Fut;

impl Parts {
    /// Makes the shards of `plan`, in turn on `cores`, of which the first is this one.
    pub(crate) async fn make<Fut>(
        plan: &Plan,
        cores: &[CoreId],
        backing: Option<Rc<dyn BlockDevice>>,
        make: Make<Fut>,
    ) -> Result<Parts, Error>
    where
        Fut: Future<Output = Result<Rc<Shard>, Error>> + 'static,
    {
        let layout = plan.layout;
        let here = core_id();
        let elsewhere = cores.iter().take(layout.shards as usize).any(|core| *core != here);
        let lent = backing.as_ref().filter(|_| elsewhere).map(|device| export(device.clone()));
        // What was made goes again when a later one fails.
        let mut made = Parts { layout, parts: Vec::new(), lent };
        for nth in 0..layout.shards {
            let core = cores[nth as usize % cores.len()];
            let plan = Plan { nth, ..plan.clone() };
            let part = if core == here {
                let shard = make(plan, backing.clone()).await?;
                Part { core, local: CoreLocal::keep(shard.clone()), export: None, device: shard }
            } else {
                let lent = backing.as_ref().zip(lent).map(|(device, export)| Lent {
                    core: here,
                    export,
                    name: device.name().to_owned(),
                    limits: device.limits(),
                });
                let (local, export, name, limits) = call(core, move || async move {
                    let backing = lent.map(|l| -> Rc<dyn BlockDevice> {
                        Rc::new(Remote::new(l.core, l.export, l.name, l.limits))
                    });
                    let shard = make(plan, backing).await?;
                    let (name, limits) = (shard.name().to_owned(), shard.limits());
                    Ok::<_, Error>((CoreLocal::keep(shard.clone()), export(shard), name, limits))
                })
                .await?;
                let device = Rc::new(Remote::new(core, export, name, limits));
                Part { core, local, export: Some(export), device }
            };
            made.parts.push(part);
        }
        Ok(made)
    }

    /// How the device is divided.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Asks every shard at once; the answers in their order. `f` runs on the shards' cores.
    pub(crate) async fn ask<T, F, Fut>(&self, f: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Rc<Shard>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let ask = |part: &Part| {
            let (local, f) = (part.local, f.clone());
            call(part.core, move || {
                let shard = local.get::<Shard>().expect("kept as long as its part lives");
                f(shard)
            })
        };
        let asked: Vec<_> = self.parts.iter().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answer.await);
        }
        answers
    }

    /// Sends a bio, checked before, to the shards that it is about.
    pub(crate) fn submit(&self, mut bio: Bio) {
        if let [only] = &self.parts[..] {
            return only.device.submit(bio);
        }
        if !is_whole(&bio) {
            return self.submit_sectors(bio);
        }
        let (slot, pages) = (bio.sector.0 / PAGE_SECTORS, bio.len.0 / PAGE_SECTORS);
        if bio.op != Op::Flush && self.layout.run(slot, pages) == pages {
            let (shard, local) = self.layout.local(slot);
            bio.sector = Sector(u64::from(local) * PAGE_SECTORS);
            return self.parts[shard as usize].device.submit(bio);
        }
        self.split(bio, slot, pages);
    }

    /// A bio that is not of whole pages: its edges go to their shards by themselves.
    fn submit_sectors(&self, bio: Bio) {
        let Bio { op, flags, class, bufs, done, sector: start, .. } = bio;
        let end = start + bio.len;
        let (from, to) = (up(start).min(end), down(end).max(up(start)).min(end));
        let mut sent: SmallVec<[BioFuture; 8]> = SmallVec::new();
        for (piece, piece_end) in [(start, from), (from, to), (to, end)] {
            if piece == piece_end {
                continue;
            }
            let byte = |at: Sector| usize::try_from((at - start).bytes());
            let data = match (byte(piece), byte(piece_end)) {
                (Ok(at), Ok(to)) if !bufs.is_empty() => bufs.slice(at..to),
                _ => Bufs::new(),
            };
            let (slot, len) = (piece.0 / PAGE_SECTORS, piece_end - piece);
            if (piece, piece_end) == (from, to) {
                sent.extend(self.send_pages((op, flags, class), slot, len.0 / PAGE_SECTORS, &data));
                continue;
            }
            let (shard, local) = self.layout.local(slot);
            let at = Sector(u64::from(local) * PAGE_SECTORS + piece.0 % PAGE_SECTORS);
            let device = &*self.parts[shard as usize].device;
            sent.push(io(device, op, flags, class, (at, len), data));
        }
        complete_when_ended(done, sent);
    }

    /// One bio a shard, and a task that waits for them.
    fn split(&self, bio: Bio, slot: u64, pages: u64) {
        let Bio { op, flags, class, bufs, done, .. } = bio;
        complete_when_ended(done, self.send_pages((op, flags, class), slot, pages, &bufs));
    }

    /// One bio a shard.
    fn send_pages(
        &self,
        (op, flags, class): (Op, Flags, Class),
        slot: u64,
        pages: u64,
        bufs: &Bufs,
    ) -> SmallVec<[BioFuture; 8]> {
        let mut gathered: SmallVec<[Bufs; 8]> = self.parts.iter().map(|_| Bufs::new()).collect();
        let mut at = 0;
        // A discard has no buffers, and may be as long as the device.
        while at < pages && !bufs.is_empty() {
            let run = self.layout.run(slot + at, pages - at);
            let (shard, _) = self.layout.local(slot + at);
            let byte = |page: u64| {
                usize::try_from(page).expect("of a bio's buffers, which are in memory") * PAGE
            };
            for slice in bufs.slice(byte(at)..byte(at + run)).iter() {
                gathered[shard as usize].push(slice.clone());
            }
            at += run;
        }
        let mut sent: SmallVec<[BioFuture; 8]> = SmallVec::new();
        for ((nth, part), bufs) in (0..).zip(&self.parts).zip(gathered) {
            let slots = self.layout.part_of(nth, slot, slot + pages);
            if !slots.is_empty() || op == Op::Flush {
                let sector = |local: u32| Sector(u64::from(local) * PAGE_SECTORS);
                let range = (sector(slots.start), sector(slots.end - slots.start));
                sent.push(io(&*part.device, op, flags, class, range, bufs));
            }
        }
        sent
    }
}

/// A task that waits for all, and then completes what they are pieces of.
fn complete_when_ended(done: Completion, sent: SmallVec<[BioFuture; 8]>) {
    spawn(async move {
        let mut worst = Status::Ok;
        for bio in sent {
            worst = worst.worst(bio.await.into());
        }
        done.complete(worst);
    });
}

impl Drop for Parts {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        for Part { core, local, export, .. } in self.parts.drain(..) {
            let forget = move || {
                local.release();
                if let Some(export) = export {
                    unexport(export);
                }
            };
            if core == core_id() {
                forget();
            } else {
                post(core, Msg::Call(Box::new(forget)));
            }
        }
        if let Some(export) = self.lent {
            unexport(export);
        }
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} of {:?})", self.parts.len(), self.layout)
    }
}
