// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tree of files and folders, from the current state of the host.
use std::sync::Arc;

use fuser::Errno;

use crate::attribute;
use crate::handle::DirEntry;
use crate::host::{Device, Host};
use crate::inode::Node;

/// The kind of a node.
#[derive(Debug, PartialEq)]
pub(crate) enum NodeKind {
    Folder,
    Text { readable: bool, writable: bool },
    Device(Device),
}

/// The tree above a host.
pub(crate) struct Tree(pub(crate) Arc<dyn Host>);

impl Tree {
    /// The current kind of `node`.
    pub(crate) fn find(&self, node: &Node) -> Result<NodeKind, Errno> {
        match node {
            Node::Root | Node::Dev | Node::Mapper | Node::Sys | Node::Block => Ok(NodeKind::Folder),
            Node::Device(id) => self.0.device(*id).map(NodeKind::Device).ok_or(Errno::ENOENT),
            Node::Attribute(id, path) if path.is_empty() => {
                self.0.device(*id).map(|_| NodeKind::Folder).ok_or(Errno::ENOENT)
            }
            Node::Attribute(id, path) => {
                attribute::at(&self.0.attributes(*id), path).ok_or(Errno::ENOENT)
            }
        }
    }

    /// The node `name` in the folder `parent`.
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

    /// The current entries of a folder.
    pub(crate) fn list(&self, node: &Node) -> Result<Vec<DirEntry>, Errno> {
        let folder = |node, name: &str| DirEntry { node, folder: true, name: name.to_owned() };
        let device =
            |d: Device| DirEntry { node: Node::Device(d.id), folder: false, name: d.file_name };
        Ok(match node {
            Node::Root => vec![folder(Node::Dev, "dev"), folder(Node::Sys, "sys")],
            Node::Sys => vec![folder(Node::Block, "block")],
            Node::Dev => {
                let devices = self.0.devices().into_iter().map(device);
                // A device with this name is shown below `mapper` only.
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
                    DirEntry { node, folder, name }
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
