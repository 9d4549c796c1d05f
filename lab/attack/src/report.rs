// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings of the judge in words.

use std::fmt::Write;

use crate::history::{Event, EventKind, Kind, Outcome, Version, Violation};
use crate::pattern::Content;

/// Events of all sectors that are shown: for so many ticks before the missing write, so many from
/// there on, and so many before the read.
const LEAD: u64 = 300;
const FIRST: usize = 80;
const LAST: usize = 25;

fn content(content: Content) -> String {
    match content {
        Content::Write(write) => format!("write {write}"),
        Content::Zeroes => "zeroes".into(),
        Content::Foreign { sector, write } => format!("write {write} of sector {sector}"),
        Content::Mixed { write, words } => {
            format!("garbage: says write {write}, {words} of 64 words are that")
        }
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Data => "write",
        Kind::Zeroes => "zeroing",
        Kind::Discard => "discard",
    }
}

fn version(v: &Version) -> String {
    let end = if v.ended == u64::MAX { "...".into() } else { v.ended.to_string() };
    let mut text = format!("{} {} [{}..{end}]", kind(v.kind), v.write, v.begun);
    match v.outcome {
        None => text.push_str(" unanswered"),
        Some(Outcome::Failed) => text.push_str(" failed"),
        Some(Outcome::Done) => {}
    }
    for (is, word) in [(v.fua, " fua"), (v.durable, " durable")] {
        text.push_str(if is { word } else { "" });
    }
    if let Some((by, at)) = v.superseded_by {
        let _ = write!(text, " (a read up to {at} has found {by} instead)");
    }
    text
}

fn event(event: &Event) -> String {
    let how = |outcome| match outcome {
        Outcome::Done => "done",
        Outcome::Failed => "FAILED",
    };
    let what = match event.kind {
        EventKind::Begun { write, kind: k, fua, by } => {
            let fua = if fua { ", FUA" } else { "" };
            format!("{} {write} begins, by opener {by}{fua}", kind(k))
        }
        EventKind::Ended { write, outcome } => format!("write {write} {}", how(outcome)),
        EventKind::Found { content: c, since } => {
            format!("a read since {since} found {}", content(c))
        }
        EventKind::FlushEnded { by, since, outcome } => {
            format!("FLUSH of opener {by} since {since} {}", how(outcome))
        }
        EventKind::Loss => "a disk fails a FLUSH and loses data".into(),
        EventKind::Crash { power: true } => "CRASH, and power cut of disks".into(),
        EventKind::Crash { power: false } => "CRASH".into(),
        EventKind::OrderlyEnd => "orderly end".into(),
        EventKind::Opened { by } => format!("opener {by} connects"),
        EventKind::OrderFailed => "an order of the operator fails".into(),
    };
    format!("{:>8}  {what}", event.tick)
}

/// A violation, with the history of its sector.
pub fn violation(v: &Violation) -> String {
    let list = |versions: &[Version]| {
        versions.iter().map(|v| format!("    {}\n", version(v))).collect::<String>()
    };
    let mut text = format!(
        "VIOLATION: sector {} was read at [{}..{}] and held {}\n  it might have held\n{}",
        v.sector,
        v.read.0,
        v.read.1,
        content(v.content),
        list(&v.allowed),
    );
    let _ = write!(text, "  of these versions\n{}  history\n", list(&v.versions));
    // From the write that is missing on, and what came last; before that only the sector's own.
    let from = v.allowed.iter().map(|v| v.begun).min().unwrap_or(0);
    let near = v.events.iter().filter(|e| e.tick + LEAD > from).count();
    let (mut shown, mut left_out) = (0, 0);
    for (e, at) in v.events.iter().zip(0..) {
        let own = matches!(
            e.kind,
            EventKind::Begun { .. } | EventKind::Ended { .. } | EventKind::Found { .. }
        );
        let wanted = e.tick + LEAD > from && shown < FIRST || at + LAST > v.events.len();
        if own || wanted || near < FIRST && e.tick + LEAD > from {
            if left_out > 0 {
                let _ = writeln!(text, "            ... {left_out} of all sectors left out");
                left_out = 0;
            }
            shown += usize::from(!own && e.tick + LEAD > from);
            let _ = writeln!(text, "  {}", event(e));
        } else {
            left_out += 1;
        }
    }
    text
}
