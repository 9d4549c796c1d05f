// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table with its targets constructed: finds the target of a bio and hands it down.
//!
//! The bios of a table of pure mappings take its flat mapping and do not come here. All others go
//! from layer to layer.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Base, Bio, BlockDevice, Error, Limits, Op, Role, Sector, Status, Target, same_device};

use crate::area::{Area, shifted, stack};
use crate::device::handles::Opened;
use crate::device::{Depths, MappedDevice};
use crate::device_set::DeviceSet;
use crate::flat::{Flat, Stripes};
use crate::node::{NODES_MAX, Node};
use crate::split::{Split, flush_all};
use crate::targets::Pure;

/// One line and its target.
pub(crate) struct Entry {
    pub(crate) line_no: usize,
    pub(crate) start: Sector,
    pub(crate) end: Sector,
    pub(crate) target: Rc<dyn Target>,
    pure: Option<Pure>,
    /// The target owns sectors below it: it is an engine.
    pub(crate) owns: bool,
}

impl Entry {
    pub(crate) fn new(line_no: usize, start: Sector, end: Sector, target: Rc<dyn Target>) -> Entry {
        let pure = Pure::of(&target);
        let owns = pure.is_none() && target.components().iter().any(|b| b.role != Role::Mapped);
        Entry { line_no, start, end, target, pure, owns }
    }

    fn is_stale(&self) -> bool {
        self.target.is_stale() || self.stale_below().is_some()
    }

    /// A device below that is stale.
    pub(crate) fn stale_below(&self) -> Option<String> {
        let below = self.target.components();
        let found = below.iter().find(|b| b.device.is_stale())?;
        Some(found.device.name().to_owned())
    }

    /// `line 3: linear`, for messages.
    pub(crate) fn label(&self) -> String {
        format!("line {}: {}", self.line_no, self.target.kind())
    }
}

/// The devices that a table holds open.
#[derive(Default)]
pub(crate) struct Uses {
    /// In order of the lines.
    pub(crate) all: DeviceSet,
    /// Those of `all` that are mapped devices.
    pub(crate) mapped: Vec<Opened>,
}

impl Uses {
    /// Holds a mapped device open.
    pub(crate) fn add_mapped(&mut self, opened: Opened) {
        if !self.mapped.iter().any(|o| Rc::ptr_eq(o.device(), opened.device())) {
            self.mapped.push(opened);
        }
    }

    /// Whether one of them is a mapped device with one of these minor numbers.
    pub(crate) fn is_any(&self, minors: &BTreeSet<u32>) -> bool {
        self.mapped.iter().any(|o| minors.contains(&o.device().minor()))
    }
}

/// A table whose targets have been constructed.
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
    pub(crate) uses: Uses,
    /// Stacked from the targets; refreshed when the table goes live.
    limits: RefCell<Limits>,
    /// The devices that get a flush: distinct devices below pure mappings, and every other target.
    flushed: Vec<Rc<dyn BlockDevice>>,
    pure: bool,
    settled: Cell<bool>,
    /// It has taken the place of another one by force, whose acknowledged writes may be lost.
    pub(crate) fails_flush: bool,
    /// The token that the operator gave when it was loaded.
    pub(crate) forced_by: Option<Rc<str>>,
}

impl Table {
    pub(crate) fn new(entries: Vec<Entry>, uses: Uses) -> Result<Table, Error> {
        let mut flushed = DeviceSet::default();
        for entry in &entries {
            let devices = match &entry.pure {
                Some(Pure::Linear(linear)) => vec![linear.area.device.clone()],
                Some(Pure::Striped(striped)) => striped.devices.clone(),
                None => vec![entry.target.clone() as Rc<dyn BlockDevice>],
            };
            for device in &devices {
                flushed.insert(device);
            }
        }
        let limits = RefCell::new(stacked(&entries));
        let pure = entries.iter().all(|e| e.pure.is_some());
        let settled = Cell::new(false);
        let (fails_flush, forced_by) = (false, None);
        let table = Table {
            entries,
            uses,
            limits,
            flushed: flushed.devices,
            pure,
            settled,
            fails_flush,
            forced_by,
        };
        table.check_alignment()?;
        Ok(table)
    }

    /// A bio must fit the strictest device's blocks wherever it lies, so every line does; and no
    /// two lines share a block.
    fn check_alignment(&self) -> Result<(), Error> {
        let bytes = self.limits.borrow().write_unit_bytes();
        let block = Sector::from_bytes(bytes.into());
        for entry in &self.entries {
            let (start, len) = (entry.start, entry.end - entry.start);
            if !start.is_aligned(block) || !len.is_aligned(block) {
                return Err(Error::invalid(format!(
                    "{}: table line (start sect {start} len {len}) not aligned to h/w logical \
                     block size {bytes}: must be multiples of {block} sectors",
                    entry.label()
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

    /// Whether a part of it is stale.
    pub(crate) fn is_stale(&self) -> bool {
        self.entries.iter().any(Entry::is_stale)
    }

    /// Whether bios may have to wait in a device below.
    pub(crate) fn bios_may_wait(&self) -> bool {
        self.uses.mapped.iter().any(|o| o.device().bios_may_wait())
    }

    /// The target, if there is one line.
    pub(crate) fn only_target(&self) -> Option<&Rc<dyn Target>> {
        match &self.entries[..] {
            [only] => Some(&only.target),
            _ => None,
        }
    }

    /// Whether every target is a pure mapping.
    pub(crate) fn is_pure(&self) -> bool {
        self.pure
    }

    /// The table as one mapping, when every target is a pure one and all below can be its bases.
    pub(crate) fn flatten(&self) -> Option<Flat> {
        let (mut parts, mut striped) = (Vec::new(), Vec::new());
        let mut room = NODES_MAX;
        for entry in &self.entries {
            let len = entry.end - entry.start;
            let node = match entry.pure.as_ref()? {
                Pure::Linear(linear) => self.part(&linear.area, len, &mut room)?,
                Pure::Striped(target) => {
                    let width = Sector(len.0 / target.layout.n.value);
                    let mut part = |area| self.part(area, width, &mut room);
                    let stripes: Vec<_> =
                        target.stripes.iter().map(&mut part).collect::<Option<_>>()?;
                    let (errors, nodes) = (target.errors.clone(), stripes.clone());
                    striped.push(Stripes { errors, nodes, width });
                    Node::striped(target.layout, stripes)
                }
            };
            parts.push((len, node));
        }
        if parts.is_empty() {
            return None;
        }
        let mut flat = Flat::new(self.limits(), Node::concat(parts))?;
        flat.watch(&striped);
        Some(flat)
    }

    /// What `len` sectors of an area come to: the mapping below when it is flat, else its device.
    /// `None` when bios may have to wait there (DM-D5), or there is no `room` for so many nodes.
    fn part(&self, area: &Area, len: Sector, room: &mut usize) -> Option<Node<Rc<dyn Base>>> {
        let mut mapped = self.uses.mapped.iter().map(|o| o.device());
        let mapped = mapped.find(|d| same_device(d, &area.device));
        if let Some(mapped) = mapped {
            if mapped.bios_may_wait() {
                return None;
            }
            if let Some(flat) = mapped.flat() {
                return flat.part(area.offset, len, room);
            }
        }
        *room = room.checked_sub(1)?;
        let base = area.device.clone().as_base()?;
        Some(Node::linear(base, area.offset))
    }

    /// The lines that reach into `start..end`.
    pub(crate) fn within(&self, start: Sector, end: Sector) -> impl Iterator<Item = &Entry> {
        let first = self.entries.partition_point(|e| e.end <= start);
        self.entries[first..].iter().take_while(move |e| e.start < end)
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
        if bio.op == Op::Flush && self.fails_flush {
            return bio.complete(Status::Io);
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

    /// Suspends every target, also after an error; returns the first error.
    pub(crate) async fn suspend(&self) -> Result<(), Error> {
        let result = suspend(&self.entries).await;
        self.settled.set(result.is_ok());
        result
    }

    /// Whether every target has been suspended since the last resume, without an error.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.get()
    }

    /// Resumes the targets in order. When one fails, those before it are suspended again.
    pub(crate) async fn resume(&self) -> Result<(), Error> {
        self.settled.set(false);
        for (i, entry) in self.entries.iter().enumerate() {
            if let Err(e) = entry.target.clone().resume().await {
                let e = e.within(entry.label());
                return match suspend(&self.entries[..i]).await {
                    Ok(()) => Err(e),
                    Err(also) => Err(e.because(also)),
                };
            }
        }
        Ok(())
    }

    /// As [`Table::resume`]; then each target takes over from the one of the table before that
    /// begins at the same sector.
    pub(crate) async fn resume_after(&self, before: Option<Rc<Table>>) -> Result<(), Error> {
        self.resume().await?;
        let Some(before) = before else { return Ok(()) };
        for entry in &self.entries {
            if let Some(old) = before.find(entry.start).filter(|old| old.start == entry.start) {
                entry.target.clone().take_over(old.target.clone()).await;
            }
        }
        Ok(())
    }
}

async fn suspend(entries: &[Entry]) -> Result<(), Error> {
    let mut result = Ok(());
    for entry in entries {
        let one = entry.target.clone().suspend().await.map_err(|e| e.within(entry.label()));
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
