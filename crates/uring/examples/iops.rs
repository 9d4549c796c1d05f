// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Raw speed of leaf, reactor and driver: random 4 KiB requests on a file at a fixed depth.
//!
//! `cargo run --release -p uring --example iops -- FILE read|write DEPTH SECONDS`; beside it, for
//! comparison, `fio --ioengine=io_uring --direct=1 --rw=randread --bs=4k --iodepth=DEPTH`.
use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, CoreId, Error, Flags, Nanos, Sector};
use queue::FileLeaf;
use reactor::{Reactor, now, spawn};
use uring::{OpenOptions, Uring};

const BLOCK_SECTORS: u64 = 8;

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn run(path: &str, writes: bool, depth: u64, seconds: u64) -> Result<(), Error> {
    let driver = Uring::new()?;
    let options = OpenOptions { read_only: !writes, ..OpenOptions::default() };
    let opened = driver.files().open_path(Path::new(path), options)?;
    if let Some(warning) = &opened.warning {
        eprintln!("{warning}");
    }
    let dev = Rc::new(FileLeaf::new(path, opened.file, opened.limits));
    let blocks = dev.limits().capacity.0 / BLOCK_SECTORS;
    if blocks == 0 {
        return Err(Error::invalid(format!("{path}: is smaller than a request of 4 KiB")));
    }
    let (done, failed, running) =
        (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(0)), Rc::new(Cell::new(depth)));
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    let (begin, cpu) = (reactor.on(now), cpu_seconds());
    let end = begin + Nanos::from_secs(seconds);
    for worker in 0..depth {
        let (dev, done, failed, running) =
            (dev.clone(), done.clone(), failed.clone(), running.clone());
        let task = async move {
            let bufs = Bufs::from(Buf::zeroed(4096));
            let mut chance = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            while now() < end {
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                let at = Sector(chance % blocks * BLOCK_SECTORS);
                let result = if writes {
                    reactor::write(&*dev, Flags::empty(), Class::Normal, at, bufs.clone()).await
                } else {
                    reactor::read(&*dev, Class::Normal, at, bufs.clone()).await
                };
                match result {
                    Ok(()) => done.set(done.get() + 1),
                    Err(_) => failed.set(failed.get() + 1),
                }
            }
            running.set(running.get() - 1);
        };
        reactor.on(|| spawn(task));
    }
    reactor.run(|| running.get() == 0);
    let (ios, wall) = (done.get() as f64, (reactor.on(now) - begin).as_secs_f64());
    let cpu_us = (cpu_seconds() - cpu) * 1e6 / ios;
    println!("iops={:.0} cpu_us_per_io={cpu_us:.2} errors={}", ios / wall, failed.get());
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, what, depth, seconds] = args.as_slice() else {
        eprintln!("usage: iops FILE read|write DEPTH SECONDS");
        return ExitCode::from(2);
    };
    let (Ok(depth), Ok(seconds)) = (depth.parse(), seconds.parse()) else {
        eprintln!("DEPTH and SECONDS are whole numbers");
        return ExitCode::from(2);
    };
    if what != "read" && what != "write" {
        eprintln!("`{what}`: read or write is needed");
        return ExitCode::from(2);
    }
    match run(path, what == "write", depth, seconds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}", e.chain());
            ExitCode::FAILURE
        }
    }
}
