// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inode table: numbers of the nodes that the kernel has looked up and not forgotten.
//!
//! Invariants
//! - FU-I1 A number means the same node from its first lookup until the kernel has forgotten it,
//!   and is never reused.
use std::collections::BTreeMap;

use crate::host::DeviceId;

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// `DIR`
    Root,
    /// `DIR/dev`
    Dev,
    /// `DIR/dev/mapper`
    Mapper,
    /// `DIR/sys`
    Sys,
    /// `DIR/sys/block`
    Block,
    /// A device's file.
    Device(DeviceId),
    /// A folder or an attribute at a path below `DIR/sys/block/NAME`. The empty path is that folder
    /// itself.
    Attribute(DeviceId, String),
}

/// The permanent nodes; their numbers are their positions here, from 1 on.
const FIXED: [Node; 5] = [Node::Root, Node::Dev, Node::Mapper, Node::Sys, Node::Block];

struct Entry {
    node: Node,
    lookups: u64,
}

/// The table of inodes.
pub(crate) struct Inodes {
    by_number: BTreeMap<u64, Entry>,
    by_node: BTreeMap<Node, u64>,
    next: u64,
}

impl Inodes {
    pub(crate) fn new() -> Inodes {
        Inodes { by_number: BTreeMap::new(), by_node: BTreeMap::new(), next: 16 }
    }

    /// The number of a node, if the kernel may know it.
    pub(crate) fn number(&self, node: &Node) -> Option<u64> {
        if let Some(at) = FIXED.iter().position(|n| n == node) {
            return Some(at as u64 + 1);
        }
        self.by_node.get(node).copied()
    }

    /// The number of a node that is returned to the kernel.
    pub(crate) fn look_up(&mut self, node: &Node) -> u64 {
        if let Some(number) = self.number(node) {
            if let Some(entry) = self.by_number.get_mut(&number) {
                entry.lookups += 1;
            }
            return number;
        }
        let number = self.next;
        self.next += 1;
        self.by_number.insert(number, Entry { node: node.clone(), lookups: 1 });
        self.by_node.insert(node.clone(), number);
        number
    }

    /// Records that the kernel has forgotten `count` lookups.
    pub(crate) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(entry) = self.by_number.get_mut(&number) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0
            && let Some(entry) = self.by_number.remove(&number)
        {
            self.by_node.remove(&entry.node);
        }
    }

    /// The node that has this number.
    pub(crate) fn node(&self, number: u64) -> Option<Node> {
        let fixed = usize::try_from(number).ok().and_then(|n| FIXED.get(n.checked_sub(1)?));
        fixed.or_else(|| self.by_number.get(&number).map(|e| &e.node)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_lives_as_long_as_the_kernel_remembers_it() {
        let mut inodes = Inodes::new();
        let node = Node::Device(DeviceId(7));
        let number = inodes.look_up(&node);
        assert_eq!(inodes.look_up(&node), number);
        inodes.forget(number, 1);
        assert_eq!(inodes.node(number), Some(node.clone()));
        inodes.forget(number, 1);
        assert_eq!(inodes.node(number), None);
        assert_eq!(inodes.number(&node), None);
        assert_ne!(inodes.look_up(&node), number, "a number is not given again");
    }

    #[test]
    fn the_fixed_nodes_can_not_be_forgotten() {
        let mut inodes = Inodes::new();
        assert_eq!(inodes.node(1), Some(Node::Root));
        assert_eq!(inodes.look_up(&Node::Block), 5);
        inodes.forget(5, u64::MAX);
        inodes.forget(1, 3);
        assert_eq!(inodes.node(5), Some(Node::Block));
        assert_eq!(inodes.node(0), None);
        assert_eq!(inodes.node(6), None);
    }

    #[test]
    fn attributes_of_two_devices_are_two_nodes() {
        let mut inodes = Inodes::new();
        let of = |id| Node::Attribute(DeviceId(id), "queue/rotational".into());
        assert_ne!(inodes.look_up(&of(1)), inodes.look_up(&of(2)));
    }
}
