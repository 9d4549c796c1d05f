// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mem: a device in RAM, sparse, that completes at once (`mem:SIZE`).
//!
//! ```text
//!   tables: [ Option ▶ 512 chunks ]  one for each 32 MiB
//!                         └─▶ Option ▶ 64 KiB of bytes; absent reads as zeroes
//! ```
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use block::{Bio, BlockDevice, Limits, Op, Sector, Status};

use crate::stats::Stats;

/// What is taken from and given back to the system at a time. Zeroing it costs a few microseconds,
/// which a first write can bear.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of one table: keeps a device of 1 TiB that is empty at 256 KiB of RAM.
const TABLE_CHUNKS: usize = 512;

type Chunk = Box<[u8]>;
type Table = Box<[Option<Chunk>]>;

/// A sparse array of bytes.
struct Sparse(Vec<Option<Table>>);

/// Where in its chunk, and where in the request, the pieces of `range` lie: (chunk, in it, length).
fn pieces(range: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let (chunk, within) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
        let len = (CHUNK_BYTES - within).min(range.end - at);
        at += len;
        (len > 0).then_some((chunk, within, len))
    })
}

impl Sparse {
    fn new(bytes: u64) -> Sparse {
        let table_bytes = (CHUNK_BYTES * TABLE_CHUNKS) as u64;
        let tables = usize::try_from(bytes.div_ceil(table_bytes)).expect("64-bit machine");
        Sparse(std::iter::repeat_with(|| None).take(tables).collect())
    }

    fn get(&self, chunk: usize) -> Option<&Chunk> {
        self.0[chunk / TABLE_CHUNKS].as_ref()?[chunk % TABLE_CHUNKS].as_ref()
    }

    fn slot(&mut self, chunk: usize) -> &mut Option<Chunk> {
        let table = self.0[chunk / TABLE_CHUNKS]
            .get_or_insert_with(|| std::iter::repeat_with(|| None).take(TABLE_CHUNKS).collect());
        &mut table[chunk % TABLE_CHUNKS]
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        let mut done = 0;
        for (chunk, within, len) in pieces(at..at + out.len()) {
            let to = &mut out[done..done + len];
            match self.get(chunk) {
                Some(bytes) => to.copy_from_slice(&bytes[within..within + len]),
                None => to.fill(0),
            }
            done += len;
        }
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        let mut done = 0;
        for (chunk, within, len) in pieces(at..at + data.len()) {
            let bytes =
                self.slot(chunk).get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            bytes[within..within + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
    }

    /// Zeroes a range, giving whole chunks back.
    fn clear(&mut self, range: Range<usize>) {
        for (chunk, within, len) in pieces(range) {
            if self.get(chunk).is_none() {
                continue;
            }
            let slot = self.slot(chunk);
            if len == CHUNK_BYTES {
                *slot = None;
            } else if let Some(bytes) = slot {
                bytes[within..within + len].fill(0);
            }
        }
    }

    fn chunks(&self) -> usize {
        self.0.iter().flatten().map(|t| t.iter().flatten().count()).sum()
    }
}

/// A device in RAM. Memory is taken at the first write of each 64 KiB and given back by discard and
/// write zeroes.
pub struct Mem {
    limits: Limits,
    stats: Stats,
    bytes: RefCell<Sparse>,
}

impl Mem {
    /// A device of `capacity`, all zeroes.
    pub fn new(name: impl Into<String>, capacity: Sector) -> Mem {
        let limits = Limits {
            discard_granularity_bytes: 512,
            write_zeroes: true,
            // A flush adds nothing: what a process keeps in RAM goes with the process.
            volatile_cache: false,
            ..Limits::new(capacity)
        };
        let bytes = RefCell::new(Sparse::new(capacity.bytes()));
        Mem { limits, stats: Stats::new(name.into()), bytes }
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Bytes of RAM that hold data now.
    pub fn used_bytes(&self) -> u64 {
        (self.bytes.borrow().chunks() * CHUNK_BYTES) as u64
    }

    fn execute(&self, bio: &Bio) -> Result<(), Status> {
        self.limits.check(bio)?;
        let index = |s: Sector| usize::try_from(s.bytes()).map_err(|_| Status::Invalid);
        let mut at = index(bio.sector)?;
        match bio.op {
            Op::Read => {
                let bytes = self.bytes.borrow();
                for slice in bio.bufs.iter() {
                    slice.write(|out| bytes.read(at, out));
                    at += slice.len();
                }
            }
            Op::Write => {
                let mut bytes = self.bytes.borrow_mut();
                bio.bufs.for_each(|data| {
                    bytes.write(at, data);
                    at += data.len();
                });
            }
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes => {
                self.bytes.borrow_mut().clear(at..index(bio.end())?);
            }
        }
        Ok(())
    }
}

impl BlockDevice for Mem {
    fn name(&self) -> &str {
        self.stats.device()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        let ticket = self.stats.begin(&bio);
        let status = Status::from(self.execute(&bio));
        self.stats.end(ticket, status);
        bio.complete(status);
    }
}

impl fmt::Debug for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mem({}, {} bytes used)", self.name(), self.used_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use block::{Buf, Bufs, Class, Flags};
    use reactor::{discard, flush, read, write, write_zeroes};

    use super::*;
    use crate::testing::{Script, pattern, with_core};

    fn bytes_of(bufs: &Bufs) -> Vec<u8> {
        let mut out = vec![0; bufs.len_bytes()];
        bufs.copy_to(&mut out);
        out
    }

    #[test]
    fn written_data_is_read_back_across_chunks_and_buffers() {
        with_core(Script::default().driver(), async {
            let dev = Rc::new(Mem::new("mem:1G", Sector(1 << 21)));
            let mut data = pattern(100 * 1024, 1);
            for slice in pattern(60 * 1024, 9).iter() {
                data.push(slice.clone());
            }
            // Begins 4 KiB before a chunk boundary and crosses a table's end.
            let at = Sector::from_bytes((32 << 20) - 4096);
            write(&*dev, Flags::FUA, Class::Normal, at, data.clone()).await.unwrap();
            flush(&*dev, Class::Normal).await.unwrap();
            let back = Bufs::from(Buf::alloc(160 * 1024));
            read(&*dev, Class::Normal, at, back.clone()).await.unwrap();
            assert_eq!(bytes_of(&back), bytes_of(&data));
            assert_eq!(dev.used_bytes(), 4 * CHUNK_BYTES as u64);
        });
    }

    #[test]
    fn what_was_never_written_reads_as_zeroes_and_takes_no_memory() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:1T", Sector(1 << 31));
            let back = pattern(8192, 5);
            read(&dev, Class::Normal, Sector((1 << 31) - 16), back.clone()).await.unwrap();
            assert!(bytes_of(&back).iter().all(|&b| b == 0));
            assert_eq!(dev.used_bytes(), 0);
        });
    }

    #[test]
    fn discard_and_write_zeroes_zero_and_give_whole_chunks_back() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:1M", Sector(2048));
            let all = pattern(1 << 20, 1);
            write(&dev, Flags::empty(), Class::Normal, Sector(0), all.clone()).await.unwrap();
            discard(&dev, Class::Normal, Sector(1), Sector(256)).await.unwrap();
            write_zeroes(&dev, Flags::empty(), Class::Normal, Sector(1024), Sector(128))
                .await
                .unwrap();
            let mut want = bytes_of(&all);
            want[512..512 + 256 * 512].fill(0);
            want[1024 * 512..1152 * 512].fill(0);
            read(&dev, Class::Normal, Sector(0), all.clone()).await.unwrap();
            assert_eq!(bytes_of(&all), want);
            assert_eq!(dev.used_bytes(), (16 - 2) * CHUNK_BYTES as u64);
        });
    }

    #[test]
    fn requests_beyond_the_end_are_refused_and_counted() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:4K", Sector(8));
            let bad = read(&dev, Class::Normal, Sector(4), pattern(4096, 0)).await;
            assert_eq!(bad, Err(Status::Invalid));
            assert_eq!(dev.stats().of(Op::Read).errors, 1);
            let said = dev.stats().last_error().unwrap().to_string();
            assert_eq!(said, "mem:4K: read at sector 4: invalid range or alignment");
        });
    }
}
