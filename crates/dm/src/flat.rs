// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flat mapping of a device: a stack of linear and striped, however deep, as one mapping.
//!
//! ```text
//!   top   linear ──▶ mid  striped ──▶ low  linear ──▶ disk      the devices
//!                          │                                    top's flat mapping:
//!                          └────────▶ mem                       Striped { disk + 2048, mem }
//! ```
//!
//! It is made when a table goes live, and again for every device above when one below it is
//! suspended or gets another table. It ends at *bases*: leaves, and mapped devices that are no pure
//! mapping. There is none while a device below is suspended, so that every device that a bio came
//! through counts it while it waits. A bio that lies in one extent has its sector rewritten and
//! goes to its base. Nothing is chained to its completion and nothing is counted: the bases know
//! when earlier bios have ended, and which have failed.
//!
//! Invariants
//! - DM-F1 What `lookup` finds lies on its base and is aligned to its logical blocks, for every bio
//!   that is aligned to the mapping's: checked here when the mapping is made.
//! - DM-F2 A mapping that is replaced sends no bio any more, and `quiesced` of its bases covers
//!   everything that it has sent.
use std::fmt;
use std::rc::Rc;

use block::{Base, Bio, BlockDevice, Limits, MappedExtent, OnIoError, Op, Sector, same_device};

use crate::fast_path::{DynBase, FastPath};
use crate::node::{NODES_MAX, Node, is_aligned};
use crate::split::{Split, flush_all};
use crate::stripe_errors::StripeErrors;
use crate::stripe_watch::{StripeWatch, WatchedStripe};

/// The flat mapping of a device.
pub struct Flat {
    capacity: u64,
    /// Sector bits that an aligned bio has clear.
    mask: u64,
    fast_path: FastPath,
    root: Node<DynBase>,
    limits: Limits,
    /// Whether all bases take memory of clients.
    takes_client_memory: bool,
    /// Each base once.
    bases: Vec<DynBase>,
    /// Count errors of the bases for the stripes of the device's own table.
    watches: Vec<Rc<StripeWatch>>,
}

/// The stripes of one target, `width` sectors each.
pub(crate) struct Stripes {
    pub(crate) errors: Rc<StripeErrors>,
    pub(crate) nodes: Vec<Node<DynBase>>,
    pub(crate) width: Sector,
}

impl Flat {
    /// Stands for no mapping: no sector lies on any base.
    pub(crate) fn empty() -> Flat {
        Flat {
            capacity: 0,
            mask: 0,
            fast_path: FastPath::none(),
            root: Node::empty(),
            limits: Limits::new(Sector::ZERO),
            takes_client_memory: false,
            bases: Vec::new(),
            watches: Vec::new(),
        }
    }

    /// Whether this is [`Flat::empty`]; no device has zero sectors.
    pub(crate) fn is_empty(&self) -> bool {
        self.capacity == 0
    }

    /// `None` where DM-F1 would not hold. `limits` are the device's.
    pub(crate) fn new(limits: Limits, root: Node<DynBase>) -> Option<Flat> {
        let capacity = limits.capacity.0;
        let mask = sectors(limits.logical_block_bytes) - 1;
        let mut bases: Vec<DynBase> = Vec::new();
        root.for_each_base(&mut |base| {
            if !bases.iter().any(|b| same_device(b, base)) {
                bases.push(base.clone());
            }
        });
        let block = |base: &DynBase| sectors(base.limits().logical_block_bytes);
        let unit = sectors(limits.logical_block_bytes);
        let mut sound = root.nodes() <= NODES_MAX && is_aligned(&root, unit, &block);
        root.for_each_area(0, capacity, &mut |base, at, len| {
            sound &= at.checked_add(len).is_some_and(|end| end <= base.limits().capacity.0);
        });
        let fast_path = FastPath::of(&root);
        let takes_client_memory = bases.iter().all(|base| base.takes_client_memory());
        sound.then_some(Flat {
            capacity,
            mask,
            fast_path,
            root,
            limits,
            takes_client_memory,
            bases,
            watches: Vec::new(),
        })
    }

    /// Counts errors of `striped` on the bases, as long as this mapping lives.
    pub(crate) fn watch(&mut self, striped: &[Stripes]) {
        // One watcher a base, however many lines have stripes there.
        let mut by_base: Vec<Vec<WatchedStripe>> = self.bases.iter().map(|_| Vec::new()).collect();
        for Stripes { errors, nodes, width } in striped {
            for (stripe, node) in nodes.iter().enumerate() {
                node.for_each_area(0, width.0, &mut |base, at, len| {
                    let watched = &mut by_base[self.index(base)];
                    let area = (at, at + len);
                    match watched.last_mut() {
                        Some(w) if w.stripe == stripe && Rc::ptr_eq(&w.errors, errors) => {
                            w.areas.push(area);
                        }
                        _ => {
                            let (errors, areas) = (errors.clone(), vec![area]);
                            watched.push(WatchedStripe { errors, stripe, areas });
                        }
                    }
                });
            }
        }
        for (base, stripes) in self.bases.iter().zip(by_base).filter(|(_, s)| !s.is_empty()) {
            let watch = Rc::new(StripeWatch { stripes });
            let as_watcher: Rc<dyn OnIoError> = watch.clone();
            base.watch(Rc::downgrade(&as_watcher));
            self.watches.push(watch);
        }
    }

    /// Index of one of the bases.
    fn index(&self, base: &DynBase) -> usize {
        let found = self.bases.iter().position(|b| same_device(b, base));
        found.expect("`bases` holds them all")
    }

    /// The part from `at` on as a node of another mapping that has `room` for so many more nodes,
    /// unless it reaches beyond the end.
    pub(crate) fn part(&self, at: Sector, len: Sector, room: &mut usize) -> Option<Node<DynBase>> {
        let end = at.checked_add(len)?;
        if end.0 <= self.capacity { self.root.part(at.0, len.0, room) } else { None }
    }

    /// Where `len` sectors from `at` on lie, when a bio may have them, they lie in one extent, and
    /// the fast path knows it.
    #[inline]
    pub(crate) fn lookup(&self, at: Sector, len: Sector) -> Option<(&dyn Base, Sector)> {
        let (at, len) = (at.0, len.0);
        // A length of zero wraps around.
        let on_it = at < self.capacity && len.wrapping_sub(1) < self.capacity - at;
        if !on_it || (at | len) & self.mask != 0 {
            return None;
        }
        self.fast_path.lookup(at, len)
    }

    /// The same for every mapping, node by node.
    fn lookup_by_nodes(&self, at: Sector, len: Sector) -> Option<(&dyn Base, Sector)> {
        let (at, len) = (at.0, len.0);
        let on_it = at < self.capacity && len.wrapping_sub(1) < self.capacity - at;
        if !on_it || (at | len) & self.mask != 0 {
            return None;
        }
        let (base, sector, left) = self.root.resolve(at);
        (len <= left).then_some((&**base, Sector(sector)))
    }

    /// Takes a bio that [`Flat::lookup`] does not find: sends it down in as many parts as it has
    /// extents, or refuses it.
    #[inline(never)]
    pub(crate) fn submit_by_nodes(&self, bio: Bio) {
        match self.lookup_by_nodes(bio.sector, bio.len) {
            Some((base, sector)) => base.submit_at(sector, bio),
            None => self.submit_in_parts(bio),
        }
    }

    #[cold]
    #[inline(never)]
    fn submit_in_parts(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        if bio.op == Op::Flush {
            return flush_all(bio, self.bases.iter().map(|b| &**b as &dyn BlockDevice));
        }
        let (begin, end) = (bio.sector.0, bio.end().0);
        let data = matches!(bio.op, Op::Read | Op::Write);
        let mut split = Split::new(bio);
        if data {
            let mut at = begin;
            while at < end {
                let (base, sector, left) = self.root.resolve(at);
                let len = left.min(end - at);
                split.send(&**base, Sector(sector), Sector(len), Sector(at - begin));
                at += len;
            }
        } else {
            // One bio a stripe, whatever the length.
            self.root.for_each_area(begin, end - begin, &mut |base, at, len| {
                split.send(&**base, Sector(at), Sector(len), Sector::ZERO);
            });
        }
        split.finish();
    }

    /// The device's limits when the mapping was made.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The bases, each once.
    pub fn bases(&self) -> &[Rc<dyn Base>] {
        &self.bases
    }

    /// The mapping with indices into [`Flat::bases`] for its bases, to be sent to another core.
    pub fn plan(&self) -> Plan {
        let root = self.root.with_bases(&|base| self.index(base));
        Plan { limits: self.limits.clone(), root }
    }
}

/// A flat mapping on its way to another core.
#[derive(Clone, Debug)]
pub struct Plan {
    limits: Limits,
    root: Node<usize>,
}

impl Plan {
    /// The device's limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The mapping over `bases`: this core's devices for those of the mapping that was planned, in
    /// the same order. `None` when one of them is smaller or has larger blocks.
    pub fn on(&self, bases: &[Rc<dyn Base>]) -> Option<Flat> {
        Flat::new(self.limits.clone(), self.root.with_bases(&|i: &usize| bases[*i].clone()))
    }
}

/// The replica of a mapped device on another core is such a device.
impl BlockDevice for Flat {
    fn name(&self) -> &str {
        "flat"
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    #[inline]
    fn takes_client_memory(&self) -> bool {
        self.takes_client_memory
    }

    fn map_blocks(&self, at: Sector, len: Sector) -> Option<MappedExtent> {
        if self.is_empty() {
            return None;
        }
        let (base, sector, left) = self.root.resolve(at.0);
        Some(MappedExtent {
            base: base.clone(),
            sector: Sector(sector),
            len: len.min(Sector(left)),
        })
    }

    fn submit(&self, bio: Bio) {
        match self.lookup(bio.sector, bio.len) {
            Some((base, sector)) => base.submit_at(sector, bio),
            None => self.submit_by_nodes(bio),
        }
    }
}

impl fmt::Debug for Flat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.bases.iter().map(|b| b.name().to_owned()).collect();
        write!(f, "Flat({} sectors over {names:?})", self.capacity)
    }
}

fn sectors(bytes: u32) -> u64 {
    Sector::from_bytes(bytes.into()).0
}
