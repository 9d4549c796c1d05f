// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts: the handles of a device's parts on core 0, wherever the parts are.
//!
//! ```text
//!   bio ──▶ router ──▶ its part or parts
//!   ask ──▶ a task on the core of the part, its answer back here
//! ```
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use block::runs::{Runs, joined};
use block::{Bio, BlockDevice, CoreId, Error, Limits, MakeDevice, Sector};
use reactor::{
    CoreLocal, Export, Msg, Remote, SharedDeviceName, call, core_id, export, post, unexport,
};
use smallvec::SmallVec;

use crate::backing::Backing;
use crate::layout::{Layout, PAGE_SECTORS};
use crate::part::{Part, Plan};
use crate::router::{RoutedDevice, Router};

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
    /// Where other cores may use it.
    export: Option<Export>,
}

/// See the module.
pub(crate) struct Parts {
    router: Router,
    parts: Vec<PartHandle>,
    /// The backing device, if other cores use it.
    exported: Option<Export>,
}

/// A part, with this core's handle of the backing device.
fn part_of(plan: Plan, device: Option<Rc<dyn BlockDevice>>) -> Result<Rc<Part>, Error> {
    let backing = device.map(|device| {
        let region = plan.layout.region(plan.nth, device.limits().capacity);
        Backing::new(device, region, plan.packed).with_planted(plan.planted)
    });
    Part::new(plan, backing)
}

impl Parts {
    /// Makes the parts of `plan`, round robin on `cores`, of which the first is this one.
    pub(crate) async fn make(
        plan: &Plan,
        cores: &[CoreId],
        backing: Option<Rc<dyn BlockDevice>>,
    ) -> Result<Parts, Error> {
        let layout = plan.layout;
        let here = core_id();
        let elsewhere = cores.iter().take(layout.parts as usize).any(|core| *core != here);
        let exported = backing.as_ref().filter(|_| elsewhere).map(|device| export(device.clone()));
        // Dropped with the parts so far when a later one fails.
        let router = Router { layout, devices: SmallVec::new() };
        let mut made = Parts { router, parts: Vec::new(), exported };
        for nth in 0..layout.parts {
            let core = cores[nth as usize % cores.len()];
            let plan = Plan { nth, ..plan.clone() };
            let (part, device): (_, Rc<dyn BlockDevice>) = if core == here {
                let part = part_of(plan, backing.clone())?;
                let export = elsewhere.then(|| export(part.clone()));
                (PartHandle { core, local: CoreLocal::keep(part.clone()), export }, part)
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
                    let part = part_of(plan, backing)?;
                    let (name, limits) = (part.name().to_owned(), part.limits());
                    Ok::<_, Error>((CoreLocal::keep(part.clone()), export(part), name, limits))
                })
                .await?;
                let device = Remote::new(core, export, name, limits);
                (PartHandle { core, local, export: Some(export) }, Rc::new(device))
            };
            made.parts.push(part);
            made.router.devices.push(device);
        }
        Ok(made)
    }

    /// How the device is divided.
    pub(crate) fn layout(&self) -> Layout {
        self.router.layout
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
    pub(crate) fn submit(&self, bio: Bio) {
        self.router.submit(bio);
    }

    /// Makes the way to the parts on any core; `None` where there is one part only, which is on
    /// this one.
    pub(crate) fn on_every_core(&self, name: &str, limits: &Limits) -> Option<MakeDevice> {
        let part = |part: &PartHandle| {
            Some(SharedDeviceName { core: part.core, local: part.local, export: part.export? })
        };
        let parts: Vec<SharedDeviceName> = self.parts.iter().map(part).collect::<Option<_>>()?;
        let way = (self.router.layout, name.to_owned(), limits.clone());
        Some(Arc::new(move || {
            let (layout, name, limits) = way.clone();
            let devices: Option<_> =
                parts.iter().map(|part| part.device::<Part>(&name, &limits)).collect();
            let router = Router { layout, devices: devices? };
            Some(Rc::new(RoutedDevice { router, name, limits }) as Rc<dyn BlockDevice>)
        }))
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

block::debug_as!(Parts, s => "Parts({} of {:?})", s.parts.len(), s.router.layout);
