// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data that the kernel copies into and out of the buffers of tags.
use std::rc::Rc;

use block::{BlockDevice, Nanos, Sector};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, Rng, World};
use ublk::Queue;

use super::kernel::{ClientRequest, Completed, Kernel, READ, WRITE};
use super::recovery::{EarlyWrites, copied, spec};

fn request(op_flags: u32, sector: u64, sectors: u32, byte: u8) -> ClientRequest {
    let data = vec![byte; sectors as usize * 512];
    ClientRequest { id: sector, op_flags, sector, sectors, data, is_filled: false }
}

/// Serves the requests one after the other by a single tag, after each a pause; returns what
/// clients got. Writes reach the disk 50 us after their end.
fn served(requests: Vec<(ClientRequest, Nanos)>) -> Vec<Completed> {
    let world = World::calm(3);
    let disk = DiskSpec::new("disk", Sector(64), Box::new(Uniform::new(4, 1_000, 9_000)));
    let file = world.borrow_mut().add_disk(disk);
    let device: Rc<dyn BlockDevice> = Rc::new(EarlyWrites(world.borrow().leaf(file)));
    let kernel = Kernel::new(Rng::new(5), 1, 1);
    let machine = Machine::boot(&world, 1);
    let at_kernel = kernel.clone();
    let done = machine.block_on(async move {
        let connection = at_kernel.connect(0);
        let queue = Queue::start(connection, copied(spec(device, 1)));
        queue.offered().await.unwrap();
        at_kernel.go_live();
        for (nth, (request, pause)) in (1..).zip(requests) {
            at_kernel.submit(request);
            while queue.stats().requests < nth || queue.in_flight() > 0 {
                reactor::sleep(Nanos(500)).await;
            }
            reactor::sleep(pause).await;
        }
    });
    done.expect("no power cut");
    kernel.take_completed()
}

#[test]
fn a_device_may_keep_the_data_of_a_write() {
    let (soon, late) = (Nanos(1), Nanos(1_000_000));
    let got = served(vec![
        (request(WRITE, 0, 8, 0xab), soon),
        // It gets the only tag while the device still has the first one's data.
        (request(WRITE, 8, 8, 0xcd), late),
        (request(READ, 0, 8, 0), soon),
        (request(READ, 8, 8, 0), soon),
    ]);
    assert!(got.iter().all(|completed| completed.result == 4096));
    assert_eq!(got[2].request.data, [0xab; 4096]);
    assert_eq!(got[3].request.data, [0xcd; 4096]);
}

#[test]
fn a_request_larger_than_a_buffer_is_refused() {
    let (large, largest) = (request(READ, 0, 33, 0), request(READ, 0, 32, 0));
    let got = served(vec![(large, Nanos(1)), (largest, Nanos(1))]);
    assert_eq!([got[0].result, got[1].result], [-libc::EINVAL, 16_384]);
}
