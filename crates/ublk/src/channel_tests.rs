// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commits of one tag, as the kernel finds them when it takes them late.
use std::os::fd::OwnedFd;

use block::{CoreId, Nanos};
use reactor::{Driver, Event, Msg, OnDone, Reactor, Sqe};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

const DEPTH: u16 = 8;

/// Keeps where the elements of commands are, and ends nothing.
struct LateKernel(Rc<RefCell<Vec<u64>>>);

impl Driver for LateKernel {
    fn now(&self) -> Nanos {
        Nanos(0)
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        for sqe in batch.drain(..) {
            if let SqeOp::Command { memory: CommandMemory::OfStream(address), .. } = sqe.what {
                self.0.borrow_mut().push(address);
            }
        }
    }
    fn post(&mut self, _: CoreId, msg: Msg) {
        unreachable!("there is one core: {msg:?}")
    }
    fn park(&mut self, _: Option<Nanos>, _: &mut Vec<Event>) {}
    fn random(&mut self) -> u64 {
        0
    }
}

struct NoEnd;

impl OnDone for NoEnd {
    fn on_done(&self, status: Status, _: u64) {
        unreachable!("no command ends: {status:?}")
    }
}

fn channel() -> KernelChannel {
    let file: OwnedFd = memfd_create(c"descriptors", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 4096).unwrap();
    let memory = QueueMemory::map(&file, 0, DEPTH).unwrap();
    KernelChannel::new(FileId(0), 0, memory, true)
}

#[test]
fn commits_of_one_tag_stay_until_the_tag_is_given_out_again() {
    let taken_late = Rc::new(RefCell::default());
    let reactor = Reactor::enter(CoreId(0), Box::new(LateKernel(taken_late.clone())));
    let results = [(3, 4096), (5, -5), (0, 512)].map(|(tag, result)| TagResult { tag, result });
    reactor.block_on(async move {
        let (channel, buffers) = (channel(), Rc::new(TagBuffers::new(DEPTH, 4096)));
        let place = Rc::new(KeptOp::new(Rc::new(NoEnd), 0));
        channel.take(&buffers, &place);
        for result in results {
            channel.commit(&[result], &buffers, false, &place);
        }
        reactor::yield_now().await;
        let elements = channel.elements.get().unwrap();
        let first = elements.as_ptr().expose_provenance() as u64;
        let element_at = |address: &u64| {
            let at = usize::try_from(address - first).unwrap();
            elements.read(|all| all[at..at + size_of::<BatchElement>()].to_vec())
        };
        let found: Vec<_> = taken_late.borrow().iter().map(element_at).collect();
        let wanted = results.map(|result| element(result, &buffers).as_bytes().to_vec());
        assert_eq!(found, wanted);
    });
}
