// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints that have what has changed since others: the map that they make, what stays in the
//! store for them, and what becomes of volumes of before.
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Nanos, Sector};
use format::objvol::{
    CHECKPOINTS, Checkpoint, CheckpointExtent, LAYERS_MAX, LayeredMap, Manifest, Place,
    StoredCheckpoint, parse_manifest_name, parse_place_name, place_name,
};
use objvol::{Depth, Fault, Geometry, Health, Volume, VolumeReport};
use sim::{Rng, seeds};

use crate::fixture::{Fixture, SECTORS, options};

fn checkpoint(fixture: &Fixture, volume: &Rc<Volume>) {
    let volume = volume.clone();
    fixture.run(async move { volume.checkpoint().await }).unwrap();
}

fn snapshot(fixture: &Fixture, volume: &Rc<Volume>, name: &'static str) -> Place {
    let volume = volume.clone();
    fixture.run(async move { volume.create_snapshot(name, 1).await }).unwrap().place
}

fn object(fixture: &Fixture, name: &str) -> Rc<[u8]> {
    fixture.bucket.borrow_mut().object(name).unwrap()
}

fn uuid(fixture: &Fixture) -> [u8; 16] {
    Manifest::volume_uuid(&object(fixture, &fixture.names("manifest/")[0])).unwrap()
}

fn stored(fixture: &Fixture, place: Place) -> StoredCheckpoint {
    let object = object(fixture, &place_name(CHECKPOINTS, place));
    StoredCheckpoint::decode(&object, &uuid(fixture), place, SECTORS).unwrap()
}

fn newest(fixture: &Fixture) -> Place {
    parse_place_name(CHECKPOINTS, fixture.names(CHECKPOINTS).last().unwrap()).unwrap()
}

/// Objects that the checkpoint of a report is made of.
pub(crate) fn objects(report: &VolumeReport) -> u64 {
    report.checkpoint.map_or(0, |checkpoint| checkpoint.objects)
}

/// The names of the newest checkpoint and of its layers.
pub(crate) fn layer_names(fixture: &Fixture) -> BTreeSet<String> {
    let newest = newest(fixture);
    let stored = stored(fixture, newest);
    let places = stored.layers().iter().map(|layer| layer.place).chain([newest]);
    places.map(|place| place_name(CHECKPOINTS, place)).collect()
}

/// The map of a checkpoint.
fn map_at(fixture: &Fixture, place: Place) -> Checkpoint {
    let top = match stored(fixture, place) {
        StoredCheckpoint::Whole(whole) => return whole,
        StoredCheckpoint::Increment(top) => top,
    };
    let mut layers = top.layers.iter().map(|layer| stored(fixture, layer.place));
    let Some(StoredCheckpoint::Whole(base)) = layers.next() else { panic!("no whole map") };
    let mut map = LayeredMap::new(base, &top.layers).unwrap();
    for layer in layers {
        let StoredCheckpoint::Increment(increment) = layer else { panic!("a whole map") };
        map.add(increment).unwrap();
    }
    map.add(top).unwrap();
    map.finish(SECTORS).unwrap()
}

/// Its entries, with the places of their segments.
fn entries(map: &Checkpoint) -> Vec<(Place, CheckpointExtent)> {
    let of = |index: u32| map.segments[index as usize].place;
    let entry = |e: &CheckpointExtent| (of(e.segment), CheckpointExtent { segment: 0, ..*e });
    map.extents.iter().map(entry).collect()
}

/// Writes and discards a few places of the volume.
fn change(fixture: &Fixture, volume: &Rc<Volume>, rng: &mut Rng, times: u64) {
    for _ in 0..times {
        let (start, len) = (rng.below(SECTORS - 16), 1 + rng.below(16));
        if rng.below(4) == 0 {
            fixture.discard(volume, start, len).unwrap();
        } else {
            let byte = u8::try_from(rng.below(256)).unwrap();
            fixture.write(volume, start, len, byte).unwrap();
        }
    }
}

/// FM-LY1, OV-IM1: increments make the map that the whole checkpoint of a snapshot has, over
/// openings and deletions of segments.
fn compare_maps(seed: u64) -> Result<(), String> {
    let fixture = Fixture::of_seed(seed);
    let mut rng = fixture.world.borrow_mut().rng.fork();
    let mut volume = fixture.open("a", None);
    let mut increments = 0;
    for name in ["a", "b", "c", "d"] {
        for _ in 0..1 + rng.below(6) {
            let times = 1 + rng.below(12);
            change(&fixture, &volume, &mut rng, times);
            if rng.below(4) == 0 {
                fixture.flush(&volume).unwrap();
                volume = fixture.open("b", None);
                continue;
            }
            checkpoint(&fixture, &volume);
            fixture.sleep(Nanos::from_secs(2)); // garbage is deleted
        }
        // Something new, so that there is a checkpoint of this place.
        change(&fixture, &volume, &mut rng, 1);
        checkpoint(&fixture, &volume);
        let made = map_at(&fixture, newest(&fixture));
        increments += u64::from(!stored(&fixture, newest(&fixture)).layers().is_empty());
        let place = snapshot(&fixture, &volume, name);
        let whole = map_at(&fixture, place);
        if !stored(&fixture, place).layers().is_empty() {
            return Err(format!("the checkpoint of snapshot {name} is an increment"));
        }
        let (made, whole) = (entries(&made), entries(&whole));
        if made != whole {
            return Err(format!("snapshot {name}: {made:?} is not {whole:?}"));
        }
    }
    if increments == 0 { Err("no increment was written".to_owned()) } else { Ok(()) }
}

#[test]
fn increments_make_the_map_of_a_whole_checkpoint() {
    seeds::run(200, compare_maps);
}

/// OV-K3: what the newest checkpoint names stays, and nothing else.
#[test]
fn what_no_checkpoint_names_is_deleted() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..100 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
    }
    let (mut longest, mut wholes) = (0, 0);
    for n in 0..200u8 {
        fixture.write(&volume, u64::from(n % 7), 1, n).unwrap();
        checkpoint(&fixture, &volume);
        fixture.sleep(Nanos::from_secs(3)); // what it does not name is deleted
        let names = fixture.names(CHECKPOINTS);
        assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), layer_names(&fixture));
        longest = longest.max(names.len());
        wholes += u64::from(names.len() == 1);
    }
    assert_eq!((longest, wholes), (LAYERS_MAX + 1, 4));
    drop(volume);
    let volume = fixture.open("b", None);
    assert_eq!(fixture.read(&volume, 0, 8).unwrap(), [196, 197, 198, 199, 193, 194, 195, 1]);
    let report = fixture.check(Depth::Data);
    assert_eq!((report.health(), objects(&report)), (Health::Sound, 5), "{report:?}");
}

/// An increment costs what has changed, not what the map has.
#[test]
fn an_increment_is_small_beside_the_map() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in (0..SECTORS).step_by(2) {
        fixture.write(&volume, n, 1, 1).unwrap();
    }
    checkpoint(&fixture, &volume);
    let bytes = |place| object(&fixture, &place_name(CHECKPOINTS, place)).len();
    let whole = newest(&fixture);
    assert!((512 * 6..512 * 10).contains(&bytes(whole)), "{} for 512 extents", bytes(whole));
    fixture.write(&volume, 0, 1, 2).unwrap();
    checkpoint(&fixture, &volume);
    assert_ne!(newest(&fixture), whole);
    assert!(bytes(newest(&fixture)) < 250, "{}", bytes(newest(&fixture)));
}

/// Makes the newest checkpoint, which has the whole map, what a program of version 1 wrote, and the
/// manifests, too.
fn downgrade(fixture: &Fixture) {
    let (uuid, place) = (uuid(fixture), newest(fixture));
    let StoredCheckpoint::Whole(whole) = stored(fixture, place) else { panic!("an increment") };
    let old = whole.encode_version_1(SECTORS);
    assert_eq!(old[8], 1);
    fixture.bucket.borrow_mut().force(&place_name(CHECKPOINTS, place), Some(old));
    for name in fixture.names("manifest/") {
        let epoch = parse_manifest_name(&name).unwrap();
        let manifest = Manifest::decode(&object(fixture, &name), &uuid, epoch).unwrap();
        let old = Manifest { has_increments: false, ..manifest }.encode();
        fixture.bucket.borrow_mut().force(&name, Some(old));
    }
}

#[test]
fn a_volume_of_an_older_program_opens_and_goes_on() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..8 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
    }
    checkpoint(&fixture, &volume);
    fixture.write(&volume, 8, 8, 2).unwrap();
    fixture.flush(&volume).unwrap();
    downgrade(&fixture);
    let volume = fixture.open("b", None);
    fixture.write(&volume, 16, 8, 3).unwrap();
    checkpoint(&fixture, &volume);
    assert_eq!(stored(&fixture, newest(&fixture)).layers().len(), 1, "the old one");
    // OV-O8: the older program refuses the manifest.
    let versions = fixture.names("manifest/").into_iter().map(|name| object(&fixture, &name)[8]);
    assert_eq!(versions.collect::<Vec<_>>(), [1, 1, 2]);
    let volume = fixture.open("c", None);
    let found: Vec<u8> = (0..4).map(|n| fixture.read(&volume, n * 8, 1).unwrap()[0]).collect();
    assert_eq!(found, [1, 2, 3, 1]);
    assert_eq!(fixture.check(Depth::Data).health(), Health::Sound);
}

/// A volume with a whole checkpoint and two increments.
fn layered() -> (Fixture, Rc<Volume>, Vec<String>) {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..8 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
    }
    for n in 0..3 {
        fixture.write(&volume, n * 8, 8, 2).unwrap();
        checkpoint(&fixture, &volume);
    }
    let names = fixture.names(CHECKPOINTS);
    assert_eq!(layer_names(&fixture), names.iter().cloned().collect());
    (fixture, volume, names)
}

#[test]
fn a_missing_layer_is_damage_that_is_named() {
    let (fixture, volume, names) = layered();
    assert_eq!(names.len(), 3);
    fixture.bucket.borrow_mut().force(&names[0], None);
    let text = format!("{}, a layer of {}, is missing", names[0], names[2]);
    let e = fixture.try_open(options("b", None)).unwrap_err().chain();
    assert!(e.contains(&text), "{e}");
    let report = fixture.check(Depth::Metadata);
    assert_eq!(report.health(), Health::Broken);
    assert!(report.damage[0].contains(&text), "{:?}", report.damage);
    assert_eq!(fixture.read(&volume, 0, 1), Err(block::Status::Stale), "the opening has fenced it");
}

#[test]
fn a_writer_heals_what_an_older_layer_has_lost() {
    let (fixture, volume, names) = layered();
    fixture.bucket.borrow_mut().force(&names[1], None);
    assert_eq!(fixture.check(Depth::Metadata).health(), Health::Broken);
    snapshot(&fixture, &volume, "whole");
    fixture.sleep(Nanos::from_secs(5));
    assert_eq!(fixture.check(Depth::Data).health(), Health::Sound);
}

fn spoil(fixture: &Fixture, name: &str) {
    let mut spoilt = object(fixture, name).to_vec();
    spoilt[130] ^= 1;
    fixture.bucket.borrow_mut().force(name, Some(spoilt));
}

/// While nothing was overwritten a damaged increment costs nothing: the one before has all but
/// what the heads of segments tell.
#[test]
fn an_unreadable_increment_gives_way_to_its_layers() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..5 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
        checkpoint(&fixture, &volume);
    }
    fixture.sleep(Nanos::from_secs(5));
    let names = fixture.names(CHECKPOINTS);
    spoil(&fixture, names.last().unwrap());
    let report = fixture.check(Depth::Data);
    let found = (report.health(), objects(&report), report.replayed, report.lost.len());
    assert_eq!(found, (Health::Broken, names.len() as u64 - 1, 1, 0), "{report:?}");
}

/// A layer outlives the segments that it needs: when the newest checkpoint is unreadable it counts
/// only if nothing is missing, and before it one does that is complete.
#[test]
fn a_layer_without_its_segments_gives_way() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..8 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
    }
    snapshot(&fixture, &volume, "old");
    let kept = newest(&fixture);
    for byte in [2, 3] {
        for n in 0..2 {
            fixture.write(&volume, n * 8, 8, byte).unwrap();
        }
        checkpoint(&fixture, &volume);
    }
    fixture.sleep(Nanos::from_secs(5)); // what had the twos is deleted
    assert_eq!(layer_names(&fixture).len(), 4);
    spoil(&fixture, fixture.names(CHECKPOINTS).last().unwrap());
    let report = fixture.check(Depth::Data);
    assert_eq!(
        (report.health(), report.checkpoint.unwrap().place),
        (Health::Broken, kept),
        "{report:?}"
    );
    assert_eq!(report.lost, []);
}

#[test]
fn without_a_complete_checkpoint_the_newest_counts() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for byte in 1..=4 {
        fixture.write(&volume, 0, 16, byte).unwrap();
        fixture.flush(&volume).unwrap();
        if byte != 3 {
            checkpoint(&fixture, &volume);
        }
    }
    fixture.sleep(Nanos::from_secs(5));
    spoil(&fixture, &fixture.names(CHECKPOINTS)[2]);
    let report = fixture.check(Depth::Metadata);
    assert_eq!((report.health(), objects(&report)), (Health::Broken, 2), "{report:?}");
    assert!(!report.lost.is_empty());
}

/// Another object lies at the place of a layer: of a copy of the bucket, say. What does an opening
/// read?
fn beside_another_layer(fault: Option<Fault>) -> Result<Vec<u8>, String> {
    let (fixture, _, names) = layered();
    let place = parse_place_name(CHECKPOINTS, &names[0]).unwrap();
    let StoredCheckpoint::Whole(mut whole) = stored(&fixture, place) else { panic!("whole") };
    let at = whole.extents.iter().position(|extent| extent.start == 32).unwrap();
    // The neighbour's data, with their checksum: no read notices.
    let other = whole.extents[at - 1];
    whole.extents[at] = CheckpointExtent { start: 32, ..other };
    for segment in &mut whole.segments {
        segment.live = 0;
    }
    for extent in &whole.extents {
        whole.segments[extent.segment as usize].live += u32::from(extent.sectors);
    }
    let forged = whole.encode_version_1(SECTORS);
    fixture.bucket.borrow_mut().force(&names[0], Some(forged));
    let volume = fixture.try_open(options("b", fault)).map_err(|e| e.chain())?;
    fixture.read(&volume, 32, 1).map_err(|status| status.to_string())
}

#[test]
fn another_object_in_the_place_of_a_layer_is_caught() {
    let refused = beside_another_layer(None).unwrap_err();
    assert!(refused.contains("is not the layer that"), "{refused}");
    assert!(beside_another_layer(Some(Fault::BelieveLayers)).is_ok(), "the fault shows");
}

/// Layers over a volume that grows: those of before are within.
#[test]
fn layers_of_a_smaller_volume_count_in_a_larger_one() {
    let (fixture, _, _) = layered();
    let grown = objvol::OpenOptions {
        sectors: Some(Sector(2 * SECTORS)),
        other_size: objvol::OtherSize::Grows,
        ..options("b", None)
    };
    let volume = fixture.try_open(grown).unwrap();
    let Geometry { sectors, .. } = volume.geometry();
    assert_eq!(sectors, Sector(2 * SECTORS));
    fixture.write(&volume, 2 * SECTORS - 8, 8, 7).unwrap();
    checkpoint(&fixture, &volume);
    fixture.sleep(Nanos::from_secs(5));
    assert_eq!(objects(&fixture.check(Depth::Data)), 4);
    let volume = fixture.open("c", None);
    assert_eq!(fixture.read(&volume, 2 * SECTORS - 8, 1).unwrap(), [7]);
    assert_eq!(fixture.read(&volume, 16, 1).unwrap(), [2]);
}
