// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block device of the kernel, and the mapped device behind it.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::{BlockDevice, Error, Nanos, OpenDevice, Sector};
use dm::{MappedDevice, Opened};
use reactor::{WaitList, new_opener, now};
use ublk::{ByteBudget, KernelChannel, Queue, QueueSpec, Stats, disk_path};
use uring::Files;

use super::kernel_devices::OpenedDevice;

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
}

/// A disk with its queue.
pub(super) struct UblkDisk {
    /// N of `/dev/ublkbN`.
    pub(super) number: u32,
    /// What the kernel was told.
    pub(super) capacity: Cell<Sector>,
    /// Its clients wait for the next daemon when this one ends.
    pub(super) recovers: bool,
    began: Nanos,
    queue: Rc<Queue<KernelChannel>>,
    /// HO-U1; none once it has ended.
    opened: RefCell<Option<Opened>>,
    has_ended: WaitList,
}

impl UblkDisk {
    /// Offers the tags of a device that was opened.
    pub(super) fn new(
        device: &Rc<MappedDevice>,
        opened: OpenedDevice,
        files: &Files,
        budget: &Rc<ByteBudget>,
    ) -> Result<Rc<UblkDisk>, Error> {
        let OpenedDevice { number, file, depth, recovers, capacity, .. } = opened;
        let handle = device.open()?;
        let channel = KernelChannel::new(file, (0, depth), |file| files.adopt_device(file));
        let channel = channel.map_err(|e| {
            Error::io(format!("{}: no descriptors", disk_path(number).display())).because(e)
        })?;
        let read_only = device.read_only().clone();
        let spec = QueueSpec {
            device: OpenDevice::new(device.clone(), new_opener()),
            is_read_only: Box::new(move || read_only.get()),
            latencies: Some(device.latencies()),
            budget: budget.clone(),
            depth,
        };
        let queue = Queue::start(channel, spec);
        let (capacity, opened) = (Cell::new(capacity), RefCell::new(Some(handle)));
        let has_ended = WaitList::new();
        let began = now();
        Ok(Rc::new(UblkDisk { number, capacity, recovers, began, queue, opened, has_ended }))
    }

    /// What is known of it as a client of its device; none once it has ended.
    pub(super) fn client(&self) -> Option<DiskClient> {
        let opened = self.opened.borrow();
        Some(DiskClient {
            number: self.number,
            device: opened.as_ref()?.device().name().to_owned(),
            age: now().saturating_sub(self.began),
            in_flight: self.queue.in_flight(),
            stats: self.queue.stats(),
        })
    }

    pub(super) fn queue(&self) -> &Queue<KernelChannel> {
        &self.queue
    }

    /// Nothing of it uses the mapped device any more.
    pub(super) fn end(&self) {
        let opened = self.opened.take();
        drop(opened);
        self.has_ended.wake_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.opened.borrow().is_none()
    }

    pub(super) async fn ended(&self) {
        self.has_ended.wait_for(|| self.has_ended()).await;
    }
}

impl fmt::Debug for UblkDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UblkDisk({}, {:?})", self.number, self.queue)
    }
}
