// SPDX-License-Identifier: Apache-2.0 OR MIT
//! striped `<n> <chunk_sectors> [<dev> <offset>]{n}`: chunks dealt out in turn to n devices.
//!
//! ```text
//!   sector s:  c = s / chunk    r = s % chunk    stripe = c % n    row = c / n
//!   it lives on that stripe at   offset + row * chunk + r
//! ```
use std::cell::Cell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Extent, Limits, Map, Op, Sector, Status, Target};
use reactor::OnDone;

use crate::area::{Area, distinct, number, same, shifted, stack};
use crate::context::{Context, Events};
use crate::split::{Split, flush_all};
use crate::table::quote;

/// Errors of one stripe that raise an event; later ones are only counted (the kernel's number).
const ERROR_EVENTS_MAX: u32 = 15;

pub(crate) struct Striped {
    layout: Layout,
    stripes: Vec<Area>,
    /// The distinct devices: what a flush goes to, and what extents point at.
    devices: Vec<Rc<dyn BlockDevice>>,
    /// Index into `devices` by stripe.
    device_of: Vec<usize>,
    errors: Rc<Errors>,
    len: Sector,
}

/// Divisor that is a shift when it can be.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    value: u64,
    shift: Option<u32>,
}

impl Divisor {
    fn new(value: u64) -> Divisor {
        assert!(value > 0, "checked when the table was loaded");
        let shift = value.is_power_of_two().then(|| value.trailing_zeros());
        Divisor { value, shift }
    }

    fn divide(self, x: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (x >> shift, x & (self.value - 1)),
            None => (x / self.value, x % self.value),
        }
    }
}

/// Where sectors live, counted on each stripe from its offset.
#[derive(Clone, Copy, Debug)]
struct Layout {
    n: Divisor,
    chunk: Divisor,
}

impl Layout {
    fn new(n: u64, chunk: u64) -> Layout {
        Layout { n: Divisor::new(n), chunk: Divisor::new(chunk) }
    }

    /// Stripe, sector on it, and sectors left in the chunk.
    fn place(self, at: Sector) -> (usize, Sector, Sector) {
        let (chunk, inside) = self.chunk.divide(at.0);
        let (row, stripe) = self.n.divide(chunk);
        let stripe = usize::try_from(stripe).expect("below the number of stripes");
        (stripe, Sector(row * self.chunk.value + inside), Sector(self.chunk.value - inside))
    }

    /// The boundary `at` as seen on `stripe`: everything before it there lies before `at`.
    fn boundary(self, at: Sector, stripe: usize) -> Sector {
        let (holder, place, left) = self.place(at);
        let chunk_start = Sector(place.0 - (self.chunk.value - left.0));
        match stripe.cmp(&holder) {
            std::cmp::Ordering::Equal => place,
            std::cmp::Ordering::Less => chunk_start + Sector(self.chunk.value),
            std::cmp::Ordering::Greater => chunk_start,
        }
    }
}

/// Failed requests by stripe.
struct Errors {
    counts: Vec<Cell<u32>>,
    events: Events,
}

impl OnDone for Errors {
    fn on_done(&self, status: Status, stripe: u64) {
        if matches!(status, Status::Ok | Status::NotSupported) {
            return;
        }
        let stripe = usize::try_from(stripe).expect("a stripe's index");
        let count = self.counts[stripe].get().saturating_add(1);
        self.counts[stripe].set(count);
        if count <= ERROR_EVENTS_MAX {
            self.events.raise();
        }
    }
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
    let devices = distinct(stripes.iter());
    let device_of = stripes
        .iter()
        .map(|s| devices.iter().position(|d| same(d, &s.device)).expect("devices holds them all"))
        .collect();
    let counts = vec![Cell::new(0); stripes.len()];
    let errors = Rc::new(Errors { counts, events: ctx.events() });
    let layout = Layout::new(u64::from(n), u64::from(chunk));
    Ok(Rc::new(Striped { layout, stripes, devices, device_of, errors, len: ctx.len() }))
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
            let (_, _, left) = self.layout.place(at);
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
    errors: &'a Rc<Errors>,
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
        let (index, sector, left) = self.layout.place(bio.sector);
        if bio.len <= left {
            bio.sector = sector;
            Stripe { area: &self.stripes[index], index, errors: &self.errors }.submit(bio);
        } else if matches!(bio.op, Op::Read | Op::Write) {
            self.split_at_chunks(bio);
        } else {
            self.split_by_stripe(bio);
        }
    }
}

impl Map for Striped {
    fn devices(&self) -> &[Rc<dyn BlockDevice>] {
        &self.devices
    }

    fn map(&self, at: Sector, len: Sector) -> Extent {
        let (stripe, sector, left) = self.layout.place(at);
        let sector = self.stripes[stripe].offset + sector;
        Extent { device: self.device_of[stripe], sector, len: len.min(left) }
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
            out.push_str(&format!(" {}", quote(stripe.device.name())));
        }
        out.push_str(" 1 ");
        out.extend(self.errors.counts.iter().map(|n| if n.get() > 0 { 'D' } else { 'A' }));
        out
    }

    fn deps(&self) -> Vec<String> {
        self.devices.iter().map(|d| d.name().to_owned()).collect()
    }

    fn as_map(&self) -> Option<&dyn Map> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sector, then (stripe, sector on it) for (n, chunk) = (3,128) (2,8) (3,100) (5,7).
    const VECTORS: [(u64, [(usize, u64); 4]); 13] = [
        (0, [(0, 0), (0, 0), (0, 0), (0, 0)]),
        (7, [(0, 7), (0, 7), (0, 7), (1, 0)]),
        (8, [(0, 8), (1, 0), (0, 8), (1, 1)]),
        (99, [(0, 99), (0, 51), (0, 99), (4, 15)]),
        (100, [(0, 100), (0, 52), (1, 0), (4, 16)]),
        (127, [(0, 127), (1, 63), (1, 27), (3, 22)]),
        (128, [(1, 0), (0, 64), (1, 28), (3, 23)]),
        (255, [(1, 127), (1, 127), (2, 55), (1, 52)]),
        (256, [(2, 0), (0, 128), (2, 56), (1, 53)]),
        (384, [(0, 128), (0, 192), (0, 184), (4, 76)]),
        (1000, [(1, 360), (1, 496), (1, 300), (2, 202)]),
        (4096, [(2, 1280), (0, 2048), (1, 1396), (0, 820)]),
        (65535, [(1, 21887), (1, 32767), (1, 21835), (2, 13105)]),
    ];

    #[test]
    fn sectors_map_as_the_kernel_maps_them() {
        let layouts = [(3, 128), (2, 8), (3, 100), (5, 7)].map(|(n, c)| Layout::new(n, c));
        for (sector, wants) in VECTORS {
            for (layout, (stripe, at)) in layouts.iter().zip(wants) {
                let (got, place, _) = layout.place(Sector(sector));
                assert_eq!((got, place.0), (stripe, at), "sector {sector} in {layout:?}");
            }
        }
    }

    #[test]
    fn a_discard_is_dealt_out_by_the_kernels_rounding_rule() {
        let layout = Layout::new(3, 128);
        // The range, then begin and end on each stripe; equal when nothing goes there.
        let cases = [
            ((0, 384), [(0, 128), (0, 128), (0, 128)]),
            ((0, 128), [(0, 128), (0, 0), (0, 0)]),
            ((100, 300), [(100, 128), (0, 128), (0, 44)]),
            ((130, 140), [(128, 128), (2, 12), (0, 0)]),
            ((200, 1000), [(128, 384), (72, 360), (0, 256)]),
            ((384, 768), [(128, 256), (128, 256), (128, 256)]),
            ((5, 4096), [(5, 1408), (0, 1408), (0, 1280)]),
        ];
        for ((begin, end), wants) in cases {
            for (stripe, want) in wants.into_iter().enumerate() {
                let from = layout.boundary(Sector(begin), stripe).0;
                let to = layout.boundary(Sector(end), stripe).0;
                assert_eq!((from, to), want, "stripe {stripe} of {begin}..{end}");
            }
        }
    }
}
