// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: the numbers that the statistics attributes are rows of, and their names in `/metrics`.
//!
//! The order of each row is the kernel's.
use std::fmt::Write;

use block::attr::{self, Attr, Spec, counter, gauge};
use policy::IdleTotals;

use crate::shared::Totals;

/// Bytes of a page and of a block of the backing device.
const PAGE: u64 = block::PAGE as u64;

block::attrs! {
    /// The attribute `mm_stat`.
    pub(crate) static MM_STAT: [Attr<Totals>];

    orig_data_bytes: gauge(""), "bytes of pages that were written, uncompressed",
        get |t| t.orig_pages * PAGE;
    compr_data_bytes: gauge(""), "bytes of objects in memory", get |t| t.compr_bytes;
    mem_used_bytes: gauge(""), "bytes of memory in use", get |t| t.mem_pages * PAGE;
    mem_limit_bytes: gauge(""), "bytes of memory that may be used; 0 for no limit",
        get |t| limit_bytes(t.mem_limit_pages);
    mem_used_max_bytes: gauge(""), "bytes of memory in use at most", get |t| t.mem_max_pages * PAGE;
    same_pages: gauge(""), "pages of one repeated word, which need no memory",
        get |t| t.same_pages;
    pages_compacted: counter(""), "pages of memory that compaction has freed",
        get |t| t.pages_compacted;
    huge_pages: gauge(""), "pages in memory that are stored uncompressed", get |t| t.huge_pages;
    huge_pages_since: counter(""), "pages that have been stored uncompressed",
        get |t| t.huge_pages_since;
}

block::attrs! {
    /// The attribute `bd_stat`, in units of 4 KiB.
    pub(crate) static BD_STAT: [Attr<Totals>];

    bd_count: gauge(""), "blocks of the backing device in use", get |t| t.bd_count;
    bd_reads: counter(""), "pages read from the backing device", get |t| t.bd_reads;
    bd_writes: counter(""), "blocks written to the backing device", get |t| t.bd_writes;
}

block::attrs! {
    /// The attribute `io_stat`.
    pub(crate) static IO_STAT: [Attr<Totals>];

    failed_reads: counter(""), "reads that failed", get |t| t.failed_reads;
    failed_writes: counter(""), "writes that failed", get |t| t.failed_writes;
    invalid_io: counter(""), "requests that lay outside the device", get |t| t.invalid_io;
    notify_free: counter(""), "pages that were discarded", get |t| t.notify_free;
}

block::attrs! {
    /// The attribute `backed_stat`.
    pub(crate) static BACKED_STAT: [Attr<Totals>];

    backed_pages: gauge(""), "pages on the backing device", get |t| t.backed_pages;
    backed_bytes: gauge(""), "bytes of objects on the backing device", get |t| t.bd_object_bytes;
}

block::attrs! {
    /// The numbers of the attribute `auto_writeback_stat`.
    pub(crate) static AUTO_STAT: [Attr<IdleTotals>];

    auto_writeback_today_bytes: gauge(""), "bytes that automatic writeback wrote today",
        get |auto| auto.today_bytes;
    auto_writeback_budget_bytes: gauge(""), "bytes that it may write in a day; 0 for any",
        get |auto| auto.budget_bytes;
    auto_writeback_bytes: counter(""), "bytes that automatic writeback wrote",
        get |auto| auto.total_bytes;
    auto_writeback_pages: counter(""), "pages that automatic writeback wrote",
        get |auto| auto.total_pages;
}

/// The rows that `/metrics` shows, besides that of automatic writeback.
fn exported() -> [&'static [Attr<Totals>]; 4] {
    [&MM_STAT, &BD_STAT, &IO_STAT, &BACKED_STAT]
}

/// What `/metrics` shows, without a device.
pub(crate) fn metric_specs() -> Vec<&'static Spec> {
    let totals = exported().into_iter().flat_map(attr::metric_specs);
    totals.chain(attr::metric_specs(&AUTO_STAT)).collect()
}

/// What `/metrics` shows.
pub(crate) fn metrics(totals: &Totals, auto: &IdleTotals) -> Vec<(&'static Spec, u64)> {
    let totals = exported().into_iter().flat_map(|row| attr::metrics(row, totals));
    totals.chain(attr::metrics(&AUTO_STAT, auto)).collect()
}

/// The values of a row.
pub(crate) fn values<T, const N: usize>(row: &'static [Attr<T>; N], of: &T) -> [u64; N] {
    row.each_ref().map(|figure| {
        let value = figure.get.and_then(|get| get(of).number());
        value.expect("every figure is a number that can be read")
    })
}

/// A row as an attribute shows it.
pub(crate) fn text<T, const N: usize>(row: &'static [Attr<T>; N], of: &T) -> String {
    numbers(&values(row, of))
}

/// Numbers in a row, separated by one blank.
pub(crate) fn numbers(numbers: &[u64]) -> String {
    let mut text = String::with_capacity(numbers.len() * 12);
    for (nth, number) in numbers.iter().enumerate() {
        let gap = if nth == 0 { "" } else { " " };
        write!(text, "{gap}{number}").expect("a string takes everything");
    }
    text
}

/// A number of pages, none of which may be no limit, in bytes.
fn limit_bytes(pages: u64) -> u64 {
    if pages == u64::MAX { 0 } else { pages * PAGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_kernels_numbers_in_its_order() {
        let mut t = Totals { mem_limit_pages: u64::MAX, ..Totals::default() };
        assert_eq!(text(&MM_STAT, &t), "0 0 0 0 0 0 0 0 0");
        assert_eq!((text(&BD_STAT, &t), text(&IO_STAT, &t)), ("0 0 0".into(), "0 0 0 0".into()));
        t.orig_pages = 600;
        t.compr_bytes = 829_589;
        t.mem_pages = 204;
        t.mem_limit_pages = 16384;
        t.mem_max_pages = 205;
        t.same_pages = 201;
        t.pages_compacted = 3;
        t.huge_pages = 200;
        t.huge_pages_since = 202;
        assert_eq!(text(&MM_STAT, &t), "2457600 829589 835584 67108864 839680 201 3 200 202");
        let t = Totals { bd_count: 1, bd_reads: 2, bd_writes: 3, ..t };
        assert_eq!(text(&BD_STAT, &t), "1 2 3");
        let t = Totals { failed_reads: 4, failed_writes: 5, notify_free: 7, ..t };
        assert_eq!(text(&IO_STAT, &t), "4 5 0 7");
        let backed = Totals { backed_pages: 8, bd_object_bytes: 99, ..t };
        assert_eq!(text(&BACKED_STAT, &backed), "8 99");
    }

    #[test]
    fn every_number_of_a_row_is_a_metric() {
        let t = Totals { mem_pages: 2, bd_reads: 7, ..Totals::default() };
        let auto = IdleTotals { total_pages: 3, ..IdleTotals::default() };
        let found = metrics(&t, &auto);
        assert_eq!(found.len(), 9 + 3 + 4 + 2 + 4);
        for (nth, (spec, _)) in found.iter().enumerate() {
            let is_same = |other: &&(&Spec, u64)| other.0.name == spec.name;
            assert_eq!(found.iter().position(|other| is_same(&other)), Some(nth), "{}", spec.name);
        }
        let value = |name: &str| found.iter().find(|(spec, _)| spec.name == name).map(|m| m.1);
        assert_eq!(value("mem_used_bytes"), Some(8192));
        assert_eq!(value("bd_reads"), Some(7));
        assert_eq!(value("auto_writeback_pages"), Some(3));
    }
}
