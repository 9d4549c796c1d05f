// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is driven: a core, and on it the devices of the command line.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{BlockDevice, Class, CoreId, Error, ErrorKind, LocalFuture};
use control::{Failure, with_absolute_paths};
use dm::{Dm, Opened, Remove, Resolver};
use host::{Cores, Leaves, Lent, Owner, Shards, is_nbd, read_table, refused, with_absolute_socket};
use queue::Leaf;
use reactor::{Reactor, flush, set_memory};
use uring::Uring;

use crate::args::{BenchArgs, Mapping};
use crate::cores::{Door, There};
use crate::memory::Memory;
use crate::replay::Replay;

/// What devices are built on.
pub(crate) struct Ground {
    leaves: Leaves,
    /// Room for the cores of the jobs, when there are several and each can have its own.
    shards: Option<Arc<Shards>>,
    /// On which parts of devices may be, this one first.
    cores: Vec<CoreId>,
}

/// A core on this thread, and what devices are built on there. Without io_uring only memory can be
/// driven. The cores beside this one must outlive it.
pub(crate) fn core(args: &BenchArgs) -> Result<(Option<Cores>, Reactor, Ground), Failure> {
    if !args.no_uring {
        let jobs = u16::try_from(args.jobs).expect("checked by clap");
        let beside = u16::try_from(args.cores - 1).expect("checked by clap");
        // One job runs on core 0; several leave it alone.
        let shards = Shards::new(beside + if jobs > 1 { jobs } else { 0 })?;
        let cores = Cores::start(&shards, args.cores)?;
        match Uring::with_mailboxes(CoreId(0), shards.mailboxes()) {
            Ok(uring) => {
                let leaves = Leaves::new(uring.files());
                let shards = (jobs > 1).then_some(shards);
                let reactor = Reactor::enter(CoreId(0), Box::new(uring));
                reactor.on(|| set_memory(host::budget()));
                let ids = cores.ids();
                return Ok((Some(cores), reactor, Ground { leaves, shards, cores: ids }));
            }
            Err(e) => {
                let why = Failure::from(e);
                tracing::warn!("going on in memory alone: {why}");
            }
        }
    }
    let reactor = Reactor::enter(CoreId(0), Box::new(Memory::new()));
    reactor.on(|| set_memory(host::budget()));
    let cores = vec![CoreId(0)];
    Ok((None, reactor, Ground { leaves: Leaves::in_memory(), shards: None, cores }))
}

/// Opens a word's leaf once for all who name it, device mapper or not: so a leaf can be driven
/// itself and below a device in one run.
struct Once {
    leaves: Leaves,
    open: Rc<RefCell<BTreeMap<String, Weak<dyn BlockDevice>>>>,
}

impl Resolver for Once {
    fn canonical(&self, word: &str) -> LocalFuture<Result<String, Error>> {
        self.leaves.canonical(word)
    }

    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let (key, opening, open) =
            (self.canonical(word), self.leaves.open(word), self.open.clone());
        Box::pin(async move {
            let key = key.await?;
            let found = open.borrow().get(&key).and_then(Weak::upgrade);
            if let Some(leaf) = found {
                return Ok(leaf);
            }
            let leaf = opening.await?;
            open.borrow_mut().insert(key, Rc::downgrade(&leaf));
            Ok(leaf)
        })
    }
}

/// The devices of one run.
pub(crate) struct Stack {
    dm: Rc<Dm>,
    leaves: Leaves,
    driven: Vec<Driven>,
    shards: Option<Arc<Shards>>,
    /// What is driven is this export, to each job by a connection of its own.
    uri: Option<String>,
}

enum Driven {
    Mapped(Opened, Option<Lent>),
    Raw(Rc<dyn Leaf>, Option<Lent>),
}

impl Stack {
    pub(crate) async fn build(args: &BenchArgs, ground: Ground) -> Result<Stack, Failure> {
        let Ground { leaves, shards, cores } = ground;
        let once = Rc::new(Once { leaves: leaves.clone(), open: Rc::default() });
        let dm = Dm::new(once.clone());
        host::register_targets(&dm, &leaves, &cores);
        let owner = shards.clone().map(|shards| Owner::new(shards, &dm, leaves.clone()));
        let here = std::env::current_dir().map_err(|e| refused(&e, "current directory"))?;
        for (name, table) in &args.device {
            create(&dm, name, &with_absolute_paths(table, &here), args.mapping).await?;
        }
        let uri = args.uri.as_ref().map(|word| from_here(word, &here)).transpose()?;
        let drive = match uri.as_ref().or(args.raw.as_ref()) {
            Some(word) => std::slice::from_ref(word),
            None if args.drive.is_empty() => {
                create(&dm, &args.name, &read_table(&args.table)?, args.mapping).await?;
                std::slice::from_ref(&args.name)
            }
            None => &args.drive[..],
        };
        for s in &args.set {
            let set = dm.set_attribute(&s.device, &s.attribute, &s.value).await;
            set.map_err(|e| Failure::from(e).within(format!("--set {}", s.device)))?;
        }
        let mut driven = Vec::new();
        for word in drive {
            let mapped = args.raw.is_none() && uri.is_none() && dm.get(word).is_ok();
            driven.push(if mapped {
                let lent = owner.as_ref().map(|o| dm.open(word).map(|opened| o.lend(opened)));
                Driven::Mapped(dm.open(word)?, lent.transpose()?)
            } else {
                let opened = once.open(word).await;
                let opened = opened.map_err(|e| Failure::from(e).within(word))?;
                let same = |l: &Rc<dyn Leaf>| std::ptr::addr_eq(Rc::as_ptr(l), Rc::as_ptr(&opened));
                let leaf = leaves.opened().into_iter().find(same).expect("held just now");
                let lent = owner.as_ref().map(|o| o.lend_leaf(&leaf));
                Driven::Raw(leaf, lent)
            });
        }
        Ok(Stack { dm, leaves, driven, shards, uri })
    }

    /// What to drive.
    pub(crate) fn doors(&self) -> Vec<Door> {
        let door = |driven: &Driven| {
            let (device, lent): (Rc<dyn BlockDevice>, _) = match driven {
                Driven::Mapped(opened, lent) => (opened.device().clone(), lent),
                Driven::Raw(leaf, lent) => (leaf.clone(), lent),
            };
            let elsewhere = lent.as_ref().zip(self.shards.as_ref());
            let replay = match driven {
                Driven::Mapped(opened, _) => Replay::of(&self.dm, &self.leaves, opened.device()),
                Driven::Raw(..) => None,
            };
            let there = |lent: &Lent| match (replay, &self.uri) {
                (Some(replay), _) => There::Replay(replay),
                (None, Some(uri)) => There::Export(uri.clone()),
                (None, None) => There::Replica(lent.handle()),
            };
            let elsewhere = elsewhere.map(|(lent, shards)| (shards.clone(), there(lent)));
            Door { device, elsewhere }
        };
        self.driven.iter().map(door).collect()
    }

    /// Whether no leaf is a file.
    pub(crate) fn in_memory(&self) -> bool {
        self.leaves.opened().iter().all(|leaf| leaf.is_in_memory())
    }

    /// Settles the devices, from the top down, and what is below them.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        let Stack { dm, leaves, driven, shards: _, uri: _ } = self;
        // Held for their flush: the tables, which hold them too, go first.
        let opened = leaves.opened();
        drop(driven);
        dm.remove_all(Remove::IfUnused).await?;
        for leaf in opened {
            let flushed = flush(&*leaf, Class::Foreground).await;
            flushed.map_err(|status| {
                let message = format!("{}: flush: {status}", leaf.name());
                Failure::new(ErrorKind::Io, message)
            })?;
        }
        Ok(())
    }
}

/// The address with its socket's path as seen from here.
fn from_here(word: &str, here: &Path) -> Result<String, Failure> {
    if !is_nbd(word) {
        let message = format!("--uri {word}: a path or a memory is driven by --raw");
        return Err(Failure::new(ErrorKind::Invalid, message));
    }
    Ok(with_absolute_socket(word, here))
}

async fn create(dm: &Rc<Dm>, name: &str, table: &str, mapping: Mapping) -> Result<(), Failure> {
    let created = dm.create(name, None, Some(table)).await;
    let device = created.map_err(|e| Failure::from(e).within(name))?;
    // A device of engines has no such attribute, and nothing to choose.
    if mapping != Mapping::default() {
        dm.set_attribute(device.name(), "mapping", mapping.word()).await?;
    }
    Ok(())
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({:?}, {} driven)", self.dm, self.driven.len())
    }
}
