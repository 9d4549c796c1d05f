// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In which order things are run: by turns within rounds on this machine, side by side in virtual
//! time; and how far that is.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{available_parallelism, scope};

use crate::clock;

/// Told how much is done, 0 to 1, and what comes next or has come.
pub type Told<'a> = &'a mut dyn FnMut(f64, &str);

/// Runs at once, however many cores there are: each has a world in memory.
const SIDE_BY_SIDE_MAX: usize = 4;

/// All turns of all rounds, each as its round and which of the kinds it is: all kinds alternate
/// within a round, and each round begins with another one.
pub fn turns(rounds: usize, kinds: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..kinds).map(move |turn| (round, (round + turn) % kinds)))
}

/// Tells how far something of so many steps is.
pub struct Steps<'a> {
    told: Told<'a>,
    begun: usize,
    of: usize,
}

impl Steps<'_> {
    /// None has begun.
    pub fn new(told: Told<'_>, of: usize) -> Steps<'_> {
        Steps { told, begun: 0, of }
    }

    /// Says what the next step is.
    pub fn next(&mut self, what: &str) {
        (self.told)(self.begun as f64 / self.of as f64, what);
        self.begun += 1;
    }
}

/// How many runs there are at once.
pub(crate) fn side_by_side_at_most() -> usize {
    available_parallelism().map_or(1, usize::from).min(SIDE_BY_SIDE_MAX)
}

/// Does `work` for each job, some at once, the first ones first. Outcomes are in the order of the
/// jobs. What has ended is told, with the words that `say` has for it.
///
/// # Errors
/// The first one of `work`.
pub fn side_by_side<J: Copy + Sync, C: Send>(
    jobs: &[J],
    work: impl Fn(J) -> Result<C, String> + Sync,
    say: impl Fn(J, &C) -> String,
    told: Told<'_>,
) -> Result<Vec<C>, String> {
    let (next, (sender, ended)) = (AtomicUsize::new(0), mpsc::channel());
    let mut outcomes: Vec<Option<C>> = jobs.iter().map(|_| None).collect();
    scope(|s| {
        for _ in 0..side_by_side_at_most() {
            let (sender, next, work) = (sender.clone(), &next, &work);
            s.spawn(move || {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(nth) else { return };
                    let (begin, outcome) = (clock(), work(*job));
                    if sender.send((nth, outcome, clock() - begin)).is_err() {
                        return; // another one has failed
                    }
                }
            });
        }
        drop(sender);
        for (done, (nth, outcome, took_s)) in (1..).zip(ended) {
            let outcome = outcome?;
            let said = format!("{}, in {took_s:.1} s", say(jobs[nth], &outcome));
            told(f64::from(done) / jobs.len() as f64, &said);
            outcomes[nth] = Some(outcome);
        }
        Ok(())
    })
    .map(|()| outcomes.into_iter().map(|o| o.expect("every job has sent one")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_one_turn_a_round_and_each_round_begins_with_another() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
    }

    #[test]
    fn outcomes_are_in_the_order_of_the_jobs_and_each_is_told() {
        let jobs: Vec<u64> = (0..50).collect();
        let mut told = Vec::new();
        let work = |n: u64| Ok((0..(50 - n) * 1000).fold(n, |sum, _| std::hint::black_box(sum)));
        let done = side_by_side(&jobs, work, |n, _| n.to_string(), &mut |done, _| told.push(done))
            .unwrap();
        assert_eq!(done, jobs);
        assert_eq!((told.len(), told.last()), (50, Some(&1.0)));
    }

    #[test]
    fn what_fails_first_ends_all() {
        let jobs: Vec<u64> = (0..1000).collect();
        let work = |n: u64| if n == 3 { Err(format!("job {n}")) } else { Ok(n) };
        let failed = side_by_side(&jobs, work, |n, _| n.to_string(), &mut |_, _| ());
        assert_eq!(failed, Err("job 3".to_owned()));
    }
}
