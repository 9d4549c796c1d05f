// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is a value, and what is not.
use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

const SECOND: Nanos = Nanos(1_000_000_000);

#[test]
fn sizes_have_the_kernels_suffixes_and_ours() {
    let table = [
        ("0", 0),
        ("4096", 4096),
        ("512b", 512),
        ("4K", 4096),
        ("4k", 4096),
        ("64M", 64 << 20),
        ("64MiB", 64 << 20),
        ("6g", 6 << 30),
        ("1T", 1 << 40),
        ("8s", 4096),
        ("15E", 15 << 60),
        ("18446744073709551615", u64::MAX),
    ];
    for (text, bytes) in table {
        assert_eq!(size(text), Some(bytes), "{text}");
    }
}

#[test]
fn what_is_no_size_is_refused_with_its_name() {
    let wrong = ["", "K", "-1", "+1", "1 K", "64Mfoo", "4KB", "1.5M", "0x10", "16E", "99999999T"];
    for text in wrong.into_iter().chain(["1,5G", "²", "ü", "99999999999999999999"]) {
        let e = bytes("mem_limit", text).unwrap_err();
        assert!(e.to_string().starts_with(&format!("mem_limit: `{text}`: ")), "{e}");
        assert_eq!(e.kind(), ErrorKind::Invalid);
    }
    assert_eq!(page_bytes("x", "4097").unwrap(), 8192);
    assert!(page_bytes("x", "18446744073709551615").is_err());
}

#[test]
fn times_have_a_unit_or_that_of_the_attribute() {
    let table = [
        ("2", 2_000_000_000),
        ("0.5", 500_000_000),
        (".5", 500_000_000),
        ("1.", 1_000_000_000),
        ("0.001", 1_000_000),
        ("7ns", 7),
        ("7.9ns", 7),
        ("1.5us", 1_500),
        ("100MS", 100_000_000),
        ("0.0000000000000000001h", 0),
        ("2m", 120_000_000_000),
        ("1h", 3_600_000_000_000),
    ];
    for (text, ns) in table {
        assert_eq!(time(text, SECOND), Some(Nanos(ns)), "{text}");
    }
    assert_eq!(time("3", Nanos::from_millis(1)), Some(Nanos(3_000_000)));
    for text in ["", ".", "s", "1,5", "-1", "1.-1", "1 s", "1.2.3", "1d", "1e9", "9999999h", "²"] {
        assert_eq!(time(text, SECOND), None, "{text}");
    }
}

#[test]
fn a_time_is_a_whole_number_of_its_unit() {
    let ms = |text| time_in("max_age", text, TimeUnit::Millisecond, 0..=86_400_000);
    for (text, count) in [("250", 250), ("+1", 1), ("2.5s", 2500), ("24h", 86_400_000)] {
        assert_eq!(ms(text).unwrap(), count, "{text}");
    }
    assert_eq!(time_in("e", "1s", TimeUnit::Centisecond, 0..=3000).unwrap(), 100);
    for text in ["1500us", "25h", "-1", "1.5", ""] {
        let e = ms(text).unwrap_err().to_string();
        let allowed = "0 to 86400000 ms, or a time with us, ms, s, m or h, is allowed";
        assert_eq!(e, format!("max_age: `{text}`: {allowed}"));
    }
}

#[test]
fn booleans_and_choices_are_whole_words_in_any_case() {
    for text in ["1", "y", "Yes", "t", "TRUE", "on"] {
        assert!(boolean("b", text).unwrap(), "{text}");
    }
    for text in ["0", "N", "no", "f", "False", "off"] {
        assert!(!boolean("b", text).unwrap(), "{text}");
    }
    for text in ["", "2", "yesterday", "1 "] {
        assert!(boolean("b", text).is_err(), "{text}");
    }
    assert_eq!(choice("order", "LRU", &["sorted", "lru"]).unwrap(), "lru");
    let e = choice("order", "l", &["sorted", "lru"]).unwrap_err().to_string();
    assert_eq!(e, "order: `l`: sorted or lru is allowed");
}

#[test]
fn numbers_are_whole_words_within_a_range() {
    assert_eq!(number("n", "256", 1..=256u32).unwrap(), 256);
    assert_eq!(number("n", "+7", 0..=u64::MAX).unwrap(), 7);
    let e = number("n", "257", 1..=256u32).unwrap_err().to_string();
    assert_eq!(e, "n: `257`: a number from 1 to 256 is allowed");
    let e = number("n", "-1", 0..=u64::MAX).unwrap_err().to_string();
    assert_eq!(e, "n: `-1`: a number from 0 is allowed");
    for text in ["", "+", "++1", "1 ", "0x1", "1.0", "99999999999"] {
        assert!(number("n", text, 0..=u32::MAX).is_err(), "{text}");
    }
    assert_eq!(signed("level", "-5").unwrap(), -5);
    for text in ["", "-", "--5", "+5", "5.0", "99999999999"] {
        assert!(signed("level", text).is_err(), "{text}");
    }
}

#[test]
fn a_value_is_printed_as_the_kernel_prints_it() {
    assert_eq!(Value::from(true).to_string(), "1");
    assert_eq!(Value::from(7u32).to_string(), "7");
    assert_eq!(Value::Signed(-5).to_string(), "-5");
    assert_eq!(Value::from("none").to_string(), "none");
    assert_eq!([Value::Signed(-5).number(), Value::Flag(true).number()], [None, Some(1)]);
    assert_eq!(seconds_text(Nanos::from_millis(2000)), "2");
    assert_eq!(seconds_text(Nanos::from_millis(1250)), "1.25");
    assert_eq!(seconds_text(Nanos(0)), "0");
}

/// Only a few cases under Miri, which is slow and has no working directory to keep failed cases in.
fn cases() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC*") {
        let _ = (bytes("x", &text), page_bytes("x", &text), boolean("x", &text));
        let _ = (number("x", &text, 1..=9u32), signed("x", &text), time(&text, SECOND));
    }

    #[test]
    fn a_number_comes_back(n in any::<u64>()) {
        prop_assert_eq!(size(&n.to_string()), Some(n));
        prop_assert_eq!(number("x", &n.to_string(), 0..=u64::MAX).unwrap(), n);
    }

    #[test]
    fn a_time_comes_back(ms in any::<u32>()) {
        let time_ns = Nanos::from_millis(ms.into());
        prop_assert_eq!(time(&seconds_text(time_ns), SECOND), Some(time_ns));
    }
}
