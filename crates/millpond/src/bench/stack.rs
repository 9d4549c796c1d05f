// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is driven: a core, and on it the devices of the command line.
use std::fmt;
use std::rc::Rc;

use block::{BlockDevice, Class, CoreId};
use control::{Failure, with_absolute_paths};
use dm::{Dm, Opened, Remove, Resolver};
use reactor::{Reactor, flush};
use uring::Uring;

use crate::bench::args::{BenchArgs, Mapping};
use crate::bench::memory::Memory;
use crate::leaf::{Leaves, OpenLeaf};
use crate::rundir::refused;
use crate::targets;
use crate::verbs::read_table;

/// A core on this thread, and what opens leaves there. Without io_uring only memory can be driven.
pub(crate) fn core(no_uring: bool) -> Result<(Reactor, Leaves), Failure> {
    if !no_uring {
        match Uring::new() {
            Ok(uring) => {
                let leaves = Leaves::new(uring.files());
                return Ok((Reactor::enter(CoreId(0), Box::new(uring)), leaves));
            }
            Err(e) => {
                let why = Failure::from(e);
                tracing::warn!("going on in memory alone: {why}");
            }
        }
    }
    Ok((Reactor::enter(CoreId(0), Box::new(Memory::new())), Leaves::in_memory()))
}

/// The devices of one run.
pub(crate) struct Stack {
    dm: Rc<Dm>,
    leaves: Leaves,
    driven: Driven,
}

enum Driven {
    Mapped(Opened),
    Raw(Rc<dyn BlockDevice>),
}

impl Stack {
    pub(crate) async fn build(args: &BenchArgs, leaves: Leaves) -> Result<Stack, Failure> {
        let dm = Dm::new(Rc::new(leaves.clone()));
        targets::register(&dm);
        let driven = match &args.raw {
            Some(word) => {
                let leaf = leaves.open(word).await;
                Driven::Raw(leaf.map_err(|e| Failure::from(e).within(format!("--raw {word}")))?)
            }
            None => {
                let here = std::env::current_dir().map_err(|e| refused(&e, "current directory"))?;
                for (name, table) in &args.device {
                    create(&dm, name, &with_absolute_paths(table, &here), args.mapping).await?;
                }
                create(&dm, &args.name, &read_table(&args.table)?, args.mapping).await?;
                Driven::Mapped(dm.open(&args.name)?)
            }
        };
        Ok(Stack { dm, leaves, driven })
    }

    pub(crate) fn device(&self) -> Rc<dyn BlockDevice> {
        match &self.driven {
            Driven::Mapped(opened) => opened.device().clone(),
            Driven::Raw(leaf) => leaf.clone(),
        }
    }

    /// Whether no leaf is a file.
    pub(crate) fn in_memory(&self) -> bool {
        let is_file = |leaf: &Rc<OpenLeaf>| matches!(**leaf, OpenLeaf::File(..));
        !self.leaves.opened().iter().any(is_file)
    }

    /// Settles the devices, from the top down, and what is below them.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        let Stack { dm, leaves, driven } = self;
        // Held for their flush: the tables, which hold them too, go first.
        let opened = leaves.opened();
        drop(driven);
        dm.remove_all(Remove::IfUnused).await?;
        for leaf in opened {
            let flushed = flush(&*leaf, Class::Foreground).await;
            flushed.map_err(|status| {
                let message = format!("{}: flush: {status}", leaf.name());
                Failure::new(block::ErrorKind::Io, message)
            })?;
        }
        Ok(())
    }
}

async fn create(dm: &Rc<Dm>, name: &str, table: &str, mapping: Mapping) -> Result<(), Failure> {
    let created = dm.create(name, None, Some(table)).await;
    let device = created.map_err(|e| Failure::from(e).within(name))?;
    // A device of engines has no such attribute, and nothing to choose.
    if mapping != Mapping::default() {
        dm.set_attribute(device.name(), "mapping", mapping.word())?;
    }
    Ok(())
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({})", self.device().name())
    }
}
