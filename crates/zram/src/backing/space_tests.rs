// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When blocks are freed, and which discards the device gets.
use sim::model::Uniform;
use sim::{DiskSpec, DiskStats, Faults, Machine, World, WorldRef};

use super::*;

const BLOCKS: u32 = 1000;
const FIRST: u64 = 10;

fn on_disk<T: 'static>(
    world: &WorldRef,
    work: impl AsyncFnOnce(Rc<Space>) -> T + 'static,
) -> (T, DiskStats) {
    let model = Box::new(Uniform::new(1, 20_000, 60_000));
    let spec = DiskSpec::new("disk", Sector(2000 * PAGE_SECTORS), model);
    let disk = world.borrow_mut().add_disk(spec);
    world.borrow_mut().set_faults(disk, Faults::default());
    let leaf = world.borrow().leaf(disk);
    let machine = Machine::boot(world, 1);
    let region = Region { first: FIRST, blocks: BLOCKS };
    let done = machine.block_on(async move { work(Rc::new(Space::new(leaf, region))).await });
    machine.shut_down();
    let stats = world.borrow().stats(disk);
    (done.expect("no power cut was planned"), stats)
}

fn free(space: &Space) -> u32 {
    space.blocks().free()
}

#[test]
fn freed_blocks_are_gathered_and_discarded_in_runs() {
    let (_, stats) = on_disk(&World::calm(1), async |space| {
        let all = space.take_run(BLOCKS, 1).await.unwrap();
        // One block after the other, and not in order.
        all.clone().rev().step_by(2).for_each(|b| space.retire(b..b + 1));
        all.clone().step_by(2).for_each(|b| space.retire(b..b + 1));
        assert_eq!(free(&space), 0, "not before the device has been told");
        sleep(Nanos(2 * GATHER.0)).await;
        assert_eq!(free(&space), BLOCKS);
    });
    assert_eq!(stats.discards, 1);
}

#[test]
fn a_block_that_is_being_read_is_not_free() {
    on_disk(&World::calm(1), async |space| {
        let run = space.take_run(8, 1).await.unwrap();
        let pin = space.pin();
        space.retire(run);
        sleep(Nanos(5 * GATHER.0)).await;
        assert_eq!(free(&space), BLOCKS - 8);
        let later = space.pin();
        drop(pin);
        sleep(Nanos(2 * GATHER.0)).await;
        assert_eq!(free(&space), BLOCKS, "a read that began afterwards does not matter");
        drop(later);
        space.quiesce().await;
    });
}

#[test]
fn a_task_that_waits_for_blocks_does_not_wait_for_discards() {
    let (_, stats) = on_disk(&World::calm(1), async |space| {
        let all = space.take_run(BLOCKS, 1).await.unwrap();
        space.retire(7..9);
        let before = reactor::now();
        assert_eq!(space.take_run(32, 1).await, Some(7..9));
        assert!((reactor::now() - before).0 < GATHER.0 / 2);
        assert_eq!(space.take_run(32, 1).await, None, "nothing is on its way");
        space.retire(all.start..5);
        assert_eq!(space.take_run(2, 1).await, Some(0..2));
        assert_eq!(space.take_run(9, 4).await, None, "three are left");
        space.retire(5..6);
        assert_eq!(space.take_run(9, 4).await, Some(2..6));
    });
    assert_eq!(stats.discards, 0);
}

#[test]
fn a_run_is_discarded_as_far_as_the_device_can() {
    on_disk(&World::calm(1), async |space| {
        let mut space = Rc::into_inner(space).unwrap();
        assert_eq!(space.discardable(&(3..9)), 3..9);
        space.granularity = 8;
        // Blocks 13 to 19 of the device: 16 is the first whole unit, and it is not whole.
        assert_eq!(space.discardable(&(3..9)).len(), 0);
        assert_eq!(space.discardable(&(3..14)), 6..14);
        assert_eq!(space.discardable(&(0..32)), 6..30);
    });
}
