// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Area: a run of sectors of a component device, what `<dev> <offset>` in a table line names.
use std::fmt;
use std::rc::Rc;

use block::{Bio, BlockDevice, Component, Error, Limits, Op, Role, Sector, ZeroRuns};

use crate::context::Context;
use crate::table::sectors_of;

/// A run of sectors of a component device, opened and checked against its size.
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) device: Rc<dyn BlockDevice>,
    pub(crate) offset: Sector,
}

impl Area {
    /// Opens `args[at]` as the device and `args[at + 1]` as its offset, `len` sectors long.
    pub(crate) async fn open(
        ctx: &Context,
        args: &[String],
        at: usize,
        len: Sector,
    ) -> Result<Area, Error> {
        let offset = offset(args, at + 1)?;
        let device = ctx.lookup(&args[at]).await?;
        ctx.check_area(&*device, offset, len)?;
        Ok(Area { device, offset })
    }

    /// Remaps in place and sends down.
    pub(crate) fn submit(&self, mut bio: Bio) {
        if bio.op != Op::Flush {
            bio.sector += self.offset;
        }
        self.device.submit(bio);
    }

    /// [`BlockDevice::zero_runs`] of a part of the area, counted from its first sector.
    pub(crate) fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let (below, offset) = (self.device.zero_runs(at + self.offset, len), self.offset);
        let above = move |(at, len)| (at - offset, len);
        Box::pin(async move { below.await.into_iter().map(above).collect() })
    }

    /// What a target says of it when it is `len` sectors long.
    pub(crate) fn component(&self, len: Sector) -> Component {
        Component { device: self.device.clone(), start: self.offset, len, role: Role::Mapped }
    }

    /// Limits of the area when it is `len` sectors long.
    pub(crate) fn limits(&self, len: Sector) -> Limits {
        let mut limits = Limits { capacity: len, ..self.device.limits() };
        shifted(&mut limits, self.offset);
        limits
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", block::quote(self.device.name()), self.offset)
    }
}

/// What stays of a device's promises when its sectors are seen from `offset` on: an atomic unit
/// that the offset does not keep aligned could tear.
pub(crate) fn shifted(limits: &mut Limits, offset: Sector) {
    if offset > Sector::ZERO {
        let aligned = 512_u64 << offset.0.trailing_zeros().min(32);
        let aligned = u32::try_from(aligned).unwrap_or(u32::MAX);
        limits.atomic_write_unit_bytes = limits.atomic_write_unit_bytes.min(aligned);
    }
}

/// Stacks `below` as a table does: discards reach all of a device or are not offered at all.
pub(crate) fn stack(limits: &mut Limits, below: &Limits) {
    let all_discard = limits.discard_granularity_bytes > 0 && below.discard_granularity_bytes > 0;
    limits.stack(below);
    if !all_discard {
        limits.discard_granularity_bytes = 0;
    }
}

/// Argument `at` as the sector of a device.
pub(crate) fn offset(args: &[String], at: usize) -> Result<Sector, Error> {
    const WRONG: &str = "Invalid device sector";
    const ALLOWED: &str = "a decimal number of sectors, or a size (64M) that is a multiple of 512";
    match args.get(at).and_then(|word| sectors_of(word)) {
        Some(offset) => Ok(offset),
        None => number::<u64>(args, at, WRONG, ALLOWED).map(Sector),
    }
}

/// Argument `at` as a number; the error says `wrong`, which argument, and what is `allowed`.
pub(crate) fn number<T: std::str::FromStr>(
    args: &[String],
    at: usize,
    wrong: &str,
    allowed: &str,
) -> Result<T, Error> {
    let Some(word) = args.get(at) else {
        return Err(Error::invalid(format!("{wrong}: argument {} is missing", at + 1)));
    };
    block::value::digits(word).ok_or_else(|| {
        Error::invalid(format!("{wrong}: argument {} is `{word}`, must be {allowed}", at + 1))
    })
}
