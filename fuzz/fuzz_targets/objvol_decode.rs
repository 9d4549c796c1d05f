// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of a volume on an object store, from arbitrary bytes.
//!
//! What must hold (invariants of `format::objvol`): a decoder never panics (FM-OV1); what it
//! accepts, its encoder writes back to exactly the same bytes (FM-OV2), so that no field is read
//! without being checked and none is lost.
//!
//! Random bytes have wrong checksums and would test nothing else, so all but every fourth input
//! gets the right magic, version and checksums first, as an attacker's object would.
#![no_main]

use format::objvol::{
    Checkpoint, CheckpointExtent, CheckpointHeader, CheckpointSegment, Identity, Increment, Layer,
    LayeredMap, Manifest, ObjectDamage, Owner, OwnerState, Place, Seal, SegmentObject,
    StoredCheckpoint, VOLUME_SECTORS_MAX, hash, stated_head_bytes,
};
use libfuzzer_sys::fuzz_target;

const UUID: [u8; 16] = [7; 16];
const PLACE: Place = Place { epoch: 3, sequence: 2 };
const CRC: std::ops::Range<usize> = 12..16;
const HEAD_BYTES: std::ops::Range<usize> = 48..52;
const BODY_HASH: std::ops::Range<usize> = 88..96;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let kind = usize::from(choice >> 6);
    let seal = (*choice & 0x20 != 0).then_some(b"MPOVSEAL");
    let magics = [seal.unwrap_or(b"MPOVSEGM"), b"MPOVMANI", b"MPOVOWNR", b"MPOVCKPT"];
    let mut object = data.to_vec();
    if choice % 4 != 0 && object.len() >= 128 {
        // All but segments and seals have a second version, manifests and owner records a third.
        let version = match (kind, choice & 0x18) {
            (1 | 2, 0x18) => 3,
            (1.., 0x10 | 0x18) => 2,
            _ => 1,
        };
        repair(&mut object, kind, magics[kind], version);
    }
    let _ = stated_head_bytes(&object);
    match kind {
        0 => segment(&object),
        1 => manifest(&object),
        2 => owner(&object),
        _ => checkpoint(&object),
    }
});

fn segment(object: &[u8]) {
    match SegmentObject::decode(object, &UUID, PLACE) {
        Ok(SegmentObject::Segment(head)) => {
            let end = usize::try_from(stated_head_bytes(object).expect("decoded")).expect("fits");
            let sectors = usize::try_from(head.sectors).expect("fits");
            let mut again = vec![0xFF; sectors * 512];
            let hash = head.header.encode(&head.identity, &head.records, &head.changes, &mut again);
            assert_eq!((hash, &again[..end]), (head.hash, &object[..end]));
        }
        Ok(SegmentObject::Seal(seal)) => {
            let again = Seal { ..seal }.encode();
            assert_eq!(again, object[..again.len()]);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

fn manifest(object: &[u8]) {
    let _ = Manifest::volume_uuid(object);
    match Manifest::decode(object, &UUID, PLACE.epoch) {
        Ok(manifest) => {
            let again = manifest.encode();
            assert_eq!(again, object[..again.len()]);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

fn owner(object: &[u8]) {
    match Owner::decode(object, &UUID, PLACE) {
        Ok(owner) => {
            assert!(matches!(owner.state, OwnerState::Attached | OwnerState::Clean));
            let again = owner.encode();
            assert_eq!(again, object[..again.len()]);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

fn checkpoint(object: &[u8]) {
    if let Ok(increment) = Increment::decode(object, &UUID, PLACE, VOLUME_SECTORS_MAX) {
        assert_eq!(increment.encode(VOLUME_SECTORS_MAX), object);
        // Over nothing, and over a map that it clears and covers in part.
        let mut alone = LayeredMap::default();
        if alone.add(increment.clone()).is_ok() {
            let _ = alone.finish(VOLUME_SECTORS_MAX);
        }
        let _ = over(increment);
    }
    match StoredCheckpoint::decode(object, &UUID, PLACE, VOLUME_SECTORS_MAX) {
        Ok(stored) => {
            let Identity { uuid, place, .. } = stored.header().identity;
            assert_eq!((uuid, place), (UUID, PLACE));
            if let (StoredCheckpoint::Whole(whole), 1) = (stored, object[8]) {
                assert_eq!(whole.encode_version_1(VOLUME_SECTORS_MAX), object);
            }
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

/// The map of an increment whose layers are replaced by one.
fn over(increment: Increment) -> Result<Checkpoint, ObjectDamage> {
    let place = Place::new(1, 1);
    let extent = |start| CheckpointExtent {
        start,
        sectors: 100,
        segment: 0,
        at: 1,
        skip: 0,
        whole: 100,
        crc: 0,
    };
    let base = Checkpoint {
        header: CheckpointHeader {
            identity: Identity { uuid: UUID, place, nonce: 0 },
            tail_hash: 0,
        },
        segments: vec![CheckpointSegment { place, sectors: 500, live: 300 }],
        extents: vec![extent(0), extent(100), extent(400)],
        retained: Vec::new(),
        snapshots: Vec::new(),
    };
    let layers = vec![Layer { place, hash: 0, extents: 3 }];
    let mut map = LayeredMap::new(base, &layers)?;
    map.add(Increment { layers, ..increment })?;
    map.finish(VOLUME_SECTORS_MAX)
}

/// Gives the object this kind, the place and volume that are asked for, and right checksums.
fn repair(object: &mut [u8], kind: usize, magic: &[u8; 8], version: u8) {
    object[..8].copy_from_slice(magic);
    object[8..12].copy_from_slice(&[version, 0, 0, 0]);
    object[16..32].copy_from_slice(&UUID);
    object[32..40].copy_from_slice(&PLACE.epoch.to_le_bytes());
    let sequence = if kind == 1 { 0 } else { PLACE.sequence };
    object[40..48].copy_from_slice(&sequence.to_le_bytes());
    let mut head_bytes = object.len();
    if kind == 3 {
        head_bytes = 128;
        let body = hash(&object[128..]);
        object[BODY_HASH].copy_from_slice(&body.to_le_bytes());
    } else if kind == 0 {
        // A segment's own count, where the input has one that fits.
        let count = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().expect("four"));
        let (records, sources, changes) = (count(96), count(100), count(108));
        let end = 128 + 24 * u64::from(records) + 16 * u64::from(sources) + 96 * u64::from(changes);
        head_bytes = usize::try_from(end).map_or(head_bytes, |end| end.min(head_bytes));
    }
    object[HEAD_BYTES].copy_from_slice(&u32::try_from(head_bytes).expect("small").to_le_bytes());
    object[52..56].fill(0);
    object[CRC].fill(0);
    let crc = format::checksum(&object[..head_bytes]);
    object[CRC].copy_from_slice(&crc.to_le_bytes());
}
