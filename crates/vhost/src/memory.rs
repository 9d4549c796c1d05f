// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory: its regions, and every access to it by address.
//!
//! Invariants
//! - VH-M1 No access leaves a region: each address and length is looked up, and sums are checked.
//! - VH-M2 Regions overlap neither in the guest nor in the front end, so an address means one
//!   place.
use std::fmt;
use std::sync::Arc;

use block::{Bufs, ClientMemory, ClientRegion, Error, PAGE, Slice, Status};
use smallvec::SmallVec;

use crate::message::RegionInfo;

/// A region at its addresses.
#[derive(Debug)]
struct Placed {
    guest: u64,
    user: u64,
    len: u64,
    region: Arc<dyn ClientRegion>,
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

/// Bytes of the guest within one region of the [`Memory`] that has found them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The first one, within the region.
    at: u64,
    len: u32,
    region: u32,
}

/// Extents in order: they are one stream of bytes.
pub type Extents = SmallVec<[Extent; 4]>;

impl Extent {
    /// That of a memory whose one region begins at address 0.
    #[cfg(test)]
    pub(crate) fn of_test(at: u64, len: u32) -> Extent {
        Extent { at, len, region: 0 }
    }

    /// Its length, bytes.
    #[inline]
    pub fn len_bytes(&self) -> u32 {
        self.len
    }

    /// Drops the first `n` bytes, which are there.
    pub(crate) fn drop_front(&mut self, n: u32) {
        self.at += u64::from(n); // within the region
        self.len -= n;
    }

    /// Its last byte. It is not empty.
    pub(crate) fn last(&self) -> Extent {
        Extent { at: self.at + u64::from(self.len - 1), len: 1, ..*self }
    }

    /// All but its last byte, which is there.
    pub(crate) fn but_last(&self) -> Extent {
        Extent { len: self.len - 1, ..*self }
    }
}

/// The guest's memory. Empty before the front end has sent it.
#[derive(Debug, Default)]
pub struct Memory(Vec<Placed>);

/// A run of bytes at one place: what a ring's part lies in.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) region: Arc<dyn ClientRegion>,
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
    pub fn new(infos: &[RegionInfo], regions: Vec<Arc<dyn ClientRegion>>) -> Result<Memory, Error> {
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

    /// The number of the region that has an address of the guest, and the byte there.
    #[inline]
    fn find(&self, address: u64) -> Option<(usize, u64)> {
        let has = |placed: &Placed| address >= placed.guest && address - placed.guest < placed.len;
        let nth = self.0.iter().position(has)?;
        Some((nth, address - self.0[nth].guest))
    }

    /// Calls `found` with the extents of `len` bytes from `address` on, in order (VH-M1).
    ///
    /// # Errors
    /// `Outside` when they are not all there; extents before a hole were found then.
    #[inline]
    pub fn locate(
        &self,
        address: u64,
        len: u32,
        mut found: impl FnMut(Extent) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let extent = |region: usize, at: u64, len: u32| Extent { at, len, region: number(region) };
        // Nearly always all of it lies in one region.
        if let Some((nth, at)) = self.find(address)
            && (1..=self.0[nth].len - at).contains(&u64::from(len))
        {
            return found(extent(nth, at, len));
        }
        let outside = AccessError::Outside { address, len: len.into() };
        address.checked_add(len.into()).ok_or(outside)?;
        let mut done = 0;
        while done < len {
            let (nth, at) = self.find(address + u64::from(done)).ok_or(outside)?;
            let here = u32::try_from(self.0[nth].len - at).unwrap_or(u32::MAX).min(len - done);
            found(extent(nth, at, here))?;
            done += here;
        }
        Ok(())
    }

    fn region(&self, extent: &Extent) -> &dyn ClientRegion {
        &*self.0[extent.region as usize].region
    }

    /// Copies bytes of the guest to `out`.
    ///
    /// # Errors
    /// As [`AccessError`] has them; `out` may have changed.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let len = u32::try_from(out.len()).expect("a table or less");
        let mut done = 0;
        self.locate(address, len, |extent| {
            let next = done + extent.len as usize;
            self.read_extent(&extent, &mut out[done..next])?;
            done = next;
            Ok(())
        })
    }

    /// Stores bytes in the guest.
    ///
    /// # Errors
    /// As [`AccessError`] has them; some bytes may be stored.
    #[cfg(any(test, fuzzing))]
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let len = u32::try_from(bytes.len()).expect("few");
        let mut rest = bytes;
        self.locate(address, len, |extent| {
            let here;
            (here, rest) = rest.split_at(extent.len as usize);
            self.write_extent(&extent, here)
        })
    }

    /// Copies the first bytes of an extent to all of `out`.
    ///
    /// # Errors
    /// `Lost` when the memory is gone.
    #[inline]
    pub fn read_extent(&self, from: &Extent, out: &mut [u8]) -> Result<(), AccessError> {
        assert!(out.len() <= from.len as usize, "within the extent");
        Ok(self.region(from).read(from.at, out)?)
    }

    /// Stores the first bytes of an extent.
    ///
    /// # Errors
    /// `Lost` when the memory is gone.
    #[inline]
    pub fn write_extent(&self, to: &Extent, bytes: &[u8]) -> Result<(), AccessError> {
        assert!(bytes.len() <= to.len as usize, "within the extent");
        Ok(self.region(to).write(to.at, bytes)?)
    }

    /// Begins to load the line of the processor's cache that has the first byte of an extent, which
    /// is read soon.
    #[inline]
    pub(crate) fn prefetch(&self, extent: &Extent) {
        self.region(extent).prefetch(extent.at);
    }

    /// The same for the last byte, which is stored soon.
    #[inline]
    pub(crate) fn prefetch_to_store(&self, extent: &Extent) {
        self.region(extent).prefetch_to_store(extent.last().at);
    }

    /// The extents themselves as data of a bio. `None`: one can't be.
    #[inline(always)]
    pub(crate) fn lend(&self, extents: &[Extent]) -> Option<Bufs> {
        match extents {
            [all] => self.lend_one(all).map(Bufs::from), // nearly always
            all => self.lend_many(all),
        }
    }

    #[inline(always)]
    fn lend_one(&self, extent: &Extent) -> Option<Slice> {
        let lent = self.0[extent.region as usize].lent.as_ref()?;
        lent.slice(extent.at, extent.len as usize)
    }

    #[inline(never)]
    fn lend_many(&self, extents: &[Extent]) -> Option<Bufs> {
        let mut bufs = Bufs::new();
        for extent in extents {
            bufs.push(self.lend_one(extent)?);
        }
        Some(bufs)
    }

    /// Whether all pages of the extents are still there, after a device had them: as far as it has
    /// found out, or, if the device has failed, by an access to each.
    ///
    /// # Errors
    /// `Lost` when one is not.
    pub(crate) fn check_lent(
        &self,
        extents: &[Extent],
        has_failed: bool,
    ) -> Result<(), AccessError> {
        for extent in extents {
            let (region, at, len) = (self.region(extent), extent.at, u64::from(extent.len));
            region.check(at, len)?;
            if has_failed {
                let pages = (at..at + len).step_by(PAGE).chain([at + len - 1]);
                pages.into_iter().try_for_each(|at| region.read(at, &mut [0]))?;
            }
        }
        Ok(())
    }

    /// Copies the extents to `bufs`, which is as long as all of them.
    pub(crate) fn gather(&self, extents: &[Extent], bufs: &Bufs) -> Result<(), AccessError> {
        self.pair(extents, bufs, |region, at, slice| region.read_to(at, slice))
    }

    /// Copies `bufs` to the extents, whose first bytes it fills.
    pub(crate) fn scatter(&self, extents: &[Extent], bufs: &Bufs) -> Result<(), AccessError> {
        self.pair(extents, bufs, |region, at, slice| region.write_from(at, slice))
    }

    fn pair(
        &self,
        extents: &[Extent],
        bufs: &Bufs,
        copy: impl Fn(&dyn ClientRegion, u64, &Slice) -> Result<(), Status>,
    ) -> Result<(), AccessError> {
        let [all] = bufs.iter().as_slice() else {
            assert!(bufs.is_empty(), "data of a request are one buffer");
            return Ok(());
        };
        let mut done = 0;
        for extent in extents {
            let n = (extent.len as usize).min(all.len() - done);
            let region = self.region(extent);
            match n {
                0 => break,
                n if n == all.len() => copy(region, extent.at, all)?,
                n => copy(region, extent.at, &all.slice(done..done + n))?,
            }
            done += n;
        }
        assert_eq!(done, all.len(), "the extents have as many bytes");
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

/// The number of a region: a message has few.
fn number(region: usize) -> u32 {
    u32::try_from(region).expect("as many as a message has")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ram, region_at};

    fn memory(regions: &[RegionInfo]) -> Result<Memory, Error> {
        let mapped = regions.iter().map(|r| ram(r.len.max(1)) as Arc<dyn ClientRegion>);
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
        let short = vec![ram(0xfff) as Arc<dyn ClientRegion>];
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
        let lens: Vec<u32> = extents(&memory, 0x1ffe, 3).iter().map(Extent::len_bytes).collect();
        assert_eq!(lens, [2, 1]);
        for (address, len) in
            [(0xfff, 2), (0x2fff, 2), (0x3fff, 2), (0x400f, 2), (0x9000, 1), (u64::MAX, 2)]
        {
            let outside = AccessError::Outside { address, len: len.into() };
            assert_eq!(memory.locate(address, len, |_| Ok(())), Err(outside), "{address:x}");
        }
    }

    fn extents(memory: &Memory, address: u64, len: u32) -> Extents {
        let mut all = Extents::new();
        memory
            .locate(address, len, |extent| {
                all.push(extent);
                Ok(())
            })
            .unwrap();
        all
    }

    #[test]
    fn extents_are_lent_across_regions() {
        let (low, high) = (region_at(0x1000, 0x1000), region_at(0x2000, 0x1000));
        let memory = memory(&[low, high]).unwrap();
        memory.write(0x1ff0, b"ends").unwrap();
        memory.write(0x2000, b" lent").unwrap();
        let mut both = extents(&memory, 0x1ff0, 4);
        both.extend(extents(&memory, 0x2000, 5));
        let bufs = memory.lend(&both).unwrap();
        let mut found = [0; 9];
        bufs.copy_to(&mut found);
        assert_eq!(&found, b"ends lent");
        bufs.copy_from(b"ENDS LENT");
        memory.read(0x1ff0, &mut found[..4]).unwrap();
        assert_eq!(&found[..4], b"ENDS");
        memory.write(0x1fff, b"ab").unwrap();
        let bufs = memory.lend(&extents(&memory, 0x1fff, 2)).unwrap();
        bufs.copy_to(&mut found[..2]);
        assert_eq!((bufs.count(), &found[..2]), (2, &b"ab"[..]));
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
