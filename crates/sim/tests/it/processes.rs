// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes beside each other: one is killed, its requests to disks end, and the others go on.
use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, CoreId, Flags, Nanos, Sector, Status};
use reactor::{FileId, SqeOp, driver_io, sleep, write};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, World, WorldRef};

const BYTES: usize = 4096;

/// A disk that takes a millisecond for a request.
fn disk(world: &WorldRef) -> FileId {
    let model = Box::new(Uniform::new(1, 1_000_000, 1_000_001));
    world.borrow_mut().add_disk(DiskSpec::new("disk", Sector(64), model))
}

async fn recv(file: FileId) -> (Status, u32) {
    let result = driver_io(file, SqeOp::Recv { into: Buf::alloc(64).all() }).await;
    (result.status, result.value)
}

/// Runs until `file`, which the process of core 0 has, sees its end; returns when.
fn end_of(machine: &Machine, file: FileId) -> Nanos {
    let seen = Rc::new(Cell::new(None));
    let set = seen.clone();
    machine.spawn(0, async move {
        assert_eq!(recv(file).await, (Status::Ok, 0));
        set.set(Some(reactor::now()));
    });
    machine.run(|| seen.get().is_some());
    seen.get().unwrap()
}

/// SI-W4.
#[test]
fn requests_of_a_killed_process_end_and_keep_its_lifeline() {
    let world = World::calm(1);
    let disk = disk(&world);
    world.borrow_mut().show_requests();
    let mut machine = Machine::boot(&world, 2);
    let [(socket, theirs), (lifeline, their_lifeline)] = {
        let mut world = world.borrow_mut();
        let pairs = [world.stream_pair(), world.stream_pair()];
        pairs.iter().for_each(|(_, theirs)| world.give_stream(*theirs, CoreId(1)));
        world.set_lifeline(pairs[1].1, CoreId(1));
        pairs
    };
    assert_ne!((theirs, lifeline), (their_lifeline, socket));
    let leaf = world.borrow().leaf(disk);
    machine.spawn(1, async move {
        let data = Buf::copy_of(&[7; BYTES]);
        let _ = write(&*leaf, Flags::empty(), block::Class::Normal, Sector(0), data.into()).await;
        panic!("it has been killed");
    });
    // A request of another process meanwhile.
    machine.spawn(0, async { sleep(Nanos::from_secs(1)).await });
    machine.run(|| world.borrow().count_in_flight(CoreId(1)) == 1);
    machine.kill_process(1);
    let killed_at = world.borrow().now();
    assert_eq!(world.borrow().count_in_flight(CoreId(1)), 1);
    let socket_ended = end_of(&machine, socket);
    assert!(socket_ended.0 < killed_at.0 + 100_000, "sockets are closed at once");
    let lifeline_ended = end_of(&machine, lifeline);
    assert!(lifeline_ended.0 > killed_at.0 + 900_000, "{lifeline_ended:?}");
    assert_eq!(world.borrow().count_in_flight(CoreId(1)), 0);
    let mut found = [0; BYTES];
    world.borrow().peek(disk, Sector(0), &mut found);
    assert_eq!(found, [7; BYTES]);
}

#[test]
fn a_socket_of_two_processes_outlives_one_of_them() {
    let world = World::calm(1);
    let mut machine = Machine::boot(&world, 3);
    let (ours, theirs) = world.borrow_mut().stream_pair();
    let copy = world.borrow_mut().copy_stream(theirs);
    world.borrow_mut().give_stream(theirs, CoreId(1));
    world.borrow_mut().give_stream(copy, CoreId(2));
    machine.spawn(1, async move {
        let _ = recv(theirs).await;
    });
    machine.run(|| false);
    machine.kill_process(1);
    let sent = async move {
        driver_io(ours, SqeOp::Send { bufs: Buf::copy_of(b"one").into() }).await.status
    };
    assert_eq!(machine.block_on(sent).unwrap(), Status::Ok);
    let got = Rc::new(Cell::new(None));
    let set = got.clone();
    machine.spawn(2, async move { set.set(Some(recv(copy).await)) });
    machine.run(|| got.get().is_some());
    assert_eq!(got.get(), Some((Status::Ok, 3)), "the bytes are for the one that lives");
    machine.kill_process(2);
    end_of(&machine, ours);
}
