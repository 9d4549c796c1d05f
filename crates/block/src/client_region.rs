// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A region of a client's memory that this process has mapped: what a door reads of it, and stores
//! there.
use std::fmt;
use std::sync::Arc;

use crate::{ClientMemory, Ram, Slice, Status};

/// Bytes of a client: a mapped file, or memory of a test. Queues on several cores use them at once,
/// as the client does. All methods panic when they are asked for bytes that are not there.
pub trait ClientRegion: fmt::Debug + Send + Sync {
    /// Its length.
    fn len_bytes(&self) -> u64;
    /// Copies the bytes from `at` on to `out`.
    ///
    /// # Errors
    /// `Io` when the client has taken the memory away.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status>;
    /// Stores `bytes` from `at` on.
    ///
    /// # Errors
    /// As [`ClientRegion::read`].
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status>;
    /// Copies the bytes from `at` on to all of `to`.
    ///
    /// # Errors
    /// As [`ClientRegion::read`].
    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status>;
    /// Copies all of `from` to the bytes from `at` on.
    ///
    /// # Errors
    /// As [`ClientRegion::read`].
    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status>;
    /// The number at an even `at`, by one load; what the client stored before it is seen by later
    /// reads of this thread.
    ///
    /// # Errors
    /// As [`ClientRegion::read`].
    fn load_u16(&self, at: u64) -> Result<u16, Status>;
    /// Stores the number at an even `at`, by one store, after all earlier ones of this thread.
    ///
    /// # Errors
    /// As [`ClientRegion::read`].
    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status>;
    /// Whether the bytes are there, as far as anything that accessed them has found out.
    ///
    /// # Errors
    /// As [`ClientRegion::read`].
    fn check(&self, at: u64, len: u64) -> Result<(), Status>;
    /// Begins to load the line of the processor's cache that has a byte, which is read soon.
    fn prefetch(&self, at: u64);
    /// The same for a byte that is stored soon: no other processor keeps the line.
    fn prefetch_to_store(&self, at: u64);
    /// The bytes as data of bios, if they can be.
    fn client_memory(self: Arc<Self>) -> Option<ClientMemory>;
}

/// That of a client in this process: of a simulation, a test or a bench.
impl ClientRegion for Ram {
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

    fn prefetch_to_store(&self, at: u64) {
        Ram::prefetch(self, small(at), 1);
    }

    fn client_memory(self: Arc<Self>) -> Option<ClientMemory> {
        Some(ClientMemory::of_ram(&self))
    }
}

/// A place in memory.
fn small(at: u64) -> usize {
    usize::try_from(at).expect("within something in memory")
}
