// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts: the handles of a device's parts on core 0, wherever the parts are.
//!
//! ```text
//!   bio of one chunk ──▶ its part, as it is (sector rewritten)
//!   longer bio       ──▶ one bio a part: its chunks are adjacent there, buffers gathered
//!   ask              ──▶ a task on the core of the part, its answer back here
//! ```
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use block::runs::{Runs, joined};
use block::{Bio, BlockDevice, Bufs, Class, CoreId, Edges, Error, Flags, Op, Sector};
use reactor::{
    BioFuture, CoreLocal, Export, Msg, Remote, call, complete_after, core_id, export, io, post,
    unexport,
};
use smallvec::SmallVec;

use crate::layout::{Layout, PAGE_SECTORS, is_whole};
use crate::part::{Part, Plan};
use crate::slot::PAGE;

/// The backing device, as another core gets access to it.
struct RemoteBacking {
    core: CoreId,
    export: Export,
    name: String,
    limits: block::Limits,
}

/// The handle of a part.
struct PartHandle {
    core: CoreId,
    local: CoreLocal,
    export: Option<Export>,
    device: Rc<dyn BlockDevice>,
}

/// See the module.
pub(crate) struct Parts {
    layout: Layout,
    parts: Vec<PartHandle>,
    /// The backing device, if other cores use it.
    exported: Option<Export>,
}

/// Makes a part on its core, from a plan and that core's handle of the backing device.
pub(crate) type Make<Fut> = fn(Plan, Option<Rc<dyn BlockDevice>>) -> Fut;

impl Parts {
    /// Makes the parts of `plan`, round robin on `cores`, of which the first is this one.
    pub(crate) async fn make<Fut>(
        plan: &Plan,
        cores: &[CoreId],
        backing: Option<Rc<dyn BlockDevice>>,
        make: Make<Fut>,
    ) -> Result<Parts, Error>
    where
        Fut: Future<Output = Result<Rc<Part>, Error>> + 'static,
    {
        let layout = plan.layout;
        let here = core_id();
        let elsewhere = cores.iter().take(layout.parts as usize).any(|core| *core != here);
        let exported = backing.as_ref().filter(|_| elsewhere).map(|device| export(device.clone()));
        // Dropped with the parts so far when a later one fails.
        let mut made = Parts { layout, parts: Vec::new(), exported };
        for nth in 0..layout.parts {
            let core = cores[nth as usize % cores.len()];
            let plan = Plan { nth, ..plan.clone() };
            let part = if core == here {
                let part = make(plan, backing.clone()).await?;
                PartHandle {
                    core,
                    local: CoreLocal::keep(part.clone()),
                    export: None,
                    device: part,
                }
            } else {
                let exported =
                    backing.as_ref().zip(exported).map(|(device, export)| RemoteBacking {
                        core: here,
                        export,
                        name: device.name().to_owned(),
                        limits: device.limits(),
                    });
                let (local, export, name, limits) = call(core, move || async move {
                    let backing = exported.map(|l| -> Rc<dyn BlockDevice> {
                        Rc::new(Remote::new(l.core, l.export, l.name, l.limits))
                    });
                    let part = make(plan, backing).await?;
                    let (name, limits) = (part.name().to_owned(), part.limits());
                    Ok::<_, Error>((CoreLocal::keep(part.clone()), export(part), name, limits))
                })
                .await?;
                let device = Rc::new(Remote::new(core, export, name, limits));
                PartHandle { core, local, export: Some(export), device }
            };
            made.parts.push(part);
        }
        Ok(made)
    }

    /// How the device is divided.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Runs `f` for all parts at once, each on its core. Returns the results in the order of the
    /// parts.
    pub(crate) async fn ask<T, F, Fut>(&self, f: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Rc<Part>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let ask = |part: &PartHandle| {
            let (local, f) = (part.local, f.clone());
            call(part.core, move || {
                let part = local.get::<Part>().expect("kept as long as its handle lives");
                f(part)
            })
        };
        let asked: Vec<_> = self.parts.iter().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answer.await);
        }
        answers
    }

    /// The runs of slots that read as zeroes.
    pub(crate) async fn zero_runs(&self, at: Sector, len: Sector) -> Runs {
        let (first, end) = (at.0 / PAGE_SECTORS, (at + len).0.div_ceil(PAGE_SECTORS));
        let of_parts = self.ask(move |part| async move { part.zero_slots(first, end) }).await;
        let clipped = |slot: u64| Sector(slot * PAGE_SECTORS).max(at).min(at + len);
        let run = |slot: u64| (clipped(slot), clipped(slot + 1) - clipped(slot));
        joined(of_parts.into_iter().flatten().map(run).collect())
    }

    /// Sends a bio, which has been checked, to its parts.
    pub(crate) fn submit(&self, mut bio: Bio) {
        if let [only] = &self.parts[..] {
            return only.device.submit(bio);
        }
        if !is_whole(&bio) {
            return self.submit_sectors(bio);
        }
        let (slot, pages) = (bio.sector.0 / PAGE_SECTORS, bio.len.0 / PAGE_SECTORS);
        if bio.op != Op::Flush && self.layout.run(slot, pages) == pages {
            let (part, local) = self.layout.local(slot);
            bio.sector = Sector(u64::from(local) * PAGE_SECTORS);
            return self.parts[part as usize].device.submit(bio);
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
            let device = &*self.parts[part as usize].device;
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
        let mut gathered: SmallVec<[Bufs; 8]> = self.parts.iter().map(|_| Bufs::new()).collect();
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

impl Drop for Parts {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        for PartHandle { core, local, export, .. } in self.parts.drain(..) {
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
        if let Some(export) = self.exported {
            unexport(export);
        }
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} of {:?})", self.parts.len(), self.layout)
    }
}
