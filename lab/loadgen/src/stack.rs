// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices under load: a core, and on it the devices of the command line.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{BlockDevice, Class, CoreId, Error, ErrorKind, LocalFuture, same_device};
use control::{Failure, with_absolute_paths};
use dm::{Dm, Opened, Remove, Resolver};
use host::{
    CorePool, Lease, Leaves, Owner, WorkerThreads, io_failure, is_nbd, read_table,
    with_absolute_socket,
};
use queue::Leaf;
use reactor::{Reactor, flush, set_memory};
use uring::Uring;

use crate::args::{LoadgenArgs, Mapping};
use crate::clock_driver::ClockDriver;
use crate::cores::{DrivenDevice, Placement};
use crate::stack_copy::StackCopy;

/// What the devices of a run are built on.
pub(crate) struct TestBed {
    leaves: Leaves,
    /// Room for the cores of the jobs, when there are several and each can have its own.
    pool: Option<Arc<CorePool>>,
    /// The cores that parts of devices may run on, core 0 first.
    cores: Vec<CoreId>,
}

/// A core on this thread, and what devices are built on there. Without io_uring only memory can be
/// driven. The worker threads must outlive the core.
pub(crate) fn core(
    args: &LoadgenArgs,
) -> Result<(Option<WorkerThreads>, Reactor, TestBed), Failure> {
    if !args.no_uring {
        let jobs = u16::try_from(args.jobs).expect("checked by clap");
        let beside = u16::try_from(args.cores - 1).expect("checked by clap");
        // One job runs on core 0; several leave it alone.
        let pool = CorePool::new(beside + if jobs > 1 { jobs } else { 0 })?;
        let cores = WorkerThreads::start(&pool, args.cores)?;
        match Uring::with_mailboxes(CoreId(0), pool.mailboxes()) {
            Ok(uring) => {
                let leaves = Leaves::new(uring.files());
                let pool = (jobs > 1).then_some(pool);
                let reactor = Reactor::enter(CoreId(0), Box::new(uring));
                reactor.on(|| set_memory(host::memory_budget()));
                let ids = cores.ids();
                return Ok((Some(cores), reactor, TestBed { leaves, pool, cores: ids }));
            }
            Err(e) => {
                let why = Failure::from(e);
                tracing::warn!("going on in memory alone: {why}");
            }
        }
    }
    let reactor = Reactor::enter(CoreId(0), Box::new(ClockDriver::new()));
    reactor.on(|| set_memory(host::memory_budget()));
    let cores = vec![CoreId(0)];
    Ok((None, reactor, TestBed { leaves: Leaves::in_memory(), pool: None, cores }))
}

/// Opens the leaf of a word once, for the device mapper and for the load generator: so a leaf can
/// be driven directly and below a device in one run.
struct SharedResolver {
    leaves: Leaves,
    open: Rc<RefCell<BTreeMap<String, Weak<dyn BlockDevice>>>>,
}

impl Resolver for SharedResolver {
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
    pool: Option<Arc<CorePool>>,
    /// What is driven is this export, to each job by a connection of its own.
    uri: Option<String>,
}

enum Driven {
    Mapped(Opened, Option<Lease>),
    Raw(Rc<dyn Leaf>, Option<Lease>),
}

impl Stack {
    pub(crate) async fn build(args: &LoadgenArgs, bed: TestBed) -> Result<Stack, Failure> {
        let TestBed { leaves, pool, cores } = bed;
        let once = Rc::new(SharedResolver { leaves: leaves.clone(), open: Rc::default() });
        let dm = Dm::new(once.clone());
        host::register_targets(&dm, &leaves, &cores);
        let owner = pool.clone().map(|pool| Owner::new(pool, &dm, leaves.clone()));
        let here = std::env::current_dir().map_err(|e| io_failure(&e, "current directory"))?;
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
                let lease = owner.as_ref().map(|o| dm.open(word).map(|opened| o.lease(opened)));
                Driven::Mapped(dm.open(word)?, lease.transpose()?)
            } else {
                let opened = once.open(word).await;
                let opened = opened.map_err(|e| Failure::from(e).within(word))?;
                let same = |l: &Rc<dyn Leaf>| same_device(l, &opened);
                let leaf = leaves.opened().into_iter().find(same).expect("held just now");
                let lease = owner.as_ref().map(|o| o.lease_leaf(&leaf));
                Driven::Raw(leaf, lease)
            });
        }
        Ok(Stack { dm, leaves, driven, pool, uri })
    }

    /// What to drive.
    pub(crate) fn driven_devices(&self) -> Vec<DrivenDevice> {
        let describe = |driven: &Driven| {
            let (device, lease): (Rc<dyn BlockDevice>, _) = match driven {
                Driven::Mapped(opened, lease) => (opened.device().clone(), lease),
                Driven::Raw(leaf, lease) => (leaf.clone(), lease),
            };
            let on_cores = lease.as_ref().zip(self.pool.as_ref());
            let copy = match driven {
                Driven::Mapped(opened, _) => StackCopy::of(&self.dm, &self.leaves, opened.device()),
                Driven::Raw(..) => None,
            };
            let placement = |lease: &Lease| match (copy, &self.uri) {
                (Some(copy), _) => Placement::StackCopy(copy),
                (None, Some(uri)) => Placement::Export(uri.clone()),
                (None, None) => Placement::Replica(lease.handle()),
            };
            let on_cores = on_cores.map(|(lease, pool)| (pool.clone(), placement(lease)));
            DrivenDevice { device, on_cores }
        };
        self.driven.iter().map(describe).collect()
    }

    /// Whether no leaf is a file.
    pub(crate) fn in_memory(&self) -> bool {
        self.leaves.opened().iter().all(|leaf| leaf.is_in_memory())
    }

    /// Settles the devices, from the top down, and what is below them.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        let Stack { dm, leaves, driven, pool: _, uri: _ } = self;
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
