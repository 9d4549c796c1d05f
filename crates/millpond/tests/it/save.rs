// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `save`: what a daemon has is what a daemon with the saved file has.
use crate::common::{Daemon, MILLPOND, folder, sh};

/// The live tables, and what else a file can have.
fn state(daemon: &Daemon) -> [String; 6] {
    let uuid = daemon.cli(&["info", "wc"]).ok();
    [
        daemon.cli(&["table", "-o", "json"]).ok(),
        daemon.cli(&["get", "low", "queue/iostats"]).ok(),
        daemon.cli(&["get", "low", "mapping"]).ok(),
        daemon.cli(&["get", "low", "doors"]).ok(),
        daemon.cli(&["get", "wc", "high_watermark"]).ok(),
        uuid.lines().find(|line| line.starts_with("UUID")).unwrap().to_owned(),
    ]
}

#[test]
fn a_saved_configuration_brings_up_the_same_devices() {
    let dir = folder();
    let daemon = Daemon::start_in(dir, &["--default-export", "wc", "--memory", "1G"]);
    for name in ["origin.img", "cache.img", "disk.img", "od 'd.img"] {
        daemon.file(name, 16);
    }
    // It is before what it is built on, by name and in the order of creation.
    daemon.create("a-top", "0 8 zero");
    daemon.create("low", "0 32768 linear ./origin.img 0");
    daemon
        .cli(&[
            "create",
            "wc",
            "--uuid",
            "u 1",
            "--table",
            "0 32768 writecache s low ./cache.img 4096 2 low_watermark 5",
        ])
        .ok();
    daemon.create("zr", "0 8192 zram lz4");
    daemon.create("buf", "0 32768 buffered ./disk.img 2 memory 16M");
    daemon.create("two lines", "0 16 linear wc 8\n16 16 linear ./od\\ 'd.img 8");
    daemon.cli(&["load", "a-top", "--table", "0 8 linear two\\ lines 0"]).ok();
    daemon.cli(&["resume", "a-top"]).ok();
    daemon.cli(&["set", "wc", "high_watermark", "77"]).ok();
    for (attribute, value) in [("queue/iostats", "1"), ("mapping", "clone"), ("doors", "none")] {
        daemon.cli(&["set", "low", attribute, value]).ok();
    }
    let printed = daemon.cli(&["save"]).ok();
    daemon.cli(&["save", "pond.toml"]).ok();
    let file = daemon.dir.path().join("pond.toml");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
    let refused = daemon.cli(&["save", "pond.toml"]).failed(1);
    assert!(refused.contains("pond.toml: the file exists: --force replaces it"), "{refused}");
    daemon.cli(&["save", "pond.toml", "--force"]).ok();
    let before = state(&daemon);
    daemon.cli(&["load", "low", "--table", "0 32768 linear ./origin.img 0"]).ok();
    let warned = daemon.cli(&["save"]);
    assert!(warned.err.contains("not saved: device low: the table that waits"), "{warned:?}");
    daemon.signal("-TERM");
    let (status, log, dir) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    let file = file.to_str().unwrap().to_owned();
    // The folder of a daemon that has ended has another name here.
    let saved = dir.path().join("pond.toml");
    let saved = saved.to_str().unwrap();
    assert_eq!(saved, file);
    let checked = sh(MILLPOND, &["daemon", "--config", saved, "--check-config"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let daemon = Daemon::start_in(dir, &["--config", saved]);
    assert_eq!(state(&daemon), before);
    assert_eq!(daemon.cli(&["save"]).ok(), printed);
}

/// What a device can't tell of itself is taken from the file that the daemon was started with.
#[test]
fn a_saved_configuration_keeps_optional_and_force() {
    let dir = folder();
    let device = |name: &str| {
        format!(
            "[[device]]\nname = '{name}'\noptional = true\nforce = '1a2b3c4d'\n\
             table = '0  8 zero'\n"
        )
    };
    std::fs::write(dir.path().join("c.toml"), device("a") + &device("b")).unwrap();
    let daemon = Daemon::start_in(dir, &["--config", "c.toml"]);
    daemon.create("c", "0 8 zero");
    daemon.cli(&["load", "b", "--table", "0 16 zero"]).ok();
    daemon.cli(&["resume", "b"]).ok();
    let saved = daemon.cli(&["save"]).ok();
    let devices: Vec<&str> = saved.split("[[device]]\n").skip(1).map(str::trim).collect();
    let expected = [
        "name = \"a\"\ntable = \"0 8 zero\"\nforce = \"1a2b3c4d\"\noptional = true",
        "name = \"b\"\ntable = \"0 16 zero\"\noptional = true",
        "name = \"c\"\ntable = \"0 8 zero\"",
    ];
    assert_eq!(devices, expected, "{saved}");
}
