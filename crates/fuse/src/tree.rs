// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tree as the host has it now: what is where, and what lies in a folder.
use std::sync::Arc;

use fuser::Errno;

use crate::attribute::{self, At};
use crate::handle::Item;
use crate::host::{Device, Host};
use crate::inode::Node;

/// What the tree has at a node now.
pub(crate) enum Found {
    Folder,
    Text { readable: bool, writable: bool },
    Device(Device),
}

/// The tree above a host.
pub(crate) struct Tree(pub(crate) Arc<dyn Host>);

impl Tree {
    /// What is at `node` now.
    pub(crate) fn find(&self, node: &Node) -> Result<Found, Errno> {
        match node {
            Node::Root | Node::Dev | Node::Mapper | Node::Sys | Node::Block => Ok(Found::Folder),
            Node::Device(id) => self.0.device(*id).map(Found::Device).ok_or(Errno::ENOENT),
            Node::Attribute(id, path) if path.is_empty() => {
                self.0.device(*id).map(|_| Found::Folder).ok_or(Errno::ENOENT)
            }
            Node::Attribute(id, path) => {
                match attribute::at(&self.0.attributes(*id), path).ok_or(Errno::ENOENT)? {
                    At::Folder => Ok(Found::Folder),
                    At::Text { readable, writable } => Ok(Found::Text { readable, writable }),
                }
            }
        }
    }

    /// The node that `name` is in the folder `parent`.
    pub(crate) fn child(&self, parent: &Node, name: &str) -> Result<Node, Errno> {
        let device = |mapped: bool| {
            let found = self.0.find(name).filter(|d| d.mapped || !mapped);
            found.map(|d| d.id).ok_or(Errno::ENOENT)
        };
        match (parent, name) {
            (Node::Root, "dev") => Ok(Node::Dev),
            (Node::Root, "sys") => Ok(Node::Sys),
            (Node::Sys, "block") => Ok(Node::Block),
            (Node::Dev, "mapper") => Ok(Node::Mapper),
            (Node::Dev, _) => Ok(Node::Device(device(false)?)),
            (Node::Mapper, _) => Ok(Node::Device(device(true)?)),
            (Node::Block, _) => Ok(Node::Attribute(device(false)?, String::new())),
            (Node::Attribute(id, path), _) => Ok(Node::Attribute(*id, attribute::join(path, name))),
            (Node::Root | Node::Sys | Node::Device(_), _) => Err(Errno::ENOENT),
        }
    }

    /// What a folder holds now.
    pub(crate) fn list(&self, node: &Node) -> Result<Vec<Item>, Errno> {
        let folder = |node, name: &str| Item { node, folder: true, name: name.to_owned() };
        let device =
            |d: Device| Item { node: Node::Device(d.id), folder: false, name: d.file_name };
        Ok(match node {
            Node::Root => vec![folder(Node::Dev, "dev"), folder(Node::Sys, "sys")],
            Node::Sys => vec![folder(Node::Block, "block")],
            Node::Dev => {
                let devices = self.0.devices().into_iter().map(device);
                // A device of this name is reached below `mapper` only.
                let devices = devices.filter(|d| d.name != "mapper");
                std::iter::once(folder(Node::Mapper, "mapper")).chain(devices).collect()
            }
            Node::Mapper => self.0.devices().into_iter().filter(|d| d.mapped).map(device).collect(),
            Node::Block => {
                let of = |d: Device| folder(Node::Attribute(d.id, String::new()), &d.file_name);
                self.0.devices().into_iter().map(of).collect()
            }
            Node::Attribute(id, path) => {
                let item = |(name, folder): (String, bool)| {
                    let node = Node::Attribute(*id, attribute::join(path, &name));
                    Item { node, folder, name }
                };
                let all = self.0.attributes(*id);
                attribute::list(&all, path).into_iter().map(item).collect()
            }
            Node::Device(_) => return Err(Errno::ENOTDIR),
        })
    }

    pub(crate) fn parent(node: &Node) -> Node {
        match node {
            Node::Root | Node::Dev | Node::Sys => Node::Root,
            Node::Mapper | Node::Device(_) => Node::Dev,
            Node::Block => Node::Sys,
            Node::Attribute(id, path) => attribute::parent(path)
                .map_or(Node::Block, |up| Node::Attribute(*id, up.to_owned())),
        }
    }
}
