// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver without a ring, for devices in memory: where io_uring is refused, and under valgrind,
//! which does not know it.
use std::time::{Duration, Instant};

use block::{CoreId, Nanos, Status};
use reactor::{Driver, Event, Msg, Sqe};

/// A clock and nothing else: every request to a file fails.
#[derive(Debug)]
pub(crate) struct ClockDriver {
    epoch: Instant,
    failed: Vec<Event>,
}

impl ClockDriver {
    pub(crate) fn new() -> ClockDriver {
        #[expect(clippy::disallowed_methods, reason = "this is a clock of production")]
        let epoch = Instant::now();
        ClockDriver { epoch, failed: Vec::new() }
    }
}

impl Driver for ClockDriver {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.epoch.elapsed().as_nanos()).expect("584 years"))
    }

    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let failed = batch.drain(..).map(|sqe| {
            let result = Status::NoDevice.into();
            Event::Cqe { home: sqe.home, key: sqe.key, result }
        });
        self.failed.extend(failed);
    }

    fn post(&mut self, to: CoreId, _msg: Msg) {
        unreachable!("core {} does not exist: this driver is of one core", to.0);
    }

    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        let left = deadline.map_or(Nanos::ZERO, |t| t.saturating_sub(self.now()));
        if left > Nanos::ZERO && self.failed.is_empty() {
            #[expect(clippy::disallowed_methods, reason = "this wait ends by time only")]
            std::thread::sleep(Duration::from_nanos(left.0));
        }
        out.append(&mut self.failed);
    }

    fn random(&mut self) -> u64 {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .expect("getrandom works since Linux 3.17");
        u64::from_le_bytes(bytes)
    }
}
