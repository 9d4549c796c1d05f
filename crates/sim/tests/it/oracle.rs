// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle against answers made by hand: what it must refuse, and what it must not.

use block::Nanos;
use sim::{Change, Oracle};

const BLOCK: usize = 4096;

/// A device of two blocks made by hand.
struct Hand {
    oracle: Oracle,
}

impl Hand {
    fn new() -> Hand {
        Hand { oracle: Oracle::new(2, BLOCK, 1) }
    }
    /// A whole write of one block; returns its data.
    fn write(&mut self, block: u64) -> Vec<u8> {
        self.write_with(block, false, true)
    }
    fn write_with(&mut self, block: u64, fua: bool, ok: bool) -> Vec<u8> {
        let token = self.oracle.begin_write(block..block + 1, fua);
        let mut data = vec![0; BLOCK];
        self.oracle.fill(&token, &mut data);
        self.oracle.end_write(token, ok);
        data
    }
    fn flush(&mut self, ok: bool) {
        let token = self.oracle.begin_flush();
        self.oracle.end_flush(token, ok);
    }
    fn read(&mut self, block: u64, data: &[u8]) -> Result<(), String> {
        let token = self.oracle.begin_read(block..block + 1);
        self.oracle.check_read(&token, data)
    }
    fn refuses(&mut self, block: u64, data: &[u8], why: &str) {
        let said = self.read(block, data).expect_err("must be refused");
        assert!(said.contains(why), "{said}");
    }
    fn accepts(&mut self, block: u64, data: &[u8]) {
        self.read(block, data).expect("must be accepted");
    }
}

#[test]
fn a_lost_flushed_write_is_refused() {
    let mut h = Hand::new();
    h.write(0);
    h.flush(true);
    h.oracle.crash();
    h.refuses(0, &[0; BLOCK], "zeroes is not allowed");
}

#[test]
fn a_lost_unflushed_write_is_accepted_and_then_stays_lost() {
    let mut h = Hand::new();
    let data = h.write(0);
    h.oracle.crash();
    h.accepts(0, &[0; BLOCK]);
    h.oracle.crash();
    h.refuses(0, &data, "is not allowed");
}

#[test]
fn a_kept_unflushed_write_stays_after_the_next_crash() {
    let mut h = Hand::new();
    let data = h.write(0);
    h.oracle.crash();
    h.accepts(0, &data);
    h.oracle.crash();
    h.refuses(0, &[0; BLOCK], "is not allowed");
}

#[test]
fn a_flush_covers_only_what_ended_before_it_began() {
    let mut h = Hand::new();
    let flush = h.oracle.begin_flush();
    h.write(0);
    h.oracle.end_flush(flush, true);
    h.oracle.crash();
    h.accepts(0, &[0; BLOCK]);
}

#[test]
fn a_fua_write_is_durable_by_itself() {
    let mut h = Hand::new();
    let old = h.write(0);
    h.write_with(0, true, true);
    h.oracle.crash();
    h.refuses(0, &old, "is not allowed");
}

#[test]
fn a_stale_version_is_refused() {
    let mut h = Hand::new();
    let old = h.write(0);
    h.write(0);
    h.refuses(0, &old, "is not allowed");
}

#[test]
fn a_stale_version_is_refused_after_a_crash_too() {
    let mut h = Hand::new();
    let old = h.write(0);
    let new = h.write(0);
    h.flush(true);
    h.oracle.crash();
    h.refuses(0, &old, "is not allowed");
    h.accepts(0, &new);
}

#[test]
fn a_mixture_inside_a_block_is_refused() {
    let mut h = Hand::new();
    let mut data = h.write(0);
    let new = h.write(0);
    h.oracle.crash();
    data[512..].copy_from_slice(&new[512..]);
    h.refuses(0, &data, "mixture of version");
}

#[test]
fn data_of_another_block_is_refused() {
    let mut h = Hand::new();
    let other = h.write(1);
    h.write(0);
    h.refuses(0, &other, "data of block 1");
}

#[test]
fn swapped_sectors_rubbish_and_another_run_are_refused() {
    let mut h = Hand::new();
    let mut data = h.write(0);
    data.rotate_left(512);
    h.refuses(0, &data, "another sector");
    data[700] ^= 1;
    data.rotate_right(512);
    h.refuses(0, &data, "rubbish");
    let mut other = Oracle::new(2, BLOCK, 2);
    let token = other.begin_write(0..1, false);
    other.fill(&token, &mut data);
    h.refuses(0, &data, "not this run's data");
}

#[test]
fn overlapping_writes_end_in_either_order_but_only_one() {
    let mut h = Hand::new();
    let (a, b) = (h.oracle.begin_write(0..1, false), h.oracle.begin_write(0..1, false));
    let (mut first, mut second) = (vec![0; BLOCK], vec![0; BLOCK]);
    h.oracle.fill(&a, &mut first);
    h.oracle.fill(&b, &mut second);
    h.oracle.end_write(b, true);
    h.oracle.end_write(a, true);
    h.accepts(0, &first);
    h.refuses(0, &second, "is not allowed");
}

/// As LSVD's own note has it: readers saw one order, replay made another of it.
#[test]
fn a_read_then_a_flush_fix_the_order_of_overlapping_writes() {
    for (is_read, is_flushed, fails_first) in
        [(true, true, false), (true, true, true), (true, false, false), (false, true, false)]
    {
        let mut h = Hand::new();
        let (a, b) = (h.oracle.begin_write(0..1, false), h.oracle.begin_write(0..1, false));
        let (mut first, mut second) = (vec![0; BLOCK], vec![0; BLOCK]);
        h.oracle.fill(&a, &mut first);
        h.oracle.fill(&b, &mut second);
        h.oracle.end_write(b, true);
        h.oracle.end_write(a, true);
        if fails_first {
            h.flush(false);
        }
        if is_read {
            h.accepts(0, &first);
        }
        if is_flushed {
            h.flush(true);
        }
        h.oracle.crash();
        if is_read && is_flushed && !fails_first {
            h.refuses(0, &second, "is not allowed");
        } else {
            h.accepts(0, &second);
        }
    }
}

#[test]
fn a_read_may_return_the_old_data_or_a_concurrent_write() {
    let mut h = Hand::new();
    let old = h.write(0);
    let read = h.oracle.begin_read(0..1);
    let new = h.write_with(0, true, true);
    assert_eq!(h.oracle.check_read(&read, &old), Ok(()));
    assert_eq!(h.oracle.check_read(&read, &new), Ok(()));
    h.refuses(0, &old, "is not allowed");
}

#[test]
fn a_discarded_block_may_hold_old_data_until_rewritten() {
    let mut h = Hand::new();
    let old = h.write(0);
    h.write(0);
    h.flush(true);
    let token = h.oracle.begin_change(0..1, Change::Discard, false);
    h.oracle.end_write(token, true);
    h.accepts(0, &old);
    h.accepts(0, &[0; BLOCK]);
    let other = h.write(1);
    h.refuses(0, &other, "data of block 1");
    h.write(0);
    h.refuses(0, &old, "is not allowed");
}

#[test]
fn zeroes_written_are_data_like_any_other() {
    let mut h = Hand::new();
    let old = h.write(0);
    let token = h.oracle.begin_change(0..1, Change::WriteZeroes, false);
    h.oracle.end_write(token, true);
    h.flush(true);
    h.oracle.crash();
    h.refuses(0, &old, "is not allowed");
    h.accepts(0, &[0; BLOCK]);
}

#[test]
fn a_failed_write_is_there_in_part_or_not_until_rewritten() {
    let mut h = Hand::new();
    let old = h.write(0);
    let new = h.write_with(0, false, false);
    let mut torn = old.clone();
    torn[1024..2048].copy_from_slice(&new[1024..2048]);
    for data in [&torn, &old, &new, &torn] {
        h.accepts(0, data);
    }
    h.refuses(0, &[0; BLOCK], "is not allowed");
    h.write(0);
    h.refuses(0, &torn, "is not allowed");
}

#[test]
fn a_flush_after_a_failed_one_does_not_cover_what_was_lost() {
    let mut h = Hand::new();
    h.oracle.expect_flush_errors();
    h.write(0);
    h.flush(false);
    h.flush(true);
    h.oracle.crash();
    h.accepts(0, &[0; BLOCK]);
}

/// Whose flush it is counts: after a failed one of another client the flush of whoever wrote makes
/// durable what it wrote, but for what it was told of before.
#[test]
fn a_flush_of_who_wrote_covers_what_it_was_not_told_of() {
    let write = |h: &mut Hand, by| {
        let token = h.oracle.begin_change_by(by, 0..1, Change::Write, false);
        let mut data = vec![0; BLOCK];
        h.oracle.fill(&token, &mut data);
        h.oracle.end_write(token, true);
        data
    };
    // A flush fails at time 5, of this client and begun after the write or before it; a good one
    // of client 1 begins at another time, or at the same.
    let lost = |failed_by, after: bool, second_at: u64| {
        let mut h = Hand::new();
        h.oracle.expect_flush_errors();
        let failed = (!after).then(|| h.oracle.begin_flush_by(failed_by, Nanos(1)));
        let data = write(&mut h, 1);
        let failed = failed.unwrap_or_else(|| h.oracle.begin_flush_by(failed_by, Nanos(1)));
        let early = (second_at <= 5).then(|| h.oracle.begin_flush_by(1, Nanos(second_at)));
        h.oracle.end_flush_at(failed, false, Nanos(5));
        let second = early.unwrap_or_else(|| h.oracle.begin_flush_by(1, Nanos(second_at)));
        h.oracle.end_flush_at(second, true, Nanos(9));
        h.oracle.crash();
        let lost = h.read(0, &[0; BLOCK]);
        if lost.is_err() {
            h.accepts(0, &data);
        }
        lost.is_ok()
    };
    assert!(lost(1, true, 6), "it was told");
    assert!(lost(1, true, 5), "it may have been told");
    assert!(!lost(1, true, 4), "it had sent the second one before it was told");
    assert!(!lost(1, false, 6), "the failed one does not tell of it");
    assert!(!lost(2, true, 6), "another was told");
}

/// A flush of one proves nothing for another beside one that fails.
#[test]
fn a_flush_of_another_covers_nothing_after_a_failed_one() {
    for (writer, flusher) in [(1, 2), (2, 0), (0, 2)] {
        let mut h = Hand::new();
        h.oracle.expect_flush_errors();
        let token = h.oracle.begin_change_by(writer, 0..1, Change::WriteZeroes, false);
        h.oracle.end_write(token, true);
        let data = h.write(0);
        h.flush(false);
        let token = h.oracle.begin_flush_by(flusher, Nanos(7));
        h.oracle.end_flush(token, true);
        h.oracle.crash();
        h.accepts(0, &data);
    }
}

/// Two writes at a time; a flush that began before the first one had ended has covered the second
/// one only. A read has shown that the first one came last, and a failed flush may have lost it.
#[test]
fn a_failed_flush_may_lose_what_came_after_a_durable_write() {
    for fails in [false, true] {
        let mut h = Hand::new();
        h.oracle.expect_flush_errors();
        let last = h.oracle.begin_change_by(1, 0..1, Change::Write, false);
        let durable = h.write(0);
        let covers = h.oracle.begin_flush_by(2, Nanos(1));
        let mut data = vec![0; BLOCK];
        h.oracle.fill(&last, &mut data);
        h.oracle.end_write(last, true);
        h.oracle.end_flush_at(covers, true, Nanos(2));
        if fails {
            h.flush(false);
        }
        h.accepts(0, &data);
        h.flush(true);
        h.oracle.crash();
        match fails {
            true => h.accepts(0, &durable),
            false => h.refuses(0, &durable, "is not allowed"),
        }
    }
}

#[test]
fn data_read_after_a_kill_need_a_flush_to_survive_a_crash() {
    let mut h = Hand::new();
    let data = h.write(0);
    h.oracle.kill();
    h.accepts(0, &data);
    h.oracle.crash();
    h.accepts(0, &[0; BLOCK]);

    let data = h.write(0);
    h.oracle.kill();
    h.accepts(0, &data);
    h.flush(true);
    h.oracle.crash();
    h.refuses(0, &[0; BLOCK], "is not allowed");
}

#[test]
fn what_a_device_keeps_over_a_kill_a_power_cut_may_undo() {
    for crash in [false, true] {
        let mut h = Hand::new();
        let old = h.write(0);
        h.flush(true);
        let token = h.oracle.begin_write(0..1, false);
        let mut data = vec![0; BLOCK];
        h.oracle.fill(&token, &mut data);
        h.oracle.keep_over_kill(&token);
        h.oracle.end_write(token, true);
        h.oracle.kill();
        if crash {
            h.oracle.crash();
            h.accepts(0, &old);
        } else {
            h.refuses(0, &old, "is not allowed");
            h.accepts(0, &data);
        }
    }
}

#[test]
fn verify_after_crash_reads_every_block() {
    let mut h = Hand::new();
    let data = h.write(1);
    h.flush(true);
    h.oracle.crash();
    let good = h.oracle.verify_after_crash(|block, out| {
        out.copy_from_slice(if block == 1 { &data } else { &[0; BLOCK] });
    });
    assert_eq!(good, Ok(()));
    h.oracle.crash();
    let bad = h.oracle.verify_after_crash(|_, out| out.fill(0));
    assert!(bad.is_err_and(|why| why.contains("block 1")));
}

/// A write of block 0 that fails at a device below, of which its client has not heard.
fn failing_below(h: &mut Hand) -> (sim::WriteToken, Vec<u8>) {
    let token = h.oracle.begin_write(0..1, false);
    let mut data = vec![0; BLOCK];
    h.oracle.fill(&token, &mut data);
    h.oracle.failed_below(0, &data);
    (token, data)
}

fn half_of(data: &[u8], other: &[u8]) -> Vec<u8> {
    [&data[..BLOCK / 2], &other[BLOCK / 2..]].concat()
}

#[test]
fn a_write_failed_below_may_be_partial_until_it_succeeds() {
    let mut h = Hand::new();
    let before = h.write(0);
    let (token, data) = failing_below(&mut h);
    h.accepts(0, &half_of(&data, &before));
    h.oracle.end_write(token, true);
    h.refuses(0, &half_of(&data, &before), "is not allowed");
}

#[test]
fn a_write_failed_below_before_a_crash_may_stay_partial() {
    let mut h = Hand::new();
    let before = h.write(0);
    h.flush(true);
    let (token, data) = failing_below(&mut h);
    drop(token);
    h.oracle.crash();
    h.accepts(0, &half_of(&data, &before));
    let after = h.write(0);
    h.refuses(0, &half_of(&after, &before), "is not allowed");
}

#[test]
fn what_fails_below_of_a_write_that_has_ended_is_no_excuse() {
    let mut h = Hand::new();
    let before = h.write(0);
    let data = h.write(0);
    h.oracle.failed_below(0, &data);
    h.refuses(0, &half_of(&data, &before), "is not allowed");
    h.oracle.crash();
    h.refuses(0, &half_of(&data, &before), "mixture");
}

#[test]
fn garbage_is_accepted_only_where_a_write_has_failed() {
    let mut h = Hand::new();
    let rubbish: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK).collect();
    h.write_with(0, false, false);
    h.refuses(0, &rubbish, "rubbish");
    h.oracle.expect_rubbish();
    h.accepts(0, &rubbish);
    h.refuses(1, &rubbish, "rubbish");
}
