// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults: known bugs that tests switch on, to prove that the tests find them. Only with
//! the cargo feature `planted`.

/// One bug each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A FLUSH completes when its own segment is durable, although one before it is not.
    AckBeforeChain,
    /// An object that exists already is taken for the writer's own.
    BelieveExists,
    /// A take-over seals no epoch.
    SkipSeal,
    /// A take-over seals only the newest epoch below its own.
    SealNewestOnly,
    /// A take-over deletes its seals when it has read the map.
    DeleteSeals,
    /// An opening does not look whether it was taken over while it read.
    OpenUnlooked,
    /// A volume grows in memory only: the manifest has the old size.
    GrowInMemory,
    /// A hole in the chain is taken for its end although a segment behind it proves that it is not.
    HoleIsEnd,
    /// A checkpoint is written before the segments that it includes are durable.
    CheckpointBeforeChain,
    /// A writer that has not written anything writes a checkpoint, at the place of another epoch.
    CheckpointOfOtherEpoch,
    /// A free name is taken for damage without a second look at it.
    HoleSeenOnce,
    /// A checkpoint counts although its place lies behind the seal of its epoch.
    BelieveBeyondSeal,
    /// Checkpoints are deleted although an increment has them as layers.
    ForgetLayers,
    /// An increment does not name the newest checkpoint as a layer, but those before it.
    StaleLayers,
    /// Another object is taken for a layer, if it has its place.
    BelieveLayers,
    /// An increment misses what was discarded.
    ForgetCleared,
    /// The first increment of an opening misses what that has replayed.
    ForgetReplayed,
    /// The checkpoint of a snapshot may be an increment, the layers of which are deleted.
    SnapshotOfLayers,
    /// Segments are garbage if the map in memory does not point to them.
    GarbageByMemory,
    /// Garbage is deleted without a look whether the epoch is the newest.
    DeleteUnlooked,
    /// Moved data count although their sectors were written meanwhile.
    MoveOverNewer,
    /// A write replaces an earlier one of its segment although a later one has written a part of
    /// that.
    ReplaceOverNewer,
    /// A write that replaces an earlier one leaves the checksum in its record as it was.
    ReplaceUnchecked,
    /// Segments are sent without regard to the window.
    IgnoreWindow,
    /// Writers never wait for garbage collection.
    UnpacedWriters,
    /// Garbage collection tries what it can't read again and again.
    StopAtDamage,
    /// Segments are garbage if the map has nothing of them, although snapshots do.
    CollectUnderSnapshots,
    /// A snapshot is entered into the log before its checkpoint is durable.
    SnapshotBeforeCheckpoint,
    /// What a deleted snapshot needed is garbage, although others need it, too.
    FreeSharedSegments,
    /// The checkpoints of snapshots are deleted as others are.
    ForgetSnapshotCheckpoints,
    /// What a snapshot needed is deleted before its deletion is durable.
    FreeBeforeDeletion,
    /// A snapshot is acknowledged before its entry in the log is durable.
    AckSnapshotBeforeChain,
    /// A cache goes on before the record that names it is durable.
    AttachUnrecorded,
    /// A cache goes on without a look whether the volume was taken over meanwhile.
    AttachUnlooked,
    /// An opening does not read the owner record again when its manifest is durable.
    OwnerReadOnce,
    /// A record without the cache is written before what the cache has written is durable.
    ReleaseUnflushed,
    /// After a release with an unknown outcome the cache goes on as before.
    UnsettledKept,
    /// A cache goes on by its record although the look behind that had no answer.
    UnlookedKept,
    /// An opening writes no owner record where the newest one names its host.
    OwnerRecordKept,
    /// The record of a cache that is not there does not keep others from changing the volume.
    ChangeWithoutCache,
    /// An opening without the cache that is recorded has the lineage of before.
    LineageKept,
    /// A read takes data without checking their checksum.
    SkipChecksum,
    /// A read takes what the map had when its data were read ahead.
    ReadAheadByOldMap,
    /// An error of a request that was sent ahead is an error of the read.
    ReadAheadErrors,
    /// There is read-ahead behind random reads, too.
    ReadAheadOfAll,
    /// A check believes the damage that it finds while a writer changes the volume.
    CheckOnce,
}
