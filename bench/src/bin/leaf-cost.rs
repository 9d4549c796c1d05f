// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-leaf-cost`: instructions and allocations of a request to a leaf, its throttle on and
//! off, counted by valgrind: two runs of different length, so that what is done once cancels out.
//!
//! The driver below ends everything at once and its clock costs nothing: what is counted is ours,
//! from the submission to the end.
use std::cell::Cell;
use std::io::{Write, stderr, stdout};
use std::process::{Command, ExitCode};

use block::{Buf, Class, CoreId, Flags, Limits, Nanos, Sector};
use queue::Leaf;
use reactor::{Driver, Event, FileId, Msg, Reactor, Sqe, read, write};
use reproduce::mapped::output;

const USAGE: &str = "usage: leaf-cost [--one read|write|mixed on|off N]";
/// Requests of the shorter and the longer run.
const REQUESTS: [u64; 2] = [10_000, 60_000];
const DEVICE: Sector = Sector(1 << 30);
/// From one look at the clock to the next: windows are closed as on a disk.
const TICK_NS: u64 = 20_000;

/// Ends everything at the next park.
#[derive(Default)]
struct AtOnce {
    now_ns: Cell<u64>,
    done: Vec<Event>,
}

impl Driver for AtOnce {
    fn now(&self) -> Nanos {
        self.now_ns.set(self.now_ns.get() + TICK_NS);
        Nanos(self.now_ns.get())
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let end = |sqe: Sqe| Event::Cqe {
            home: sqe.home,
            key: sqe.key,
            result: block::Status::Ok.into(),
        };
        self.done.extend(batch.drain(..).map(end));
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        unreachable!("one core only");
    }
    fn park(&mut self, _deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.done);
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// Sends `count` requests of 4 KiB, one after the other; `mixed` are a read and a write by turns.
fn run(op: &str, throttled: bool, count: u64) -> Result<(), String> {
    let [reads, writes] = [op != "write", op != "read"];
    let leaf = Leaf::new("leaf", FileId(0), Limits::new(DEVICE));
    let target = if throttled { "-1" } else { "0" };
    leaf.wbt().set("queue/wbt_lat_usec", target).map_err(|e| e.chain())?;
    let reactor = Reactor::enter(CoreId(0), Box::new(AtOnce::default()));
    reactor.block_on(async move {
        let bufs: block::Bufs = Buf::zeroed(4096).into();
        for nth in 0..count {
            let at = Sector(nth * 8 % DEVICE.0);
            let done = if reads && (nth % 2 == 0 || !writes) {
                read(&leaf, Class::Foreground, at, bufs.clone()).await
            } else {
                write(&leaf, Flags::BACKGROUND, Class::Background, at, bufs.clone()).await
            };
            done.map_err(|status| status.to_string())?;
        }
        Ok(())
    })
}

/// What valgrind says of a run, behind `before`.
fn total(tool: &[&str], before: &str, words: [&str; 2], count: u64) -> Result<f64, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new("valgrind");
    command.args(tool).arg(me).arg("--one").args(words).arg(count.to_string());
    let (_, err) = output(&mut command)?;
    let found = err.split_once(before).and_then(|(_, rest)| rest.split_whitespace().next());
    let number = found.map(|n| n.replace(',', "")).and_then(|n| n.parse().ok());
    number.ok_or_else(|| format!("valgrind: no `{before}` in what it said"))
}

fn per_request(tool: &[&str], before: &str, words: [&str; 2]) -> Result<f64, String> {
    let [short, long] = REQUESTS;
    let (less, more) = (total(tool, before, words, short)?, total(tool, before, words, long)?);
    Ok((more - less) / (long - short) as f64)
}

fn bench() -> Result<(), String> {
    let mut out = stdout().lock();
    let mut line = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    line(format!("{:6} {:4} {:>13} {:>12}", "", "wbt", "instructions", "allocations"))?;
    for op in ["read", "write", "mixed"] {
        for wbt in ["off", "on"] {
            let count = &["--tool=callgrind", "--callgrind-out-file=/dev/null"];
            let instructions = per_request(count, "Collected :", [op, wbt])?;
            let allocations = per_request(&["--leak-check=no"], "heap usage:", [op, wbt])?;
            line(format!("{op:6} {wbt:4} {instructions:13.1} {allocations:12.4}"))?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match &words[..] {
        [] => bench(),
        ["--one", op @ ("read" | "write" | "mixed"), wbt @ ("on" | "off"), count] => {
            match count.parse() {
                Ok(count) => run(op, *wbt == "on", count),
                Err(_) => Err(USAGE.into()),
            }
        }
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "bench-leaf-cost: {e}");
            ExitCode::FAILURE
        }
    }
}
