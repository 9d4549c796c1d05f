// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The man page agrees with the code: its table lines are parsed, its defaults are those of the
//! code, and it has all attributes of the target.

use crate::common::{Fixture, Shape, config};
use pagecache::Config;
use sim::model::Uniform;
use sim::{DiskSpec, World};

const MANUAL: &str = include_str!("../../buffered.md");

#[test]
fn every_table_line_in_the_man_page_parses() {
    let lines: Vec<&str> =
        MANUAL.split('\'').filter(|part| part.starts_with("0 4194304 buffered")).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let args: Vec<&str> = line.split(' ').skip(4).collect();
        Config::parse(&args).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

/// The rows of PARAMETERS: option and default.
fn parameters() -> Vec<(&'static str, &'static str)> {
    let part = MANUAL.split("## PARAMETERS").nth(1).expect("a part");
    let part = part.split("## STATUS").next().expect("it ends");
    let rows = part.lines().filter(|line| line.starts_with("| ") && !line.contains("| option"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1], cells[2])
    })
    .collect()
}

#[test]
fn the_man_page_has_every_option_with_its_default_and_no_other() {
    let refusal = Config::parse(&["2", "bogus", "1"]).unwrap_err().to_string();
    let options = refusal.split(": ").last().expect("a list").trim_start_matches("there are ");
    let documented: Vec<&str> = parameters().iter().map(|(option, _)| *option).collect();
    assert_eq!(documented, options.split(", ").collect::<Vec<_>>());
    for (option, default) in parameters() {
        let line = Config::parse(&["2", option, default])
            .unwrap_or_else(|e| panic!("{option} {default}: {e}"))
            .table("d");
        assert_eq!(line, "d", "{option} {default} is not the default");
    }
}

#[test]
fn the_attributes_of_the_target_are_in_the_man_page() {
    let lab = Fixture::new(
        World::calm(1),
        Shape::Plain,
        4096,
        config("", 8 << 20, None),
        |world, name, capacity| {
            let model = Uniform::new(1, 20_000, 60_000);
            world.borrow_mut().add_disk(DiskSpec::new(name, capacity, Box::new(model)))
        },
    );
    lab.run(async |rig| {
        let target: std::rc::Rc<dyn block::Target> = rig.cache.clone();
        for name in block::attr::names(&target.attributes()) {
            assert!(MANUAL.contains(&format!("| {name} |")), "{name} is not in the man page");
        }
        for attribute in ["cache_stat", "bandwidth", "ioend_stats", "errors"] {
            for line in rig.get(attribute).await.lines() {
                let name = line.split(' ').next().expect("a name");
                // Of sizes the first and the last are there.
                let is_size = name.starts_with("folios_of_") || name.starts_with("ioends_to_");
                let is_told = MANUAL.contains(&format!("`{name}`"));
                assert!(is_told || is_size, "{attribute}: {name} is not in the man page");
            }
        }
        // As many fields as documented.
        let fields = MANUAL.lines().find(|line| line.starts_with("STATE DIRTY")).expect("there");
        let shown = target.status();
        assert_eq!(shown.split(' ').count(), fields.split(' ').count(), "{shown}");
        for set in MANUAL.lines().filter_map(|line| line.strip_prefix("millpond set pc ")) {
            let (name, value) = set.split_once(' ').expect("a name and a value");
            rig.set(name, value).await.unwrap_or_else(|e| panic!("{set}: {e}"));
        }
        let refused = rig.set("memory", "1G").await.unwrap_err();
        assert_eq!(refused.kind(), block::ErrorKind::Denied);
        let refused = rig.set("dirty_ratio", "20").await.unwrap_err();
        assert_eq!(refused.kind(), block::ErrorKind::NotFound);
    });
}
