// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lean NBD load generator for `bench-zram`, whose contents `millpond bench --uri` can't make:
//! one connection, a fixed number of requests in flight, all requests that can go in one write,
//! all replies that are there in one read.
use std::io::{self, Write};
use std::path::Path;

use hdrhistogram::Histogram;
use nbd::request::{REQUEST_BYTES, Request};
use nbd::wire::cmd;

use crate::conn::{Conn, wrong};
use reproduce::clock;

/// Bytes of one request.
pub const BLOCK_BYTES: u32 = 4096;

/// Latencies above ten seconds count as ten seconds.
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 4 KiB reads at random places.
    RandRead,
    /// 4 KiB writes at random places.
    RandWrite,
}

impl Kind {
    /// fio's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::RandRead => "randread",
            Kind::RandWrite => "randwrite",
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Requests done.
    pub ios: u64,
    /// Requests a second.
    pub iops: f64,
    /// From before the write to after the read, nanoseconds.
    pub latency_ns: Histogram<u64>,
}

/// A connection that gives load.
#[derive(Debug)]
pub struct Client {
    conn: Conn,
    /// What is written, one of them at random each time.
    payloads: Vec<Vec<u8>>,
}

impl Client {
    /// Connects to an export of the server at `socket`.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let payloads = vec![vec![0x6d; BLOCK_BYTES as usize]];
        Ok(Client { conn: Conn::open(socket, export)?, payloads })
    }

    /// What random writes write from now on: blocks, of which there is at least one.
    pub fn set_payloads(&mut self, payloads: Vec<Vec<u8>>) {
        let is_block = |p: &Vec<u8>| p.len() == BLOCK_BYTES as usize;
        assert!(!payloads.is_empty() && payloads.iter().all(is_block), "payloads are blocks");
        self.payloads = payloads;
    }

    /// Size of the export.
    pub fn size(&self) -> u64 {
        self.conn.size
    }

    /// Writes the whole export once, so that reads find data.
    pub fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        let step = u32::try_from(data.len()).map_err(|_| wrong("data too long"))?;
        for offset in (0..self.conn.size).step_by(data.len()) {
            let request = Request { flags: 0, kind: cmd::WRITE, cookie: 1, offset, len: step };
            self.conn.stream.write_all(&request.encode())?;
            self.conn.stream.write_all(data)?;
            while self.conn.reply(0)?.is_none() {
                self.conn.fill()?;
            }
        }
        Ok(())
    }

    /// Keeps `depth` requests in flight for `seconds`.
    pub fn run(&mut self, kind: Kind, depth: usize, seconds: f64) -> io::Result<Outcome> {
        let blocks = self.conn.size / u64::from(BLOCK_BYTES);
        let (command, data) = match kind {
            Kind::RandRead => (cmd::READ, BLOCK_BYTES as usize),
            Kind::RandWrite => (cmd::WRITE, 0),
        };
        let payload_bytes = if command == cmd::WRITE { BLOCK_BYTES as usize } else { 0 };
        let mut latency_ns =
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(|e| wrong(e.to_string()))?;
        let mut free: Vec<u64> = (0..depth as u64).collect();
        let mut sent_at = vec![0.0; depth];
        let mut out = Vec::with_capacity(depth * (REQUEST_BYTES + payload_bytes));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let begin = clock();
        let (mut now, mut ios, mut flying) = (begin, 0, 0);
        while now < begin + seconds || flying > 0 {
            out.clear();
            if now < begin + seconds {
                for cookie in free.drain(..) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let offset = random % blocks * u64::from(BLOCK_BYTES);
                    let (kind, len) = (command, BLOCK_BYTES);
                    out.extend(Request { flags: 0, kind, cookie, offset, len }.encode());
                    // Other bits than those that chose the place.
                    let nth = (random >> 40) as usize % self.payloads.len();
                    out.extend_from_slice(&self.payloads[nth][..payload_bytes]);
                    sent_at[cookie as usize] = now;
                    flying += 1;
                }
                self.conn.stream.write_all(&out)?;
            }
            self.conn.fill()?;
            now = clock();
            while let Some(cookie) = self.conn.reply(data)? {
                let sent = sent_at.get(cookie as usize).ok_or_else(|| wrong("unknown cookie"))?;
                latency_ns.saturating_record(((now - sent) * 1e9) as u64);
                free.push(cookie);
                flying -= 1;
                ios += 1;
            }
        }
        Ok(Outcome { ios, iops: ios as f64 / (now - begin), latency_ns })
    }
}
