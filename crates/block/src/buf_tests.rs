// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of buffers: the pool, borrows, slices, and copies between them.

use super::*;
use crate::{Bufs, Ram};

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

/// Whether `f` panics.
fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_range_is_copied_while_the_bytes_beside_it_are_borrowed() {
    let (a, b) = (Buf::zeroed(4096), Buf::zeroed(4096));
    let mut bufs = Bufs::from(a.slice(100..612));
    bufs.push(b.all());
    a.slice(612..4096).read(|_| a.slice(0..610).write(|_| bufs.put_at(510, &[1, 2, 3, 4])));
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

/// Found by an attack from outside: a write cache in parts aborted the program, because two cores
/// had two parts of one buffer and one borrow flag.
#[test]
fn parts_of_one_buffer_are_used_by_threads_at_once() {
    const ROUNDS: usize = if cfg!(miri) { 4 } else { 2000 };
    /// Not a page: Miri takes its time for each byte.
    const PART: usize = if cfg!(miri) { 64 } else { 4096 };
    let buf = Buf::zeroed(8 * PART);
    let part = |nth: usize| buf.slice(nth * PART..(nth + 1) * PART);
    let all = |byte: u8| move |b: &[u8]| assert!(b.iter().all(|&at| at == byte));
    std::thread::scope(|threads| {
        for nth in 0..8 {
            let (mine, byte) = (part(nth), u8::try_from(nth).unwrap());
            threads.spawn(move || {
                let bufs = Bufs::from(mine.clone());
                let mut out = [0; PART];
                for round in 0..ROUNDS {
                    match round % 4 {
                        0 => mine.write(|b| b.fill(byte)),
                        1 => bufs.copy_from(&[byte; PART]),
                        2 => bufs.put_at(1, &[byte; PART - 1]),
                        _ => {
                            bufs.zero();
                            mine.read(all(0));
                            bufs.put_from(0, &Buf::copy_of(&[byte; PART]).into(), 0, PART);
                        }
                    }
                    mine.read(all(byte));
                    bufs.read_piece(7..20, all(byte)).unwrap();
                    bufs.take_at(0, &mut out);
                    all(byte)(&out);
                }
            });
        }
    });
    (0..8_u8).for_each(|nth| part(usize::from(nth)).read(all(nth)));
    buf.write(|_| ());
}

/// Found by an attack from outside: copies looked at no borrow, so that safe code wrote what a
/// `&[u8]` looked at, and copied a buffer over itself.
#[test]
fn what_would_change_borrowed_bytes_panics() {
    let buf = Buf::zeroed(4096);
    let (bufs, other) = (Bufs::from(buf.clone()), Bufs::from(Buf::zeroed(4096)));
    let writers: [(&str, &dyn Fn()); 4] = [
        ("put_at", &|| bufs.put_at(0, &[1, 2])),
        ("put_from", &|| bufs.put_from(0, &other, 0, 2)),
        ("copy_from", &|| bufs.copy_from(&[1; 4096])),
        ("zero", &|| bufs.zero()),
    ];
    for (name, write) in writers {
        buf.slice(1..2).read(|_| assert!(panics(write), "{name} below a reader"));
        buf.slice(1..2).write(|_| assert!(panics(write), "{name} below a writer"));
        write();
    }
    buf.write(|b| assert!(panics(|| bufs.take_at(0, &mut b[1..]))));
    buf.write(|b| assert!(panics(|| bufs.copy_to(b))));
    buf.write(|_| assert!(panics(|| other.put_from(0, &bufs, 0, 1))));
    buf.write(|_| assert!(panics(|| buf.slice(9..10).read(|_| ()))));
}

/// The same of memory that cores share. Miri knows no mapping of it.
#[test]
fn memory_is_not_copied_to_or_from_what_is_borrowed() {
    let (buf, ram) = (Buf::zeroed(4096), Ram::new(4096).unwrap());
    let bufs = Bufs::from(buf.clone());
    buf.slice(1..2).read(|_| assert!(panics(|| ram.read_bufs(0, &bufs))));
    buf.slice(1..2).write(|_| assert!(panics(|| ram.read_bufs(0, &bufs))));
    buf.slice(1..2).write(|_| assert!(panics(|| ram.write_bufs(0, &bufs))));
    buf.slice(1..2).read(|_| ram.write_bufs(0, &bufs));
    ram.read_bufs(0, &bufs);
}

#[test]
fn bytes_that_are_only_read_are_borrowed_by_many() {
    let buf = Buf::copy_of(&[5; 4096]);
    let bufs = Bufs::from(buf.clone());
    buf.read(|outer| {
        let mut out = [0; 4096];
        bufs.take_at(0, &mut out);
        buf.slice(7..9).read(|inner| assert_eq!((inner, outer), (&out[7..9], &out[..])));
        assert!(panics(|| buf.slice(0..1).write(|_| ())));
    });
    buf.write(|b| b.fill(0));
}

#[test]
fn data_is_moved_within_one_buffer() {
    let bufs = Bufs::from(Buf::copy_of(&[1, 2, 3, 4, 5, 6]));
    bufs.put_from(1, &bufs, 0, 5);
    let mut out = [0; 6];
    bufs.copy_to(&mut out);
    assert_eq!(out, [1, 1, 2, 3, 4, 5]);
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
