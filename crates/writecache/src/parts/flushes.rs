// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flushes of a device that several parts share: one at a time, for all parts that wait. If a flush
//! fails, all parts count their writes as lost that it may have lost.
//!
//! ```text
//!   part 0 ──┐ FLUSH                       ┌─▶ outcome to the parts that asked
//!   part 1 ──┼──────▶ waiting ─▶ one flush ┤
//!   part 2 ──┤        on the core that     └─▶ failed: of the origin, the other parts are
//!   guard  ──┘        has the device           notified; of the cache device, all later ones fail
//! ```
//!
//! A flush that fails may lose what other parts have written, and the next one would succeed.
//!
//! Invariants
//! - WC-FL1 (WC-I8) One flush is in flight at a time: a part that gets a good outcome has been
//!   notified of every earlier failure.
//! - WC-FL2 A part is notified of a failure before it gets the outcome of any later flush: messages
//!   from one core to another stay in order.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Class, Limits, Op, Status};
use reactor::spawn;

/// The number of who is no part: the guard of the origin.
pub(crate) const NO_PART: u8 = u8::MAX;

/// What a failed flush means for the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// All later flushes fail.
    FailAll,
    /// The parts that did not send this flush are notified.
    NotifyOthers,
}

/// Notifies the part with this number of a failed flush.
pub(crate) type NotifyPart = Rc<dyn Fn(u8, Status)>;

/// The flushes of one device.
pub(crate) struct Flushes {
    device: Rc<dyn BlockDevice>,
    parts: u8,
    after_failure: AfterFailure,
    waiting: RefCell<Vec<(u8, Bio)>>,
    running: Cell<bool>,
    failed: Cell<Option<Status>>,
    notify: RefCell<Option<NotifyPart>>,
    count: Cell<u64>,
}

impl Flushes {
    pub(crate) fn new(
        device: Rc<dyn BlockDevice>,
        parts: u8,
        after_failure: AfterFailure,
    ) -> Rc<Flushes> {
        Rc::new(Flushes {
            device,
            parts,
            after_failure,
            waiting: RefCell::default(),
            running: Cell::new(false),
            failed: Cell::new(None),
            notify: RefCell::default(),
            count: Cell::new(0),
        })
    }

    /// Sets the function that notifies parts of failures.
    pub(crate) fn notify_with(&self, notify: NotifyPart) {
        *self.notify.borrow_mut() = Some(notify);
    }

    /// The device that is flushed, as parts on this core use it.
    pub(crate) fn device(&self) -> &Rc<dyn BlockDevice> {
        &self.device
    }

    /// How many flushes were sent to the device.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    fn push(self: &Rc<Self>, nth: u8, bio: Bio) {
        self.waiting.borrow_mut().push((nth, bio));
        if !self.running.replace(true) {
            spawn(self.clone().run());
        }
    }

    /// A task while bios wait for a flush.
    async fn run(self: Rc<Self>) {
        loop {
            let batch = self.waiting.take();
            if batch.is_empty() {
                return self.running.set(false);
            }
            let outcome = self.flush(&batch).await;
            if let Err(status) = outcome {
                self.failed.set(Some(status));
                self.notify_others(&batch, status); // WC-FL2
            }
            for (_, bio) in batch {
                bio.complete(outcome.into());
            }
        }
    }

    async fn flush(&self, batch: &[(u8, Bio)]) -> Result<(), Status> {
        if let Some(status) = self.failed.get()
            && self.after_failure == AfterFailure::FailAll
        {
            return Err(status);
        }
        self.count.set(self.count.get() + 1);
        let class = batch.iter().map(|(_, bio)| bio.class).min().unwrap_or(Class::Normal);
        reactor::flush(&*self.device, class).await
    }

    fn notify_others(&self, batch: &[(u8, Bio)], status: Status) {
        let notify = self.notify.borrow().clone();
        let Some(notify) = notify.filter(|_| self.after_failure == AfterFailure::NotifyOthers)
        else {
            return;
        };
        let asked = |nth| batch.iter().any(|(asker, _)| *asker == nth);
        (0..self.parts).filter(|&nth| !asked(nth)).for_each(|nth| notify(nth, status));
    }
}

/// The device to which one part sends its flushes.
pub(crate) struct FlushPort {
    pub(crate) nth: u8,
    pub(crate) flushes: Rc<Flushes>,
}

impl BlockDevice for FlushPort {
    fn name(&self) -> &str {
        self.flushes.device.name()
    }

    fn limits(&self) -> Limits {
        self.flushes.device.limits()
    }

    fn submit(&self, bio: Bio) {
        match bio.op {
            Op::Flush => self.flushes.push(self.nth, bio),
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => self.flushes.device.submit(bio),
        }
    }
}

/// A shared device for one part: data go directly to the device, and flushes to the port.
pub(crate) struct SharedDevice {
    pub(crate) data: Rc<dyn BlockDevice>,
    pub(crate) flushes: Rc<dyn BlockDevice>,
    pub(crate) identity: Option<String>,
}

impl SharedDevice {
    /// The device of `flushes` for the part `nth` on this core, or for [`NO_PART`].
    pub(crate) fn on_this_core(flushes: &Rc<Flushes>, nth: u8) -> Rc<dyn BlockDevice> {
        let (data, identity) = (flushes.device.clone(), flushes.device.identity());
        let flushes = Rc::new(FlushPort { nth, flushes: flushes.clone() });
        Rc::new(SharedDevice { data, flushes, identity })
    }
}

impl BlockDevice for SharedDevice {
    fn name(&self) -> &str {
        self.data.name()
    }

    fn limits(&self) -> Limits {
        self.data.limits()
    }

    fn submit(&self, bio: Bio) {
        match bio.op {
            Op::Flush => self.flushes.submit(bio),
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => self.data.submit(bio),
        }
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    fn writer_throttled(&self) {
        self.data.writer_throttled();
    }
}
