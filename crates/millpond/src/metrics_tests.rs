// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manual of the metrics, `docs/metrics.md`, is made from the tables of the program and pinned.
//! To accept a change: `MILLPOND_UPDATE_DOCS=1 cargo test -p millpond --bins`.
use crate::help_tests::{pin, root};

/// What stands before the tables.
const HEAD: &str = include_str!("metrics_manual.md");

#[test]
fn the_manual_of_the_metrics_is_pinned() {
    let mut page = HEAD.to_owned();
    for (title, metrics) in host::metric_catalogue() {
        page.push_str(&format!("\n### {title}\n\n| metric | kind | labels | meaning |\n"));
        page.push_str("|---|---|---|---|\n");
        for metric in metrics {
            let labels = metric.labels.join(", ");
            let (name, kind, help) = (&metric.name, metric.kind, &metric.help);
            page.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
        }
    }
    pin(&root().join("docs/metrics.md"), page.as_bytes());
}
