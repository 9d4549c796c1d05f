// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a compressed RAM disk writes back by itself: pages that have been idle for long, or enough
//! to stay below a watermark of memory, within a budget a day.

/// Which pages go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleOrder {
    /// Pages that do not compress, as each gives the most memory; then the others, coldest first.
    #[default]
    HugeFirst,
    /// Those that have not been accessed for the longest time.
    ColdestFirst,
}

/// What the owner of the device asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleRules {
    /// Write back what has not been accessed for so many seconds.
    pub idle_secs: Option<u32>,
    /// Write back when more memory than this is used.
    pub watermark_bytes: Option<u64>,
    /// Write no more than this a day.
    pub budget_bytes: Option<u64>,
    /// Which pages go first.
    pub order: IdleOrder,
}
