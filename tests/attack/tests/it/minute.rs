// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A minute of the adversary: each scenario runs for some seconds, half of them at a time; `make
//! attack` runs them for longer.

use attack::campaign::{Total, attack, fresh_seed};
use attack::rig::Options;
use attack::{binary, scenario};

/// Seconds of each scenario; its last round is finished.
const TURN: f64 = 2.5;

/// Runs every second scenario, from number `first` on.
fn every_second_finds_nothing(first: usize) {
    let program = binary::millpond().unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    let scenarios = scenario::ALL.iter().filter(|s| s.known.is_none());
    for scenario in scenarios.skip(first).step_by(2) {
        let (seed, mut total) = (fresh_seed(), Total::default());
        found.extend(attack(scenario, &program, seed, TURN, Options::default(), &mut total).err());
        println!("{}, seed {seed}: {total}", scenario.name);
    }
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn the_adversary_finds_nothing_in_the_even_scenarios() {
    every_second_finds_nothing(0);
}

#[test]
fn the_adversary_finds_nothing_in_the_odd_scenarios() {
    every_second_finds_nothing(1);
}
