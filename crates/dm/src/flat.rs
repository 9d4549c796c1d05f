// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flat: a stack of linear and striped, however deep, as one mapping.
//!
//! ```text
//!   top   linear ──▶ mid  striped ──▶ low  linear ──▶ disk      the devices
//!                          │                                    top's flat mapping:
//!                          └────────▶ mem                       Striped { disk + 2048, mem }
//! ```
//!
//! It is made when a table goes live, and again for every device above when one below it is
//! suspended or gets another table. It ends at *bases*: leaves, and mapped devices that are no pure
//! mapping. There is none while a device below is suspended: bios that wait there are counted on
//! their way. A bio that lies in one extent has its sector rewritten and goes to its
//! base; that is all. Nothing is chained to its completion and nothing is counted: who wants to
//! know when earlier bios have ended, or that some failed, asks the bases.
//!
//! Invariants
//! - DM-F1 What `place` finds lies on its base and is aligned to its logical blocks, for every bio
//!   that is aligned to the mapping's: checked here when the mapping is made.
//! - DM-F2 A mapping that is replaced sends no bio any more, and `quiesced` of its bases covers
//!   everything that it has sent.
use std::fmt;
use std::rc::Rc;

use block::{
    Base, Bio, BlockDevice, Extent, Limits, Map, MappedExtent, OnIoError, Op, Sector, same_device,
};

use crate::layout::Layout;
use crate::split::{Split, flush_all};
use crate::stripe_errors::StripeErrors;
use crate::watch::{Watch, Watched};

/// Nodes of one mapping; a stack that is larger is not made flat all the way down. A line has the
/// nodes of all that it covers below, so layers multiply.
pub(crate) const NODES_MAX: usize = 1 << 16;

/// A mapping of sectors `at`, each node counting from its own first sector.
#[derive(Clone, Debug)]
pub(crate) enum Node<B> {
    /// `at + shift` on the base.
    Linear { base: B, shift: u64 },
    /// Dealt out in chunks.
    Striped(Box<Striped<B>>),
    /// One node after the other.
    Concat(Box<Concat<B>>),
}

/// Chunks of `at + shift`, one node a stripe.
#[derive(Clone, Debug)]
pub(crate) struct Striped<B> {
    shift: u64,
    layout: Layout,
    stripes: Vec<Node<B>>,
}

/// `at + shift` goes to the first node whose end lies behind it, unchanged.
#[derive(Clone, Debug)]
pub(crate) struct Concat<B> {
    shift: u64,
    ends: Vec<u64>,
    nodes: Vec<Node<B>>,
}

impl<B> Node<B> {
    pub(crate) fn linear(base: B, offset: Sector) -> Node<B> {
        Node::Linear { base, shift: offset.0 }
    }

    pub(crate) fn striped(layout: Layout, stripes: Vec<Node<B>>) -> Node<B> {
        Node::Striped(Box::new(Striped { shift: 0, layout, stripes }))
    }

    /// Each node counts from where the one before it ends.
    pub(crate) fn concat(parts: Vec<(Sector, Node<B>)>) -> Node<B> {
        let (mut ends, mut nodes, mut start) = (Vec::new(), Vec::new(), 0_u64);
        for (len, node) in parts {
            nodes.push(node.shifted(start.wrapping_neg()));
            start += len.0;
            ends.push(start);
        }
        if nodes.len() == 1 {
            return nodes.pop().expect("there is one");
        }
        Node::Concat(Box::new(Concat { shift: 0, ends, nodes }))
    }

    /// The node that maps `at` as this one maps `at + by` (wrapping).
    fn shifted(mut self, by: u64) -> Node<B> {
        let shift = match &mut self {
            Node::Linear { shift, .. } => shift,
            Node::Striped(s) => &mut s.shift,
            Node::Concat(c) => &mut c.shift,
        };
        *shift = shift.wrapping_add(by);
        self
    }

    /// The base of `at`, the sector there, and how many sectors on the answer holds.
    fn resolve(&self, at: u64) -> (&B, u64, u64) {
        let (mut node, mut at, mut left) = (self, at, u64::MAX);
        loop {
            match node {
                Node::Linear { base, shift } => return (base, at.wrapping_add(*shift), left),
                Node::Striped(s) => {
                    let (stripe, place, room) = s.layout.place(Sector(at.wrapping_add(s.shift)));
                    (node, at, left) = (&s.stripes[stripe], place.0, left.min(room.0));
                }
                Node::Concat(c) => {
                    at = at.wrapping_add(c.shift);
                    let index = c.ends.partition_point(|end| *end <= at);
                    (node, left) = (&c.nodes[index], left.min(c.ends[index] - at));
                }
            }
        }
    }

    fn nodes(&self) -> usize {
        1 + match self {
            Node::Linear { .. } => 0,
            Node::Striped(s) => s.stripes.iter().map(Node::nodes).sum(),
            Node::Concat(c) => c.nodes.iter().map(Node::nodes).sum(),
        }
    }

    fn for_each_base(&self, f: &mut impl FnMut(&B)) {
        match self {
            Node::Linear { base, .. } => f(base),
            Node::Striped(s) => s.stripes.iter().for_each(|n| n.for_each_base(f)),
            Node::Concat(c) => c.nodes.iter().for_each(|n| n.for_each_base(f)),
        }
    }

    fn with_bases<C>(&self, f: &impl Fn(&B) -> C) -> Node<C> {
        let all = |nodes: &[Node<B>]| nodes.iter().map(|n| n.with_bases(f)).collect();
        match self {
            Node::Linear { base, shift } => Node::Linear { base: f(base), shift: *shift },
            Node::Striped(s) => {
                let (shift, layout) = (s.shift, s.layout);
                Node::Striped(Box::new(Striped { shift, layout, stripes: all(&s.stripes) }))
            }
            Node::Concat(c) => {
                let (shift, ends) = (c.shift, c.ends.clone());
                Node::Concat(Box::new(Concat { shift, ends, nodes: all(&c.nodes) }))
            }
        }
    }

    /// The areas of bases that `len` sectors from `at` on lie in.
    fn for_each_area(&self, at: u64, len: u64, f: &mut impl FnMut(&B, u64, u64)) {
        if len == 0 {
            return;
        }
        match self {
            Node::Linear { base, shift } => f(base, at.wrapping_add(*shift), len),
            Node::Striped(s) => {
                let begin = at.wrapping_add(s.shift);
                for (i, node) in s.stripes.iter().enumerate() {
                    let from = s.layout.boundary(Sector(begin), i).0;
                    let to = s.layout.boundary(Sector(begin + len), i).0;
                    node.for_each_area(from, to.saturating_sub(from), f);
                }
            }
            Node::Concat(c) => {
                let (begin, end) = (at.wrapping_add(c.shift), at.wrapping_add(c.shift) + len);
                let (mut from, first) = (begin, c.ends.partition_point(|e| *e <= begin));
                for (stop, node) in c.ends[first..].iter().zip(&c.nodes[first..]) {
                    let to = end.min(*stop);
                    node.for_each_area(from, to - from, f);
                    from = to;
                    if from == end {
                        break;
                    }
                }
            }
        }
    }
}

impl<B: Clone> Node<B> {
    /// The node for the part of this one that begins at `from` and is `len` sectors long. Takes its
    /// nodes out of `room`; `None` when there is not enough.
    fn part(&self, from: u64, len: u64, room: &mut usize) -> Option<Node<B>> {
        Some(self.narrowed(from, len, room)?.shifted(from))
    }

    /// What of this one tells where `len` sectors from `at` on lie.
    fn narrowed(&self, at: u64, len: u64, room: &mut usize) -> Option<Node<B>> {
        *room = room.checked_sub(1)?;
        match self {
            Node::Linear { .. } => Some(self.clone()),
            Node::Striped(s) => {
                let begin = at.wrapping_add(s.shift);
                let (stripe, place, left) = s.layout.place(Sector(begin));
                if len <= left.0 {
                    let inside = s.stripes[stripe].narrowed(place.0, len, room)?;
                    return Some(inside.shifted(place.0.wrapping_sub(at)));
                }
                let mut stripes = Vec::new();
                for (i, node) in s.stripes.iter().enumerate() {
                    let from = s.layout.boundary(Sector(begin), i).0;
                    let to = s.layout.boundary(Sector(begin + len), i).0;
                    stripes.push(node.narrowed(from, to.saturating_sub(from), room)?);
                }
                let (shift, layout) = (s.shift, s.layout);
                Some(Node::Striped(Box::new(Striped { shift, layout, stripes })))
            }
            Node::Concat(c) => {
                let (begin, end) = (at.wrapping_add(c.shift), at.wrapping_add(c.shift) + len);
                // Of a stripe that a short part does not touch nothing is asked: any node does.
                let first = c.ends.partition_point(|e| *e <= begin).min(c.nodes.len() - 1);
                let last = c.ends.partition_point(|e| *e < end).clamp(first, c.nodes.len() - 1);
                if first == last {
                    let inside = c.nodes[first].narrowed(begin, len, room)?;
                    return Some(inside.shifted(c.shift));
                }
                let (mut nodes, mut from) = (Vec::new(), begin);
                for (node, stop) in c.nodes[first..=last].iter().zip(&c.ends[first..]) {
                    let to = end.min(*stop);
                    nodes.push(node.narrowed(from, to - from, room)?);
                    from = to;
                }
                let ends = c.ends[first..=last].to_vec();
                Some(Node::Concat(Box::new(Concat { shift: c.shift, ends, nodes })))
            }
        }
    }
}

type DynBase = Rc<dyn Base>;

/// What most stacks come to, resolved in few instructions (`make bench-noclone` counts them):
/// hence the layout, with a tag of its own, and masks instead of sizes.
#[repr(u8)]
enum Short {
    Linear {
        base: DynBase,
        shift: u64,
    },
    /// Striped with a power of two of stripes and of sectors a chunk, over linear. Without any
    /// stripe for everything else, which is resolved node by node.
    Striped {
        shift: u64,
        chunk: u64,
        chunk_mask: u64,
        chunk_bits: u32,
        row_bits: u32,
        stripe_mask: usize,
        /// Base, and what to add to the sector on the stripe.
        stripes: Vec<(DynBase, u64)>,
    },
}

impl Short {
    fn of(root: &Node<DynBase>) -> Short {
        let linear = |node: &Node<DynBase>| match node {
            Node::Linear { base, shift } => Some((base.clone(), *shift)),
            Node::Striped(_) | Node::Concat(_) => None,
        };
        match root {
            Node::Linear { base, shift } => Short::Linear { base: base.clone(), shift: *shift },
            Node::Striped(s) if s.layout.is_shifts() => {
                let stripes: Option<Vec<_>> = s.stripes.iter().map(linear).collect();
                stripes.map_or(Short::none(), |all| Short::striped(s.shift, s.layout, all))
            }
            Node::Striped(_) | Node::Concat(_) => Short::none(),
        }
    }

    fn striped(shift: u64, layout: Layout, stripes: Vec<(DynBase, u64)>) -> Short {
        let (n, chunk) = (layout.n.value, layout.chunk.value);
        Short::Striped {
            shift,
            chunk,
            chunk_mask: chunk - 1,
            chunk_bits: chunk.trailing_zeros(),
            row_bits: chunk.trailing_zeros() + n.trailing_zeros(),
            stripe_mask: stripes.len() - 1,
            stripes,
        }
    }

    /// One chunk without end and no stripe.
    fn none() -> Short {
        Short::Striped {
            shift: 0,
            chunk: 0,
            chunk_mask: u64::MAX,
            chunk_bits: 0,
            row_bits: 0,
            stripe_mask: 0,
            stripes: Vec::new(),
        }
    }
}

/// The flat mapping of a device.
pub struct Flat {
    capacity: u64,
    /// Sector bits that an aligned bio has clear.
    mask: u64,
    short: Short,
    root: Node<DynBase>,
    limits: Limits,
    /// Each base once.
    bases: Vec<DynBase>,
    /// Where the stripes of the device's own table lie, for their error counts.
    watches: Vec<Rc<Watch>>,
}

/// The stripes of one target, `width` sectors each.
pub(crate) struct Stripes {
    pub(crate) errors: Rc<StripeErrors>,
    pub(crate) nodes: Vec<Node<DynBase>>,
    pub(crate) width: Sector,
}

impl Flat {
    /// The mapping of a device that has none: nothing lies anywhere.
    pub(crate) fn nowhere() -> Flat {
        Flat {
            capacity: 0,
            mask: 0,
            short: Short::none(),
            root: Node::Concat(Box::new(Concat { shift: 0, ends: vec![], nodes: vec![] })),
            limits: Limits::new(Sector::ZERO),
            bases: Vec::new(),
            watches: Vec::new(),
        }
    }

    /// Whether this is [`Flat::nowhere`]; no device has zero sectors.
    pub(crate) fn is_nowhere(&self) -> bool {
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
        let mut sound = root.nodes() <= NODES_MAX && aligned(&root, unit, &block);
        root.for_each_area(0, capacity, &mut |base, at, len| {
            sound &= at.checked_add(len).is_some_and(|end| end <= base.limits().capacity.0);
        });
        let short = Short::of(&root);
        sound.then_some(Flat { capacity, mask, short, root, limits, bases, watches: Vec::new() })
    }

    /// Counts faults of stripes for as long as this mapping is there.
    pub(crate) fn watch(&mut self, striped: &[Stripes]) {
        // One watcher a base, however many lines have stripes there.
        let mut by_base: Vec<Vec<Watched>> = self.bases.iter().map(|_| Vec::new()).collect();
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
                            watched.push(Watched { errors, stripe, areas });
                        }
                    }
                });
            }
        }
        for (base, stripes) in self.bases.iter().zip(by_base).filter(|(_, s)| !s.is_empty()) {
            let watch = Rc::new(Watch { stripes });
            let as_fault: Rc<dyn OnIoError> = watch.clone();
            base.watch(Rc::downgrade(&as_fault));
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

    /// Where `len` sectors from `at` on lie, when they are valid for a bio, in one extent, and
    /// there is a short way to tell.
    #[inline]
    pub(crate) fn place(&self, at: Sector, len: Sector) -> Option<(&dyn Base, Sector)> {
        let (at, len) = (at.0, len.0);
        // A length of zero wraps around.
        let on_it = at < self.capacity && len.wrapping_sub(1) < self.capacity - at;
        if !on_it || (at | len) & self.mask != 0 {
            return None;
        }
        match &self.short {
            Short::Linear { base, shift } => Some((&**base, Sector(at.wrapping_add(*shift)))),
            Short::Striped {
                shift,
                chunk,
                chunk_mask,
                chunk_bits,
                row_bits,
                stripe_mask,
                stripes,
            } => {
                let at = at.wrapping_add(*shift);
                let inside = at & chunk_mask;
                if inside + (len - 1) > *chunk_mask {
                    return None;
                }
                #[expect(clippy::cast_possible_truncation, reason = "the mask is far smaller")]
                let (base, shift) = stripes.get((at >> chunk_bits) as usize & stripe_mask)?;
                let row = (at >> row_bits).wrapping_mul(*chunk);
                let sector = row.wrapping_add(inside).wrapping_add(*shift);
                Some((&**base, Sector(sector)))
            }
        }
    }

    /// The same, the long way: node by node.
    fn place_by_nodes(&self, at: Sector, len: Sector) -> Option<(&dyn Base, Sector)> {
        let (at, len) = (at.0, len.0);
        let on_it = at < self.capacity && len.wrapping_sub(1) < self.capacity - at;
        if !on_it || (at | len) & self.mask != 0 {
            return None;
        }
        let (base, sector, left) = self.root.resolve(at);
        (len <= left).then_some((&**base, Sector(sector)))
    }

    /// What `place` does not tell: sends it down in as many parts as it has extents, or refuses it.
    #[inline(never)]
    pub(crate) fn submit_elsewhere(&self, bio: Bio) {
        match self.place_by_nodes(bio.sector, bio.len) {
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

    /// The mapping without its bases, which [`Flat::bases`] lists: what another core needs.
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

    /// The mapping over `bases`, which stand for those of the flat mapping that the plan is of, in
    /// the same order. `None` when one of them is smaller or coarser than what it stands for.
    pub fn on(&self, bases: &[Rc<dyn Base>]) -> Option<Flat> {
        Flat::new(self.limits.clone(), self.root.with_bases(&|i: &usize| bases[*i].clone()))
    }
}

/// As a device: what a replica of a mapped device on another core is.
impl BlockDevice for Flat {
    fn name(&self) -> &str {
        "flat"
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn map_blocks(&self, at: Sector, len: Sector) -> Option<MappedExtent> {
        if self.is_nowhere() {
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
        match self.place(bio.sector, bio.len) {
            Some((base, sector)) => base.submit_at(sector, bio),
            None => self.submit_elsewhere(bio),
        }
    }
}

impl Map for Flat {
    fn devices(&self) -> &[Rc<dyn Base>] {
        &self.bases
    }

    fn map(&self, at: Sector, len: Sector) -> Extent {
        let (base, sector, left) = self.root.resolve(at.0);
        Extent { device: self.index(base), sector: Sector(sector), len: len.min(Sector(left)) }
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

/// Whether what begins at a multiple of `unit` sectors, a power of two, and is as long as one,
/// begins and ends at a multiple of its base's `block`, in however many parts it goes there.
fn aligned<B>(node: &Node<B>, unit: u64, block: &impl Fn(&B) -> u64) -> bool {
    // What is left of the alignment when this is added, or when it is split there.
    let after = |by: u64| unit.min(1_u64.checked_shl(by.trailing_zeros()).unwrap_or(unit));
    match node {
        Node::Linear { base, shift } => after(*shift) >= block(base),
        Node::Striped(s) => {
            let unit = after(s.shift | s.layout.chunk.value);
            s.stripes.iter().all(|n| aligned(n, unit, block))
        }
        Node::Concat(c) => {
            let inner = &c.ends[..c.ends.len().saturating_sub(1)];
            let unit = after(inner.iter().fold(c.shift, |all, end| all | end));
            c.nodes.iter().all(|n| aligned(n, unit, block))
        }
    }
}
