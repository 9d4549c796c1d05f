// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPUs that this process may use, and its CPU time.
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Confines this thread, and the processes it starts from now on, to one CPU.
///
/// # Errors
/// What the system said.
pub fn pin(cpu: usize) -> io::Result<()> {
    pin_to(&[cpu])
}

/// Confines this thread, and the processes it starts from now on, to these CPUs.
///
/// # Errors
/// What the system said.
pub fn pin_to(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// CPU seconds that this process has used with all its threads, those of its io_uring included.
pub fn cpu_seconds() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
