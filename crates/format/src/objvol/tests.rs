// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes of objects: as the format page has them, read back, refused where they are wrong.
use proptest::prelude::*;

use super::*;

const UUID: [u8; 16] = *b"0123456789abcdef";
const VOLUME: u64 = 1 << 20;

fn identity(epoch: u64, sequence: u64) -> Identity {
    Identity { uuid: UUID, place: Place { epoch, sequence }, nonce: 0x1122_3344_5566_7788 }
}

fn record(kind: RecordKind, start: u64, sectors: u32, at: u16, crc: u32) -> Record {
    Record { kind, start, sectors, at, crc }
}

/// Bytes of the head of [`segment`].
const HEAD: usize = 312;

fn snapshot(name: &str, sequence: u64) -> Snapshot {
    let place = Place { epoch: 3, sequence };
    Snapshot { name: name.into(), place, created_at: 1_700_000_000, volume_sectors: VOLUME }
}

/// A segment with one record of each kind, two sectors of data, and a change of a snapshot.
fn segment() -> (Vec<u8>, SegmentHead) {
    let moved = RecordKind::Moved { from: Place { epoch: 2, sequence: 5 }, from_at: 9 };
    let records = vec![
        record(RecordKind::Data, 16, 1, 1, 0x0a0b_0c0d),
        record(RecordKind::Zeroes, 0, 70_000, 0, 0),
        record(moved, 80, 1, 2, 7),
    ];
    let header = SegmentHeader {
        chain_durable: 4,
        parent: Place { epoch: 3, sequence: 6 },
        parent_hash: 0xfeed,
    };
    let changes = vec![SnapshotChange::Deleted(snapshot("daily-1", 6))];
    let mut object = vec![0x5a; 3 * SECTOR];
    let hash = header.encode(&identity(3, 7), &records, &changes, &mut object);
    let identity = identity(3, 7);
    let head = SegmentHead { identity, header, sectors: 3, records, changes, hash };
    (object, head)
}

fn manifest() -> Manifest {
    Manifest {
        identity: identity(3, 0),
        volume_sectors: VOLUME,
        opened_at: 1_700_000_000,
        segment_bytes: 4 << 20,
        window: 4,
        lineage: [9; 16],
        host: "storage-1".into(),
        has_increments: false,
        later: None,
    }
}

fn owner() -> Owner {
    let host = "storage-1".into();
    let cache = Some(RecordedCache { uuid: [7; 16], attached_at: 0, device: String::new() });
    Owner { identity: identity(3, 2), cache, state: OwnerState::Clean, host, later: None }
}

fn owner_with_device() -> Owner {
    let device = "/dev/nvme0n1p3".into();
    let cache = Some(RecordedCache { uuid: [7; 16], attached_at: 1_700_000_000, device });
    Owner { cache, state: OwnerState::Attached, ..owner() }
}

fn checkpoint() -> Checkpoint {
    let segment = |sequence, live| {
        let place = Place { epoch: 3, sequence };
        CheckpointSegment { place, sectors: 100, live }
    };
    let extent = |start, segment, skip| CheckpointExtent {
        start,
        sectors: 8,
        segment,
        at: 1,
        skip,
        whole: 16,
        crc: 5,
    };
    Checkpoint {
        header: CheckpointHeader { identity: identity(3, 7), tail_hash: 0xbeef },
        segments: vec![segment(1, 8), segment(2, 0), segment(7, 8)],
        extents: vec![extent(0, 2, 8), extent(8, 0, 0)],
        retained: vec![RetainedSegment { segment: 1, dead_at: Place::new(3, 6) }],
        snapshots: vec![snapshot("a", 5), snapshot("b", 7)],
    }
}

fn decode_segment(object: &[u8]) -> Result<SegmentObject, ObjectDamage> {
    SegmentObject::decode(object, &UUID, Place { epoch: 3, sequence: 7 })
}

#[test]
fn the_bytes_of_a_segment_are_those_of_the_format_page() {
    let (object, _) = segment();
    let at = |offset: usize, bytes: &[u8]| {
        assert_eq!(&object[offset..offset + bytes.len()], bytes, "offset {offset}");
    };
    at(0, b"MPOVSEGM\x01\x00\x00\x00");
    at(16, &UUID);
    at(32, &[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    at(48, &[0x38, 1, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    at(64, &[4, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0xed, 0xfe]);
    at(96, &[3, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0]);
    at(128, &[2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    at(144, &[16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 13, 12, 11, 10, 1, 0, 0, 0, 0, 0, 1, 0]);
    at(192, &[80, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 2, 0, 9, 0, 0, 0, 3, 0]);
    at(216, &[3, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0xf1, 0x53, 0x65, 0, 0, 0, 0]);
    at(240, &[0, 0, 16, 0, 0, 0, 0, 0, 2, 7, 0, 0, 0, 0, 0, 0]);
    at(256, b"daily-1\0");
    at(264, &[0; 248]);
    at(512, &[0x5a; 1024]);
    assert_eq!(stated_head_bytes(&object), Ok(HEAD as u64));
}

#[test]
fn the_bytes_of_the_other_objects_are_those_of_the_page() {
    let seal = Seal { identity: identity(3, 7), by_epoch: 5 }.encode();
    assert_eq!((&seal[..8], &seal[64..72]), (&b"MPOVSEAL"[..], &[5, 0, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!((seal.len(), is_seal(&seal)), (SEAL_BYTES, true));
    let manifest = manifest().encode();
    assert_eq!(&manifest[..8], b"MPOVMANI");
    assert_eq!(&manifest[64..72], &VOLUME.to_le_bytes());
    assert_eq!(&manifest[72..80], &1_700_000_000u64.to_le_bytes());
    assert_eq!(&manifest[80..88], &[0, 0, 64, 0, 4, 0, 9, 0]);
    assert_eq!(&manifest[88..104], &[9; 16]);
    assert_eq!(&manifest[128..], b"storage-1");
    let owner = owner().encode();
    assert_eq!(&owner[..8], b"MPOVOWNR");
    assert_eq!(&owner[64..84], &[7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 0, 9, 0]);
    assert_eq!(&owner[128..], b"storage-1");
    assert_eq!((owner[8], &owner[84..128]), (1, &[0; 44][..]));
    let owner = owner_with_device().encode();
    assert_eq!(&owner[..12], b"MPOVOWNR\x02\0\0\0");
    assert_eq!(&owner[64..88], &[&[7; 16][..], &[1, 0, 9, 0, 14, 0, 0, 0]].concat());
    assert_eq!(&owner[88..96], &1_700_000_000u64.to_le_bytes());
    assert_eq!((&owner[96..128], &owner[128..]), (&[0; 32][..], &b"storage-1/dev/nvme0n1p3"[..]));
    let checkpoint = checkpoint().encode_version_1(VOLUME);
    assert_eq!(&checkpoint[..8], b"MPOVCKPT");
    assert_eq!(
        &checkpoint[64..84],
        &[0xef, 0xbe, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]
    );
    assert_eq!(&checkpoint[88..96], &hash(&checkpoint[128..]).to_le_bytes());
    let first = [3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 8, 0, 0, 0];
    assert_eq!(&checkpoint[128..152], &first);
    let extent = [0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 1, 0, 8, 0, 8, 0, 16, 0];
    assert_eq!(&checkpoint[200..224], &extent);
    assert_eq!((&checkpoint[84..88], &checkpoint[96..100]), (&[2, 0, 0, 0][..], &[1, 0, 0, 0][..]));
    let retained = [3, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(&checkpoint[248..272], &retained);
    assert_eq!((&checkpoint[312..314], checkpoint.len()), (&b"a\0"[..], 464));
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let (object, head) = segment();
    assert_eq!(decode_segment(&object), Ok(SegmentObject::Segment(head)));
    let seal = Seal { identity: identity(3, 7), by_epoch: 5 };
    assert_eq!(decode_segment(&seal.encode()), Ok(SegmentObject::Seal(seal)));
    for has_increments in [false, true] {
        let manifest = Manifest { has_increments, ..manifest() };
        let object = manifest.encode();
        assert_eq!(object[8], 1 + u8::from(has_increments));
        assert_eq!(Manifest::decode(&object, &UUID, 3), Ok(manifest));
    }
    assert_eq!(Manifest::volume_uuid(&manifest().encode()), Ok(UUID));
    for owner in [owner(), owner_with_device(), Owner { cache: None, ..owner() }] {
        assert_eq!(Owner::decode(&owner.encode(), &UUID, Place::new(3, 2)), Ok(owner));
    }
    let place = Place { epoch: 3, sequence: 7 };
    let object = checkpoint().encode_version_1(VOLUME);
    let whole = Ok(StoredCheckpoint::Whole(checkpoint()));
    assert_eq!(StoredCheckpoint::decode(&object, &UUID, place, VOLUME), whole);
}

#[test]
fn any_flipped_bit_is_detected_in_every_object() {
    let place = Place { epoch: 3, sequence: 7 };
    let flipped = |object: Vec<u8>, bytes: usize, decodes: &dyn Fn(&[u8]) -> bool| {
        assert!(decodes(&object));
        let mut object = object;
        for bit in 0..bytes * 8 {
            object[bit / 8] ^= 1 << (bit % 8);
            assert!(!decodes(&object), "bit {bit}");
            object[bit / 8] ^= 1 << (bit % 8);
        }
    };
    // The data of a segment have checksums of their own.
    flipped(segment().0, HEAD, &|o| decode_segment(o).is_ok());
    let seal = Seal { identity: identity(3, 7), by_epoch: 5 }.encode();
    flipped(seal, SEAL_BYTES, &|o| decode_segment(o).is_ok());
    let object = manifest().encode();
    let bytes = object.len();
    flipped(object, bytes, &|o| Manifest::decode(o, &UUID, 3).is_ok());
    for owner in [owner(), owner_with_device()] {
        let object = owner.encode();
        let bytes = object.len();
        flipped(object, bytes, &|o| Owner::decode(o, &UUID, Place::new(3, 2)).is_ok());
    }
    let object = checkpoint().encode_version_1(VOLUME);
    let bytes = object.len();
    flipped(object, bytes, &|o| StoredCheckpoint::decode(o, &UUID, place, VOLUME).is_ok());
}

#[test]
fn an_object_is_refused_under_another_name_or_uuid() {
    let (object, _) = segment();
    let at = |epoch, sequence| SegmentObject::decode(&object, &UUID, Place { epoch, sequence });
    assert_eq!(at(3, 8), Err(ObjectDamage::Misplaced { epoch: 3, sequence: 7 }));
    assert_eq!(at(4, 7), Err(ObjectDamage::Misplaced { epoch: 3, sequence: 7 }));
    let other = SegmentObject::decode(&object, &[1; 16], Place { epoch: 3, sequence: 7 });
    assert_eq!(other, Err(ObjectDamage::OtherVolume { found: UUID }));
}

#[test]
fn impossible_values_are_refused_despite_good_checksums() {
    let forged = |offset: usize, bytes: &[u8]| {
        let (mut object, _) = segment();
        object[offset..offset + bytes.len()].copy_from_slice(bytes);
        let crc = crate::checksum_without(&object[..HEAD], CRC);
        object[CRC].copy_from_slice(&crc.to_le_bytes());
        decode_segment(&object).unwrap_err()
    };
    let record = |index, field| ObjectDamage::Record { index, field };
    assert_eq!(forged(64, &[7]), ObjectDamage::Field("chain_durable"));
    assert_eq!(forged(80, &[5]), ObjectDamage::Field("parent"));
    assert_eq!(forged(72, &[4]), ObjectDamage::Field("parent"));
    assert_eq!(forged(104, &[0]), ObjectDamage::Field("sectors"));
    assert_eq!(forged(108, &[0]), ObjectDamage::Field("head_bytes"));
    assert_eq!(forged(108, &[65]), ObjectDamage::Field("changes"));
    assert_eq!(forged(112, &[1]), ObjectDamage::Field("reserved"));
    assert_eq!(forged(224, &[7]), record(0, "place"));
    assert_eq!(forged(246, &[0x80]), record(0, "volume_sectors"));
    assert_eq!(forged(248, &[3]), record(0, "kind"));
    assert_eq!(forged(249, &[6]), record(0, "reserved"));
    assert_eq!(forged(249, &[57]), record(0, "name_bytes"));
    assert_eq!(forged(256, b"/"), record(0, "name"));
    assert_eq!(forged(128, &[4]), record(2, "source"));
    assert_eq!(forged(152, &[3]), record(0, "at"));
    assert_eq!(forged(153, &[2]), record(0, "sectors"));
    assert_eq!(forged(160, &[0]), record(0, "at"));
    assert_eq!(forged(166, &[4]), record(0, "kind"));
    assert_eq!(forged(184, &[1]), record(1, "at"));
    assert_eq!(forged(8, &[2]), ObjectDamage::Version { found: 2, known: 1 });
    assert_eq!(forged(10, &[1]), ObjectDamage::Field("reserved"));
}

#[test]
fn impossible_checkpoints_are_refused() {
    let refused = |change: fn(&mut Checkpoint)| {
        let mut wrong = checkpoint();
        change(&mut wrong);
        std::panic::catch_unwind(|| wrong.encode_version_1(VOLUME)).is_err()
    };
    assert!(!refused(|_| ()));
    assert!(refused(|c| c.segments[0].live = 9));
    assert!(refused(|c| c.snapshots.swap(0, 1)));
    assert!(refused(|c| c.snapshots[1].name = "a".into()));
    assert!(refused(|c| c.snapshots[1].place.sequence = 8));
    // Nobody needs it: it is alive, was dead at the snapshot, or is younger.
    assert!(refused(|c| c.retained[0].segment = 0));
    assert!(refused(|c| c.retained[0].dead_at.sequence = 5));
    assert!(refused(|c| c.snapshots[0].place.sequence = 1));
    assert!(refused(|c| c.retained[0].dead_at.sequence = 8));
}

#[test]
fn names_of_snapshots_are_words() {
    let longest = "x".repeat(SNAPSHOT_NAME_BYTES_MAX);
    for name in ["a", "Before_upgrade-2.1", "7", &longest] {
        assert!(is_snapshot_name(name), "{name}");
    }
    for name in ["", "-a", ".a", "a/b", "a@b", "a b", "ä", &format!("{longest}x")] {
        assert!(!is_snapshot_name(name), "{name}");
    }
}

#[test]
fn names_order_as_places_do_and_are_read_back() {
    let place = Place { epoch: 0x0102, sequence: u64::MAX };
    let name = place_name(SEGMENTS, place);
    assert_eq!(name, "segment/0000000000000102/ffffffffffffffff");
    assert_eq!(parse_place_name(SEGMENTS, &name), Some(place));
    assert_eq!(parse_manifest_name(&manifest_name(17)), Some(17));
    assert!(place_name(SEGMENTS, Place::new(2, 9)) < place_name(SEGMENTS, Place::new(2, 10)));
    assert!(place_name(SEGMENTS, Place::new(2, 10)) < place_name(SEGMENTS, Place::new(10, 1)));
    for name in ["segment/1/2", "segment/0000000000000102/FFFFFFFFFFFFFFFF", "x", "segment/"] {
        assert_eq!(parse_place_name(SEGMENTS, name), None, "{name}");
    }
    assert_eq!(parse_manifest_name("manifest/+000000000000001"), None);
}

/// Gives bytes a right head, so that what follows the checksum is decoded.
fn repaired(mut object: Vec<u8>, magic: [u8; 8], place: Place) -> Vec<u8> {
    if object.len() >= COMMON {
        let bytes = object.len();
        finish(&mut object, magic, &Identity { uuid: UUID, place, nonce: 0 }, bytes);
    }
    object
}

#[test]
fn impossible_owner_records_are_refused() {
    let place = Place::new(3, 2);
    let refused = |version: u16, offset: usize, bytes: &[u8], field: &'static str| {
        let mut object = owner_with_device().encode();
        object[offset..offset + bytes.len()].copy_from_slice(bytes);
        let end = object.len();
        finish_version(&mut object, *b"MPOVOWNR", &identity(3, 2), end, version);
        let decoded = Owner::decode(&object, &UUID, place);
        assert_eq!(decoded, Err(ObjectDamage::Field(field)), "{offset}");
    };
    refused(2, 64, &[0; 16], "cache");
    refused(2, 80, &[3], "state");
    refused(2, 81, &[1], "reserved");
    refused(2, 86, &[1], "reserved");
    refused(2, 127, &[1], "reserved");
    refused(2, 82, &[10], "host_bytes");
    refused(2, 88, &[0; 8], "attached_at");
    refused(1, 64, &[7; 16], "attached_at");
    refused(2, 128, &[0xff], "host");
    refused(2, 137, &[0xff], "device");
    let mut object = owner().encode();
    let end = object.len();
    finish_version(&mut object, *b"MPOVOWNR", &identity(3, 2), end, 4);
    let decoded = Owner::decode(&object, &UUID, place);
    assert_eq!(decoded, Err(ObjectDamage::Version { found: 4, known: 3 }));
}

fn later(ro_compat: u64, compat: u64) -> Option<Later> {
    Some(Later { ro_compat, compat, room: b"a place, and a host".to_vec() })
}

#[test]
fn what_later_programs_have_said_comes_back() {
    for has_increments in [false, true] {
        let manifest = Manifest { has_increments, later: later(6, 1), ..manifest() };
        let object = manifest.encode();
        assert_eq!(object[8], 3);
        let words = [u64::from(has_increments), 6, 1].map(u64::to_le_bytes).concat();
        assert_eq!(object[104..128], words[..]);
        assert!(object.ends_with(b"storage-1a place, and a host"));
        assert_eq!(Manifest::decode(&object, &UUID, 3), Ok(manifest));
    }
    let alone = Owner { cache: None, ..owner() };
    for owner in [owner(), owner_with_device(), alone] {
        let owner = Owner { later: later(0, 5), ..owner };
        let object = owner.encode();
        assert_eq!((object[8], &object[112..120]), (3, &[5, 0, 0, 0, 0, 0, 0, 0][..]));
        assert!(object.ends_with(b"a place, and a host"));
        assert_eq!(Owner::decode(&object, &UUID, Place::new(3, 2)), Ok(owner));
    }
}

#[test]
fn unknown_bits_of_a_volume_are_refused_by_word() {
    let bits = |incompat, ro_compat| Err(ObjectDamage::Later { incompat, ro_compat });
    let manifest = Manifest { later: later(0, 1), ..manifest() };
    let owner = Owner { later: later(0, 1), ..owner() };
    // What may be written.
    assert_eq!((manifest.check_writable(), owner.check_writable()), (Ok(()), Ok(())));
    assert_eq!(Manifest { later: later(2, 1), ..manifest.clone() }.check_writable(), bits(0, 2));
    assert_eq!(Owner { later: later(2, 0), ..owner.clone() }.check_writable(), bits(0, 2));
    assert_eq!(Manifest { later: None, ..manifest.clone() }.check_writable(), Ok(()));
    // What may not even be read.
    let forged = |mut object: Vec<u8>, kind: &[u8; 8], place, at: usize| {
        object[at] |= 2;
        let (end, identity) = (object.len(), Identity { place, ..identity(3, 0) });
        finish_version(&mut object, *kind, &identity, end, 3);
        object
    };
    let object = forged(manifest.encode(), b"MPOVMANI", Place::new(3, 0), 104);
    assert_eq!(Manifest::decode(&object, &UUID, 3).map(|_| ()), bits(2, 0));
    let place = Place::new(3, 2);
    let object = forged(owner.encode(), b"MPOVOWNR", place, 96);
    assert_eq!(Owner::decode(&object, &UUID, place).map(|_| ()), bits(2, 0));
}

#[test]
fn words_that_say_nothing_new_are_refused() {
    let reserved = Err(ObjectDamage::Field("reserved"));
    let forged = |at: usize, version| {
        let mut object = manifest().encode();
        object[at] = 1;
        let end = object.len();
        finish_version(&mut object, *b"MPOVMANI", &identity(3, 0), end, version);
        Manifest::decode(&object, &UUID, 3)
    };
    assert_eq!(forged(104, 3), reserved, "increments alone: version 2 says that");
    assert_eq!(forged(104, 2), reserved, "words in version 2");
    assert_eq!(forged(120, 1), reserved, "and in version 1");
    let mut object = manifest().encode();
    object.push(7);
    let end = object.len();
    finish_version(&mut object, *b"MPOVMANI", &identity(3, 0), end, 1);
    assert_eq!(Manifest::decode(&object, &UUID, 3), reserved, "a room without words");
}

#[test]
fn a_sealed_object_is_known_by_its_envelope() {
    let object = [&b"MPOVENVL"[..], &[1; 500]].concat();
    let place = Place::new(3, 2);
    assert_eq!(Manifest::volume_uuid(&object), Err(ObjectDamage::Sealed));
    assert_eq!(Manifest::decode(&object, &UUID, 3), Err(ObjectDamage::Sealed));
    assert_eq!(Owner::decode(&object, &UUID, place), Err(ObjectDamage::Sealed));
    assert_eq!(decode_segment(&object), Err(ObjectDamage::Sealed));
    let stored = StoredCheckpoint::decode(&object, &UUID, place, VOLUME);
    assert_eq!(stored, Err(ObjectDamage::Sealed));
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400)
    ) {
        let place = Place { epoch: 3, sequence: 7 };
        prop_assert!(decode_segment(&bytes).is_err());
        prop_assert!(Manifest::decode(&bytes, &UUID, 3).is_err());
        prop_assert!(Owner::decode(&bytes, &UUID, place).is_err());
        prop_assert!(StoredCheckpoint::decode(&bytes, &UUID, place, VOLUME).is_err());
        let _ = stated_head_bytes(&bytes);
        let _ = Manifest::volume_uuid(&bytes);
    }

    #[test]
    fn fields_with_good_checksums_are_decoded_or_refused(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..600)
    ) {
        let place = Place { epoch: 3, sequence: 7 };
        let _ = decode_segment(&repaired(bytes.clone(), *b"MPOVSEGM", place));
        let _ = decode_segment(&repaired(bytes.clone(), *b"MPOVSEAL", place));
        let object = repaired(bytes.clone(), *b"MPOVMANI", Place::new(3, 0));
        let _ = Manifest::decode(&object, &UUID, 3);
        let mut object = repaired(bytes.clone(), *b"MPOVOWNR", place);
        let _ = Owner::decode(&object, &UUID, place);
        if let end @ COMMON.. = object.len() {
            let identity = Identity { uuid: UUID, place, nonce: 0 };
            finish_version(&mut object, *b"MPOVOWNR", &identity, end, 2);
            let _ = Owner::decode(&object, &UUID, place);
        }
        let object = repaired(bytes, *b"MPOVCKPT", place);
        let _ = StoredCheckpoint::decode(&object, &UUID, place, VOLUME);
        let increment = super::layers_tests::with_good_checksums(&object, place);
        let _ = StoredCheckpoint::decode(&increment, &UUID, place, VOLUME);
    }

    #[test]
    fn any_records_are_read_back_as_they_were_written(
        extents in proptest::collection::vec((0u64..5000, 1u32..20, 0u8..3, any::<u32>()), 0..60)
    ) {
        let from = |n: u64| Place { epoch: 1, sequence: n % 5 + 1 };
        let kind_of = |start: u64, kind: u8| match kind {
            0 => RecordKind::Data,
            1 => RecordKind::Zeroes,
            _ => RecordKind::Moved { from: from(start), from_at: 3 },
        };
        let mut records: Vec<Record> = extents
            .iter()
            .map(|&(at, sectors, kind, crc)| record(kind_of(at, kind), at, sectors, 0, crc))
            .collect();
        let mut at = u16::try_from(head_bytes_needed(&records, &[]).div_ceil(SECTOR)).unwrap();
        for record in &mut records {
            if record.has_data() {
                record.at = at;
                at += u16::try_from(record.sectors).unwrap();
            } else {
                record.crc = 0;
            }
        }
        let mut object = vec![0xaa; usize::from(at) * SECTOR];
        let header =
            SegmentHeader { chain_durable: 0, parent: Place::new(3, 6), parent_hash: 1 };
        header.encode(&identity(3, 7), &records, &[], &mut object);
        let Ok(SegmentObject::Segment(head)) = decode_segment(&object) else {
            panic!("refused: {records:?}");
        };
        prop_assert_eq!(head.records, records);
        prop_assert_eq!(head.header, header);
    }
}
