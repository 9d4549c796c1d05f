// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The procedures with which others have published their results, run as they wrote them: only the
//! path before `/dev` is another one.
//!
//! ```text
//!   cache         dmsetup create mycache ... writecache, fio randwrite, time dmsetup message flush
//!   linear        fio, 512 B psync reads by twelve jobs, of memory and of linear on it
//!   filesystem    mkfs, mount, a tarball copied and unpacked, umount, fsck, sha256
//!   zram          fio randwrite, time echo idle > writeback, cat bd_stat; a limit; a tarball
//!   site          a daemon with its devices as files, and a link called dmsetup
//!   attached      loop devices and mounts that do not outlive what made them
//! ```
//!
//! Invariants
//! - EE-P1 A procedure fails unless its data are verified: it returns no figure of wrong data.
//! - EE-P2 No process, mount, loop device or file outlives a procedure, however it ends.

use std::time::Duration;

mod attached;
pub mod cache;
pub mod filesystem;
pub mod linear;
mod site;
pub mod zram;

pub use site::Site;

/// Longest wait for any one step. Disks may be slow.
const PATIENCE: Duration = Duration::from_secs(900);

/// Where devices are not files, and why; none where the procedures can run.
pub fn obstacle() -> Option<String> {
    let missing = crate::process::missing(&["fio", "sha256sum"]);
    if !missing.is_empty() {
        return Some(format!("needs {} (scripts/setup.sh installs it)", missing.join(", ")));
    }
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(e) = device {
        return Some(format!("needs /dev/fuse, readable and writable: {e}"));
    }
    let root = rustix::process::geteuid().is_root();
    if root && !may_mount() {
        return Some("needs CAP_SYS_ADMIN, which root does not have here: for mounts".into());
    }
    if !root && !crate::process::missing(&["fusermount3"]).is_empty() {
        return Some("needs root or fusermount3 (scripts/setup.sh installs it)".into());
    }
    None
}

/// Whether this process has `CAP_SYS_ADMIN`, which root in a container may lack.
fn may_mount() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    // capability.h: CAP_SYS_ADMIN is 21. Where nobody tells, trying will.
    capabilities.is_none_or(|bits| bits & (1 << 21) != 0)
}
