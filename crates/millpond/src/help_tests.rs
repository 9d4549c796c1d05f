// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The help texts and man pages are pinned, so that a change shows in the diff. To accept a change:
//! `MILLPOND_UPDATE_DOCS=1 cargo test -p millpond help`.
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::man_pages;

/// Every command with its full name: `millpond`, `millpond-create`, ...
fn commands() -> Vec<(String, Command)> {
    let mut root = Cli::command();
    root.build();
    let mut all = vec![("millpond".to_owned(), root.clone())];
    for sub in root.get_subcommands() {
        let full = format!("millpond-{}", sub.get_name());
        let spaced = format!("millpond {}", sub.get_name());
        all.push((full.clone(), sub.clone().display_name(full).bin_name(spaced)));
    }
    all
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares with the file in the repository, or updates that when asked to.
fn pin(path: &Path, now: &[u8]) {
    if std::env::var_os("MILLPOND_UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, now).unwrap();
        return;
    }
    let pinned = std::fs::read(path).unwrap_or_default();
    assert!(
        pinned == now,
        "{} differs from the program; `MILLPOND_UPDATE_DOCS=1 cargo test -p millpond --bins` \
         updates it:\n{}",
        path.display(),
        String::from_utf8_lossy(now)
    );
}

#[test]
fn help_of_every_verb_is_pinned_and_has_examples() {
    for (name, mut command) in commands() {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:\n  "), "{name} --help has no examples:\n{help}");
        pin(&root().join(format!("crates/millpond/tests/help/{name}.txt")), help.as_bytes());
    }
}

#[test]
fn help_of_every_target_type_is_pinned() {
    let verbs = commands().into_iter().map(|(_, command)| command.get_name().to_owned());
    let verbs: Vec<String> = verbs.collect();
    for name in host::manuals().iter().map(|manual| manual.name) {
        assert!(!verbs.iter().any(|verb| verb == name), "{name} is a verb and a target type");
        let help = cli::topic_help(Some(name), &verbs).unwrap();
        pin(&root().join(format!("crates/millpond/tests/help/target-{name}.txt")), help.as_bytes());
    }
    let list = cli::topic_help(None, &verbs).unwrap();
    pin(&root().join("crates/millpond/tests/help/targets.txt"), list.as_bytes());
    for (wrong, right) in [("writecahce", "writecache"), ("hgih_watermark", "high_watermark")] {
        let refusal = cli::topic_help(Some(wrong), &verbs).unwrap_err().to_string();
        assert!(refusal.contains(&format!("did you mean `{right}`?")), "{refusal}");
    }
}

#[test]
fn help_of_attributes_is_pinned() {
    let verbs: Vec<String> = Vec::new();
    for name in ["high_watermark", "dirty_blocks", "drain", "stat", "disksize"] {
        let help = cli::topic_help(Some(name), &verbs).unwrap();
        let file = format!("crates/millpond/tests/help/attribute-{name}.txt");
        pin(&root().join(file), help.as_bytes());
    }
    for (owner, specs) in host::attribute_tables() {
        for spec in specs {
            let help = cli::attribute_help(spec.name).unwrap();
            assert!(help.contains(&format!("{} of {owner}: ", spec.name)), "{help}");
        }
    }
}

#[test]
fn the_man_page_of_every_verb_is_pinned() {
    for (name, command) in commands() {
        pin(&root().join(format!("docs/man/{name}.1")), &man_pages::of_command(&name, command));
    }
}

fn document(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

#[test]
fn the_man_page_of_the_configuration_file_is_pinned() {
    let head = ("millpond.toml", 5, "configuration file of the millpond daemon");
    let page = man_pages::of_document(head, &document("config.md"), &[]);
    pin(&root().join("docs/man/millpond.toml.5"), &page);
}

#[test]
fn the_man_page_of_tables_and_targets_is_pinned() {
    let help = |name| (name, cli::topic_help(Some(name), &[]).unwrap());
    let targets: Vec<_> = host::manuals().iter().map(|manual| help(manual.name)).collect();
    let head = ("millpond", 7, "devices, tables and target types of millpond");
    let page = man_pages::of_document(head, &document("tables.md"), &targets);
    pin(&root().join("docs/man/millpond.7"), &page);
}

#[test]
fn the_grammar_has_no_contradictions() {
    Cli::command().debug_assert();
}
