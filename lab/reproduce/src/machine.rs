// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The description of the machine that figures were measured on.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::cpu::cpus;

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

/// The value of the line `name: value` in a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of memory that the system says are available.
pub fn available_memory_bytes() -> Option<u64> {
    let text = field("/proc/meminfo", "MemAvailable")?;
    text.trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Date, CPU, memory, kernel, and the disk that holds `dir`.
pub fn facts(dir: &Path) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let memory = field("/proc/meminfo", "MemTotal").and_then(|text| {
        let kib: f64 = text.trim_end_matches("kB").trim().parse().ok()?;
        Some(format!("{:.1} GiB", kib / f64::from(1 << 20)))
    });
    let (file_system, disk) = disk_of(dir);
    vec![
        ("date", today()),
        ("CPU", field("/proc/cpuinfo", "model name").unwrap_or_else(unknown)),
        ("cores", cpus().len().to_string()),
        ("memory", memory.unwrap_or_else(unknown)),
        ("kernel", release),
        ("load before", read("/proc/loadavg").unwrap_or_else(unknown)),
        ("directory", dir.display().to_string()),
        ("file system", file_system.unwrap_or_else(unknown)),
        ("disk", disk.unwrap_or_else(unknown)),
    ]
}

/// The type of the file system that `dir` is on, and its disk.
fn disk_of(dir: &Path) -> (Option<String>, Option<String>) {
    let Ok(meta) = fs::metadata(dir) else { return (None, None) };
    let number = format!("{}:{}", major(meta.dev()), minor(meta.dev()));
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    // `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE ...`
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number));
    let file_system = mount.and_then(|line| {
        let mut words = line.split_once(" - ")?.1.split(' ');
        Some(format!("{} on {}", words.next()?, words.next()?))
    });
    let device = PathBuf::from("/sys/dev/block").join(&number);
    let disk = fs::canonicalize(device).ok().map(|device| {
        // A partition has no queue: its disk is one up.
        let whole = if device.join("queue").exists() { device } else { device.join("..") };
        let model = read(whole.join("device/model"));
        let name = fs::canonicalize(&whole).ok();
        let name = name.and_then(|n| Some(n.file_name()?.to_string_lossy().into_owned()));
        let rotates = match read(whole.join("queue/rotational")).as_deref() {
            Some("1") => "rotates",
            Some(_) => "does not rotate",
            None => "may rotate",
        };
        let name = name.unwrap_or_else(|| number.clone());
        format!("{name}, {}, {rotates}", model.unwrap_or_else(|| "model unknown".to_owned()))
    });
    (file_system, disk)
}

/// The date in UTC.
fn today() -> String {
    use rustix::time::{ClockId, clock_gettime};
    let (year, month, day) = civil(clock_gettime(ClockId::Realtime).tv_sec / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day since 1970-01-01, counted in eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_779), (2026, 11, 22));
    }

    #[test]
    fn facts_name_cpu_memory_kernel_and_disk() {
        let facts = facts(&std::env::temp_dir());
        for name in ["CPU", "cores", "memory", "kernel", "file system", "disk"] {
            let value = &facts.iter().find(|(n, _)| *n == name).unwrap().1;
            assert!(!value.is_empty(), "{name}");
        }
    }
}
