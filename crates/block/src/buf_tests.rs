// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of buffers: the pool, borrows, slices, and copies between them.

use super::*;

#[test]
fn a_dropped_buffer_is_handed_out_again() {
    let first = Buf::alloc(4096);
    let at = first.as_ptr();
    drop(first);
    assert_eq!(Buf::alloc(1000).as_ptr(), at);
}

#[test]
fn buffers_are_page_aligned_at_every_size() {
    for len in [1, 512, 4096, 5000, 1 << 20, (1 << 20) + 1] {
        let buf = Buf::alloc(len);
        assert_eq!(buf.as_ptr().align_offset(PAGE), 0);
        assert_eq!(buf.len(), len);
    }
}

#[test]
fn a_range_is_copied_across_slices_though_somebody_has_one_borrowed() {
    let (a, b) = (Buf::zeroed(4096), Buf::zeroed(4096));
    let mut bufs = Bufs::from(a.slice(100..612));
    bufs.push(b.all());
    a.read(|_| bufs.put_at(510, &[1, 2, 3, 4]));
    let mut out = [9; 6];
    bufs.take_at(509, &mut out);
    assert_eq!(out, [0, 1, 2, 3, 4, 0]);
    a.read(|bytes| assert_eq!(bytes[609..613], [0, 1, 2, 0]));
}

#[test]
fn data_goes_from_bufs_to_bufs_whatever_slices_they_have() {
    let one = |range: Range<usize>| Bufs::from(Buf::copy_of(&[7; 100]).slice(range));
    let two = || {
        let mut two = one(0..30);
        two.push(Buf::copy_of(&[7; 70]));
        two
    };
    for to in [one(0..100), two()] {
        for from in [Buf::copy_of(&[3; 100]).slice(10..90).into(), two()] {
            if from.count() == 2 {
                from.put_at(0, &[3; 80]);
            }
            to.copy_from(&[7; 100]);
            to.put_from(20, &from, 5, 60);
            let mut out = [0; 100];
            to.copy_to(&mut out);
            assert_eq!(out[..], [&[7; 20][..], &[3; 60], &[7; 20]].concat());
        }
    }
}

#[test]
fn a_large_buffer_takes_memory_only_where_it_is_used() {
    let buf = Buf::alloc(64 << 20);
    let resident = || {
        use std::os::unix::fs::FileExt;
        let mut entries = vec![0; buf.len() / PAGE * 8];
        let at = (buf.as_ptr().addr() / PAGE * 8) as u64;
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entries, at).unwrap();
        // In memory or swapped out: the two top bits.
        entries.chunks(8).filter(|e| e[7] & 0xc0 != 0).count()
    };
    // Huge pages come 512 at a time.
    let before = resident();
    assert!(before <= 1024, "{before} pages");
    Bufs::from(buf.slice(1000..1010)).put_at(0, &[1; 10]);
    let after = resident();
    assert!(after > 0 && after <= before + 1024, "{after} pages");
    buf.slice(0..20 * PAGE).read(|b| assert_eq!(b.iter().filter(|&&b| b != 0).count(), 10));
}

#[test]
#[should_panic(expected = "2 bytes at 4095 of 4096 bytes")]
fn neither_is_a_range_of_another_buffer_beyond_the_end() {
    Bufs::from(Buf::zeroed(4096)).put_from(0, &Buf::zeroed(4096).into(), 4095, 2);
}

#[test]
#[should_panic(expected = "2 bytes at 4095 of 4096 bytes")]
fn a_range_beyond_the_end_is_not_touched() {
    Bufs::from(Buf::zeroed(4096)).put_at(4095, &[1, 2]);
}

#[test]
fn slices_share_the_bytes_and_keep_their_bounds() {
    let buf = Buf::zeroed(4096);
    buf.slice(512..1024).write(|b| b.fill(7));
    let inner = buf.slice(500..2000).slice(12..524);
    assert_eq!(inner.len(), 512);
    inner.read(|b| assert!(b.iter().all(|&x| x == 7)));
    buf.read(|b| assert_eq!(b.iter().filter(|&&x| x == 7).count(), 512));
}

#[test]
fn bufs_slice_across_pieces_without_copying() {
    let (a, b) = (Buf::copy_of(&[1; 10]), Buf::copy_of(&[2; 10]));
    let mut bufs = Bufs::from(a);
    bufs.push(b);
    let mid = bufs.slice(8..13);
    let mut out = [0; 5];
    mid.copy_to(&mut out);
    assert_eq!(out, [1, 1, 2, 2, 2]);
    assert_eq!(mid.count(), 2);
    assert_eq!(bufs.slice(10..20).count(), 1);
}

#[test]
#[should_panic(expected = "buffer written while it is in use")]
fn writing_under_a_reader_panics() {
    let buf = Buf::alloc(16);
    buf.read(|_| buf.write(|_| ()));
}

#[test]
fn the_borrow_ends_when_the_closure_panics() {
    let buf = Buf::alloc(16);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        buf.write(|_| panic!("inside"));
    }));
    assert!(caught.is_err());
    buf.read(|_| ());
}
