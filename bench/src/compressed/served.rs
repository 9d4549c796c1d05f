// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed memory over NBD: ours and nbdkit's, half compressible data, speed and memory.
use std::path::Path;

use reproduce::compressed::PAGE_BYTES;
use reproduce::compressed::data::Data;
use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, median_ratio};
use reproduce::report::Section;
use reproduce::rounds::turns;
use reproduce::table::{Table, fixed};
use serde_json::json;

use crate::load::{Client, Kind};
use crate::peer::{EXPORT, Peer, Place};

/// Of each device, as it was for the figures of other servers.
const SIZE_BYTES: u64 = 512 << 20;
/// Requests in flight.
const DEPTH: usize = 16;
/// Different pages that are written: 1 MiB, which stays in the client's cache.
const POOL_PAGES: usize = 256;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Zstd,
    Lz4,
    NbdkitZstd,
}

const NAMES: [Name; 3] = [Name::Zstd, Name::Lz4, Name::NbdkitZstd];

impl Name {
    /// Begins the keys of the JSON line.
    fn key(self) -> &'static str {
        match self {
            Name::Zstd => "ours",
            Name::Lz4 => "ours_lz4",
            Name::NbdkitZstd => "nbdkit_zstd",
        }
    }
}

/// A server, filled, and what it has done.
struct Served {
    name: Name,
    peer: Peer,
    client: Client,
    /// Resident before it was filled.
    empty_rss_bytes: u64,
    /// Growth of what is resident, after the fill and after all rounds; and what `mm_stat` calls
    /// used, where there is one.
    filled_rss_bytes: u64,
    overwritten_rss_bytes: u64,
    mem_used_bytes: [Option<u64>; 2],
    write_iops: Vec<f64>,
    read_iops: Vec<f64>,
    write_cpu_us: Vec<f64>,
    read_cpu_us: Vec<f64>,
}

impl Served {
    /// Starts a server with `size` bytes, connects and fills it.
    fn start(name: Name, size: u64, place: Place<'_>) -> Result<Served, String> {
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
    fn round(&mut self, seconds: f64) -> Result<(), String> {
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
    fn look(&mut self, program: &Path) {
        self.overwritten_rss_bytes = self.grown();
        self.mem_used_bytes[1] = self.mem_used(program);
    }
}

/// Serves and measures all of them for so many rounds, each kind of load for so many seconds.
///
/// # Errors
/// What a server said, or that there are too few CPUs.
pub fn section(program: &Path, dir: &Path, rounds: usize, seconds: f64) -> Result<Section, String> {
    let [server_cpu, client_cpu] = cpus()[..] else {
        return Err("needs two CPUs: one for the servers, one for the client".into());
    };
    let made = tempfile::Builder::new().prefix("millpond-bench-").tempdir_in(dir);
    let made = made.map_err(|e| format!("{}: {e}", dir.display()))?;
    let place = Place { dir: made.path(), program, cpu: server_cpu };
    let mut servers = Vec::new();
    for name in NAMES {
        servers.push(Served::start(name, SIZE_BYTES, place)?);
    }
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    for (_, at) in turns(rounds, servers.len()) {
        servers[at].round(seconds)?;
    }
    servers.iter_mut().for_each(|served| served.look(program));
    Ok(shown(&servers))
}

fn shown(servers: &[Served]) -> Section {
    let mut section = Section::default();
    let mib = |bytes: u64| fixed(bytes as f64 / f64::from(1 << 20), 1);
    let title =
        format!("over NBD, {} MiB, half compressible, 4 KiB, depth {DEPTH}", SIZE_BYTES >> 20);
    let head =
        ["write IOPS", "CPU us", "read IOPS", "CPU us", "RSS MiB", "after", "used MiB", "after"];
    let mut table = Table::new(title, &[""], &head);
    for served in servers {
        let key = served.name.key();
        let mut figures = Vec::new();
        for (name, runs, digits) in [
            ("randwrite_iops", &served.write_iops, 0),
            ("randwrite_cpu_us", &served.write_cpu_us, 2),
            ("randread_iops", &served.read_iops, 0),
            ("randread_cpu_us", &served.read_cpu_us, 2),
        ] {
            figures.push(fixed(median(runs), digits));
            section.put(format!("{key}_{name}"), median(runs));
        }
        for (name, bytes) in [
            ("rss_filled_bytes", served.filled_rss_bytes),
            ("rss_overwritten_bytes", served.overwritten_rss_bytes),
        ] {
            figures.push(mib(bytes));
            section.put(format!("{key}_{name}"), bytes as f64);
        }
        figures.extend(served.mem_used_bytes.map(|used| used.map_or("-".into(), mib)));
        section.keys.insert(format!("{key}_mem_used_bytes"), json!(served.mem_used_bytes));
        table.row(&[key], figures);
    }
    if let [zstd, lz4, nbdkit] = servers {
        for ours in [zstd, lz4] {
            let write = median_ratio(&ours.write_iops, &nbdkit.write_iops);
            let read = median_ratio(&ours.read_iops, &nbdkit.read_iops);
            let key = ours.name.key();
            table.note(format!("{key} / nbdkit: {write:.1} writes, {read:.1} reads"));
        }
    }
    section.tables.push(table);
    section
}
