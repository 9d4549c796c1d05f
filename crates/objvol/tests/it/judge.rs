// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judge of a volume's history: what each writer wrote, what was acknowledged to it as flushed,
//! and what each opening found.
//!
//! ```text
//!   view of an opening  =  view of the opening before  +  a prefix of that writer's changes
//!                                                         that has all that it had flushed
//! ```
//!
//! A writer's changes are in one order: its client sends them one after the other. So there must
//! be such a prefix, whatever writers, store and crashes did in between; and what a fenced writer
//! wrote later is in no view.
use std::ops::Range;

/// Sectors of a block: the unit of the judge.
pub(crate) const BLOCK_SECTORS: u64 = 2;
pub(crate) const BLOCK_BYTES: usize = 1024;

/// What a block holds: the number of a write, or 0 for zeroes.
pub(crate) type Stamp = u64;

/// Contents of all blocks.
pub(crate) type View = Vec<Stamp>;

/// A change of blocks; `stamp` 0 is a discard.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) blocks: Range<u64>,
    pub(crate) stamp: Stamp,
}

/// What one opening found and did.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriterLog {
    pub(crate) epoch: u64,
    /// What it found; `None` while it has not read everything.
    pub(crate) view: Option<View>,
    pub(crate) changes: Vec<Change>,
    /// So many of its changes were acknowledged as flushed.
    pub(crate) flushed: usize,
}

impl WriterLog {
    /// What the writer must read: its view with all its changes.
    pub(crate) fn contents(&self) -> View {
        let mut contents = self.view.clone().expect("a writer reads before it writes");
        self.changes.iter().for_each(|change| change.apply(&mut contents));
        contents
    }
}

impl Change {
    fn apply(&self, contents: &mut View) {
        for block in self.blocks.clone() {
            contents[usize::try_from(block).unwrap()] = self.stamp;
        }
    }
}

/// Checks that each view follows from the one before. `first` is what the volume was made with.
pub(crate) fn check(logs: &[WriterLog]) -> Result<(), String> {
    let mut opened: Vec<&WriterLog> = logs.iter().filter(|log| log.view.is_some()).collect();
    opened.sort_by_key(|log| log.epoch);
    for pair in opened.windows(2) {
        let [before, after] = pair else { unreachable!("windows of two") };
        follows(before, after)?;
    }
    Ok(())
}

fn follows(before: &WriterLog, after: &WriterLog) -> Result<(), String> {
    let view = after.view.as_ref().expect("only those with a view");
    let mut contents = before.view.clone().expect("only those with a view");
    let mut nearest: Option<(usize, usize, View)> = None;
    for kept in 0..=before.changes.len() {
        if kept > 0 {
            before.changes[kept - 1].apply(&mut contents);
        }
        let wrong = contents.iter().zip(view).filter(|(a, b)| a != b).count();
        if wrong == 0 && kept >= before.flushed {
            return Ok(());
        }
        if kept >= before.flushed && nearest.as_ref().is_none_or(|(least, ..)| wrong < *least) {
            nearest = Some((wrong, kept, contents.clone()));
        }
    }
    let (wrong, kept, contents) = nearest.expect("all are kept at the end");
    let block = contents.iter().zip(view).position(|(a, b)| a != b).unwrap_or(0);
    Err(format!(
        "epoch {} found what no prefix of the changes of epoch {} gives: of {} changes {} were \
         flushed; with the first {kept} of them {wrong} blocks are wrong, first block {block}, \
         which has {:#x} instead of {:#x}",
        after.epoch,
        before.epoch,
        before.changes.len(),
        before.flushed,
        view[block],
        contents[block],
    ))
}

/// Fills the data of blocks from `first` on with a stamp.
pub(crate) fn fill(data: &mut [u8], first: u64, stamp: Stamp) {
    for (block, data) in (first..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        for word in data.chunks_exact_mut(16) {
            word[..8].copy_from_slice(&stamp.to_le_bytes());
            word[8..].copy_from_slice(&block.to_le_bytes());
        }
    }
}

/// The stamps of blocks from `first` on.
pub(crate) fn stamps(data: &[u8], first: u64) -> Result<Vec<Stamp>, String> {
    let mut stamps = Vec::new();
    for (block, data) in (first..).zip(data.chunks_exact(BLOCK_BYTES)) {
        let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
        let mut wanted = vec![0; BLOCK_BYTES];
        if stamp != 0 {
            fill(&mut wanted, block, stamp);
        }
        if data != wanted {
            return Err(format!("block {block} holds a mixture, beginning with {stamp:#x}"));
        }
        stamps.push(stamp);
    }
    Ok(stamps)
}

#[test]
fn the_judge_finds_lost_and_foreign_changes() {
    let log = |epoch, view: &[u64], stamps: &[u64], flushed| WriterLog {
        epoch,
        view: Some(view.to_vec()),
        changes: (0..).zip(stamps).map(|(n, &stamp)| Change { blocks: n..n + 1, stamp }).collect(),
        flushed,
    };
    let first = log(1, &[0, 0, 0], &[5, 6, 7], 2);
    let after = |view: &[u64]| check(&[first.clone(), log(2, view, &[], 0)]);
    assert_eq!((after(&[5, 6, 0]), after(&[5, 6, 7])), (Ok(()), Ok(())));
    assert!(after(&[5, 0, 0]).unwrap_err().contains("2 were flushed"));
    assert!(after(&[5, 0, 7]).is_err() && after(&[5, 6, 8]).is_err());
}
