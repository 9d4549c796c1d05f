// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All errors of a short run: each request of either disk fails once, alone. Whatever the cache
//! does then, what a power cut leaves from that moment on is recovered, and what the cache shows
//! and brings to its origin in the end is right.
//!
//! ```text
//!   start ─ open ─ op ─ ... ─ op ─ read all ─ flush        one run for a request that fails
//!             │ fails │
//!             └───────┴─┴┴─┴───┴─ each change: all that may be left ──▶ open ──▶ oracle
//! ```
//!
//! The requests that fail are those of the last operation and of what follows it; of a sequence
//! without operations, those of the open. A write that fails leaves each sector old or new, and a
//! flush that fails takes what it should have covered.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, ErrorKind, Sector, Target};
use reactor::FileId;
use sim::{Faults, Oracle, RunEnd};

use crate::explore::{CUT_GUARDS_MAX, Explorer, Pace, Samples, View, judge_view, restored};
use crate::start::{Life, Start, Sym, index, perform, sequence, sequences};
use crate::survive::State;

/// What has been gone through.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    runs: u64,
    /// Runs in which the cache did not open, and in which an operation failed.
    refused: u64,
    failed: u64,
    /// Runs in which all was brought to the origin in the end.
    settled: u64,
    /// States that were recovered.
    judged: u64,
}

/// Requests of each disk: cache, origin.
type Requests = [u64; 2];

/// A moment of a run: what clients know, and what a power cut may leave.
type Point = (Oracle, Vec<State>);

/// What a run has shown.
struct Ended {
    points: Vec<Point>,
    /// Requests when the last operation began, and at the end.
    requests: [Requests; 2],
    is_refused: bool,
    has_failed: bool,
    /// What clients know in the end, if all of it was brought to the origin, and what that holds.
    settled: Option<(Oracle, State)>,
}

/// What the task of a run notes.
#[derive(Default)]
struct Notes {
    acks: Cell<u64>,
    done: Cell<bool>,
    from: Cell<Option<Requests>>,
    is_refused: Cell<bool>,
    has_failed: Cell<bool>,
    is_settled: Cell<bool>,
    wrong: RefCell<Option<String>>,
}

impl Notes {
    fn note(&self, why: String) {
        self.wrong.borrow_mut().get_or_insert(why);
    }
}

/// Goes through all errors of all sequences of up to `depth` operations.
pub(crate) fn explore(name: &str, start: &Start, depth: u32) {
    let found = first_failure(start, 0..=depth);
    let tally = found.unwrap_or_else(|why| panic!("{name}: {why}"));
    eprintln!("{name}, errors, up to {depth} operations: {tally:?}");
    assert!(tally.refused > 10 && tally.judged > tally.runs, "{tally:?}");
    assert!(depth == 0 || tally.failed > 5 && tally.settled > 10, "{tally:?}");
}

/// What was gone through, or why the first run is wrong that is.
pub(crate) fn find(start: &Start, depth: u32) -> Option<String> {
    first_failure(start, depth..=depth).err()
}

fn first_failure(start: &Start, depths: std::ops::RangeInclusive<u32>) -> Result<Counts, String> {
    let mut explorer = Explorer::new(start, Pace::OneByOne, Samples::default());
    let mut tally = Counts::default();
    for len in depths {
        for nth in 0..sequences(start.alphabet, len) {
            let ops = sequence(start.alphabet, nth, len);
            let good = run(start, &ops, None).map_err(|why| format!("{ops:?}: {why}"))?;
            let [from, to] = good.requests;
            for disk in [0, 1] {
                for request in from[disk]..to[disk] {
                    let fails = Some((disk, request));
                    let judged = run(start, &ops, fails)
                        .and_then(|ended| judge(start, &mut explorer, ended, &mut tally));
                    let name = ["the cache device", "the origin"][disk];
                    judged.map_err(|why| format!("{ops:?}, request {request} of {name}: {why}"))?;
                }
            }
        }
    }
    Ok(tally)
}

/// One run, in which request `fails` of a disk fails.
fn run(start: &Start, ops: &[Sym], fails: Option<(usize, u64)>) -> Result<Ended, String> {
    let Life { world, machine, devices, target } = start.boot(&start.state, 1);
    let disks: [FileId; 2] = [devices.cache, devices.origin];
    let mut judge = start.oracle.clone();
    judge.expect_flush_errors();
    let oracle = Rc::new(RefCell::new(judge));
    if let Some((disk, request)) = fails {
        let faults = Faults { fail_op: Some(request), ..Faults::default() };
        world.borrow_mut().set_faults(disks[disk], faults);
    }
    // What goes straight to the origin leaves a part of itself before its client has the error.
    let told = oracle.clone();
    let failed = move |offset, data: &[u8]| told.borrow_mut().failed_below(offset, data);
    world.borrow_mut().on_failed_write(devices.origin, failed);
    let requests = {
        let world = world.clone();
        move || disks.map(|disk| world.borrow().disk_ops(disk))
    };
    let notes = Rc::new(Notes::default());
    if ops.is_empty() {
        notes.from.set(Some([0, 0]));
    }
    machine.spawn(0, {
        let (target, oracle, notes, ops) =
            (target.clone(), oracle.clone(), notes.clone(), ops.to_vec());
        let (requests, may_fail) = (requests.clone(), fails.is_some());
        let blocks = start.blocks;
        let bytes = index(blocks) * start.oracle.block_bytes();
        async move {
            let device: Rc<dyn BlockDevice> = target.clone();
            if let Err(e) = target.clone().resume().await {
                if e.kind() != ErrorKind::Io || !may_fail {
                    notes.note(format!("open: {}", e.chain()));
                }
                notes.is_refused.set(true);
                return notes.done.set(true);
            }
            for (nth, op) in ops.iter().enumerate() {
                if nth + 1 == ops.len() {
                    notes.from.set(Some(requests()));
                }
                if let Err(e) = perform(*op, &target, &device, &oracle).await {
                    notes.has_failed.set(true);
                    if !may_fail {
                        notes.note(e);
                    }
                }
                notes.acks.set(notes.acks.get() + 1);
            }
            let buf = Buf::zeroed(bytes);
            let token = oracle.borrow_mut().begin_read(0..blocks);
            let read =
                reactor::read(&*device, Class::Foreground, Sector(0), buf.all().into()).await;
            if read.is_ok() {
                let checked = buf.read(|data| oracle.borrow_mut().check_read(&token, data));
                checked.unwrap_or_else(|why| notes.note(format!("what it shows then: {why}")));
            }
            let flushed = perform(Sym::Message, &target, &device, &oracle).await;
            notes.is_settled.set(read.is_ok() && flushed.is_ok());
            notes.done.set(true);
        }
    });
    let mut points: Vec<Point> = Vec::new();
    let mut seen = None;
    let has_fired = || fails.is_some_and(|(disk, request)| requests()[disk] > request);
    let ended = machine.run(|| {
        let now = Some((devices.version(&world), notes.acks.get(), notes.done.get()));
        if has_fired() && seen != now {
            seen = now;
            let left = devices.survivors(&world, 0);
            points.push((oracle.borrow().clone(), left));
        }
        notes.wrong.borrow().is_some() || notes.done.get()
    });
    if ended == RunEnd::Idle && !notes.done.get() {
        notes.note("deadlock: an operation never ends".to_owned());
    }
    let to = requests();
    let durable = devices.durable(&world);
    drop(target);
    machine.power_cut();
    if let Some(why) = notes.wrong.take() {
        return Err(why);
    }
    Ok(Ended {
        points,
        requests: [notes.from.get().unwrap_or(to), to],
        is_refused: notes.is_refused.get(),
        has_failed: notes.has_failed.get(),
        settled: notes.is_settled.get().then(|| (oracle.borrow().clone(), durable)),
    })
}

fn judge(
    start: &Start,
    explorer: &mut Explorer<'_>,
    ended: Ended,
    tally: &mut Counts,
) -> Result<(), String> {
    tally.runs += 1;
    tally.refused += u64::from(ended.is_refused);
    tally.failed += u64::from(ended.has_failed);
    for (mut oracle, left) in ended.points {
        oracle.crash();
        let mut judged: Vec<Rc<View>> = Vec::new();
        for state in &left {
            tally.judged += 1;
            let view = explorer.recover(state, CUT_GUARDS_MAX)?;
            if !judged.iter().any(|known| Rc::ptr_eq(known, &view)) {
                judge_view(&mut oracle.clone(), &view)?;
                judged.push(view);
            }
        }
    }
    let Some((mut oracle, state)) = ended.settled else { return Ok(()) };
    tally.settled += 1;
    let (origin, bytes) = (restored(&state.origin, start)?, oracle.block_bytes() as u64);
    oracle.crash();
    let alone = oracle.verify_after_crash(|block, out| origin.read(block * bytes, out));
    alone.map_err(|why| format!("the origin alone, once all is written back: {why}"))
}
