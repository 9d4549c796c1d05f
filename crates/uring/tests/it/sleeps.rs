// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deadlines: those of the timeout in the ring, and those that a wait has itself. A sleep whose
//! deadline is lost would last for ever.
use block::Nanos;
use reactor::{now, sleep, spawn};

use crate::common::on_core;

/// Sleeps for so many milliseconds each, one after the other.
async fn sleep_each(milliseconds: &[u64]) {
    for ms in milliseconds {
        let due = now() + Nanos::from_millis(*ms);
        sleep(Nanos::from_millis(*ms)).await;
        assert!(now() >= due);
    }
}

#[test]
fn far_deadlines_end_sleeps_one_after_the_other() {
    on_core(async |_| sleep_each(&[20, 6, 20]).await);
}

#[test]
fn nearer_deadlines_end_sleeps_beside_a_far_one() {
    on_core(async |_| {
        spawn(sleep(Nanos::from_secs(3600)));
        sleep_each(&[20, 1, 20, 6]).await;
    });
}

#[test]
fn one_timeout_ends_the_sleeps_of_many_tasks() {
    on_core(async |_| {
        for ms in [40, 30, 20] {
            spawn(async move { sleep_each(&[ms, ms]).await });
        }
        sleep_each(&[50, 50]).await;
    });
}
