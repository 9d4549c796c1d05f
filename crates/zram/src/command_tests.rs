// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of commands, and how parts share them.
use proptest::prelude::*;

use super::*;
use crate::codec::Params;

fn algorithms(of: [Option<Algorithm>; PRIORITIES]) -> Algorithms {
    of.map(|a| Some((a?, Params::default())))
}

fn writeback(text: &str) -> Result<Writeback, Error> {
    Writeback::parse(text, 1000)
}

fn recompress(text: &str) -> Result<Recompress, Error> {
    let (lz4, zstd, deflate) = (Algorithm::Lz4, Algorithm::Zstd, Algorithm::Deflate);
    Recompress::parse(text, &algorithms([Some(lz4), Some(zstd), None, Some(deflate)]), 3264)
}

fn ends<T: Copy>(ranges: &[Range<T>]) -> Vec<(T, T)> {
    ranges.iter().map(|r| (r.start, r.end)).collect()
}

#[test]
fn writeback_takes_old_words_and_new_keys_in_any_mix() {
    // Words, kinds, first pages and ends of ranges.
    type Row = (&'static str, Vec<Kind>, Vec<(u64, u64)>);
    let table: [Row; 9] = [
        ("idle", vec![Kind::Idle], vec![]),
        ("type=huge_idle", vec![Kind::HugeIdle], vec![]),
        ("huge type=incompressible", vec![Kind::Huge, Kind::Incompressible], vec![]),
        ("idle idle", vec![Kind::Idle], vec![]),
        ("page_index=5", vec![], vec![(5, 6)]),
        ("page_indexes=0-999", vec![], vec![(0, 1000)]),
        ("page_indexes=7-9 page_index=3", vec![], vec![(3, 4), (7, 10)]),
        ("page_index=4 page_index=3 page_indexes=4-8", vec![], vec![(3, 9)]),
        (" page_index=3\tidle \n", vec![Kind::Idle], vec![(3, 4)]),
    ];
    for (text, kinds, pages) in table {
        let got = writeback(text).unwrap();
        assert_eq!((&got.kinds, ends(&got.pages)), (&kinds, pages), "{text}");
        assert_eq!(got.max_pages, u64::MAX);
    }
}

#[test]
fn writeback_refuses_what_it_does_not_know_and_names_it() {
    let table = [
        ("", ErrorKind::Invalid, "no pages named"),
        ("bogus", ErrorKind::Invalid, "`bogus`"),
        ("idle bogus", ErrorKind::Invalid, "`bogus`"),
        ("type=", ErrorKind::Invalid, "``"),
        ("type=idle,huge", ErrorKind::Invalid, "`idle,huge`"),
        ("type=idle max=5", ErrorKind::Invalid, "unknown key `max`"),
        ("page_index", ErrorKind::Invalid, "`page_index`"),
        ("page_index=", ErrorKind::Invalid, "`page_index=`"),
        ("page_index=-1", ErrorKind::Invalid, "`page_index=-1`"),
        ("page_index=5x", ErrorKind::Invalid, "`page_index=5x`"),
        ("page_index=1000", ErrorKind::Range, "last page is 999"),
        ("page_index=99999999999999999999", ErrorKind::Invalid, "`page_index=9"),
        ("page_indexes=5", ErrorKind::Invalid, "LOW-HIGH"),
        ("page_indexes=9-5", ErrorKind::Range, "lower page comes first"),
        ("page_indexes=5-1000", ErrorKind::Range, "last page is 999"),
        ("page_indexes=5-18446744073709551615", ErrorKind::Range, "last page is 999"),
        ("page_indexes=1-2-3", ErrorKind::Invalid, "`page_indexes=1-2-3`"),
        ("idle page_index=1000", ErrorKind::Range, "last page is 999"),
    ];
    for (text, kind, part) in table {
        let e = writeback(text).unwrap_err();
        assert_eq!(e.kind(), kind, "{text}: {e}");
        assert!(e.to_string().starts_with("writeback: "), "{text}: {e}");
        assert!(e.to_string().contains(part), "{text}: {e}");
    }
}

#[test]
fn kinds_are_told_by_the_flags_of_a_slot() {
    let plain = Slot::object(1, 100, 0, 50);
    let huge = Slot::object(1, 4096, 0, 50);
    let idle = huge.with(Flags::IDLE);
    let never = huge.with(Flags::INCOMPRESSIBLE);
    // Plain, huge, huge and idle, huge and incompressible.
    let table = [
        (Kind::Idle, [false, false, true, false]),
        (Kind::Huge, [false, true, true, true]),
        (Kind::HugeIdle, [false, false, true, false]),
        (Kind::Incompressible, [false, false, false, true]),
        (Kind::Aged(50), [true; 4]),
        (Kind::Aged(49), [false; 4]),
        (Kind::HugeAged(50), [false, true, true, true]),
        (Kind::HugeAged(49), [false; 4]),
    ];
    for (kind, taken) in table {
        assert_eq!([plain, huge, idle, never].map(|s| kind.takes(s)), taken, "{kind:?}");
    }
}

#[test]
fn a_shard_looks_at_its_own_slots_only() {
    // Chunks of 256: of three parts the second has chunks 1, 4, 7 ... as its slots 0, 256, 512.
    let command = Writeback::parse("page_indexes=300-1100", 10_000).unwrap();
    let of = |part| ends(&command.of_part(part, 3).pages);
    assert_eq!(of(0), [(256, 512)]);
    assert_eq!(of(1), [(44, 333)]);
    assert_eq!(of(2), [(0, 256)]);
    assert_eq!(ends(&command.of_part(1, 3).runs(300)), [(44, 300)]);
    assert_eq!(ends(&Writeback::parse("idle", 9).unwrap().of_part(0, 1).runs(9)), [(0, 9)]);
}

#[test]
fn a_bound_is_shared_without_loss() {
    assert_eq!([0, 1, 2].map(|s| share(11, s, 3)), [4, 4, 3]);
    assert_eq!(share(u64::MAX, 2, 3), u64::MAX);
}

#[test]
fn recompress_reads_its_keys() {
    let all = Recompress { kind: None, threshold: 0, max_pages: u64::MAX, priority: 1 };
    assert_eq!(recompress("").unwrap(), all);
    let some = Recompress { kind: Some(Kind::Huge), threshold: 888, max_pages: 10, priority: 3 };
    let text = "type=huge threshold=888 max_pages=10 algo=deflate priority=3";
    assert_eq!(recompress(text).unwrap(), some);
    assert_eq!(recompress("algo=deflate").unwrap().priority, 3);
    assert_eq!(recompress("threshold=3263").unwrap().threshold, 3263);
}

#[test]
fn recompress_refuses_what_it_can_not_do() {
    let table = [
        ("bogus", "unknown `bogus`"),
        ("type=idle junk=1", "unknown `junk=1`"),
        ("type=incompressible", "idle, huge and huge_idle are allowed"),
        ("type=", "``"),
        ("threshold=3264", "from 1 to 3263"),
        ("threshold=x", "`x`"),
        ("max_pages=0", "`0`"),
        ("priority=0", "from 1 to 3"),
        ("priority=4", "from 1 to 3"),
        ("priority=2", "which has priority=1 zstd, priority=3 deflate"),
        ("algo=lz4", "algo=lz4: no such algorithm"),
        ("algo=zstd priority=3", "priority=3 algo=zstd: no such algorithm"),
        ("algo=nosuch", "nosuch"),
    ];
    for (text, part) in table {
        let e = recompress(text).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains(part), "{text}: {e}");
    }
    let none = algorithms([Some(Algorithm::Lz4), None, None, None]);
    let e = Recompress::parse("type=idle", &none, 3264).unwrap_err();
    assert!(e.to_string().contains("recomp_algorithm"), "{e}");
}

#[test]
fn idle_takes_all_or_an_age() {
    assert_eq!(Idle::parse("all\n").unwrap(), Idle::All);
    for text in ["3600", "3600s", "60m", "1h"] {
        assert_eq!(Idle::parse(text).unwrap(), Idle::Age(3600), "{text}");
    }
    for text in ["", "bogus", "all 5", "-1", "5x", "4294967296"] {
        assert_eq!(Idle::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_command_panic(text in "\\PC*", slots in 1_u64..1 << 32) {
        let _ = (Writeback::parse(&text, slots), recompress(&text), Idle::parse(&text));
    }

    #[test]
    fn no_row_of_known_words_makes_a_command_panic(
        words in prop::collection::vec(
            ("idle|huge|type|page_index|page_indexes|algo|priority|threshold|max_pages",
             "=?", "[0-9a-z=-]{0,24}"), 0..6),
        slots in 1_u64..1 << 32,
    ) {
        let text: Vec<String> = words.iter().map(|(k, e, v)| format!("{k}{e}{v}")).collect();
        let text = text.join(" ");
        if let Ok(w) = Writeback::parse(&text, slots) {
            for pair in w.pages.windows(2) {
                prop_assert!(pair[0].end < pair[1].start, "ZR-CM2");
            }
        }
        let _ = recompress(&text);
    }

    #[test]
    fn shards_together_take_exactly_what_was_named(
        ranges in prop::collection::vec((0_u64..5000, 0_u64..700), 1..6),
        parts in 1_u32..9,
    ) {
        let slots = 6000;
        let words: Vec<String> =
            ranges.iter().map(|(at, len)| format!("page_indexes={at}-{}", at + len)).collect();
        let command = Writeback::parse(&words.join(" "), slots).unwrap();
        let whiches: Vec<PageSelection> = (0..parts).map(|s| command.of_part(s, parts)).collect();
        for global in 0..slots {
            let (part, local) = Layout { slots, parts }.local(global);
            let which = &whiches[part as usize];
            let named = ranges.iter().any(|(at, len)| (*at..=at + len).contains(&global));
            prop_assert_eq!(which.takes(local, Slot::default()), named, "{}", global);
            let looked_at = which.runs(u32::MAX).iter().any(|r| r.contains(&local));
            prop_assert_eq!(looked_at, named, "{}", global);
        }
    }
}
