// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Doors on a core that counts: the queue of a block device whose kernel always has requests, and
//! the queue of a virtual machine whose memory is an array. Both are before a device that ends each
//! request at once, so what is counted is what the door takes.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use block::ClientRegion;
use block::{BlockDevice, Buf, Completion, OpenDevice, Ram, Sector, Slice, Status};
use queue::Null;
use reactor::{CommandMemory, FileId, SqeOp, new_opener, push_bio, yield_now};
use ublk::{Channel, DataMemory, Descriptor, Queue, QueueSpec, TAG_BUFFER_BYTES};
use vhost::message::{RegionInfo, Request, RingAddresses};
use vhost::{Attachments, EventFd, Export, Server};

use crate::counting_core::{CountingCore, Failure, WARM, random};

/// Requests in flight.
const DEPTH: u16 = 32;
const BYTES: u32 = 4096;
const SECTORS: u64 = 8;
const CAPACITY: Sector = Sector(1 << 21);
const BLOCKS: u64 = CAPACITY.0 / SECTORS;

/// What the requests of a door do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// They read.
    Read,
    /// They write.
    Write,
}

fn null() -> Rc<dyn BlockDevice> {
    Rc::new(Null::new("null", CAPACITY))
}

/// The kernel's side of a queue: it has a request for every tag, until all were sent.
struct BusyKernel {
    direction: Direction,
    count: u64,
    sent: Cell<u64>,
    /// What each tag asks for.
    blocks: RefCell<[u64; DEPTH as usize]>,
}

impl Channel for BusyKernel {
    fn fetch(&self, tag: u16, _buf: Option<&Buf>, done: Completion) {
        let nth = self.sent.get();
        if nth == self.count {
            return done.complete(Status::NoDevice);
        }
        self.sent.set(nth + 1);
        self.blocks.borrow_mut()[usize::from(tag)] = random(BLOCKS)(nth);
        let command = SqeOp::Command { code: 0, args: [0; 16], memory: CommandMemory::None };
        push_bio(done, FileId(0), command);
    }

    fn commit_and_fetch(&self, tag: u16, _result: i32, buf: Option<&Buf>, done: Completion) {
        self.fetch(tag, buf, done);
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        let op_flags = u32::from(self.direction == Direction::Write);
        let sector = self.blocks.borrow()[usize::from(tag)] * SECTORS;
        Descriptor { op_flags, sectors: BYTES / 512, sector, addr: 0 }
    }

    fn copy_in(&self, _tag: u16, _buf: &Slice) -> Result<(), Status> {
        Ok(())
    }

    fn copy_out(&self, _tag: u16, _buf: &Slice) -> Result<(), Status> {
        Ok(())
    }
}

/// Memory of a virtual machine with one queue, in which each slot has a request of 4 KiB.
///
/// ```text
///   descriptors │ available │ used │ indirect tables │ headers │ data
/// ```
#[derive(Debug)]
struct MachineMemory(Arc<Ram>);

const SIZE: u16 = 64;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLES: u64 = 0x4000;
const HEADERS: u64 = 0x8000;
const SLOT: u64 = 48;
const STATUS: u64 = 40;
const DATA: u64 = 1 << 20;
const MEMORY: u64 = DATA + DEPTH as u64 * BYTES as u64;

impl MachineMemory {
    fn new() -> Arc<MachineMemory> {
        Arc::new(MachineMemory(Arc::new(Ram::new(MEMORY).expect("a MiB"))))
    }

    fn put_descriptor(&self, at: u64, to: (u64, u32), flags: u16, next: u16) -> Result<(), Status> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&to.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&to.1.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        ClientRegion::write(&*self.0, at, &bytes)
    }

    /// Lays out the request of each slot.
    fn prepare(&self, direction: Direction) -> Result<(), Status> {
        let (next, writable, indirect) = (1, 2, 4);
        for slot in 0..DEPTH {
            let nth = u64::from(slot);
            let (table, header) = (TABLES + nth * SLOT, HEADERS + nth * SLOT);
            let data = DATA + nth * u64::from(BYTES);
            let data_flags = if direction == Direction::Write { next } else { next | writable };
            self.put_descriptor(nth * 16, (table, 48), indirect, 0)?;
            self.put_descriptor(table, (header, 16), next, 1)?;
            self.put_descriptor(table + 16, (data, BYTES), data_flags, 2)?;
            self.put_descriptor(table + 32, (header + STATUS, 1), writable, 0)?;
            ClientRegion::write(
                &*self.0,
                header,
                &u64::from(direction == Direction::Write).to_le_bytes(),
            )?;
        }
        Ok(())
    }

    /// Offers `count` requests, the first of which is request `first`, and waits for all of them
    /// before the next [`DEPTH`] of them.
    async fn run(&self, first: u64, count: u64) -> Result<(), Status> {
        let mut offered = self.0.load_u16(AVAILABLE + 2)?;
        for nth in first..first + count {
            let slot = u16::try_from(nth % u64::from(DEPTH)).expect("a slot");
            let sector = random(BLOCKS)(nth) * SECTORS;
            ClientRegion::write(
                &*self.0,
                HEADERS + u64::from(slot) * SLOT + 8,
                &sector.to_le_bytes(),
            )?;
            self.0.store_u16(AVAILABLE + 4 + u64::from(offered % SIZE) * 2, slot)?;
            offered = offered.wrapping_add(1);
            if slot == DEPTH - 1 {
                self.0.store_u16(AVAILABLE + 2, offered)?;
                while self.0.load_u16(USED + 2)? != offered {
                    yield_now().await;
                }
            }
        }
        Ok(())
    }
}

/// A device of a virtual machine.
struct NullExport {
    device: Rc<dyn BlockDevice>,
    was_used: Arc<AtomicBool>,
}

impl Export for NullExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.device.clone()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn was_used(&self) -> Arc<AtomicBool> {
        self.was_used.clone()
    }

    fn warn(&self, why: &str) {
        eprintln!("{}: {why}", self.device.name());
    }
}

impl CountingCore {
    /// Requests of a block device of the kernel.
    ///
    /// # Errors
    /// None that is known.
    pub fn ublk(&self, direction: Direction) -> Result<(), Failure> {
        let serve = |count| {
            self.reactor().block_on(async move {
                let blocks = RefCell::default();
                let channel = BusyKernel { direction, count, sent: Cell::new(0), blocks };
                let spec = QueueSpec {
                    device: OpenDevice::new(null(), new_opener()),
                    is_read_only: Box::new(|| false),
                    latencies: Some(Arc::default()),
                    memory: DataMemory::OfTags { max_io_bytes: TAG_BUFFER_BYTES },
                    depth: DEPTH,
                    planted: block::Planted::NONE,
                };
                Queue::start(channel, spec).ended().await
            });
            Ok(())
        };
        serve(WARM)?;
        self.count(|| serve(self.counted()))
    }

    /// Requests of a virtual machine, whose front end keeps no notes of those in flight.
    ///
    /// # Errors
    /// What is wrong with a message, or with the memory.
    pub fn vhost(&self, direction: Direction) -> Result<(), Failure> {
        let memory = MachineMemory::new();
        memory.prepare(direction).map_err(|e| e.to_string())?;
        let region: Arc<dyn ClientRegion> = memory.0.clone();
        let session = self.reactor().block_on(async move {
            let export = NullExport { device: null(), was_used: Arc::default() };
            let server = Server::new(64 << 20);
            let session = server.begin(Box::new(export), vec![None], Arc::new(|| ()), 0).await;
            for (message, given) in messages(region) {
                session.handle(message, given).await?;
            }
            Ok::<_, block::Error>(session)
        })?;
        let run = |first, count| {
            let memory = memory.clone();
            let done = self.reactor().block_on(async move { memory.run(first, count).await });
            done.map_err(|e| e.to_string().into())
        };
        run(0, WARM)?;
        let outcome = self.count(|| run(WARM, self.counted()));
        drop(session);
        outcome
    }
}

/// What a front end says before requests flow.
fn messages(region: Arc<dyn ClientRegion>) -> Vec<(Request, Attachments)> {
    let none = Attachments::default;
    let event = || {
        let open: vhost::OpenEvent = Box::new(|| Ok(EventFd::new(FileId(0))));
        Attachments { event: Some(open), ..Attachments::default() }
    };
    let queue = 0;
    let addresses = RingAddresses { descriptors: 0, used: USED, available: AVAILABLE };
    let info = RegionInfo { guest: 0, len: MEMORY, user: 0, offset: 0 };
    let regions = Attachments { regions: vec![region], ..Attachments::default() };
    // VERSION_1, indirect tables, event indices, FLUSH.
    let features = 1 << 32 | 1 << 28 | 1 << 29 | 1 << 9;
    vec![
        (Request::SetFeatures(features), none()),
        (Request::SetMemTable(vec![info]), regions),
        (Request::SetVringNum { queue, size: SIZE.into() }, none()),
        (Request::SetVringBase { queue, base: 0 }, none()),
        (Request::SetVringAddr { queue, addresses }, none()),
        (Request::SetVringCall { queue, given: true }, event()),
        (Request::SetVringKick { queue, given: true }, event()),
    ]
}
