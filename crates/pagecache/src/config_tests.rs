// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table lines that are taken, that are refused, and what they print.
use block::ErrorKind;
use proptest::prelude::*;

use super::*;

fn parse(line: &str) -> Result<Config, Error> {
    Config::parse(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn a_line_comes_back_as_it_was_without_what_is_the_default() {
    let table = [
        ("", "/dev/x"),
        ("0", "/dev/x"),
        ("2 memory 256M", "/dev/x"),
        ("2 memory 64M", "/dev/x 2 memory 67108864"),
        ("2 dirty_bytes 16M", "/dev/x 2 dirty_bytes 16777216"),
        ("2 dirty_seconds 0.25", "/dev/x 2 dirty_seconds 0.25"),
        (
            "4 dirty_background_bytes 1 dirty_seconds 5",
            "/dev/x 4 dirty_background_bytes 1 dirty_seconds 5",
        ),
        (
            "6 dirty_expire_centisecs 0 dirty_writeback_centisecs 0 read_ahead_kb 0",
            "/dev/x 6 dirty_expire_centisecs 0 dirty_writeback_centisecs 0 read_ahead_kb 0",
        ),
        ("4 map_blocks single ioend_bytes 256K", "/dev/x 4 map_blocks single ioend_bytes 262144"),
        // What was set last counts.
        ("4 dirty_bytes 1M dirty_seconds 3", "/dev/x 2 dirty_seconds 3"),
        ("4 dirty_bytes 1M dirty_bytes 0", "/dev/x"),
        ("2 read_ahead_kb 7", "/dev/x 2 read_ahead_kb 4"),
        // Names and words in any case; every suffix of a size and of a time.
        ("2 MEMORY 64MiB", "/dev/x 2 memory 67108864"),
        ("4 Map_Blocks Single ioend_bytes 16s", "/dev/x 4 map_blocks single ioend_bytes 8192"),
        ("2 dirty_seconds 250ms", "/dev/x 2 dirty_seconds 0.25"),
        ("2 dirty_expire_centisecs 1m", "/dev/x 2 dirty_expire_centisecs 6000"),
    ];
    for (line, shown) in table {
        let config = parse(line).unwrap();
        assert_eq!(config.table("/dev/x"), shown, "{line}");
        let again = shown.strip_prefix("/dev/x").unwrap();
        assert_eq!(parse(again).unwrap(), config, "{line}");
    }
}

#[test]
fn what_is_refused_is_named_with_what_is_allowed() {
    let table = [
        ("x", "#opt_args: `x`: a number from 0 to 20 is allowed"),
        ("1 memory 64M", "#opt_args: 1 words were announced and 2 follow"),
        ("1 memory", "memory has no value"),
        ("2 memory 4M", "memory: `4M`: 8M to 1T bytes, a multiple of 4096, is allowed"),
        ("2 memory 8388609", "memory: `8388609`: 8M to 1T bytes"),
        ("2 dirty_ratio 20", "unknown option `dirty_ratio`: there are memory, dirty_bytes, "),
        ("2 dirty_bytes 8191", "dirty_bytes: `8191`: 0, or 8K to 17592186040320 bytes"),
        ("2 dirty_bytes 17T", "dirty_bytes: `17T`: 0, or 8K to"),
        ("2 dirty_background_bytes -1", "dirty_background_bytes: `-1`: 0, or 1 to"),
        ("2 dirty_seconds 0", "dirty_seconds: `0`: 0.001 to 3600 seconds is allowed"),
        ("2 dirty_seconds 3600.1", "dirty_seconds: `3600.1`: 0.001 to 3600 seconds"),
        ("2 dirty_expire_centisecs 4294967296", "dirty_expire_centisecs: `4294967296`: 0 to 429"),
        ("2 read_ahead_kb 65537", "read_ahead_kb: `65537`: a number from 0 to 65536 is allowed"),
        ("2 map_blocks many", "map_blocks: `many`: multi or single is allowed"),
        ("2 ioend_bytes 5000", "ioend_bytes: `5000`: 4K to 64M bytes, a multiple of 4096"),
    ];
    for (line, said) in table {
        let e = parse(line).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{line}");
        assert!(e.to_string().starts_with(said), "{line}: {e}");
    }
}

#[test]
fn setting_one_of_a_pair_zeroes_the_other_unless_refused() {
    let config = Config::default();
    let both = |config: &Config, what: &str| {
        let shown = |unit| config.get(&format!("{what}_{unit}")).unwrap().to_string();
        (shown("bytes"), shown("seconds"))
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        (both(&config, "dirty"), both(&config, "dirty_background")),
        (pair("0", "2"), pair("0", "1"))
    );
    config.set("dirty_bytes", "1M").unwrap();
    assert_eq!(
        (both(&config, "dirty"), both(&config, "dirty_background")),
        (pair("1048576", "0"), pair("0", "1"))
    );
    config.set("dirty_bytes", "1").unwrap_err();
    config.set("dirty_seconds", "0").unwrap_err();
    assert_eq!(both(&config, "dirty"), pair("1048576", "0"));
    config.set("dirty_seconds", "7.5").unwrap();
    assert_eq!(both(&config, "dirty"), pair("0", "7.5"));
    config.set("dirty_bytes", "0").unwrap();
    assert_eq!(both(&config, "dirty"), pair("0", "7.5"));
    config.set("dirty_bytes", "1M").unwrap();
    config.set("dirty_bytes", "0").unwrap();
    assert_eq!(both(&config, "dirty"), pair("0", "2"), "a table line would not keep 7.5 either");
    config.set("dirty_background_bytes", "4096").unwrap();
    config.set("dirty_background_bytes", "0").unwrap();
    assert_eq!(both(&config, "dirty_background"), pair("0", "1"));
    let limits = config.dirty_limits();
    assert_eq!(limits.max_bytes, MEMORY_DEFAULT / 2);
    assert_eq!(config.set("memory", "64M").unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn read_ahead_leaves_most_of_the_memory() {
    let config = parse("4 memory 8M read_ahead_kb 4096").unwrap();
    assert_eq!(config.read_ahead_pages(), 128);
    assert_eq!(Config::default().read_ahead_pages(), 128);
}

proptest! {
    /// PC-CF1.
    #[test]
    fn what_is_printed_parses_to_the_same(
        steps in prop::collection::vec((1usize..10, 0u64..1 << 20, "[0-9]{1,4}[km]?"), 0..12),
    ) {
        let config = Config::default();
        for (nth, number, text) in steps {
            let value = if number.is_multiple_of(2) { number.to_string() } else { text };
            let name = OPTIONS[nth].spec.name;
            let value = if name == "map_blocks" { "single".to_owned() } else { value };
            let _ = config.set(name, &value);
        }
        let shown = config.table("d");
        prop_assert_eq!(parse(shown.strip_prefix('d').unwrap()).unwrap(), config);
    }
}
