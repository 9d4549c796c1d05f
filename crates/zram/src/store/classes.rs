// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes: the sizes of objects that a span is divided into.
//!
//! A class is a number of frames and of objects in them, so that what is left over is small: one
//! for each multiple of 16 bytes, less those that would hold no more objects for the same memory.
use block::PAGE;

/// Frames of the longest span. More would make classes finer and their half-empty spans longer.
pub(super) const FRAMES_MAX: usize = 8;
/// In front of every object that shares a span: its owner and its length.
pub(super) const HEADER: usize = 6;
/// Classes are looked up by multiples of this.
const GRANULE: usize = 16;
const GRANULES: usize = PAGE / GRANULE + 1;
/// More than there are; asserted where they are made.
const CLASSES_MAX: usize = 192;

/// How a span is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Bytes of an object with its header.
    pub(super) size: usize,
    pub(super) objects: usize,
    pub(super) frames: usize,
}

struct Classes {
    all: [Class; CLASSES_MAX],
    count: usize,
    /// The class by granules of object and header; for what is too long, `count`.
    of: [u8; GRANULES],
}

const fn make() -> Classes {
    let mut all = [Class { size: 0, objects: 0, frames: 0 }; CLASSES_MAX];
    let mut of = [0; GRANULES];
    let mut count = 0;
    let mut granules = 1;
    while granules < GRANULES {
        let class = best(granules * GRANULE);
        // As much memory for each as a page would take: not worth it.
        if class.frames < class.objects {
            let same = count > 0
                && all[count - 1].frames == class.frames
                && all[count - 1].objects == class.objects;
            if !same {
                all[count] = class;
                count += 1;
            }
            of[granules] = (count - 1) as u8;
        } else {
            of[granules] = count as u8;
        }
        granules += 1;
    }
    Classes { all, count, of }
}

/// The span with the least memory for each object of this size; the shortest of equals.
const fn best(size: usize) -> Class {
    let mut best = Class { size, objects: 1, frames: 1 };
    let mut frames = 1;
    while frames <= FRAMES_MAX {
        let objects = frames * PAGE / size;
        // frames / objects < best.frames / best.objects
        if objects > 0 && frames * best.objects < best.frames * objects {
            best = Class { size, objects, frames };
        }
        frames += 1;
    }
    // What would be left over belongs to the objects.
    best.size = best.frames * PAGE / best.objects / GRANULE * GRANULE;
    best
}

static MADE: Classes = make();

/// How many there are.
pub(super) const COUNT: usize = make().count;

const _: () = assert!(COUNT < CLASSES_MAX);

/// The longest object that shares a span.
pub(super) const LONGEST: usize = make().all[COUNT - 1].size - HEADER;

/// The class of an object of `len` bytes, at most [`LONGEST`].
#[inline]
pub(super) fn of(len: usize) -> usize {
    usize::from(MADE.of[(len + HEADER).div_ceil(GRANULE)])
}

#[inline]
pub(super) fn class(nth: usize) -> &'static Class {
    &MADE.all[nth]
}

/// The class before which an object of class `nth` may be put into a hole rather than into a span
/// of its own class that is added for it: up to 1/32 larger.
pub(super) fn near(nth: usize) -> usize {
    let most = MADE.all[nth].size + MADE.all[nth].size / NEAR;
    let mut to = nth + 1;
    while to < COUNT && MADE.all[to].size <= most {
        to += 1;
    }
    to
}

const NEAR: usize = 32;
