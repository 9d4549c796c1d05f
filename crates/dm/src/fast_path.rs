// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of a flat mapping: the base of a bio without a walk over nodes.
use std::rc::Rc;

use block::{Base, Sector};

use crate::layout::Layout;
use crate::node::Node;

pub(crate) type DynBase = Rc<dyn Base>;

/// The mapping of most stacks, in a form that is looked up in few instructions (`make
/// bench-noclone` counts them). Hence a tag of its own, and masks instead of sizes.
#[repr(u8)]
pub(crate) enum FastPath {
    Linear {
        base: DynBase,
        shift: u64,
    },
    /// Striped over linear; the number of stripes and the sectors of a chunk are powers of two.
    /// Without any stripe it stands for every other mapping, which is looked up node by node.
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

impl FastPath {
    pub(crate) fn of(root: &Node<DynBase>) -> FastPath {
        let linear = |node: &Node<DynBase>| match node {
            Node::Linear { base, shift } => Some((base.clone(), *shift)),
            Node::Striped(_) | Node::Concat(_) => None,
        };
        match root {
            Node::Linear { base, shift } => FastPath::Linear { base: base.clone(), shift: *shift },
            Node::Striped(s) if s.layout.is_shifts() => {
                let stripes: Option<Vec<_>> = s.stripes.iter().map(linear).collect();
                stripes.map_or(FastPath::none(), |all| FastPath::striped(s.shift, s.layout, all))
            }
            Node::Striped(_) | Node::Concat(_) => FastPath::none(),
        }
    }

    fn striped(shift: u64, layout: Layout, stripes: Vec<(DynBase, u64)>) -> FastPath {
        let (n, chunk) = (layout.n.value, layout.chunk.value);
        FastPath::Striped {
            shift,
            chunk,
            chunk_mask: chunk - 1,
            chunk_bits: chunk.trailing_zeros(),
            row_bits: chunk.trailing_zeros() + n.trailing_zeros(),
            stripe_mask: stripes.len() - 1,
            stripes,
        }
    }

    /// One endless chunk and no stripe: looks up nothing.
    pub(crate) fn none() -> FastPath {
        FastPath::Striped {
            shift: 0,
            chunk: 0,
            chunk_mask: u64::MAX,
            chunk_bits: 0,
            row_bits: 0,
            stripe_mask: 0,
            stripes: Vec::new(),
        }
    }

    /// The base of `at` and the sector there, when `len` sectors from there on, at least one, lie
    /// in one extent.
    #[inline]
    pub(crate) fn lookup(&self, at: u64, len: u64) -> Option<(&dyn Base, Sector)> {
        match self {
            FastPath::Linear { base, shift } => Some((&**base, Sector(at.wrapping_add(*shift)))),
            FastPath::Striped {
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
}
