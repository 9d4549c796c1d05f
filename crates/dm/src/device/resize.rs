// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resize: the table that a device needs to have another size. `replace` puts it in the place of
//! the live one.
//!
//! ```text
//!   before   0 2048 linear a 0          after   0 2048 linear a 0
//!            2048 4096 linear b 0               2048 8192 linear b 0    the last line changes
//! ```
//!
//! Invariants
//! - DM-RS1 A device shrinks only with the token of what is cut, and never below what the table of
//!   another device maps.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector, same_device, size_text};

use super::MappedDevice;
use crate::dm::Dm;
use crate::table;

/// The table of a device for another size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizedTable {
    /// The table.
    pub text: String,
    /// Size of the device now.
    pub before: Sector,
    /// Its size with this table.
    pub after: Sector,
}

impl Dm {
    /// The live table of a device with another length of its last line: `size` less what comes
    /// before it, or as much as the devices of that line have now.
    ///
    /// # Errors
    /// `EINVAL` when the last line can't have another length, `EBUSY` when the device is suspended
    /// or another table waits.
    pub async fn resized_table(
        &self,
        name: &str,
        size: Option<Sector>,
    ) -> Result<ResizedTable, Error> {
        let device = self.get(name)?;
        let resized = self.resized(&device, size).await;
        resized.map_err(|e| e.within(device.name()))
    }

    async fn resized(
        &self,
        device: &Rc<MappedDevice>,
        size: Option<Sector>,
    ) -> Result<ResizedTable, Error> {
        device.check_replaceable()?;
        let none = || Error::invalid("it has no live table");
        let live = device.live().ok_or_else(none)?;
        let (last, rest) = live.entries.split_last().ok_or_else(none)?;
        let line = |e: &crate::live::Entry, len: &str| {
            format!("{} {len} {} {}", e.start, e.target.kind(), e.target.table())
        };
        let kind = self.types.borrow().get(last.target.kind()).cloned();
        let kind = kind.filter(|kind| kind.whole.is_some() || kind.grows).ok_or_else(|| {
            Error::invalid(format!(
                "{}: this line has no device below that could grow or shrink: only the last line \
                 of a table changes its length",
                last.label()
            ))
        })?;
        let len = match size {
            Some(size) if size > last.start => size - last.start,
            Some(size) => {
                return Err(Error::invalid(format!(
                    "{}: it begins at sector {}, beyond {size} sectors ({}): only the last line \
                     of a table changes its length; `load` a table without it",
                    last.label(),
                    last.start,
                    size_text(size.bytes())
                )));
            }
            None => {
                let parsed = table::parse_line(&line(last, "-"), last.line_no)?;
                let place = (last.start, &*parsed.args);
                let whole = self.whole_length_of(device, &kind, place).await;
                whole.map_err(|e| e.within(last.label()))?
            }
        };
        table::check_length(last.start, len).map_err(|e| e.within(last.label()))?;
        let now = last.end - last.start;
        if kind.grows && len < now {
            return Err(Error::invalid(format!(
                "{}: it has {now} sectors ({}), and does not become smaller",
                last.label(),
                size_text(now.bytes())
            )));
        }
        let mut text = String::new();
        for entry in rest {
            let len = entry.end - entry.start;
            text.push_str(&format!("{}\n", line(entry, &len.to_string())));
        }
        text.push_str(&format!("{}\n", line(last, &len.to_string())));
        Ok(ResizedTable { text, before: last.end, after: last.start + len })
    }

    /// Whether a device may have this size (DM-RS1); `force` is the token of an earlier refusal.
    ///
    /// # Errors
    /// `EBUSY` with what would be cut.
    pub fn check_resize(
        &self,
        name: &str,
        resized: &ResizedTable,
        force: Option<&str>,
    ) -> Result<(), Error> {
        let ResizedTable { before, after, .. } = *resized;
        if after >= before {
            return Ok(());
        }
        let device = self.get(name)?;
        let name = device.name();
        for user in self.users(&device) {
            for entry in user.tables().flat_map(|t| t.targets()) {
                let below = entry.components().into_iter();
                let beyond = below.filter(|b| same_device(&b.device, &device));
                let Some(end) = beyond.map(|b| b.start + b.len).find(|end| *end > after) else {
                    continue;
                };
                return Err(Error::busy(format!(
                    "{name}: can't have {after} sectors: the table of {} ({}) uses it up to \
                     sector {end}: resize that device first",
                    user.name(),
                    entry.kind()
                )));
            }
        }
        let harm = format!(
            "{name}: shrinks from {before} to {after} sectors: clients lose the last {}, sectors \
             {after} to {}; what is there stays below the device until that is cut, too",
            size_text((before - after).bytes()),
            before.0 - 1
        );
        let facts = format!("resize {} {name} {before} {after}", device.minor());
        Error::require_token(format::token(facts.as_bytes()), force, harm)
    }
}
