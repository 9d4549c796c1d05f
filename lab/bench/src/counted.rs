// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a request takes in a stack of pure mappings, or a program in all, counted by valgrind.
use std::process::Command;

use reproduce::dm_bench::{RANDREAD_512, SHAPES, Shape, load_generator, output, stack};
use reproduce::report::Section;
use reproduce::table::{Table, fixed};

/// What valgrind counts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Machine instructions in user space.
    Instructions,
    /// Calls that take memory from the heap.
    Allocations,
}

/// Requests of the shorter and the longer run: what both do once cancels out.
const REQUESTS: [u64; 2] = [20_000, 120_000];

impl Count {
    /// What one request of `shape` takes: the difference of two runs over the difference of their
    /// requests.
    fn per_request(self, shape: Shape) -> Result<f64, String> {
        let [short, long] = REQUESTS;
        let (before, after) = (self.total(shape, short)?, self.total(shape, long)?);
        Ok((after - before) / (long - short) as f64)
    }

    fn total(self, shape: Shape, requests: u64) -> Result<f64, String> {
        // Small, so that filling it does not take long: a count does not depend on it.
        let (leaf, sectors) = ("mem:16M", 32_768);
        let mut command = Command::new(load_generator()?);
        command.args(stack(leaf, sectors));
        command.args(["--drive", &shape.word(leaf), "--number-ios", &requests.to_string()]);
        // Valgrind does not know io_uring.
        command.args(["--no-uring", "--prefill", "--latency", "off"]).args(RANDREAD_512);
        Ok(self.of(&command)?.0)
    }

    /// Counts a command under valgrind, and says what it printed.
    ///
    /// # Errors
    /// When it fails, or valgrind is not there or does not say.
    pub fn of(self, command: &Command) -> Result<(f64, String), String> {
        let (tool, before, after): (&[&str], _, _) = match self {
            Count::Instructions => {
                (&["--tool=callgrind", "--callgrind-out-file=/dev/null"], "Collected :", "\n")
            }
            Count::Allocations => (&["--leak-check=no"], "total heap usage:", "allocs"),
        };
        let mut valgrind = Command::new("valgrind");
        valgrind.args(tool).arg(command.get_program()).args(command.get_args());
        let (out, err) = output(&mut valgrind)?;
        let found = err.split_once(before).and_then(|(_, rest)| rest.split_once(after));
        let number = found.map(|(n, _)| n.trim().replace(',', "")).and_then(|n| n.parse().ok());
        number.map(|n| (n, out)).ok_or_else(|| format!("valgrind: no `{before}` in what it said"))
    }
}

/// Instructions and allocations of a request through each shape.
///
/// # Errors
/// When valgrind is not there or does not say.
pub fn section() -> Result<Section, String> {
    let mut section = Section::default();
    let head = ["instructions", "over raw", "a layer", "allocations"];
    let mut table = Table::new("counted, a request of 512 B (valgrind)", &[""], &head);
    let mut raw = f64::NAN;
    for shape in SHAPES {
        let instructions = Count::Instructions.per_request(shape)?;
        let allocations = Count::Allocations.per_request(shape)?;
        if shape == Shape::Raw {
            raw = instructions;
        }
        let more = instructions - raw;
        let layer = more / f64::from(shape.layers().max(1));
        let figures = [(instructions, 1), (more, 1), (layer, 1), (allocations, 3)];
        table.row(&[shape.key()], figures.map(|(figure, digits)| fixed(figure, digits)));
        section.put(format!("instructions_{}", shape.key()), instructions);
        section.put(format!("allocations_{}", shape.key()), allocations);
        if shape == Shape::Layers3 {
            section.put("instructions_layers3_over_raw", more);
            section.put("allocations_per_io", allocations);
        }
    }
    section.tables.push(table);
    Ok(section)
}
