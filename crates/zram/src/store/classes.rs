// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classes: the sizes of objects that a span is divided into.
//!
//! A class is a number of frames and of objects in them. Sizes are rounded up to 16 bytes, longer
//! ones to 1/64; each has the shortest span that loses little, and those alike are one class.
use block::PAGE;

/// Frames of the longest span. With 8, objects a little longer than half a page take 5 % more than
/// they need, and those are what half compressible pages become.
pub(super) const FRAMES_MAX: usize = 32;
// The next three were chosen by measuring (see the tests of overhead): finer classes lose less
// between objects, and more in holes of spans that nothing else may use.
/// A shorter span is taken when it loses no more than one part in this.
const LOSS: usize = 50;
/// Sizes are rounded up by at most one part in this.
const STEP: usize = 64;
/// An object is put into a hole of a class larger by one part in this, rather than that memory is
/// added for its own.
const NEAR: usize = 16;
/// In front of every object that shares a span: its owner and its length.
pub(super) const HEADER: usize = 6;
/// The largest class: with longer objects, what is saved is not worth the time.
const LONGEST_CLASS: usize = PAGE * 15 / 16;
/// Classes are looked up by multiples of this.
const GRANULE: usize = 16;
const GRANULES: usize = PAGE / GRANULE + 1;
/// More than there are; asserted where they are made.
const CLASSES_MAX: usize = 254;

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
        let class = best(step(granules * GRANULE));
        // Nearly as much memory for each as a page would take: not worth it.
        if class.size <= LONGEST_CLASS {
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

/// A size rounded up, so that there are fewer classes.
const fn step(size: usize) -> usize {
    let mut step = GRANULE;
    while step * 2 * STEP <= size {
        step *= 2;
    }
    size.next_multiple_of(step)
}

/// The shortest span that loses little with objects of this size, or else the one that loses least.
const fn best(size: usize) -> Class {
    let mut best = Class { size, objects: 1, frames: 1 };
    let mut frames = 1;
    while frames <= FRAMES_MAX {
        let objects = frames * PAGE / size;
        // frames / objects < best.frames / best.objects
        if objects > 0 && frames * best.objects < best.frames * objects {
            best = Class { size, objects, frames };
            if (frames * PAGE - objects * size) * LOSS <= objects * size {
                break;
            }
        }
        frames += 1;
    }
    // What would be left over belongs to the objects.
    best.size = best.frames * PAGE / best.objects;
    best
}

static MADE: Classes = make();

/// How many there are.
pub(super) const COUNT: usize = make().count;

const _: () = assert!(COUNT < CLASSES_MAX);

/// The longest object that shares a span.
pub(super) const LONGEST: usize = make().all[COUNT - 1].size - HEADER;

/// Objects of a span at most.
pub(super) const OBJECTS_MAX: usize = {
    let (mut most, mut nth) = (0, 0);
    while nth < COUNT {
        if MADE.all[nth].objects > most {
            most = MADE.all[nth].objects;
        }
        nth += 1;
    }
    most
};

/// The class of an object of `len` bytes, at most [`LONGEST`].
#[inline]
pub(super) fn of(len: usize) -> usize {
    usize::from(MADE.of[(len + HEADER).div_ceil(GRANULE)])
}

#[inline]
pub(super) fn class(nth: usize) -> &'static Class {
    &MADE.all[nth]
}

/// The class before which an object of class `nth` may be put into a hole rather than that memory
/// is added for its own class.
pub(super) fn near(nth: usize) -> usize {
    let most = class(nth).size + class(nth).size / NEAR;
    let mut to = nth + 1;
    while to < COUNT && class(to).size <= most {
        to += 1;
    }
    to
}

/// Objects of a class that fit into so many frames.
pub(super) fn fit(class: &Class, frames: usize) -> usize {
    (frames * PAGE / class.size).min(class.objects)
}
