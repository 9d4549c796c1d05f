// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics: the status line, and the totals of the automatic writeback.
use policy::IdleTotals;

use crate::attributes::{mm_row, row};
use crate::device::Zram;
use crate::shared::Totals;

/// The status line of the target.
pub(crate) fn line(zram: &Zram) -> String {
    line_of(&zram.totals(), &zram.auto.totals())
}

/// `ORIG COMPR MEM_USED MEM_LIMIT BACKED BD_COUNT BD_READS BD_WRITES FAILED_READS FAILED_WRITES
/// DONE TO_DO`, sizes in bytes, and five words of the automatic writeback.
fn line_of(t: &Totals, auto: &IdleTotals) -> String {
    let [orig, compr, used, limit, ..] = mm_row(t);
    let numbers = row(&[
        orig,
        compr,
        used,
        limit,
        t.backed_pages,
        t.bd_count,
        t.bd_reads,
        t.bd_writes,
        t.failed_reads,
        t.failed_writes,
        t.done,
        t.to_do,
    ]);
    format!("{numbers} {}", auto_stat(auto))
}

/// `STATE TODAY BUDGET TOTAL PAGES`: bytes written today, that may be in a day (0: any), and since
/// the device was made; and in how many pages.
pub(crate) fn auto_stat(auto: &IdleTotals) -> String {
    let numbers = row(&[auto.today_bytes, auto.budget_bytes, auto.total_bytes, auto.total_pages]);
    format!("{} {numbers}", auto.state.name())
}

#[cfg(test)]
mod tests {
    use policy::IdleState;

    use super::*;

    #[test]
    fn a_status_line_has_twelve_numbers_and_the_policy() {
        let totals = Totals {
            orig_pages: 600,
            compr_bytes: 10_389,
            mem_pages: 4,
            mem_limit_pages: u64::MAX,
            backed_pages: 200,
            bd_count: 60,
            bd_reads: 3,
            bd_writes: 70,
            failed_reads: 1,
            failed_writes: 2,
            done: 5,
            to_do: 9,
            ..Totals::default()
        };
        let auto = IdleTotals {
            state: IdleState::Writing,
            today_bytes: 4096,
            budget_bytes: 1 << 30,
            total_bytes: 8192,
            total_pages: 2,
        };
        assert_eq!(
            line_of(&totals, &auto),
            "2457600 10389 16384 0 200 60 3 70 1 2 5 9 writing 4096 1073741824 8192 2"
        );
        assert_eq!(auto_stat(&IdleTotals::default()), "off 0 0 0 0");
    }
}
