// SPDX-License-Identifier: Apache-2.0 OR MIT
//! objvol: a log-structured block volume on an object store.
//!
//! ```text
//!        bio
//!   ┌─────▼──────────────────── Volume ───────────────────────────────┐
//!   │ write ─▶ log: gathered segment, segments in flight, map         │  takeover: open, history
//!   │ read  ◀─ map ─▶ memory, or merged ranges of segments            │  background: watch,
//!   │ flush ─▶ the chain of segments is in the store up to here       │   checkpoint, collect
//!   └─────┬───────────────────────────────────────────────────────────┘
//!         │ put-if-absent, get a range, list, delete; repeated until the outcome is known
//!   ┌─────▼─────── ObjectStore ────────┐
//!   │ manifest/  segment/  checkpoint/ │   whoever creates the manifest of an epoch is its
//!   │ owner/                           │   only writer; it seals all epochs before
//!   └──────────────────────────────────┘
//! ```
//!
//! An *epoch* is the time of one writer. Everything that is durable is a chain of immutable
//! segments; any prefix of it is a state that the volume had, in the order of the writes. Nobody is
//! asked whether a writer still lives: it loses its epoch by a seal in the place of its next
//! segment, and learns it there.
//!
//! Each rule is the answer to a counter-example that loses data. They are invariants of the modules
//! that keep them:
//!
//! | rule | invariants |
//! |---|---|
//! | requests are repeated until decided; 412 may be one's own | OV-R in `requests` |
//! | FLUSH is the unbroken chain; later writes lie behind it | OV-W in `write` |
//! | the map follows the log; the window; moved and replaced data | OV-L in `log`, OV-M in `map` |
//! | epochs without gaps, owners, sizes, what an opening reads and when | OV-O in `open` |
//! | every epoch below is sealed; a hole is damage; which checkpoints count | OV-H in `history` |
//! | checkpoints lie in the durable chain, and in the own epoch | OV-K in `checkpoint` |
//! | an increment has everything that has changed since its layers | OV-IM in `log::image` |
//! | garbage by durable checkpoints, after a look; seals stay | OV-G in `collect` |
//! | who is fenced stays fenced, reads too | OV-F in `shared` |
//! | data are checked; what was moved is looked up again | OV-RD in `read` |
//! | what is read ahead is never old, and its errors are nobody's | OV-RA in `read_ahead` |
//! | a check changes nothing, and judges one moment | OV-CH in `check` |
//! | a repair gives up what damage has cut off, and nothing else | OV-RP in `repair` |
//! | which cache may hold newer data, and what may be done without it | OV-A in `attach` |
//! | when a volume is open, made, and left to others | OV-TG in `volume_target` |
//! | when a snapshot exists, and what it keeps | OV-S in `snapshot` |
//! | what the reader of a snapshot needs | OV-SD in `snapshot_device` |
//!
//! The bytes are `format::objvol` and `docs/format/objvol.md`. `tests/it` has a store that lies,
//! writers that fight, and planted faults (`docs/mutations.md`).
//!
//! `volume_target` is the target of a table line. The client of real stores is the room `objstore`.
//!
//! Not there yet: defragmentation by garbage collection; deletion of what lies behind seals. An
//! opening reads something of each epoch
//! since the newest checkpoint: a volume that is opened a thousand times without a write opens
//! slowly.
#![warn(missing_docs)]

mod attach;
mod check;
mod checkpoint;
mod checkpoint_size;
mod collect;
mod config;
mod found;
mod gather;
mod history;
mod join;
mod log;
mod map;
mod open;
mod owner;
mod planted;
mod probe;
mod read;
mod read_ahead;
mod repair;
mod request_counts;
mod requests;
mod shared;
mod snapshot;
mod snapshot_device;
mod store;
mod volume;
mod volume_target;
mod write;

pub use check::{
    CheckpointReport, Depth, Health, LostRange, SnapshotReport, StoredObjects, VolumeReport, check,
};
pub use config::{Geometry, OpenOptions, OtherSize};
pub use format::objvol::{RecordedCache, Snapshot};
pub use open::{Contents, contents, create};
#[cfg(feature = "planted")]
pub use planted::Fault;
pub use repair::repair;
pub use request_counts::RequestCounts;
pub use shared::Fence;
pub use snapshot_device::{SnapshotDevice, snapshots};
pub use store::{Listing, ObjectStore, StoreError, WholeWork};
pub use volume::{Volume, VolumeStatus};
pub use volume_target::{
    Environment, MANUAL, TargetConfig, VolumeEvent, VolumeTarget, split_snapshot,
};
