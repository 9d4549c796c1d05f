// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of virtio-blk: what a chain of descriptors asks for.
//!
//! ```text
//!   readable   type u32 │ reserved u32 │ sector u64 │ data of a write, ranges of a discard
//!   writable   data of a read, an id │ status u8
//! ```
//!
//! Where descriptors begin and end means nothing: each of the two is a stream of bytes.
use block::{Sector, Status};

use crate::memory::{Extent, Extents, Memory};
use crate::ring::{Chain, RingError};

/// Most data of a request, bytes. What the device tells the guest of its segments keeps drivers
/// below.
pub const DATA_BYTES_MAX: u32 = 32 << 20;
/// Most ranges of a discard or of a write of zeroes.
pub const RANGES_MAX: u32 = 32;
/// Memory that each place of a long chain takes while its request is in flight: here, as a piece of
/// data, and for the kernel.
const PLACE_BYTES: usize = 64;
/// Length of an id.
pub const ID_BYTES: u32 = 20;

const HEADER_BYTES: usize = 16;
const RANGE_BYTES: u32 = 16;
/// Of a range: the space may be given back.
const RANGE_UNMAP: u32 = 1;

/// Statuses of virtio-blk.
pub(crate) const STATUS_OK: u8 = 0;
pub(crate) const STATUS_IO_ERROR: u8 = 1;
pub(crate) const STATUS_UNSUPPORTED: u8 = 2;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read `data_bytes` from a sector on.
    Read(Sector),
    /// Write them.
    Write(Sector),
    /// Make completed writes durable.
    Flush,
    /// The device's id.
    GetId,
    /// Discard ranges.
    Discard,
    /// Make ranges read as zeroes.
    WriteZeroes,
}

/// A request that was checked against its chain, not yet against its device.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for, or the status with which it ends at once.
    pub command: Result<Command, u8>,
    /// Its data: what is read from the guest, or written to it; bytes.
    pub data_bytes: u32,
    /// The last extent is that of the status.
    pub(crate) chain: Chain,
    /// The extents of the data, by their numbers.
    data: std::ops::Range<u32>,
}

impl Default for Request {
    fn default() -> Request {
        let command = Err(STATUS_UNSUPPORTED);
        Request { command, data_bytes: 0, chain: Chain::default(), data: 0..0 }
    }
}

/// A range of a discard or of a write of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) sector: Sector,
    pub(crate) len: Sector,
    pub(crate) unmap: bool,
}

fn len_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.len_bytes())).sum()
}

/// Reads the header, and drops its bytes. Returns the number of the first extent behind it.
#[inline]
fn take_header(
    memory: &Memory,
    readable: &mut [Extent],
    header: &mut [u8; HEADER_BYTES],
) -> Result<usize, RingError> {
    // Nearly always it is alone.
    if let Some(first) = readable.first().filter(|e| e.len_bytes() as usize == HEADER_BYTES) {
        memory.read_extent(first, header)?;
        return Ok(1);
    }
    let (mut nth, mut rest) = (0, &mut header[..]);
    while !rest.is_empty() {
        let extent = readable.get_mut(nth).ok_or(RingError::NoHeader)?;
        let n = rest.len().min(extent.len_bytes() as usize);
        let here;
        (here, rest) = std::mem::take(&mut rest).split_at_mut(n);
        memory.read_extent(extent, here)?;
        extent.drop_front(u32::try_from(n).expect("of a header"));
        if extent.len_bytes() == 0 {
            nth += 1;
        }
    }
    Ok(nth)
}

/// Gives the last byte an extent of its own. There is one.
#[inline]
fn split_last(extents: &mut Extents) {
    let Some(last) = extents.last_mut() else { return };
    let byte = last.last();
    if last.len_bytes() > 1 {
        *last = last.but_last();
        extents.push(byte);
    }
}

/// The number of an extent: each has a byte at least, and a chain is not that long.
fn number(nth: usize) -> u32 {
    u32::try_from(nth).expect("as many as a chain has")
}

impl Request {
    /// The request of a chain.
    ///
    /// # Errors
    /// When it has no header or no status: nothing can be answered.
    pub fn parse(memory: &Memory, chain: Chain) -> Result<Request, RingError> {
        let mut request = Request { chain, ..Request::default() };
        request.parse_chain(memory).map(|()| request)
    }

    /// Finds out what the chain asks for. In place, as nothing of it is moved then.
    #[inline]
    pub(crate) fn parse_chain(&mut self, memory: &Memory) -> Result<(), RingError> {
        let Chain { extents, readable, .. } = &mut self.chain;
        let readable = *readable;
        if readable == extents.len() {
            return Err(RingError::NoHeader);
        }
        let mut header = [0; HEADER_BYTES];
        let behind_header = take_header(memory, &mut extents[..readable], &mut header)?;
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let sector = Sector(u64::from_le_bytes(sector));
        let (command, to_device) = match u32::from_le_bytes([t0, t1, t2, t3]) {
            0 => (Ok(Command::Read(sector)), false),
            1 => (Ok(Command::Write(sector)), true),
            4 => (Ok(Command::Flush), true),
            8 => (Ok(Command::GetId), false),
            11 => (Ok(Command::Discard), true),
            13 => (Ok(Command::WriteZeroes), true),
            _ => (Err(STATUS_UNSUPPORTED), true),
        };
        split_last(extents);
        let data = if to_device { behind_header..readable } else { readable..extents.len() - 1 };
        let bytes = len_of(&extents[data.clone()]);
        let most = match command {
            Ok(Command::Read(_) | Command::Write(_)) => DATA_BYTES_MAX,
            Ok(Command::Discard | Command::WriteZeroes) => RANGES_MAX * RANGE_BYTES,
            Ok(Command::GetId | Command::Flush) | Err(_) => u32::MAX,
        };
        let fits = |bytes: &u32| *bytes <= most;
        let data_bytes = u32::try_from(bytes).ok().filter(fits);
        let command = command.and_then(|command| match (command, data_bytes) {
            // No data of it are looked at.
            (Command::Flush, _) => Ok(command),
            (Command::Read(_) | Command::Write(_), Some(n)) if n > 0 && n % 512 == 0 => Ok(command),
            (Command::GetId, Some(n)) if n > 0 => Ok(command),
            (Command::Discard | Command::WriteZeroes, Some(n)) if n > 0 && n % RANGE_BYTES == 0 => {
                Ok(command)
            }
            _ => Err(STATUS_IO_ERROR),
        });
        self.data_bytes = match command {
            Ok(Command::Flush) | Err(_) => 0,
            Ok(Command::GetId) => data_bytes.unwrap_or(0).min(ID_BYTES),
            Ok(_) => data_bytes.unwrap_or(0),
        };
        self.command = command;
        self.data = number(data.start)..number(data.end);
        Ok(())
    }

    /// Memory that it takes while it is in flight (VH-V2): for its data, or a copy of them, and for
    /// their places, if those are many.
    #[inline]
    pub(crate) fn held_bytes(&self) -> u64 {
        let places = &self.chain.extents;
        let of_places = if places.spilled() { (places.capacity() * PLACE_BYTES) as u64 } else { 0 };
        (u64::from(self.data_bytes) + of_places).min(DATA_BYTES_MAX.into())
    }

    /// The chain's head.
    #[inline]
    pub fn head(&self) -> u16 {
        self.chain.head
    }

    /// Where its data are in the guest's memory.
    #[inline]
    pub fn data(&self) -> &[Extent] {
        &self.chain.extents[self.data.start as usize..self.data.end as usize]
    }

    /// Where its status goes: one byte.
    #[inline]
    pub fn status(&self) -> &Extent {
        self.chain.extents.last().expect("there is that of the status")
    }

    /// The ranges of a discard or of a write of zeroes.
    ///
    /// # Errors
    /// When the memory is gone, or the status with which the request ends for a flag that there is
    /// not, or that does not belong to the command.
    pub(crate) fn ranges(&self, memory: &Memory) -> Result<Result<Vec<Range>, u8>, RingError> {
        let mut bytes = vec![0; self.data_bytes as usize];
        let mut done = 0;
        for extent in self.data() {
            let n = (extent.len_bytes() as usize).min(bytes.len() - done);
            memory.read_extent(extent, &mut bytes[done..done + n])?;
            done += n;
        }
        let allowed = if self.command == Ok(Command::WriteZeroes) { RANGE_UNMAP } else { 0 };
        let mut all = Vec::new();
        for range in bytes.as_chunks::<16>().0 {
            let [s @ .., l0, l1, l2, l3, f0, f1, f2, f3] = *range;
            let flags = u32::from_le_bytes([f0, f1, f2, f3]);
            if flags & !allowed != 0 {
                return Ok(Err(STATUS_UNSUPPORTED));
            }
            all.push(Range {
                sector: Sector(u64::from_le_bytes(s)),
                len: Sector(u64::from(u32::from_le_bytes([l0, l1, l2, l3]))),
                unmap: flags & RANGE_UNMAP != 0,
            });
        }
        Ok(Ok(all))
    }
}

/// The status of a request whose bios ended so.
pub(crate) fn status_of(done: Result<(), Status>) -> u8 {
    match done {
        Ok(()) => STATUS_OK,
        Err(Status::NotSupported) => STATUS_UNSUPPORTED,
        Err(_) => STATUS_IO_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{ram, region_at};
    use block::ClientRegion;

    fn memory() -> Memory {
        let region = ram(0x300_0000) as Arc<dyn ClientRegion>;
        Memory::new(&[region_at(0, 0x300_0000)], vec![region]).unwrap()
    }

    fn parse(kind: u32, sector: u64, readable: &[u32], writable: &[u32]) -> Request {
        let memory = memory();
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        memory.write(0x1000, &header).unwrap();
        let place = |from: u64, lens: &[u32]| -> Vec<(u64, u32)> {
            let starts = lens.iter().scan(from, |at, len| {
                let start = *at;
                *at += u64::from(*len);
                Some((start, *len))
            });
            starts.collect()
        };
        let (readable, writable) = (place(0x1000, readable), place(0x8000, writable));
        Request::parse(&memory, chain(&memory, 7, &readable, &writable)).unwrap()
    }

    fn extents(memory: &Memory, runs: &[(u64, u32)]) -> Extents {
        let mut all = Extents::new();
        for &(address, len) in runs {
            let push = |extent| {
                all.push(extent);
                Ok(())
            };
            memory.locate(address, len, push).unwrap();
        }
        all
    }

    fn chain(
        memory: &Memory,
        head: u16,
        readable: &[(u64, u32)],
        writable: &[(u64, u32)],
    ) -> Chain {
        let mut all = extents(memory, readable);
        let readable = all.len();
        all.extend(extents(memory, writable));
        Chain { head, extents: all, readable }
    }

    #[test]
    fn header_and_status_may_be_cut_anywhere() {
        for readable in [&[16, 512][..], &[528], &[3, 13, 500, 12], &[17, 511]] {
            let write = parse(1, 9, readable, &[1]);
            assert_eq!((write.command, write.data_bytes), (Ok(Command::Write(Sector(9))), 512));
            assert_eq!(write.data()[0], Extent::of_test(0x1010, write.data()[0].len_bytes()));
            assert_eq!(*write.status(), Extent::of_test(0x8000, 1));
        }
        for writable in [&[512, 1][..], &[513], &[500, 13]] {
            let read = parse(0, 9, &[16], writable);
            assert_eq!((read.command, read.data_bytes), (Ok(Command::Read(Sector(9))), 512));
            assert_eq!((*read.status(), len_of(read.data())), (Extent::of_test(0x8200, 1), 512));
        }
    }

    #[test]
    fn a_chain_without_header_or_status_can_not_be_answered() {
        let memory = memory();
        let parse = |readable: &[(u64, u32)], writable: &[(u64, u32)]| {
            Request::parse(&memory, chain(&memory, 0, readable, writable))
        };
        assert_eq!(parse(&[(0, 15)], &[(64, 1)]), Err(RingError::NoHeader));
        assert_eq!(parse(&[(0, 16)], &[]), Err(RingError::NoHeader));
        assert_eq!(parse(&[], &[(64, 1)]), Err(RingError::NoHeader));
    }

    #[test]
    fn data_of_a_wrong_length_end_in_an_error() {
        for (kind, readable, writable) in [
            (0, &[16][..], &[1][..]),           // no data
            (0, &[16], &[511, 1]),              // no whole sector
            (1, &[16], &[1]),                   // no data
            (1, &[16, 513], &[1]),              // no whole sector
            (11, &[16, 15], &[1]),              // no whole range
            (13, &[16, 33 * 16], &[1]),         // too many ranges
            (8, &[16], &[1]),                   // no room
            (0, &[16], &[(32 << 20) + 512, 1]), // too much
        ] {
            let request = parse(kind, 0, readable, writable);
            assert_eq!(request.command, Err(STATUS_IO_ERROR), "{kind} {readable:?} {writable:?}");
            assert_eq!(request.data_bytes, 0);
        }
        assert_eq!(parse(99, 0, &[16, 4], &[1]).command, Err(STATUS_UNSUPPORTED));
        assert_eq!(parse(8, 0, &[16], &[64, 1]).data_bytes, ID_BYTES);
        assert_eq!(parse(4, 0, &[16], &[1]).command, Ok(Command::Flush));
    }

    #[test]
    fn a_chain_of_many_places_counts_beside_its_data() {
        assert_eq!(parse(4, 0, &[16], &[1]).held_bytes(), 0);
        assert_eq!(parse(0, 0, &[16], &[512, 1]).held_bytes(), 512);
        let many = [1; 1024];
        for (kind, bytes) in [(4, 0), (99, 0), (1, 1024)] {
            let readable = [&[16], &many[..]].concat();
            assert!(parse(kind, 0, &readable, &[1]).held_bytes() >= bytes + 1026 * 64, "{kind}");
        }
        let largest = [&[2 << 20; 16][..], &[1]].concat();
        assert_eq!(parse(0, 0, &[16], &largest).held_bytes(), u64::from(DATA_BYTES_MAX));
    }

    #[test]
    fn only_zeroes_may_give_the_space_back() {
        let memory = memory();
        let mut range = 5_u64.to_le_bytes().to_vec();
        range.extend(8_u32.to_le_bytes());
        range.extend(1_u32.to_le_bytes());
        memory.write(0x1010, &range).unwrap();
        let zeroes = parse(13, 0, &[16, 16], &[1]).ranges(&memory).unwrap().unwrap();
        assert_eq!(zeroes, [Range { sector: Sector(5), len: Sector(8), unmap: true }]);
        let discard = parse(11, 0, &[16, 16], &[1]).ranges(&memory).unwrap();
        assert_eq!(discard, Err(STATUS_UNSUPPORTED));
    }
}
