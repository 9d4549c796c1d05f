// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of persistence share: a device that keeps bios away while the target is
//! suspended, and one that makes some pages incompressible on their way.

pub(crate) mod media;

use std::cell::Cell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Error, Limits, Op, Sector, Status, Target};
use reactor::{OnDone, WaitList};
use sim::Machine;
use zram::Zram;

pub(crate) const PAGE: usize = 4096;
pub(crate) const PAGE_SECTORS: u64 = 8;

/// The target goes with its machine, without an orderly end.
pub(crate) fn vanish(machine: &Machine, target: Rc<Zram>) {
    machine.on(0, || {
        block::set_crashing(true);
        drop(target);
        block::set_crashing(false);
    });
}

/// Keeps bios away while the target is suspended, as a mapped device does.
#[derive(Default)]
pub(crate) struct SuspendGate {
    pub(crate) closed: Cell<bool>,
    pub(crate) in_flight: Cell<u64>,
    pub(crate) changed: WaitList,
}

impl SuspendGate {
    pub(crate) async fn suspend_and_resume(&self, target: &Rc<Zram>) -> Result<(), Error> {
        self.closed.set(true);
        self.changed.wait_for(|| self.in_flight.get() == 0).await;
        let suspended = target.clone().suspend().await;
        let resumed = target.clone().resume().await;
        self.closed.set(false);
        self.changed.wake_all();
        suspended.and(resumed)
    }
}

struct GateExit(Rc<SuspendGate>);

impl OnDone for GateExit {
    fn on_done(&self, _: Status, _: u64) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.changed.wake_all();
    }
}

pub(crate) struct GatedDevice {
    pub(crate) target: Rc<Zram>,
    pub(crate) gate: Rc<SuspendGate>,
}

impl BlockDevice for GatedDevice {
    fn name(&self) -> &str {
        "gated"
    }

    fn limits(&self) -> Limits {
        self.target.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let (target, gate) = (self.target.clone(), self.gate.clone());
        let enter = move |gate: Rc<SuspendGate>| {
            gate.in_flight.set(gate.in_flight.get() + 1);
            bio.done = reactor::chain(bio.done, Rc::new(GateExit(gate)), 0);
            target.submit(bio);
        };
        if gate.closed.get() {
            reactor::spawn(async move {
                gate.changed.wait_for(|| !gate.closed.get()).await;
                enter(gate);
            });
        } else {
            enter(gate);
        }
    }
}

/// Every third page below is noise: it does not compress. Zeroes stay zeroes.
pub(crate) struct NoiseFilter(pub(crate) Rc<dyn BlockDevice>);

fn noise(page: u64, bytes: &mut [u8]) {
    if !page.is_multiple_of(3) || bytes.iter().all(|b| *b == 0) {
        return;
    }
    let mut x = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in bytes.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        for (byte, noise) in word.iter_mut().zip(x.to_le_bytes()) {
            *byte ^= noise;
        }
    }
}

fn noisy(first: u64, bytes: &mut [u8]) {
    for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE)) {
        noise(page, bytes);
    }
}

impl BlockDevice for NoiseFilter {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let first = bio.sector.0 / PAGE_SECTORS;
        let len = bio.bufs.len_bytes();
        let below = self.0.clone();
        match bio.op {
            Op::Write => {
                let data = Buf::alloc(len);
                let from = bio.bufs.clone();
                data.write(|b| {
                    from.copy_to(b);
                    noisy(first, b);
                });
                bio.bufs = data.all().into();
                below.submit(bio);
            }
            Op::Read => reactor::spawn(async move {
                let Bio { op, flags, class, opener: _, sector, len: sectors, bufs, done } = bio;
                let data = Buf::alloc(len);
                let at: (Sector, Sector) = (sector, sectors);
                let read = reactor::io(&*below, op, flags, class, at, data.all().into()).await;
                if read.is_ok() {
                    data.write(|b| noisy(first, b));
                    data.read(|b| bufs.put_at(0, b));
                }
                done.complete(read.err().unwrap_or(Status::Ok));
            }),
            Op::Flush | Op::Discard | Op::WriteZeroes => below.submit(bio),
        }
    }
}
