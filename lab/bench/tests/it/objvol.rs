// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `objvol` at a small scale: what is in virtual time is a function of its arguments, and a volume
//! alone takes the bandwidth that plain requests have.
use serde_json::Value;

/// The last line, and all before it without the table of CPU.
fn objvol() -> (Value, String) {
    let args = "--mib 16 --seconds 5 --overwrites 10000 --usual-overwrites 0 --extents 1000";
    let output = super::bench("objvol").args(args.split(' ')).output().expect("cargo built it");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    let last = text.lines().last().expect("it prints something");
    let last = serde_json::from_str(last).expect("the last line is JSON");
    (last, text.split("opening a volume").next().unwrap_or_default().to_owned())
}

#[test]
fn two_runs_print_the_same_and_a_volume_takes_the_line() {
    let (first, second) = (objvol(), objvol());
    assert_eq!(first.1, second.1);
    let figure = |key: &str| first.0[key].as_f64().unwrap_or_else(|| panic!("{key}: {first:?}"));
    assert!(figure("volume_mb_s") > 0.9 * figure("put_mb_s"), "{first:?}");
    assert!(figure("volume_flushes_per_s_many") > 10.0 * figure("volume_flushes_per_s"));
    assert!(figure("uniform_60_131072_sent") < 2.0 && figure("uniform_60_131072_sent") >= 1.0);
}
