// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A snapshot as JSON, for the page.
use block::latency::{BOUNDS, LatencyCounts, bound};
use serde_json::{Map, Value, json};

use super::monitor::Observed;
use super::process::ProcessFigures;
use super::snapshot::{DeviceState, EngineState, LeafState, OPS, Snapshot};
use crate::event_ring::last_events;

/// The page's data.
pub(super) fn status(observed: &Observed) -> Value {
    let Snapshot { nbd, devices, engines, leaves, .. } = &observed.snapshot;
    let process = ProcessFigures::read();
    let bounds: Vec<u64> = (0..BOUNDS).map(|nth| bound(nth).0).collect();
    let devices = devices.iter().map(|one| device(one, engines));
    let cpu_seconds = seconds(process.cpu_us);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "time_ms": process.now_ms,
        "uptime_seconds": process.now_ms.saturating_sub(process.start_ms) / 1000,
        "problems": observed.problems,
        "process": { "cpu_seconds": cpu_seconds, "resident_bytes": process.resident_bytes },
        "nbd": { "connections": nbd.connections },
        "bounds_ns": bounds,
        "devices": devices.collect::<Vec<Value>>(),
        "leaves": leaves.iter().map(leaf).collect::<Vec<Value>>(),
        "events": last_events(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "for a page")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn device(one: &DeviceState, engines: &[EngineState]) -> Value {
    let unsaved =
        one.unsaved.map(|u| json!({"dirty": u.dirty, "failing": u.failing, "lost": u.lost}));
    let of_device = || engines.iter().filter(|engine| engine.device == one.name);
    json!({
        "name": one.name,
        "targets": one.targets,
        "size_bytes": one.size_sectors << 9,
        "live": one.live_table,
        "suspended": one.suspended,
        "opens": one.opens,
        "unsaved": unsaved,
        "dirty_map": of_device().find_map(|engine| engine.dirty_map.as_ref()),
        "notes": of_device().flat_map(notes).collect::<Vec<[String; 2]>>(),
        "problems": one.problems,
        "ops": ops(&one.latencies),
    })
}

/// What is worth a line, as title and text.
fn notes(engine: &EngineState) -> Vec<[String; 2]> {
    let number = |name: &str| {
        let figure = engine.figures.iter().find(|(spec, _)| spec.name == name);
        figure.map_or(0, |(_, value)| *value)
    };
    let of = |part: u64, whole: u64, what: &str| match whole {
        0 => format!("0 {what}"),
        _ => format!("{} % of {whole} {what}", u128::from(part) * 100 / u128::from(whole)),
    };
    let note = |title: &str, text: String| [title.to_owned(), text];
    match engine.kind {
        "writecache" => {
            let (total, free) = (number("total_blocks"), number("free_blocks"));
            let mut all = vec![
                note("cache in use", of(total.saturating_sub(free), total, "blocks")),
                note("read hits", of(number("read_hits"), number("reads"), "blocks read")),
                note("write hits", of(number("write_hits"), number("writes"), "blocks written")),
            ];
            let missed = number("reads").saturating_sub(number("read_hits"));
            if number("read_admitted") > 0 {
                all.push(note("admitted", of(number("read_admitted"), missed, "blocks missed")));
            }
            if number("drain_active") > 0 {
                let done = of(number("drain_done_blocks"), number("drain_total_blocks"), "blocks");
                all.push(note("drain", done));
            }
            all
        }
        "zram" => {
            let (data, memory) = (number("orig_data_bytes") >> 20, number("mem_used_bytes") >> 20);
            vec![note("data", format!("{data} MiB in {memory} MiB of memory"))]
        }
        "buffered" => {
            let (hits, misses) = (number("read_hits"), number("read_misses"));
            let (cached, dirty) = (number("cached_bytes") >> 20, number("dirty_bytes") >> 20);
            vec![
                note("cached", format!("{cached} MiB, {dirty} MiB of it dirty")),
                note("read hits", of(hits, hits + misses, "reads")),
            ]
        }
        _ => Vec::new(),
    }
}

fn leaf(one: &LeafState) -> Value {
    json!({
        "name": one.name,
        "in_flight": one.in_flight,
        "errors": one.errors,
        "bytes": {
            "read": one.of(block::Op::Read).bytes,
            "write": one.of(block::Op::Write).bytes,
        },
        "timed": one.latencies.is_some(),
        "ops": one.latencies.as_ref().map_or_else(|| json!({}), ops),
    })
}

fn ops(latencies: &[LatencyCounts; OPS.len()]) -> Value {
    let one = |((_, name), counts): (&(block::Op, &str), &LatencyCounts)| {
        let counts = json!({"count": counts.count(), "buckets": counts.buckets});
        ((*name).to_owned(), counts)
    };
    Value::Object(OPS.iter().zip(latencies).map(one).collect::<Map<String, Value>>())
}
