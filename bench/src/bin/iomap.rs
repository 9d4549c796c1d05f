// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-iomap`: what writing back dirty pages costs, with the mapping called for each page
//! (`map_blocks=single`) and for each run (`multi`), in turns on the same cache.
//!
//! Over a leaf that takes everything at once what is left is our own CPU; over a file the kernel's
//! counts, too. All CPU is that of this process with all its threads.
use std::collections::BTreeMap;
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use reproduce::cpu::{cpus, pin};
use reproduce::iomap::ground::{Ground, LeafKind, Mapping};
use reproduce::iomap::pass::{Ask, Pass, Pattern, Work, memcpy_s};
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: iomap [--size-mib N] [--rounds N] [--only null|file] [--dir DIR]";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Device and cache are so many times as large as what is dirty.
const DEVICE_TIMES: u64 = 4;

struct Args {
    size_mib: u64,
    rounds: usize,
    only: Option<String>,
    dir: PathBuf,
}

fn args() -> Result<Args, String> {
    let mut args = Args { size_mib: 256, rounds: 7, only: None, dir: std::env::temp_dir() };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        let bad = || format!("{flag} {value}: not understood; {USAGE}");
        match &flag[..] {
            "--size-mib" => args.size_mib = value.parse().map_err(|_| bad())?,
            "--rounds" => args.rounds = value.parse().map_err(|_| bad())?,
            "--only" if ["null", "file"].contains(&&value[..]) => args.only = Some(value),
            "--dir" => args.dir = value.into(),
            _ => return Err(bad()),
        }
    }
    if args.rounds == 0 || args.size_mib < 8 {
        return Err(format!("rounds are at least 1, the size at least 8; {USAGE}"));
    }
    Ok(args)
}

/// The passes of one mapping, pattern and leaf.
struct Case {
    leaf: LeafKind,
    mapping: Mapping,
    pattern: Pattern,
    single: Vec<Pass>,
    multi: Vec<Pass>,
}

impl Case {
    fn passes(&self, ask: Ask) -> &[Pass] {
        match ask {
            Ask::Single => &self.single,
            Ask::Multi => &self.multi,
        }
    }

    fn of(&self, ask: Ask, field: impl Fn(&Pass) -> f64) -> f64 {
        median(&self.passes(ask).iter().map(field).collect::<Vec<_>>())
    }

    /// Middle one of the ratios of the passes of a round.
    fn multi_over_single(&self, field: impl Fn(&Pass) -> f64) -> f64 {
        let pairs = self.multi.iter().zip(&self.single);
        median(&pairs.map(|(m, s)| field(m) / field(s)).collect::<Vec<_>>())
    }

    /// The same of writing back to copying in, both of `multi`.
    fn over_copy(&self) -> f64 {
        self.of(Ask::Multi, |p| p.writeback_cpu_s / p.copy_cpu_s)
    }
}

/// Runs both ways of asking in turns.
fn measure(
    args: &Args,
    ground: &Ground,
    (leaf, mapping, pattern): (LeafKind, Mapping, Pattern),
) -> Result<Case, String> {
    let work = Work::new(ground, pattern, args.size_mib)?;
    let mut case = Case { leaf, mapping, pattern, single: Vec::new(), multi: Vec::new() };
    let mut nth = 0;
    // What is first pays for memory that nobody had before.
    for ask in [Ask::Single, Ask::Multi] {
        nth += 1;
        work.run(ask, nth, true)?;
    }
    for round in 0..args.rounds {
        let turns = [Ask::Single, Ask::Multi];
        for turn in 0..turns.len() {
            let ask = turns[(round + turn) % turns.len()];
            nth += 1;
            let pass = work.run(ask, nth, round + 1 == args.rounds)?;
            match ask {
                Ask::Single => case.single.push(pass),
                Ask::Multi => case.multi.push(pass),
            }
        }
    }
    work.end()?;
    Ok(case)
}

/// `3 to 64K` and so on.
fn histogram(sizes: &BTreeMap<u64, u64>) -> String {
    let size = |kib: u64| match kib {
        u64::MAX => "more".to_owned(),
        k if k >= 1024 => format!("{}M", k / 1024),
        k => format!("{k}K"),
    };
    let all: Vec<String> = sizes.iter().map(|(kib, n)| format!("{}: {n}", size(*kib))).collect();
    all.join(", ")
}

fn table(out: &mut impl Write, args: &Args, cases: &[Case], memcpy: &[f64]) -> io::Result<()> {
    let gib = args.size_mib as f64 * MIB as f64 / GIB as f64;
    let mib = args.size_mib as f64;
    let ms = |s: f64| s / gib * 1e3;
    let memcpy_ms = ms(median(memcpy));
    writeln!(
        out,
        "CPU ms a GiB; memcpy of as much: {memcpy_ms:.1}, +-{:.0} %",
        spread_percent(memcpy)
    )?;
    write!(
        out,
        "\n{:22} {:>8} {:>8} {:>5} {:>8} {:>5}",
        "", "copy in", "single", "+-%", "multi", "+-%"
    )?;
    write!(out, " {:>8} {:>8} {:>8}", "multi/", "multi/", "all/")?;
    writeln!(out, " {:>17} {:>17}", "calls a MiB", "asked a MiB")?;
    write!(out, "{:22} {:>8} {:>8} {:>5} {:>8} {:>5}", "", "", "", "", "", "")?;
    write!(out, " {:>8} {:>8} {:>8}", "single", "copy in", "memcpy")?;
    writeln!(out, " {:>8} {:>8} {:>8} {:>8}", "single", "multi", "single", "multi")?;
    for case in cases {
        let name = [case.leaf.key(), case.mapping.key(), case.pattern.key()].join(" ");
        let copy = case.of(Ask::Multi, |p| p.copy_cpu_s);
        write!(out, "{name:22} {:8.1}", ms(copy))?;
        for ask in [Ask::Single, Ask::Multi] {
            let runs: Vec<f64> = case.passes(ask).iter().map(|p| p.writeback_cpu_s).collect();
            write!(out, " {:8.2} {:5.0}", ms(median(&runs)), spread_percent(&runs))?;
        }
        let all = case.of(Ask::Multi, |p| p.copy_cpu_s + p.writeback_cpu_s);
        let share = case.multi_over_single(|p| p.writeback_cpu_s);
        write!(out, " {share:8.3} {:8.3} {:8.2}", case.over_copy(), all / median(memcpy))?;
        for field in [|p: &Pass| p.map_calls, |p: &Pass| p.map_questions] {
            for ask in [Ask::Single, Ask::Multi] {
                write!(out, " {:8.2}", case.of(ask, field) / mib)?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "\nioends by size, of one pass (multi; up to so many bytes: how many)")?;
    for case in cases {
        let name = [case.leaf.key(), case.mapping.key(), case.pattern.key()].join(" ");
        if let Some(pass) = case.multi.last() {
            writeln!(out, "  {name:22} {}", histogram(&pass.sizes))?;
        }
    }
    Ok(())
}

/// Keys of the last line; those without a prefix are of `null`, linear and sequential.
fn summary(args: &Args, cases: &[Case], memcpy: &[f64]) -> Value {
    let gib = args.size_mib as f64 * MIB as f64 / GIB as f64;
    let mib = args.size_mib as f64;
    let mut out = Map::new();
    for case in cases {
        let (leaf, mapping, pattern) = (case.leaf.key(), case.mapping.key(), case.pattern.key());
        let plain = (case.leaf, case.mapping, case.pattern)
            == (LeafKind::Null, Mapping::Linear, Pattern::Seq);
        let mut put = |key: &str, value: Value| {
            if plain {
                out.insert(key.to_owned(), value.clone());
            }
            out.insert(format!("{leaf}_{mapping}_{pattern}_{key}"), value);
        };
        for ask in [Ask::Single, Ask::Multi] {
            let word = ask.word();
            let writeback = case.of(ask, |p| p.writeback_cpu_s);
            put(&format!("{word}_cpu_s_per_gib"), json!(writeback / gib));
            let all = case.of(ask, |p| p.copy_cpu_s + p.writeback_cpu_s);
            put(&format!("{word}_with_copy_cpu_s_per_gib"), json!(all / gib));
            let calls = case.of(ask, |p| p.map_calls);
            put(&format!("{word}_map_calls_per_mib"), json!(calls / mib));
            let asked = case.of(ask, |p| p.map_questions);
            put(&format!("{word}_map_questions_per_mib"), json!(asked / mib));
            put(&format!("{word}_ioends"), json!(case.of(ask, |p| p.ioends)));
        }
        put("copy_cpu_s_per_gib", json!(case.of(Ask::Multi, |p| p.copy_cpu_s) / gib));
        let share = case.multi_over_single(|p| p.writeback_cpu_s);
        put("multi_over_single_cpu", json!(share));
        put("multi_over_copy_cpu", json!(case.over_copy()));
        let sizes = case.multi.last().map(|pass| {
            let name = |kib: &u64| if *kib == u64::MAX { "larger".into() } else { kib.to_string() };
            let sizes = pass.sizes.iter().map(|(kib, n)| (name(kib), json!(n)));
            Value::Object(sizes.collect())
        });
        put("ioends_by_kib", sizes.unwrap_or_default());
    }
    out.insert("memcpy_cpu_s_per_gib".into(), json!(median(memcpy) / gib));
    out.insert("bench".into(), json!("iomap"));
    Value::Object(out)
}

fn bench(args: &Args) -> Result<(), String> {
    if let Some(cpu) = cpus().first() {
        pin(*cpu).map_err(|e| format!("cannot pin to CPU {cpu}: {e}"))?;
    }
    let mut cases = Vec::new();
    let mut memcpy = Vec::new();
    let bytes = args.size_mib * MIB * DEVICE_TIMES;
    for leaf in [LeafKind::Null, LeafKind::File] {
        if args.only.as_ref().is_some_and(|only| only != leaf.key()) {
            continue;
        }
        for mapping in [Mapping::Linear, Mapping::Striped] {
            let ground = Ground::new(leaf, mapping, bytes, &args.dir)?;
            for pattern in [Pattern::Seq, Pattern::Rand] {
                cases.push(measure(args, &ground, (leaf, mapping, pattern))?);
                memcpy.push(memcpy_s(args.size_mib));
                let what = [leaf.key(), mapping.key(), pattern.key()].join(" ");
                let _ = writeln!(stderr(), "{what}: done");
            }
        }
    }
    let mut out = stdout().lock();
    let mut print = || {
        let (size, rounds) = (args.size_mib, args.rounds);
        writeln!(
            out,
            "{size} MiB dirty, of a device of {} MiB; median of {rounds}",
            size * DEVICE_TIMES
        )?;
        table(&mut out, args, &cases, &memcpy)?;
        writeln!(out, "{}", summary(args, &cases, &memcpy))
    };
    print().map_err(|e| format!("standard output: {e}"))
}

fn main() -> ExitCode {
    match args().and_then(|args| bench(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "iomap: {e}");
            ExitCode::FAILURE
        }
    }
}
