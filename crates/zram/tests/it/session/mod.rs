// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session with a real kernel's zram, step by step, and in what ours differs on purpose.
//!
//! `kernel.txt` was taken of Linux 6.1. Its lines are the script: writes of attributes are done as
//! they stand there, and headings (`-- 100 zero pages`) name what a client did.

const SESSION: &str = include_str!("kernel.txt");

/// Writes that are answered in another way on purpose: attribute, value, the kernel's answer,
/// ours, and why.
const DIFFERENCES: [(&str, &str, &str, &str, &str); 6] = [
    ("backing_dev", "/tmp", "EISDIR", "EINVAL", "a kind of error that nothing else has"),
    ("max_comp_streams", "4", "ok", "ENXIO", "did nothing; newer kernels dropped it"),
    ("writeback", "huge", "EIO", "EDQUOT", "a used-up limit is no device error"),
    ("writeback", "incompressible", "EINVAL", "ok", "newer kernels have it"),
    ("writeback", "type=idle", "EINVAL", "ok", "newer kernels have it"),
    ("recompress", "type=idle", "EACCES", "EINVAL", "newer kernels have it; no algorithm is set"),
];

/// The writes that were answered in another way, in the order of the session.
pub(crate) const DIFFERENT: [&str; 7] = [
    "backing_dev /tmp",
    "max_comp_streams 4",
    "writeback huge",
    "writeback huge",
    "writeback incompressible",
    "writeback type=idle",
    "recompress type=idle",
];

/// One line of the session.
pub(crate) enum Step {
    /// An attribute is written; the kernel returned `ok` or an errno.
    Write { name: &'static str, value: &'static str, kernel: &'static str },
    /// What a client does: one of the headings.
    Act(&'static str),
    /// An attribute is read, after the step of the heading: numbers.
    Row { heading: &'static str, name: &'static str, kernel: Vec<u64> },
    /// An attribute is read: words.
    Shown { name: &'static str, kernel: &'static str },
    /// Limits of the device.
    Limits(&'static str),
}

/// What a kernel's message is.
fn errno(message: &str) -> &'static str {
    match message {
        "ok" => "ok",
        "Invalid argument" => "EINVAL",
        // The same kind of error here; as a file's it is ENOENT again.
        "No such file or directory" => "ENXIO",
        "Is a directory" => "EISDIR",
        "Device or resource busy" => "EBUSY",
        "Input/output error" => "EIO",
        "Permission denied" => "EACCES",
        _ => panic!("no errno known for `{message}`"),
    }
}

/// The numbers of a row.
pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|n| n.parse().expect("a number")).collect()
}

/// The session.
pub(crate) fn steps() -> Vec<Step> {
    let mut heading = "";
    let mut steps = Vec::new();
    for line in SESSION.lines() {
        if let Some(write) = line.strip_prefix("write ") {
            let (name, rest) = write.split_once(" <- '").expect("write A <- 'V': result");
            let (value, result) = rest.split_once("': ").expect("write A <- 'V': result");
            steps.push(Step::Write { name, value, kernel: errno(result) });
        } else if let Some(next) = line.strip_prefix("-- ") {
            heading = next;
            steps.push(Step::Act(heading));
        } else if let Some((name, row)) = line.trim_start().split_once(":  ") {
            steps.push(Step::Row { heading, name, kernel: numbers(row) });
        } else if line.starts_with("limits: ") {
            steps.push(Step::Limits(line));
        } else if let Some((name, kernel)) = line.split_once(": ")
            && ["backing_dev", "writeback_limit", "debug_stat"].contains(&name)
        {
            steps.push(Step::Shown { name, kernel });
        }
    }
    // 42 writes, and three rows after each of the 14 headings.
    let rows = steps.iter().filter(|s| matches!(s, Step::Row { .. })).count();
    let writes = steps.iter().filter(|s| matches!(s, Step::Write { .. })).count();
    assert_eq!((writes, rows), (42, 42), "nothing of the session is left out");
    steps
}

/// Checks an answer; prints the write when the answers differ on purpose. `ours` is `ok` or an
/// errno.
pub(crate) fn check(name: &str, value: &str, kernel: &str, ours: &str) -> Option<String> {
    if ours == kernel {
        return None;
    }
    let known = DIFFERENCES.iter().find(|d| (d.0, d.1, d.2) == (name, value, kernel));
    let Some((.., wanted, _)) = known else { panic!("{name} <- '{value}': {kernel}, not {ours}") };
    assert_eq!(ours, *wanted, "{name} <- '{value}'");
    Some(format!("{name} {value}"))
}

/// What the kernel's compressor made of the text pages: bytes, and bytes of memory.
const KERNEL_TEXT: [u64; 2] = [10389, 16384];
/// The rows in which the text pages are in memory.
const WITH_TEXT: [&str; 4] = [
    "+200 text pages",
    "+200 random pages",
    "writeback huge with limit 100 (4 KiB units)",
    "writeback huge, no limit",
];
const AFTER_DISCARD: [&str; 3] = ["discard of the 200 text pages", "compact", "mem_used_max 0"];
/// The client writes on until there is an error.
pub(crate) const INTO_LIMIT: &str = "3000 random pages into mem_limit 8M";

/// Compares a row with the kernel's. `text` is what our compressor made of the text pages.
pub(crate) fn compare(heading: &str, name: &str, kernel: &[u64], ours: &[u64], text: [u64; 2]) {
    let mut wanted = kernel.to_vec();
    if name == "mm_stat" && WITH_TEXT.contains(&heading) {
        wanted[1] = wanted[1] - KERNEL_TEXT[0] + text[0];
        wanted[2] = wanted[2] - KERNEL_TEXT[1] + text[1];
    }
    if name == "mm_stat" && wanted[4] > 0 {
        // The most that was used. The limit is never exceeded here, not even for a moment.
        let limit = wanted[3];
        let most = wanted[4] - KERNEL_TEXT[1] + text[1];
        wanted[4] = if heading == INTO_LIMIT { limit } else { most };
    }
    // Two reads of the kernel's own, which failed, came with the discard.
    match name {
        "bd_stat" if AFTER_DISCARD.contains(&heading) => wanted[1] -= 2,
        "io_stat" if AFTER_DISCARD.contains(&heading) => wanted[0] -= 2,
        _ => {}
    }
    assert_eq!(ours, wanted, "-- {heading}: {name} (kernel: {kernel:?})");
}

/// A page that compresses well.
pub(crate) fn text(slot: u64) -> Vec<u8> {
    let line = format!("page {slot} of a text that says the same again and again\n");
    line.bytes().cycle().take(4096).collect()
}
