// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that pause their session at random moments and go on, or hand it over to the next one,
//! while the guest works; and faults of that, which the guest must find.
//!
//! ```text
//!   serves ── pause ──▶ paused ── rolled back ──▶ serves
//!                          └──── COMMIT ────────▶ stores nothing; the next one serves
//! ```
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use block::{BlockDevice, Nanos, Ram, Sector};
use reactor::sleep;
use sim::model::Uniform;
use sim::{DiskSpec, Rng, World, seeds};

use super::guest::{Guest, SECTORS};
use super::{DEVICE, Disks, Kill, LIVES, Life, Mapped, TestExport, Variant, live, places};
use crate::connection::Connection;
use crate::event_fd::EventFd;
use crate::message::Request;
use crate::server::Server;
use crate::session::{Attachments, OpenEvent, Session};
use crate::testing::TestEvent;
use block::ClientRegion;

/// What comes with a message, in the place of a descriptor.
#[derive(Clone, Debug)]
pub(super) enum Descriptor {
    Memory(Arc<Ram>),
    Event(Arc<TestEvent>),
}

/// A process that serves the guest, or has served it.
pub(super) struct Process {
    pub(super) session: Session,
    pub(super) life: Arc<Life>,
    cores: u16,
    connection: RefCell<Connection<Descriptor>>,
}

impl Process {
    /// `was_used`: an earlier process has handed the guest over, which had accepted `features`.
    pub(super) async fn begin(
        cores: u16,
        life: Arc<Life>,
        features: u64,
        was_used: bool,
    ) -> Process {
        let server = Server::new(32 << 20);
        let export = TestExport { was_used: Arc::new(AtomicBool::new(was_used)) };
        let places = places(cores, &export.was_used);
        let session = server.begin(Box::new(export), places, Arc::new(|| ()), features).await;
        Process { session, life, cores, connection: RefCell::default() }
    }

    fn attachments(&self, descriptors: &[Descriptor]) -> Attachments {
        let mut all = Attachments::default();
        for descriptor in descriptors.iter().cloned() {
            match descriptor {
                Descriptor::Memory(memory) => {
                    let mapped = Mapped { memory, life: self.life.clone() };
                    all.regions.push(Arc::new(mapped) as Arc<dyn ClientRegion>);
                }
                Descriptor::Event(event) => {
                    let open: OpenEvent = Box::new(move || Ok(EventFd::of_test(event)));
                    all.event = Some(open);
                }
            }
        }
        all
    }

    /// Has the session handle a message.
    pub(super) async fn tell(
        &self,
        request: Request,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), String> {
        let given = self.attachments(&descriptors);
        self.session.handle(request.clone(), given).await.map_err(|e| e.chain())?;
        self.connection.borrow_mut().note(&request, descriptors);
        Ok(())
    }

    async fn tell_all(&self, messages: Vec<(Request, Vec<Descriptor>)>) -> Result<(), String> {
        for (request, descriptors) in messages {
            self.tell(request, descriptors).await?;
        }
        Ok(())
    }
}

/// What a hand-over does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Queues begin one entry before the one at which they were stopped.
    RingBehind,
    /// Queues begin one entry after it.
    RingAhead,
    /// The next process begins while requests of the one before are in flight.
    EarlyStart,
    /// Requests in flight count as done, and end with their process.
    LostCompletion,
    /// The one before takes requests after COMMIT.
    LateService,
}

/// When the session is paused.
pub(super) struct Handovers {
    rng: Rng,
    guest: Rc<RefCell<Guest>>,
    fault: Option<Fault>,
}

/// Pauses and hands over again and again. Returns what went wrong; the process may end before.
pub(super) async fn hand_over_at_times(
    process: Rc<RefCell<Rc<Process>>>,
    mut handovers: Handovers,
    current: Rc<RefCell<Option<Arc<Life>>>>,
) -> String {
    loop {
        sleep(Nanos(handovers.rng.below(1_500_000))).await;
        let old = process.borrow().clone();
        let next = match handovers.one(&old).await {
            Err(why) => return why,
            Ok(None) => continue,
            Ok(Some(next)) => Rc::new(next),
        };
        current.replace(Some(next.life.clone()));
        process.replace(next.clone());
        let messages = next.connection.take().messages();
        if let Err(why) = next.tell_all(messages).await {
            return why;
        }
        HANDED_OVER.set(HANDED_OVER.get() + 1);
    }
}

impl Handovers {
    /// Pauses a session. Returns the next process, if it does not go on itself: its connection is
    /// what the old one has given.
    async fn one(&mut self, old: &Process) -> Result<Option<Process>, String> {
        let of_guest = |number: &u32| u16::try_from(*number).expect("few");
        let numbers: Vec<u32> = (0..u32::from(super::QUEUES)).collect();
        let bases = match self.fault {
            Some(Fault::EarlyStart | Fault::LateService) => {
                let guest = self.guest.borrow();
                numbers.iter().map(|n| (*n, guest.base(of_guest(n)))).collect()
            }
            Some(Fault::LostCompletion) => {
                let guest = self.guest.borrow();
                numbers.iter().map(|n| (*n, guest.offered(of_guest(n)))).collect()
            }
            Some(Fault::RingBehind | Fault::RingAhead) | None => old.session.pause().await,
        };
        let mut connection = old.connection.borrow().clone();
        for (queue, base) in bases {
            let base = match self.fault {
                Some(Fault::RingBehind) => base.wrapping_sub(1),
                Some(Fault::RingAhead) => base.wrapping_add(1),
                _ => base,
            };
            connection.note_pause(queue, base);
        }
        if self.fault.is_none() {
            // Devices are suspended, and opened by the successor.
            sleep(Nanos(self.rng.below(500_000))).await;
            if self.rng.chance_per_mille(300) {
                old.tell_all(connection.kicks()).await?;
                return Ok(None);
            }
        }
        if old.life.has_stored_late.load(Relaxed) {
            return Err("a process has stored after its COMMIT".into());
        }
        match self.fault {
            Some(Fault::EarlyStart) => {}
            Some(Fault::LostCompletion) => old.life.is_unheard.store(true, Relaxed),
            _ => old.life.is_handed_over.store(true, Relaxed),
        }
        let left = old.life.stores_left.load(Relaxed);
        let features = connection.features();
        // As it crosses.
        let (bytes, descriptors) = connection.encode();
        let connection = Connection::decode(&bytes, descriptors).map_err(|e| e.chain())?;
        let next = Process::begin(old.cores, Life::new(left), features, true).await;
        next.connection.replace(connection);
        Ok(Some(next))
    }
}

thread_local! {
    /// Hand-overs that were committed, in all runs of a test.
    static HANDED_OVER: Cell<u64> = const { Cell::new(0) };
}

/// With kills the front end keeps notes; without, the hand-over alone has to lose nothing.
fn simulate(seed: u64, has_kills: bool, fault: Option<Fault>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let world = World::calm(rng.next_u64());
    let disk = DiskSpec::new("disk", Sector(SECTORS), Box::new(Uniform::new(4, 1_000, 90_000)));
    let file = world.borrow_mut().add_disk(disk);
    let disks = Disks::new(seed);
    let guest = Rc::new(RefCell::new(Guest::new(rng.fork(), disks.burst())));
    let variant = if has_kills { Variant::Right } else { Variant::NoNotes };
    let lives = if has_kills { LIVES } else { 1 };
    for life in 1..=lives {
        let within = rng.pick(&[100, 2_000, 10_000]);
        let kill = match rng.below(2) {
            _ if life == lives => Kill::Never,
            0 => Kill::Steps(rng.below(within)),
            _ => Kill::Stores(rng.below(within)),
        };
        let leaf: Rc<dyn BlockDevice> = world.borrow().leaf(file);
        DEVICE.set(Some(disks.next(leaf)));
        let cores = rng.pick(&[1, 2]);
        let handovers = Handovers { rng: rng.fork(), guest: guest.clone(), fault };
        live(&world, cores, &guest, (kill, variant, Some(handovers)))?;
    }
    assert!(guest.borrow().completed > 200, "the last life does all it draws");
    Ok(())
}

fn run(has_kills: bool) {
    seeds::run(300, |seed| simulate(seed, has_kills, None));
    let (runs, handed_over) = (seeds::count(300), HANDED_OVER.get());
    assert!(runs == 1 || handed_over > runs, "{handed_over} hand-overs in {runs} runs: too few");
}

#[test]
fn handovers_are_hidden_from_a_guest() {
    run(false);
}

#[test]
fn handovers_and_kills_are_hidden_from_a_guest() {
    run(true);
}

/// The judge finds a fault by one of these causes.
fn finds(fault: Fault, causes: &[&str]) {
    let find = |seed| simulate(seed, false, Some(fault));
    let failure = seeds::first_failure(0..100, find).expect("the fault shows");
    let why = failure.why;
    assert!(causes.iter().any(|cause| why.contains(cause)), "{why}");
}

/// A request that is executed again.
#[test]
fn a_ring_position_one_behind_is_found() {
    finds(Fault::RingBehind, &["completed twice", "in flight already"]);
}

/// A request that is never executed.
#[test]
fn a_ring_position_one_ahead_is_found() {
    finds(Fault::RingAhead, &["are lost", "too far ahead"]);
}

#[test]
fn a_start_before_the_last_completion_is_found() {
    finds(Fault::EarlyStart, &["completed twice", "in flight already"]);
}

#[test]
fn a_lost_completion_is_found() {
    finds(Fault::LostCompletion, &["are lost"]);
}

#[test]
fn service_after_commit_is_found() {
    finds(Fault::LateService, &["completed twice", "in flight already", "after its COMMIT"]);
}
