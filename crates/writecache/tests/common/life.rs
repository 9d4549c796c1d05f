// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lives of a machine under every kind of bad day: opened, put to work, and stopped by a power cut
//! or a kill.
use std::cell::RefCell;
use std::rc::Rc;

use block::{BlockDevice, Target};
use reactor::FileId;
use sim::{Faults, Machine, Oracle, PowerCut, RunEnd, Workload, WorldRef};
use writecache::WriteCache;

use super::operator::Duty;

const CLIENTS: u64 = 4;
/// No life is as long, on the slowest disk with the lowest limits: something waits for good.
const LIFE_NS_MAX: u64 = 3600 * 1_000_000_000;

/// Whether the power is still there, or what went wrong.
pub(crate) type Lives = Result<bool, String>;

/// The power goes after at most one of so many steps, unless this life may go on until its end.
pub(crate) fn plan_cut(world: &WorldRef, steps: &[u64], is_last: bool) {
    let mut w = world.borrow_mut();
    let after = w.rng.pick(steps);
    let cut = PowerCut::Step(w.steps() + w.rng.below(after));
    w.power_cut_at((!is_last).then_some(cut));
}

/// The power goes, or only the process.
pub(crate) fn crash(machine: Machine, world: &WorldRef, oracle: &Rc<RefCell<Oracle>>) {
    let killed = world.borrow_mut().rng.below(3) == 0;
    world.borrow_mut().power_cut_at(None);
    if killed {
        machine.kill();
        oracle.borrow_mut().kill();
    } else {
        machine.power_cut();
        oracle.borrow_mut().crash();
    }
}

pub(crate) fn open(machine: &Machine, cache: &Rc<WriteCache>) -> Lives {
    match machine.block_on(cache.clone().resume()) {
        Ok(Ok(())) => Ok(true),
        Ok(Err(e)) => Err(format!("open failed: {}", e.chain())),
        Err(_) => Ok(false),
    }
}

/// Everything is there that must be.
pub(crate) fn read_all(machine: &Machine, load: &Workload, device: &Rc<dyn BlockDevice>) -> Lives {
    machine.block_on(load.read_all(device.clone())).map_or(Ok(false), |read| read.map(|()| true))
}

/// Clients at work beside an operator, until all is done; then no disk fails any more.
pub(crate) fn work(
    machine: &Machine,
    world: &WorldRef,
    load: &Workload,
    device: &Rc<dyn BlockDevice>,
    cache: &WriteCache,
    duty: &Duty,
    disks: [FileId; 2],
) -> Lives {
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(device.clone(), 80));
    }
    let began = world.borrow().now();
    let is_late = || world.borrow().now().0 - began.0 > LIFE_NS_MAX;
    let over = || load.verdict.is_settled(CLIENTS) || duty.failed().is_some() || is_late();
    let ended = machine.run(over);
    load.verdict.result()?;
    duty.failed().map_or(Ok(()), Err)?;
    for disk in disks {
        world.borrow_mut().set_faults(disk, Faults::default());
    }
    match ended {
        RunEnd::PowerCut => return Ok(false),
        RunEnd::Idle => return Err(format!("deadlock: clients wait: {}", books(cache))),
        RunEnd::Until if is_late() => return Err(format!("too long: {}", books(cache))),
        RunEnd::Until => duty.stop.set(true),
    }
    let ended = machine.run(|| duty.done.get() || is_late());
    duty.failed().map_or(Ok(()), Err)?;
    match ended {
        RunEnd::PowerCut => Ok(false),
        RunEnd::Idle => Err(format!("deadlock: a message waits: {}", books(cache))),
        RunEnd::Until if is_late() => Err(format!("a message is too long: {}", books(cache))),
        RunEnd::Until => Ok(true),
    }
}

/// Everything that the cache counts, for a failure report.
fn books(cache: &WriteCache) -> String {
    let value = |name| cache.attribute(name).unwrap_or_default();
    cache.attributes().iter().map(|&name| format!("{name} {}; ", value(name))).collect()
}

/// A quiet end: everything reads right, and a `flush` and a suspend bring it to the origin. False
/// if that is not to be had: errors, where they are `allowed`, have left their mark.
pub(crate) async fn end(cache: &Rc<WriteCache>, load: &Workload, allowed: bool) -> Lives {
    load.read_all(cache.clone()).await?;
    cache.check_all().await;
    let flushed = cache.clone().message(vec!["flush".to_owned()]).await;
    let suspended = cache.clone().suspend().await;
    cache.check();
    let is_zero = |name| cache.attribute(name).is_ok_and(|value| value == "0");
    // Origin and cache work again: only what they can't mend keeps blocks dirty.
    let hurt = allowed && (!is_zero("error") || !is_zero("bad_blocks"));
    match (flushed, suspended) {
        (Err(_), _) | (_, Err(_)) if hurt => return Ok(false),
        (Err(e), _) | (_, Err(e)) => return Err(e.chain()),
        (Ok(_), Ok(())) => {}
    }
    for name in ["dirty_blocks", "old_blocks", "pending_epochs"] {
        let left = cache.attribute(name).map_err(|e| e.chain())?;
        if left != "0" {
            return Err(format!("{name} {left} after a flush"));
        }
    }
    Ok(true)
}

/// The origin alone is the device.
pub(crate) async fn read_origin(
    origin: Rc<dyn BlockDevice>,
    load: &Workload,
) -> Result<(), String> {
    load.read_all(origin).await.map_err(|e| format!("origin after a flush: {e}"))
}
