// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes and rounds that all scenarios share.

pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: f64 = (1_u64 << 30) as f64;
/// Rounds on this machine: off and on alternate in each.
pub(super) const ROUNDS: usize = 3;

/// The text of a size.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / MIB as f64)
}
