// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that is killed at any step, again and again: no client sees an error, and nothing that
//! a client was told is lost or reverted.
use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Nanos, Op, OpenDevice, Opener, Sector, Status};
use reactor::sleep;
use sim::model::Uniform;
use sim::{DiskSpec, Machine, Rng, World, WorldRef, seeds};
use ublk::{ByteBudget, Queue, QueueSpec};

use super::clients::{Clients, SECTORS};
use super::kernel::{Connection, Kernel};

const DEPTH: u16 = 8;
/// Requests that clients have in flight, more than there are tags.
const IN_FLIGHT: usize = 12;
const LIVES: usize = 4;

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

pub(crate) fn spec(device: Rc<dyn BlockDevice>, depth: u16) -> QueueSpec {
    QueueSpec {
        device: OpenDevice::new(device, Opener(1)),
        is_read_only: Box::new(|| false),
        latencies: None,
        budget: ByteBudget::new(1 << 20),
        depth,
    }
}

/// One life of the server; `Err` is what went wrong, `Ok(false)` that it was killed.
fn live(
    world: &WorldRef,
    device: Rc<dyn BlockDevice>,
    kernel: &Kernel,
    clients: &Rc<RefCell<Clients>>,
    (kill_after, leaves): (Option<u64>, bool),
) -> Result<(), String> {
    let machine = Machine::boot(world, 1);
    let failed = Rc::new(RefCell::new(None));
    let queue: Rc<RefCell<Option<Rc<Queue<Connection>>>>> = Rc::default();
    let done = Rc::new(RefCell::new(false));
    {
        let (kernel, clients) = (kernel.clone(), clients.clone());
        let (failed, done, queue) = (failed.clone(), done.clone(), queue.clone());
        let is_last = kill_after.is_none();
        machine.spawn(0, async move {
            let (connection, signal) = kernel.connect();
            let started = Queue::start(connection, spec(device, DEPTH));
            *queue.borrow_mut() = Some(started.clone());
            started.offered().await.expect("this kernel refuses no fetch");
            kernel.go_live(&signal);
            let mut left = if is_last { 200 } else { u64::MAX };
            let mut sector = 0;
            loop {
                for completed in kernel.take_completed() {
                    if let Err(why) = clients.borrow_mut().check(completed) {
                        failed.borrow_mut().get_or_insert(why);
                        return;
                    }
                }
                let idle = clients.borrow().in_flight() == 0;
                if left == 0 && idle && sector == SECTORS {
                    break;
                }
                if left == 0 && idle {
                    // At last all that was promised is read.
                    let request = clients.borrow_mut().read(sector);
                    sector += 1;
                    kernel.submit(request, &signal);
                } else if left > 0 && clients.borrow().in_flight() < IN_FLIGHT {
                    let drawn = clients.borrow_mut().draw();
                    if let Some(request) = drawn {
                        left -= 1;
                        kernel.submit(request, &signal);
                    }
                }
                sleep(Nanos(7_000)).await;
            }
            *done.borrow_mut() = true;
        });
    }
    let from = world.borrow().steps();
    let (ended, steps) = ((failed.clone(), done.clone()), world.clone());
    let over = move || {
        let is_killed = kill_after.is_some_and(|n| steps.borrow().steps() >= from + n);
        is_killed || *ended.1.borrow() || ended.0.borrow().is_some()
    };
    machine.run(over);
    if leaves && let Some(queue) = &*queue.borrow() {
        // An orderly end: what is in flight ends, and is not committed.
        queue.leave();
        let commits = kernel.commits();
        let from = world.borrow().now();
        let (kernel, world) = (kernel.clone(), world.clone());
        machine.run(move || world.borrow().now() > from + Nanos(2_000_000));
        if kernel.commits() != commits {
            return Err("a queue that was left commits".into());
        }
    }
    drop(queue);
    machine.kill();
    kernel.server_died();
    failed.take().map_or(Ok(()), Err)
}

fn simulate(
    seed: u64,
    wrap: &dyn Fn(Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice>,
) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let world = World::calm(rng.next_u64());
    let disk = DiskSpec::new("disk", Sector(SECTORS), Box::new(Uniform::new(4, 1_000, 90_000)));
    let file = world.borrow_mut().add_disk(disk);
    let kernel = Kernel::new(rng.fork(), DEPTH.into());
    let clients = Rc::new(RefCell::new(Clients::new(rng.fork())));
    for life in 1..=LIVES {
        // Some die while they fetch.
        let within = rng.pick(&[30, 500, 5_000]);
        let kill_after = (life < LIVES).then(|| rng.below(within));
        let leaves = kill_after.is_some() && rng.chance_per_mille(300);
        let leaf: Rc<dyn BlockDevice> = world.borrow().leaf(file);
        live(&world, wrap(leaf), &kernel, &clients, (kill_after, leaves))?;
    }
    assert!(clients.borrow().completed > 200, "the last life does all it draws");
    Ok(())
}

#[test]
fn kills_are_hidden_from_clients() {
    seeds::run(300, |seed| simulate(seed, &|device| device));
}

/// What makes the test above worth something: a device that may not promise it is found out.
#[test]
fn writes_that_only_the_process_has_are_missed() {
    let early = |device| Rc::new(EarlyWrites(device)) as Rc<dyn BlockDevice>;
    let failure = seeds::first_failure(0..100, |seed| simulate(seed, &early));
    let why = failure.expect("a lost write shows").why;
    assert!(why.contains("was promised"), "{why}");
}
