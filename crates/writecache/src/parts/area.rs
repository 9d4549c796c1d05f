// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Area: what a part has of the cache device, as one device.
//!
//! ```text
//!   cache device       | part 0 | part 1 | part 0 | part 1 |    made for two, and grown once
//!   device of part 1            └─ 0 ──┐        └─ 1 ──┐
//!                               [ its area │ what it got ]
//! ```
//!
//! The first area has the addresses that it has on the cache device, and the others follow it: so
//! the engine of a part finds a device that has grown.
//!
//! Invariants
//! - WC-PA1 Nothing is written to an area before the superblock of part 0 says, durably, that the
//!   parts have it: an opening finds all areas of a part from that list alone.
//! - WC-PA2 Areas of parts do not overlap, and a request beyond those of its part is refused.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, Limits, Op, Planted, Sector, Status};
use format::Part;
use reactor::{complete_after, io_by};

use crate::planted::Fault;

/// A run of sectors of a part.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// In the part's addresses.
    at: Sector,
    end: Sector,
    /// Where it begins on the cache device.
    place: Sector,
}

/// The areas of a part on the cache device, in the order of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Areas(Vec<Stretch>);

impl Areas {
    /// Those of `part` of a cache that begins at `start` of a device of `capacity`, as far as the
    /// device goes. `added`: what each part got as the cache grew.
    pub(crate) fn of(
        start: Sector,
        part: Part,
        added: &[u64],
        capacity: Sector,
        planted: Planted<Fault>,
    ) -> Areas {
        let of_first = planted.is(Fault::AddedAreaOfFirst);
        let moved = |nth: usize| if of_first && nth > 0 { u64::from(part.nth) } else { 0 };
        let mut stretches: Vec<Stretch> = Vec::new();
        for (nth, (begin, len)) in part.areas(added).enumerate() {
            let place = start + Sector(begin - moved(nth) * len);
            let at = stretches.last().map_or(place, |last| last.end);
            let there = Sector(len).min(capacity.saturating_sub(place));
            stretches.push(Stretch { at, end: at + there, place });
            if there < Sector(len) {
                break;
            }
        }
        Areas(stretches)
    }

    /// The end of the last one, in the part's addresses.
    fn end(&self) -> Sector {
        self.0.last().map_or(Sector::ZERO, |last| last.end)
    }

    /// Where a sector of the part lies on the cache device.
    pub(crate) fn place_of(&self, at: Sector) -> Option<Sector> {
        let stretch = self.0.iter().find(|s| (s.at..s.end).contains(&at))?;
        Some(stretch.place + (at - stretch.at))
    }

    /// Where a range of the part lies: beginnings in it, places and lengths; `None` if it is not
    /// all there.
    fn pieces(&self, at: Sector, end: Sector) -> Option<Vec<(Sector, Sector, Sector)>> {
        let mut pieces = Vec::new();
        let mut next = at;
        while next < end {
            let stretch = self.0.iter().find(|s| (s.at..s.end).contains(&next))?;
            let to = stretch.end.min(end);
            pieces.push((next, stretch.place + (next - stretch.at), to - next));
            next = to;
        }
        Some(pieces)
    }
}

/// The device of a part: its areas of the device below, one behind the other.
pub(crate) struct PartArea {
    below: Rc<dyn BlockDevice>,
    areas: RefCell<Areas>,
    /// The first area, whose addresses are those of the device below.
    first: Cell<(Sector, Sector)>,
}

impl PartArea {
    pub(crate) fn new(below: Rc<dyn BlockDevice>, areas: Areas) -> Rc<PartArea> {
        let area =
            PartArea { below, areas: RefCell::new(Areas(Vec::new())), first: Cell::default() };
        area.set(areas);
        Rc::new(area)
    }

    /// The part has these areas now.
    pub(crate) fn set(&self, areas: Areas) {
        self.first.set(areas.0.first().map_or_else(Default::default, |s| (s.at, s.end)));
        *self.areas.borrow_mut() = areas;
    }

    #[cold]
    fn submit_elsewhere(&self, bio: Bio) {
        let pieces = self.areas.borrow().pieces(bio.sector, bio.end());
        match pieces.as_deref() {
            None | Some([]) => bio.complete(Status::Invalid), // WC-PA2
            Some(&[(_, sector, _)]) => self.below.submit(Bio { sector, ..bio }),
            Some(pieces) => self.split(bio, pieces),
        }
    }

    fn split(&self, bio: Bio, pieces: &[(Sector, Sector, Sector)]) {
        let Bio { op, flags, class, opener, sector, bufs, done, .. } = bio;
        let byte = |at: Sector| usize::try_from((at - sector).bytes()).expect("within buffers");
        let send = |&(at, place, len): &(Sector, Sector, Sector)| {
            let bufs = match bufs.is_empty() {
                true => Bufs::new(),
                false => bufs.slice(byte(at)..byte(at + len)),
            };
            io_by(opener, &*self.below, op, flags, class, (place, len), bufs)
        };
        complete_after(done, pieces.iter().map(send).collect::<Vec<_>>());
    }
}

impl BlockDevice for PartArea {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn limits(&self) -> Limits {
        Limits { capacity: self.areas.borrow().end(), ..self.below.limits() }
    }

    fn submit(&self, bio: Bio) {
        let (at, end) = self.first.get();
        match bio.op == Op::Flush || (bio.sector >= at && bio.end() <= end) {
            true => self.below.submit(bio),
            false => self.submit_elsewhere(bio),
        }
    }

    fn identity(&self) -> Option<String> {
        self.below.identity()
    }

    fn writer_throttled(&self) {
        self.below.writer_throttled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn areas(nth: u8, added: &[u64], capacity: u64) -> Areas {
        let part = Part { nth, of: 2, chunk_sectors: 8, area_sectors: 100 };
        Areas::of(Sector(8), part, added, Sector(capacity), Planted::NONE)
    }

    #[test]
    fn areas_follow_each_other_in_the_part() {
        let second = areas(1, &[50, 10], 328);
        assert_eq!(second.end(), Sector(108 + 160));
        let place = |at: u64| second.place_of(Sector(at)).map(|place| place.0);
        assert_eq!([place(108), place(207)], [Some(108), Some(207)]);
        assert_eq!([place(208), place(257)], [Some(8 + 200 + 50), Some(8 + 299)]);
        assert_eq!([place(258), place(267)], [Some(8 + 300 + 10), Some(8 + 319)]);
        assert_eq!([place(107), place(268)], [None, None]);
        let pieces = second.pieces(Sector(200), Sector(262)).unwrap();
        let expected = [(200, 200, 8), (208, 258, 50), (258, 318, 4)];
        assert_eq!(
            pieces,
            expected.map(|(at, place, len)| (Sector(at), Sector(place), Sector(len)))
        );
        assert!(second.pieces(Sector(262), Sector(269)).is_none());
    }

    #[test]
    fn no_sector_of_the_device_belongs_to_two_parts() {
        let mut owned = vec![0; 328];
        for nth in 0..2 {
            let areas = areas(nth, &[50, 10], 328);
            for at in 0..400 {
                if let Some(place) = areas.place_of(Sector(at)) {
                    owned[usize::try_from(place.0).unwrap()] += 1;
                }
            }
        }
        assert!(owned[8..].iter().all(|&owners| owners == 1) && owned[..8] == [0; 8]);
    }

    #[test]
    fn areas_end_where_the_device_does() {
        assert_eq!(areas(1, &[50], 280).end(), Sector(208 + 22));
        assert_eq!(areas(1, &[50], 208).end(), Sector(208));
        assert_eq!(areas(1, &[50], 100).end(), Sector(108), "it has no sector");
    }
}
