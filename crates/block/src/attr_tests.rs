// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of a small engine: its options, its errors, and what is printed of it.
use super::*;

#[derive(Default)]
struct Engine {
    jobs: u64,
    lazy: bool,
}

static TABLE: [Attr<Engine>; 3] = [
    Attr::new(
        Spec::new("jobs", Kind::Number { min: 1, max: 9, unit: "writes" }, "writes at once")
            .access(Access::ReadWrite)
            .option(OptionForm::Value)
            .default("1"),
        |engine| engine.jobs.into(),
        |engine, value| engine.jobs = value.number().expect("a number"),
    ),
    Attr::new(
        Spec::new("lazy", Kind::Flag, "nothing is done").option(OptionForm::Name),
        |engine| engine.lazy.into(),
        |engine, value| engine.lazy = *value == Value::Flag(true),
    ),
    Attr::read(
        Spec::new("done", Kind::Number { min: 0, max: u64::MAX, unit: "writes" }, "writes so far"),
        |_| Value::Number(0),
    ),
];

const GONE: [GoneOption; 1] = [GoneOption { name: "eager", way_out: "wait" }];

fn parse(words: &[&str]) -> Result<Engine, Error> {
    let mut engine = Engine::default();
    options(&TABLE, &GONE, words, |attr, word| {
        let value = word.map_or(Ok(Value::Flag(true)), |word| attr.spec.parse(word))?;
        attr.set.expect("an option is set")(&mut engine, &value);
        Ok(())
    })?;
    Ok(engine)
}

#[test]
fn options_are_taken_in_any_case_and_any_order() {
    let engine = parse(&["LAZY", "Jobs", "+7"]).unwrap();
    assert_eq!((engine.jobs, engine.lazy), (7, true));
    assert_eq!(find(&TABLE, "jobs").unwrap().get.unwrap()(&engine).to_string(), "7");
}

#[test]
fn an_error_names_the_option_and_what_is_allowed() {
    for (words, text) in [
        (&["jobs"][..], "jobs has no value"),
        (&["job", "1"], "unknown option `job`: did you mean `jobs`?"),
        (&["done", "1"], "unknown option `done`: there are jobs, lazy"),
        (&["jobs", "10"], "jobs: `10`: a number from 1 to 9 writes is allowed"),
    ] {
        let e = parse(words).err().expect("refused");
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Invalid, text));
    }
    assert_eq!(check_count("2", &["a"], 4).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(check_count("1", &["a"], 4).is_ok());
}

#[test]
fn an_option_that_went_is_known_by_name_and_has_a_way_out() {
    let e = parse(&["jobs", "2", "Eager"]).err().expect("refused").to_string();
    assert!(e.starts_with("eager: millpond 0.2 was the last version") && e.contains("wait"), "{e}");
}

#[test]
fn rights_and_names_have_one_error_each() {
    let e = unknown("wc", "jbos", &names(&[&TABLE[0].spec]));
    assert_eq!(e.to_string(), "wc: no attribute `jbos`: did you mean `jobs`?");
    assert_eq!(e.kind(), ErrorKind::NotFound);
    for e in [read_only("done"), write_only("reset"), fixed("lazy")] {
        assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    }
}

#[test]
fn every_kind_prints_what_it_takes() {
    let size = Kind::Size { min: 8 << 20, max: 1 << 40, unit: 4096, or: None };
    let table = [
        (size, "8M to 1T bytes, a multiple of 4096,"),
        (Kind::Size { min: 1, max: u64::MAX, unit: 1, or: Some(0) }, "0, or 1 and more bytes"),
        (Kind::Choice(&["sorted", "lru"]), "sorted or lru"),
        (Kind::Number { min: 0, max: u64::MAX, unit: "" }, "a number from 0"),
        (Kind::NumberOr { min: 0, max: 9, unit: "percent", or: "auto" }, "auto, or 0 to 9 percent"),
    ];
    for (kind, text) in table {
        assert_eq!(kind.to_string(), text);
    }
    let ms = TimeUnit::Millisecond;
    let age = Kind::Time { unit: ms, min: 0, max: 9000, or: Some("none") };
    assert_eq!(age.to_string(), "none, or 0 to 9000 ms, or a time with us, ms, s, m or h,");
    assert_eq!(age.parse("age", "NONE").unwrap(), Value::from("none"));
    assert_eq!(age.parse("age", "1.5s").unwrap(), Value::Number(1500));
    assert!(age.parse("age", "10s").is_err());
    assert_eq!(size.parse("memory", "64MiB").unwrap(), Value::Number(64 << 20));
    for text in ["4M", "8388609", "2T"] {
        assert!(size.parse("memory", text).is_err(), "{text}");
    }
}
