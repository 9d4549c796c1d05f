// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What fio and nbdcopy do in the demo, by a client of our own: for machines without them.
//!
//! Each block of the fill is written once, in random order, as version 1 of a stamped block; all
//! others of its area stay version 0. So the check reads everything, and knows both.
use std::io;
use std::ops::Range;

use e2e::client::{Answer, Client};
use e2e::fio::Measured;
use e2e::stamp::{BLOCK_BYTES, Random, fill, fill_words, version_of};
use e2e::{Result, clock};
use nbd::request::Request;
use nbd::wire::cmd;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Requests in flight, as many as fio has.
const DEPTH: u64 = 32;
/// A flush after so many writes of the load, as fio's.
const FLUSH_ONE_IN: u64 = 256;
/// Blocks read at a time.
const CHUNK_BLOCKS: u64 = 256;

/// Which blocks a fill writes, in its order.
#[derive(Clone, Debug)]
pub(crate) struct FillPlan {
    order: Vec<u64>,
    area_blocks: u64,
}

impl FillPlan {
    /// So many of the blocks of an area at the beginning: the same ones for a seed.
    pub(crate) fn new(area_bytes: u64, fill_bytes: u64, seed: u64) -> FillPlan {
        let area_blocks = area_bytes / BLOCK;
        let mut order: Vec<u64> = (0..area_blocks).collect();
        let mut random = Random::new(seed);
        for last in (1..area_blocks).rev() {
            order.swap(last as usize, random.below(last + 1) as usize);
        }
        order.truncate((fill_bytes / BLOCK) as usize);
        FillPlan { order, area_blocks }
    }

    /// Writes them, for `seconds` at most, and flushes.
    pub(crate) fn write(&self, client: &mut Client, seconds: u64) -> io::Result<Measured> {
        let began = clock();
        let mut block = vec![0; BLOCK_BYTES];
        let (mut sent, mut answered) = (0, 0);
        for nth in &self.order {
            if clock() - began > seconds as f64 {
                break;
            }
            if sent - answered == DEPTH {
                receive(client)?;
                answered += 1;
            }
            fill(&mut block, *nth, 1);
            send(client, nth * BLOCK, &block)?;
            sent += 1;
        }
        for _ in answered..sent {
            receive(client)?;
        }
        client.flush()?;
        let write_iops = sent as f64 / (clock() - began);
        Ok(Measured { writes: sent, reads: 0, write_iops, read_iops: 0.0, read_p50_us: 0.0 })
    }

    /// Reads the whole area: what was written is new, all else is old. Returns how many are new.
    pub(crate) fn check(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<u64> {
        let mut is_new = vec![false; self.area_blocks as usize];
        self.order.iter().for_each(|nth| is_new[*nth as usize] = true);
        let mut data = vec![0; CHUNK_BLOCKS as usize * BLOCK_BYTES];
        for start in (0..self.area_blocks).step_by(CHUNK_BLOCKS as usize) {
            let blocks = CHUNK_BLOCKS.min(self.area_blocks - start);
            let data = &mut data[..blocks as usize * BLOCK_BYTES];
            read(start * BLOCK, data).map_err(|e| format!("reading: {e}"))?;
            for (nth, block) in (start..).zip(data.chunks_exact(BLOCK_BYTES)) {
                let expected = u64::from(is_new[nth as usize]);
                if version_of(block, nth) != Some(expected) {
                    let found = &block[..16];
                    return Err(format!("block {nth} is not version {expected}: {found:02x?}"));
                }
            }
        }
        Ok(self.order.len() as u64)
    }
}

/// Writes blocks of a range, each with its own pattern (its offset, over and over), until the
/// server is gone or the clock has passed `stop_at`. Returns why it ended.
pub(crate) fn overwrite(
    client: &mut Client,
    range: Range<u64>,
    seed: u64,
    stop_at: f64,
) -> Result<()> {
    let mut random = Random::new(seed);
    let mut block = vec![0; BLOCK_BYTES];
    let mut requests = 0;
    let mut in_flight = 0;
    while clock() < stop_at {
        if in_flight == DEPTH {
            receive(client).map_err(|e| e.to_string())?;
            in_flight -= 1;
        }
        let offset = range.start + random.below((range.end - range.start) / BLOCK) * BLOCK;
        requests += 1;
        let sent = if requests % FLUSH_ONE_IN == 0 {
            client.send(Request { flags: 0, kind: cmd::FLUSH, cookie: 1, offset: 0, len: 0 }, &[])
        } else {
            fill_words(&mut block, || offset);
            send(client, offset, &block)
        };
        sent.map_err(|e| e.to_string())?;
        in_flight += 1;
    }
    Ok(())
}

fn send(client: &mut Client, offset: u64, block: &[u8]) -> io::Result<()> {
    let len = BLOCK_BYTES as u32;
    client.send(Request { flags: 0, kind: cmd::WRITE, cookie: 1, offset, len }, block)
}

fn receive(client: &mut Client) -> io::Result<()> {
    match client.receive()? {
        Answer { error: 0, .. } => Ok(()),
        Answer { error, .. } => Err(io::Error::other(format!("the server says error {error}"))),
    }
}

/// Succeeds if two readers have the same bytes; the error names the first that differs.
pub(crate) fn compare(
    bytes: u64,
    mut left: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    mut right: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> Result<()> {
    let chunk = CHUNK_BLOCKS * BLOCK;
    let (mut a, mut b) = (vec![0; chunk as usize], vec![0; chunk as usize]);
    for start in (0..bytes).step_by(chunk as usize) {
        let len = chunk.min(bytes - start) as usize;
        left(start, &mut a[..len]).map_err(|e| format!("reading: {e}"))?;
        right(start, &mut b[..len]).map_err(|e| format!("reading: {e}"))?;
        if a[..len] != b[..len] {
            let at = (0..len).find(|at| a[*at] != b[*at]).expect("they differ");
            return Err(format!("byte {} differs", start + at as u64));
        }
    }
    Ok(())
}
