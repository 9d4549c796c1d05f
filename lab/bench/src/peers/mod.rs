// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other people's servers and ours, each doing the same job for the same client (bench-peers).
//!
//! ```text
//!   client ── NBD, a FUSE file ──▶ a server on a CPU of its own ──▶ null, memory, a file, a cache
//!   (fio, or `loadgen --uri`)
//! ```
//!
//! Invariants
//! - BE-P1 All servers of a group are there at the same time and are measured in turn within a
//!   round.
//! - BE-P2 A peer that can't run, or fails, is named with its error, and the others go on.
pub mod cache;
pub mod client;
pub mod kernel_zram;
pub mod progress;
pub mod report;
pub mod serve;

use std::fs;
use std::path::{Path, PathBuf};

/// Where servers run, and which program is ours.
#[derive(Clone, Debug)]
pub struct TestBed {
    /// A folder that is ours alone.
    pub dir: PathBuf,
    /// One on a file system in memory, for files that stand in for memory.
    pub memory_dir: PathBuf,
    /// `millpond`.
    pub ours: PathBuf,
    /// CPUs of the servers: one, as a rule.
    pub cpus: Vec<usize>,
    /// Bytes of a served device.
    pub bytes: u64,
}

impl TestBed {
    /// A folder of this name below ours.
    ///
    /// # Errors
    /// What the file system said.
    pub fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(dir)
    }
}

/// A file of `bytes` without holes or zeroes.
///
/// # Errors
/// What the file system said.
pub fn make_file(path: &Path, bytes: u64) -> Result<(), String> {
    use std::io::Write;
    let make = || -> std::io::Result<()> {
        let mut file = fs::File::create(path)?;
        let piece = vec![0x5a; 1 << 20];
        for _ in 0..bytes.div_ceil(piece.len() as u64) {
            file.write_all(&piece)?;
        }
        file.set_len(bytes)?;
        file.sync_all()
    };
    make().map_err(|e| format!("{}: {e}", path.display()))
}
