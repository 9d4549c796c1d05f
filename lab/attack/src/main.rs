// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make attack`: the adversary, for as long as one likes.

use std::path::PathBuf;
use std::process::ExitCode;

use attack::campaign::{Total, attack, fresh_seed};
use attack::client::Zeroes;
use attack::media::Lie;
use attack::rig::Options;
use attack::rng::Rng;
use attack::scenario::{ALL, named};
use attack::{Result, binary, clock};

const USAGE: &str = "\
attack [--seconds N] [--scenario NAME[,NAME]...|all] [--turn N] [--seed N]
       [--turns N] [--from N] [--program PATH]
       [--lie DISK:KIND] [--flushes N] [--zeroes WHICH]
       [--orders TEXT] [--no-faults] [--origin-alone] [--keep] [--list]

  --seconds N     how long, in all (default 600)
  --scenario S    which devices (default all), in turns
  --turn N        seconds of a turn, each with fresh disks and a seed of its own (default 20)
  --seed N        of the first turn; the schedule of threads is another each time
  --turns N       how many turns; without --seconds however long they take
  --from N        leave out the first N turns of --seed, which an earlier run has done
  --program PATH  the millpond to attack (default: built here; $MILLPOND_BIN)
  --lie D:KIND    disk D lies, as a control: `flush` does nothing, `tear` spoils durable
                  sectors, `read` gives zeroes where a read should fail,
                  `late` does after the end of a connection what that had asked for,
                  `again` answers at once what it holds, `silent` loses data without a sign
  --flushes N     FLUSHes that a connection has in flight at most (default 8)
  --zeroes WHICH  zeroes and discards: none, plain (without FUA), or fua
  --orders TEXT   the operator gives only the orders that hold this text; `none`: no orders
  --no-faults     disks fail and lose in power cuts only
  --origin-alone  judge the origin alone of a cache that promises nothing of it, as a control
  --keep          keep the folder of a turn that found something
  --list          name the scenarios";

/// Seconds, if neither they nor turns are given.
const SECONDS: f64 = 600.0;

struct Arguments {
    seconds: f64,
    turn: f64,
    scenarios: String,
    seed: u64,
    turns: Option<usize>,
    from: usize,
    program: Option<PathBuf>,
    options: Options,
    flushes: Option<usize>,
    zeroes: Option<Zeroes>,
    list: bool,
}

fn lie(text: &str) -> Result<(usize, Lie)> {
    let wrong = || format!("--lie: `{text}`: N:flush, N:tear, N:read, N:late, N:again or N:silent");
    let (disk, kind) = text.split_once(':').ok_or_else(wrong)?;
    let kind = match kind {
        "flush" => Lie::Flush,
        "tear" => Lie::Tear,
        "read" => Lie::Read,
        "late" => Lie::Late,
        "again" => Lie::Again,
        "silent" => Lie::Silent,
        _ => return Err(wrong()),
    };
    Ok((disk.parse().map_err(|_| wrong())?, kind))
}

fn zeroes(text: &str) -> Result<Zeroes> {
    match text {
        "none" => Ok(Zeroes::None),
        "plain" => Ok(Zeroes::Plain),
        "fua" => Ok(Zeroes::Fua),
        _ => Err(format!("--zeroes: `{text}`: none, plain or fua")),
    }
}

fn arguments() -> Result<Arguments> {
    let mut arguments = Arguments {
        seconds: f64::NAN,
        turn: 20.0,
        scenarios: "all".into(),
        seed: fresh_seed(),
        turns: None,
        from: 0,
        program: None,
        options: Options::default(),
        flushes: None,
        zeroes: None,
        list: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}: needs a value\n{USAGE}"));
        let number = |text: String| text.parse::<f64>().map_err(|_| format!("{word}: `{text}`"));
        match word.as_str() {
            "--seconds" => arguments.seconds = number(value()?)?,
            "--turn" => arguments.turn = number(value()?)?,
            "--scenario" => arguments.scenarios = value()?,
            "--seed" => {
                let text = value()?;
                arguments.seed = text.parse().map_err(|_| format!("--seed: `{text}`"))?;
            }
            "--turns" => arguments.turns = Some(number(value()?)? as usize),
            "--from" => arguments.from = number(value()?)? as usize,
            "--program" => arguments.program = Some(value()?.into()),
            "--lie" => arguments.options.lie = Some(lie(&value()?)?),
            "--flushes" => arguments.flushes = Some(number(value()?)? as usize),
            "--zeroes" => arguments.zeroes = Some(zeroes(&value()?)?),
            "--orders" => arguments.options.orders = Some(value()?.leak()),
            "--no-faults" => arguments.options.no_faults = true,
            "--origin-alone" => arguments.options.origin_alone = true,
            "--keep" => arguments.options.keep = true,
            "--list" => arguments.list = true,
            _ => return Err(format!("`{word}`?\n{USAGE}")),
        }
    }
    if arguments.seconds.is_nan() {
        arguments.seconds = if arguments.turns.is_some() { f64::INFINITY } else { SECONDS };
    }
    Ok(arguments)
}

fn run() -> Result<bool> {
    let arguments = arguments()?;
    if arguments.list {
        ALL.iter().for_each(|s| println!("{:16} {}", s.name, s.table));
        return Ok(true);
    }
    let mut scenarios = named(&arguments.scenarios)?;
    if let Some(flushes) = arguments.flushes {
        scenarios.iter_mut().for_each(|s| s.load.flushes = flushes);
    }
    if let Some(zeroes) = arguments.zeroes {
        scenarios.iter_mut().for_each(|s| s.load.zeroes = zeroes);
    }
    let program = arguments.program.map_or_else(binary::millpond, Ok)?;
    println!("attack: {}, seed {}", program.display(), arguments.seed);
    let give_up = clock() + arguments.seconds;
    let mut seeds = Rng::new(arguments.seed);
    let mut seed = arguments.seed;
    let mut totals = vec![Total::default(); scenarios.len()];
    let (mut found, mut turns) = (0, 0);
    let end = arguments.turns.map_or(usize::MAX, |turns| arguments.from + turns);
    for (scenario, index) in scenarios.iter().zip(0..).cycle() {
        let left = give_up - clock();
        if left <= 0.0 || turns >= end {
            break;
        }
        turns += 1;
        if turns <= arguments.from {
            seed = seeds.draw() % 1_000_000_000;
            continue;
        }
        let turn = arguments.turn.min(left);
        let mut total = Total::default();
        let done = attack(scenario, &program, seed, turn, arguments.options, &mut total);
        println!("{}, seed {seed}: {total}", scenario.name);
        if let Err(what) = done {
            found += 1;
            println!("{what}\nagain: attack --scenario {} --seed {seed}", scenario.name);
        }
        totals[index].merge(&total);
        seed = seeds.draw() % 1_000_000_000;
    }
    println!("\nin all");
    let mut all = Total::default();
    for (scenario, total) in scenarios.iter().zip(&totals) {
        println!("{}: {total}", scenario.name);
        all.merge(total);
    }
    println!("all: {all}\nturns that found something: {found}");
    println!("what follows: --seed {} --from {turns}", arguments.seed);
    Ok(found == 0)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("attack: {what}");
            ExitCode::from(2)
        }
    }
}
