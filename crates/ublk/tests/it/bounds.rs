// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of requests is bounded, and every request gets its turn.
use std::rc::Rc;

use block::{BlockDevice, Sector};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, Rng, World};
use ublk::{ByteBudget, DataMemory, Queue, QueueSpec};

use super::kernel::{ClientRequest, Kernel, READ, WRITE};
use super::recovery::spec;

#[test]
fn data_in_flight_are_bounded_and_all_requests_end() {
    const MAX: u64 = 10_000;
    let world = World::calm(3);
    let disk = DiskSpec::new("disk", Sector(512), Box::new(Uniform::new(4, 1_000, 90_000)));
    let file = world.borrow_mut().add_disk(disk);
    let device: Rc<dyn BlockDevice> = world.borrow().leaf(file);
    let kernel = Kernel::new(Rng::new(5), 1, 16);
    let machine = Machine::boot(&world, 1);
    let at_kernel = kernel.clone();
    let done = machine.block_on(async move {
        let connection = at_kernel.connect(0);
        let budget = ByteBudget::new(MAX);
        let memory = DataMemory::Pooled(budget.clone());
        let bounded = QueueSpec { memory, ..spec(device, 16) };
        let queue = Queue::start(connection, bounded);
        queue.offered().await.unwrap();
        at_kernel.go_live();
        let (mut most, mut rng) = (0, Rng::new(9));
        let (mut read_bytes, mut write_bytes) = (0, 0);
        for id in 0..200u64 {
            let sectors = rng.pick(&[1, 8, 16, 32]);
            let data = vec![0; sectors as usize * 512];
            let (sector, op_flags) = (rng.below(400), rng.pick(&[READ, WRITE]));
            match op_flags {
                READ => read_bytes += data.len() as u64,
                _ => write_bytes += data.len() as u64,
            }
            let is_filled = false;
            let request = ClientRequest { id, op_flags, sector, sectors, data, is_filled };
            at_kernel.submit(request);
        }
        while queue.stats().requests < 200 {
            // One that is larger than all of the budget is alone.
            let used = budget.used();
            assert!(used <= MAX || used == 32 * 512, "{used}");
            most = most.max(used);
            reactor::sleep(block::Nanos(500)).await;
        }
        let stats = queue.stats();
        assert_eq!((stats.read_bytes, stats.write_bytes), (read_bytes, write_bytes));
        (most, budget.used() + queue.in_flight(), stats.errors)
    });
    let (most, left, errors) = done.expect("no power cut");
    assert!(most > MAX / 2, "requests ran beside each other: {most}");
    assert_eq!((left, errors), (0, 0));
}
