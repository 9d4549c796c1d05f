// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond inspect` of a journal in memory: whose it is, and the changes that count.
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use block::ErrorKind;
use control::{EXIT_DONE, Failure};
use format::{
    FRAMES_PREFIX, JOURNAL_PREFIX, Journal, JournalChange, JournalHeader, Op, journal_bytes,
};
use serde_json::{Value, json};

use crate::inspect::{InspectArgs, SHOWN, hex};

/// Whether the file has the name of a journal.
pub(crate) fn is_journal(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(JOURNAL_PREFIX) && path.is_file()
}

/// Shows a journal.
pub(crate) fn run(args: &InspectArgs) -> Result<u8, Failure> {
    let place = args.image.display();
    let failed = |kind, why: String| Failure::new(kind, format!("{place}: {why}"));
    let mut bytes = Vec::new();
    let longest = journal_bytes(format::JOURNAL_CAPACITY_MAX);
    let read = File::open(&args.image).and_then(|f| f.take(longest).read_to_end(&mut bytes));
    read.map_err(|e| failed(ErrorKind::of_io(e.kind()), block::without_errno(&e)))?;
    let journal = Journal::decode(&bytes).map_err(|damage| {
        failed(ErrorKind::Invalid, format!("holds no journal that counts: {damage}"))
    })?;
    let shown = if args.all { usize::MAX } else { SHOWN };
    args.listing.print(&value(args, &journal, shown), || text(args, &journal, shown))?;
    Ok(EXIT_DONE)
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Write => "write",
        Op::Drop => "drop",
        Op::Zero => "zero",
        Op::Clean | Op::Evict | Op::Bad | Op::Epoch | Op::WriteNext => {
            unreachable!("no journal is decoded with such a change")
        }
    }
}

/// How many blocks a change is about, and its slot.
fn extent(change: &JournalChange) -> (u32, Option<u32>) {
    match change.entry.op {
        Op::Drop => (change.entry.slot, None),
        Op::Zero => (change.entry.crc, Some(change.entry.slot)),
        Op::Write | Op::Clean | Op::Evict | Op::Bad | Op::Epoch | Op::WriteNext => {
            (1, Some(change.entry.slot))
        }
    }
}

fn text(args: &InspectArgs, journal: &Journal, shown: usize) -> String {
    let JournalHeader { uuid, boot_id, incarnation, capacity, frames } = &journal.header;
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<12}{text}");
    };
    line("journal", format!("{}, room for {capacity} changes", args.image.display()));
    if *frames > 0 {
        line("buffer", format!("{frames} blocks, in {FRAMES_PREFIX}{}", hex(uuid)));
    }
    line("cache", format!("uuid {}, incarnation {incarnation}", hex(uuid)));
    line("boot", hex(boot_id));
    let count = journal.changes.len();
    line(
        "changes",
        match count {
            0 => "none: the cache device knows all".into(),
            count => {
                format!("{count} that the cache device may not know (first block, blocks, slot)")
            }
        },
    );
    for change in journal.changes.iter().take(shown) {
        let (blocks, slot) = extent(change);
        let slot = slot.map_or(String::new(), |slot| format!(" {slot}"));
        line("", format!("{} {} {blocks}{slot}", name(change.entry.op), change.entry.block));
    }
    if count > shown {
        line("", format!("and {} more; --all shows them", count - shown));
    }
    out
}

fn value(args: &InspectArgs, journal: &Journal, shown: usize) -> Value {
    let JournalHeader { uuid, boot_id, incarnation, capacity, frames } = &journal.header;
    let changes = journal.changes.iter().take(shown).map(|change| {
        let (blocks, slot) = extent(change);
        let (op, first) = (name(change.entry.op), change.entry.block);
        json!({ "op": op, "block": first, "blocks": blocks, "slot": slot, "epoch": change.epoch })
    });
    json!({
        "journal": args.image.to_string_lossy(),
        "uuid": hex(uuid),
        "boot_id": hex(boot_id),
        "incarnation": incarnation,
        "capacity": capacity,
        "buffer_blocks": frames,
        "change_count": journal.changes.len(),
        "changes": changes.collect::<Vec<_>>(),
    })
}
