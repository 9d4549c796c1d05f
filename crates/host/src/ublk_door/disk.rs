// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block device of the kernel, and the mapped device behind it.
//!
//! ```text
//!   queue 0 ── core 0 ── the mapped device          queue 1 ── core 1 ── its replica there
//!      └────────────── /dev/ublkcN, opened by core 0, adopted by core 1 ──┘
//! ```
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, CoreId, Error, Nanos, OpenDevice, Planted, Reservation, Sector};
use dm::{MappedDevice, Opened};
use reactor::{CoreLocal, FileId, WaitList, core_id, new_opener, now};
use ublk::{
    ByteBudget, DataMemory, KernelChannel, MakeQueue, NewQueue, QueueMemory, QueueSpec, Queues,
    Stats,
};
use uring::{Files, SharedFile};

use super::cores::{QueueCore, QueueCores};
use super::kernel_devices::OpenedDevice;
use crate::secondary::{DeviceHandle, Lease, device_on_this_core, files_of_this_core};

/// A block device as a client of its mapped device.
#[derive(Clone, Debug)]
pub(crate) struct DiskClient {
    /// N of `/dev/ublkbN`.
    pub(crate) number: u32,
    /// The mapped device.
    pub(crate) device: String,
    /// Time since this daemon serves it.
    pub(crate) age: Nanos,
    /// Requests in flight.
    pub(crate) in_flight: u64,
    /// Its figures in this daemon.
    pub(crate) stats: Stats,
    /// The core that serves it, if one serves all its queues.
    pub(crate) core: Option<CoreId>,
}

/// What a disk has of its mapped device.
struct HeldDevice {
    /// For the other cores that serve it. It ends first: they drop what they have of the device.
    _lease: Option<Lease>,
    opened: Rc<Opened>,
}

/// A disk with its queues.
pub(super) struct UblkDisk {
    /// N of `/dev/ublkbN`.
    pub(super) number: u32,
    /// What the kernel was told.
    pub(super) capacity: Cell<Sector>,
    /// Its clients wait for the next daemon when this one ends.
    pub(super) recovers: bool,
    began: Nanos,
    /// The character device, on core 0.
    file: FileId,
    queues: Queues<KernelChannel>,
    /// HO-U1; none once it has ended.
    held: RefCell<Option<HeldDevice>>,
    /// The buffers of its tags.
    _tags: Option<Reservation>,
    has_ended: WaitList,
}

/// What the queues of a disk have in common.
#[derive(Clone, Copy)]
struct QueueLayout {
    depth: u16,
    /// The kernel copies data, of so many bytes at most.
    kernel_copies: Option<u32>,
    /// Tags are taken and committed several at a time.
    takes_several: bool,
}

impl QueueLayout {
    /// Where the data of a queue's requests are; `budget` is that of its core.
    fn memory(self, budget: CoreLocal) -> DataMemory {
        match self.kernel_copies {
            Some(max_io_bytes) => DataMemory::OfTags { max_io_bytes },
            None => DataMemory::Pooled(
                budget
                    .get::<ByteBudget>()
                    .expect("each core has one, as long as the door is there"),
            ),
        }
    }
}

/// What a queue on core 0 serves.
fn spec_here(device: &Rc<MappedDevice>, budget: CoreLocal, layout: QueueLayout) -> QueueSpec {
    let read_only = device.read_only().clone();
    QueueSpec {
        device: OpenDevice::new(device.clone(), new_opener()),
        is_read_only: Box::new(move || read_only.get()),
        latencies: Some(device.latencies()),
        memory: layout.memory(budget),
        depth: layout.depth,
        planted: Planted::NONE,
    }
}

/// A queue on another core serves the replica of the device there.
fn make_there(
    device: &MappedDevice,
    (handle, shared): (DeviceHandle, SharedFile),
    (nth, layout): (u16, QueueLayout),
    (budget, memory): (CoreLocal, QueueMemory),
) -> MakeQueue<KernelChannel> {
    let (read_only, latencies) = (device.read_only().clone(), device.latencies());
    Box::new(move || {
        let file = files_of_this_core().adopt(&shared);
        let spec = QueueSpec {
            device: OpenDevice::new(device_on_this_core(&handle), new_opener()),
            is_read_only: Box::new(move || read_only.get()),
            latencies: Some(latencies),
            memory: layout.memory(budget),
            depth: layout.depth,
            planted: Planted::NONE,
        };
        (KernelChannel::new(file, nth, memory, layout.takes_several), spec)
    })
}

/// The queue has ended: another core than core 0 needs the character device no more.
fn close_there(channel: &KernelChannel) {
    if core_id() != CoreId(0) {
        files_of_this_core().close(channel.file());
    }
}

impl UblkDisk {
    /// Offers the tags of a device that was opened; `tags`: the memory of their buffers.
    pub(super) async fn new(
        device: &Rc<MappedDevice>,
        opened: OpenedDevice,
        files: &Files,
        cores: &QueueCores,
        tags: Option<Reservation>,
    ) -> Result<Rc<UblkDisk>, Error> {
        let OpenedDevice { number, file, memory, depth, recovers, capacity, .. } = opened;
        let OpenedDevice { kernel_copies, takes_several, .. } = opened;
        let layout = QueueLayout { depth, kernel_copies, takes_several };
        let held = Rc::new(device.open()?);
        let file = files.adopt_device(file);
        let shared = files.share(file).expect("it was opened above");
        // A device that was taken over has its queues, however many cores there are now.
        let places = cores.of(device).iter().cycle();
        let queues = (0..).zip(memory).zip(places);
        let mut lease = None;
        let mut new = Vec::new();
        for ((nth, memory), QueueCore { core, budget }) in queues {
            if *core == CoreId(0) {
                let channel = KernelChannel::new(file, nth, memory, takes_several);
                new.push(NewQueue::Here(channel, spec_here(device, *budget, layout)));
            } else {
                let lease = lease.get_or_insert_with(|| cores.owner.lease(held.clone()));
                let from = (lease.handle(), shared.clone());
                let make = make_there(device, from, (nth, layout), (*budget, memory));
                new.push(NewQueue::On(*core, make));
            }
        }
        let queues = Queues::start(new).await;
        Ok(Rc::new(UblkDisk {
            number,
            capacity: Cell::new(capacity),
            recovers,
            began: now(),
            file,
            queues,
            held: RefCell::new(Some(HeldDevice { _lease: lease, opened: held })),
            _tags: tags,
            has_ended: WaitList::new(),
        }))
    }

    /// What is known of it as a client of its device; none once it has ended.
    pub(super) fn client(&self) -> Option<DiskClient> {
        let held = self.held.borrow();
        let first = self.queues.cores().next()?;
        Some(DiskClient {
            number: self.number,
            device: held.as_ref()?.opened.device().name().to_owned(),
            age: now().saturating_sub(self.began),
            in_flight: self.queues.in_flight(),
            stats: self.stats(),
            core: self.queues.cores().all(|core| core == first).then_some(first),
        })
    }

    /// The figures of all its queues.
    pub(super) fn stats(&self) -> Stats {
        let mut all = Stats::default();
        self.queues.stats().for_each(|(_, stats)| all += stats);
        all
    }

    pub(super) fn queues(&self) -> &Queues<KernelChannel> {
        &self.queues
    }

    /// Its queues have ended: the kernel can delete its device.
    pub(super) async fn close(&self, files: &Files) {
        self.queues.release(close_there).await;
        files.close(self.file);
    }

    /// Nothing of it uses the mapped device any more.
    pub(super) fn end(&self) {
        let held = self.held.take();
        drop(held);
        self.has_ended.wake_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.held.borrow().is_none()
    }

    pub(super) async fn ended(&self) {
        self.has_ended.wait_for(|| self.has_ended()).await;
    }
}

block::debug_as!(UblkDisk, s => "UblkDisk({}, {:?})", s.number, s.queues);
