// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of a small engine: its options, its errors, and what is printed of it.
use super::*;

#[derive(Default)]
struct Engine {
    jobs: u8,
    lazy: bool,
    order: Order,
    limit: Option<u32>,
    queue: Queue,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Order {
    #[default]
    Up,
    Down,
}

#[derive(Default)]
struct Queue {
    stats: Stats,
}

#[derive(Default)]
struct Stats {
    merged: std::cell::Cell<u64>,
}

crate::attrs! {
    static TABLE: [Attr<Engine>];

    jobs: option(Kind::number(1..=9, "writes"), "1"), "writes at once", field jobs;
    lazy: flag().fixed(), "nothing is done", field lazy;
    done: figure("writes"), "writes so far", get |_engine| 0_u64;
    "queue/order": choice("up"), "which write is the next",
        words order { "up" => Order::Up, "down" => Order::Down };
    limit: setting(Kind::NumberOr { min: 0, max: 9, unit: "", or: "none" }, ""), "most writes",
        set |engine, v| engine.limit = v;
    merged: counter(""), "writes that went with others", in queue.stats;
}

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
fn a_row_says_what_an_attribute_is_and_how_it_is_read_and_set() {
    let mut engine = Engine::default();
    engine.queue.stats.merged.set(3);
    let order = find(&TABLE, "queue/order").unwrap();
    assert_eq!(order.spec.kind, Kind::Choice(&["up", "down"]));
    assert_eq!((order.spec.form, order.spec.default), (OptionForm::Value, "up"));
    assert_eq!(order.get.unwrap()(&engine), "up");
    order.set.unwrap()(&mut engine, &"down".into());
    assert_eq!((engine.order, order.get.unwrap()(&engine)), (Order::Down, "down".into()));

    let limit = find(&TABLE, "limit").unwrap();
    for (text, number) in [("7", Some(7)), ("none", None)] {
        limit.set.unwrap()(&mut engine, &limit.spec.parse(text).unwrap());
        assert_eq!(engine.limit, number);
    }
    assert!(limit.get.is_none());
    assert_eq!(TABLE[1].spec.access, Access::Read);
    let metrics = metrics(&TABLE, &engine).into_iter().map(|(spec, n)| (spec.name, spec.help, n));
    assert!(metrics.eq([("merged", "writes that went with others", 3)]));
}

#[test]
fn a_table_line_shows_what_is_no_default() {
    let shown =
        |words: &[&str]| arguments("/dev/x", &TABLE, &parse(words).unwrap(), &Engine::default());
    assert_eq!(shown(&[]), "/dev/x");
    let line = "/dev/x 5 jobs 2 lazy queue/order down";
    assert_eq!(shown(&["queue/order", "down", "lazy", "jobs", "2"]), line);
    // It takes 1 to 9.
    let idle = Engine { jobs: 0, ..parse(&["lazy"]).unwrap() };
    assert_eq!(arguments("d", &TABLE, &idle, &parse(&["jobs", "2"]).unwrap()), "d 1 lazy");
}

#[test]
fn an_error_names_the_option_and_what_is_allowed() {
    for (words, text) in [
        (&["jobs"][..], "jobs has no value"),
        (&["job", "1"], "unknown option `job`: did you mean `jobs`?"),
        (&["done", "1"], "unknown option `done`: there are jobs, lazy, queue/order"),
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
