// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks that do what no disk may do: whoever does not see that is asleep.

use attack::campaign::{Total, attack, fresh_seed};
use attack::media::Lie;
use attack::rig::Options;
use attack::scenario::Scenario;
use attack::{binary, scenario};

/// Longest time until a lie has to be found. It takes a round or two.
const SECONDS: f64 = 240.0;
/// Sectors of a load in which each is written again soon.
const FEW_SECTORS: u64 = 256;

/// What is found when a disk of a scenario lies.
fn caught(name: &str, disk: usize, lie: Lie) -> String {
    let (lie, only_cuts, no_faults) = (Some((disk, lie)), true, true);
    caught_with(name, Options { lie, only_cuts, no_faults, ..Options::default() })
}

pub(crate) fn caught_with(name: &str, options: Options) -> String {
    caught_in(&scenario::named(name).expect("there is one of that name")[0], options)
}

fn caught_in(scenario: &Scenario, options: Options) -> String {
    let program = binary::millpond().unwrap_or_else(|e| panic!("{e}"));
    let name = scenario.name;
    let seed = fresh_seed();
    println!("{name}, seed {seed}");
    let found = attack(scenario, &program, seed, SECONDS, options, &mut Total::default());
    found.expect_err("nobody sees what the disk does")
}

#[test]
fn an_origin_that_lies_about_flush_is_caught() {
    for name in ["metadata_only", "linear", "buffered"] {
        let found = caught(name, 0, Lie::Flush);
        assert!(found.contains("VIOLATION"), "{found}");
    }
}

#[test]
fn an_origin_below_a_cache_that_lies_is_caught() {
    let found = caught("small", 0, Lie::Flush);
    assert!(found.contains("VIOLATION"), "{found}");
}

#[test]
fn a_cache_that_lies_about_flush_is_caught() {
    // By its checksums the program may be the one that finds it, and refuse to open it.
    caught("plain", 1, Lie::Flush);
}

#[test]
fn a_disk_that_tears_durable_sectors_is_caught() {
    let found = caught("linear", 0, Lie::Tear);
    assert!(found.contains("VIOLATION") && found.contains("garbage"), "{found}");
}

#[test]
fn an_origin_written_in_any_order_is_caught() {
    let options = Options { origin_alone: true, only_cuts: true, ..Options::default() };
    let found = caught_with("small", options);
    assert!(found.contains("the origin alone holds"), "{found}");
}

#[test]
fn an_ordered_origin_that_lies_about_flush_is_caught() {
    // What the cut took decides which judge sees it first: the one of the origin alone sees a
    // state that never was, the one of the device an old block that the cache has given up.
    // That the former is awake, `an_origin_written_in_any_order_is_caught` shows.
    let found = caught("ordered", 0, Lie::Flush);
    assert!(found.contains("VIOLATION"), "{found}");
}

#[test]
fn a_disk_that_returns_zeroes_for_read_errors_is_caught() {
    let options = Options { lie: Some((0, Lie::Read)), ..Options::default() };
    let found = caught_with("reads", options);
    assert!(found.contains("VIOLATION"), "{found}");
}

#[test]
fn a_disk_that_executes_requests_of_a_lost_connection_is_caught() {
    let options = Options { lie: Some((0, Lie::Late)), ..Options::default() };
    let mut scenario = scenario::named("lost-linear").expect("there is one of that name")[0];
    // A late execution does harm only where the sector has been written again: on few sectors
    // nearly all have.
    scenario.load.count = FEW_SECTORS;
    let found = caught_in(&scenario, options);
    assert!(found.contains("VIOLATION"), "{found}");
}
