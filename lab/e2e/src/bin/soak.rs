// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Upgrades and kills of a daemon under clients that verify: figures for people, and as the last
//! line JSON.
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use e2e::binary::{Build, millpond};
use e2e::process::missing;
use e2e::soak::{Outcome, Plan, run};
use e2e::undo::{Undo, leave_on_signals, wait_if_interrupted};
use e2e::{Result, clock};
use serde_json::json;

/// Upgrades and kills of a daemon at random moments, under fio with verification
#[derive(Debug, Parser)]
#[command(
    name = "soak",
    max_term_width = 100,
    after_help = "\
Needs fio with its NBD engine, and qemu-storage-daemon. A client that sees an error, and a byte that
is wrong, end it with exit code 1.

Examples:
  make soak ARGS='--upgrades 1000 --kills 1000'
  make soak ARGS='--upgrades 200 --cache-mib 4300 --dirty-mib 1024'"
)]
struct Args {
    /// Upgrades, beside flushes, drains and resizes
    #[arg(long, value_name = "N", default_value_t = 100)]
    upgrades: u32,
    /// `kill -9`, also of both processes of an upgrade
    #[arg(long, value_name = "N", default_value_t = 100)]
    kills: u32,
    /// Size of the cache of `wc`, MiB: 256 blocks each
    #[arg(long, value_name = "MIB", default_value_t = 24,
          value_parser = clap::value_parser!(u64).range(4..=65536))]
    cache_mib: u64,
    /// Size of the cache of the second device, which is `ordered`, MiB
    #[arg(long, value_name = "MIB", default_value_t = 24,
          value_parser = clap::value_parser!(u64).range(4..=65536))]
    ordered_mib: u64,
    /// Keep so much dirty in the cache of `wc`, MiB
    #[arg(long, value_name = "MIB", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=65536))]
    dirty_mib: u64,
    /// What each client writes and reads in a round, MiB
    #[arg(long, value_name = "MIB", default_value_t = 48,
          value_parser = clap::value_parser!(u64).range(1..=65536))]
    area_mib: u64,
    /// Draws the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Make the files in a folder of their own in here [default: $TMPDIR, else /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave the folder when it fails
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let outcome = soak(&Args::parse());
    wait_if_interrupted();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("soak: FAILED: {e}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &Args) -> Result<()> {
    let absent = missing(&["fio", "qemu-storage-daemon"]);
    if !absent.is_empty() {
        return Err(format!("needs {} (scripts/setup.sh installs it)", absent.join(", ")));
    }
    leave_on_signals("soak")?;
    let program = millpond(Build::Alone)?;
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("millpond-soak-").tempdir_in(&base);
    let dir = dir.map_err(|e| format!("{}: {e}", base.display()))?.keep();
    let clean_up = Undo::folder(dir.clone());
    let plan = Plan {
        upgrades: args.upgrades,
        kills: args.kills,
        seed: args.seed,
        cache_bytes: args.cache_mib << 20,
        ordered_bytes: args.ordered_mib << 20,
        area_bytes: args.area_mib << 20,
        dirty_bytes: args.dirty_mib << 20,
    };
    let begun = clock();
    let done = run(&program, &dir, plan, &|line| eprintln!("soak: {line}"));
    if done.is_err() && args.keep {
        eprintln!("soak: its files are in {}", dir.display());
        #[expect(clippy::mem_forget, reason = "the folder stays")]
        std::mem::forget(clean_up);
    }
    print(&done?, clock() - begun);
    Ok(())
}

/// Values that so many percent do not exceed.
fn parts(values: &[f64]) -> [f64; 3] {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let nth = (values.len() * percent).div_ceil(100).max(1) - 1;
        values.get(nth).copied().unwrap_or(f64::NAN)
    };
    [at(50), at(99), at(100)]
}

fn print(done: &Outcome, seconds: f64) {
    let row = |what: &str, values: &[f64]| {
        if values.is_empty() {
            return;
        }
        let [p50, p99, most] = parts(values);
        println!("  {what:<44} {:>6} {p50:>9.1} {p99:>9.1} {most:>9.1}", values.len());
    };
    println!("  {:<44} {:>6} {:>9} {:>9} {:>9}", "", "count", "p50 ms", "p99 ms", "max ms");
    row("upgrade, pause of the daemon", &done.pauses_ms);
    row("upgrade, longest read of a client", &done.longest_reads_ms);
    row("kill, start of the next daemon", &done.starts_ms);
    let [flushes, drains, resizes] = done.verbs;
    println!("  beside upgrades: {flushes} flushes, {drains} drains, {resizes} resizes");
    let [old, new] = done.kills_in_upgrade;
    println!(
        "  kills: {} of a daemon that served, {old} of one that handed over, {new} of a successor; \
         {} times one of both went on",
        done.kills, done.went_on
    );
    println!(
        "  {} rounds of fio, {} writes, {} reads, no error; origins are what the devices were; \
         {seconds:.0} s in all",
        done.rounds, done.writes, done.reads
    );
    let three = |values: &[f64]| {
        let [p50, p99, most] = parts(values);
        json!({ "count": values.len(), "p50_ms": p50, "p99_ms": p99, "max_ms": most })
    };
    println!(
        "{}",
        json!({
            "upgrade_pause": three(&done.pauses_ms),
            "upgrade_longest_read": three(&done.longest_reads_ms),
            "start_after_kill": three(&done.starts_ms),
            "verbs_beside_upgrades": done.verbs,
            "kills": done.kills,
            "kills_in_upgrade": done.kills_in_upgrade,
            "went_on": done.went_on,
            "rounds": done.rounds,
            "writes": done.writes,
            "reads": done.reads,
        })
    );
}
