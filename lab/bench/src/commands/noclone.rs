// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-noclone`: what pure mappings cost a request, remapped in place and cloned, beside
//! the raw device; in process, counted by valgrind, and through FUSE.
use std::process::ExitCode;

use bench::output::{Dir, ProgramOption, finish, positive, progress};
use bench::{counted, through_fuse};
use reproduce::report::Section;
use reproduce::scenario::noclone::{Options, groups, run};
use serde_json::json;

const MEMORY_BYTES: u64 = 1 << 30;

/// Shows what pure mappings cost a request
///
/// In process all shapes are driven in short turns over the same memory, and compared turn by turn.
/// What needs a program that is not there, valgrind or fio, is named and left out.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-noclone
  make bench-noclone ARGS='--turns 51'
  make bench-noclone ARGS='--rounds 11 --seconds 3'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    ours: ProgramOption,
    /// Turns of each shape in process
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Milliseconds of each turn
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    turn_ms: u32,
    /// Runs of fio on each file
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each of those
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
}

fn bench(args: &Args) -> Result<Section, String> {
    let program = args.ours.program()?;
    let (turns, turn_ms) = (args.turns, args.turn_ms);
    let options = Options { groups: groups(MEMORY_BYTES), turns, turn_ms };
    let mut section = run(&options, &mut progress)?;
    let mut errors = Vec::new();
    match counted::section() {
        Ok(counted) => section.append(counted),
        Err(e) => errors.push(e),
    }
    let (rounds, dir) = (args.rounds.into(), &args.dir.dir);
    section.append(through_fuse::section(&program, dir, (rounds, args.seconds), &mut errors));
    section.notes.extend(errors.iter().map(|e| format!("not measured: {e}")));
    section.keys.insert("errors".into(), json!(errors));
    Ok(section)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("noclone", bench(args))
}
