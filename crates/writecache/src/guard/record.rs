// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes the records of a guard on the cache device (WC-GU2).
use block::{BlockDevice, Buf, Error, Flags, Status};
use format::{GUARD_RECORD_BYTES, GuardRange, GuardRecord, GuardState, guard_record_offset};

use super::Guard;
use crate::config::Config;
use crate::planted::Fault;
use crate::recovery::area::{flush_area, read_area, write_area};

/// What the two places of a range's record have.
pub(super) struct FoundRecord {
    /// The newest record; `None` if none was ever complete.
    pub(super) record: Option<GuardRecord>,
    /// Both copies have it.
    pub(super) is_whole: bool,
}

/// Reads the record of the range `nth` of the cache `uuid`.
pub(super) async fn read_record(
    config: &Config,
    device: &dyn BlockDevice,
    uuid: &[u8; 16],
    nth: u8,
) -> Result<FoundRecord, Error> {
    let mut copies = Vec::new();
    for copy in [0, 1] {
        let at = guard_record_offset(nth, copy);
        let bytes = read_area(config, device, at, GUARD_RECORD_BYTES, "read guard record").await?;
        match bytes.read(|bytes| GuardRecord::decode(nth, copy, bytes)) {
            Ok(record) if record.uuid == *uuid => copies.push(record),
            // Of a cache that was here before; none; or one whose write was interrupted, before
            // the origin was written to in its state.
            Ok(_) | Err(_) => {}
        }
    }
    let is_whole = copies.len() == 2 && copies[0] == copies[1];
    let record = copies.into_iter().max_by_key(|record| record.sequence);
    Ok(FoundRecord { record, is_whole })
}

/// Writes both copies of a record, each durably before the next.
pub(super) async fn write_record(
    config: &Config,
    device: &dyn BlockDevice,
    record: &GuardRecord,
) -> Result<(), Error> {
    for copy in [0, 1] {
        write_copy(config, device, record, copy).await?;
        flush_area(config, device).await?;
    }
    Ok(())
}

async fn write_copy(
    config: &Config,
    device: &dyn BlockDevice,
    record: &GuardRecord,
    copy: u8,
) -> Result<(), Error> {
    let buf = Buf::copy_of(&record.encode(copy));
    let at = guard_record_offset(record.range.nth, copy);
    write_area(config, device, at, Flags::META, buf, "write guard record").await
}

impl Guard {
    /// Writes the next record of a range, durably. `front` and the first slot's bytes are those of
    /// the states that need them.
    pub(super) async fn write_state(
        &self,
        range: GuardRange,
        state: GuardState,
        front: Option<(&[u8], &[u8])>,
    ) -> Result<(), Error> {
        let sequence = &self.records[usize::from(range.nth)];
        sequence.set(sequence.get() + 1);
        let (front, slot) = front.unwrap_or((&[], &[]));
        let record = GuardRecord {
            uuid: self.place.uuid,
            sequence: sequence.get(),
            state,
            range,
            slot_crcs: format::sector_crcs(slot),
            front: front.to_vec(),
        };
        let Some(device) = &self.place.device else { return Ok(()) };
        let config = &self.place.config;
        let is_late = match state {
            GuardState::Guarding => config.planted.is(Fault::GuardedBeforeRecord),
            GuardState::Detaching => config.planted.is(Fault::DetachedBeforeRecord),
            GuardState::Guarded | GuardState::Detached => false,
        };
        if is_late {
            return Ok(());
        }
        for copy in [0, 1] {
            write_copy(config, &**device, &record, copy).await?;
            let flushed = flush_area(config, &**device).await;
            if flushed.is_err() && !config.planted.is(Fault::GuardFlushErrorKept) {
                self.cache_flush_failed();
            }
            flushed?;
        }
        Ok(())
    }

    /// A flush of the cache device has failed, and the next one would not tell (WC-GU7).
    fn cache_flush_failed(&self) {
        if let Some(writeback) = self.writeback.borrow().upgrade() {
            writeback.store.fail(Status::Io); // WC-I8
        }
    }
}
