// SPDX-License-Identifier: Apache-2.0 OR MIT
//! millpond: the daemon and its command line, one program.
//!
//! ```text
//!   cli ──▶ verbs ──▶ client ═══ control.sock ═══▶ http ──▶ routes ──▶ core ──▶ engine
//!    │        └ progress                           (thread of tokio)     │ (thread of core 0)
//!    ├──▶ daemon ── config, rundir, addr                                 ├ dm ── leaf
//!    ├──▶ embed (run)                                                    ├ nbd ── exports
//!    │                               /dev/fuse ═══▶ fuse, sysfs ─────────┘ (threads of fuser)
//!    ├──▶ bench ── a core of its own: no daemon, no door
//!    ├──▶ reproduce ── scenarios of the room `reproduce`, on a thread of their own
//!    └──▶ inspect, recover, wipe ── offline: the same, on images of caches
//! ```
//!
//! Invariants
//! - P1 tokio and HTTP are here and nowhere else; devices never run on their thread.
//! - P2 Every way out of here has one of the exit codes of `control`, or the command's of `run`.

mod addr;
mod bench;
mod claims;
mod cli;
mod client;
mod config;
mod core;
mod cores;
mod daemon;
mod dmsetup;
mod drain;
mod embed;
mod engine;
mod exported;
mod exports;
mod fuse;
#[cfg(test)]
mod help_tests;
mod http;
mod inspect;
mod leaf;
mod log;
mod memory;
mod metrics;
mod mount_paths;
mod nbd_leaf;
mod offline;
mod output;
mod patience;
mod progress;
mod recover;
mod reproduce;
mod routes;
mod rundir;
mod shards;
mod sysfs;
mod table_args;
mod targets;
mod units;
mod verbs;
mod wipe;
mod word;
mod zram;

use std::process::ExitCode;

use clap::Parser;
use control::{EXIT_DONE, Failure};
use tracing::Level;

use crate::cli::{Cli, DaemonArgs, Verb};
use crate::client::{Client, runtime};
use crate::config::Config;
use crate::rundir::RunDir;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if dmsetup::is_meant(args.next().as_ref()) {
        return dmsetup::main(args).into();
    }
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code.into(),
        Err(failure) => {
            eprintln!("millpond: {failure}");
            failure.exit_code().into()
        }
    }
}

fn run(cli: Cli) -> Result<u8, Failure> {
    if let Verb::Bench(args) = &cli.verb {
        log::start(Level::WARN);
        daemon::abort_on_panic();
        bench::run(args)?;
        return Ok(EXIT_DONE);
    }
    let run_dir = cli.run_dir.as_deref();
    let verb = match cli.verb {
        Verb::Inspect(args) => {
            let done = offline::run(|| inspect::run(&args));
            let done = done.map_err(|f| offline::name_user(f, &[&args.image], run_dir));
            return done.map_err(|f| f.within("inspect"));
        }
        Verb::Recover(args) => {
            log::start(Level::WARN);
            daemon::abort_on_panic();
            let images = [args.cache.clone(), args.origin.clone()];
            let done = offline::run(|| recover::run(args));
            let done = done.map_err(|f| offline::name_user(f, &[&images[0], &images[1]], run_dir));
            return done.map_err(|f| f.within("recover"));
        }
        Verb::Wipe(args) => {
            let done = offline::run(|| wipe::run(&args)).map(|()| EXIT_DONE);
            let done = done.map_err(|f| offline::name_user(f, &[&args.image], run_dir));
            return done.map_err(|f| f.within("wipe"));
        }
        verb @ (Verb::Daemon(_)
        | Verb::Run(_)
        | Verb::Bench(_)
        | Verb::Reproduce(_)
        | Verb::Steer(_)) => verb,
    };
    let runtime = runtime()?;
    match verb {
        Verb::Daemon(DaemonArgs { config, serve }) => {
            log::start(Level::INFO);
            daemon::abort_on_panic();
            let run_dir = RunDir::choose(run_dir)?;
            let config =
                config.map_or_else(|| Ok(Config::default()), |file| Config::read(&file))?;
            return runtime
                .block_on(daemon::run(&run_dir, config.with_options(serve)))
                .map_err(|f| f.within("daemon"));
        }
        Verb::Run(args) => {
            log::start(Level::WARN);
            daemon::abort_on_panic();
            return runtime.block_on(embed::run(&args, run_dir)).map_err(|f| f.within("run"));
        }
        Verb::Reproduce(args) => {
            log::start(Level::WARN);
            daemon::abort_on_panic();
            return runtime.block_on(reproduce::run(args)).map_err(|f| f.within("reproduce"));
        }
        Verb::Bench(_) | Verb::Inspect(_) | Verb::Recover(_) | Verb::Wipe(_) => {
            unreachable!("run above")
        }
        Verb::Steer(verb) => {
            let client = Client::new(&RunDir::choose(run_dir)?);
            runtime.block_on(verbs::run(&client, verb))?;
        }
    }
    Ok(EXIT_DONE)
}
