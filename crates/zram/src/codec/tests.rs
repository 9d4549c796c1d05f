// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every algorithm with many parameters, over pages of all sorts and objects of any bytes.
use proptest::prelude::*;

use super::*;

const DICT: &[u8] = b"millpond: target, table, origin, bio, sector, flush, discard, writeback, \
    writethrough, suspend, resume, limits, folio, readahead, congestion, throttle, dirty, slot";

fn params(level: Option<i32>, dict: bool, winbits: Option<i32>) -> Params {
    Params { level, dict: dict.then(|| Arc::from(DICT)), winbits }
}

/// Every algorithm with its defaults, its extremes, and what else makes it work differently.
fn all() -> Vec<(Algorithm, Params)> {
    let mut all = vec![(Algorithm::Lz4, params(None, true, None))];
    all.push((Algorithm::Zstd, params(Some(1), true, None)));
    for algorithm in Algorithm::ALL {
        let (min, max, default) = algorithm.levels();
        all.extend([min, max, default, 1].map(|l| (algorithm, params(Some(l), false, None))));
        all.push((algorithm, Params::default()));
    }
    all.push((Algorithm::Deflate, params(Some(0), false, None)));
    for winbits in [-9, -15, 9, 12, 15] {
        all.push((Algorithm::Deflate, params(Some(6), false, Some(winbits))));
    }
    all
}

fn codecs() -> Vec<(String, Codec)> {
    let new = |(a, p): (Algorithm, Params)| (format!("{a:?} {p:?}"), Codec::new(a, &p).unwrap());
    all().into_iter().map(new).collect()
}

/// Bytes without any regularity.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut out: Vec<u8> = std::iter::repeat_with(&mut next).take(len / 8 + 1).flatten().collect();
    out.truncate(len);
    out
}

/// Pages from all zeroes to all noise.
fn a_page() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u8>(), 1..600_usize).prop_map(|(byte, len)| vec![byte; len]),
        (any::<u64>(), 1..600_usize).prop_map(|(seed, len)| noise(seed, len)),
        (0..DICT.len(), 1..9_usize).prop_map(|(from, n)| DICT[from..].repeat(n)),
        (any::<u32>(), 1..200_u32).prop_map(|(n, len)| {
            (0..len).flat_map(|i| (n.wrapping_add(i)).to_le_bytes()).collect()
        }),
    ];
    let mixed = proptest::collection::vec(piece, 1..40).prop_map(|pieces| {
        let mut page = pieces.concat();
        page.resize(PAGE, 0);
        page
    });
    prop_oneof![4 => mixed, 1 => any::<u64>().prop_map(|seed| noise(seed, PAGE))]
}

#[test]
fn names_are_the_kernels_and_absent_ones_say_why() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::parse(algorithm.name()).unwrap(), algorithm);
    }
    for name in ["lzo", "lzo-rle", "842", "LZ4", "", "lz4 "] {
        let e = Algorithm::parse(name).unwrap_err();
        assert_eq!(e.kind(), block::ErrorKind::Invalid);
        let text = e.to_string();
        assert!(text.contains(&format!("'{name}'")), "{text}");
        assert!(text.contains("lz4") && text.contains("zstd"), "{text}");
    }
    assert!(Algorithm::parse("lzo").unwrap_err().to_string().contains("licence"));
}

#[test]
fn wrong_parameters_are_named_with_what_is_allowed() {
    let wrong = [
        (Algorithm::Lz4, params(Some(0), false, None), "lz4 level 0: it must be 1 to 2147483647"),
        (Algorithm::Lz4hc, params(Some(17), false, None), "lz4hc level 17: it must be 1 to 16"),
        (Algorithm::Zstd, params(Some(23), false, None), "it must be -131072 to 22"),
        (Algorithm::Deflate, params(Some(-2), false, None), "deflate level -2: it must be -1 to 9"),
        (Algorithm::Deflate, params(None, false, Some(8)), "deflate.winbits 8: it must be 9 to 15"),
        (Algorithm::Deflate, params(None, false, Some(i32::MIN)), "deflate.winbits -2147483648"),
        (Algorithm::Zstd, params(None, false, Some(11)), "only deflate has a window"),
        (Algorithm::Lz4hc, params(None, true, None), "lz4hc dict: not supported"),
        (Algorithm::Deflate, params(None, true, None), "deflate dict: not supported"),
        (Algorithm::Lz4, params(Some(2), true, None), "with a dictionary it must be 1"),
        (Algorithm::Zstd, Params { dict: Some(Arc::from([])), ..Params::default() }, "is empty"),
    ];
    for (algorithm, params, text) in wrong {
        let e = check(algorithm, &params).unwrap_err();
        assert_eq!(e.kind(), block::ErrorKind::Invalid);
        assert!(e.to_string().contains(text), "{e}");
        assert!(Codec::new(algorithm, &params).is_err());
    }
    // The magic number of a trained dictionary, and nothing sensible behind it.
    let damaged = Arc::from([&[0x37, 0xa4, 0x30, 0xec][..], &[0xff; 60]].concat());
    let e = Codec::new(Algorithm::Zstd, &Params { dict: Some(damaged), ..Params::default() });
    assert!(e.is_err_and(|e| e.to_string().contains("zstd dict is refused")));
}

#[test]
fn a_dictionary_shrinks_objects_and_is_needed_to_read_them() {
    let mut page = DICT.to_vec();
    page.extend(noise(1, PAGE - DICT.len()));
    for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
        let mut with = Codec::new(algorithm, &params(None, true, None)).unwrap();
        let mut without = Codec::new(algorithm, &Params::default()).unwrap();
        let (mut out, mut back) = ([0; 2 * PAGE], [0; PAGE]);
        let longer = without.compress(&page, &mut out).unwrap();
        let len = with.compress(&page, &mut out).unwrap();
        assert!(len + DICT.len() / 2 < longer, "{algorithm:?} {len} {longer}");
        with.decompress(&out[..len], &mut back).unwrap();
        assert_eq!(back[..], page);
        let wrong = without.decompress(&out[..len], &mut back);
        assert!(wrong.is_err() || back[..] != page, "{algorithm:?}");
    }
}

#[test]
fn only_the_end_of_a_dictionary_that_is_too_long_counts() {
    let dict: Arc<[u8]> = [noise(5, 100_000), DICT.to_vec()].concat().into();
    let mut page = DICT.to_vec();
    page.extend(noise(1, PAGE - DICT.len()));
    for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
        let long = Params { dict: Some(dict.clone()), ..Params::default() };
        let mut codec = Codec::new(algorithm, &long).unwrap();
        let (mut out, mut back) = ([0; 2 * PAGE], [0; PAGE]);
        let len = codec.compress(&page, &mut out).unwrap();
        assert!(len < PAGE, "{algorithm:?} {len}");
        codec.decompress(&out[..len], &mut back).unwrap();
        assert_eq!(back[..], page);
    }
}

/// A page that doesn't fit, thousands of times: zlib-rs 0.6.8 loses a piece of its buffer with each
/// stream that is reset before it was finished, and panics when none is left.
#[test]
fn an_incompressible_page_does_not_affect_the_next_one() {
    let compressible = [noise(3, PAGE / 2), vec![0; PAGE / 2]].concat();
    for (name, mut codec) in codecs() {
        let (mut out, mut back) = ([0; PAGE - 400], [0; PAGE]);
        for i in 0..200 {
            assert_eq!(codec.compress(&noise(i * 77, PAGE), &mut out), None, "{name}");
            assert_eq!(codec.compress(&compressible, &mut out[..100]), None, "{name}");
        }
        // The least level of zstd compresses next to nothing, that of deflate nothing.
        if let Some(len) = codec.compress(&compressible, &mut out) {
            codec.decompress(&out[..len], &mut back).unwrap();
            assert_eq!(back[..], compressible, "{name}");
        } else {
            let least = ["Some(-131072)", "Some(2147483647)", "level: Some(0)"];
            assert!(least.iter().any(|level| name.contains(level)), "{name}");
        }
    }
}

#[test]
fn nothing_is_written_behind_the_length_given() {
    let page = [noise(3, PAGE / 2), vec![0; PAGE / 2]].concat();
    for (name, mut codec) in codecs() {
        let mut out = vec![0; 3 * PAGE];
        let Some(len) = codec.compress(&page, &mut out) else { panic!("{name}") };
        for room in [len, len + 1, len - 1] {
            let mut out = [vec![0xa5; room], vec![0x5a; 64]].concat();
            let done = codec.compress(&page, &mut out[..room]);
            assert!(done.is_none_or(|done| done <= room), "{name}");
            assert_eq!(out[room..], [0x5a; 64], "{name}");
        }
    }
}

#[test]
fn objects_that_are_cut_short_or_too_long_are_corrupt() {
    let page = [noise(3, PAGE / 2), DICT.repeat(20)].concat()[..PAGE].to_vec();
    for (name, mut codec) in codecs() {
        let (mut out, mut back) = (vec![0; 3 * PAGE], [0; PAGE]);
        let len = codec.compress(&page, &mut out).unwrap();
        for cut in [0, 1, 2, len / 2, len - 1] {
            assert_eq!(codec.decompress(&out[..cut], &mut back), Err(Corrupt), "{name} {cut}");
        }
        out[len] = 0x42;
        assert_eq!(codec.decompress(&out[..len + 1], &mut back), Err(Corrupt), "{name}");
        assert_eq!(codec.decompress(&out[..len], &mut back), Ok(()), "{name}");
        assert_eq!(back[..], page, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// ZR-CO1, ZR-CO3: the same codec for one page after the other.
    #[test]
    fn pages_come_back_as_they_were(pages in proptest::collection::vec(a_page(), 1..4)) {
        for (name, mut codec) in codecs() {
            let (mut out, mut back) = (vec![0; 3 * PAGE], [0; PAGE]);
            for page in &pages {
                let len = codec.compress(page, &mut out);
                let len = len.ok_or_else(|| TestCaseError::fail(format!("{name}: no room")))?;
                prop_assert_eq!(codec.decompress(&out[..len], &mut back), Ok(()), "{}", name);
                prop_assert_eq!(&back[..], &page[..], "{}", name);
            }
        }
    }

    /// ZR-CO2: any bytes, damaged objects, and objects of another algorithm; and then a good one.
    #[test]
    fn any_object_is_a_page_or_corrupt(
        page in a_page(),
        random in proptest::collection::vec(any::<u8>(), 0..PAGE),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut others = vec![random];
        for (name, mut codec) in codecs() {
            let (mut out, mut back) = (vec![0; 3 * PAGE], [0; PAGE]);
            let len = codec.compress(&page, &mut out).unwrap();
            let good = out[..len].to_vec();
            let mut damaged = good.clone();
            for (at, bit) in &flips {
                damaged[at.index(len)] ^= 1 << bit;
            }
            for object in others.iter().chain([&damaged, &good[..cut.index(len)].to_vec()]) {
                // Exactly as long as it is: an access behind it is one behind the allocation.
                let exact: Box<[u8]> = object.as_slice().into();
                if codec.decompress(&exact, &mut back).is_err() {
                    back.fill(0);
                }
            }
            prop_assert_eq!(codec.decompress(&good, &mut back), Ok(()), "{}", name);
            prop_assert_eq!(&back[..], &page[..], "{}", name);
            others.push(good);
        }
    }
}
