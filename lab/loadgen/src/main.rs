// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program `loadgen`: an in-process load generator, as bdevperf: builds a stack of devices on a
//! core of its own and drives it, with no door between.
//!
//! ```text
//!   args ──▶ stack (dm, leaves on core 0) ──▶ Rc<dyn BlockDevice>, on the core of each job
//!                                                   ▲ submit   │ OnDone: number of the slot
//!            show (progress) ◀── Counter ── job ────┘          ▼
//!            report (text, JSON) ◀── Outcome ── job ◀── slots that are ready, refilled in a batch
//!                                        └─ pattern (--verify), payload (what writes hold)
//! ```
//!
//! Invariants
//! - LG-G1 A request of the generator costs no allocation and no task: a slot, its buffer and the
//!   word in the list of ready slots are there from the beginning.
//! - LG-G2 The generator uses devices as every other client does, by `submit` and a completion;
//!   nothing in it is made for one kind of device.
//! - LG-G3 The clock is read once in [`job::TICK`] requests, when a job has to wait, and for those
//!   whose latency is taken.

mod args;
mod clock_driver;
mod cores;
mod cpu;
mod job;
mod pattern;
mod payload;
mod progress;
mod report;
mod side;
mod stack;
mod stack_copy;

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use control::{EXIT_DONE, Failure};
use host::{
    Format, abort_on_panic, flush_log, ignore_file_size_signal, io_failure, print_error, start_log,
};
use tracing::Level;

use crate::args::{Latency, LoadgenArgs};
use crate::cpu::Cpu;
use crate::job::{Counter, Sampling};
use crate::report::{DeviceReport, Report};
use crate::stack::Stack;

/// Of requests that take some ten nanoseconds every one whose latency is taken costs as much again:
/// with every 64th the clock is about a hundredth of the time.
const SAMPLE_EVERY: u64 = 64;

fn main() -> ExitCode {
    ignore_file_size_signal();
    let args = LoadgenArgs::parse();
    start_log(Level::WARN);
    abort_on_panic();
    let code = match run(&args) {
        Ok(()) => EXIT_DONE,
        Err(failure) => {
            print_error(&format!("loadgen: {failure}"));
            failure.exit_code()
        }
    };
    flush_log();
    code.into()
}

/// Makes the devices, drives them, and prints the report.
fn run(args: &LoadgenArgs) -> Result<(), Failure> {
    args.check()?;
    // Dropped last.
    let (_beside, reactor, bed) = stack::core(args)?;
    let (format, args) = (args.listing.format, args.clone());
    let report = reactor.block_on(async move {
        let stack = Stack::build(&args, bed).await?;
        let done = drive(&stack, &args).await;
        let closed = stack.close().await;
        let report = done?;
        closed.map(|()| report)
    })?;
    let text = match format {
        Format::Text => report.text(),
        Format::Json => report.json(),
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| io_failure(&e, "output"))
}

async fn drive(stack: &Stack, args: &LoadgenArgs) -> Result<Report, Failure> {
    let sampling = sampling(args.latency, stack.in_memory());
    let mut driven = Vec::new();
    for device in stack.driven_devices() {
        let work = args.work(&*device.device, sampling)?;
        if args.prefill {
            job::prefill(&*device.device, &work).await?;
        }
        let done = DeviceReport::new(device.device.name());
        driven.push((device, work, done));
    }
    let counters: Vec<Arc<Counter>> = (0..args.jobs).map(|_| Arc::default()).collect();
    let shown = progress::start(args, counters.clone());
    for turn in 0..args.turns as usize {
        for nth in 0..driven.len() {
            // Another begins every time: what comes after whom must not decide.
            let at = (turn + nth) % driven.len();
            let (device, work, done) = &mut driven[at];
            let before = Cpu::now();
            let outcomes = cores::run(device, work, counters.clone()).await?;
            done.turn(&outcomes, Cpu::now().since(before));
        }
    }
    drop(shown);
    Ok(Report::new(args, sampling, driven.into_iter().map(|(_, _, done)| done).collect()))
}

fn sampling(wanted: Option<Latency>, in_memory: bool) -> Sampling {
    match wanted {
        Some(Latency::On) => Sampling::All,
        Some(Latency::Off) => Sampling::Nothing,
        Some(Latency::Sampled) => Sampling::Every(SAMPLE_EVERY),
        None if in_memory => Sampling::Every(SAMPLE_EVERY),
        None => Sampling::All,
    }
}
