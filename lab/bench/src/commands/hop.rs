// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-hop`: what a hop to another core costs. 512 B reads of a memory device through
//! `reactor::Remote`, and the same reads on the core that owns it.
use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use bench::output::ended;
use block::{BlockDevice, Buf, Class, CoreId, Sector};
use queue::Mem;
use reactor::{Export, Reactor, Remote, export, read, spawn};
use reproduce::clock;
use reproduce::median::{median, spread_percent};
use serde_json::json;
use uring::{Mailbox, Uring};

const DEPTHS: [usize; 3] = [1, 16, 64];
/// Runs of each kind, in turns.
const RUNS: usize = 7;
/// Seconds of a run: enough for a spread of a few percent on a quiet machine.
const RUN_SECONDS: f64 = 0.2;
const DEVICE: Sector = Sector(2048);

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn enter(core: u16, mailboxes: &[Mailbox]) -> Result<Reactor, Failure> {
    let driver = Uring::with_mailboxes(CoreId(core), mailboxes.to_vec())?;
    Ok(Reactor::enter(CoreId(core), Box::new(driver)))
}

/// Core 1: owns a device until `stop` is set.
fn serve(
    mailboxes: &[Mailbox],
    exports: &mpsc::Sender<Export>,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let reactor = enter(1, mailboxes)?;
    let device = Rc::new(Mem::new("remote", DEVICE)?);
    exports.send(reactor.on(|| export(device)))?;
    reactor.run(|| stop.load(Ordering::Relaxed));
    Ok(())
}

/// Nanoseconds per read at `depth` on core 0.
fn measure(reactor: &Reactor, device: &Rc<dyn BlockDevice>, depth: usize) -> f64 {
    let done = Rc::new(Cell::new(0_u64));
    let (begin, left) = (clock(), Rc::new(Cell::new(depth)));
    reactor.on(|| {
        for task in 0..depth {
            let (device, done, left) = (device.clone(), done.clone(), left.clone());
            spawn(async move {
                let bufs = Buf::zeroed(512).into();
                let mut at = task as u64;
                // The clock is read seldom: it costs as much as a local read.
                while done.get() % 64 != 0 || clock() - begin < RUN_SECONDS {
                    at = (at + 7) % DEVICE.0;
                    let result =
                        read(&*device, Class::Normal, Sector(at), Clone::clone(&bufs)).await;
                    assert_eq!(result, Ok(()));
                    done.set(done.get() + 1);
                }
                left.set(left.get() - 1);
            });
        }
    });
    reactor.run(|| left.get() == 0);
    (clock() - begin) * 1e9 / done.get() as f64
}

/// Measures a request to a device of another core and back, at depths 1 to 64
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn main(_: &Args) -> ExitCode {
    ended("hop", bench().map_err(|e| e.to_string()))
}

fn bench() -> Result<(), Failure> {
    let mailboxes = [Mailbox::new()?, Mailbox::new()?];
    let stop = AtomicBool::new(false);
    let (exports, exported) = mpsc::channel();
    std::thread::scope(|threads| {
        let owner = threads.spawn(|| serve(&mailboxes, &exports, &stop));
        let reactor = enter(0, &mailboxes)?;
        let export = exported.recv()?;
        let local: Rc<dyn BlockDevice> = Rc::new(Mem::new("local", DEVICE)?);
        let remote: Rc<dyn BlockDevice> =
            Rc::new(Remote::new(CoreId(1), export, "remote", local.limits()));
        println!("{:>8} {:>12} {:>12} {:>12}", "iodepth", "local ns", "remote ns", "hop ns");
        let mut rows = Vec::new();
        for depth in DEPTHS {
            let (mut local_ns, mut remote_ns) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                local_ns.push(measure(&reactor, &local, depth));
                remote_ns.push(measure(&reactor, &remote, depth));
            }
            let (l, r) = (median(&local_ns), median(&remote_ns));
            println!("{depth:>8} {l:>12.0} {r:>12.0} {:>12.0}", r - l);
            rows.push(json!({
                "iodepth": depth, "local_ns": l, "remote_ns": r, "hop_ns": r - l,
                "remote_spread_percent": spread_percent(&remote_ns),
            }));
        }
        stop.store(true, Ordering::Relaxed);
        mailboxes[1].sender().call(|| ())?;
        owner.join().map_err(|_| "the owner's core has panicked")??;
        println!("{}", json!({ "bench": "hop", "bs": 512, "rows": rows }));
        Ok(())
    })
}
