// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operator: commands of millpond, at random, beside the clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::daemon::{Ended, Place};
use crate::history::Outcome;
use crate::judge::Judge;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::{Result, lock, pause_ms};

/// Orders that went well, and others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Orders {
    /// Exit code 0.
    pub done: u64,
    /// Any other.
    pub failed: u64,
}

/// Gives one order; whether it went well.
pub fn order(place: &Place, judge: &Mutex<Judge>, table: &str, order: &str) -> Result<Ended> {
    let words: Vec<&str> = order.split(' ').map(|w| if w == "TABLE" { table } else { w }).collect();
    if words[0] == "set" {
        return place.verb(&words); // hears of no FLUSH
    }
    let begun = lock(judge).order_begins();
    if words[0] == "resume" {
        lock(judge).loading_begins();
    }
    let mut ended = place.verb(&words)?;
    // A cache that has failed is given up: what its disk has refused, no FLUSH has covered.
    if words[0] == "resume"
        && ended != Ended::Code(0)
        && let Some(token) = place.token_for_memory()
    {
        ended = place.verb(&[&words[..], &["--force", &token]].concat())?;
    }
    lock(judge).loading_ends();
    let done = ended == Ended::Code(0);
    lock(judge).order_ends(begun, if done { Outcome::Done } else { Outcome::Failed });
    Ok(ended)
}

/// Gives orders (`only` those that hold a text) until it is told to stop;
/// those that belong together are given all.
pub fn run(
    place: &Place,
    judge: &Arc<Mutex<Judge>>,
    scenario: &Scenario,
    only: Option<&str>,
    table: &str,
    mut rng: Rng,
    stop: &AtomicBool,
) -> Result<Orders> {
    let mut orders = Orders::default();
    let wanted = |orders: &&&[&str]| only.is_none_or(|only| orders.concat().contains(only));
    let known: Vec<&[&str]> = scenario.orders.iter().filter(wanted).copied().collect();
    // Some are in a hurry, some hardly do anything.
    let pause = *rng.pick(&[20, 100, 400]);
    while !stop.load(Ordering::SeqCst) {
        pause_ms(rng.below(pause));
        if known.is_empty() {
            continue;
        }
        for text in *rng.pick(&known) {
            if *text == "-" {
                pause_ms(rng.below(40));
                continue;
            }
            match order(place, judge, table, text)? {
                Ended::Code(0) => orders.done += 1,
                Ended::Code(_) => orders.failed += 1,
                Ended::Late => return Err(format!("`millpond {text}` does not end")),
            }
        }
    }
    Ok(orders)
}
