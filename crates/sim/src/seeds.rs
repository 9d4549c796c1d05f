// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a simulation for many seeds, and prints how to replay a failed one.
//!
//! - `MILLPOND_SEEDS=N` runs N seeds instead of the test's own number.
//! - `MILLPOND_SEED=S` runs seed S alone and prints its last 50 events, or MILLPOND_EVENTS.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::events;

/// The first failing seed and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    pub why: String,
}

pub(crate) fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}=`{text}`: not a number")))
}

/// How many seeds a test runs: `default`, or what the variables say.
pub fn count(default: u64) -> u64 {
    match variable("MILLPOND_SEED") {
        Some(_) => 1,
        None => variable("MILLPOND_SEEDS").unwrap_or(default),
    }
}

/// Runs `simulate` for one seed; a panic counts as a failure.
pub fn attempt(seed: u64, simulate: &mut dyn FnMut(u64) -> Result<(), String>) -> Option<Failure> {
    let why = match catch_unwind(AssertUnwindSafe(|| simulate(seed))) {
        Ok(Ok(())) => return None,
        Ok(Err(why)) => why,
        Err(panic) => format!("panic: {}", panic_text(&*panic)),
    };
    Some(Failure { seed, why })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// The first seed of `seeds` that fails, for tests that plant a fault and expect a failure.
pub fn first_failure(
    seeds: Range<u64>,
    mut simulate: impl FnMut(u64) -> Result<(), String>,
) -> Option<Failure> {
    seeds.into_iter().find_map(|seed| attempt(seed, &mut simulate))
}

/// As [`first_failure`], for a planted fault that few seeds show: the seed at which `seen_at` says
/// that it showed before is tried first, then all of `seeds`.
pub fn first_failure_of<F: PartialEq>(
    fault: &F,
    seen_at: &[(F, u64)],
    seeds: Range<u64>,
    mut simulate: impl FnMut(u64) -> Result<(), String>,
) -> Option<Failure> {
    let before = seen_at.iter().find(|(seen, _)| seen == fault).map(|&(_, seed)| seed);
    before.into_iter().chain(seeds).find_map(|seed| attempt(seed, &mut simulate))
}

/// Runs `simulate` for `default` seeds (see the module for the variables) and panics at the first
/// that fails, with its last events and the command that replays it.
pub fn run(default: u64, mut simulate: impl FnMut(u64) -> Result<(), String>) {
    let seeds = match variable("MILLPOND_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count(default),
    };
    let alone = seeds.end - seeds.start == 1;
    let failure = first_failure(seeds, &mut simulate);
    if failure.is_some() || alone {
        eprintln!("last events:\n{}", events::report());
    }
    if let Some(Failure { seed, why }) = failure {
        panic!("seed {seed}: {why}\nreplay: {}", replay_command(seed));
    }
}

/// The command that runs this test with this seed alone. The test harness names the thread after
/// the test; cargo sets the package name in the environment.
fn replay_command(seed: u64) -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "PACKAGE".to_owned());
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("TEST");
    format!("MILLPOND_SEED={seed} cargo test -p {package} {test} -- --exact --nocapture")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failing_seed_is_named_whether_it_errs_or_panics() {
        let odd = |seed| if seed == 7 { Err("odd".to_owned()) } else { Ok(()) };
        assert_eq!(first_failure(0..20, odd), Some(Failure { seed: 7, why: "odd".into() }));
        let panics = first_failure(3..4, |seed| panic!("no {seed}"));
        assert_eq!(panics, Some(Failure { seed: 3, why: "panic: no 3".into() }));
        assert_eq!(first_failure(0..7, odd), None);
    }

    #[test]
    fn the_seed_that_showed_a_fault_before_is_tried_first() {
        let tried = std::cell::RefCell::new(Vec::new());
        let from_3 = |seed| {
            tried.borrow_mut().push(seed);
            if seed < 3 { Ok(()) } else { Err("found".to_owned()) }
        };
        let seen_at = [("early", 9), ("late", 1)];
        assert_eq!(first_failure_of(&"early", &seen_at, 0..20, from_3).unwrap().seed, 9);
        assert_eq!(first_failure_of(&"late", &seen_at, 0..20, from_3).unwrap().seed, 3);
        assert_eq!(first_failure_of(&"never", &seen_at, 0..2, from_3), None);
        assert_eq!(*tried.borrow(), [9, 1, 0, 1, 2, 3, 0, 1]);
    }

    #[test]
    fn a_failure_names_its_replay_command() {
        let command = replay_command(42);
        assert!(command.starts_with("MILLPOND_SEED=42 cargo test -p sim seeds::tests::a_failure"));
    }
}
