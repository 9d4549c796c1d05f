// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `flush-sim` at a small scale: what it prints is a function of its arguments.
use serde_json::Value;

fn flush_sim(args: &[&str]) -> (bool, String, String) {
    let output = super::bench("flush-sim").args(args).output().expect("cargo built it");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn two_runs_print_the_same_bytes() {
    let (first, second) = (flush_sim(&["--scale", "128"]), flush_sim(&["--scale", "128"]));
    assert!(first.0, "{}", first.2);
    assert_eq!(first.1, second.1);
}

#[test]
fn the_last_line_is_json_with_all_collected_keys() {
    let (ok, out, err) = flush_sim(&["--scale", "256"]);
    assert!(ok, "{err}");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    for prefix in ["", "textbook_"] {
        let names = [
            "lru_s",
            "sorted_s",
            "gap_fill_s",
            "gap_known_s",
            "gap_fill_steady_writes_per_s",
            "bound_s",
            "sorted_ios",
            "sorted_mean_io_bytes",
            "foreground_p99_idle_us",
            "foreground_p99_flush_us",
        ];
        for name in names {
            let value = &last[format!("{prefix}{name}")];
            assert!(value.as_f64().is_some_and(|v| v > 0.0), "{prefix}{name}: {value}");
        }
        let seconds = |name: &str| last[format!("{prefix}{name}")].as_f64().unwrap();
        assert!(seconds("sorted_s") < seconds("lru_s"), "{last}");
    }
}

#[test]
fn a_wrong_argument_is_refused_with_what_is_allowed() {
    for (args, said) in [
        (&["--scale"][..], "a value is required for '--scale <N>'"),
        (&["--scale", "0"], "0 is not in 1..=512"),
        (&["--scale", "x"], "invalid value 'x' for '--scale <N>'"),
        (&["7"], "unexpected argument '7'"),
    ] {
        let (ok, out, err) = flush_sim(args);
        assert!(!ok && out.is_empty(), "{args:?}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
}
