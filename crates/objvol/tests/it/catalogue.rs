// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judge of snapshots: who made and deleted which, and what readers found in them.
//!
//! ```text
//!   contents of a snapshot  =  view of its writer
//!                              +  a prefix of that writer's changes, from those that had
//!                                 completed before the command to those at its answer
//! ```
//!
//! A snapshot that was acknowledged is there until somebody asks for its deletion, and its contents
//! never change. One that was deleted is not there. One that an opening has found, or has not
//! found, is changed by no writer of an earlier epoch any more.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, ErrorKind, Nanos, Sector, Status};
use objvol::{SnapshotDevice, Volume};
use sim::WorldRef;

use crate::bucket::Connection;
use crate::judge::{BLOCK_BYTES, BLOCK_SECTORS, View, WriterLog, stamps};
use crate::writer::Setup;

/// A snapshot that somebody has asked for.
#[derive(Clone, Debug)]
struct SnapshotRecord {
    name: String,
    epoch: u64,
    /// Changes of its writer that had completed before.
    from: usize,
    /// Its changes when the command succeeded.
    to: Option<usize>,
    /// Epochs of the writers that have asked for its deletion.
    deletions: Vec<u64>,
    is_deleted: bool,
    /// What a reader has found.
    contents: Option<View>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Catalogue {
    taken: RefCell<Vec<SnapshotRecord>>,
    /// The snapshots that each opening has found.
    listed: RefCell<Vec<(u64, BTreeSet<String>)>>,
    pub(crate) failure: RefCell<Option<String>>,
}

impl Catalogue {
    /// An opening has found these.
    pub(crate) fn list(&self, volume: &Volume) {
        let Ok(there) = volume.snapshots() else { return };
        let names = there.into_iter().map(|snapshot| snapshot.name).collect();
        self.listed.borrow_mut().push((volume.status().epoch, names));
    }

    /// A writer asks for a snapshot; `from` of its changes have completed. The number of it.
    pub(crate) fn begin(&self, epoch: u64, from: usize) -> (usize, String) {
        let mut taken = self.taken.borrow_mut();
        let nth = taken.len();
        let name = format!("s{nth}");
        let (deletions, name_too) = (Vec::new(), name.clone());
        let (to, is_deleted, contents) = (None, false, None);
        taken.push(SnapshotRecord { name, epoch, from, to, deletions, is_deleted, contents });
        (nth, name_too)
    }

    /// The command has succeeded when its writer had sent so many changes.
    pub(crate) fn made(&self, nth: usize, to: usize) {
        self.taken.borrow_mut()[nth].to = Some(to);
    }

    /// Draws a snapshot that was made, to be deleted by a writer of this epoch.
    pub(crate) fn draw_deletion(&self, world: &WorldRef, epoch: u64) -> Option<(usize, String)> {
        let mut taken = self.taken.borrow_mut();
        let is_there = |t: &SnapshotRecord| t.to.is_some() && t.deletions.is_empty();
        let there: Vec<usize> = (0..taken.len()).filter(|n| is_there(&taken[*n])).collect();
        if there.is_empty() {
            return None;
        }
        let nth = there[world.borrow_mut().rng.index(there.len())];
        taken[nth].deletions.push(epoch);
        Some((nth, taken[nth].name.clone()))
    }

    /// The deletion has succeeded.
    pub(crate) fn deleted(&self, nth: usize) {
        self.taken.borrow_mut()[nth].is_deleted = true;
    }

    /// Reads snapshots at random, without an end.
    pub(crate) async fn read_some(
        self: Rc<Self>,
        world: WorldRef,
        connection: Connection,
        setup: Setup,
    ) {
        loop {
            let (pause, nth) = {
                let rng = &mut world.borrow_mut().rng;
                let longest = rng.pick(&[1_000_000_000, 10_000_000_000, 100_000_000_000]);
                (rng.range(1, longest), rng.below(1 << 30))
            };
            reactor::sleep(Nanos(pause)).await;
            let count = self.taken.borrow().len();
            if count > 0 {
                let nth = usize::try_from(nth).unwrap() % count;
                let _ = self.look(nth, &connection, setup).await.map_err(|why| self.fail(why));
            }
        }
    }

    fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
    }

    /// Opens and reads a snapshot. Whether it is there.
    async fn look(
        &self,
        nth: usize,
        connection: &Connection,
        setup: Setup,
    ) -> Result<bool, String> {
        let before = self.taken.borrow()[nth].clone();
        let name = &before.name;
        let failure = |what: &str| {
            let now = self.taken.borrow()[nth].clone();
            Err(format!("{what}: {before:?}, now {now:?}"))
        };
        let store = Rc::new(connection.clone());
        let opened = SnapshotDevice::open(store, name, &setup.options("reader")).await;
        let may_have_gone = |t: &SnapshotRecord| !t.deletions.is_empty();
        let device = match opened {
            Ok(_) if before.is_deleted => return failure("it was deleted, and is there"),
            Ok(device) => device,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                if before.to.is_some() && !may_have_gone(&self.taken.borrow()[nth]) {
                    return failure("it is not there");
                }
                return Ok(false);
            }
            Err(e) => return failure(&e.chain()),
        };
        let buf = Buf::alloc(usize::try_from(setup.blocks).unwrap() * BLOCK_BYTES);
        let device: Rc<dyn BlockDevice> = device;
        match reactor::read(&*device, Class::Foreground, Sector(0), buf.all().into()).await {
            Ok(()) => {}
            Err(Status::Stale) if may_have_gone(&self.taken.borrow()[nth]) => return Ok(false),
            Err(status) => return failure(&format!("a read failed: {status}")),
        }
        assert_eq!(device.limits().capacity, Sector(setup.blocks * BLOCK_SECTORS));
        let view = buf.read(|data| stamps(data, 0))?;
        let known = self.taken.borrow_mut()[nth].contents.replace(view.clone());
        if known.is_some_and(|known| known != view) {
            return failure(&format!("its contents have changed to {view:x?}"));
        }
        Ok(true)
    }

    /// Reads every snapshot, and judges all that was seen.
    pub(crate) async fn judge(
        self: Rc<Self>,
        connection: Connection,
        setup: Setup,
        logs: Vec<WriterLog>,
    ) -> Result<(), String> {
        let count = self.taken.borrow().len();
        for nth in 0..count {
            let is_there = self.look(nth, &connection, setup).await?;
            let taken = self.taken.borrow()[nth].clone();
            self.judge_listings(&taken, is_there)?;
            let log = logs.iter().find(|log| log.epoch == taken.epoch).expect("its writer");
            judge_contents(&taken, log)?;
        }
        Ok(())
    }

    fn judge_listings(&self, taken: &SnapshotRecord, is_there: bool) -> Result<(), String> {
        for (epoch, names) in self.listed.borrow().iter().filter(|(e, _)| *e > taken.epoch) {
            let is_listed = names.contains(&taken.name);
            let later = taken.deletions.iter().any(|by| by >= epoch);
            let earlier = taken.deletions.iter().any(|by| by < epoch);
            if is_listed && !is_there && !later {
                return Err(format!("epoch {epoch} found it, and it has gone: {taken:?}"));
            }
            if !is_listed && is_there {
                return Err(format!("epoch {epoch} did not find it, and it is there: {taken:?}"));
            }
            if !is_listed && taken.to.is_some() && !earlier {
                return Err(format!("epoch {epoch} did not find it: {taken:?}"));
            }
        }
        Ok(())
    }
}

fn judge_contents(taken: &SnapshotRecord, log: &WriterLog) -> Result<(), String> {
    let Some(found) = &taken.contents else { return Ok(()) };
    let to = taken.to.unwrap_or(log.changes.len());
    let contents = |count: usize| {
        let changes = log.changes[..count].to_vec();
        WriterLog { changes, ..log.clone() }.contents()
    };
    if (taken.from..=to).any(|count| contents(count) == *found) {
        return Ok(());
    }
    let wanted = contents(taken.from);
    Err(format!("a snapshot of no state of its writer: {taken:x?}; at first that was {wanted:x?}"))
}

#[test]
fn the_judge_finds_contents_that_no_state_had() {
    let log = WriterLog {
        epoch: 2,
        view: Some(vec![0, 0]),
        changes: (0..2).map(|n| crate::judge::Change { blocks: n..n + 1, stamp: n + 5 }).collect(),
        flushed: 0,
    };
    let taken = |from, to, contents: [u64; 2]| SnapshotRecord {
        name: "s".into(),
        epoch: 2,
        from,
        to,
        deletions: Vec::new(),
        is_deleted: false,
        contents: Some(contents.to_vec()),
    };
    assert_eq!(judge_contents(&taken(0, Some(1), [5, 0]), &log), Ok(()));
    assert_eq!(judge_contents(&taken(1, None, [5, 6]), &log), Ok(()));
    assert!(judge_contents(&taken(1, None, [0, 0]), &log).is_err());
    assert!(judge_contents(&taken(0, Some(1), [5, 6]), &log).is_err());
    assert!(judge_contents(&taken(0, None, [0, 6]), &log).is_err());
}
