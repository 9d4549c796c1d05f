// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One volume over several lives of a machine: random clients beside each other, power cuts and
//! kills at any step, a store that lies and goes away. All answers judged by the oracle.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, ErrorKind, Nanos, Sector, Status};
use objvol::{Fault, OpenOptions, Snapshot, SnapshotDevice, Volume, create};
use sim::harness::{self, CrashTest, Engine, OperatorState, Step, Work};
use sim::{Machine, Mix, Oracle, Workload, World, WorldRef, seeds};

use crate::bucket::{Bucket, BucketRef, Connection, Lies};
use crate::judge::BLOCK_BYTES;
use crate::writer::{Setup, run_bounded};

const CLIENTS: u64 = 3;
const LIVES: u32 = 4;

/// How often the operator makes or deletes a snapshot in a life.
const SNAPSHOTS: u64 = 6;

/// What is known of a snapshot over all lives.
#[derive(Default)]
struct SnapshotRecord {
    is_made: bool,
    is_deletion_asked: bool,
    contents: Option<Vec<u8>>,
}

type Snapshots = Rc<RefCell<BTreeMap<String, SnapshotRecord>>>;

/// Makes and deletes snapshots at random, until stopped.
async fn change_snapshots(
    world: WorldRef,
    volume: Rc<Volume>,
    snapshots: Snapshots,
    state: Rc<OperatorState>,
) {
    for _ in 0..SNAPSHOTS {
        let (pause, deletes, nth) = {
            let rng = &mut world.borrow_mut().rng;
            (rng.below(10_000_000_000), rng.chance_per_mille(400), rng.index(1000))
        };
        reactor::sleep(Nanos(pause)).await;
        if state.is_stopping() {
            return;
        }
        let count = snapshots.borrow().len();
        let name = format!("s{}", if deletes { nth % (count + 1) } else { count });
        if !deletes {
            snapshots.borrow_mut().insert(name.clone(), SnapshotRecord::default());
            // An error is that of a fence, and nobody fences here.
            volume.create_snapshot(&name, 0).await.expect("it is made");
            snapshots.borrow_mut().get_mut(&name).expect("inserted above").is_made = true;
        } else if let Some(known) = snapshots.borrow_mut().get_mut(&name) {
            known.is_deletion_asked = true;
        }
        if deletes && snapshots.borrow().contains_key(&name) {
            drop(volume.delete_snapshot(&name).await); // it may have gone, or never been made
        }
    }
}

/// What was acknowledged is there, and what is there does not change.
async fn judge_snapshots(
    store: Connection,
    options: OpenOptions,
    volume: Rc<Volume>,
    snapshots: Snapshots,
) -> Result<(), String> {
    let names = |listed: Vec<Snapshot>| -> Vec<String> {
        listed.into_iter().map(|snapshot| snapshot.name).collect()
    };
    let of_volume = names(volume.snapshots().map_err(|e| e.chain())?);
    let listed = objvol::snapshots(Rc::new(store.clone()), &options).await;
    let names = names(listed.map_err(|e| e.chain())?);
    for (name, known) in snapshots.borrow().iter() {
        if known.is_made
            && !known.is_deletion_asked
            && !(names.contains(name) && of_volume.contains(name))
        {
            return Err(format!("snapshot {name} has gone"));
        }
    }
    for name in names {
        let opened = SnapshotDevice::open(Rc::new(store.clone()), &name, &options).await;
        let is_going =
            || snapshots.borrow().get(&name).is_some_and(|known| known.is_deletion_asked);
        let device = match opened {
            // The checkpoint that listed it was the last one with it.
            Err(e) if e.kind() == ErrorKind::NotFound && is_going() => continue,
            other => other.map_err(|e| format!("snapshot {name}: {}", e.chain()))?,
        };
        let len = usize::try_from(device.limits().capacity.bytes()).expect("it is small");
        let buf = Buf::alloc(len);
        let read = reactor::read(&*device, Class::Normal, Sector(0), buf.all().into()).await;
        if read == Err(Status::Stale) && is_going() {
            continue;
        }
        read.map_err(|status| format!("snapshot {name}: {status}"))?;
        let found = buf.read(<[u8]>::to_vec);
        let mut snapshots = snapshots.borrow_mut();
        let known = snapshots.get_mut(&name).ok_or(format!("snapshot {name} of nobody"))?;
        if known.contents.replace(found.clone()).is_some_and(|contents| contents != found) {
            return Err(format!("snapshot {name} has changed"));
        }
    }
    Ok(())
}

/// The volume over all lives of a seed.
struct VolumeEngine {
    world: WorldRef,
    bucket: BucketRef,
    setup: Setup,
    oracle: Rc<RefCell<Oracle>>,
    mix: Mix,
    /// With it snapshots are made and deleted, too.
    snapshots: Option<Snapshots>,
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
        let (of, to_open) = (store.clone(), options.clone());
        let opening = async move { Volume::open(Rc::new(of), to_open).await };
        let opened = run_bounded(machine, &self.world, opening)?;
        let volume = opened.map_err(|e| format!("open failed: {}", e.chain()))?;
        let device: Rc<dyn BlockDevice> = volume.clone();
        let load = Workload::new(&self.world, &self.oracle, self.mix);
        machine.block_on(load.read_all(device.clone()))??;
        let operator = Rc::new(OperatorState::default());
        if let Some(snapshots) = &self.snapshots {
            let judged = judge_snapshots(store, options, volume.clone(), snapshots.clone());
            run_bounded(machine, &self.world, judged)??;
            let (volume, snapshots) = (volume.clone(), snapshots.clone());
            let operator = operator.clone();
            machine.spawn(0, change_snapshots(self.world.clone(), volume, snapshots, operator));
        }
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
    simulate_with(seed, fault, None)
}

/// The same, with snapshots.
pub(crate) fn simulate_snapshots(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    simulate_with(seed, fault, Some(Snapshots::default()))
}

fn simulate_with(
    seed: u64,
    fault: Option<Fault>,
    snapshots: Option<Snapshots>,
) -> Result<(), String> {
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
    test.run(&mut VolumeEngine { world, bucket, setup, oracle, mix, snapshots })
}

#[test]
fn what_was_flushed_survives_cuts_lies_and_outages() {
    seeds::run(200, |seed| simulate(seed, None));
}

#[test]
fn snapshots_survive_cuts_lies_and_outages() {
    seeds::run(100, |seed| simulate_snapshots(seed, None));
}

#[test]
fn what_a_snapshot_needs_is_missed_after_a_cut() {
    for fault in [Fault::CollectUnderSnapshots, Fault::AckSnapshotBeforeChain] {
        let simulate = |seed| simulate_snapshots(seed, Some(fault));
        assert!(seeds::first_failure(0..1000, simulate).is_some(), "{fault:?} is not found");
    }
}
