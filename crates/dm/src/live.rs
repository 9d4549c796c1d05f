// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table with its targets constructed: finds the target of a bio and hands it down.
//!
//! Stacks of mapped devices are walked, not flattened: each layer rewrites the sector in place and
//! costs one op slot. So a lower device can swap its table without those above knowing.
use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Extent, Limits, Map, Op, Sector, Status, Target};

use crate::area::{same, shifted, stack};
use crate::context::Uses;
use crate::device::{Depths, MappedDevice};
use crate::split::{Split, flush_all};

/// One line at work.
pub(crate) struct Entry {
    pub(crate) line_no: usize,
    pub(crate) start: Sector,
    pub(crate) end: Sector,
    pub(crate) target: Rc<dyn Target>,
}

impl Entry {
    pub(crate) fn place(&self) -> String {
        format!("line {}: {}", self.line_no, self.target.kind())
    }
}

/// The devices of a table's pure mappings, one target's after the other's.
#[derive(Default)]
struct PureMap {
    devices: Vec<Rc<dyn BlockDevice>>,
    /// Where each target's devices begin.
    bases: Vec<usize>,
}

pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
    pub(crate) uses: Uses,
    /// Stacked from the targets; refreshed when the table goes live.
    limits: RefCell<Limits>,
    /// Who gets a flush: distinct devices below pure mappings, and every other target.
    flushed: Vec<Rc<dyn BlockDevice>>,
    /// When all targets are pure mappings.
    map: Option<PureMap>,
}

impl Table {
    pub(crate) fn new(entries: Vec<Entry>, uses: Uses) -> Result<Table, Error> {
        let mut flushed: Vec<Rc<dyn BlockDevice>> = Vec::new();
        let mut map = Some(PureMap::default());
        for entry in &entries {
            if let Some(pure) = entry.target.as_map() {
                for device in pure.devices() {
                    if !flushed.iter().any(|d| same(d, device)) {
                        flushed.push(device.clone());
                    }
                }
                if let Some(map) = &mut map {
                    map.bases.push(map.devices.len());
                    map.devices.extend(pure.devices().iter().cloned());
                }
            } else {
                flushed.push(entry.target.clone());
                map = None;
            }
        }
        let limits = RefCell::new(stacked(&entries));
        let table = Table { entries, uses, limits, flushed, map };
        table.check_alignment()?;
        Ok(table)
    }

    /// A bio must fit the strictest device's blocks wherever it lies, so every line does.
    fn check_alignment(&self) -> Result<(), Error> {
        let bytes = self.limits.borrow().logical_block_bytes;
        let block = Sector::from_bytes(bytes.into());
        for entry in &self.entries {
            let (start, len) = (entry.start, entry.end - entry.start);
            if !start.is_aligned(block) || !len.is_aligned(block) {
                return Err(Error::invalid(format!(
                    "{}: table line (start sect {start} len {len}) not aligned to h/w logical \
                     block size {bytes}: must be multiples of {block} sectors",
                    entry.place()
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits.borrow().clone()
    }

    /// Looks at the targets' limits again: what is below may have changed since the load.
    pub(crate) fn refresh_limits(&self) {
        *self.limits.borrow_mut() = stacked(&self.entries);
    }

    /// Whether every target is a pure mapping, so that the table is one.
    pub(crate) fn is_map(&self) -> bool {
        self.map.is_some() && !self.entries.is_empty()
    }

    pub(crate) fn find(&self, at: Sector) -> Option<&Entry> {
        self.entries.get(self.entries.partition_point(|e| e.end <= at))
    }

    pub(crate) fn targets(&self) -> Vec<Rc<dyn Target>> {
        self.entries.iter().map(|e| e.target.clone()).collect()
    }

    /// Whether the table holds `device` open.
    pub(crate) fn opens(&self, device: &Rc<MappedDevice>) -> bool {
        self.uses.mapped.iter().any(|o| Rc::ptr_eq(o.device(), device))
    }

    /// Longest chain of mapped devices below, each of which is then in `known`.
    pub(crate) fn depth(&self, known: &mut Depths) -> usize {
        self.uses.mapped.iter().map(|o| o.device().depth(known)).max().unwrap_or(0)
    }

    /// Hands a bio to its target, in place when it lies in one.
    pub(crate) fn submit(&self, mut bio: Bio) {
        if let Err(status) = self.limits.borrow().check(&bio) {
            return bio.complete(status);
        }
        if bio.op == Op::Flush {
            return flush_all(bio, self.flushed.iter().map(|d| &**d));
        }
        let Some(entry) = self.find(bio.sector) else {
            // Not reached: the capacity is the last line's end.
            return bio.complete(Status::Invalid);
        };
        if bio.end() <= entry.end {
            bio.sector -= entry.start;
            entry.target.submit(bio);
        } else {
            self.split_at_targets(bio);
        }
    }

    fn split_at_targets(&self, bio: Bio) {
        let (begin, end) = (bio.sector, bio.end());
        let mut split = Split::new(bio);
        let first = self.entries.partition_point(|e| e.end <= begin);
        for entry in self.entries[first..].iter().take_while(|e| e.start < end) {
            let at = entry.start.max(begin);
            let len = entry.end.min(end) - at;
            split.send(&*entry.target, at - entry.start, len, at - begin);
        }
        split.finish();
    }

    /// Suspends every target; the first error is told, but every target is asked.
    pub(crate) async fn suspend(&self) -> Result<(), Error> {
        suspend(&self.entries).await
    }

    /// Resumes the targets in order. When one fails, those before it are suspended again.
    pub(crate) async fn resume(&self) -> Result<(), Error> {
        for (i, entry) in self.entries.iter().enumerate() {
            if let Err(e) = entry.target.clone().resume().await {
                let e = e.within(entry.place());
                return match suspend(&self.entries[..i]).await {
                    Ok(()) => Err(e),
                    Err(also) => Err(e.because(also)),
                };
            }
        }
        Ok(())
    }
}

async fn suspend(entries: &[Entry]) -> Result<(), Error> {
    let mut result = Ok(());
    for entry in entries {
        let one = entry.target.clone().suspend().await.map_err(|e| e.within(entry.place()));
        result = result.and(one);
    }
    result
}

fn stacked(entries: &[Entry]) -> Limits {
    let mut all: Option<Limits> = None;
    for entry in entries {
        let mut limits = entry.target.limits();
        shifted(&mut limits, entry.start);
        if let Some(all) = &mut all {
            stack(all, &limits);
        } else {
            all = Some(limits);
        }
    }
    let capacity = entries.last().map_or(Sector::ZERO, |e| e.end);
    Limits { capacity, ..all.unwrap_or_else(|| Limits::new(capacity)) }
}

impl Map for Table {
    fn devices(&self) -> &[Rc<dyn BlockDevice>] {
        self.map.as_ref().map_or(&[], |m| &m.devices)
    }

    fn map(&self, at: Sector, len: Sector) -> Extent {
        let all = self.map.as_ref().expect("handed out only when `is_map` holds");
        let index = self.entries.partition_point(|e| e.end <= at);
        let entry = &self.entries[index];
        let pure = entry.target.as_map().expect("pure when the table was made, and for good");
        let extent = pure.map(at - entry.start, len.min(entry.end - at));
        Extent { device: all.bases[index] + extent.device, ..extent }
    }
}
