// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The length `-` of a table line: as much as the devices of its arguments have.
//!
//! ```text
//!   0 - linear  ./disk.img 8                    the sectors of disk.img from 8 on
//!   0 - striped 2 128 ./a.img 0 ./b.img 0       twice the shorter of the two, in whole chunks
//! ```
use std::rc::Rc;

use block::{Error, Sector};

use crate::area::offset;
use crate::context::{DeviceLookup, TargetType};

/// Which of its arguments decide how long a target is when its line has the length `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The devices: the argument that names each, and the argument that is its first sector.
    pub devices: Vec<(usize, Option<usize>)>,
    /// How many times the shortest of them.
    pub times: u64,
    /// Each one's share is a multiple of this.
    pub unit: Sector,
}

/// [`Whole`] of arguments; none when they are incomplete, which the constructor reports.
pub type WholeOf = fn(&[String]) -> Option<Whole>;

impl Whole {
    /// The argument `at` alone, from sector 0 on.
    pub fn of_device(args: &[String], at: usize, unit: Sector) -> Option<Whole> {
        args.get(at).map(|_| Whole { devices: vec![(at, None)], times: 1, unit })
    }

    /// The argument `at` alone, from the sector on that follows it.
    pub(crate) fn of_area(args: &[String], at: usize) -> Option<Whole> {
        let devices = vec![(at, Some(at + 1))];
        args.get(at + 1).map(|_| Whole { devices, times: 1, unit: Sector(1) })
    }
}

/// The length of a line of this target type.
pub(crate) async fn length(
    kind: &TargetType,
    devices: &Rc<dyn DeviceLookup>,
    args: &[String],
) -> Result<Sector, Error> {
    let manual = kind.manual;
    let whole = kind.whole.ok_or_else(|| {
        let name = manual.name;
        let text = "give a number of sectors or a size such as 64M";
        Error::invalid(format!("length `-`: {name} has no device that has a length: {text}"))
    })?;
    let whole = whole(args).ok_or_else(|| {
        let form = manual.arguments;
        Error::invalid(format!("length `-`: arguments are missing or wrong: it takes {form}"))
    })?;
    let mut shortest = None;
    for (device, at) in whole.devices {
        let word = &args[device];
        let first = at.map_or(Ok(Sector::ZERO), |at| offset(args, at))?;
        let found = devices.find(word.clone()).await;
        let found = found.map_err(|e| e.within(format!("Device lookup failed: `{word}`")))?;
        let limits = found.limits();
        let write_unit = Sector::from_bytes(limits.write_unit_bytes().into());
        let left = limits.capacity.saturating_sub(first).0;
        // Whole units of the target and of the device.
        let left = left / whole.unit.0 * whole.unit.0;
        let left = Sector(left / write_unit.0 * write_unit.0);
        if left == Sector::ZERO {
            let (name, capacity) = (found.name(), limits.capacity);
            return Err(Error::invalid(format!(
                "length `-`: {name} has {capacity} sectors: none is left from sector {first} on"
            )));
        }
        shortest = Some(shortest.map_or(left, |least: Sector| least.min(left)));
    }
    let shortest = shortest.ok_or_else(|| Error::invalid("length `-`: no device is named"))?;
    Ok(Sector(shortest.0.saturating_mul(whole.times)))
}
