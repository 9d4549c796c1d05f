// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Controls of the acts: what the program may not do to a device that is degraded, done behind the
//! judge's back, or by a disk.

use std::os::unix::fs::PermissionsExt;

use attack::daemon::{Ended, Place};
use attack::media::Lie;
use attack::rig::{Deceit, Options};

use crate::controls::caught_with;

#[test]
fn an_orderly_end_that_drops_what_was_acknowledged_is_caught() {
    let options = Options { deceit: Some(Deceit::Drops), orders: Some("Terminate"), ..none() };
    let found = caught_with("degraded", options);
    assert!(found.contains("VIOLATION"), "{found}");
}

#[test]
fn data_that_are_given_up_without_a_word_are_caught() {
    let options = Options { deceit: Some(Deceit::Forces), orders: Some("Reload"), ..none() };
    let found = caught_with("degraded", options);
    assert!(found.contains("VIOLATION"), "{found}");
}

#[test]
fn a_device_that_stays_suspended_after_an_upgrade_is_caught() {
    let found = caught_with("upgrades", Options { deceit: Some(Deceit::Suspends), ..none() });
    assert!(found.contains("no answer on sound disks"), "{found}");
}

#[test]
fn writes_that_land_when_another_device_has_flushed_are_caught() {
    let found = caught_with("late-writes", Options { lie: Some((0, Lie::Again)), ..none() });
    assert!(found.contains("VIOLATION"), "{found}");
}

#[test]
fn a_loss_that_no_opener_is_told_of_is_caught() {
    let found = caught_with("swaps", Options { lie: Some((0, Lie::Silent)), ..none() });
    assert!(found.contains("does not say so"), "{found}");
}

#[test]
fn a_verb_that_waits_for_a_disk_is_late() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("slow");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 20\n").expect("a script");
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, all).expect("it may be run");
    let place = Place { program, dir: dir.path().into() };
    assert_eq!(place.verb_within(&["remove", "--force", "dev"], 0.3), Ok(Ended::Late));
}

/// No trouble but the planted one.
fn none() -> Options {
    Options { no_faults: true, ..Options::default() }
}
