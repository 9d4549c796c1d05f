// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client as a device: bios in, completions out; and what its tasks share.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{
    Base, Bio, BlockDevice, Error, Limits, LocalFuture, OnIoError, Op, Sector, Status, crashing,
};
use queue::{BlockLeaf, Leaf, Stats};
use reactor::{WaitList, now, spawn};

use crate::client::guard::LinkId;
use crate::client::keeper::{self, dial};
use crate::client::link::Link;
use crate::client::terms::Terms;
use crate::client::work::{Key, Work};
use crate::client::{Connect, News, Options};
use crate::wire::{ExportFlags, NAME_BYTES_MAX};

/// What the tasks of a client share.
pub(crate) struct Inner {
    pub(crate) export: String,
    pub(crate) connect: Rc<dyn Connect>,
    pub(crate) options: Options,
    pub(crate) terms: Terms,
    pub(crate) limits: Limits,
    pub(crate) stats: Stats,
    pub(crate) work: RefCell<Work>,
    pub(crate) link: RefCell<Option<Rc<Link>>>,
    links: Cell<LinkId>,
    /// Lost connections whose end has not been seen, the oldest first.
    pub(crate) dying: RefCell<VecDeque<Rc<Link>>>,
    /// C6: nothing can be done any more.
    pub(crate) failed: Cell<bool>,
    pub(crate) closing: Cell<bool>,
    closed: Cell<bool>,
    /// The sender waits here.
    pub(crate) ready: WaitList,
    /// Everybody else does.
    pub(crate) changed: WaitList,
    news: Box<dyn Fn(&News)>,
}

/// An export of a server as a device. Dropping it ends the connection when the last bio has
/// completed.
pub struct Client(Rc<Inner>);

impl Client {
    /// Connects to `export` and agrees on terms. `news` is told what becomes of the connection
    /// later.
    ///
    /// # Errors
    /// What the server or the system said, or what about the export can't be served.
    pub async fn open(
        name: impl Into<String>,
        export: &str,
        connect: Rc<dyn Connect>,
        options: Options,
        news: impl Fn(&News) + 'static,
    ) -> Result<Client, Error> {
        let name = name.into();
        if export.len() > NAME_BYTES_MAX {
            return Err(Error::invalid("the export's name has more than 4096 bytes"));
        }
        let (file, terms) = dial(&connect, export, options.timeout).await?;
        let limits = match terms.limits() {
            Ok(limits) => limits,
            Err(why) => {
                keeper::close(file).await;
                return Err(Error::invalid(format!("export `{export}`: {why}")));
            }
        };
        let inner = Rc::new(Inner {
            export: export.to_owned(),
            connect,
            options,
            terms,
            limits,
            stats: Stats::new(name),
            work: RefCell::new(Work::new(terms.flags, options.mutation)),
            link: RefCell::default(),
            links: Cell::new(0),
            dying: RefCell::default(),
            failed: Cell::new(false),
            closing: Cell::new(false),
            closed: Cell::new(false),
            ready: WaitList::new(),
            changed: WaitList::new(),
            news: Box::new(news),
        });
        inner.use_link(file, terms.structured);
        spawn(keeper::run(inner.clone()));
        spawn(keeper::expire(inner.clone()));
        Ok(Client(inner))
    }

    /// What was agreed on.
    pub fn terms(&self) -> Terms {
        self.0.terms
    }

    /// Whether the export takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.0.terms.flags.contains(ExportFlags::READ_ONLY)
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// Ends the connection as the protocol wants it, when the last bio has completed.
    pub async fn close(self) {
        let inner = self.0.clone();
        drop(self);
        inner.changed.wait_for(|| inner.closed.get()).await;
    }

    fn refuse(&self, sector: Sector, bio: Bio, status: Status) {
        self.0.stats.count(bio.op, sector, bio.len, status);
        bio.complete(status);
    }
}

impl Base for Client {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        let inner = &*self.0;
        let fits = bio.check_bufs();
        let knows = match bio.op {
            Op::Read | Op::Flush => true,
            Op::Write => !self.is_read_only(),
            Op::Discard => inner.limits.discard_granularity_bytes > 0,
            Op::WriteZeroes => inner.limits.write_zeroes,
        };
        let refused = match (fits, knows) {
            (Err(status), _) => Some(status),
            (_, false) => Some(Status::NotSupported),
            _ if inner.failed.get() => Some(Status::Io),
            _ => None,
        };
        if let Some(status) = refused {
            return self.refuse(sector, bio, status);
        }
        let ticket = inner.stats.begin(bio.op, sector, bio.len);
        let connected = inner.link.borrow().is_some();
        let since = if connected { None } else { Some(now()) };
        let first = {
            let mut work = inner.work.borrow_mut();
            let first = !work.has_queued();
            work.add((sector, bio), ticket, &inner.limits, since);
            first
        };
        if first {
            inner.ready.wake_all();
            if !connected {
                inner.changed.wake_all();
            }
        }
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.0.stats.requests().quiesced().await })
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.0.stats.watch(watcher);
    }
}

impl Leaf for Client {
    fn stats(&self) -> &Stats {
        self.stats()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }
}

impl BlockLeaf for Client {
    fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        self.0.work.borrow().is_changing(sectors)
    }
}

impl BlockDevice for Client {
    fn name(&self) -> &str {
        self.0.stats.device()
    }

    fn limits(&self) -> Limits {
        self.0.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        match self.0.limits.check_range(&bio) {
            Ok(()) => self.submit_at(bio.sector, bio),
            Err(status) => self.refuse(bio.sector, bio, status),
        }
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Inner {
    pub(crate) fn tell(&self, news: &News) {
        if !self.closing.get() || self.has_work() {
            (self.news)(news);
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.borrow().is_empty()
    }

    pub(crate) fn use_link(self: &Rc<Inner>, file: reactor::FileId, structured: bool) {
        self.links.set(self.links.get() + 1);
        let link = Link::start(self, (self.links.get(), file), structured);
        self.link.replace(Some(link));
        self.work.borrow_mut().connected();
        self.ready.wake_all();
    }

    /// The server has answered a request.
    pub(crate) fn answered(&self, key: Key, status: Status) {
        let mut work = self.work.borrow_mut();
        let queued = work.has_queued();
        work.answered(key, status, &self.stats);
        let (more, empty) = (!queued && work.has_queued(), work.is_empty());
        drop(work);
        if more {
            self.ready.wake_all();
        }
        if empty && self.closing.get() {
            self.changed.wake_all();
        }
    }

    /// The work may have something that waits, or nothing at all any more.
    pub(crate) fn waiting_changed(&self, work: &Work) {
        if work.has_waiting(true) || work.is_empty() && self.closing.get() {
            self.changed.wake_all();
        }
    }

    pub(crate) fn link_lost(&self, link: &Rc<Link>) {
        let mut current = self.link.borrow_mut();
        assert!(current.as_ref().is_some_and(|c| Rc::ptr_eq(c, link)), "a link is lost once");
        *current = None;
        drop(current);
        self.dying.borrow_mut().push_back(link.clone());
        let (time, limit) = (now(), self.options.own_silence());
        let mut work = self.work.borrow_mut();
        work.lost(link.id, time, limit, &self.stats);
        // Each new connection would be as silent: who has waited for long waits for no other.
        work.expire(time, self.options.timeout, false, &self.stats);
        drop(work);
        if self.options.mutation == crate::client::Mutation::FenceAtReconnect {
            self.work.borrow_mut().release(link.id);
        }
        self.changed.wake_all();
    }

    pub(crate) fn link_closed(&self, link: &Rc<Link>) {
        self.dying.borrow_mut().retain(|l| !Rc::ptr_eq(l, link));
        self.changed.wake_all();
    }

    /// Nothing of a lost connection can land any more.
    pub(crate) fn release(&self, link: LinkId) {
        self.work.borrow_mut().release(link);
        self.ready.wake_all();
        self.changed.wake_all();
    }

    /// C6.
    pub(crate) fn fail(&self, why: String) {
        self.failed.set(true);
        self.tell(&News::Failed(why));
        self.work.borrow_mut().fail_waiting(&self.stats);
        self.changed.wake_all();
    }

    pub(crate) fn set_closed(&self) {
        self.closed.set(true);
        self.changed.wake_all();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !crashing() {
            self.0.closing.set(true);
            self.0.changed.wake_all();
            self.0.ready.wake_all();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let connected = inner.link.borrow().is_some();
        write!(f, "Client({}, connected: {connected})", inner.stats.device())
    }
}
