// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Gather`: the segment that is gathered, data and records, until it is encoded. The log has its
//! invariants.
use std::ops::Range;

use block::Buf;
use format::checksum;
use format::objvol::{
    EXTENT_SECTORS_MAX, Identity, Record, RecordKind, SECTOR, SegmentHeader, SnapshotChange,
    head_bytes_needed,
};

use crate::map::{Extent, SegmentId};

/// Records of a gathered segment at most. Chosen: a segment of 16 MiB in sectors of 512 bytes.
const RECORDS_MAX: usize = 32_768;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// None before the first record.
    pub(crate) id: Option<SegmentId>,
    data: Vec<u8>,
    /// In the order of their `at`, which counts from the first byte of data; that of zeroes is
    /// where the next data begin.
    records: Vec<Record>,
    changes: Vec<SnapshotChange>,
}

/// Data that were gathered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    at: u16,
    sectors: u16,
    crc: u32,
}

/// An encoded segment.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) object: Buf,
    pub(crate) head_bytes: usize,
    /// First sector of data.
    pub(crate) data_at: u16,
    /// Of the head.
    pub(crate) hash: u64,
}

fn narrow(n: usize) -> u16 {
    u16::try_from(n).expect("segments are below 64 Ki sectors")
}

impl Written {
    pub(crate) fn extent(self, segment: SegmentId) -> Extent {
        let Written { at, sectors, crc } = self;
        Extent { segment, crc, at, sectors, skip: 0, whole: sectors }
    }
}

impl Gather {
    /// Whether one more record with so many bytes of data fits.
    pub(crate) fn has_room(&self, bytes: usize, segment_bytes: usize) -> bool {
        let used = self.data.len();
        let fits = used + bytes <= segment_bytes || used == 0 && self.records.is_empty();
        fits && self.records.len() < RECORDS_MAX
    }

    /// Bytes of data.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Some of the data.
    pub(crate) fn part(&self, bytes: Range<usize>) -> &[u8] {
        &self.data[bytes]
    }

    /// Puts data behind all others.
    pub(crate) fn append(&mut self, kind: RecordKind, start: u64, data: &[u8]) -> Written {
        assert!(data.len().is_multiple_of(SECTOR), "{} bytes", data.len());
        let (at, sectors) = (narrow(self.data.len() / SECTOR), narrow(data.len() / SECTOR));
        assert!((1..=EXTENT_SECTORS_MAX).contains(&u32::from(sectors)), "{sectors} sectors");
        let crc = checksum(data);
        self.data.extend_from_slice(data);
        self.records.push(Record { kind, start, sectors: u32::from(sectors), at, crc });
        Written { at, sectors, crc }
    }

    /// The record of a client's write the data of which begin at sector `at`.
    pub(crate) fn write_at(&self, at: u16) -> Option<usize> {
        // Zeroes at the same place come before it.
        let nth = self.records.partition_point(|record| record.at <= at).checked_sub(1)?;
        let record = &self.records[nth];
        (record.kind == RecordKind::Data && record.at == at).then_some(nth)
    }

    /// The last record of a client's write of exactly these sectors.
    pub(crate) fn written(&self, start: u64, sectors: usize) -> Option<(usize, Written)> {
        let is_same = |record: &Record| {
            record.kind == RecordKind::Data
                && record.start == start
                && record.sectors as usize == sectors
        };
        let nth = self.records.iter().rposition(is_same)?;
        let Record { at, crc, .. } = self.records[nth];
        Some((nth, Written { at, sectors: narrow(sectors), crc }))
    }

    /// Puts data of the same length in the place of those of a record; returns their checksum.
    /// `keeps_crc` is a planted fault.
    pub(crate) fn replace(&mut self, nth: usize, data: &[u8], keeps_crc: bool) -> u32 {
        let record = &mut self.records[nth];
        let at = usize::from(record.at) * SECTOR;
        self.data[at..at + data.len()].copy_from_slice(data);
        let crc = checksum(data);
        if !keeps_crc {
            record.crc = crc;
        }
        crc
    }

    /// Zeroes of a range.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        let at = narrow(self.data.len() / SECTOR);
        let mut start = range.start;
        while start < range.end {
            let sectors = u32::try_from(range.end - start).unwrap_or(u32::MAX);
            self.records.push(Record { kind: RecordKind::Zeroes, start, sectors, at, crc: 0 });
            start += u64::from(sectors);
        }
    }

    /// A snapshot was made or deleted.
    pub(crate) fn change(&mut self, change: SnapshotChange) {
        self.changes.push(change);
    }

    /// Whether the last record has moved data.
    pub(crate) fn ends_with_moved(&self) -> bool {
        let last = self.records.last();
        last.is_some_and(|record| matches!(record.kind, RecordKind::Moved { .. }))
    }

    /// Makes the object.
    pub(crate) fn encode(self, identity: &Identity, header: &SegmentHeader) -> Encoded {
        let Gather { data, mut records, changes, .. } = self;
        let head_bytes = head_bytes_needed(&records, &changes);
        let data_at = narrow(head_bytes.div_ceil(SECTOR));
        for record in &mut records {
            record.at = if record.has_data() { record.at + data_at } else { 0 };
        }
        let head_sectors = usize::from(data_at) * SECTOR;
        let object = Buf::alloc(head_sectors + data.len());
        let hash = object.write(|object| {
            object[head_sectors..].copy_from_slice(&data);
            header.encode(identity, &records, &changes, object)
        });
        Encoded { object, head_bytes, data_at, hash }
    }
}
