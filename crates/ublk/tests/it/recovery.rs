// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that is killed at any step, again and again, each time with another number of cores: no
//! client sees an error, and nothing that a client was told is lost or reverted.
use std::cell::RefCell;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, CoreId, Limits, Nanos, Op, OpenDevice, Opener, Planted, Sector, Status,
};
use reactor::{CoreLocal, sleep};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, Rng, World, WorldRef, seeds};
use ublk::{ByteBudget, DataMemory, Fault, NewQueue, QueueSpec, Queues};

use super::clients::{Clients, SECTORS};
use super::kernel::{Connection, Kernel};

const DEPTH: u16 = 8;
/// Requests that clients have in flight, more than there are tags.
const IN_FLIGHT: usize = 12;
const LIVES: usize = 4;

/// A device whose writes end at once, and reach the disk later: as a cache in the memory of the
/// process does it.
pub(crate) struct EarlyWrites(pub(crate) Rc<dyn BlockDevice>);

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

pub(crate) fn spec(device: Rc<dyn BlockDevice>, depth: u16) -> QueueSpec {
    QueueSpec {
        device: OpenDevice::new(device, Opener(1)),
        is_read_only: Box::new(|| false),
        latencies: None,
        memory: DataMemory::Pooled(ByteBudget::new(1 << 20)),
        depth,
        planted: Planted::NONE,
    }
}

/// The same for a device whose data the kernel copies.
pub(crate) fn copied(spec: QueueSpec) -> QueueSpec {
    QueueSpec { memory: DataMemory::OfTags { max_io_bytes: 1 << 14 }, ..spec }
}

/// What a core serves its queues with.
struct Served {
    kernel: Kernel,
    device: Rc<dyn BlockDevice>,
    mode: DeviceMode,
    planted: Planted<Fault>,
}

impl Served {
    fn queue(&self, nth: u16) -> (Connection, QueueSpec) {
        let spec = QueueSpec { planted: self.planted, ..spec(self.device.clone(), DEPTH) };
        match self.mode {
            DeviceMode::UserCopy => (self.kernel.connect(nth), spec),
            DeviceMode::Copied => (self.kernel.connect(nth), copied(spec)),
            DeviceMode::Several => (self.kernel.connect_for_several(nth), copied(spec)),
        }
    }
}

/// How the device was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceMode {
    /// The server copies data.
    UserCopy,
    /// The kernel copies data.
    Copied,
    /// It does, and tags are taken several at a time.
    Several,
}

/// Starts queue n on core n modulo `cores`; to be called on core 0.
async fn start(served: &[CoreLocal], queues: u16) -> Queues<Connection> {
    let place = |nth: u16| {
        let core = nth % u16::try_from(served.len()).unwrap();
        let name = served[usize::from(core)];
        let make = move || name.get::<Served>().expect("kept").queue(nth);
        if core == 0 {
            let (connection, spec) = make();
            return NewQueue::Here(connection, spec);
        }
        NewQueue::On(CoreId(core), Box::new(make))
    };
    Queues::start((0..queues).map(place).collect()).await
}

/// How a life of the server goes.
#[derive(Clone, Copy)]
struct Life {
    cores: u16,
    /// Of the device in the kernel, in all lives.
    queues: u16,
    /// Of the device, in all lives.
    mode: DeviceMode,
    planted: Planted<Fault>,
    /// It is killed after so many steps.
    kill_after: Option<u64>,
    /// It ends in order.
    leaves: bool,
}

/// Sends requests of clients until the last life has done all of them, and checks what they get.
async fn drive(
    kernel: Kernel,
    clients: Rc<RefCell<Clients>>,
    queues: Rc<Queues<Connection>>,
    is_last: bool,
) -> Result<(), String> {
    queues.offered().await.expect("this kernel refuses no fetch");
    kernel.go_live();
    let mut left = if is_last { 200 } else { u64::MAX };
    let mut sector = 0;
    loop {
        for completed in kernel.take_completed() {
            clients.borrow_mut().check(completed)?;
        }
        let idle = clients.borrow().in_flight() == 0;
        if left == 0 && idle && sector == SECTORS {
            return Ok(());
        }
        if left == 0 && idle {
            // At last all that was promised is read.
            let request = clients.borrow_mut().read(sector);
            sector += 1;
            kernel.submit(request);
        } else if left > 0 && clients.borrow().in_flight() < IN_FLIGHT {
            let drawn = clients.borrow_mut().draw();
            if let Some(request) = drawn {
                left -= 1;
                kernel.submit(request);
            }
        }
        sleep(Nanos(7_000)).await;
    }
}

/// One life of the server; `Err` is what went wrong.
fn live(
    world: &WorldRef,
    device: &dyn Fn() -> Rc<dyn BlockDevice>,
    kernel: &Kernel,
    clients: &Rc<RefCell<Clients>>,
    life: Life,
) -> Result<(), String> {
    let machine = Machine::boot(world, life.cores);
    let keep = |core| {
        let Life { mode, planted, .. } = life;
        let served = Served { kernel: kernel.clone(), device: device(), mode, planted };
        machine.on(core, || CoreLocal::keep(Rc::new(served)))
    };
    let served: Vec<CoreLocal> = (0..life.cores).map(keep).collect();
    let ended: Rc<RefCell<Option<Result<(), String>>>> = Rc::default();
    let queues: Rc<RefCell<Option<Rc<Queues<Connection>>>>> = Rc::default();
    {
        let (kernel, clients) = (kernel.clone(), clients.clone());
        let (ended, queues) = (ended.clone(), queues.clone());
        machine.spawn(0, async move {
            let started = Rc::new(start(&served, life.queues).await);
            *queues.borrow_mut() = Some(started.clone());
            let driven = drive(kernel, clients, started, life.kill_after.is_none()).await;
            *ended.borrow_mut() = Some(driven);
        });
    }
    let from = world.borrow().steps();
    let (over, steps) = (ended.clone(), world.clone());
    machine.run(move || {
        let is_killed = life.kill_after.is_some_and(|n| steps.borrow().steps() >= from + n);
        is_killed || over.borrow().is_some()
    });
    let started = queues.borrow().clone();
    if life.leaves
        && let Some(queues) = started
    {
        // An orderly end: what is in flight ends, and is not committed.
        let has_left = Rc::new(RefCell::new(false));
        let set = has_left.clone();
        machine.spawn(0, async move {
            queues.leave().await;
            *set.borrow_mut() = true;
        });
        machine.run(move || *has_left.borrow());
        let commits = kernel.commits();
        let from = world.borrow().now();
        let (kernel, world) = (kernel.clone(), world.clone());
        machine.run(move || world.borrow().now() > from + Nanos(2_000_000));
        if kernel.commits() != commits {
            return Err("a queue that was left commits".into());
        }
    }
    drop(queues);
    machine.kill();
    kernel.server_died();
    ended.take().unwrap_or(Ok(()))
}

fn simulate(
    seed: u64,
    wrap: &dyn Fn(Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice>,
    takes_several: bool,
    planted: Planted<Fault>,
) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let world = World::calm(rng.next_u64());
    let disk = DiskSpec::new("disk", Sector(SECTORS), Box::new(Uniform::new(4, 1_000, 90_000)));
    let file = world.borrow_mut().add_disk(disk);
    let (queues, copies) = (rng.pick(&[1, 2, 3]), rng.chance_per_mille(500));
    let mode = match (takes_several, copies) {
        (true, _) => DeviceMode::Several,
        (false, true) => DeviceMode::Copied,
        (false, false) => DeviceMode::UserCopy,
    };
    let kernel = Kernel::new(rng.fork(), queues.into(), DEPTH.into());
    let clients = Rc::new(RefCell::new(Clients::new(rng.fork())));
    for life in 1..=LIVES {
        // Some die while they fetch: some queues have all their tags then, others none.
        let within = rng.pick(&[30, 500, 5_000]);
        let kill_after = (life < LIVES).then(|| rng.below(within));
        let leaves = kill_after.is_some() && rng.chance_per_mille(300);
        // More cores than queues, and fewer.
        let cores = rng.pick(&[1, 2, 3, 4]);
        let life = Life { cores, queues, mode, planted, kill_after, leaves };
        let device = || wrap(world.borrow().leaf(file));
        live(&world, &device, &kernel, &clients, life)?;
    }
    assert!(clients.borrow().completed > 200, "the last life does all it draws");
    Ok(())
}

#[test]
fn kills_are_hidden_from_clients() {
    seeds::run(300, |seed| simulate(seed, &|device| device, false, Planted::NONE));
}

#[test]
fn kills_are_hidden_where_tags_are_taken_together() {
    seeds::run(300, |seed| simulate(seed, &|device| device, true, Planted::NONE));
}

/// What makes the test above worth something: a device that may not promise it is found out.
#[test]
fn writes_that_only_the_process_has_are_missed() {
    let early = |device| Rc::new(EarlyWrites(device)) as Rc<dyn BlockDevice>;
    for several in [false, true] {
        let simulated = |seed| simulate(seed, &early, several, Planted::NONE);
        let failure = seeds::first_failure(0..100, simulated);
        let why = failure.expect("a lost write shows").why;
        assert!(why.contains("was promised"), "{why}");
    }
}

#[cfg(feature = "planted")]
fn first_failure_with(fault: Fault, several: bool) -> String {
    let planted = Planted::new(fault);
    let simulated = |seed| simulate(seed, &|device| device, several, planted);
    seeds::first_failure(0..100, simulated).expect("the fault shows").why
}

#[test]
#[cfg(feature = "planted")]
fn a_tag_that_is_committed_twice_is_found() {
    let why = first_failure_with(Fault::CommitAgain, true);
    assert!(why.contains("Offered"), "{why}");
}

#[test]
#[cfg(feature = "planted")]
fn a_commit_after_the_queue_was_left_is_found() {
    for several in [false, true] {
        let why = first_failure_with(Fault::CommitAfterLeave, several);
        assert!(why.contains("a queue that was left commits"), "{why}");
    }
}
