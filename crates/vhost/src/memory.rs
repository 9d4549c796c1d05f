// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory: its regions, and every access to it by address.
//!
//! Invariants
//! - VH-M1 No access leaves a region: each address and length is looked up, and sums are checked.
//! - VH-M2 Regions overlap neither in the guest nor in the front end, so an address means one
//!   place.
use std::fmt;
use std::sync::Arc;

use block::{Bufs, ClientMemory, Error, PAGE, Ram, Slice, Status};

use crate::message::RegionInfo;

/// The bytes of one region: a mapped file, or memory of a test. Only ranges within `len_bytes` are
/// accessed.
/// Queues on several cores use it at once, as the guest does.
pub trait Region: fmt::Debug + Send + Sync {
    /// Its length.
    fn len_bytes(&self) -> u64;
    /// Copies the bytes from `at` on to `out`.
    ///
    /// # Errors
    /// `Io` when the front end has taken the memory away.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status>;
    /// Stores `bytes` from `at` on.
    ///
    /// # Errors
    /// As [`Region::read`].
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status>;
    /// Copies the bytes from `at` on to all of `to`.
    ///
    /// # Errors
    /// As [`Region::read`].
    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status>;
    /// Copies all of `from` to the bytes from `at` on.
    ///
    /// # Errors
    /// As [`Region::read`].
    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status>;
    /// The number at an even `at`, by one load; what the guest stored before it is seen by later
    /// reads.
    ///
    /// # Errors
    /// As [`Region::read`].
    fn load_u16(&self, at: u64) -> Result<u16, Status>;
    /// Stores the number at an even `at`, by one store, after all earlier ones.
    ///
    /// # Errors
    /// As [`Region::read`].
    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status>;
    /// Whether the bytes are there, as far as anything that accessed them has found out.
    ///
    /// # Errors
    /// As [`Region::read`].
    fn check(&self, at: u64, len: u64) -> Result<(), Status>;
    /// Begins to load the line of the cache that has a byte, which is read soon.
    fn prefetch(&self, at: u64);
    /// The bytes as data of bios, if they can be.
    fn client_memory(self: Arc<Self>) -> Option<ClientMemory>;
}

/// That of a guest in this process: of a simulation, a test or a bench.
impl Region for Ram {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status> {
        Ram::read(self, small(at), out);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        Ram::write(self, small(at), bytes);
        Ok(())
    }

    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status> {
        self.read_bufs(small(at), &to.clone().into());
        Ok(())
    }

    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status> {
        self.write_bufs(small(at), &from.clone().into());
        Ok(())
    }

    fn load_u16(&self, at: u64) -> Result<u16, Status> {
        assert!(at.is_multiple_of(2), "a number at an odd place");
        let mut bytes = [0; 2];
        Ram::read(self, small(at), &mut bytes);
        Ok(u16::from_le_bytes(bytes))
    }

    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status> {
        assert!(at.is_multiple_of(2), "a number at an odd place");
        Ram::write(self, small(at), &value.to_le_bytes());
        Ok(())
    }

    fn check(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn prefetch(&self, at: u64) {
        Ram::prefetch(self, small(at), 1);
    }

    fn client_memory(self: Arc<Self>) -> Option<ClientMemory> {
        Some(ClientMemory::of_ram(&self))
    }
}

/// A region at its addresses.
#[derive(Debug)]
struct Placed {
    guest: u64,
    user: u64,
    len: u64,
    region: Arc<dyn Region>,
    lent: Option<ClientMemory>,
}

/// Why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// There is no memory at these addresses of the guest, or not so much.
    Outside {
        /// First address.
        address: u64,
        /// Length, bytes.
        len: u64,
    },
    /// The front end has taken memory away.
    Lost,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::Outside { address, len } => {
                write!(f, "{len} bytes at {address:#x} are not in the guest's memory")
            }
            AccessError::Lost => f.write_str("memory of the guest is gone: its file was cut"),
        }
    }
}

impl From<Status> for AccessError {
    fn from(_: Status) -> AccessError {
        AccessError::Lost
    }
}

/// The guest's memory. Empty before the front end has sent it.
#[derive(Debug, Default)]
pub struct Memory(Vec<Placed>);

/// A run of bytes at one place: what a ring's part lies in.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) region: Arc<dyn Region>,
    /// First byte within the region.
    pub(crate) at: u64,
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

impl Memory {
    /// The memory of a table and what its regions were mapped to, in the same order.
    ///
    /// # Errors
    /// When regions overlap, end beyond 2^64, are empty or were not mapped whole (VH-M2).
    pub fn new(infos: &[RegionInfo], regions: Vec<Arc<dyn Region>>) -> Result<Memory, Error> {
        let wrong = |why: String| Err(Error::invalid(format!("memory of the guest: {why}")));
        let mut all: Vec<Placed> = Vec::new();
        if infos.len() != regions.len() {
            return wrong(format!("{} regions with {} mappings", infos.len(), regions.len()));
        }
        for (info, region) in infos.iter().zip(regions) {
            let RegionInfo { guest, len, user, .. } = *info;
            let ends = guest.checked_add(len).is_some() && user.checked_add(len).is_some();
            if len == 0 || !ends || region.len_bytes() < len {
                return wrong(format!("a region of {len} bytes at {guest:#x}: it can't be"));
            }
            for other in &all {
                if overlap((guest, len), (other.guest, other.len))
                    || overlap((user, len), (other.user, other.len))
                {
                    return wrong(format!("regions at {:#x} and {guest:#x} overlap", other.guest));
                }
            }
            let lent = region.clone().client_memory();
            all.push(Placed { guest, user, len, region, lent });
        }
        Ok(Memory(all))
    }

    /// The region that has an address of the guest, and the bytes of it from there on.
    fn find(&self, address: u64) -> Option<(&Placed, u64)> {
        let placed = self.0.iter().find(|p| address >= p.guest && address - p.guest < p.len)?;
        Some((placed, address - placed.guest))
    }

    /// Whether `len` bytes from `address` on are there.
    ///
    /// # Errors
    /// `Outside` when they are not.
    pub fn check(&self, address: u64, len: u64) -> Result<(), AccessError> {
        self.for_each(address, len, |_, _, _, _| Ok(()))
    }

    /// Begins to load the line of the cache that has a byte, which is read soon.
    #[inline]
    pub(crate) fn prefetch(&self, address: u64) {
        if let Some((placed, at)) = self.find(address) {
            placed.region.prefetch(at);
        }
    }

    /// The runs (address, length) themselves as data of a bio. `None`: one lies in several regions,
    /// or in one that can't be.
    #[inline]
    pub(crate) fn lend(&self, runs: &[(u64, u32)]) -> Option<Bufs> {
        let mut bufs = Bufs::new();
        for &(address, len) in runs {
            let (placed, at) = self.find(address)?;
            let fits = u64::from(len) <= placed.len - at;
            let lent = placed.lent.as_ref().filter(|_| fits)?;
            bufs.push(lent.slice(at, usize::try_from(len).ok()?)?);
        }
        Some(bufs)
    }

    /// Whether all pages of the runs are still there, after a device had them: as far as it has
    /// found out, or, if the device has failed, by an access to each.
    ///
    /// # Errors
    /// `Lost` when one is not.
    pub(crate) fn check_lent(
        &self,
        runs: &[(u64, u32)],
        has_failed: bool,
    ) -> Result<(), AccessError> {
        for &(address, len) in runs {
            let len = u64::from(len);
            self.for_each(address, len, |region, at, _, len| region.check(at, len))?;
            if has_failed {
                let pages = (address..address + len).step_by(PAGE);
                pages.chain([address + len - 1]).try_for_each(|at| self.read(at, &mut [0]))?;
            }
        }
        Ok(())
    }

    /// Calls `f` with each region of a range in turn: the region, the first byte in it, the first
    /// byte of the range, and the length (VH-M1).
    #[inline]
    fn for_each(
        &self,
        address: u64,
        len: u64,
        mut f: impl FnMut(&dyn Region, u64, u64, u64) -> Result<(), Status>,
    ) -> Result<(), AccessError> {
        let outside = AccessError::Outside { address, len };
        // Nearly always all of it lies in one region.
        if let Some((placed, at)) = self.find(address)
            && (1..=placed.len - at).contains(&len)
        {
            return Ok(f(&*placed.region, at, 0, len)?);
        }
        address.checked_add(len).ok_or(outside)?;
        let mut done = 0;
        while done < len {
            let (placed, at) = self.find(address + done).ok_or(outside)?;
            let n = (len - done).min(placed.len - at);
            f(&*placed.region, at, done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Copies bytes of the guest to `out`.
    ///
    /// # Errors
    /// As [`AccessError`] has them; `out` may have changed.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.for_each(address, out.len() as u64, |region, at, from, len| {
            let (from, len) = (small(from), small(len));
            region.read(at, &mut out[from..from + len])
        })
    }

    /// Stores bytes in the guest.
    ///
    /// # Errors
    /// As [`AccessError`] has them; some bytes may be stored.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.for_each(address, bytes.len() as u64, |region, at, from, len| {
            let (from, len) = (small(from), small(len));
            region.write(at, &bytes[from..from + len])
        })
    }

    /// Copies bytes of the guest to all of `to`.
    pub(crate) fn read_to(&self, address: u64, to: &Slice) -> Result<(), AccessError> {
        self.for_each(address, to.len() as u64, |region, at, from, len| {
            let (from, len) = (small(from), small(len));
            match len == to.len() {
                true => region.read_to(at, to),
                false => region.read_to(at, &to.slice(from..from + len)),
            }
        })
    }

    /// Copies all of `from` to the guest.
    pub(crate) fn write_from(&self, address: u64, from: &Slice) -> Result<(), AccessError> {
        self.for_each(address, from.len() as u64, |region, at, first, len| {
            let (first, len) = (small(first), small(len));
            match len == from.len() {
                true => region.write_from(at, from),
                false => region.write_from(at, &from.slice(first..first + len)),
            }
        })
    }

    /// Copies the runs (address, length) of the guest to `bufs`, which is as long as all of them.
    pub(crate) fn gather(
        &self,
        runs: impl Iterator<Item = (u64, u32)>,
        bufs: &Bufs,
    ) -> Result<(), AccessError> {
        self.pair(runs, bufs, |address, slice| self.read_to(address, slice))
    }

    /// Copies `bufs` to the runs, whose first bytes it fills.
    pub(crate) fn scatter(
        &self,
        runs: impl Iterator<Item = (u64, u32)>,
        bufs: &Bufs,
    ) -> Result<(), AccessError> {
        self.pair(runs, bufs, |address, slice| self.write_from(address, slice))
    }

    fn pair(
        &self,
        runs: impl Iterator<Item = (u64, u32)>,
        bufs: &Bufs,
        copy: impl Fn(u64, &Slice) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let [all] = bufs.iter().as_slice() else {
            assert!(bufs.is_empty(), "data of a request are one buffer");
            return Ok(());
        };
        let mut done = 0;
        for (address, len) in runs {
            let n = (len as usize).min(all.len() - done);
            match n {
                0 => break,
                n if n == all.len() => copy(address, all)?,
                n => copy(address, &all.slice(done..done + n))?,
            }
            done += n;
        }
        assert_eq!(done, all.len(), "the runs have as many bytes");
        Ok(())
    }

    /// Where `len` bytes at an address of the front end lie, in one region; `None`: nowhere.
    pub(crate) fn at_user(&self, address: u64, len: u64) -> Option<Run> {
        let placed = self.0.iter().find(|p| address >= p.user && address - p.user < p.len)?;
        let at = address - placed.user;
        let fits = at.checked_add(len).is_some_and(|end| end <= placed.len);
        fits.then(|| Run { region: placed.region.clone(), at })
    }
}

/// A length within a buffer or an array.
fn small(len: u64) -> usize {
    usize::try_from(len).expect("within something in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ram, region_at};

    fn memory(regions: &[RegionInfo]) -> Result<Memory, Error> {
        let mapped = regions.iter().map(|r| ram(r.len.max(1)) as Arc<dyn Region>);
        Memory::new(regions, mapped.collect())
    }

    #[test]
    fn regions_that_overlap_or_end_nowhere_are_refused() {
        let one = region_at(0x1000, 0x1000);
        for other in [
            region_at(0x1fff, 1),
            region_at(0x0, 0x1001),
            region_at(0x5000, 0),
            region_at(u64::MAX, 2),
            RegionInfo { user: one.user + 0xfff, ..region_at(0x9000, 0x1000) },
            RegionInfo { user: u64::MAX, ..region_at(0x9000, 0x1000) },
        ] {
            assert!(memory(&[one, other]).is_err(), "{other:x?}");
        }
        assert!(memory(&[one, region_at(0x2000, 0x1000)]).is_ok());
        let short = vec![ram(0xfff) as Arc<dyn Region>];
        assert!(Memory::new(&[one], short).is_err());
    }

    #[test]
    fn a_range_may_span_neighbours_but_no_hole() {
        let all = [region_at(0x1000, 0x1000), region_at(0x2000, 0x1000), region_at(0x4000, 16)];
        let memory = memory(&all).unwrap();
        memory.write(0x1fff, b"ab").unwrap();
        let mut out = [0; 3];
        memory.read(0x1ffe, &mut out).unwrap();
        assert_eq!(&out, b"\0ab");
        for (address, len) in [(0xfff, 2), (0x2fff, 2), (0x3fff, 2), (0x400f, 2), (0x9000, 1)] {
            let outside = AccessError::Outside { address, len };
            assert_eq!(memory.check(address, len), Err(outside), "{address:x}");
        }
        let at_the_end = AccessError::Outside { address: u64::MAX, len: 2 };
        assert_eq!(memory.check(u64::MAX, 2), Err(at_the_end));
    }

    #[test]
    fn runs_are_lent_where_they_lie_in_one_region() {
        let (low, high) = (region_at(0x1000, 0x1000), region_at(0x2000, 0x1000));
        let memory = memory(&[low, high]).unwrap();
        memory.write(0x1ff0, b"runs").unwrap();
        memory.write(0x2000, b" lent").unwrap();
        let bufs = memory.lend(&[(0x1ff0, 4), (0x2000, 5)]).unwrap();
        let mut found = [0; 9];
        bufs.copy_to(&mut found);
        assert_eq!(&found, b"runs lent");
        bufs.copy_from(b"RUNS LENT");
        memory.read(0x1ff0, &mut found[..4]).unwrap();
        assert_eq!(&found[..4], b"RUNS");
        for (address, len) in [(0x1fff, 2), (0xfff, 2), (0x3000, 1), (u64::MAX, 1)] {
            assert!(memory.lend(&[(0x1000, 16), (address, len)]).is_none(), "{address:#x}");
        }
    }

    #[test]
    fn an_address_of_the_front_end_lies_in_one_region() {
        let (one, two) = (region_at(0x1000, 0x1000), region_at(0x2000, 0x1000));
        let memory = memory(&[one, two]).unwrap();
        assert_eq!(memory.at_user(one.user + 16, 0xff0).unwrap().at, 16);
        for (address, len) in [(one.user, 0x1001), (one.user - 1, 1), (u64::MAX, 2)] {
            assert!(memory.at_user(address, len).is_none());
        }
    }
}
