// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A minute of the adversary, all scenarios in turns; `make attack` is the same for longer.

use attack::campaign::{Total, attack, fresh_seed};
use attack::rig::Options;
use attack::{binary, scenario};

/// Seconds of each scenario, the round that runs then is finished.
const TURN: f64 = 2.5;

#[test]
fn an_adversary_finds_nothing_in_a_minute() {
    let program = binary::millpond().unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    for scenario in scenario::ALL.iter().filter(|s| s.known.is_none()) {
        let (seed, mut total) = (fresh_seed(), Total::default());
        found.extend(attack(scenario, &program, seed, TURN, Options::default(), &mut total).err());
        println!("{}, seed {seed}: {total}", scenario.name);
    }
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}
