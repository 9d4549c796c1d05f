// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of the NBD server, of the engines and of the leaves, in Prometheus' text format.
use std::fmt::Write;

use block::Op;
use block::attr::{Metric, Spec};

use crate::engine::Engine;

/// All counters now.
pub(crate) async fn text(engine: &Engine) -> String {
    let mut out = String::new();
    let nbd = engine.server.stats();
    for (name, help, value) in [
        ("connections_total", "Connections accepted.", nbd.connections_total),
        ("refused_connections_total", "Connections refused: too many.", nbd.refused_total),
        ("stalled_connections_total", "Connections cut off: no progress.", nbd.stalled_total),
        ("displaced_connections_total", "Idle ones replaced by new.", nbd.displaced_total),
        ("requests_total", "Requests taken.", nbd.requests_total),
        ("errors_total", "Requests answered with an error.", nbd.errors_total),
        ("read_bytes_total", "Data sent to clients.", nbd.read_bytes_total),
        ("write_bytes_total", "Data received from clients.", nbd.write_bytes_total),
        ("receives_total", "Receives from sockets.", nbd.receives_total),
        ("sends_total", "Sends to sockets.", nbd.sends_total),
    ] {
        family(&mut out, &format!("millpond_nbd_{name}"), help, "counter");
        let _ = writeln!(out, "millpond_nbd_{name} {value}");
    }
    family(&mut out, "millpond_nbd_connections", "Connections now.", "gauge");
    let _ = writeln!(out, "millpond_nbd_connections {}", nbd.connections);
    engines(&mut out, engine).await;
    leaves(&mut out, engine);
    out
}

/// A number of an engine with a sample of each device.
struct Family {
    kind: &'static str,
    spec: &'static Spec,
    samples: Vec<(String, u64)>,
}

/// The numbers of every engine that its tables export, in their order.
async fn engines(out: &mut String, engine: &Engine) {
    let mut families: Vec<Family> = Vec::new();
    for ((kind, device), target) in engine.claims.engines() {
        target.clone().refresh().await;
        for (spec, value) in target.metrics() {
            let sample = (device.clone(), value);
            let mut known = families.iter_mut();
            match known.find(|known| known.kind == kind && known.spec.name == spec.name) {
                Some(family) => family.samples.push(sample),
                None => families.push(Family { kind, spec, samples: vec![sample] }),
            }
        }
    }
    for Family { kind, spec, samples } in families {
        let (word, end) = match spec.metric {
            Some(Metric::Counter) => ("counter", "_total"),
            Some(Metric::Gauge) | None => ("gauge", ""),
        };
        let name = format!("millpond_{kind}_{}{end}", spec.name);
        family(out, &name, &sentence(spec.help), word);
        for (device, value) in samples {
            sample(out, &name, &device, value);
        }
    }
}

/// A help text as a sentence.
fn sentence(help: &str) -> String {
    let mut letters = help.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

fn leaves(out: &mut String, engine: &Engine) {
    let leaves = engine.leaves.opened();
    for (op, word) in [
        (Op::Read, "read"),
        (Op::Write, "write"),
        (Op::Flush, "flush"),
        (Op::Discard, "discard"),
        (Op::WriteZeroes, "write_zeroes"),
    ] {
        let done = format!("millpond_queue_{word}_requests_total");
        family(out, &done, "Requests of leaves done.", "counter");
        for leaf in &leaves {
            sample(out, &done, leaf.stats().device(), leaf.stats().of(op).ios);
        }
        if op == Op::Flush {
            continue; // it has no length
        }
        let bytes = format!("millpond_queue_{word}_bytes_total");
        family(out, &bytes, "Bytes of requests of leaves done.", "counter");
        for leaf in &leaves {
            sample(out, &bytes, leaf.stats().device(), leaf.stats().of(op).bytes);
        }
    }
    let throttles = leaves.iter().filter_map(|leaf| Some((leaf, leaf.wbt()?.report())));
    let throttles: Vec<_> = throttles.collect();
    let waits = "millpond_wbt_waits_total";
    family(out, waits, "Requests that the throttle of writeback delayed.", "counter");
    for (leaf, report) in &throttles {
        sample(out, waits, leaf.stats().device(), report.waits);
    }
    let waited = "millpond_wbt_waited_microseconds_total";
    family(out, waited, "How long they waited.", "counter");
    for (leaf, report) in &throttles {
        sample(out, waited, leaf.stats().device(), report.waited_ns / 1000);
    }
    let errors = "millpond_queue_errors_total";
    family(out, errors, "Requests of leaves that failed.", "counter");
    for leaf in &leaves {
        sample(out, errors, leaf.stats().device(), leaf.stats().errors());
    }
}

fn family(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, device: &str, value: u64) {
    let _ = writeln!(out, "{name}{{device=\"{}\"}} {value}", escaped(device));
}

/// A label's value as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut out = String::new();
        sample(&mut out, "n_total", "/a\"b\\c\nd", 7);
        assert_eq!(out, "n_total{device=\"/a\\\"b\\\\c\\nd\"} 7\n");
    }
}
