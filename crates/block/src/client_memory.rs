// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a client that this process has mapped, as data of bios: a device reads and writes the
//! client's own pages, and nothing is copied on the way.
//!
//! ```text
//!   client (a guest) ──▶ pages ◀── ClientMemory ──slice──▶ Bufs of a bio ──▶ the kernel, a copy
//!                                     │ owner: keeps the mapping until the last slice is dropped
//! ```
//!
//! The client changes its memory whenever it likes. So only a device that says so takes it
//! ([`crate::BlockDevice::takes_client_memory`]): it hands the bytes to the kernel, or copies them
//! once. A device that computes with data (a checksum, a compressor) gets a copy.
//!
//! Invariants
//! - BL-CM1 No reference to the bytes is made (BL-R4): an attempt panics.
//! - BL-CM2 The mapping lives as long as any slice of it.
use std::any::Any;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Buf, Ram, Slice};

/// Bytes of a buffer: one has 2^31 at most, and a run of data that lies in two of them is copied.
const PART_BYTES: usize = 1 << 30;

/// See the module. Each core has its own: slices of one count in the same place.
pub struct ClientMemory {
    /// All but the last have [`PART_BYTES`].
    parts: Vec<Buf>,
    /// It stays on the thread that lends it (BL-BF5).
    on_thread: PhantomData<*const ()>,
}

impl ClientMemory {
    /// `len` bytes at `base`.
    ///
    /// # Safety
    /// They are mapped, to be read and written, as long as `owner` lives, and nobody makes a
    /// reference to them.
    pub unsafe fn new(
        base: NonNull<u8>,
        len: usize,
        owner: &Arc<impl Any + Send + Sync>,
    ) -> ClientMemory {
        let part = |first: usize| {
            let len = PART_BYTES.min(len - first);
            // SAFETY: within the bytes, of which the caller has promised that.
            unsafe { Buf::of_client(base.add(first), len, owner.clone()) }
        };
        let parts = (0..len).step_by(PART_BYTES).map(part).collect();
        ClientMemory { parts, on_thread: PhantomData }
    }

    /// That of a client in this process: of a simulation, a test or a bench.
    pub fn of_ram(ram: &Arc<Ram>) -> ClientMemory {
        // SAFETY: `ram` is mapped as long as it lives, and accessed by copies only (BL-M2).
        unsafe { ClientMemory::new(ram.base(), ram.len(), ram) }
    }

    /// `len` bytes from `at` on, unless they are not all there, or not in one part.
    #[inline(always)]
    pub fn slice(&self, at: u64, len: usize) -> Option<Slice> {
        let at = usize::try_from(at).ok()?;
        let (part, first) = (self.parts.get(at / PART_BYTES)?, at % PART_BYTES);
        let fits = len > 0 && len <= part.len() && first <= part.len() - len;
        fits.then(|| part.slice(first..first + len))
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.parts.iter().for_each(Buf::end_lending);
    }
}

crate::debug_as!(ClientMemory, s =>
    "ClientMemory({} bytes)", s.parts.iter().map(Buf::len).sum::<usize>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bufs;

    #[test]
    fn what_one_side_copies_in_the_other_copies_out() {
        let ram = Arc::new(Ram::new(8192).unwrap());
        let memory = ClientMemory::of_ram(&ram);
        let bufs = Bufs::from(memory.slice(100, 4096).unwrap());
        ram.write(98, b"..guest");
        let mut found = [0; 5];
        bufs.take_at(0, &mut found);
        assert_eq!(&found, b"guest");
        bufs.slice(4..6).put_at(0, b"xy");
        ram.read(103, &mut found);
        assert_eq!(&found, b"sxy\0\0");
        bufs.zero();
        ram.read(98, &mut found);
        assert_eq!(&found, b"..\0\0\0");
    }

    #[test]
    fn a_run_in_two_parts_or_beyond_the_end_is_no_slice() {
        let ram = Arc::new(Ram::new(PART_BYTES as u64 + 8192).unwrap());
        let memory = ClientMemory::of_ram(&ram);
        let part = PART_BYTES as u64;
        for (at, len, is_there) in [
            (0, 1, true),
            (part - 1, 1, true),
            (part - 1, 2, false),
            (part, 8192, true),
            (part, 8193, false),
            (part + 8192, 1, false),
            (u64::MAX, 1, false),
            (0, 0, false),
            (4096, usize::MAX, false),
        ] {
            assert_eq!(memory.slice(at, len).is_some(), is_there, "{len} bytes at {at}");
        }
        let second = memory.slice(part + 5, 1).unwrap();
        ram.write(PART_BYTES + 5, b"!");
        let mut found = [0];
        Bufs::from(second).take_at(0, &mut found);
        assert_eq!(&found, b"!");
    }

    /// BL-CM1.
    #[test]
    #[should_panic(expected = "bytes 0..4096 are a client's")]
    fn a_reference_to_it_is_refused() {
        let memory = ClientMemory::of_ram(&Arc::new(Ram::new(4096).unwrap()));
        memory.slice(0, 4096).unwrap().read(|_| ());
    }

    /// BL-CM2.
    #[test]
    fn the_owner_lives_as_long_as_any_slice() {
        let ram = Arc::new(Ram::new(4096).unwrap());
        let slice = ClientMemory::of_ram(&ram).slice(0, 512);
        assert_eq!(Arc::strong_count(&ram), 2);
        drop(slice.clone());
        assert_eq!(Arc::strong_count(&ram), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&ram), 1);
    }

    /// BL-CM2, BL-BF5: loans that come back to the thread that lends are lent again; others come
    /// back on another thread, or after the lending has ended.
    #[test]
    fn loans_come_back_on_any_thread_and_at_any_time() {
        let ram = Arc::new(Ram::new(8192).unwrap());
        let memory = ClientMemory::of_ram(&ram);
        for _ in 0..3 {
            let all: Vec<Slice> = (0..4).map(|nth| memory.slice(nth * 512, 512).unwrap()).collect();
            let (here, there): (Vec<_>, Vec<_>) =
                all.into_iter().enumerate().partition(|(nth, _)| nth % 2 == 0);
            drop(here);
            std::thread::scope(|threads| {
                threads.spawn(move || drop((there.clone(), there)));
            });
        }
        let late = [memory.slice(0, 512).unwrap(), memory.slice(512, 512).unwrap()];
        // The thread keeps this one for the next loan, until the lending ends.
        drop(memory.slice(1024, 512));
        drop(memory);
        assert_eq!(Arc::strong_count(&ram), 2, "two slices have it");
        let [here, there] = late;
        drop(here);
        assert_eq!(Arc::strong_count(&ram), 2, "one has it");
        std::thread::scope(|threads| {
            threads.spawn(move || drop(there));
        });
        assert_eq!(Arc::strong_count(&ram), 1);
    }
}
