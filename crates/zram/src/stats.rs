// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics: the status line, and the attributes that are rows of numbers.
use policy::IdleTotals;

use crate::device::Zram;
use crate::figures::{self, AUTO_STAT, BACKED_STAT, BD_STAT, IO_STAT, MM_STAT, numbers};
use crate::shared::Totals;

/// The status line of the target.
pub(crate) fn line(zram: &Zram) -> String {
    line_of(&zram.totals(), &zram.auto.totals())
}

/// `ORIG COMPR MEM_USED MEM_LIMIT BACKED BD_COUNT BD_READS BD_WRITES FAILED_READS FAILED_WRITES
/// DONE TO_DO`, sizes in bytes, and five words of the automatic writeback.
fn line_of(t: &Totals, auto: &IdleTotals) -> String {
    let [orig, compr, used, limit, ..] = figures::values(&MM_STAT, t);
    let numbers = numbers(&[
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

/// The attribute of this name, if it is a row of numbers.
pub(crate) fn text(name: &str, totals: &Totals, auto: &IdleTotals) -> Option<String> {
    let text = match name {
        "mm_stat" => figures::text(&MM_STAT, totals),
        "bd_stat" => figures::text(&BD_STAT, totals),
        "io_stat" => figures::text(&IO_STAT, totals),
        // Its version, and `writestall miss_free`. No request waits for a compressor here, and no
        // slot is ever found locked, so both stay 0.
        "debug_stat" => "version: 1\n0 0".to_owned(),
        "backed_stat" => figures::text(&BACKED_STAT, totals),
        // Pages that the running command has visited, and all that it will visit.
        "writeback_progress" => numbers(&[totals.done, totals.to_do]),
        "auto_writeback_stat" => auto_stat(auto),
        _ => return None,
    };
    Some(text)
}

/// `STATE TODAY BUDGET TOTAL PAGES`: bytes written today, that may be in a day (0: any), and since
/// the device was made; and in how many pages.
fn auto_stat(auto: &IdleTotals) -> String {
    format!("{} {}", auto.state.name(), figures::text(&AUTO_STAT, auto))
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
        let idle = IdleTotals::default();
        assert_eq!(text("auto_writeback_stat", &totals, &idle).as_deref(), Some("off 0 0 0 0"));
        assert_eq!(text("writeback_progress", &totals, &idle).as_deref(), Some("5 9"));
        assert_eq!(text("debug_stat", &totals, &idle).as_deref(), Some("version: 1\n0 0"));
        assert_eq!(text("mem_limit", &totals, &idle), None);
    }
}
