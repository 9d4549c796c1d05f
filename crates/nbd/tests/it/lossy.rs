// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client over connections that are lost at every moment and in every way, to a server that is
//! slow, restarts, and loses its cache: judged by the oracle. And the proof that the judge is
//! awake: each planted fault is found.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::model::{Server, ServerTraits};
use block::{BlockDevice, Nanos, Sector, Target};
use nbd::Fault;
use nbd::client::Options;
use queue::MergingLeaf;
use reactor::sleep;
use sim::{Machine, Mix, Oracle, RunEnd, StreamFault, Workload, World, WorldRef, seeds};
use writecache::{Config, WriteCache};

const CLIENTS: u64 = 4;
const BLOCKS: u64 = 24;
const BLOCK_BYTES: usize = 4096;

/// What goes wrong.
#[derive(Clone, Copy)]
struct Plan {
    fault: Option<Fault>,
    /// The server sends replies twice.
    confused: bool,
    /// What a server that restarts loses.
    loss: bool,
    /// The server takes whole blocks only, so that sectors are merged on our side.
    merged: bool,
}

impl Plan {
    const USUAL: Plan = Plan { fault: None, confused: false, loss: false, merged: false };
}

fn options(world: &WorldRef) -> Options {
    let timeout = world.borrow_mut().rng.pick(&[2_000, 10_000, 60_000]);
    // Longer than anything takes at the server.
    let fence = Some(Nanos::from_millis(500));
    let silence = Nanos::from_millis(world.borrow_mut().rng.pick(&[50, 1_000, 120_000]));
    Options { timeout: Nanos::from_millis(timeout), silence, fence }
}

/// Cuts the connection again and again, until asked to stop.
async fn chaos(world: WorldRef, server: Rc<Server>, loss: bool, stop: Rc<Cell<bool>>) {
    let pause = world.borrow_mut().rng.pick(&[300_000, 3_000_000, 30_000_000]);
    while !stop.get() {
        let (time, dice) = {
            let rng = &mut world.borrow_mut().rng;
            (rng.below(pause), rng.below(16))
        };
        sleep(Nanos(time)).await;
        let end = server.client_end.get();
        let cut = |how| {
            if let Some(end) = end {
                world.borrow_mut().cut_stream(end, how);
            }
        };
        match dice {
            0..5 => cut(StreamFault::Error),
            5..8 => cut(StreamFault::TimedOut),
            8..11 => server.restart(loss),
            11 => {
                world.borrow_mut().set_listening(server.listener, false);
                server.restart(loss);
                let down = world.borrow_mut().rng.below(5_000_000_000);
                sleep(Nanos(down)).await;
                world.borrow_mut().set_listening(server.listener, true);
            }
            _ => {}
        }
    }
}

/// Random clients of the bare device: errors are allowed, wrong data are not.
fn bare(seed: u64, plan: Plan) -> Result<(), String> {
    let world = World::new(seed);
    let nature = ServerTraits {
        again_per_mille: if plan.confused { 100 } else { 0 },
        ..ServerTraits::draw(&world)
    };
    let server = Server::new(&world, BLOCKS as usize * BLOCK_BYTES, nature);
    let machine = Machine::boot(&world, 1);
    machine.spawn(0, server.clone().serve());
    let opts = options(&world);
    if plan.merged {
        server.block_sizes.set([4096, 4096, 16 << 10]);
    }
    let client = machine.block_on(server.clone().open_planted(opts, plan.fault)).unwrap();
    let client: Rc<dyn BlockDevice> = match plan.merged {
        true => Rc::new(MergingLeaf::new(client)),
        false => Rc::new(client),
    };
    // A server keeps sectors whole, and nothing more is promised of requests that fail.
    let oracle = Rc::new(RefCell::new(Oracle::new(BLOCKS * 8, 512, seed)));
    oracle.borrow_mut().expect_flush_errors();
    let mut mix = Mix { errors_allowed: true, ..Mix::default() };
    {
        let rng = &mut world.borrow_mut().rng;
        // Requests beyond the server's largest are cut.
        mix.blocks_max = rng.pick(&[4, 16, 80]);
        mix.fua_per_mille = rng.pick(&[0, 50, 500]);
        mix.think_ns_max = rng.pick(&[0, 20_000, 1_000_000]);
    }
    if plan.loss {
        // What is acknowledged is durable, so a server that forgets changes nothing that counts.
        mix = Mix { fua_per_mille: 1000, flushes: 0, discards: 0, write_zeroes: 0, ..mix };
    }
    let load = Workload::new(&world, &oracle, mix);
    let stop = Rc::new(Cell::new(false));
    machine.spawn(0, chaos(world.clone(), server.clone(), plan.loss, stop.clone()));
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(client.clone(), 60));
    }
    if machine.run(|| load.verdict.is_settled(CLIENTS)) == RunEnd::Idle {
        return Err("deadlock: clients wait".into());
    }
    stop.set(true);
    load.verdict.result()?;
    // What is late may land now.
    machine.block_on(sleep(Nanos::from_secs(100))).unwrap();
    machine.block_on(load.read_all(client.clone())).unwrap()?;
    // At last the server forgets what it may forget.
    server.restart(true);
    oracle.borrow_mut().crash();
    machine.block_on(load.read_all(client)).unwrap()
}

/// Random clients of a write cache whose origin is the device, and whose server forgets what was
/// not flushed: above the cache nothing of that may be seen.
fn cached(seed: u64, plan: Plan) -> Result<(), String> {
    let world = World::new(seed);
    let nature = ServerTraits::draw(&world);
    let server = Server::new(&world, BLOCKS as usize * BLOCK_BYTES, nature);
    let machine = Machine::boot(&world, 1);
    machine.spawn(0, server.clone().serve());
    let opts = options(&world);
    let origin = Rc::new(machine.block_on(server.clone().open_planted(opts, plan.fault)).unwrap());
    let file = world.borrow_mut().add_swarm_disk("cache", Sector(1024));
    let slow = world.borrow_mut().rng.pick(&[1, 4, 16]);
    let line = format!(
        "s origin cache 4096 8 high_watermark 10 low_watermark 5 autocommit_blocks {slow} \
         writeback_jobs {slow}"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let config = Config::parse(&words).unwrap();
    let leaf = world.borrow().leaf(file);
    let cache = WriteCache::new("wc", config, origin, leaf, Sector(BLOCKS * 8)).unwrap();
    let opening = cache.clone();
    machine.block_on(async move { opening.resume().await }).unwrap().map_err(|e| e.chain())?;
    let oracle = Rc::new(RefCell::new(Oracle::new(BLOCKS, BLOCK_BYTES, seed)));
    let mix = Mix { discards: 0, write_zeroes: 0, think_ns_max: 3_000_000, ..Mix::default() };
    // A read of what only the origin has may fail while it is away for long.
    let mix = Mix { errors_allowed: true, ..mix };
    let load = Workload::new(&world, &oracle, mix);
    let stop = Rc::new(Cell::new(false));
    machine.spawn(0, chaos(world.clone(), server.clone(), plan.loss, stop.clone()));
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(cache.clone(), 60));
    }
    if machine.run(|| load.verdict.is_settled(CLIENTS)) == RunEnd::Idle {
        return Err("deadlock: clients wait".into());
    }
    stop.set(true);
    load.verdict.result()?;
    machine.block_on(load.read_all(cache.clone())).unwrap()?;
    // All of it to the origin, and it must be there although the server then loses data.
    let flushed = async move {
        for _ in 0..100 {
            if cache.clone().message(vec!["flush".into()]).await.is_ok() {
                return Ok(());
            }
            sleep(Nanos::from_secs(5)).await;
        }
        Err("the cache can't be emptied".to_owned())
    };
    machine.block_on(flushed).unwrap()?;
    server.restart(true);
    oracle.borrow_mut().verify_after_crash(|block, data| server.peek(block as usize, data))
}

#[test]
fn no_wrong_data_over_connections_that_are_lost() {
    seeds::run(300, |seed| bare(seed, Plan::USUAL));
}

#[test]
fn no_wrong_data_from_a_server_that_says_things_twice() {
    seeds::run(150, |seed| bare(seed, Plan { confused: true, ..Plan::USUAL }));
}

#[test]
fn fua_writes_outlive_a_server_that_forgets() {
    seeds::run(150, |seed| bare(seed, Plan { loss: true, ..Plan::USUAL }));
}

/// Sectors of blocks of which only whole ones go to the server: the connection is lost between the
/// read and the write of a merge, too.
#[test]
fn no_wrong_data_of_sectors_that_are_merged_into_blocks() {
    seeds::run(150, |seed| bare(seed, Plan { merged: true, ..Plan::USUAL }));
    seeds::run(100, |seed| bare(seed, Plan { merged: true, loss: true, ..Plan::USUAL }));
}

#[test]
fn a_write_cache_loses_nothing_to_a_server_that_forgets() {
    seeds::run(150, |seed| cached(seed, Plan { loss: true, ..Plan::USUAL }));
}

/// Seeds until a planted fault is found; none of them may pass them all.
fn is_found(fault: Option<Fault>, seeds: u64, run: impl Fn(u64, Plan) -> Result<(), String>) {
    let plan = Plan { fault, ..Plan::USUAL };
    let found = seeds::first_failure(0..seeds, |seed| run(seed, plan));
    let found = found.unwrap_or_else(|| panic!("{fault:?} passes {seeds} seeds"));
    eprintln!("{fault:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_stale_write_that_lands_is_found() {
    is_found(Some(Fault::IgnoreGuards), 2000, bare);
    is_found(Some(Fault::FenceAtReconnect), 2000, bare);
    is_found(Some(Fault::IgnoreGuards), 500, |seed, plan| {
        bare(seed, Plan { merged: true, ..plan })
    });
}

#[test]
fn a_write_that_is_not_sent_again_is_found() {
    is_found(Some(Fault::ForgetInFlight), 300, bare);
}

#[test]
fn a_cookie_that_is_not_checked_is_found() {
    is_found(Some(Fault::CookieUnchecked), 500, |seed, plan| {
        bare(seed, Plan { confused: true, ..plan })
    });
}

#[test]
fn fua_that_is_not_kept_is_found() {
    let loss = |seed, plan| bare(seed, Plan { loss: true, ..plan });
    is_found(Some(Fault::IgnoreFua), 300, loss);
    is_found(Some(Fault::ForgetFuaWrite), 1000, loss);
}

#[test]
fn a_flush_that_pretends_is_found() {
    is_found(Some(Fault::PretendFlush), 1000, |seed, plan| {
        cached(seed, Plan { loss: true, ..plan })
    });
}
