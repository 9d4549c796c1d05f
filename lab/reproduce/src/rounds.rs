// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of runs: alternating within rounds on this machine, in parallel in virtual time; and
//! the report of progress.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{available_parallelism, scope};

use crate::clock;

/// Receives the share that is done, 0 to 1, and the name of the step that begins or has ended.
pub type Progress<'a> = &'a mut dyn FnMut(f64, &str);

/// Most runs at a time, however many cores there are: each keeps a simulated world in memory.
const PARALLEL_MAX: usize = 4;

/// All turns of all rounds, as (round, kind). Every kind has one turn in a round, and each round
/// begins with another kind: 2 rounds of 3 kinds are 0 1 2, then 1 2 0.
pub fn turns(rounds: usize, kinds: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..kinds).map(move |turn| (round, (round + turn) % kinds)))
}

/// Reports the progress of a sequence of steps.
pub struct Steps<'a> {
    report: Progress<'a>,
    begun: usize,
    of: usize,
}

impl Steps<'_> {
    /// A sequence of `of` steps, none of which has begun.
    pub fn new(report: Progress<'_>, of: usize) -> Steps<'_> {
        Steps { report, begun: 0, of }
    }

    /// Reports that the next step begins.
    pub fn next(&mut self, what: &str) {
        (self.report)(self.begun as f64 / self.of as f64, what);
        self.begun += 1;
    }
}

/// How many runs are in progress at a time.
pub(crate) fn parallel_max() -> usize {
    available_parallelism().map_or(1, usize::from).min(PARALLEL_MAX)
}

/// Does `work` for each job, several at a time, in the order of the list. Returns the outcomes in
/// the order of the jobs. Reports each job when it ends, described by `describe`.
///
/// # Errors
/// The first one of `work`.
pub fn run_parallel<J: Copy + Sync, C: Send>(
    jobs: &[J],
    work: impl Fn(J) -> Result<C, String> + Sync,
    describe: impl Fn(J, &C) -> String,
    progress: Progress<'_>,
) -> Result<Vec<C>, String> {
    let (next, (sender, ended)) = (AtomicUsize::new(0), mpsc::channel());
    let mut outcomes: Vec<Option<C>> = jobs.iter().map(|_| None).collect();
    scope(|s| {
        for _ in 0..parallel_max() {
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
            let text = format!("{}, in {took_s:.1} s", describe(jobs[nth], &outcome));
            progress(f64::from(done) / jobs.len() as f64, &text);
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
    fn each_round_has_every_kind_once_and_begins_with_another() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
    }

    #[test]
    fn outcomes_are_in_the_order_of_the_jobs_and_each_is_reported() {
        let jobs: Vec<u64> = (0..50).collect();
        let mut reported = Vec::new();
        let work = |n: u64| Ok((0..(50 - n) * 1000).fold(n, |sum, _| std::hint::black_box(sum)));
        let done =
            run_parallel(&jobs, work, |n, _| n.to_string(), &mut |done, _| reported.push(done))
                .unwrap();
        assert_eq!(done, jobs);
        assert_eq!((reported.len(), reported.last()), (50, Some(&1.0)));
    }

    #[test]
    fn the_first_failure_ends_all_jobs() {
        let jobs: Vec<u64> = (0..1000).collect();
        let work = |n: u64| if n == 3 { Err(format!("job {n}")) } else { Ok(n) };
        let failed = run_parallel(&jobs, work, |n, _| n.to_string(), &mut |_, _| ());
        assert_eq!(failed, Err("job 3".to_owned()));
    }
}
