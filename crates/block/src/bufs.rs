// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data of one bio: parts of buffers, in order.
use std::ops::Range;

use smallvec::SmallVec;

use crate::Slice;

#[inline(never)]
fn len_of(slices: &[Slice]) -> usize {
    slices.iter().map(Slice::len).sum()
}

/// The data of one bio: slices in order. Usually one; more when a request is gathered.
#[derive(Debug, Default)]
pub struct Bufs(SmallVec<[Slice; 1]>);

impl Clone for Bufs {
    #[inline]
    fn clone(&self) -> Bufs {
        match &self.0[..] {
            [one] => Bufs::from(one.clone()), // nearly always
            all => Bufs(SmallVec::from(all)),
        }
    }
}

impl Bufs {
    /// No data.
    pub fn new() -> Bufs {
        Bufs::default()
    }

    /// Length of all slices together, bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        match &self.0[..] {
            [one] => one.len(), // nearly always
            all => len_of(all),
        }
    }

    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a slice.
    pub fn push(&mut self, slice: impl Into<Slice>) {
        self.0.push(slice.into());
    }

    /// The slices in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Slice> {
        self.0.iter()
    }

    /// Number of slices.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Bytes `range` of the data, shared, not copied.
    pub fn slice(&self, range: Range<usize>) -> Bufs {
        if let ([one], false) = (&self.0[..], range.is_empty()) {
            return Bufs::from(one.slice(range)); // nearly always
        }
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "range {range:?}");
        let mut out = Bufs::new();
        let mut at = 0;
        for s in &self.0 {
            let from = range.start.clamp(at, at + s.len()) - at;
            let to = range.end.clamp(at, at + s.len()) - at;
            if from < to {
                out.push(s.slice(from..to));
            }
            at += s.len();
        }
        out
    }

    /// Runs `f` on each contiguous piece in order.
    pub fn for_each(&self, mut f: impl FnMut(&[u8])) {
        for s in &self.0 {
            s.read(&mut f);
        }
    }

    /// Runs `f` on bytes `range` of the data, if they lie in one piece; nothing else refers to them
    /// for it, as [`Bufs::slice`] does.
    pub fn read_piece<R>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut at = 0;
        for s in &self.0 {
            let end = at + s.len();
            if range.start < end {
                if range.is_empty() || range.end > end {
                    return None;
                }
                let first = range.start - at;
                return Some(s.read_range(first..first + range.len(), f));
            }
            at = end;
        }
        None
    }

    /// Fills every slice with zeroes, as [`Bufs::put_at`].
    pub fn zero(&self) {
        self.0.iter().for_each(Slice::zero);
    }

    /// Copies `out.len()` bytes from `at` on out; panics when they are not all inside, or while
    /// somebody has them borrowed to write.
    pub fn take_at(&self, at: usize, out: &mut [u8]) {
        self.pieces(at, out.len(), |s, from, done, len| s.take(from, &mut out[done..done + len]));
    }

    /// Copies `data` to the bytes from `at` on; panics when they are not all inside, or while
    /// somebody has them borrowed.
    pub fn put_at(&self, at: usize, data: &[u8]) {
        self.pieces(at, data.len(), |s, to, done, len| s.put(to, &data[done..done + len]));
    }

    /// Copies `len` bytes of `source`, from `from` on, to the bytes from `at` on; as
    /// [`Bufs::take_at`] and [`Bufs::put_at`].
    pub fn put_from(&self, at: usize, source: &Bufs, from: usize, len: usize) {
        if let ([to], [source], true) = (&self.0[..], &source.0[..], len > 0) {
            return to.put_from(at, source, from, len);
        }
        self.put_pieces_from(at, source, from, len);
    }

    #[cold]
    #[inline(never)]
    fn put_pieces_from(&self, at: usize, source: &Bufs, from: usize, len: usize) {
        self.pieces(at, len, |to, mut at, done, len| {
            source.pieces(from + done, len, |source, from, _, len| {
                to.put_from(at, source, from, len);
                at += len;
            });
        });
    }

    /// Calls `f` with the slice, the place in it, the position in the range and the length of each
    /// contiguous piece of a range, none empty.
    #[inline]
    fn pieces(&self, at: usize, len: usize, mut f: impl FnMut(&Slice, usize, usize, usize)) {
        // Nearly always it is one; the borrow of `f` looks whether the range is inside.
        if let ([one], true) = (&self.0[..], len > 0) {
            return f(one, at, 0, len);
        }
        let (mut skip, mut done) = (at, 0);
        for s in &self.0 {
            if done == len {
                return;
            }
            let from = skip.min(s.len());
            skip -= from;
            let here = (s.len() - from).min(len - done);
            if here > 0 {
                f(s, from, done, here);
                done += here;
            }
        }
        assert_eq!(done, len, "{len} bytes at {at} of {} bytes", self.len_bytes());
    }

    /// Copies the data out, as [`Bufs::take_at`]; panics unless `out` is exactly as long.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len_bytes(), "copy to a buffer of another length");
        self.take_at(0, out);
    }

    /// Copies `data` in, as [`Bufs::put_at`]; panics unless it is exactly as long.
    pub fn copy_from(&self, data: &[u8]) {
        assert_eq!(data.len(), self.len_bytes(), "copy from a buffer of another length");
        self.put_at(0, data);
    }
}

impl Extend<Slice> for Bufs {
    fn extend<I: IntoIterator<Item = Slice>>(&mut self, more: I) {
        self.0.extend(more);
    }
}

impl<T: Into<Slice>> From<T> for Bufs {
    #[inline]
    fn from(one: T) -> Bufs {
        Bufs(SmallVec::from_buf([one.into()]))
    }
}
