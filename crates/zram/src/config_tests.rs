// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table lines: parsed, refused, and printed again.
use block::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::algorithms::NoFiles;

/// A file system with one file.
struct OneFile;

impl Files for OneFile {
    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        match path {
            "/d/dict" => Ok(vec![7; 100]),
            "/d/empty" => Ok(Vec::new()),
            _ => NoFiles.read(path),
        }
    }

    fn backing(&self, device: &str) -> Result<(), Error> {
        NoFiles.backing(device)
    }
}

fn parse(line: &str) -> Result<Config, Error> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Config::parse(&words, Sector(8000), &OneFile)
}

#[test]
fn an_algorithm_is_a_whole_line() {
    let config = parse("zstd").unwrap();
    assert_eq!((config.algorithm().name(), config.slots()), ("zstd", 1000));
    assert_eq!((config.writeback_batch_size, config.writeback_inflight), (32, 16));
    assert_eq!(config.mem_limit_pages(), u64::MAX);
    assert!(!config.writeback_limit_enable && !config.compressed_writeback);
    assert_eq!(config.table(), "zstd");
    assert_eq!(parse("lz4 0").unwrap().table(), "lz4");
}

#[test]
fn lines_come_back_with_their_options_in_order() {
    let table = [
        ("lz4 2 backing_dev /dev/vdb", "lz4 2 backing_dev /dev/vdb"),
        ("lz4 2 backing_dev none", "lz4"),
        ("lz4 2 mem_limit 64M", "lz4 2 mem_limit 67108864"),
        ("lz4 2 mem_limit 1", "lz4 2 mem_limit 4096"),
        ("lz4 4 mem_limit 8K mem_limit 4K", "lz4 2 mem_limit 4096"),
        ("lz4 2 writeback_limit 100", "lz4 2 writeback_limit 100"),
        ("lz4 2 writeback_limit 0", "lz4 2 writeback_limit_enable 1"),
        ("lz4 2 writeback_limit_enable 1", "lz4 2 writeback_limit_enable 1"),
        (
            "lz4 4 writeback_limit_enable 0 writeback_limit 7",
            "lz4 4 writeback_limit 7 writeback_limit_enable 0",
        ),
        (
            "lz4 4 compressed_writeback 1 backing_dev img",
            "lz4 4 backing_dev img compressed_writeback 1",
        ),
        (
            "lz4 6 writeback_inflight 1 writeback_batch_size 256 shards 2",
            "lz4 6 writeback_batch_size 256 writeback_inflight 1 shards 2",
        ),
        (
            "lz4 4 algorithm_params algo=zstd,level=8,dict=/d/dict recomp_algorithm algo=zstd",
            "lz4 4 recomp_algorithm algo=zstd,priority=1 algorithm_params \
             priority=1,level=8,dict=/d/dict",
        ),
        (
            "deflate 2 algorithm_params deflate.winbits=-12,level=9",
            "deflate 2 algorithm_params priority=0,level=9,deflate.winbits=-12",
        ),
        (
            "lz4 8 backing_dev b auto_writeback_order coldest auto_writeback_idle 3600 \
             auto_writeback_budget 1G",
            "lz4 8 backing_dev b auto_writeback_idle 3600 auto_writeback_budget 1073741824 \
             auto_writeback_order coldest",
        ),
    ];
    for (line, shown) in table {
        let config = parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(config.table(), shown, "{line}");
        assert_eq!(parse(shown).unwrap().table(), shown, "ZR-CF1");
    }
}

#[test]
fn a_limit_alone_is_on_and_may_be_switched_off() {
    let on = parse("lz4 2 writeback_limit 100").unwrap();
    assert_eq!((on.writeback_limit, on.writeback_limit_enable), (100, true));
    let off = parse("lz4 4 writeback_limit 100 writeback_limit_enable 0").unwrap();
    assert_eq!((off.writeback_limit, off.writeback_limit_enable), (100, false));
}

#[test]
fn an_option_that_went_is_refused_with_its_way_out() {
    for line in ["lz4 3 backing_dev b persist", "lz4 1 PERSIST"] {
        let refusal = parse(line).unwrap_err().to_string();
        for part in ["persist: millpond 0.2 was the last", "open it with millpond 0.2", "copy"] {
            assert!(refusal.contains(part), "{line}: {refusal}");
        }
    }
    assert!(parse("lz4 2 backing_dev persist").is_ok(), "a value may be that word");
}

#[test]
fn dictionaries_are_read_and_belong_to_their_priority() {
    let config = parse("zstd 2 algorithm_params dict=/d/dict").unwrap();
    let [Some((_, params)), None, None, None] = config.algorithms() else { panic!("one of four") };
    assert_eq!(params.dict.as_deref(), Some(&[7; 100][..]));
}

#[test]
fn bad_lines_are_refused_and_name_the_word() {
    let table = [
        ("", "zram takes <algorithm>"),
        ("nosuch", "nosuch"),
        ("lzo-rle", "lz4"),
        ("lz4 x", "#opt_args: `x`"),
        ("lz4 2 backing_dev", "2 words were announced and 1 follow"),
        ("lz4 1 backing_dev b", "1 words were announced and 2 follow"),
        ("lz4 1 backing_dev", "backing_dev has no value"),
        ("lz4 2 bogus 1", "unknown option `bogus`"),
        ("lz4 2 mem_limit x", "mem_limit: `x`"),
        ("lz4 2 mem_limit 64Mfoo", "mem_limit: `64Mfoo`"),
        ("lz4 2 compressed_writeback 2", "compressed_writeback: `2`"),
        ("lz4 2 writeback_batch_size 0", "from 1 to 256"),
        ("lz4 2 writeback_batch_size 257", "from 1 to 256"),
        ("lz4 2 writeback_inflight 65", "from 1 to 64"),
        ("lz4 2 writeback_limit -1", "writeback_limit: `-1`"),
        ("lz4 2 shards 65", "from 0 to 64"),
        ("lz4 2 auto_writeback_order hottest", "huge or coldest"),
        ("lz4 2 auto_writeback_idle 60", "auto_writeback_idle needs a backing_dev"),
        ("lz4 2 recomp_algorithm zstd", "`zstd`"),
        ("lz4 2 recomp_algorithm priority=1", "no algo=NAME"),
        ("lz4 2 recomp_algorithm algo=zstd,priority=0", "from 1 to 3"),
        ("lz4 2 recomp_algorithm algo=zstd,prio=1", "unknown key `prio`"),
        ("lz4 2 algorithm_params level=x", "level: `x`"),
        ("lz4 2 algorithm_params algo=zstd", "does not use this algorithm"),
        ("lz4 2 algorithm_params priority=1,algo=lz4", "priority=1 algo=lz4"),
        ("lz4 2 algorithm_params priority=2,level=1", "no recomp_algorithm of this priority"),
        ("lz4 2 algorithm_params dict=", "path without commas"),
        ("lz4 2 algorithm_params dict=/d/empty", "has 0 bytes"),
        ("zstd 2 algorithm_params level=99", "algorithm_params"),
    ];
    for (line, part) in table {
        let e = parse(line).map(|c| c.table()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{line}: {e}");
        assert!(e.to_string().contains(part), "{line}: {e}");
    }
    let e = parse("lz4 2 algorithm_params dict=/nope").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
}

#[test]
fn a_device_has_whole_pages_and_as_many_as_can_be_counted() {
    for (len, part) in [(0, "multiple of 8"), (7, "multiple of 8"), ((1 << 35) + 8, "16 TiB")] {
        let e = Config::parse(&["lz4"], Sector(len), &NoFiles).unwrap_err();
        assert!(e.to_string().contains(part), "{len}: {e}");
    }
    assert!(Config::parse(&["lz4"], SECTORS_MAX, &NoFiles).is_ok());
}

#[test]
fn names_and_values_are_taken_as_every_target_takes_them() {
    let table = [
        ("lz4 2 MEM_LIMIT 64MiB", "lz4 2 mem_limit 67108864"),
        ("lz4 2 writeback_limit_enable yes", "lz4 2 writeback_limit_enable 1"),
        ("lz4 2 writeback_limit_enable 7", "lz4 2 writeback_limit_enable 1"),
        (
            "lz4 4 backing_dev b auto_writeback_idle 5m",
            "lz4 4 backing_dev b auto_writeback_idle 300",
        ),
        ("lz4 2 auto_writeback_order Coldest", "lz4 2 auto_writeback_order coldest"),
    ];
    for (line, shown) in table {
        assert_eq!(parse(line).unwrap().table(), shown, "{line}");
    }
}

/// Splits a table line as the device mapper does.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '\\' if !quoted => quoted = true,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            _ => {
                word.push(c);
                quoted = false;
            }
        }
    }
    words.push(word);
    words
}

#[test]
fn a_path_with_blanks_comes_back_quoted() {
    let config =
        Config::parse(&["lz4", "2", "backing_dev", "/a b\\c"], Sector(8), &NoFiles).unwrap();
    assert_eq!(config.table(), "lz4 2 backing_dev /a\\ b\\\\c");
    assert_eq!(split(&config.table())[3], "/a b\\c");
}

/// One option with a value that is right, of any of them.
fn option() -> impl Strategy<Value = Vec<String>> {
    let pair = |name: &'static str, values: &'static str| {
        values.prop_map(move |value| vec![name.to_owned(), value])
    };
    prop_oneof![
        pair("backing_dev", "/[a-z \\\\]{1,9}"),
        pair("mem_limit", "[0-9]{1,9}[kMG]?"),
        pair("compressed_writeback", "1"),
        pair("writeback_batch_size", "[1-9][0-9]?"),
        pair("writeback_inflight", "[1-5][0-9]?"),
        pair("writeback_limit", "[0-9]{1,9}"),
        pair("writeback_limit_enable", "[01]"),
        pair("shards", "[0-5][0-9]?"),
        pair("auto_writeback_idle", "[0-9]{1,6}"),
        pair("auto_writeback_watermark", "[0-9]{1,6}M"),
        pair("auto_writeback_budget", "[0-9]{1,6}M"),
        pair("auto_writeback_order", "huge|coldest"),
        pair("recomp_algorithm", "algo=(zstd|lz4|deflate),priority=[1-3]"),
        pair("algorithm_params", "priority=[0-3],level=[1-9]"),
    ]
}

proptest! {
    #[test]
    fn what_is_shown_parses_to_the_same(
        algorithm in "lz4|zstd|deflate",
        options in prop::collection::vec(option(), 0..9),
    ) {
        let options: Vec<String> = options.concat();
        let mut words = vec![algorithm, options.len().to_string()];
        words.extend(options);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // Some lack a backing device or an algorithm: those are refused, which is right, too.
        if let Ok(config) = Config::parse(&words, Sector(8000), &OneFile) {
            let shown = split(&config.table());
            let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
            let again = Config::parse(&shown, Sector(8000), &OneFile).unwrap();
            prop_assert_eq!(again.table(), config.table());
            let known = |c: &Config| (
                (c.compressed_writeback, c.parts, c.mem_limit, c.auto, c.backing_dev.clone()),
                (c.writeback_limit, c.writeback_limit_enable, c.writeback_batch_size),
                (c.writeback_inflight, format!("{:?}", c.choice)),
            );
            prop_assert_eq!(known(&again), known(&config));
        }
    }

    #[test]
    fn no_words_make_the_parser_panic(words in prop::collection::vec("\\PC{0,20}", 0..8)) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _ = Config::parse(&words, Sector(8000), &OneFile);
    }

    #[test]
    fn no_values_make_the_parser_panic(
        option in prop::sample::select(attr::names(&crate::attributes::specs())),
        value in "[a-z.=,0-9 -]{0,40}",
    ) {
        let _ = Config::parse(&["lz4", "2", option, &value], Sector(8000), &OneFile);
    }
}
