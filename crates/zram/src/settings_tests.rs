// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An unconfigured device, attribute by attribute.
use block::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::algorithms::NoFiles;

/// A machine with two devices, a directory and a dictionary.
struct Machine;

impl Files for Machine {
    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        if path == "/dict" { Ok(vec![1; 64]) } else { NoFiles.read(path) }
    }

    fn backing(&self, device: &str) -> Result<(), Error> {
        match device {
            "/dev/vda" | "/a b" | "/a\nb" => Ok(()),
            "/tmp" => Err(Error::invalid("/tmp: is a directory")),
            _ => NoFiles.backing(device),
        }
    }
}

fn set(settings: &mut Settings, words: &[(&str, &str)]) {
    for (name, value) in words {
        let got = settings.set(name, value, &Machine);
        assert!(matches!(got, Ok(None)), "{name} <- {value}: {got:?}");
    }
}

fn start(settings: &mut Settings, size: &str) -> Start {
    settings.set("disksize", size, &Machine).unwrap().expect("it has a size now")
}

#[test]
fn a_backing_device_that_no_table_line_can_name_is_refused() {
    let mut settings = Settings::new();
    let e = settings.set("backing_dev", "/a\nb\n", &Machine).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().starts_with("backing_dev: `/a\nb`: a name without line feeds"), "{e}");
    assert_eq!(settings.get("backing_dev").unwrap(), "none", "ZR-SE1");
}

#[test]
fn a_new_device_shows_the_kernels_defaults() {
    let table = [
        ("disksize", "0"),
        ("initstate", "0"),
        ("comp_algorithm", "[lz4] lz4hc zstd deflate"),
        ("recomp_algorithm", ""),
        ("backing_dev", "none"),
        ("writeback_limit", "0"),
        ("writeback_limit_enable", "0"),
        ("writeback_batch_size", "32"),
        ("compressed_writeback", "0"),
        ("mm_stat", "0 0 0 0 0 0 0 0 0"),
        ("bd_stat", "0 0 0"),
        ("io_stat", "0 0 0 0"),
        ("debug_stat", "version: 1\n0 0"),
        ("block_state", ""),
        ("writeback_inflight", "16"),
        ("writeback_progress", "0 0"),
        ("auto_writeback_stat", "off 0 0 0 0"),
    ];
    let settings = Settings::new();
    for (name, value) in table {
        assert_eq!(settings.get(name).unwrap(), value, "{name}");
    }
    for spec in settings.attributes() {
        assert_eq!(settings.get(spec.name).is_ok(), spec.access.reads(), "{}", spec.name);
    }
    assert_eq!(settings.get("mem_limit").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(settings.get("max_comp_streams").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn disksize_makes_a_table_line_of_what_was_set() {
    let mut settings = Settings::new();
    assert_eq!(start(&mut settings, "32M"), Start { len: Sector(65536), args: vec!["lz4".into()] });
    set(
        &mut settings,
        &[
            ("backing_dev", "/a b\n"),
            ("comp_algorithm", "zstd\n"),
            ("recomp_algorithm", "algo=deflate priority=2"),
            ("algorithm_params", "algo=deflate level=9 deflate.winbits=15"),
            ("algorithm_params", "level=7 dict=/dict"),
            ("mem_limit", "64M"),
            ("writeback_limit", "100"),
            ("writeback_limit_enable", "1"),
            ("compressed_writeback", "y"),
            ("writeback_batch_size", "1"),
            ("mem_used_max", "0"),
            ("auto_writeback_idle", "600"),
        ],
    );
    assert_eq!(settings.get("mm_stat").unwrap(), "0 0 0 67108864 0 0 0 0 0");
    assert_eq!(settings.get("recomp_algorithm").unwrap(), "#2: lz4 lz4hc zstd [deflate]");
    let start = start(&mut settings, "4097");
    assert_eq!(start.len, Sector(16), "up to whole pages");
    let words: Vec<&str> = start.args.iter().map(String::as_str).collect();
    assert_eq!(
        words,
        [
            "zstd",
            "18",
            "backing_dev",
            "/a b",
            "mem_limit",
            "67108864",
            "compressed_writeback",
            "1",
            "writeback_batch_size",
            "1",
            "writeback_limit",
            "100",
            "auto_writeback_idle",
            "600",
            "recomp_algorithm",
            "algo=deflate,priority=2",
            "algorithm_params",
            "priority=0,level=7,dict=/dict",
            "algorithm_params",
            "priority=2,level=9,deflate.winbits=15",
        ]
    );
    let config = Config::parse(&words, start.len, &Machine).unwrap();
    assert_eq!(config.words(), start.args, "ZR-SE2");
}

#[test]
fn a_limit_that_is_not_enabled_is_kept_for_later() {
    let mut settings = Settings::new();
    set(&mut settings, &[("writeback_limit", "100")]);
    let args = start(&mut settings, "1M").args;
    assert_eq!(args[2..], ["writeback_limit", "100", "writeback_limit_enable", "0"]);
}

#[test]
fn what_is_refused_changes_nothing() {
    let invalid = ErrorKind::Invalid;
    let table = [
        ("disksize", "0", invalid, "at least 1"),
        ("disksize", "-1", invalid, "`-1`"),
        ("disksize", "abc", invalid, "`abc`"),
        ("disksize", "16M!", invalid, "`16M!`"),
        ("disksize", "17T", invalid, "16 TiB"),
        ("comp_algorithm", "nosuch", invalid, "nosuch"),
        ("comp_algorithm", "", invalid, "''"),
        ("comp_algorithm", "lz4 zstd", invalid, "lz4 zstd"),
        ("recomp_algorithm", "zstd", invalid, "algo=NAME"),
        ("recomp_algorithm", "algo=zstd priority=4", invalid, "1 to 3"),
        ("algorithm_params", "priority=4", invalid, "0 to 3"),
        ("algorithm_params", "algo=zstd level=1", invalid, "does not use"),
        ("algorithm_params", "levle=1", invalid, "`levle`"),
        ("algorithm_params", "dict=/nope", ErrorKind::NotFound, "/nope"),
        ("backing_dev", "/dev/nope", ErrorKind::NotFound, "/dev/nope"),
        ("backing_dev", "/tmp", invalid, "is a directory"),
        ("backing_dev", "", invalid, "`none` is allowed"),
        ("mem_limit", "x", invalid, "`x`"),
        ("mem_used_max", "1", invalid, "`1`"),
        ("reset", "0", invalid, "`0`"),
        ("reset", "x", invalid, "`x`"),
        ("compressed_writeback", "maybe", invalid, "`maybe`"),
        ("writeback_batch_size", "0", invalid, "1 to 256"),
        ("writeback_limit", "-1", invalid, "`-1`"),
        ("writeback_limit_enable", "x", invalid, "`x`"),
        ("idle", "bogus", invalid, "`bogus`"),
        ("idle", "all", invalid, "set disksize first"),
        ("compact", "1", invalid, "set disksize first"),
        ("writeback", "idle", invalid, "set disksize first"),
        ("recompress", "type=idle", invalid, "set disksize first"),
        ("initstate", "1", ErrorKind::Denied, "read-only"),
        ("mm_stat", "1", ErrorKind::Denied, "read-only"),
        ("max_comp_streams", "4", ErrorKind::NotFound, "max_comp_streams"),
    ];
    let mut settings = Settings::new();
    set(&mut settings, &[("backing_dev", "/dev/vda"), ("mem_limit", "8K")]);
    let before = format!("{settings:?}");
    for (name, value, kind, part) in table {
        let e = settings.set(name, value, &Machine).unwrap_err();
        assert_eq!(e.kind(), kind, "{name} <- {value}: {e}");
        assert!(e.to_string().contains(part), "{name} <- {value}: {e}");
        assert_eq!(format!("{settings:?}"), before, "ZR-SE1");
    }
}

/// Linux 7.3 takes an age before there is a page, and refuses `all`.
#[test]
fn an_age_of_idle_pages_is_taken_before_disksize() {
    let mut settings = Settings::new();
    set(&mut settings, &[("mem_limit", "8K"), ("idle", "100")]);
    let before = format!("{settings:?}");
    set(&mut settings, &[("idle", "5m")]);
    assert_eq!(format!("{settings:?}"), before, "it keeps nothing");
}

#[test]
fn what_only_shows_together_is_told_at_disksize() {
    let table: [(&[(&str, &str)], &str); 4] = [
        (&[("auto_writeback_idle", "60")], "auto_writeback_idle needs a backing_dev"),
        (&[("auto_writeback_watermark", "1G")], "auto_writeback_watermark needs a backing_dev"),
        (&[("algorithm_params", "priority=1 level=3")], "no recomp_algorithm of this priority"),
        (
            &[
                ("comp_algorithm", "zstd"),
                ("algorithm_params", "level=-7"),
                ("comp_algorithm", "deflate"),
            ],
            "algorithm_params: priority=0",
        ),
    ];
    for (given, part) in table {
        let mut settings = Settings::new();
        set(&mut settings, given);
        let e = settings.set("disksize", "1M", &Machine).unwrap_err();
        assert!(e.to_string().starts_with("disksize: ") && e.to_string().contains(part), "{e}");
    }
}

#[test]
fn reset_forgets_everything() {
    let mut settings = Settings::new();
    set(&mut settings, &[("mem_limit", "8M"), ("comp_algorithm", "zstd"), ("reset", "1")]);
    assert_eq!(format!("{settings:?}"), format!("{:?}", Settings::new()));
}

proptest! {
    #[test]
    fn no_value_makes_it_panic_and_every_start_parses(
        writes in prop::collection::vec((0..ATTRIBUTES.len(), prop_oneof![
            "\\PC{0,20}",
            "[0-9]{1,4}[KMG]?",
            "[01]",
            "lz4|zstd|deflate|huge|coldest|/dev/vda|none",
            "(algo=(zstd|lz4|deflate))? ?(priority=[0-4])? ?(level=[1-9])?",
        ]), 0..30),
    ) {
        let mut settings = Settings::new();
        for (nth, value) in writes {
            if let Ok(Some(start)) = settings.set(ATTRIBUTES[nth].spec.name, &value, &Machine) {
                let words: Vec<&str> = start.args.iter().map(String::as_str).collect();
                let config = Config::parse(&words, start.len, &Machine).unwrap();
                prop_assert_eq!(config.words(), start.args, "ZR-SE2");
            }
        }
    }
}
