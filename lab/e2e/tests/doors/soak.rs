// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A few upgrades and kills of what `make soak` does by the thousand.
use e2e::binary::{Build, millpond};
use e2e::soak::{Plan, run};
use e2e::test_bed::clients;

#[test]
fn upgrades_and_kills_at_any_moment_show_clients_no_error() {
    if !clients(&["fio", "qemu-storage-daemon"]) {
        return;
    }
    let program = millpond(Build::Workspace).unwrap();
    let dir = tempfile::Builder::new().prefix("millpond-soak-").tempdir().unwrap();
    let mib = 1 << 20;
    let plan = Plan {
        upgrades: 6,
        kills: 6,
        seed: 5,
        cache_bytes: 8 * mib,
        ordered_bytes: 8 * mib,
        area_bytes: 12 * mib,
        dirty_bytes: 0,
    };
    let done = run(&program, dir.path(), plan, &|line| println!("{line}")).unwrap();
    println!("{done:?}");
    assert_eq!(done.pauses_ms.len(), 6);
    assert_eq!(done.starts_ms.len() + done.went_on as usize, 6);
    // Both fio of both parts, each with a round at least.
    let blocks = plan.area_bytes / 4096;
    assert!(done.rounds >= 4 && done.writes >= done.rounds * blocks, "too little to prove");
    assert!(done.reads >= done.writes, "not all was read back");
}
