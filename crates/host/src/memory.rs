// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory: the budget of this process, which all of its cores share.
//!
//! It is `--memory`; by default half of the machine's memory, or of what the control groups of this
//! process may use (`memory.max`, version 2), whichever is less. Half was chosen, as buffers of
//! requests, the pages of a compressed RAM disk (`mem_limit`) and other programs are not counted.
//! Verbs on images, which have one map only, may use all of it: a cache that a daemon could open
//! can be recovered.
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use block::{Budget, ErrorKind};
use control::{Failure, parse_size};
use format::{Damage, FRAMES_PREFIX, JOURNAL_PREFIX, Journal};
use reactor::{set_memory, set_no_shared_memory, set_shared_memory};
use uring::{Files, MemoryFiles};

/// Where control groups of version 2 are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where the limit comes from without `--memory`.
const BY_DEFAULT: &str = "half of what the machine or the control group has";
const BY_DAEMON: &str = "daemon --memory";
const FOR_TOOLS: &str = "what the machine or the control group has";

/// Of guests, where the machine's memory is not known: an eighth of the addresses of a process.
const GUESTS_BYTES_MAX: u64 = 16 << 40;

static BUDGET: OnceLock<Arc<Budget>> = OnceLock::new();

/// Sets the budget of a daemon that has no option for it: that of `run`.
pub(crate) fn set_by_default() {
    budget();
}

/// The budget of this process, for its cores.
pub fn budget() -> Arc<Budget> {
    BUDGET.get_or_init(|| Arc::new(Budget::new(half(), BY_DEFAULT))).clone()
}

/// The size that an option gives.
fn size_of(option: &str, text: &str) -> Result<u64, Failure> {
    let size = parse_size(text).map_err(|e| e.to_string());
    size.and_then(|n| if n > 0 { Ok(n) } else { Err("at least 1 is allowed".into()) })
        .map_err(|e| Failure::new(ErrorKind::Invalid, format!("{option} {text}: {e}")))
}

/// What of the memory of virtual machines may be mapped. By default twice the machine's memory,
/// whatever the control group may use: the guests are in other ones, as a rule.
pub(crate) fn of_guests(option: Option<&str>) -> Result<u64, Failure> {
    match option {
        Some(text) => size_of("--vhost-memory", text),
        None => Ok(machine().map_or(GUESTS_BYTES_MAX, |all| all.saturating_mul(2))),
    }
}

/// Sets the budget of a daemon, before its cores start.
pub(crate) fn set(option: Option<&str>) -> Result<(), Failure> {
    let limit = option.map_or_else(|| Ok(half()), |text| size_of("--memory", text))?;
    // A second daemon of this process, in tests, keeps the budget of the first.
    let _ = BUDGET.set(Arc::new(Budget::new(limit, BY_DAEMON)));
    Ok(())
}

/// Sets the budget of a verb on images: all memory.
pub fn set_for_tools() {
    // A second one of this process, in tests, keeps the budget of the first.
    let _ = BUDGET.set(Arc::new(Budget::new(all().unwrap_or(u64::MAX), FOR_TOOLS)));
}

/// Sets the budget of the core that runs on this thread, and where it opens memory that outlives
/// the process.
pub(crate) fn set_up(files: &Files, memory_dir: Option<&Path>) {
    set_memory(budget());
    // Those of a daemon that runs before or after this process may.
    set_no_shared_memory();
    let Some(dir) = memory_dir else { return };
    match MemoryFiles::new(files.clone(), dir) {
        Ok(store) => set_shared_memory(Rc::new(store)),
        Err(e) => tracing::warn!("no memory outlives this process: {}", e.chain()),
    }
}

/// Says in the log if the memory that outlives the process is on a disk.
pub(crate) fn check_memory_dir(dir: &Path) {
    if !MemoryFiles::is_in_memory(dir) {
        tracing::info!(
            "run dir {}: is on a disk: the journals of write caches are written there in the \
             background, with the data of their write buffers, and a slow disk may delay writes; \
             on tmpfs (/run) they cost nothing",
            dir.display()
        );
    }
}

/// Removes the journals of write caches in `dir` that have nothing that a cache device may lack: so
/// caches that were removed leave nothing. The lock of `dir` is held, and no cache is open.
pub(crate) fn remove_used_journals(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // An error is found again when the cache is opened, and reported there.
        if name.starts_with(JOURNAL_PREFIX)
            && path.symlink_metadata().is_ok_and(|meta| meta.is_file())
            && let Ok(bytes) = std::fs::read(&path)
            && has_nothing(&Journal::decode(&bytes))
        {
            let _ = std::fs::remove_file(&path);
            // The data of its changes.
            let frames = format!("{FRAMES_PREFIX}{}", &name[JOURNAL_PREFIX.len()..]);
            let _ = std::fs::remove_file(path.with_file_name(frames));
        }
    }
}

/// Whether `dir` has the journal of a write cache.
pub(crate) fn has_journal(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with(JOURNAL_PREFIX))
}

/// Whether a journal has no change: it may be blank.
fn has_nothing(journal: &Result<Journal, Damage>) -> bool {
    match journal {
        Ok(journal) => journal.changes.is_empty(),
        Err(damage) => *damage == Damage::Magic,
    }
}

/// Half of the memory; no limit where that can't be read.
fn half() -> u64 {
    all().map_or(u64::MAX, |all| all / 2)
}

/// The memory of the machine.
fn machine() -> Option<u64> {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text))
}

/// The memory of the machine, or the limit of the control groups if that is less.
fn all() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok();
    let groups =
        groups.as_deref().and_then(group).map(|group| group_max(Path::new(CGROUPS), &group));
    [machine(), groups.flatten()].into_iter().flatten().min()
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The path of the control group of version 2 in /proc/self/cgroup.
fn group(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(PathBuf::from(path))
}

/// The least `memory.max` of a group and those above it.
fn group_max(root: &Path, group: &Path) -> Option<u64> {
    let max = |dir: &Path| {
        let text = std::fs::read_to_string(root.join(dir).join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok() // the word `max` is none
    };
    group.ancestors().filter_map(max).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_machine_is_read() {
        let text = "MemTotal:       24058120 kB\nMemFree:         1 kB\n";
        assert_eq!(mem_total(text), Some(24_058_120 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
        assert!(half() > 0);
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let dir = tempfile::tempdir().unwrap();
        let put = |group: &str, text: &str| {
            std::fs::create_dir_all(dir.path().join(group)).unwrap();
            std::fs::write(dir.path().join(group).join("memory.max"), text).unwrap();
        };
        put("a/b/c", "max\n");
        put("a/b", "2000\n");
        put("a", "1000\n");
        let found = group("1:name=systemd:/x\n0::/a/b/c\n").unwrap();
        assert_eq!(group_max(dir.path(), &found), Some(1000));
        assert_eq!(group_max(dir.path(), Path::new("none")), None);
        assert_eq!(group("1:name=systemd:/x\n"), None);
    }

    #[test]
    fn a_wrong_size_is_refused() {
        for text in ["0", "much", ""] {
            let e = set(Some(text)).unwrap_err();
            assert!(e.message.starts_with(&format!("--memory {text}: ")), "{e}");
        }
    }
}
