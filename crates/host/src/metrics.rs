// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of the NBD server, of the write caches and of the leaves, in Prometheus' text format.
use std::fmt::Write;

use block::{Op, Target};

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
    write_caches(&mut out, engine).await;
    leaves(&mut out, engine);
    out
}

/// Attributes of write caches that are told, whether each only grows, and what it is.
const WRITE_CACHE: [(&str, bool, &str); 14] = [
    ("total_blocks", false, "Blocks of the cache device."),
    ("free_blocks", false, "Blocks that are free or clean."),
    ("dirty_blocks", false, "Blocks that the origin does not hold yet."),
    ("unsaved_blocks", false, "Blocks that the origin does not have: dirty, or unreadable."),
    ("bad_blocks", false, "Blocks that can't be read until they are written again."),
    ("failing_blocks", false, "Blocks that the origin has refused and does not hold yet."),
    ("error", false, "Status field 1: 0, or the errno of what is wrong."),
    ("writeback_errors", true, "Writes and flushes of the origin that failed."),
    ("cache_read_errors", true, "Blocks that the cache device could not read."),
    ("checksum_errors", true, "Blocks that did not match their checksum."),
    ("commits", true, "Commits."),
    ("origin_writes", true, "Writes of writeback."),
    ("origin_write_bytes", true, "Bytes written back."),
    ("origin_flushes", true, "Flushes of the origin."),
];

async fn write_caches(out: &mut String, engine: &Engine) {
    let caches = engine.claims.write_caches();
    for cache in caches.values() {
        cache.clone().refresh().await;
    }
    for (attribute, grows, help) in WRITE_CACHE {
        let (kind, end) = if grows { ("counter", "_total") } else { ("gauge", "") };
        let name = format!("millpond_writecache_{attribute}{end}");
        family(out, &name, help, kind);
        for (device, cache) in &caches {
            let value = cache.attribute(attribute).ok().and_then(|value| value.parse().ok());
            if let Some(value) = value {
                sample(out, &name, device, value);
            }
        }
    }
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
