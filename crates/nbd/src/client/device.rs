// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client as a device, and the state that its tasks share.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{
    Base, Bio, BlockDevice, Error, Limits, LocalFuture, LostWrites, OnIoError, Op, Planted, Sector,
    Status, crashing,
};
use queue::{BlockLeaf, Leaf, Stats};
use reactor::{WaitList, now, spawn};

use crate::client::export_info::ExportInfo;
use crate::client::guard::LinkId;
use crate::client::link::{Connection, Link};
use crate::client::supervisor::{self, dial};
use crate::client::work::{Key, Work};
use crate::client::{Connect, LinkEvent, Options};
use crate::planted::Fault;
use crate::wire::NAME_BYTES_MAX;

/// The shared state of a client's tasks.
pub(crate) struct ClientState {
    pub(crate) export: String,
    pub(crate) connect: Rc<dyn Connect>,
    pub(crate) options: Options,
    pub(crate) planted: Planted<Fault>,
    pub(crate) export_info: ExportInfo,
    pub(crate) limits: Limits,
    pub(crate) stats: Stats,
    pub(crate) work: RefCell<Work>,
    pub(crate) link: RefCell<Option<Rc<Link>>>,
    links: Cell<LinkId>,
    /// Lost connections that are not closed yet, oldest first.
    pub(crate) closing_links: RefCell<VecDeque<Rc<Link>>>,
    /// The server has come back read-only.
    has_become_read_only: Cell<bool>,
    /// NB-C6: every request fails.
    pub(crate) failed: Cell<bool>,
    pub(crate) closing: Cell<bool>,
    /// The connection was given up: requests make another one, and nothing else.
    pub(crate) resting: Cell<bool>,
    closed: Cell<bool>,
    /// The sender waits here.
    pub(crate) ready: WaitList,
    /// All other tasks wait here.
    pub(crate) changed: WaitList,
    on_event: Box<dyn Fn(&LinkEvent)>,
}

/// An export of a server as a device. After a drop the connection ends when the last bio has
/// completed.
pub struct Client(Rc<ClientState>);

impl Client {
    /// Connects to `export` and negotiates. `on_event` is called for later events of the
    /// connection.
    ///
    /// # Errors
    /// The error of the server or the system, or why the export can't be served.
    pub async fn open(
        name: impl Into<String>,
        export: &str,
        connect: Rc<dyn Connect>,
        options: Options,
        on_event: impl Fn(&LinkEvent) + 'static,
    ) -> Result<Client, Error> {
        let how = (options, Planted::NONE);
        Client::open_with(name.into(), export, connect, how, Box::new(on_event)).await
    }

    /// As [`Client::open`], with a planted fault.
    #[cfg(feature = "planted")]
    pub async fn open_planted(
        name: &str,
        export: &str,
        connect: Rc<dyn Connect>,
        options: Options,
        fault: Option<Fault>,
    ) -> Result<Client, Error> {
        let how = (options, fault.into());
        Client::open_with(name.to_owned(), export, connect, how, Box::new(|_| {})).await
    }

    async fn open_with(
        name: String,
        export: &str,
        connect: Rc<dyn Connect>,
        (options, planted): (Options, Planted<Fault>),
        on_event: Box<dyn Fn(&LinkEvent)>,
    ) -> Result<Client, Error> {
        if export.len() > NAME_BYTES_MAX {
            return Err(Error::invalid("the export's name has more than 4096 bytes"));
        }
        let (connection, export_info) = dial(&connect, export, options.timeout).await?;
        let limits = match export_info.limits() {
            Ok(limits) => limits,
            Err(why) => {
                supervisor::close(connection.file).await;
                return Err(Error::invalid(format!("export `{export}`: {why}")));
            }
        };
        let inner = Rc::new(ClientState {
            export: export.to_owned(),
            connect,
            options,
            planted,
            export_info,
            limits,
            stats: Stats::new(name),
            work: RefCell::new(Work::new(export_info.flags, planted)),
            link: RefCell::default(),
            links: Cell::new(0),
            closing_links: RefCell::default(),
            has_become_read_only: Cell::new(false),
            failed: Cell::new(false),
            closing: Cell::new(false),
            resting: Cell::new(false),
            closed: Cell::new(false),
            ready: WaitList::new(),
            changed: WaitList::new(),
            on_event,
        });
        inner.use_link(connection, export_info.structured);
        spawn(supervisor::run(inner.clone()));
        spawn(supervisor::expire(inner.clone()));
        Ok(Client(inner))
    }

    /// What was agreed on.
    pub fn export_info(&self) -> ExportInfo {
        self.0.export_info
    }

    /// Whether the export is read-only now.
    pub fn is_read_only(&self) -> bool {
        !self.0.export_info.is_writable() || self.0.has_become_read_only.get()
    }

    /// Its counters.
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// Ends the connection by a disconnect request when the last bio has completed.
    pub async fn close(self) {
        let inner = self.0.clone();
        drop(self);
        inner.changed.wait_for(|| inner.closed.get()).await;
    }

    /// Whether changes are refused without being sent. While there is no connection nobody knows
    /// whether the next one takes them.
    fn refuses_changes(&self) -> bool {
        let is_connected = self.0.link.borrow().is_some();
        !self.0.export_info.is_writable() || self.0.has_become_read_only.get() && is_connected
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
            Op::Read | Op::Flush | Op::Write => true,
            Op::Discard => inner.limits.discard_granularity_bytes > 0,
            Op::WriteZeroes => inner.limits.write_zeroes,
        };
        let is_write = !matches!(bio.op, Op::Read | Op::Flush);
        let refused = match (fits, knows) {
            (Err(status), _) => Some(status),
            _ if is_write && self.refuses_changes() => Some(Status::ReadOnly),
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

    /// The lost connections have been closed, and [`Options::fence`] is over.
    fn late_writes_ended(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move {
            let client = &self.0;
            let is_over = || match client.options.fence {
                Some(_) => !client.work.borrow().has_guards(),
                // Guards of a connection whose end nobody saw stay until the client is dropped.
                None => client.closing_links.borrow().is_empty(),
            };
            client.changed.wait_for(is_over).await;
        })
    }

    fn losses(&self) -> Option<Rc<dyn LostWrites>> {
        Some(self.0.work.borrow().unflushed().clone())
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

    fn has_become_read_only(&self) -> bool {
        self.0.has_become_read_only.get()
    }

    fn has_connection(&self) -> bool {
        true
    }

    fn disconnect(&self) -> LocalFuture<()> {
        let client = self.0.clone();
        Box::pin(async move {
            client.resting.set(true);
            supervisor::disconnect(&client).await;
        })
    }

    fn connect_again(&self) {
        self.0.resting.set(false);
        self.0.changed.wake_all();
    }

    fn problem(&self) -> Option<String> {
        let lost = self.0.link.borrow().is_none() && !self.0.resting.get();
        lost.then(|| "its server is not connected: requests wait for it".to_owned())
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

    fn is_stale(&self) -> bool {
        self.is_read_only()
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

impl ClientState {
    pub(crate) fn notify(&self, event: &LinkEvent) {
        let is_expected = self.resting.get() || self.closing.get();
        if !is_expected || self.has_work() {
            (self.on_event)(event);
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.borrow().is_empty()
    }

    pub(crate) fn use_link(self: &Rc<ClientState>, connection: Connection, structured: bool) {
        self.links.set(self.links.get() + 1);
        let link = Link::start(self, (self.links.get(), connection), structured);
        self.link.replace(Some(link));
        self.work.borrow_mut().connected();
        self.ready.wake_all();
    }

    /// Notes whether the server of the next connection takes writes. If it does not, and did when
    /// the export was opened, the changes that wait are refused, and the answer is true.
    pub(crate) fn set_writable(&self, is_writable: bool) -> bool {
        let is_refused = self.export_info.is_writable() && !is_writable;
        self.has_become_read_only.set(is_refused);
        if is_refused {
            self.work.borrow_mut().refuse_changes(&self.stats);
        }
        is_refused
    }

    /// Handles the answer to a request.
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

    /// Wakes the tasks that wait for waiting requests, or for the end of all.
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
        self.closing_links.borrow_mut().push_back(link.clone());
        let (time, limit) = (now(), self.options.own_silence());
        let mut work = self.work.borrow_mut();
        work.lost(link.id, time, limit, &self.stats);
        // The next connection may be as silent: fail what has waited for too long.
        work.expire(time, self.options.timeout, false, &self.stats);
        drop(work);
        if self.planted.is(Fault::FenceAtReconnect) {
            self.work.borrow_mut().release(link.id);
        }
        self.changed.wake_all();
    }

    pub(crate) fn link_closed(&self, link: &Rc<Link>) {
        self.closing_links.borrow_mut().retain(|l| !Rc::ptr_eq(l, link));
        self.changed.wake_all();
    }

    /// Releases the guards of a lost connection: its writes can no longer be performed.
    pub(crate) fn release(&self, link: LinkId) {
        self.work.borrow_mut().release(link);
        self.ready.wake_all();
        self.changed.wake_all();
    }

    /// Fails the device permanently (NB-C6).
    pub(crate) fn fail(&self, why: String) {
        self.failed.set(true);
        self.notify(&LinkEvent::Failed(why));
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
