// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The main job on real input, as a story with figures: a write cache absorbs random writes from
//! real clients, survives `kill -9`, writes everything back in order, and proves by checksums that
//! nothing was lost.
//!
//! ```text
//!   main         options, folder, interruption, exit status
//!   scene        the files and the areas in them
//!   story        the phases, one function each
//!   own_client   what writes and reads where fio is not there
//!   report       progress lines and the table
//! ```
//!
//! Invariants
//! - Whatever happens (error, panic, Ctrl-C), no process and no file is left behind.

mod own_client;
mod report;
mod scene;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use e2e::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::scene::Sizes;
use crate::story::Clients;

/// A write cache at work, end to end: fill, kill -9, recover, verify, flush in order, compare
#[derive(Debug, Parser)]
#[command(
    name = "demo",
    max_term_width = 100,
    after_help = "\
Needs disk space of twice the origin's size, and touches nothing but a folder of its own, which it
removes. Times and rates are those of this machine's disk. fio and nbdcopy write and read where they
are there; else this program does.

Examples:
  make demo
  make demo ARGS='--size 256M'
  make demo ARGS='--size 8G --dir /mnt/disk'"
)]
struct Args {
    /// Size of the origin; the cache has half of it
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size)]
    size: Sizes,
    /// Make the files in a folder of their own in here [default: $TMPDIR, else /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write and read without fio and nbdcopy even if they are there
    #[arg(long)]
    own_client: bool,
}

fn size(text: &str) -> Result<Sizes> {
    Sizes::of_origin(control::parse_size(text).map_err(|e| e.to_string())?)
}

/// Set by who cleans up after a signal: nobody else needs to say anything.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = run(args);
    if INTERRUPTED.load(Ordering::SeqCst) {
        // The other thread ends the process when everything is away.
        loop {
            std::thread::park();
        }
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("demo: FAILED: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    if !e2e::process::missing(&["sha256sum"]).is_empty() {
        return Err("there is no sha256sum, which is in coreutils and in busybox".into());
    }
    let clients = clients(args.own_client);
    let base = args.dir.unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("millpond-demo-").tempdir_in(&base);
    let dir = dir.map_err(|e| format!("folder in {}: {e}", base.display()))?;
    clean_up_on_signals(dir.path().to_owned())?;
    let program = e2e::binary::millpond(e2e::binary::Build::Alone)?;
    scene::check_space(dir.path(), args.size)?;
    println!("demo: {}; in {}", args.size.expectation(), dir.path().display());
    story::tell(&program, dir.path(), args.size, clients)
}

/// Says why, if it is not those of others.
fn clients(own: bool) -> Clients {
    let missing = e2e::process::missing(&["fio", "nbdcopy"]);
    if own {
        return Clients::Own;
    }
    if !missing.is_empty() {
        println!("demo: without {}: this program writes and reads", missing.join(" and "));
        return Clients::Own;
    }
    // Some are built without it.
    match e2e::process::output("fio", &["--enghelp"]) {
        Ok(engines) if engines.lines().any(|line| line.trim() == "nbd") => Clients::Others,
        _ => {
            println!("demo: this fio has no engine for NBD: this program writes and reads");
            Clients::Own
        }
    }
}

/// On Ctrl-C and its like: ends the children, removes the folder, and this process.
fn clean_up_on_signals(dir: PathBuf) -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| format!("signals: {e}"))?;
    let clean_up = move || {
        let Some(signal) = signals.forever().next() else { return };
        INTERRUPTED.store(true, Ordering::SeqCst);
        e2e::process::kill_all();
        let _ = std::fs::remove_dir_all(&dir); // nothing better to do about it
        eprintln!("demo: interrupted, everything is removed");
        std::process::exit(128 + signal);
    };
    #[expect(clippy::disallowed_methods, reason = "signals come at any time")]
    std::thread::spawn(clean_up);
    Ok(())
}
