// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that are killed at any step, and between any two stores into the guest's memory, again
//! and again, and processes that hand their session over: the guest sees no error, each of its
//! requests ends once, and nothing that it was told is lost or reverted.
mod guest;
mod handover;
mod messages;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use block::{
    Bio, BlockDevice, ClientMemory, CoreId, Limits, Nanos, Op, Ram, Sector, Slice, Status,
};
use reactor::sleep;
use sim::model::Uniform;
use sim::{DiskSpec, Machine, Rng, Swarm, World, WorldRef, seeds};

use self::guest::{Guest, MEMORY_BYTES, QUEUES, SECTORS, SIZE, addresses};
use self::handover::{Descriptor, Handovers, Process, hand_over_at_times};
use crate::config::feature;
use crate::export::Export;
use crate::message;
use crate::message::Request;
use crate::remote::Place;
use crate::server::Server;
use crate::testing::{TestEvent, region_at};
use block::ClientRegion;

const LIVES: usize = 4;
/// Requests in flight, fewer than there are slots.
const IN_FLIGHT: usize = 20;
/// Virtual time without a completion after which a request is lost. A disk takes 90 us.
const PATIENCE: Nanos = Nanos::from_millis(50);

/// What of a process other tests see: how many stores it has left.
#[derive(Debug)]
struct Life {
    stores_left: AtomicU64,
    is_over: AtomicBool,
    /// Another process has its session: it stores no more.
    is_handed_over: AtomicBool,
    /// It has stored then.
    has_stored_late: AtomicBool,
    /// Its stores do not arrive any more, although it lives.
    is_unheard: AtomicBool,
}

impl Life {
    fn new(stores: u64) -> Arc<Life> {
        let (is_over, is_handed_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (has_stored_late, is_unheard) = (AtomicBool::new(false), AtomicBool::new(false));
        let stores_left = AtomicU64::new(stores);
        Arc::new(Life { stores_left, is_over, is_handed_over, has_stored_late, is_unheard })
    }

    /// Counts a store; false when the process is dead and it does not take place.
    fn store(&self) -> bool {
        if self.is_handed_over.load(Relaxed) {
            self.has_stored_late.store(true, Relaxed);
        }
        let left = self.stores_left.load(Relaxed);
        self.stores_left.store(left.saturating_sub(1), Relaxed);
        self.is_over.store(self.is_over() || left == 0, Relaxed);
        !self.is_over() && !self.is_unheard.load(Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}

/// The guest's memory as one process has it mapped.
#[derive(Debug)]
struct Mapped {
    memory: Arc<Ram>,
    life: Arc<Life>,
}

impl ClientRegion for Mapped {
    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status> {
        ClientRegion::read(&*self.memory, at, out)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        if self.life.store() { ClientRegion::write(&*self.memory, at, bytes) } else { Ok(()) }
    }

    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status> {
        assert_copies();
        self.memory.read_to(at, to)
    }

    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status> {
        assert_copies();
        if self.life.store() { self.memory.write_from(at, from) } else { Ok(()) }
    }

    fn load_u16(&self, at: u64) -> Result<u16, Status> {
        self.memory.load_u16(at)
    }

    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status> {
        if self.life.store() { self.memory.store_u16(at, value) } else { Ok(()) }
    }

    fn check(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn prefetch(&self, _: u64) {}

    fn prefetch_to_store(&self, _: u64) {}

    /// The disk stores there itself. What it has of a process that died ends before the next one
    /// begins: that one waits for the locks of its leaves.
    fn client_memory(self: Arc<Self>) -> Option<ClientMemory> {
        Some(ClientMemory::of_ram(&self.memory))
    }
}

thread_local! {
    /// The device of a process, for all its cores: a simulated machine has them on one thread.
    static DEVICE: RefCell<Option<Rc<dyn BlockDevice>>> = const { RefCell::new(None) };
}

/// Data are copied for a device that does not take them where they are, and for no other.
fn assert_copies() {
    let takes = |device: &Option<Rc<dyn BlockDevice>>| {
        device.as_ref().is_some_and(|d| d.takes_client_memory())
    };
    assert!(!DEVICE.with_borrow(takes), "data are copied that could stay in place");
}

struct TestExport {
    was_used: Arc<AtomicBool>,
}

impl Export for TestExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        DEVICE.with_borrow(Clone::clone).expect("set when the process began")
    }

    fn read_only(&self) -> bool {
        false
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn was_used(&self) -> Arc<AtomicBool> {
        self.was_used.clone()
    }

    fn warn(&self, why: &str) {
        panic!("each of these guests has room for its notes: {why}");
    }
}

/// Where queues are served by so many cores.
fn places(cores: u16, was_used: &Arc<AtomicBool>) -> Vec<Option<Place>> {
    let place = |core| {
        let was_used = was_used.clone();
        let begin =
            || (Server::new(32 << 20), Box::new(TestExport { was_used }) as Box<dyn Export>);
        (core > 0).then(|| Place { core: CoreId(core), begin: Box::new(begin) })
    };
    (0..cores).map(place).collect()
}

/// A device whose writes end at once, and reach the disk later: as a cache in the memory of the
/// process does it.
struct EarlyWrites(Rc<dyn BlockDevice>);

impl BlockDevice for EarlyWrites {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op != Op::Write {
            return self.0.submit(bio);
        }
        let (below, bufs) = (self.0.clone(), bio.bufs.clone());
        let (sector, flags, class) = (bio.sector, bio.flags, bio.class);
        bio.complete(Status::Ok);
        reactor::spawn(async move {
            sleep(Nanos(50_000)).await;
            let _ = reactor::write(&*below, flags, class, sector, bufs).await;
        });
    }
}

/// A device that takes no memory of clients.
struct OwnBuffers(Rc<dyn BlockDevice>);

impl BlockDevice for OwnBuffers {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn submit(&self, bio: Bio) {
        self.0.submit(bio);
    }
}

/// Memory that outlives the process, as a device that ends each request as it is submitted.
struct MemoryDisk(Rc<Ram>);

impl BlockDevice for MemoryDisk {
    fn name(&self) -> &str {
        "memory"
    }

    fn limits(&self) -> Limits {
        Limits {
            discard_granularity_bytes: 512,
            write_zeroes: true,
            ..Limits::new(Sector(SECTORS))
        }
    }

    fn takes_client_memory(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        let byte = |sector: Sector| usize::try_from(sector.bytes()).expect("few");
        match bio.op {
            Op::Read => self.0.read_bufs(byte(bio.sector), &bio.bufs),
            Op::Write => self.0.write_bufs(byte(bio.sector), &bio.bufs),
            Op::Discard | Op::WriteZeroes => self.0.punch(byte(bio.sector)..byte(bio.end())),
            Op::Flush => {}
        }
        bio.complete(Status::Ok);
    }
}

/// Whether the cores of a run poll before they sleep: with each kind of disk in half of the runs.
fn polls(seed: u64) -> bool {
    seed / 3 % 2 == 1
}

/// The devices of a run: one for each process.
struct Disks {
    kind: u64,
    memory: Rc<Ram>,
}

impl Disks {
    fn new(seed: u64) -> Disks {
        Disks { kind: seed % 3, memory: Rc::new(Ram::new(SECTORS * 512).expect("few")) }
    }

    /// The disk of the world; the same, without taking the guest's memory; or one that ends
    /// requests at once.
    fn next(&self, leaf: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
        match self.kind {
            0 => leaf,
            1 => Rc::new(OwnBuffers(leaf)),
            _ => Rc::new(MemoryDisk(self.memory.clone())),
        }
    }

    /// Requests that the guest begins together.
    fn burst(&self) -> u64 {
        if self.kind == 2 { 6 } else { 1 }
    }
}

/// What a run does differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Right,
    /// The device tells of writes too early.
    EarlyWrites,
    /// The front end keeps no notes of requests in flight.
    NoNotes,
}

impl Variant {
    fn has_notes(self) -> bool {
        self != Variant::NoNotes
    }
}

/// Connects, as a front end does, and starts the queues. Returns their kicks.
async fn connect(
    process: &Process,
    guest: &RefCell<Guest>,
    has_notes: bool,
) -> Result<Vec<Arc<TestEvent>>, String> {
    let (memory, notes, info, has_event_idx) = {
        let guest = guest.borrow();
        let of = |region: &Arc<Ram>| vec![Descriptor::Memory(region.clone())];
        (of(&guest.memory), of(&guest.notes), guest.inflight_info, guest.has_event_idx)
    };
    let event = |event: &Arc<TestEvent>| vec![Descriptor::Event(event.clone())];
    let blk = feature::FLUSH | feature::DISCARD | feature::WRITE_ZEROES | feature::MQ;
    let ring = feature::INDIRECT_DESC | if has_event_idx { feature::EVENT_IDX } else { 0 };
    let features = feature::VERSION_1 | feature::PROTOCOL_FEATURES | blk | ring;
    let none = Vec::new;
    process.tell(Request::SetFeatures(features), none()).await?;
    let protocol = message::protocol::INFLIGHT_SHMFD;
    process.tell(Request::SetProtocolFeatures(protocol), none()).await?;
    if has_notes {
        process.tell(Request::SetInflightFd(info), notes).await?;
    }
    process.tell(Request::SetMemTable(vec![region_at(0, MEMORY_BYTES)]), memory).await?;
    let mut kicks = Vec::new();
    for number in 0..QUEUES {
        let (queue, base) = (u32::from(number), guest.borrow().base(number).into());
        process.tell(Request::SetVringNum { queue, size: SIZE.into() }, none()).await?;
        process.tell(Request::SetVringBase { queue, base }, none()).await?;
        let addresses = addresses(number);
        process.tell(Request::SetVringAddr { queue, addresses }, none()).await?;
        let (kick, call) = (Arc::<TestEvent>::default(), Arc::<TestEvent>::default());
        process.tell(Request::SetVringKick { queue, given: true }, event(&kick)).await?;
        process.tell(Request::SetVringCall { queue, given: true }, event(&call)).await?;
        process.tell(Request::SetVringEnable { queue, enabled: true }, none()).await?;
        kicks.push(kick);
    }
    Ok(kicks)
}

/// What the guest has left to do while a process serves it.
struct Work<'a> {
    kicks: &'a [Arc<TestEvent>],
    left: u64,
    /// The next sector to read at last.
    sector: u64,
    completed: u64,
    /// When a request was completed last.
    since: Nanos,
}

impl Work<'_> {
    /// Takes what is complete, and begins a request. True when all is done.
    fn step(&mut self, guest: &mut Guest) -> Result<bool, String> {
        guest.collect()?;
        let is_idle = guest.in_flight() == 0;
        if guest.completed != self.completed || is_idle {
            (self.completed, self.since) = (guest.completed, reactor::now());
        } else if reactor::now().saturating_sub(self.since) > PATIENCE {
            return Err(format!("{} requests are lost", guest.in_flight()));
        }
        if self.left > 0 {
            for _ in 0..guest.burst.min(self.left) {
                self.left -= u64::from(guest.in_flight() < IN_FLIGHT && guest.draw(self.kicks));
            }
        } else if is_idle && self.sector < SECTORS {
            // At last all that was promised is read.
            self.sector += u64::from(guest.read(self.sector, self.kicks));
        } else {
            return Ok(is_idle);
        }
        Ok(false)
    }
}

/// Works until all is done: in the last life only.
async fn work(
    process: &RefCell<Rc<Process>>,
    guest: &RefCell<Guest>,
    kicks: &[Arc<TestEvent>],
    is_last: bool,
) -> Result<(), String> {
    let left = if is_last { 200 } else { u64::MAX };
    let (completed, since) = (guest.borrow().completed, reactor::now());
    let mut work = Work { kicks, left, sector: 0, completed, since };
    loop {
        if let Some(why) = process.borrow().session.failure() {
            return Err(why);
        }
        let is_done = work.step(&mut guest.borrow_mut())?;
        if is_done {
            return Ok(());
        }
        sleep(Nanos(7_000)).await;
    }
}

/// When a process is killed: after so many steps, or so many stores into shared memory.
#[derive(Clone, Copy, Debug)]
enum Kill {
    Steps(u64),
    Stores(u64),
    Never,
}

/// One process, with queues on each of its cores; or several, of which each hands over to the next.
fn live(
    world: &WorldRef,
    cores: u16,
    guest: &Rc<RefCell<Guest>>,
    (kill, variant, handovers): (Kill, Variant, Option<Handovers>),
) -> Result<(), String> {
    let machine = Machine::boot(world, cores);
    let life = Life::new(if let Kill::Stores(n) = kill { n } else { u64::MAX });
    let ended: Rc<RefCell<Option<Result<(), String>>>> = Rc::default();
    let current: Rc<RefCell<Option<Arc<Life>>>> = Rc::new(RefCell::new(Some(life.clone())));
    {
        let (guest, ended, current) = (guest.clone(), ended.clone(), current.clone());
        machine.spawn(0, async move {
            let process = Process::begin(cores, life.clone(), 0, false).await;
            let is_last = matches!(kill, Kill::Never);
            let connected = connect(&process, &guest, variant.has_notes()).await;
            let process = Rc::new(RefCell::new(Rc::new(process)));
            if let Some(handovers) = handovers {
                let handed_over = hand_over_at_times(process.clone(), handovers, current);
                let ended = ended.clone();
                reactor::spawn(async move {
                    let why = handed_over.await;
                    ended.borrow_mut().get_or_insert(Err(why));
                });
            }
            let done = match connected {
                Ok(kicks) => work(&process, &guest, &kicks, is_last).await,
                Err(e) => Err(e),
            };
            let last = process.borrow().clone();
            if done.is_ok() {
                last.session.end().await;
            }
            // What a dead process has found wrong does not count.
            if !last.life.is_over() {
                ended.borrow_mut().get_or_insert(done);
            }
            // The session is the process's: it does not end before that.
            std::future::pending::<()>().await;
        });
    }
    let from = world.borrow().steps();
    let (over, steps) = (ended.clone(), world.clone());
    machine.run(move || {
        let is_killed = matches!(kill, Kill::Steps(n) if steps.borrow().steps() >= from + n);
        let is_over = current.borrow().as_ref().is_some_and(|life| life.is_over());
        is_killed || is_over || over.borrow().is_some()
    });
    machine.kill();
    ended.take().unwrap_or(Ok(()))
}

fn simulate(seed: u64, variant: Variant) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let swarm = Swarm { polls: polls(seed), ..Swarm::CALM };
    let world = World::with_swarm(Rng::new(rng.next_u64()), swarm);
    let disk = DiskSpec::new("disk", Sector(SECTORS), Box::new(Uniform::new(4, 1_000, 90_000)));
    let file = world.borrow_mut().add_disk(disk);
    let disks = Disks::new(seed);
    let guest = Rc::new(RefCell::new(Guest::new(rng.fork(), disks.burst())));
    let mut inherited = 0;
    for life in 1..=LIVES {
        // Some die while they start.
        let within = rng.pick(&[30, 500, 5_000]);
        let kill = match rng.below(2) {
            _ if life == LIVES => Kill::Never,
            0 => Kill::Steps(rng.below(within)),
            _ => Kill::Stores(rng.below(within)),
        };
        let leaf: Rc<dyn BlockDevice> = world.borrow().leaf(file);
        let device: Rc<dyn BlockDevice> = match variant {
            Variant::EarlyWrites => Rc::new(EarlyWrites(leaf)),
            Variant::Right | Variant::NoNotes => disks.next(leaf),
        };
        DEVICE.set(Some(device));
        inherited += guest.borrow().in_flight();
        let cores = rng.pick(&[1, 2]);
        live(&world, cores, &guest, (kill, variant, None))?;
    }
    let guest = guest.borrow();
    assert!(guest.completed > 200, "the last life does all it draws");
    INHERITED.set(INHERITED.get() + inherited);
    Ok(())
}

thread_local! {
    /// Requests that a process has found in flight, in all runs of a test.
    static INHERITED: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn kills_are_hidden_from_a_guest() {
    seeds::run(300, |seed| simulate(seed, Variant::Right));
    let (runs, inherited) = (seeds::count(300), INHERITED.get());
    // One seed alone may have killed no process with requests.
    assert!(runs == 1 || inherited as u64 > runs, "{inherited} requests in {runs} runs: too few");
}

/// What makes the test above worth something: a device that may not promise it is found out.
#[test]
fn writes_that_only_the_process_has_are_missed() {
    let find = |seed| simulate(seed, Variant::EarlyWrites);
    let failure = seeds::first_failure(0..100, find).expect("a lost write shows");
    assert!(failure.why.contains("was promised"), "{}", failure.why);
}

/// And so is a front end without notes: requests are lost, or completed twice.
#[test]
fn requests_without_notes_are_missed() {
    let find = |seed| simulate(seed, Variant::NoNotes);
    let failure = seeds::first_failure(0..100, find).expect("a lost request shows");
    let why = failure.why;
    let is_known = ["are lost", "completed twice", "in flight already"];
    assert!(is_known.iter().any(|part| why.contains(part)), "{why}");
}
