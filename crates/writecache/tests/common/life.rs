// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of a life that the crash tests share: open, verify, work, end quietly.
use std::rc::Rc;

use block::{BlockDevice, Target};
use reactor::FileId;
use sim::harness::{self, OperatorState, Step, Work};
use sim::{Machine, Workload, WorldRef};
use writecache::WriteCache;

const CLIENTS: u64 = 4;

pub(crate) fn open(machine: &Machine, cache: &Rc<WriteCache>) -> Step {
    let opened = machine.block_on(cache.clone().resume())?;
    opened.map_err(|e| format!("open failed: {}", e.chain()))?;
    Ok(())
}

/// Reads the whole device, checked by the oracle.
pub(crate) fn verify(machine: &Machine, load: &Workload, device: &Rc<dyn BlockDevice>) -> Step {
    Ok(machine.block_on(load.read_all(device.clone()))??)
}

/// Clients and an operator work concurrently until all have ended; then disks stop failing.
pub(crate) fn work(
    machine: &Machine,
    world: &WorldRef,
    load: &Workload,
    device: &Rc<dyn BlockDevice>,
    cache: &WriteCache,
    operator: &OperatorState,
    disks: [FileId; 2],
) -> Step {
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(device.clone(), 80));
    }
    let work = Work {
        is_settled: &|| load.verdict.is_settled(CLIENTS),
        verdict: &|| load.verdict.result(),
        operator,
        disks: &disks,
        status: &|| counters(cache),
    };
    harness::work(machine, world, &work)
}

/// All counters of the cache, for the report of a failure.
fn counters(cache: &WriteCache) -> String {
    let figures = cache.attributes().into_iter().map(|spec| {
        let value = cache.attribute(spec.name).map_or_else(|_| String::new(), |v| v.to_string());
        format!("{} {value}; ", spec.name)
    });
    figures.collect()
}

/// A quiet end: all blocks read right, and a `flush` and a suspend bring them to the origin.
/// Returns false if earlier errors, where they are `allowed`, prevent that.
pub(crate) async fn end(
    cache: &Rc<WriteCache>,
    load: &Workload,
    allowed: bool,
) -> Result<bool, String> {
    load.read_all(cache.clone()).await?;
    cache.check();
    let flushed = cache.clone().message(vec!["flush".to_owned()]).await;
    let suspended = cache.clone().suspend().await;
    cache.check();
    let is_zero = |name| cache.attribute(name).is_ok_and(|value| value == "0");
    // Origin and cache device work again: only permanent errors keep blocks dirty.
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

/// The origin alone has the contents of the device.
pub(crate) async fn read_origin(
    origin: Rc<dyn BlockDevice>,
    load: &Workload,
) -> Result<(), String> {
    load.read_all(origin).await.map_err(|e| format!("origin after a flush: {e}"))
}
