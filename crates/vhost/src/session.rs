// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session: one front end and its guest at one device. It does what messages say, on each core
//! for the queues that this core serves.
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use block::latency::Latencies;
use block::{BlockDevice, CoreId, Error, OpenDevice, Sector};
use reactor::{Share, core_id, new_opener, spawn};
use rustix::net::{SendFlags, send};

use crate::config::{
    QUEUES_MAX, config_space, feature, features, features_known, protocol_features,
};
use crate::event_fd::EventFd;
use crate::export::Export;
use crate::figures::{Figures, Stats};
use crate::inflight::Inflight;
use crate::memory::Memory;
use crate::message::{Answer, RegionInfo, Request, config_change};
use crate::queue::Queue;
use crate::queue_places::SessionPlaces;
use crate::remote::{Place, RemoteQueues, Scope};
use crate::request::{Command, STATUS_OK};
use crate::ring::{QUEUE_SIZE_MAX, RingError};
use crate::server::{Server, ServerShared};
use crate::work;
use block::ClientRegion;

/// Opens an eventfd on the core on which it is called.
pub type OpenEvent = Box<dyn FnOnce() -> Result<Rc<EventFd>, Error> + Send>;

/// What came with a message.
#[derive(Default)]
pub struct Attachments {
    /// Mapped memory: of each region of a memory table in turn, or the notes of requests in flight.
    pub regions: Vec<Arc<dyn ClientRegion>>,
    /// An eventfd.
    pub event: Option<OpenEvent>,
    /// The socket for requests to the front end.
    pub channel: Option<OwnedFd>,
}

block::debug_as!(Attachments, s =>
    "Attachments({} regions, event: {})", s.regions.len(), s.event.is_some());

/// What the parts of a session on all cores have in common.
#[derive(Clone)]
pub(crate) struct Common {
    /// Why the session has failed; the first cause counts.
    failure: Arc<OnceLock<String>>,
    /// Ends the control socket.
    cut_off: Arc<dyn Fn() + Send + Sync>,
    /// Whether a guest has used the device in this process: now, and before this session.
    pub(crate) was_used: Arc<AtomicBool>,
    pub(crate) was_used_before: bool,
    /// Features that an earlier process has offered, and the guest has accepted.
    offered_before: u64,
}

pub(crate) struct Shared {
    pub(crate) server: Rc<ServerShared>,
    pub(crate) export: Box<dyn Export>,
    /// The device, by an opener of this session's own.
    pub(crate) device: OpenDevice,
    pub(crate) latencies: Option<Arc<Latencies>>,
    share: Rc<Share>,
    /// Features that the guest and the front end have accepted.
    features: Cell<u64>,
    protocol: Cell<u64>,
    memory: RefCell<Rc<Memory>>,
    queues: Vec<Rc<Queue>>,
    inflight: RefCell<Option<Inflight>>,
    channel: RefCell<Option<OwnedFd>>,
    /// It ends: nobody hears of its requests any more.
    is_cut_off: Cell<bool>,
    /// The capacity that the front end knows.
    capacity: Cell<Sector>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) common: Common,
}

/// One front end at one device.
pub struct Session {
    /// What this core serves.
    here: Rc<Shared>,
    /// Where queue `n` is served: number `n % len`. `None` is this core.
    places: Vec<Option<RemoteQueues>>,
    /// Those of its queues that have descriptors.
    queue_places: SessionPlaces,
}

impl Shared {
    /// The part of a session on this core, with the queues of these numbers.
    pub(crate) fn new(
        server: &Server,
        export: Box<dyn Export>,
        common: Common,
        queues: &[u16],
    ) -> Rc<Shared> {
        let device = OpenDevice::new(export.device(), new_opener());
        let figures = Arc::<Figures>::default();
        Rc::new(Shared {
            server: server.0.clone(),
            latencies: export.latencies(),
            capacity: Cell::new(device.limits().capacity),
            export,
            device,
            share: Rc::default(),
            features: Cell::new(0),
            protocol: Cell::new(0),
            memory: RefCell::default(),
            queues: queues.iter().map(|number| Queue::new(*number, &figures)).collect(),
            inflight: RefCell::default(),
            channel: RefCell::default(),
            is_cut_off: Cell::new(false),
            figures,
            common,
        })
    }

    pub(crate) fn memory(&self) -> Rc<Memory> {
        self.memory.borrow().clone()
    }

    pub(crate) fn name(&self) -> String {
        self.device.name().to_owned()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.export.read_only()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.common.failure.get().is_some()
    }

    fn has(&self, feature: u64) -> bool {
        self.features.get() & feature != 0
    }

    /// Whether the guest does not know of FLUSH, so that each write has to be durable.
    pub(crate) fn writes_through(&self) -> bool {
        !self.has(feature::FLUSH) && self.device.limits().keeps
    }

    /// Ends the session because of what the other side did (VH-V1). The first cause counts.
    pub(crate) fn fail(&self, why: String) {
        if self.common.failure.set(why).is_ok() {
            self.end_queues();
            (self.common.cut_off)();
        }
    }

    /// Ends the session if `outcome` of a queue is an error; unless it has failed before.
    pub(crate) fn fail_on(&self, queue: &Queue, outcome: Result<(), RingError>) {
        if let Err(e) = outcome {
            self.fail(format!("queue {}: {e}", queue.number));
        }
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off.get()
    }

    fn end_queues(&self) {
        self.is_cut_off.set(true);
        for queue in &self.queues {
            queue.cut_off();
        }
        self.share.changed.wake_all();
    }

    /// Takes the share of a request with `bytes` of data, if it need not wait for it (VH-V2).
    pub(crate) fn admit(&self, bytes: u64) -> bool {
        self.server.budget.try_take(&self.share, bytes)
    }

    /// Waits until a request with `bytes` of data fits into the budget and takes its share (VH-V2).
    /// False when its queue stops first.
    pub(crate) async fn wait_for_budget(&self, queue: &Queue, bytes: u64) -> bool {
        let budget = &self.server.budget;
        budget.wait(&self.share, bytes, || queue.is_stopping.get()).await
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.server.budget.give_back(&self.share, bytes);
    }

    pub(crate) fn count(&self, request: &crate::request::Request, status: u8) {
        let Figures { requests, read_bytes, write_bytes, errors, .. } = &*self.figures;
        requests.add(1);
        match request.command {
            _ if status != STATUS_OK => errors.add(1),
            Ok(Command::Read(_)) => read_bytes.add(request.data_bytes.into()),
            Ok(Command::Write(_)) => write_bytes.add(request.data_bytes.into()),
            _ => {}
        }
    }

    fn queue(&self, number: u32) -> Result<&Rc<Queue>, Error> {
        let found = self.queues.iter().find(|queue| u32::from(queue.number) == number);
        found.ok_or_else(|| Error::invalid(format!("queue {number}: there are {QUEUES_MAX}")))
    }

    /// A queue whose settings may change.
    fn stopped_queue(&self, number: u32) -> Result<&Rc<Queue>, Error> {
        let queue = self.queue(number)?;
        let running = || Error::busy(format!("queue {number}: it runs"));
        if queue.is_running() { Err(running()) } else { Ok(queue) }
    }

    fn set_features(&self, accepted: u64) -> Result<(), Error> {
        let offered = self.offered() | self.common.offered_before;
        if accepted & !offered != 0 {
            let unknown = accepted & !offered;
            return Err(Error::invalid(format!("features {unknown:#x} were not offered")));
        }
        self.features.set(accepted);
        Ok(())
    }

    fn offered(&self) -> u64 {
        features(&self.device.limits(), self.is_read_only())
    }

    fn set_memory(&self, infos: &[RegionInfo], given: Attachments) -> Result<(), Error> {
        let memory = Rc::new(Memory::new(infos, given.regions)?);
        for queue in &self.queues {
            queue.move_to(&memory)?;
        }
        self.memory.replace(memory);
        Ok(())
    }

    fn start(self: &Rc<Self>, queue: &Rc<Queue>, kick: Rc<EventFd>) -> Result<(), Error> {
        let number = queue.number;
        if queue.is_running() {
            return Err(Error::busy(format!("queue {number}: it runs already")));
        }
        let inflight = self.inflight.borrow();
        let has_event_idx = self.has(feature::EVENT_IDX);
        let again = queue.begin(&self.memory(), has_event_idx, inflight.as_ref())?;
        let lacks_notes = inflight.is_some() && !queue.has_notes();
        self.check_may_go_on(queue, lacks_notes)?;
        queue.was_started.set(true);
        self.common.was_used.store(true, Ordering::Relaxed);
        if !self.has(feature::PROTOCOL_FEATURES) {
            queue.enabled.set(true);
        }
        queue.kick.replace(Some(kick));
        queue.tasks.set(2);
        self.call_once(queue);
        spawn(work::run(self.clone(), queue.clone(), again));
        spawn(work::calls(self.clone(), queue.clone()));
        Ok(())
    }

    fn set_call(&self, queue: &Rc<Queue>, call: Option<Rc<EventFd>>) {
        let old = queue.call.replace(call);
        if let Some(old) = old {
            old.close();
        }
        self.call_once(queue);
    }

    /// Calls the guest whether it wants to be called or not: a call of before, by another eventfd
    /// or by another process, may have been lost.
    fn call_once(&self, queue: &Queue) {
        if let Some(call) = &*queue.call.borrow() {
            call.signal();
        }
    }

    fn enable(&self, queue: &Queue, enabled: bool) {
        queue.enabled.set(enabled);
        let kick = queue.kick.borrow();
        if let (true, Some(kick)) = (enabled, kick.as_ref()) {
            // As if the guest had kicked.
            kick.signal();
        }
    }

    /// Stops a queue, also where its next request waits for memory.
    async fn stop(&self, queue: &Queue) -> u16 {
        queue.begin_stop();
        self.share.changed.wake_all();
        queue.stop().await
    }

    async fn reset(&self) {
        for queue in &self.queues {
            self.stop(queue).await;
            queue.reset();
        }
        self.features.set(0);
        self.inflight.take();
    }

    /// Takes no more requests, and waits until those in flight have ended. Returns the queues that
    /// have run, each with the index of its next entry. They begin there when they get a kick.
    pub(crate) async fn pause(&self) -> Vec<(u32, u16)> {
        let is_running = |queue: &&Rc<Queue>| queue.is_running();
        let running: Vec<Rc<Queue>> = self.queues.iter().filter(is_running).cloned().collect();
        running.iter().for_each(|queue| queue.begin_stop());
        self.share.changed.wake_all();
        let mut bases = Vec::new();
        for queue in running {
            bases.push((queue.number.into(), queue.stop().await));
        }
        bases
    }

    /// Takes no more requests, and waits until those in flight have ended.
    pub(crate) async fn end(&self) {
        self.end_queues();
        for queue in &self.queues {
            queue.stop().await;
        }
        self.memory.take();
        self.inflight.take();
        self.channel.take();
    }

    pub(crate) async fn handle(
        self: &Rc<Self>,
        request: Request,
        given: Attachments,
    ) -> Result<Answer, Error> {
        match request {
            Request::GetFeatures => return Ok(Answer::Number(self.offered())),
            Request::GetProtocolFeatures => {
                let all = protocol_features(self.export.outlives_process());
                return Ok(Answer::Number(all));
            }
            Request::GetQueueNum => return Ok(Answer::Number(self.server.queues_max().into())),
            Request::GetVringBase { queue } => {
                let base = self.stop(self.queue(queue)?).await;
                return Ok(Answer::Base { queue, base });
            }
            Request::GetConfig { offset, len } => {
                let limits = self.device.limits();
                self.capacity.set(limits.capacity);
                let queues = self.server.queues_max();
                let bytes = config_space(&limits, queues, self.is_read_only(), (offset, len));
                return Ok(Answer::Config { offset, bytes });
            }
            Request::GetInflightFd(_) => {
                return Err(Error::invalid("it is answered where the socket is"));
            }
            Request::SetOwner => {}
            Request::SetFeatures(accepted) => self.set_features(accepted)?,
            Request::SetProtocolFeatures(accepted) => {
                let offered = protocol_features(self.export.outlives_process());
                if accepted & !offered != 0 {
                    let unknown = accepted & !offered;
                    let e = format!("protocol features {unknown:#x} were not offered");
                    return Err(Error::invalid(e));
                }
                self.protocol.set(accepted);
            }
            Request::ResetOwner | Request::ResetDevice => self.reset().await,
            Request::SetMemTable(infos) => self.set_memory(&infos, given)?,
            Request::SetVringNum { queue, size } => {
                let allowed = |size: &u16| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX;
                let size = u16::try_from(size).ok().filter(allowed).ok_or_else(|| {
                    let allowed = format!("a power of two up to {QUEUE_SIZE_MAX} is allowed");
                    Error::invalid(format!("queue {queue}: size {size}: {allowed}"))
                })?;
                self.stopped_queue(queue)?.size.set(size);
            }
            Request::SetVringAddr { queue, addresses } => {
                let known = self.queue(queue)?.addresses.get();
                // A front end may say again where a queue is that runs.
                if known != Some(addresses) {
                    self.stopped_queue(queue)?.addresses.set(Some(addresses));
                }
            }
            Request::SetVringBase { queue, base } => {
                let base = u16::try_from(base).map_err(|_| {
                    Error::invalid(format!("queue {queue}: base {base}: it has 16 bits"))
                })?;
                self.stopped_queue(queue)?.base.set(base);
            }
            Request::SetVringKick { queue, .. } => {
                let kick = given.event.ok_or_else(|| {
                    let e = "polling without a kick is not supported";
                    Error::new(block::ErrorKind::NotSupported, format!("queue {queue}: {e}"))
                })?;
                self.start(self.queue(queue)?, kick()?)?;
            }
            Request::SetVringCall { queue, .. } => {
                let call = given.event.map(|open| open()).transpose()?;
                self.set_call(self.queue(queue)?, call);
            }
            Request::SetVringErr { queue, .. } => drop(self.queue(queue)?),
            Request::SetVringEnable { queue, enabled } => self.enable(self.queue(queue)?, enabled),
            Request::SetBackendReqFd => drop(self.channel.replace(given.channel)),
            // Nothing of it can be changed; the write cache is what it is.
            Request::SetConfig => {}
            Request::SetInflightFd(info) => {
                if !self.export.outlives_process() {
                    let e = "notes of requests in flight were not offered";
                    return Err(Error::invalid(e));
                }
                if self.queues.iter().any(|queue| queue.is_running()) {
                    return Err(Error::busy("notes of requests in flight: a queue runs"));
                }
                let region = given.regions.into_iter().next();
                let region = region.ok_or_else(|| Error::invalid("notes without memory"))?;
                self.inflight.replace(Some(Inflight::new(region, info)?));
            }
        }
        Ok(Answer::Done)
    }
}

impl Session {
    pub(crate) async fn begin(
        server: &Server,
        export: Box<dyn Export>,
        places: Vec<Option<Place>>,
        cut_off: Arc<dyn Fn() + Send + Sync>,
        features: u64,
    ) -> Session {
        let was_used = export.was_used();
        let was_used_before = was_used.load(Ordering::Relaxed);
        let (failure, offered_before) = (Arc::default(), features & features_known());
        let common = Common { failure, cut_off, was_used, was_used_before, offered_before };
        let count = places.len();
        assert!(count > 0, "each queue is served somewhere");
        let on = |nth: usize| (0..QUEUES_MAX).filter(move |n| usize::from(*n) % count == nth);
        let is_here = |nth: &usize| places[*nth].is_none();
        let mut own: Vec<u16> = (0..count).filter(is_here).flat_map(on).collect();
        own.sort_unstable();
        let here = Shared::new(server, export, common.clone(), &own);
        let mut begun = Vec::new();
        for (nth, place) in places.into_iter().enumerate() {
            begun.push(match place {
                Some(place) => {
                    let numbers = on(nth).collect();
                    Some(RemoteQueues::begin(place, common.clone(), numbers).await)
                }
                None => None,
            });
        }
        let queue_places = SessionPlaces::new(&server.0.queue_places);
        Session { here, places: begun, queue_places }
    }

    fn others(&self) -> impl Iterator<Item = &RemoteQueues> {
        self.places.iter().flatten()
    }

    /// The core, if it is another one, that serves a queue.
    fn place_of(&self, queue: u32) -> Option<&RemoteQueues> {
        // Core 0 refuses the numbers that there are not.
        let number = usize::try_from(queue).ok().filter(|_| queue < QUEUES_MAX.into())?;
        self.places[number % self.places.len()].as_ref()
    }

    /// Does what a message says; the next one is handled after this one has ended. An error ends
    /// the session: its cause is [`Session::failure`].
    ///
    /// # Errors
    /// When the message can't be, or not now, and when the session has failed.
    pub async fn handle(&self, request: Request, given: Attachments) -> Result<Answer, Error> {
        let answer = match self.failure() {
            Some(why) => Err(Error::invalid(why)),
            None => self.forward(request, given).await,
        };
        if let Err(e) = &answer {
            self.here.fail(e.to_string());
        }
        answer
    }

    /// Has each core handle a message that it is for (VH-Q2).
    async fn forward(&self, request: Request, given: Attachments) -> Result<Answer, Error> {
        if let Request::SetVringKick { queue, .. } | Request::SetVringCall { queue, .. } = request
            && queue < QUEUES_MAX.into()
        {
            self.queue_places.take(queue)?;
        }
        match Scope::of(&request) {
            Scope::Queue(queue) => {
                if let Some(place) = self.place_of(queue) {
                    return place.handle(request, given).await;
                }
            }
            Scope::AllQueues => {
                for place in self.others() {
                    let regions = given.regions.clone();
                    let given = Attachments { regions, ..Attachments::default() };
                    place.handle(request.clone(), given).await?;
                }
            }
            Scope::Session => {}
        }
        self.here.handle(request, given).await
    }

    /// Tells the front end when the device has another size than it knows.
    pub fn tell_capacity(&self) {
        let shared = &self.here;
        let capacity = shared.device.limits().capacity;
        if capacity == shared.capacity.replace(capacity) {
            return;
        }
        if let Some(channel) = &*shared.channel.borrow() {
            // If there is no room, an earlier one has not been read: the front end reads the
            // configuration space after it.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(channel, &config_change(), flags);
        }
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        self.here.common.failure.get().cloned()
    }

    fn figures(&self) -> impl Iterator<Item = (CoreId, &Figures)> {
        let others = self.others().map(|place| (place.core, &*place.figures));
        std::iter::once((core_id(), &*self.here.figures)).chain(others)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.figures().map(|(_, figures)| figures.in_flight.get()).sum()
    }

    /// The cores that serve queues which run, each with how many.
    pub fn queues_by_core(&self) -> Vec<(CoreId, u64)> {
        let all = self.figures().map(|(core, figures)| (core, figures.queues.get()));
        all.filter(|(_, queues)| *queues > 0).collect()
    }

    /// The name of its device.
    pub fn name(&self) -> String {
        self.here.name()
    }

    /// Its figures.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.figures().for_each(|(_, figures)| figures.add_to(&mut stats));
        stats
    }

    /// Cuts the front end off; the session ends when it is told that the socket has ended.
    pub fn cut_off(&self) {
        (self.here.common.cut_off)();
    }

    /// Pauses it, on all cores: takes no more requests, and waits until those in flight have ended.
    /// Returns the queues that ran, each with the index of its next entry: it begins there when it
    /// is given a kick, here or in another process.
    pub async fn pause(&self) -> Vec<(u32, u16)> {
        // Each core is told at once.
        let others: Vec<_> = self.others().map(RemoteQueues::pause).collect();
        let mut bases = self.here.pause().await;
        for paused in others {
            bases.extend(paused.await);
        }
        bases
    }

    /// Ends it, when the socket has ended: takes no more requests, and returns when those in flight
    /// have ended, on all cores.
    pub async fn end(&self) {
        // Each core is told at once.
        let others: Vec<_> = self.others().map(RemoteQueues::end).collect();
        self.here.end().await;
        for ended in others {
            ended.await;
        }
    }
}

block::debug_as!(Session, s => "Session({})", s.here.name());
