// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a check runs, and when it is recorded.
use super::*;
use crate::inputs::tests::Checkout;

/// Where a command leaves a mark without being an input.
const MARK: &str = "docs/mark";

fn status(code: ExitCode) -> bool {
    format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS)
}

/// Runs `script` unless recorded: whether it ran, and whether that was a success.
fn runs(checkout: &Checkout, script: &str) -> (bool, bool) {
    let mark = checkout.0.join(MARK);
    let _ = std::fs::remove_file(&mark); // it may not be there
    let script = format!("touch {MARK}; {script}");
    let code = run_unless_recorded(&checkout.0, Check::Guest, &["sh", "-c", &script]);
    (mark.exists(), status(code))
}

fn recorded_by(checkout: &Checkout, script: &str) -> bool {
    status(record(&checkout.0, Check::Guest, &["sh", "-c", script]))
}

#[test]
fn a_check_runs_until_its_inputs_are_recorded() {
    let checkout = Checkout::new();
    assert_eq!(runs(&checkout, "true"), (true, true));
    // CI itself records nothing.
    assert_eq!(runs(&checkout, "false"), (true, false));
    assert!(recorded_by(&checkout, "true"));
    assert_eq!(runs(&checkout, "false"), (false, true));
    // What the other check needs changes nothing.
    checkout.write("fuzz/src/lib.rs", "// more\n");
    assert_eq!(runs(&checkout, "false"), (false, true));
    // A planted change, and the way back.
    checkout.write("crates/format/src/lib.rs", "// more\n");
    assert_eq!(runs(&checkout, "false"), (true, false));
    checkout.write("crates/format/src/lib.rs", "");
    assert_eq!(runs(&checkout, "false"), (false, true));
}

#[test]
fn a_failure_is_not_recorded() {
    let checkout = Checkout::new();
    assert!(!recorded_by(&checkout, "false"));
    assert!(!checkout.0.join(RECORD).exists());
    assert!(!status(record(&checkout.0, Check::Guest, &["/nowhere/program"])));
    assert!(!checkout.0.join(RECORD).exists());
}

#[test]
fn inputs_that_change_meanwhile_are_not_recorded() {
    let checkout = Checkout::new();
    assert!(recorded_by(&checkout, "echo >> scripts/guest.sh"));
    assert!(!checkout.0.join(RECORD).exists());
}

#[test]
fn records_of_the_other_check_stay() {
    let checkout = Checkout::new();
    assert!(status(record(&checkout.0, Check::Fuzz, &["true"])));
    let fuzz = std::fs::read_to_string(checkout.0.join(RECORD)).unwrap();
    assert!(recorded_by(&checkout, "true"));
    let both = std::fs::read_to_string(checkout.0.join(RECORD)).unwrap();
    assert!(both.starts_with(&fuzz) && both.len() > fuzz.len(), "{both}");
    assert_eq!(both.lines().filter(|line| line.contains(" = ")).count(), 2);
}

#[test]
fn what_is_not_understood_runs() {
    let checkout = Checkout::new();
    assert!(recorded_by(&checkout, "true"));
    let good = std::fs::read_to_string(checkout.0.join(RECORD)).unwrap();
    let line = good.lines().last().unwrap();
    for bad in [
        String::new(),
        "guest = \"\"\n".to_owned(),
        "guest = true\n".to_owned(),
        format!("{line}\n{line}\n"),
        format!("<<<<<<< HEAD\n{line}\n=======\n>>>>>>> other\n"),
        line.replacen("guest", "fuzz", 1),
    ] {
        checkout.write(RECORD, &bad);
        assert_eq!(runs(&checkout, "true"), (true, true), "{bad}");
    }
    checkout.write(RECORD, &good);
    assert_eq!(runs(&checkout, "true"), (false, true));
    std::fs::rename(checkout.0.join(".git"), checkout.0.join("git")).unwrap();
    assert_eq!(runs(&checkout, "true"), (true, true));
}
