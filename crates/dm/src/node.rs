// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nodes of a flat mapping: a tree of linear, striped and concatenated mappings over bases.
use block::Sector;

use crate::layout::Layout;

/// Nodes of one mapping. Layers multiply: a line has the nodes of all lines below that it covers. A
/// larger stack has a flat mapping that ends at a mapped device on the way down.
pub(crate) const NODES_MAX: usize = 1 << 16;

/// A mapping of the sector `at`, which each node counts from its own first sector.
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
    pub(crate) shift: u64,
    pub(crate) layout: Layout,
    pub(crate) stripes: Vec<Node<B>>,
}

/// `at + shift` goes to the first node whose end lies behind it, unchanged.
#[derive(Clone, Debug)]
pub(crate) struct Concat<B> {
    pub(crate) shift: u64,
    pub(crate) ends: Vec<u64>,
    pub(crate) nodes: Vec<Node<B>>,
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

    /// Maps nothing.
    pub(crate) fn empty() -> Node<B> {
        Node::Concat(Box::new(Concat { shift: 0, ends: vec![], nodes: vec![] }))
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

    /// The base of `at`, the sector there, and the number of sectors for which this holds.
    pub(crate) fn resolve(&self, at: u64) -> (&B, u64, u64) {
        let (mut node, mut at, mut left) = (self, at, u64::MAX);
        loop {
            match node {
                Node::Linear { base, shift } => return (base, at.wrapping_add(*shift), left),
                Node::Striped(s) => {
                    let (stripe, place, room) = s.layout.locate(Sector(at.wrapping_add(s.shift)));
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

    /// Number of nodes, this one included.
    pub(crate) fn nodes(&self) -> usize {
        1 + match self {
            Node::Linear { .. } => 0,
            Node::Striped(s) => s.stripes.iter().map(Node::nodes).sum(),
            Node::Concat(c) => c.nodes.iter().map(Node::nodes).sum(),
        }
    }

    pub(crate) fn for_each_base(&self, f: &mut impl FnMut(&B)) {
        match self {
            Node::Linear { base, .. } => f(base),
            Node::Striped(s) => s.stripes.iter().for_each(|n| n.for_each_base(f)),
            Node::Concat(c) => c.nodes.iter().for_each(|n| n.for_each_base(f)),
        }
    }

    /// The same mapping over other bases.
    pub(crate) fn with_bases<C>(&self, f: &impl Fn(&B) -> C) -> Node<C> {
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

    /// Calls `f` with the base, the first sector and the length of each area that `len` sectors
    /// from `at` on lie in.
    pub(crate) fn for_each_area(&self, at: u64, len: u64, f: &mut impl FnMut(&B, u64, u64)) {
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
    pub(crate) fn part(&self, from: u64, len: u64, room: &mut usize) -> Option<Node<B>> {
        Some(self.narrowed(from, len, room)?.shifted(from))
    }

    /// The smallest node that maps `len` sectors from `at` on as this one does.
    fn narrowed(&self, at: u64, len: u64, room: &mut usize) -> Option<Node<B>> {
        *room = room.checked_sub(1)?;
        match self {
            Node::Linear { .. } => Some(self.clone()),
            Node::Striped(s) => {
                let begin = at.wrapping_add(s.shift);
                let (stripe, place, left) = s.layout.locate(Sector(begin));
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
                // A short part may leave out this stripe: then any node will do.
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

/// Whether runs whose start and length are multiples of `unit` sectors, a power of two, start and
/// end at multiples of the base's `block`, in however many parts they go there.
pub(crate) fn is_aligned<B>(node: &Node<B>, unit: u64, block: &impl Fn(&B) -> u64) -> bool {
    // The alignment that is left when `by` is added, or when a run is split at `by`.
    let after = |by: u64| unit.min(1_u64.checked_shl(by.trailing_zeros()).unwrap_or(unit));
    match node {
        Node::Linear { base, shift } => after(*shift) >= block(base),
        Node::Striped(s) => {
            let unit = after(s.shift | s.layout.chunk.value);
            s.stripes.iter().all(|n| is_aligned(n, unit, block))
        }
        Node::Concat(c) => {
            let inner = &c.ends[..c.ends.len().saturating_sub(1)];
            let unit = after(inner.iter().fold(c.shift, |all, end| all | end));
            c.nodes.iter().all(|n| is_aligned(n, unit, block))
        }
    }
}
