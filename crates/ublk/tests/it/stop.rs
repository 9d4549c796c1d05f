// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a queue ends, and what it refuses.
use std::rc::Rc;

use block::{BlockDevice, CoreId, Sector, Status};
use reactor::CoreLocal;
use sim::model::Uniform;
use sim::{DiskSpec, Faults, Machine, Rng, World, WorldRef};
use ublk::{Ended, NewQueue, Queue, QueueSpec, Queues};

use super::kernel::{ClientRequest, Completed, Connection, DISCARD, Kernel, READ, WRITE};
use super::recovery::{copied, spec};

fn world(faults: Faults) -> (WorldRef, Rc<dyn BlockDevice>) {
    let world = World::calm(1);
    let disk = DiskSpec::new("disk", Sector(64), Box::new(Uniform::new(4, 1_000, 90_000)));
    let file = world.borrow_mut().add_disk(disk);
    world.borrow_mut().set_faults(file, faults);
    let leaf = world.borrow().leaf(file);
    (world, leaf)
}

fn request(id: u64, op_flags: u32, sector: u64, sectors: u32) -> ClientRequest {
    let has_data = op_flags & 0xff <= WRITE;
    let data = if has_data { vec![0xab; sectors as usize * 512] } else { Vec::new() };
    ClientRequest { id, op_flags, sector, sectors, data, is_filled: false }
}

/// Serves `requests`, stops the device in their midst, and returns what clients got.
fn served(
    (world, device): (WorldRef, Rc<dyn BlockDevice>),
    change: impl FnOnce(QueueSpec) -> QueueSpec + 'static,
    requests: Vec<ClientRequest>,
) -> Vec<Completed> {
    served_by((world, device), Kernel::connect, change, requests)
}

/// The same by a connection of another kind.
fn served_by(
    (world, device): (WorldRef, Rc<dyn BlockDevice>),
    connect: fn(&Kernel, u16) -> Connection,
    change: impl FnOnce(QueueSpec) -> QueueSpec + 'static,
    requests: Vec<ClientRequest>,
) -> Vec<Completed> {
    let kernel = Kernel::new(Rng::new(7), 1, 4);
    let machine = Machine::boot(&world, 1);
    let at_kernel = kernel.clone();
    let done = machine.block_on(async move {
        let connection = connect(&at_kernel, 0);
        let queue = Queue::start(connection, change(spec(device, 4)));
        queue.offered().await.unwrap();
        at_kernel.go_live();
        let count = requests.len() as u64;
        for request in requests {
            at_kernel.submit(request);
        }
        while at_kernel.owned() > 1 {
            reactor::sleep(block::Nanos(500)).await;
        }
        at_kernel.stop();
        assert_eq!(queue.ended().await, Ended::Stopped);
        assert_eq!((queue.stats().requests, at_kernel.owned()), (count, 0));
        queue.stats().errors
    });
    let errors = done.expect("no power cut");
    let completed = kernel.take_completed();
    assert_eq!(errors, completed.iter().filter(|c| c.result < 0).count() as u64);
    machine.shut_down();
    completed
}

fn results(completed: &[Completed]) -> Vec<(u64, i32)> {
    let mut all: Vec<_> = completed.iter().map(|c| (c.request.id, c.result)).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_stop_ends_the_queue_after_its_requests() {
    let requests =
        vec![request(1, WRITE, 0, 8), request(2, READ, 8, 2), request(3, DISCARD, 16, 8)];
    let completed = served(world(Faults::default()), |spec| spec, requests);
    assert_eq!(results(&completed), [(1, 4096), (2, 1024), (3, 0)]);
}

#[test]
fn a_queue_that_takes_several_ends_after_them() {
    // More than there are tags.
    let requests = (1..=12).map(|id| request(id, if id % 2 == 0 { READ } else { WRITE }, id, 1));
    let completed = served_by(
        world(Faults::default()),
        Kernel::connect_for_several,
        copied,
        requests.collect(),
    );
    assert_eq!(results(&completed), (1..=12).map(|id| (id, 512)).collect::<Vec<_>>());
}

#[test]
fn a_queue_whose_tags_are_refused_has_failed() {
    let kernel = Kernel::new(Rng::new(7), 1, 4);
    kernel.refuse(0);
    let (world, device) = world(Faults::default());
    let machine = Machine::boot(&world, 1);
    let done = machine.block_on(async move {
        let queue = Queue::start(kernel.connect_for_several(0), copied(spec(device, 4)));
        assert_eq!(queue.offered().await, Err(Status::Io));
        queue.ended().await
    });
    assert_eq!(done.expect("no power cut"), Ended::Failed(Status::Io));
}

#[test]
fn bad_requests_and_errors_reach_the_client_alone() {
    let faults = Faults { write_error_per_mille: 1000, ..Faults::default() };
    // Beyond the end; an unknown operation; a write that the disk fails; a read that works.
    let requests = vec![
        request(1, READ, 60, 8),
        request(2, 15, 0, 8),
        request(3, WRITE, 0, 1),
        request(4, READ, 0, 1),
    ];
    let completed = served(world(faults), |spec| spec, requests);
    assert_eq!(results(&completed), [(1, -22), (2, -95), (3, -5), (4, 512)]);
}

#[test]
fn a_read_only_device_is_not_written() {
    let (world, device) = world(Faults::default());
    let read_only = |spec| QueueSpec { is_read_only: Box::new(|| true), ..spec };
    let requests = vec![request(1, WRITE, 0, 1), request(2, DISCARD, 0, 8), request(3, READ, 0, 1)];
    let completed = served((world.clone(), device), read_only, requests);
    assert_eq!(results(&completed), [(1, -30), (2, -30), (3, 512)]);
    let mut bytes = [1; 512];
    world.borrow().peek(reactor::FileId(0), Sector(0), &mut bytes);
    assert_eq!(bytes, [0; 512]);
}

/// Two queues on two cores, each with a device on its core.
async fn two_queues(
    at_1: CoreLocal,
    kernel: &Kernel,
    device: Rc<dyn BlockDevice>,
) -> Queues<Connection> {
    let make = move || {
        let (kernel, device) = &*at_1.get::<(Kernel, Rc<dyn BlockDevice>)>().expect("kept");
        (kernel.connect(1), spec(device.clone(), 4))
    };
    let here = NewQueue::Here(kernel.connect(0), spec(device, 4));
    Queues::start(vec![here, NewQueue::On(CoreId(1), Box::new(make))]).await
}

/// Boots two cores and runs `test` on core 0.
fn with_two_queues(
    kernel: &Kernel,
    test: impl AsyncFnOnce(Kernel, Queues<Connection>) + 'static,
) -> Vec<Completed> {
    let (world, device) = world(Faults::default());
    let machine = Machine::boot(&world, 2);
    let other = world.borrow().leaf(reactor::FileId(0));
    let served: (Kernel, Rc<dyn BlockDevice>) = (kernel.clone(), other);
    let at_1 = machine.on(1, || CoreLocal::keep(Rc::new(served)));
    let at_0 = kernel.clone();
    let done = machine.block_on(async move {
        let queues = two_queues(at_1, &at_0, device).await;
        test(at_0, queues).await;
    });
    done.expect("no power cut");
    machine.shut_down();
    kernel.take_completed()
}

#[test]
fn queues_of_two_cores_serve_and_end_together() {
    let kernel = Kernel::new(Rng::new(3), 2, 4);
    let completed = with_two_queues(&kernel, async |kernel, queues| {
        queues.offered().await.unwrap();
        kernel.go_live();
        (0..40).for_each(|id| kernel.submit(request(id, WRITE, id, 1)));
        while queues.stats().map(|(_, stats)| stats.requests).sum::<u64>() < 40 {
            reactor::sleep(block::Nanos(500)).await;
        }
        kernel.stop();
        assert_eq!(queues.ended().await, Ended::Stopped);
        let counts: Vec<_> = queues.stats().map(|(core, s)| (core.0, s.requests)).collect();
        assert!(matches!(counts[..], [(0, 1..), (1, 1..)]), "{counts:?}");
        assert_eq!(counts.iter().map(|(_, requests)| requests).sum::<u64>(), 40);
        assert_eq!(queues.in_flight(), 0);
        queues.release(|_| ()).await;
        let stats = queues.stats().map(|(_, stats)| stats.write_bytes);
        assert_eq!(stats.sum::<u64>(), 40 * 512, "figures stay");
    });
    assert_eq!(results(&completed), (0..40).map(|id| (id, 512)).collect::<Vec<_>>());
}

#[test]
fn a_queue_that_fails_is_seen_while_another_serves() {
    let kernel = Kernel::new(Rng::new(3), 2, 4);
    kernel.refuse(1);
    with_two_queues(&kernel, async |kernel, queues| {
        assert_eq!(queues.offered().await, Err(Status::Io));
        assert_eq!(queues.ended_or_failed().await, Ended::Failed(Status::Io));
        kernel.stop();
        assert_eq!(queues.ended().await, Ended::Failed(Status::Io));
    });
}
