// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probe of a cache in several parts: each part as a cache of its own, and their sum.
use block::runs::joined;
use block::{Error, Sector};
use format::{Part, Superblock};

use super::native::copies_in;
use super::{
    Contents, Depth, HEAD_BYTES, Occupancy, Place, ProbeReport, has_superblocks, probe_area,
};
use crate::parts::division::Division;

/// A cache in several parts.
#[derive(Clone, Debug)]
pub struct DividedCache {
    /// How it is divided, according to its first part.
    pub first: Part,
    /// 512-byte sectors that each part got as the cache grew.
    pub added_sectors: Vec<u64>,
    /// The report of each part, with offsets from the beginning of the part. Of a cache that is to
    /// be laid out anew only that of part 0.
    pub parts: Vec<ProbeReport>,
    /// All parts together; `None` when one of them is missing or too damaged.
    pub occupancy: Option<Occupancy>,
}

/// The division by the first part of a divided cache, if `head` is the beginning of one.
pub(super) fn first_part(head: &[u8]) -> Option<Superblock> {
    if !has_superblocks(head) {
        return None;
    }
    let first = format::elect(&copies_in(head)).ok()?;
    first.part.is_some_and(|part| part.nth == 0).then_some(first)
}

pub(super) async fn probe(
    whole: &Place,
    first: &Superblock,
    area: Sector,
    depth: Depth,
) -> Result<ProbeReport, Error> {
    let part = first.part.expect("it is one");
    let division = Division::of(first, part);
    let mut report = ProbeReport {
        area,
        contents: Contents::Unknown,
        damage: Vec::new(),
        damage_left_out: 0,
        notes: Vec::new(),
        unused_journals: Vec::new(),
        fingerprint: 0,
    };
    let mut parts = Vec::new();
    let written = if first.areas.is_unmade { 1 } else { part.of };
    for nth in 0..written {
        let config = division.config_of(&whole.config, nth);
        let begins = u64::from(nth) * Sector(part.area_sectors).bytes();
        let areas = division.areas_of(&whole.config, nth, whole.device.limits().capacity);
        let device = division.device_of(&whole.config, nth, &whole.device);
        let area = Sector::from_bytes(config.area_bytes(&*device));
        // Offsets in the part are those of the place of its bytes on the device.
        let offset_of = |offset: u64| {
            let at = config.start_sector + Sector::from_bytes(offset);
            let place = areas.place_of(at).map(|place| place - whole.config.start_sector);
            place.map_or(begins, Sector::bytes) + offset % 512
        };
        if area == Sector::ZERO {
            let what = format!(
                "part {nth}: it is missing: the device ends before it: the cache can't be opened"
            );
            report.add_finding(begins, what);
            continue;
        }
        let place = Place { device, area_bytes: area.bytes(), config: config.clone() };
        let head = place.read(0, HEAD_BYTES.min(area.bytes())).await;
        let head = match head {
            Ok(head) => head.read(<[u8]>::to_vec),
            Err(status) => {
                report.add_finding(
                    begins,
                    format!("part {nth}: its beginning can't be read: {status}"),
                );
                continue;
            }
        };
        let of_part = probe_area(&place, area, &head, depth).await?;
        if let Some(what) = foreign(&of_part, &place) {
            report.add_finding(begins, format!("part {nth}: {what}: the cache can't be opened"));
        }
        for finding in &of_part.damage {
            let what = format!("part {nth}: {}", finding.what);
            report.add_finding(offset_of(finding.offset), what);
        }
        report.damage_left_out += of_part.damage_left_out;
        report.notes.extend(of_part.notes.iter().map(|note| format!("part {nth}: {note}")));
        report.unused_journals.extend(of_part.unused_journals.iter().cloned());
        let prints = [report.fingerprint.to_le_bytes(), of_part.fingerprint.to_le_bytes()];
        report.fingerprint = format::checksum(&prints.concat());
        if foreign(&of_part, &place).is_none() {
            parts.push(of_part);
        }
    }
    let is_whole = parts.len() == usize::from(written);
    let all: Option<Vec<&Occupancy>> = parts.iter().map(ProbeReport::occupancy).collect();
    let mut occupancy = all.filter(|_| is_whole).map(|all| sum(&all));
    if let Some(unmade) = occupancy.as_mut().filter(|_| first.areas.is_unmade) {
        (unmade.total, unmade.free) =
            (unmade.total * u64::from(part.of), unmade.free * u64::from(part.of));
    }
    let added_sectors = division.added;
    let divided = DividedCache { first: part, added_sectors, parts, occupancy };
    report.contents = Contents::Divided(Box::new(divided));
    Ok(report)
}

/// What is in the area of a part, if it is not that part.
fn foreign(report: &ProbeReport, place: &Place) -> Option<String> {
    let expected = place.config.part.expect("it is the place of a part");
    match &report.contents {
        Contents::Native(cache) if cache.superblock.part == Some(expected.part) => {
            let is_own = cache.superblock.uuid == expected.uuid;
            (!is_own).then(|| "it is of another cache".to_owned())
        }
        Contents::Native(cache) => Some(match cache.superblock.part {
            Some(part) => format!("here is part {} of {}", part.nth, part.of),
            None => "here is a cache in one part".to_owned(),
        }),
        Contents::Blank | Contents::Unknown | Contents::Dm(_) | Contents::Replaced(_) => {
            Some("it is missing".to_owned())
        }
        Contents::Ruined => Some("its superblock is damaged".to_owned()),
        Contents::Divided(_) => unreachable!("a part is looked at as one area"),
    }
}

fn sum(all: &[&Occupancy]) -> Occupancy {
    let mut whole = Occupancy { block_size: all[0].block_size, ..Occupancy::default() };
    for of in all {
        whole.total += of.total;
        whole.free += of.free;
        whole.dirty += of.dirty;
        whole.clean += of.clean;
        whole.bad += of.bad;
    }
    let ranges = all.iter().flat_map(|of| of.dirty_ranges.iter().copied()).collect();
    whole.dirty_ranges = joined(ranges);
    whole
}
