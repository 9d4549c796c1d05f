// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One volume over several lives of a machine: random clients beside each other, power cuts and
//! kills at any step, a store that lies and goes away. All answers judged by the oracle.
use std::cell::RefCell;
use std::rc::Rc;

use block::{BlockDevice, Nanos};
use objvol::{Fault, Volume, create};
use sim::harness::{self, CrashTest, Engine, OperatorState, Step, Work};
use sim::{Machine, Mix, Oracle, Workload, World, WorldRef, seeds};

use crate::bucket::{Bucket, BucketRef, Connection, Lies};
use crate::judge::BLOCK_BYTES;
use crate::writer::{Setup, run_bounded};

const CLIENTS: u64 = 3;
const LIVES: u32 = 4;

/// The volume over all lives of a seed.
struct VolumeEngine {
    world: WorldRef,
    bucket: BucketRef,
    setup: Setup,
    oracle: Rc<RefCell<Oracle>>,
    mix: Mix,
}

/// Outages, at random, until stopped.
async fn operate(world: WorldRef, bucket: BucketRef, state: Rc<OperatorState>) {
    while !state.is_stopping() {
        let (pause, outage) = {
            let rng = &mut world.borrow_mut().rng;
            let longest = rng.pick(&[1_000_000_000, 30_000_000_000, 3600 * 1_000_000_000]);
            (rng.below(20_000_000_000), rng.below(longest))
        };
        reactor::sleep(Nanos(pause)).await;
        let until = reactor::now() + Nanos(outage);
        bucket.borrow_mut().set_outage(until);
    }
    state.end();
}

impl Engine for VolumeEngine {
    fn live(&mut self, machine: &Machine) -> Step {
        let store = Connection::new(&self.bucket);
        let options = self.setup.options("host");
        let opening = async move { Volume::open(Rc::new(store), options).await };
        let opened = run_bounded(machine, &self.world, opening)?;
        let volume = opened.map_err(|e| format!("open failed: {}", e.chain()))?;
        let device: Rc<dyn BlockDevice> = volume.clone();
        let load = Workload::new(&self.world, &self.oracle, self.mix);
        machine.block_on(load.read_all(device.clone()))??;
        let operator = Rc::new(OperatorState::default());
        machine.spawn(0, operate(self.world.clone(), self.bucket.clone(), operator.clone()));
        for _ in 0..CLIENTS {
            machine.spawn(0, load.client(device.clone(), 60));
        }
        let work = Work {
            is_settled: &|| load.verdict.is_settled(CLIENTS),
            verdict: &|| load.verdict.result(),
            operator: &operator,
            disks: &[],
            status: &|| format!("{:?}", volume.status()),
        };
        harness::work(machine, &self.world, &work)?;
        let closing = volume.clone();
        let closed = run_bounded(machine, &self.world, async move { closing.close().await })?;
        closed.map_err(|e| format!("close failed: {}", e.chain()))?;
        // What is closed is durable, without a flush of the oracle's.
        let load = Workload::new(&self.world, &self.oracle, self.mix);
        machine.block_on(load.read_all(device))??;
        Ok(())
    }
}

pub(crate) fn simulate(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let world = World::new(seed);
    let mut setup = Setup::draw(&world, fault);
    setup.grace = Nanos::ZERO;
    let bucket = Bucket::new(&world);
    let machine = Machine::boot(&world, 1);
    let store = Connection::new(&bucket);
    let made = machine.block_on(async move {
        create(Rc::new(store), &setup.geometry(), &setup.options("maker")).await
    });
    made.unwrap().map_err(|e| e.chain())?;
    machine.shut_down();
    let lies = Lies::draw(&mut world.borrow_mut().rng);
    bucket.borrow_mut().set_lies(lies);
    let oracle = Rc::new(RefCell::new(Oracle::new(setup.blocks, BLOCK_BYTES, seed)));
    let mix = {
        let rng = &mut world.borrow_mut().rng;
        Mix {
            fua_per_mille: rng.pick(&[0, 50, 300]),
            flushes: rng.pick(&[1, 10, 40]),
            discards: rng.pick(&[1, 10]),
            blocks_max: rng.pick(&[1, 4, 16]),
            think_ns_max: rng.pick(&[0, 100_000_000, 3_000_000_000]),
            flushes_beside: rng.pick(&[0, 3]),
            ..Mix::default()
        }
    };
    let (lives, cut_after) = (LIVES, &[100, 1_000, 5_000][..]);
    let test = CrashTest { world: world.clone(), oracle: oracle.clone(), lives, cut_after };
    test.run(&mut VolumeEngine { world, bucket, setup, oracle, mix })
}

#[test]
fn what_was_flushed_survives_cuts_lies_and_outages() {
    seeds::run(200, |seed| simulate(seed, None));
}
