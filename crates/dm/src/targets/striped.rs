// SPDX-License-Identifier: Apache-2.0 OR MIT
//! striped `<n> <chunk_sectors> [<dev> <offset>]{n}`: chunks dealt out in turn to n devices.
use std::cell::Cell;
use std::rc::Rc;

use block::attr::Manual;
use block::runs::{Runs, joined};
use block::value::digits;
use block::{Bio, BlockDevice, Component, Error, Limits, Op, Sector, Target, ZeroRuns};

use crate::area::{Area, number, shifted, stack};
use crate::context::Context;
use crate::device_set::DeviceSet;
use crate::layout::Layout;
use crate::split::{Split, flush_all};
use crate::stripe_errors::StripeErrors;
use crate::whole::Whole;

pub(super) static MANUAL: Manual = Manual::new(
    "striped",
    (1, 7, 0),
    "chunks of several devices in turn",
    "<n> <chunk_sectors> [<dev> <offset>]{n}",
);

pub(crate) struct Striped {
    pub(crate) layout: Layout,
    pub(crate) stripes: Vec<Area>,
    /// The distinct devices: what a flush goes to.
    pub(crate) devices: Vec<Rc<dyn BlockDevice>>,
    pub(crate) errors: Rc<StripeErrors>,
    len: Sector,
}

pub(crate) async fn construct(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    if args.len() < 2 {
        return Err(Error::invalid(format!(
            "Not enough arguments: {} given, must be <n> <chunk_sectors> [<dev> <offset>]{{n}}",
            args.len()
        )));
    }
    let n = at_least_1(&args, 0, "Invalid stripe count")?;
    let chunk = at_least_1(&args, 1, "Invalid chunk_size")?;
    let len = ctx.len().0;
    if !len.is_multiple_of(u64::from(n)) {
        return Err(Error::invalid(format!(
            "Target length not divisible by number of stripes: length {len}, {n} stripes"
        )));
    }
    let width = len / u64::from(n);
    if !width.is_multiple_of(u64::from(chunk)) {
        return Err(Error::invalid(format!(
            "Target length not divisible by chunk size: {width} sectors a stripe, chunk {chunk}"
        )));
    }
    let want = 2 + 2 * n as usize;
    if args.len() != want {
        let given = args.len();
        return Err(Error::invalid(format!(
            "Not enough destinations specified: {n} stripes need {want} arguments, {given} given"
        )));
    }
    let mut stripes = Vec::new();
    for i in 0..n as usize {
        let stripe = Area::open(&ctx, &args, 2 + 2 * i, Sector(width)).await;
        stripes.push(stripe.map_err(|e| e.within("Couldn't parse stripe destination"))?);
    }
    let mut devices = DeviceSet::default();
    for stripe in &stripes {
        devices.insert(&stripe.device);
    }
    let devices = devices.devices;
    let counts = vec![Cell::new(0); stripes.len()];
    let errors = Rc::new(StripeErrors { counts, events: ctx.events() });
    let layout = Layout::new(u64::from(n), u64::from(chunk));
    Ok(Rc::new(Striped { layout, stripes, devices, errors, len: ctx.len() }))
}

/// All of each stripe's device, in whole chunks.
pub(super) fn whole(args: &[String]) -> Option<Whole> {
    let number = |at: usize| digits::<u32>(args.get(at)?).filter(|n| *n > 0);
    let (n, chunk) = (number(0)?, number(1)?);
    if args.len() != 2 + 2 * n as usize {
        return None;
    }
    let devices = (0..n as usize).map(|i| (2 + 2 * i, Some(3 + 2 * i))).collect();
    Some(Whole { devices, times: n.into(), unit: Sector(chunk.into()) })
}

fn at_least_1(args: &[String], at: usize, wrong: &str) -> Result<u32, Error> {
    let allowed = "a decimal number from 1 to 4294967295";
    match number(args, at, wrong, allowed)? {
        0 => Err(Error::invalid(format!("{wrong}: argument {} is 0, must be {allowed}", at + 1))),
        n => Ok(n),
    }
}

impl Striped {
    /// Data that crosses chunks goes as one bio a chunk.
    fn split_at_chunks(&self, bio: Bio) {
        let (begin, end) = (bio.sector, bio.end());
        let mut split = Split::new(bio);
        let mut at = begin;
        while at < end {
            let (_, _, left) = self.layout.locate(at);
            let len = left.min(end - at);
            split.send(self, at, len, at - begin);
            at += len;
        }
        split.finish();
    }

    /// A request without data goes as one bio a stripe, whatever its length.
    fn split_by_stripe(&self, bio: Bio) {
        let (begin, end) = (bio.sector, bio.end());
        let mut split = Split::new(bio);
        for (i, stripe) in self.stripes.iter().enumerate() {
            let from = self.layout.boundary(begin, i);
            let to = self.layout.boundary(end, i);
            if from < to {
                let counted = Stripe { area: stripe, index: i, errors: &self.errors };
                split.send(&counted, from, to - from, Sector::ZERO);
            }
        }
        split.finish();
    }
}

/// One stripe as a device that counts its errors.
struct Stripe<'a> {
    area: &'a Area,
    index: usize,
    errors: &'a Rc<StripeErrors>,
}

impl BlockDevice for Stripe<'_> {
    fn name(&self) -> &str {
        self.area.device.name()
    }

    fn limits(&self) -> Limits {
        self.area.device.limits()
    }

    fn submit(&self, mut bio: Bio) {
        bio.done = reactor::chain(bio.done, self.errors.clone(), self.index as u64);
        self.area.submit(bio);
    }
}

impl BlockDevice for Striped {
    fn name(&self) -> &str {
        "striped"
    }

    fn limits(&self) -> Limits {
        let mut limits = self.stripes[0].limits(self.len);
        for stripe in &self.stripes[1..] {
            stack(&mut limits, &stripe.limits(self.len));
        }
        let chunk = self.layout.chunk.value;
        shifted(&mut limits, Sector(chunk));
        let bytes = |sectors: u64| u32::try_from(sectors.saturating_mul(512)).unwrap_or(0);
        limits.io_min_bytes = bytes(chunk).max(limits.io_min_bytes);
        limits.io_opt_bytes = bytes(chunk.saturating_mul(self.layout.n.value));
        limits
    }

    fn submit(&self, mut bio: Bio) {
        if bio.op == Op::Flush {
            return flush_all(bio, self.devices.iter().map(|d| &**d));
        }
        let (index, sector, left) = self.layout.locate(bio.sector);
        if bio.len <= left {
            bio.sector = sector;
            Stripe { area: &self.stripes[index], index, errors: &self.errors }.submit(bio);
        } else if matches!(bio.op, Op::Read | Op::Write) {
            self.split_at_chunks(bio);
        } else {
            self.split_by_stripe(bio);
        }
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let (layout, end) = (self.layout, at + len);
        let on_stripe = |(index, area): (usize, &Area)| {
            let (from, to) = (layout.boundary(at, index), layout.boundary(end, index));
            (from < to).then(|| (index, area.zero_runs(from, to - from)))
        };
        let below: Vec<_> = self.stripes.iter().enumerate().filter_map(on_stripe).collect();
        Box::pin(async move {
            let mut runs = Runs::new();
            for (index, zeroes) in below {
                for (from, len) in zeroes.await {
                    layout.for_each_chunk(index, from, len, |at, len| runs.push((at, len)));
                }
            }
            joined(runs)
        })
    }
}

impl Target for Striped {
    fn kind(&self) -> &'static str {
        "striped"
    }

    fn table(&self) -> String {
        let mut out = format!("{} {}", self.stripes.len(), self.layout.chunk.value);
        for stripe in &self.stripes {
            out.push_str(&format!(" {stripe}"));
        }
        out
    }

    /// `<n> <dev>{n} 1 <A or D>{n}`; D is a stripe that has had errors.
    fn status(&self) -> String {
        let mut out = self.stripes.len().to_string();
        for stripe in &self.stripes {
            out.push_str(&format!(" {}", block::quote(stripe.device.name())));
        }
        out.push_str(" 1 ");
        out.extend(self.errors.counts.iter().map(|n| if n.get() > 0 { 'D' } else { 'A' }));
        out
    }

    fn components(&self) -> Vec<Component> {
        let width = Sector(self.len.0 / self.layout.n.value);
        self.stripes.iter().map(|area| area.component(width)).collect()
    }
}
