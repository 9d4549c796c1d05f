// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of a device are counted against the budget of the core before anything is written.

use std::sync::Arc;

use crate::fixture::{Fixture, fill};
use block::{Budget, Error, ErrorKind, Target};
use sim::Machine;

/// One life with a budget of so many bytes. Returns what is free while the device exists, and
/// afterwards.
fn life(lab: &Fixture, limit: u64) -> Result<(u64, u64), Error> {
    let machine = Machine::boot(&lab.world, lab.cores);
    let lab = lab.clone();
    let done = machine.block_on(async move {
        let budget = Arc::new(Budget::new(limit, "a test"));
        reactor::set_memory(budget.clone());
        let target = lab.target();
        target.clone().resume().await?;
        let free = budget.free();
        fill(&target, 0..9, 1).await;
        target.clone().suspend().await?;
        drop(target);
        reactor::yield_now().await;
        Ok((free, budget.free()))
    });
    machine.kill();
    done.expect("no power cut was planned")
}

/// A device of a size with a typing error, or a backing device that is sparse and huge, ended
/// the process with all of its devices when the tables were filled.
#[test]
fn a_device_whose_tables_have_no_room_is_not_made() {
    let lab = Fixture::new(300, 4000, "shards 1");
    let stats = || lab.world.borrow().stats(lab.disk);
    let e = life(&lab, 10_000).expect_err("there is no room");
    assert_eq!(e.kind(), ErrorKind::NoMemory, "{}", e.chain());
    let wanted = "zram0: the table of its 300 pages and of 4000 blocks of disk needs 12.5 KiB of";
    assert!(e.chain().starts_with(wanted), "{}", e.chain());
    assert_eq!(stats().writes, 0, "something was written");
    let needed = 300 * 16 + 4000 * 2;
    assert_eq!(life(&lab, needed).expect("it fits"), (0, needed));
    assert!(life(&lab, needed - 1).is_err(), "one byte less");
}
