// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures of the process, under the names that all programs have for them.
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// When the daemon started, in milliseconds since 1970.
static START: OnceLock<u64> = OnceLock::new();

/// What the system reports of this process. What it does not report is 0.
#[derive(Debug)]
pub(super) struct ProcessFigures {
    pub(super) cpu_us: u64,
    pub(super) resident_bytes: u64,
    pub(super) open_fds: u64,
    pub(super) max_fds: u64,
    pub(super) threads: u64,
    pub(super) start_ms: u64,
    pub(super) now_ms: u64,
}

/// Takes the time as that of the start, once.
pub(crate) fn note_start() {
    START.get_or_init(now_ms);
}

#[expect(clippy::disallowed_methods, reason = "the time of day, for people")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl ProcessFigures {
    pub(super) fn read() -> ProcessFigures {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let part = |n: i64| u64::try_from(n).unwrap_or(0);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        ProcessFigures {
            cpu_us: part(cpu.tv_sec) * 1_000_000 + part(cpu.tv_nsec) / 1000,
            resident_bytes: field(&status, "VmRSS:") << 10,
            // One of them is that of the listing.
            open_fds: fds.saturating_sub(1),
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            threads: field(&status, "Threads:"),
            now_ms: now_ms(),
            start_ms: START.get().copied().unwrap_or(0),
        }
    }
}

/// The number behind `name` in a file of lines `NAME NUMBER [UNIT]`.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_threads_and_files() {
        note_start();
        let figures = ProcessFigures::read();
        assert!(figures.resident_bytes > 100_000, "{figures:?}");
        assert!(figures.threads >= 1 && figures.open_fds >= 3, "{figures:?}");
        assert!(figures.max_fds >= figures.open_fds, "{figures:?}");
        assert!(figures.start_ms > 1_700_000_000_000, "{figures:?}");
    }
}
