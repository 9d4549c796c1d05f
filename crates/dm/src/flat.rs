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
//! mapping or are suspended. A bio that lies in one extent has its sector rewritten and goes to its
//! base; that is all. Nothing is chained to its completion and nothing is counted: who wants to
//! know when earlier bios have ended, or that some failed, asks the bases.
//!
//! Invariants
//! - F1 What `place` finds lies on its base and is aligned to its logical blocks, for every bio
//!   that is aligned to the mapping's: checked here when the mapping is made.
//! - F2 A mapping that is replaced sends no bio any more, and `quiesced` of its bases covers
//!   everything that it has sent.
use std::fmt;
use std::rc::Rc;

use block::{Base, Bio, BlockDevice, Extent, Limits, Map, OnFault, Op, Sector, Status};

use crate::layout::Layout;
use crate::split::{Split, flush_all};
use crate::target::striped::Errors;

/// Nodes of one mapping; a stack that is larger is not made flat all the way down. A striped over a
/// concatenation has its nodes once a stripe, so layers multiply.
const NODES_MAX: usize = 1 << 16;

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
                let starts = std::iter::once(&0).chain(&c.ends);
                for ((start, stop), node) in starts.zip(&c.ends).zip(&c.nodes) {
                    let (from, to) = (begin.max(*start), end.min(*stop));
                    node.for_each_area(from, to.saturating_sub(from), f);
                }
            }
        }
    }
}

impl<B: Clone> Node<B> {
    /// The node for the part of this one that begins at `from` and is `len` sectors long.
    fn part(&self, from: u64, len: u64) -> Node<B> {
        match self {
            Node::Linear { .. } => {}
            Node::Striped(s) => {
                let (stripe, place, room) = s.layout.place(Sector(from.wrapping_add(s.shift)));
                if len <= room.0 {
                    return s.stripes[stripe].part(place.0, len);
                }
            }
            Node::Concat(c) => {
                let at = from.wrapping_add(c.shift);
                let index = c.ends.partition_point(|end| *end <= at);
                if len <= c.ends[index] - at {
                    return c.nodes[index].part(at, len);
                }
            }
        }
        self.clone().shifted(from)
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
            stripe_mask: stripes.len().saturating_sub(1),
            stripes,
        }
    }

    fn none() -> Short {
        Short::striped(0, Layout::new(1, 1), Vec::new())
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

/// Counts the faults of one stripe.
struct Watch {
    area: (u64, u64),
    errors: Rc<Errors>,
    stripe: usize,
}

impl OnFault for Watch {
    fn on_fault(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        let (begin, end) = self.area;
        let hit = sector.0 < end && begin < sector.0.saturating_add(len.0);
        if hit || op == Op::Flush {
            self.errors.count(self.stripe, status);
        }
    }
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

    /// `None` where F1 would not hold. `limits` are the device's.
    pub(crate) fn new(limits: Limits, root: Node<DynBase>) -> Option<Flat> {
        let capacity = limits.capacity.0;
        let mask = Sector::from_bytes(u64::from(limits.logical_block_bytes) - 1).0;
        let mut bases: Vec<DynBase> = Vec::new();
        root.for_each_base(&mut |base| {
            if !bases.iter().any(|b| same(b, base)) {
                bases.push(base.clone());
            }
        });
        let mut sound = root.nodes() <= NODES_MAX && aligned(&root, mask);
        root.for_each_area(0, capacity, &mut |base, at, len| {
            let below = base.limits();
            let fits = at.checked_add(len).is_some_and(|end| end <= below.capacity.0);
            let block = Sector::from_bytes(below.logical_block_bytes.into());
            sound &= fits && below.logical_block_bytes <= limits.logical_block_bytes;
            sound &= Sector(at).is_aligned(block);
        });
        let short = Short::of(&root);
        sound.then_some(Flat { capacity, mask, short, root, limits, bases, watches: Vec::new() })
    }

    /// Counts faults of the stripe whose node maps `len` sectors, for as long as this mapping is
    /// there.
    pub(crate) fn watch(
        &mut self,
        node: &Node<DynBase>,
        len: Sector,
        errors: &Rc<Errors>,
        i: usize,
    ) {
        node.for_each_area(0, len.0, &mut |base, at, len| {
            let watch = Watch { area: (at, at + len), errors: errors.clone(), stripe: i };
            let watch = Rc::new(watch);
            let as_fault: Rc<dyn OnFault> = watch.clone();
            base.watch(Rc::downgrade(&as_fault));
            self.watches.push(watch);
        });
    }

    /// The part from `at` on as a node of another mapping, unless it reaches beyond the end.
    pub(crate) fn part(&self, at: Sector, len: Sector) -> Option<Node<DynBase>> {
        let end = at.checked_add(len)?;
        (end.0 <= self.capacity).then(|| self.root.part(at.0, len.0))
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

    /// What `place` does not tell: sends it down in as many parts as it has extents, or refuses it.
    #[cold]
    #[inline(never)]
    pub(crate) fn submit_in_parts(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        if bio.op == Op::Flush {
            return flush_all(bio, self.bases.iter().map(|b| &**b as &dyn BlockDevice));
        }
        let (begin, end) = (bio.sector.0, bio.end().0);
        let (base, sector, left) = self.root.resolve(begin);
        if end - begin <= left {
            return base.submit_at(Sector(sector), bio);
        }
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
        let index = |base: &DynBase| {
            let found = self.bases.iter().position(|b| same(b, base));
            found.expect("`bases` holds them all")
        };
        Plan { limits: self.limits.clone(), root: self.root.with_bases(&index) }
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

    fn submit(&self, bio: Bio) {
        match self.place(bio.sector, bio.len) {
            Some((base, sector)) => base.submit_at(sector, bio),
            None => self.submit_in_parts(bio),
        }
    }
}

impl Map for Flat {
    fn devices(&self) -> &[Rc<dyn Base>] {
        &self.bases
    }

    fn map(&self, at: Sector, len: Sector) -> Extent {
        let (base, sector, left) = self.root.resolve(at.0);
        let device = self.bases.iter().position(|b| same(b, base));
        let device = device.expect("`bases` holds them all");
        Extent { device, sector: Sector(sector), len: len.min(Sector(left)) }
    }
}

impl fmt::Debug for Flat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.bases.iter().map(|b| b.name().to_owned()).collect();
        write!(f, "Flat({} sectors over {names:?})", self.capacity)
    }
}

fn same(a: &DynBase, b: &DynBase) -> bool {
    std::ptr::addr_eq(Rc::as_ptr(a), Rc::as_ptr(b))
}

/// Whether every chunk keeps an aligned bio aligned.
fn aligned<B>(node: &Node<B>, mask: u64) -> bool {
    match node {
        Node::Linear { .. } => true,
        Node::Striped(s) => {
            s.layout.chunk.value & mask == 0 && s.stripes.iter().all(|n| aligned(n, mask))
        }
        Node::Concat(c) => c.nodes.iter().all(|n| aligned(n, mask)),
    }
}
