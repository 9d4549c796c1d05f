// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults, and what else tests set in a config, behind the feature `planted`.
#[cfg(feature = "planted")]
use crate::config::Config;

/// Faults planted on purpose, so that tests can prove that they would be seen. A table never sets
/// one, and a build without the feature `planted` has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "public with the feature"))]
pub enum Fault {
    /// A block that the cache device could not read is not read again.
    NeverReadAgain,
    /// The origin's record of the cache is not waited for.
    RecordedLate,
    /// The origin's record of the cache ends although the cache holds blocks.
    ReleasedHeld,
    /// A cache around which writes go promises that a kill undoes none of them, although its origin
    /// forgets what is not flushed.
    SurvivesUnordered,
    /// The identity of an origin is not compared.
    LineageUnchecked,
    /// A suspend does not wait for the reads of scrub.
    ScrubUnguarded,
    /// A suspend does not wait for admissions of reads.
    AdmissionUnguarded,
    /// A block that was read enters the cache though the origin has changed meanwhile.
    AdmitBesideChange,
    /// A block that was read takes the place of a newer version.
    AdmitOverNewer,
    /// A block that was read and the log names it before its data are durable.
    AdmittedNamedEarly,
    /// The log names a block that was read while the origin may lose what was read.
    AdmittedBesideVolatile,
    /// A cache that is emptied takes blocks that are read.
    AdmitWhenEmptied,
    /// A block that was read enters a cache that is flushed by its suspend.
    AdmitAfterFlush,
    /// A cache that is emptied before another table takes its place is suspended as any other.
    AdmitAfterEmptying,
    /// Blocks that are read take the slots that are kept for writers.
    AdmitLastSlots,
    /// A block that is admitted keeps its ghost.
    GhostKept,
    /// A block that changes between two pieces of a batch is not logged again.
    ChangedBetweenPieces,
    /// A commit does not wait for data that are in the write buffer.
    FlushForgetsBuffer,
    /// Data of the write buffer that their slot has refused count as written.
    BufferErrorSwallowed,
    /// A slot whose data are being written from the write buffer is free at once.
    BufferSlotReused,
    /// A version of the journal counts though a later one of another block has its slot.
    JournalSlotTwice,
    /// A version that moves to another slot is not found by references of before.
    MovedVersionLost,
    /// The journal names a version of the write buffer whose frame does not have the data.
    FrameNotStored,
    /// A version that moves to another slot leaves its frame and its slot at once.
    FrameLeftEarly,
    /// Records that name a slot which has refused its data are not written again.
    RecordsNotRepeated,
    /// Recovery takes nothing from the frames of the write buffer.
    FramesIgnored,
    /// Reads do not look into the write buffer.
    ReadPastBuffer,
    /// Writeback does not look into the write buffer.
    WritebackPastBuffer,
    /// A new version of a buffered block takes the place of the old one, even while it is written.
    BufferedOverwritten,
    /// A client reads before a record says that the cache was opened.
    ReadBeforeRecord,
    /// A cache device with blocks takes the place of another one.
    UsedCacheTaken,
    /// A commit skips the flush of the cache device.
    SkipCacheFlush,
    /// The superblock names a checkpoint before its units are on the media.
    SuperblockBeforeData,
    /// A FUA write completes without a commit.
    IgnoreFua,
    /// Recovery takes records without checking the checksums of their data.
    DropChecksumCheck,
    /// A block counts as written back before the origin's flush.
    FreeBeforeOriginDurable,
    /// A superseded slot is free before the record that supersedes it is durable.
    ReuseBeforeCommit,
    /// Data of a span count for whatever version the block has by then.
    SpanNotCompared,
    /// Data of a span count although their read has failed.
    SpanErrorIgnored,
    /// A block is written back although the log may still call an older version clean.
    WritebackBeforeCommit,
    /// A record has blocks whose data writes are still in flight.
    RecordBeforeData,
    /// A write goes around the cache although an entry is live.
    AroundBesideLive,
    /// A write goes around the cache before it is durable that the clean copy is gone.
    AroundBeforeDrop,
    /// Writethrough: a dirty block leaves the cache before the origin's flush of its new data.
    ThroughBeforeFlush,
    /// Writethrough: the origin's block is not locked while its new data are written.
    ThroughUnlocked,
    /// Writethrough: the origin gets new data of a block that the log still calls clean.
    ThroughBeforeCommit,
    /// Writethrough: a write ends although the log still has the old version of the block.
    ThroughDropUnlogged,
    /// Writethrough: a write over a dirty block does not wait for a merge of it.
    ThroughBesideMerge,
    /// Writethrough: the write of a part drops whatever version the cache holds by then.
    ThroughDropsNewer,
    /// Writethrough: a write that was in flight at the switch stays in the cache.
    ThroughLeavesBegun,
    /// A FLUSH does not flush the origin after writes that went around.
    FlushWithoutOrigin,
    /// `max_age` counts only while nothing else is to be written back.
    IgnoreAge,
    /// Of the kernel's format: the superblock makes entries valid that are not on the media yet.
    SuperblockBeforeEntries,
    /// Of the kernel's format: a slot is free before its erased entry is durable.
    ReuseBeforeErase,
    /// Of the kernel's format: recovery leaves entries of a commit that never ended.
    LeftoversKept,
    /// A block counts as written back though the origin refused it.
    ForgetWriteError,
    /// A block counts as written back though the origin's flush failed.
    IgnoreFlushError,
    /// A block that the cache device could not read is written back all the same.
    WriteBackUnreadable,
    /// A write that goes around the cache counts though a flush of the origin failed beside it.
    AroundBesideFlushError,
    /// A job that waits for a block is not woken when the block becomes unreadable.
    WaitForBad,
    /// The contents of the gaps of a failed filled write are not kept.
    ForgetFailedGaps,
    /// A read of the origin counts though a filled write that failed meanwhile may have changed it.
    ReadFailedGaps,
    /// The gaps of a filled write are not locked.
    GapFillUnlocked,
    /// What was read of a clean copy for a gap is taken whatever its slot holds by then.
    GapFillUnchecked,
    /// Gaps are filled without counting those that were filled before against the limit.
    GapsBeyondRoom,
    /// Checksums of data look at the beginning of each sector: enough where a power cut leaves
    /// sectors whole, as disks do and persistent memory does not.
    TrustSectors,
    /// Ordered: a FLUSH that finds nothing to commit does not close the epoch.
    EpochOnlyWithCommit,
    /// Ordered: a FUA write does not close the epoch.
    NoEpochAtFua,
    /// Ordered: an epoch is begun before a durable record has retired the one before.
    EpochBeforeRetired,
    /// Ordered: a superseded version is not kept for its epoch.
    OldNotKept,
    /// Ordered: epochs are merged although the second has other blocks too.
    UnsafeMerge,
    /// The epochs of a phase are written together, in any order.
    StepsTogether,
    /// A phase has epochs with the same block, of which only the newer version is written.
    StepsOverlap,
    /// A phase has several epochs though the origin keeps no order of writes.
    StepsUnordered,
    /// The media are read when a table is loaded, while an older instance may still write.
    #[cfg(feature = "planted")]
    OpenWhenLoaded,
    /// A suspend does not wait for writes of the origin that are in flight.
    SuspendInFlight,
    /// The flush of a commit is sent with its records, not after them.
    FlushBeforeRecords,
    /// A write that completes after one that began later enters the map, but not the log.
    CompletionOrder,
    /// A checkpoint lets the log begin at its end, though the map changed meanwhile.
    CheckpointStartLate,
    /// A cache that only another version can open is taken for blank.
    OtherVersionTaken,
    /// An opening leaves in the superblock what later programs have said there.
    LaterKept,
    /// What recovery cut off at the end of the log stays there.
    TailKept,
    /// A torn record at the end of the log stays there.
    TornTailKept,
    /// A discard takes blocks out of the map, but not out of the log.
    DiscardUnlogged,
    /// A discard does not lock its range against writeback.
    ClearUnlocked,
    /// The log calls a block clean while a discard changes the origin.
    StaleClean,
    /// After a flush clean copies leave the map, but not the log.
    CleanKeptInLog,
    /// After a flush clean copies leave the map though the log has no room for so many changes.
    DropsBeyondRoom,
    /// Whatever the block holds by now counts as written back.
    RetireNewer,
    /// A block is written back while an older version of it is on its way.
    TwoWritesInFlight,
    /// Reclaim takes dirty blocks, too.
    EvictDirty,
    /// Blocks in flight to the origin are counted, and never counted off.
    LeakedCount,
    /// A merged version enters the map whatever the block holds by then.
    MergeUnchecked,
    /// A FUA write that was merged completes without a commit.
    MergeIgnoresFua,
    /// A block is cleared while a merge of it is in progress.
    ClearBesideMerge,
    /// Ordered: a read looks into the index, and then goes to the origin.
    ReadIgnoresZeroes,
    /// Ordered: zeroes go to the origin as they come.
    ZeroesAtOnce,
    /// Ordered: an epoch is over though its zeroes were never sent to the origin.
    ZeroesNotWritten,
    /// Ordered: an epoch is over before the origin has its zeroes durably.
    ZeroesNotFlushed,
    /// Ordered: a checkpoint has no zeroes.
    ZeroesNotInCheckpoint,
    /// Ordered: recovery lets zeroes end nothing that came before them.
    ZeroesEndNothing,
    /// A cache counts as marked as replaced before the mark is durable.
    MarkNotFlushed,
    /// A cache serves another length than its superblock has.
    SizeNotAdopted,
    /// Without its cache device the origin takes writes.
    WriteWithoutCache,
    /// A new table does not take over what the failed cache before it has lost.
    LostWritesForgotten,
    /// The zero runs of the origin count whatever the cache held when it was asked.
    ZeroRunsLookLate,
    /// The zero runs of the origin count whatever the cache holds when it has answered.
    ZeroRunsLookEarly,
    /// Journal: the entry of a change is stored with the next change, after its request has ended.
    EntryAfterRequest,
    /// Journal: a block that leaves the cache has no entry.
    DropNotInJournal,
    /// Journal: zeroes have no entry.
    ZeroesNotInJournal,
    /// Journal: an entry does not say of which epoch its write is.
    EpochNotInJournal,
    /// Journal: its start moves over changes that came while the commit ran.
    JournalStartLate,
    /// Journal: a version counts although its data are not in its slot.
    JournalDataUnchecked,
    /// Journal: one of another start of the machine is applied.
    JournalOfOtherBoot,
    /// Journal: one is applied although the cache was opened and changed since.
    JournalOfOlderOpening,
    /// Journal: clients change the cache before a record says on the media that it was opened.
    ChangeBeforeRecord,
    /// Journal: no checkpoint makes durable what was applied.
    JournalNotDurable,
    /// Journal: it is blanked before what was applied is durable.
    JournalBlankedEarly,
    /// Journal: a copy of the cache uses it beside the original.
    JournalNotLocked,
    /// Journal: it stays when the cache has failed.
    JournalKeptAfterFailure,
    /// Guard: the origin is written to before the record of its front half.
    GuardedBeforeRecord,
    /// Guard: the front half goes back to the origin before its record.
    DetachedBeforeRecord,
    /// Guard: the origin is not flushed before the record of what it has.
    GuardUnflushed,
    /// Guard: a slot is written while the other one is not durable.
    SlotsUnflushed,
    /// Guard: a detach writes over a slot that is the newest.
    OldSlotKept,
    /// Guard: the record of a range that lies elsewhere now is forgotten.
    OldEndForgotten,
    /// Guard: an origin that was used without its cache is taken as it is.
    UsedOriginTaken,
    /// What is left of a guard stays on an origin that is adopted.
    GuardRemainsKept,
    /// Guard: a flush of the guard that fails is not one of the cache.
    GuardFlushErrorKept,
    /// Guard: a slot that a failed flush may have lost counts as durable after the next flush.
    LostSlotTrusted,
    /// Guard: a write ends before a slot has it.
    ImageNotWritten,
    /// Journal: one with a damaged header is overwritten without a word.
    DamagedJournalLost,
    /// Growth: the new place of the log keeps what it had.
    GrownLogNotBlanked,
    /// Growth: records that follow the new checkpoint stay in the old log.
    GrownLogNotCopied,
    /// Growth: no record of the new log tells of this opening.
    GrownLogUnsaid,
    /// Growth: the superblock has the new layout before what it names is written.
    GrownSuperblockEarly,
    /// Growth: the superblock has the new layout before what it names is flushed.
    GrownUnflushed,
    /// Growth: slots of the new space are used before the superblock has them.
    GrownSlotsEarly,
    /// Growth: it begins once more when the cache has failed.
    GrownAfterFailure,
}

#[cfg(feature = "planted")]
impl Config {
    /// Plants a fault in place of the one before, or none.
    pub fn plant(&mut self, fault: impl Into<Option<Fault>>) {
        self.planted = fault.into().into();
    }

    /// Takes the costs of writes to the origin from here instead of measuring them; gaps are then
    /// filled whatever the origin is.
    pub fn assume_costs(&mut self, costs: Option<policy::destage::Costs>) {
        self.assumed_costs = costs;
    }

    /// A new cache does not read its origin: it was never another one's. What seeds do stays.
    pub fn trust_origin(&mut self) {
        self.guard.is_origin_trusted = true;
    }

    /// A cache of any size takes blocks at their first read while it has ample room.
    pub fn admit_first_reads(&mut self) {
        self.tuning.reads.first_slots_min = 0;
    }

    /// Gives the journal in memory room for so many entries.
    pub fn set_journal_capacity(&mut self, entries: u64) {
        self.journal_capacity = entries;
    }

    /// Gives the write buffer of mode s room for so many blocks, whatever the size of the cache.
    pub fn set_buffer_blocks(&mut self, blocks: u32) {
        self.test_sizes.buffer_blocks = Some(blocks);
    }

    /// A commit looks at so many blocks between two yields.
    pub fn set_batch_piece(&mut self, blocks: usize) {
        self.test_sizes.batch_piece = Some(blocks);
    }

    /// The costs that are assumed.
    pub fn assumed_costs(&self) -> Option<policy::destage::Costs> {
        self.assumed_costs
    }

    /// With `ordered`: WRITE_ZEROES of at most so many bytes is data.
    pub fn set_zeroes_as_data_max(&mut self, bytes: u64) {
        self.zeroes_as_data_max_bytes = bytes;
    }
}
