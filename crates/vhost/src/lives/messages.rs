// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of a front end that come while a request waits for its share of the memory.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use block::{Bio, BlockDevice, ClientRegion, CoreId, Limits, Nanos, Op, Ram, Sector, Status};
use reactor::{Reactor, sleep, spawn};
use rustix::event::{EventfdFlags, eventfd};
use sim::{Machine, World};
use uring::Uring;

use super::handover::{Descriptor, Process};
use super::{DEVICE, Life};
use crate::config::feature;
use crate::event_fd::EventFd;
use crate::message::{Request, RingAddresses};
use crate::session::{Attachments, OpenEvent};
use crate::testing::{TestEvent, USER_OFFSET, ram, region_at};

const SIZE: u16 = 16;
/// Of each queue: descriptors, and then its rings and a header.
const QUEUE_BYTES: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const DATA: u64 = 0x10_0000;
const SECTORS: u64 = 1 << 20;
/// Two of them are more than a server of 32 MiB takes at once.
const DATA_BYTES: u32 = 20 << 20;
const MEMORY_BYTES: u64 = 32 << 20;

/// A device that keeps its bios until it is told to end them.
#[derive(Default)]
struct HungDisk(RefCell<Vec<Bio>>);

impl HungDisk {
    fn count(&self) -> usize {
        self.0.borrow().len()
    }

    fn end_all(&self) {
        self.0.take().into_iter().for_each(|bio| bio.complete(Status::Ok));
    }
}

impl BlockDevice for HungDisk {
    fn name(&self) -> &str {
        "disk"
    }

    fn limits(&self) -> Limits {
        Limits::new(Sector(SECTORS))
    }

    fn takes_client_memory(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::WriteZeroes {
            return bio.complete(Status::NotSupported);
        }
        self.0.borrow_mut().push(bio);
    }
}

/// A front end with two queues, and its guest.
struct FrontEnd {
    process: Rc<Process>,
    memory: Arc<Ram>,
    kicks: Vec<Arc<TestEvent>>,
    disk: Rc<HungDisk>,
}

fn place(queue: u32) -> u64 {
    u64::from(queue) * QUEUE_BYTES
}

impl FrontEnd {
    async fn connect(disk: Rc<HungDisk>) -> FrontEnd {
        let process = Rc::new(Process::begin(1, Life::new(u64::MAX), 0, false).await);
        let front_end = FrontEnd { process, memory: ram(MEMORY_BYTES), kicks: Vec::new(), disk };
        let features = feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        front_end.tell(Request::SetFeatures(features), Vec::new()).await;
        front_end.set_memory().await;
        let mut kicks = Vec::new();
        for queue in 0..2 {
            let at = USER_OFFSET + place(queue);
            let (available, used) = (at + AVAILABLE, at + USED);
            let addresses = RingAddresses { descriptors: at, used, available };
            let kick = Arc::<TestEvent>::default();
            let event = vec![Descriptor::Event(kick.clone())];
            front_end.tell(Request::SetVringNum { queue, size: SIZE.into() }, Vec::new()).await;
            front_end.tell(Request::SetVringAddr { queue, addresses }, Vec::new()).await;
            front_end.tell(Request::SetVringKick { queue, given: true }, event).await;
            front_end.tell(Request::SetVringEnable { queue, enabled: true }, Vec::new()).await;
            kicks.push(kick);
        }
        FrontEnd { kicks, ..front_end }
    }

    async fn tell(&self, request: Request, descriptors: Vec<Descriptor>) {
        self.process.tell(request, descriptors).await.unwrap();
    }

    async fn set_memory(&self) {
        let memory = vec![Descriptor::Memory(self.memory.clone())];
        self.tell(Request::SetMemTable(vec![region_at(0, MEMORY_BYTES)]), memory).await;
    }

    /// Makes a large read available, as the `nth` request of a queue, and kicks.
    async fn read(&self, queue: u32, nth: u16) {
        self.offer(queue, nth, [0; 16], (DATA_BYTES, 3)).await;
    }

    /// The same with a write of zeroes from sector 0 on, as the first request.
    async fn write_zeroes(&self, queue: u32, sectors: u64) {
        let mut header = [0; 16];
        header[0] = 13;
        let len = u32::try_from(sectors).unwrap().to_le_bytes();
        ClientRegion::write(&*self.memory, DATA + 8, &len).unwrap();
        self.offer(queue, 0, header, (16, 1)).await;
    }

    async fn offer(&self, queue: u32, nth: u16, header: [u8; 16], data: (u32, u16)) {
        let base = place(queue);
        let write = |at: u64, bytes: &[u8]| {
            ClientRegion::write(&*self.memory, base + at, bytes).unwrap();
        };
        write(HEADER, &header);
        let head = nth * 3;
        let parts = [(base + HEADER, 16, 1), (DATA, data.0, data.1), (base + HEADER + 16, 1, 2)];
        for (number, (at, len, flags)) in (head..).zip(parts) {
            let [at, len] = [at.to_le_bytes().to_vec(), len.to_le_bytes().to_vec()];
            let rest = [u16::to_le_bytes(flags), (number + 1).to_le_bytes()].concat();
            write(u64::from(number) * 16, &[at, len, rest].concat());
        }
        write(AVAILABLE + 4 + u64::from(nth) * 2, &head.to_le_bytes());
        write(AVAILABLE + 2, &(nth + 1).to_le_bytes());
        self.kicks[queue as usize].add();
        self.settle().await;
    }

    async fn settle(&self) {
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(self.process.session.failure(), None);
    }

    async fn end_all(&self) {
        self.disk.end_all();
        self.settle().await;
    }

    fn used(&self, queue: u32) -> u16 {
        self.memory.load_u16(place(queue) + USED + 2).unwrap()
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(FrontEnd) -> F + 'static) {
    let world = World::calm(1);
    let machine = Machine::boot(&world, 1);
    let disk = Rc::<HungDisk>::default();
    DEVICE.set(Some(disk.clone()));
    let run = async move { test(FrontEnd::connect(disk).await).await };
    machine.block_on(run).expect("the power is on");
    machine.kill();
}

/// With the kernel's eventfds.
#[test]
fn a_queue_stops_though_its_front_end_takes_no_calls() {
    let driver = Uring::new().unwrap();
    let files = driver.files();
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    let disk = Rc::<HungDisk>::default();
    DEVICE.set(Some(disk.clone()));
    reactor.block_on(async move {
        let front_end = FrontEnd::connect(disk).await;
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        #[expect(clippy::host_endian_bytes, reason = "as the kernel of this machine has it")]
        let full = (u64::MAX - 1).to_ne_bytes();
        rustix::io::write(&counter, &full).unwrap();
        let file = files.adopt_eventfd(counter);
        let open: OpenEvent = Box::new(move || Ok(EventFd::new(file)));
        let given = Attachments { event: Some(open), ..Attachments::default() };
        let session = &front_end.process.session;
        session.handle(Request::SetVringCall { queue: 0, given: true }, given).await.unwrap();
        front_end.read(0, 0).await;
        front_end.end_all().await;
        assert_eq!(front_end.used(0), 1);
        let has_stopped = Rc::<Cell<bool>>::default();
        let (process, stopped) = (front_end.process.clone(), has_stopped.clone());
        spawn(async move {
            process.tell(Request::GetVringBase { queue: 0 }, Vec::new()).await.unwrap();
            stopped.set(true);
        });
        for _ in 0..1000 {
            if has_stopped.get() {
                break;
            }
            front_end.settle().await;
        }
        assert!(has_stopped.get(), "the guest has been called anyway");
        front_end.process.session.end().await;
    });
}

#[test]
fn a_request_that_waits_while_the_memory_moves_is_taken_once() {
    run(|front_end| async move {
        front_end.read(0, 0).await;
        front_end.read(0, 1).await;
        assert_eq!(front_end.disk.count(), 1, "the second waits for the first");
        front_end.set_memory().await;
        front_end.end_all().await;
        assert_eq!((front_end.used(0), front_end.disk.count()), (1, 1));
        front_end.end_all().await;
        assert_eq!((front_end.used(0), front_end.disk.count()), (2, 0));
        front_end.read(0, 2).await;
        front_end.end_all().await;
        assert_eq!((front_end.used(0), front_end.disk.count()), (3, 0));
    });
}

#[test]
fn a_session_ends_while_much_is_filled_with_zeroes() {
    run(|front_end| async move {
        front_end.write_zeroes(0, SECTORS).await;
        front_end.end_all().await;
        assert_eq!(front_end.disk.count(), 1, "the device has no zeroes of its own");
        let has_ended = Rc::<Cell<bool>>::default();
        let (process, ended) = (front_end.process.clone(), has_ended.clone());
        spawn(async move {
            process.session.end().await;
            ended.set(true);
        });
        // The rest of the longest write that drivers are told of.
        for _ in 0..32 {
            front_end.end_all().await;
        }
        assert!(has_ended.get(), "{} writes are left", front_end.disk.count());
    });
}

#[test]
fn a_queue_stops_while_its_request_waits_for_another_queue() {
    run(|front_end| async move {
        front_end.read(0, 0).await;
        front_end.read(1, 0).await;
        assert_eq!(front_end.disk.count(), 1, "that of queue 1 waits for that of queue 0");
        let has_stopped = Rc::<Cell<bool>>::default();
        let (process, stopped) = (front_end.process.clone(), has_stopped.clone());
        spawn(async move {
            process.tell(Request::GetVringBase { queue: 1 }, Vec::new()).await.unwrap();
            stopped.set(true);
        });
        front_end.settle().await;
        assert!(has_stopped.get(), "nothing of queue 1 is in flight");
        front_end.end_all().await;
        assert_eq!((front_end.used(0), front_end.used(1), front_end.disk.count()), (1, 0, 0));
    });
}
