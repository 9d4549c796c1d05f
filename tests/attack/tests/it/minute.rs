// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A minute of the adversary: each scenario runs for some seconds, in four tests that run at once;
//! `make attack` runs them for longer.

use attack::campaign::{Total, attack, fresh_seed};
use attack::rig::Options;
use attack::{binary, scenario};

/// Seconds of each scenario; its last round is finished.
const TURN: f64 = 2.5;

/// Runs every fourth scenario, from number `first` on.
fn every_fourth_finds_nothing(first: usize) {
    let program = binary::millpond().unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    let scenarios = scenario::ALL.iter().filter(|s| s.known.is_none());
    for scenario in scenarios.skip(first).step_by(4) {
        let (seed, mut total) = (fresh_seed(), Total::default());
        found.extend(attack(scenario, &program, seed, TURN, Options::default(), &mut total).err());
        println!("{}, seed {seed}: {total}", scenario.name);
    }
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn the_adversary_finds_nothing_in_the_first_quarter() {
    every_fourth_finds_nothing(0);
}

#[test]
fn the_adversary_finds_nothing_in_the_second_quarter() {
    every_fourth_finds_nothing(1);
}

#[test]
fn the_adversary_finds_nothing_in_the_third_quarter() {
    every_fourth_finds_nothing(2);
}

#[test]
fn the_adversary_finds_nothing_in_the_fourth_quarter() {
    every_fourth_finds_nothing(3);
}
