// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request: what the kernel describes, checked, in our terms.
use block::{Flags, Limits, Op, Sector, Status};

use crate::abi::op;
use crate::kernel::Descriptor;

/// A request that lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) sector: Sector,
    /// Zero of a flush.
    pub(crate) len: Sector,
    pub(crate) flags: Flags,
}

impl Request {
    /// Reads a descriptor (UB-Q5); data are at most `max_io_bytes`.
    ///
    /// # Errors
    /// `NotSupported` for an operation that we do not know, `Invalid` when it is not on the device.
    pub(crate) fn decode(
        from: Descriptor,
        limits: &Limits,
        max_io_bytes: u32,
    ) -> Result<Request, Status> {
        let has = |flag: u32| from.op_flags & flag != 0;
        let op = match from.op_flags & op::MASK {
            op::READ => Op::Read,
            op::WRITE => Op::Write,
            op::FLUSH => Op::Flush,
            op::DISCARD => Op::Discard,
            op::WRITE_ZEROES => Op::WriteZeroes,
            _ => return Err(Status::NotSupported),
        };
        let mut flags = Flags::empty();
        flags.set(Flags::FUA | Flags::SYNC, op == Op::Write && has(op::FUA));
        flags.set(Flags::NOUNMAP, op == Op::WriteZeroes && has(op::NOUNMAP));
        if op == Op::Flush {
            return Ok(Request { op, sector: Sector::ZERO, len: Sector::ZERO, flags });
        }
        let (sector, len) = (Sector(from.sector), Sector(u64::from(from.sectors)));
        let end = sector.checked_add(len).ok_or(Status::Invalid)?;
        let mask = u64::from(limits.logical_block_bytes / 512) - 1;
        let is_aligned = (sector.0 | len.0) & mask == 0;
        if len == Sector::ZERO || end > limits.capacity || !is_aligned {
            return Err(Status::Invalid);
        }
        let request = Request { op, sector, len, flags };
        if request.has_data() && len.bytes() > u64::from(max_io_bytes) {
            return Err(Status::Invalid);
        }
        Ok(request)
    }

    /// Whether bytes belong to it, in either direction.
    pub(crate) fn has_data(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }

    /// Bytes of its data.
    pub(crate) fn data_bytes(&self) -> usize {
        let bytes = if self.has_data() { self.len.bytes() } else { 0 };
        usize::try_from(bytes).expect("at most a request's largest, checked")
    }
}

/// The errno of a status, for a commit. The kernel knows few; others become EIO there.
pub(crate) fn errno(status: Status) -> i32 {
    // EAGAIN would reach clients that can't wait.
    if status == Status::Again { libc::EIO } else { status.errno() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(op_flags: u32, sector: u64, sectors: u32) -> Result<Request, Status> {
        let limits = Limits { logical_block_bytes: 4096, ..Limits::new(Sector(80)) };
        Request::decode(Descriptor { op_flags, sectors, sector, addr: 0 }, &limits, 1 << 20)
    }

    #[test]
    fn operations_and_flags_are_read() {
        let fua = decode(op::WRITE | op::FUA, 8, 16).unwrap();
        assert_eq!((fua.op, fua.sector, fua.len), (Op::Write, Sector(8), Sector(16)));
        assert_eq!(fua.flags, Flags::FUA | Flags::SYNC);
        assert_eq!(decode(op::READ | op::FUA, 0, 8).unwrap().flags, Flags::empty());
        let zeroes = decode(op::WRITE_ZEROES | op::NOUNMAP, 0, 80).unwrap();
        assert_eq!((zeroes.op, zeroes.flags), (Op::WriteZeroes, Flags::NOUNMAP));
        assert_eq!(decode(op::FLUSH, 7, 0).unwrap().op, Op::Flush);
        assert_eq!(decode(op::DISCARD, 0, 8).unwrap().data_bytes(), 0);
        // Zone operations and others.
        for unknown in [4, 10, 18, 255] {
            assert_eq!(decode(unknown, 0, 8), Err(Status::NotSupported));
        }
    }

    #[test]
    fn what_is_not_on_the_device_is_refused() {
        for (sector, len) in [(0, 0), (80, 8), (72, 16), (4, 8), (0, 4), (u64::MAX, 8)] {
            assert_eq!(decode(op::READ, sector, len), Err(Status::Invalid), "{sector} {len}");
        }
        let large = Limits::new(Sector(1 << 30));
        let long = Descriptor { op_flags: op::WRITE, sectors: 4096, sector: 0, addr: 0 };
        assert_eq!(Request::decode(long, &large, 1 << 20), Err(Status::Invalid));
        assert!(Request::decode(long, &large, 2 << 20).is_ok());
        let long = Descriptor { op_flags: op::DISCARD, ..long };
        assert!(Request::decode(long, &large, 1 << 20).is_ok());
    }
}
