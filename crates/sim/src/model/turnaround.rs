// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slow host: it gets a completion some time after the device has completed the command, while
//! the device continues at once with the next queued command.
//!
//! ```text
//! device:   |== 1 ==|== 2 ==|            two in flight: 2 begins as 1 ends
//! host:             ....1   ....2
//!
//! device:   |== 1 ==|    |== 2 ==|       one in flight: the gap is lost, each time
//! host:             ....1        ....2
//! ```
//! The delay stands for interrupt, wake-up and dispatch. Commands that wait for a device of queue
//! depth 1 wait in the inner model, as they do in a driver's queue: it takes the next one without
//! asking whoever submitted it.
//!
//! Invariants
//! - SI-H1 The inner model runs as it would alone on the same submissions.
//! - SI-H2 Each completion is passed on exactly `delay_ns` after it happened, in order.

use std::collections::VecDeque;

use super::{Cmd, Flash, FlashParams, Model};

/// See the module.
pub struct Turnaround {
    inner: Box<dyn Model>,
    delay_ns: u64,
    /// Time at which the host gets a completion, and its id. Ascending, like the inner events.
    done: VecDeque<(u64, u64)>,
    scratch: Vec<u64>,
}

impl Turnaround {
    /// Delay that makes the published pair of a lone writer (see [`Turnaround::lone_writer`]).
    pub const LONE_WRITER_NS: u64 = 750_000;

    /// `inner`, of whose completions the host hears `delay_ns` later.
    pub fn new(inner: Box<dyn Model>, delay_ns: u64) -> Turnaround {
        Turnaround { inner, delay_ns, done: VecDeque::new(), scratch: Vec::new() }
    }

    /// The disk of the published lone writer: SATA, queue depth 1, 10 GB in 87.5 s without
    /// throttling and in 101.8 s with one request in flight. See `docs/wbt-model.md`.
    pub fn lone_writer() -> Turnaround {
        let disk = Flash::new(FlashParams::sata_depth_one());
        Turnaround::new(Box::new(disk), Turnaround::LONE_WRITER_NS)
    }
}

impl Model for Turnaround {
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd) {
        self.inner.submit(now_ns, id, cmd);
    }

    fn next_event(&self) -> Option<u64> {
        let heard = self.done.front().map(|d| d.0);
        self.inner.next_event().into_iter().chain(heard).min()
    }

    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(time) = self.inner.next_event().filter(|&t| t <= now_ns) {
            self.inner.pop_done(time, &mut self.scratch);
            self.done.extend(self.scratch.drain(..).map(|id| (time + self.delay_ns, id)));
        }
        while let Some(&(_, id)) = self.done.front().filter(|d| d.0 <= now_ns) {
            self.done.pop_front();
            done.push(id);
        }
    }

    fn power_cut(&mut self) {
        self.inner.power_cut();
        self.done.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive;
    use super::*;

    const REQUEST_BYTES: u64 = 512 << 10;

    fn lone_writer_s(depth: usize) -> f64 {
        let requests = 10_000_000_000 / REQUEST_BYTES;
        let cmds: Vec<Cmd> =
            (0..requests).map(|i| Cmd::write(i * REQUEST_BYTES, REQUEST_BYTES)).collect();
        drive(&mut Turnaround::lone_writer(), &cmds, depth) as f64 / 1e9
    }

    #[test]
    fn the_published_lone_writer_takes_88_s_or_102_s_at_depth_1() {
        let (many, one) = (lone_writer_s(32), lone_writer_s(1));
        assert!((many / 87.5 - 1.0).abs() < 0.005, "{many} s");
        assert!((one / 101.8 - 1.0).abs() < 0.005, "{one} s");
        let two = lone_writer_s(2);
        assert!((two / many - 1.0).abs() < 0.001, "two in flight leave no gap: {two} s");
    }

    #[test]
    fn a_completion_is_heard_of_after_the_delay_and_in_order() {
        let alone = drive(&mut Flash::new(FlashParams::nvme()), &[Cmd::read(0, 4096)], 1);
        let inner = Box::new(Flash::new(FlashParams::nvme()));
        let mut model = Turnaround::new(inner, 5_000);
        for id in 0..4 {
            model.submit(0, id, Cmd::read(id * 4096, 4096));
        }
        let (mut done, mut first) = (Vec::new(), None);
        while let Some(time) = model.next_event() {
            model.pop_done(time, &mut done);
            first = first.or((!done.is_empty()).then_some(time));
        }
        assert_eq!(first, Some(alone + 5_000));
        assert_eq!(done, [0, 1, 2, 3]);
        model.submit(1_000_000, 4, Cmd::flush());
        model.power_cut();
        assert_eq!(model.next_event(), None, "nothing is heard of after a power cut");
    }
}
