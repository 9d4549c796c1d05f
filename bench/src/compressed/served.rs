// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed memory over NBD: ours and nbdkit's, half compressible data, speed and memory.
use std::path::Path;

use reproduce::compressed::PAGE_BYTES;
use reproduce::compressed::data::Data;

use crate::load::{Client, Kind};
use crate::peer::{EXPORT, Peer, Place};

/// Requests in flight.
pub const DEPTH: usize = 16;
/// Different pages that are written: 1 MiB, which stays in the client's cache.
const POOL_PAGES: usize = 256;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Zstd,
    Lz4,
    NbdkitZstd,
}

pub const NAMES: [Name; 3] = [Name::Zstd, Name::Lz4, Name::NbdkitZstd];

impl Name {
    /// Begins the keys of the JSON line.
    pub fn key(self) -> &'static str {
        match self {
            Name::Zstd => "ours",
            Name::Lz4 => "ours_lz4",
            Name::NbdkitZstd => "nbdkit_zstd",
        }
    }
}

/// A server, filled, and what it has done.
pub struct Served {
    pub name: Name,
    peer: Peer,
    client: Client,
    /// Resident before it was filled.
    empty_rss_bytes: u64,
    /// Growth of what is resident, after the fill and after all rounds; and what `mm_stat` calls
    /// used, where there is one.
    pub filled_rss_bytes: u64,
    pub overwritten_rss_bytes: u64,
    pub mem_used_bytes: [Option<u64>; 2],
    pub write_iops: Vec<f64>,
    pub read_iops: Vec<f64>,
    pub write_cpu_us: Vec<f64>,
    pub read_cpu_us: Vec<f64>,
}

impl Served {
    /// Starts a server with `size` bytes, connects and fills it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn start(name: Name, size: u64, place: Place<'_>) -> Result<Served, String> {
        let table = |algorithm: &str| format!("0 {} zram {algorithm}", size / 512);
        let peer = match name {
            Name::Zstd => Peer::ours("zstd", &table("zstd"), place),
            Name::Lz4 => Peer::ours("lz4", &table("lz4"), place),
            Name::NbdkitZstd => {
                Peer::nbdkit("zstd", &["memory", &size.to_string(), "allocator=zstd"], place)
            }
        }?;
        let empty_rss_bytes = peer.server.resident_bytes();
        let failed = |e: std::io::Error| format!("{}: {e}", peer.what);
        let mut client = Client::connect(&peer.socket, EXPORT).map_err(failed)?;
        let pool = Data::Half.pages(0, POOL_PAGES);
        client.write_all(&pool).map_err(failed)?;
        client.set_payloads(pool.chunks(PAGE_BYTES).map(<[u8]>::to_vec).collect());
        let mut served = Served {
            name,
            peer,
            client,
            empty_rss_bytes,
            filled_rss_bytes: 0,
            overwritten_rss_bytes: 0,
            mem_used_bytes: [None; 2],
            write_iops: Vec::new(),
            read_iops: Vec::new(),
            write_cpu_us: Vec::new(),
            read_cpu_us: Vec::new(),
        };
        served.filled_rss_bytes = served.grown();
        served.mem_used_bytes[0] = served.mem_used(place.program);
        Ok(served)
    }

    fn grown(&self) -> u64 {
        self.peer.server.resident_bytes().saturating_sub(self.empty_rss_bytes)
    }

    fn mem_used(&self, program: &Path) -> Option<u64> {
        if self.name == Name::NbdkitZstd {
            return None;
        }
        let text = self.peer.attribute(program, "mm_stat").ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    }

    /// One round: random writes, then random reads.
    ///
    /// # Errors
    /// What the connection said.
    pub fn round(&mut self, seconds: f64) -> Result<(), String> {
        for kind in [Kind::RandWrite, Kind::RandRead] {
            let before = self.peer.server.cpu_seconds();
            let done = self.client.run(kind, DEPTH, seconds);
            let done = done.map_err(|e| format!("{}: {e}", self.peer.what))?;
            let cpu_us = (self.peer.server.cpu_seconds() - before) * 1e6 / done.ios as f64;
            let (iops, cpu) = match kind {
                Kind::RandWrite => (&mut self.write_iops, &mut self.write_cpu_us),
                Kind::RandRead => (&mut self.read_iops, &mut self.read_cpu_us),
            };
            iops.push(done.iops);
            cpu.push(cpu_us);
        }
        Ok(())
    }

    /// To be called after the last round: looks at the memory.
    pub fn look(&mut self, program: &Path) {
        self.overwritten_rss_bytes = self.grown();
        self.mem_used_bytes[1] = self.mem_used(program);
    }
}
