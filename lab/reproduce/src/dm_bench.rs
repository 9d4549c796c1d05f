// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stacks of pure mappings over one leaf, driven in turns by one process of `loadgen`.
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::median::{median, median_ratio};

/// A device of the stack that is driven; the first one is the leaf itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Raw,
    Linear,
    Striped,
    /// Linear on striped on linear.
    Layers3,
    CloneLinear,
    CloneStriped,
    CloneLayers3,
}

pub const SHAPES: [Shape; 7] = [
    Shape::Raw,
    Shape::Linear,
    Shape::Striped,
    Shape::Layers3,
    Shape::CloneLinear,
    Shape::CloneStriped,
    Shape::CloneLayers3,
];

impl Shape {
    /// Part of a key of the JSON line.
    pub fn key(self) -> &'static str {
        match self {
            Shape::Raw => "raw",
            Shape::Linear => "linear",
            Shape::Striped => "striped",
            Shape::Layers3 => "layers3",
            Shape::CloneLinear => "clone_linear",
            Shape::CloneStriped => "clone_striped",
            Shape::CloneLayers3 => "clone_layers3",
        }
    }

    /// Mapped devices that a request passes.
    pub fn layers(self) -> u32 {
        match self {
            Shape::Raw => 0,
            Shape::Linear | Shape::Striped | Shape::CloneLinear | Shape::CloneStriped => 1,
            Shape::Layers3 | Shape::CloneLayers3 => 3,
        }
    }

    /// The device's name in the stack.
    pub fn word(self, leaf: &str) -> String {
        if self == Shape::Raw { leaf.to_owned() } else { self.key().to_owned() }
    }
}

/// The options that make all shapes over `leaf`, of `sectors`.
pub fn stack(leaf: &str, sectors: u64) -> Vec<String> {
    let half = sectors / 2;
    let mut args = Vec::new();
    let mut device = |name: &str, target: &str| {
        args.push("--device".to_owned());
        args.push(format!("{name}=0 {sectors} {target}"));
        if name.starts_with("clone") {
            args.push("--set".to_owned());
            args.push(format!("{name}:mapping=clone"));
        }
    };
    for (linear, striped, low, mid, top) in [
        ("linear", "striped", "low", "mid", "layers3"),
        ("clone_linear", "clone_striped", "clone_low", "clone_mid", "clone_layers3"),
    ] {
        device(linear, &format!("linear {leaf} 0"));
        device(striped, &format!("striped 2 128 {leaf} 0 {leaf} {half}"));
        device(low, &format!("linear {leaf} 0"));
        device(mid, &format!("striped 2 128 {low} 0 {low} {half}"));
        device(top, &format!("linear {mid} 0"));
    }
    args
}

/// A group of shapes that are driven in turns.
#[derive(Clone, Debug)]
pub struct Group {
    /// The prefix of its keys in the JSON line.
    pub key: &'static str,
    pub what: &'static str,
    pub leaf: String,
    pub sectors: u64,
    /// The options of `loadgen` for the load.
    pub load: &'static [&'static str],
    pub shapes: &'static [Shape],
}

/// The result of one shape.
#[derive(Clone, Debug)]
pub struct Timing {
    pub shape: Shape,
    pub turns_iops: Vec<f64>,
    pub iops: f64,
    /// IOPS divided by those of the first shape: the median over the turns.
    pub ratio: f64,
    /// Nanoseconds more for each request than with the first shape: the median over the turns.
    pub more_ns: f64,
}

/// The program that [`output`] waits for.
static CHILD: Mutex<Option<Pid>> = Mutex::new(None);

fn set_child(child: Option<Pid>) {
    // The code under the lock cannot panic.
    *CHILD.lock().unwrap_or_else(PoisonError::into_inner) = child;
}

/// Kills the program that [`output`] waits for, if any. Called before this process ends.
pub fn kill_child() {
    let child = *CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(child) = child {
        let _ = kill_process(child, Signal::KILL); // it may have ended already
    }
}

/// Runs a program and returns its stdout and stderr.
///
/// # Errors
/// Its stderr, if it failed.
pub fn output(command: &mut Command) -> Result<(String, String), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |e| format!("{program}: {e}");
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().map_err(failed)?;
    set_child(Some(Pid::from_child(&child)));
    let output = child.wait_with_output();
    set_child(None);
    let output = output.map_err(failed)?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        return Err(format!("{program}: {}: {}", output.status, err.trim()));
    }
    Ok((out, err))
}

/// Returns the path of `loadgen`, which lies beside this program: both are of one build.
///
/// # Errors
/// If it is not there.
pub fn load_generator() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let program = here.with_file_name("loadgen");
    if program.is_file() {
        return Ok(program);
    }
    let program = program.display();
    Err(format!("{program}: not there; build it first: cargo build --release -p loadgen"))
}

/// Drives the shapes of a group in turns of `turn_ms`.
///
/// # Errors
/// The error of the program.
pub fn time(group: &Group, turns: u32, turn_ms: u32) -> Result<Vec<Timing>, String> {
    let mut command = Command::new(load_generator()?);
    command.args(stack(&group.leaf, group.sectors)).args(group.load);
    for shape in group.shapes {
        command.args(["--drive", &shape.word(&group.leaf)]);
    }
    command.args(["--turns", &turns.to_string(), "--runtime", &format!("{turn_ms}ms")]);
    command.args(["--prefill", "--latency", "off", "-o", "json"]);
    let (out, _) = output(&mut command)?;
    let json: Value = serde_json::from_str(&out).map_err(|e| format!("loadgen: {e}"))?;
    let devices = json["devices"].as_array().ok_or("loadgen: no devices")?;
    let turns_of = |device: &Value| -> Vec<f64> {
        device["turns_iops"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let first = devices.first().map(turns_of).unwrap_or_default();
    let timed = |(shape, device): (&Shape, &Value)| {
        let turns_iops = turns_of(device);
        let ratio = median_ratio(&turns_iops, &first);
        let more_ns = turns_iops.iter().zip(&first).map(|(a, b)| 1e9 / a - 1e9 / b);
        let more_ns = median(&more_ns.collect::<Vec<_>>());
        Timing { shape: *shape, iops: median(&turns_iops), ratio, more_ns, turns_iops }
    };
    Ok(group.shapes.iter().zip(devices).map(timed).collect())
}

/// The load of counted runs.
pub const RANDREAD_512: &[&str] = &["--rw", "randread", "--bs", "512", "--iodepth", "32"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_but_the_leaf_is_a_device_of_the_stack() {
        let args = stack("mem:1M", 2048);
        for shape in SHAPES {
            let device = format!("{}=0 2048 ", shape.word("mem:1M"));
            let made = args.iter().any(|a| a.starts_with(&device));
            assert_eq!(made, shape != Shape::Raw, "{shape:?}");
            let cloned = args.contains(&format!("{}:mapping=clone", shape.key()));
            assert_eq!(cloned, shape.key().starts_with("clone"), "{shape:?}");
        }
    }
}
