// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A minute of the adversary: each scenario runs for some seconds, in eight tests, of which as many
//! run at once as there are test threads; `make attack` runs them for longer.

use attack::campaign::{Total, attack, fresh_seed};
use attack::rig::Options;
use attack::{binary, scenario};

/// Seconds of each scenario; its last round is finished.
const TURN: f64 = 2.5;

/// Runs every eighth scenario, from number `first` on.
fn every_eighth_finds_nothing(first: usize) {
    let program = binary::millpond().unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    let scenarios = scenario::ALL.iter().filter(|s| s.known.is_none());
    for scenario in scenarios.skip(first).step_by(8) {
        let (seed, mut total) = (fresh_seed(), Total::default());
        found.extend(attack(scenario, &program, seed, TURN, Options::default(), &mut total).err());
        println!("{}, seed {seed}: {total}", scenario.name);
    }
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn the_adversary_finds_nothing_in_the_first_eighth() {
    every_eighth_finds_nothing(0);
}

#[test]
fn the_adversary_finds_nothing_in_the_second_eighth() {
    every_eighth_finds_nothing(1);
}

#[test]
fn the_adversary_finds_nothing_in_the_third_eighth() {
    every_eighth_finds_nothing(2);
}

#[test]
fn the_adversary_finds_nothing_in_the_fourth_eighth() {
    every_eighth_finds_nothing(3);
}

#[test]
fn the_adversary_finds_nothing_in_the_fifth_eighth() {
    every_eighth_finds_nothing(4);
}

#[test]
fn the_adversary_finds_nothing_in_the_sixth_eighth() {
    every_eighth_finds_nothing(5);
}

#[test]
fn the_adversary_finds_nothing_in_the_seventh_eighth() {
    every_eighth_finds_nothing(6);
}

#[test]
fn the_adversary_finds_nothing_in_the_eighth_eighth() {
    every_eighth_finds_nothing(7);
}
