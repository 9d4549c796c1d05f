// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a configuration file: the inverse of `config`.
use std::fmt::Write;
use std::path::Path;

use control::with_absolute_paths;

use crate::config::ServeArgs;

/// A device as a configuration file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedDevice {
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    /// Without, it is a compressed RAM disk that has no size yet.
    pub(crate) table: Option<String>,
    /// As the configuration file had it; see `DeviceConfig`.
    pub(crate) force: Option<String>,
    /// The same.
    pub(crate) optional: bool,
    /// Whether it is a block device of the kernel, too.
    pub(crate) ublk: bool,
    pub(crate) attributes: Vec<(String, String)>,
}

/// The text of a file with these options and devices; relative paths are relative to `base`.
pub(crate) fn text(options: &ServeArgs, devices: &[SavedDevice], base: &Path) -> String {
    let mut out = String::new();
    write_options(&mut out, options, base);
    for device in devices {
        let _ = write!(out, "\n[[device]]\nname = {}\n", quoted(&device.name));
        if let Some(uuid) = &device.uuid {
            let _ = writeln!(out, "uuid = {}", quoted(uuid));
        }
        match &device.table {
            Some(table) => {
                let table = with_absolute_paths(table, base);
                let _ = writeln!(out, "table = {}", lines(&table));
            }
            None => out.push_str("zram = true\n"),
        }
        if let Some(token) = &device.force {
            let _ = writeln!(out, "force = {}", quoted(token));
        }
        if device.optional {
            out.push_str("optional = true\n");
        }
        if device.ublk {
            out.push_str("ublk = true\n");
        }
        if !device.attributes.is_empty() {
            out.push_str("[device.attributes]\n");
        }
        for (name, value) in &device.attributes {
            let _ = writeln!(out, "{} = {}", quoted(name), quoted(value));
        }
    }
    out
}

fn write_options(out: &mut String, options: &ServeArgs, base: &Path) {
    let ServeArgs {
        nbd,
        nbd_tls_certs,
        http,
        metrics,
        fuse,
        ublk,
        vhost_user,
        vhost_memory,
        allow_remote,
        cores,
        busy_poll,
        memory,
        socket_mode,
        socket_group,
        default_export,
        shutdown_timeout,
    } = options;
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name} = {value}");
    };
    if !nbd.is_empty() {
        let addresses: Vec<String> = nbd.iter().map(|text| quoted(text)).collect();
        line("nbd", format!("[{}]", addresses.join(", ")));
    }
    let dirs = [("nbd_tls_certs", nbd_tls_certs), ("fuse", fuse), ("vhost_user", vhost_user)];
    for (name, dir) in dirs {
        if let Some(dir) = dir {
            line(name, quoted(&base.join(dir).to_string_lossy()));
        }
    }
    for (name, is_on) in [("ublk", ublk), ("allow_remote", allow_remote)] {
        if *is_on {
            line(name, "true".to_owned());
        }
    }
    if let Some(cores) = cores {
        line("cores", cores.to_string());
    }
    let texts = [
        ("http", http),
        ("metrics", metrics),
        ("vhost_memory", vhost_memory),
        ("busy_poll", busy_poll),
        ("memory", memory),
        ("socket_mode", socket_mode),
        ("socket_group", socket_group),
        ("default_export", default_export),
        ("shutdown_timeout", shutdown_timeout),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            line(name, quoted(text));
        }
    }
}

/// A table, with a line of the file for each of its lines where there are several.
fn lines(table: &str) -> String {
    let is_plain = |c: char| c == '\n' || !c.is_control();
    match table.contains('\n') && !table.contains("'''") && table.chars().all(is_plain) {
        true => format!("'''\n{table}\n'''"),
        false => quoted(table),
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn device(name: &str, table: Option<&str>, attributes: &[(&str, &str)]) -> SavedDevice {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        SavedDevice {
            name: name.to_owned(),
            uuid: (name == "b").then(|| "u \"1\"".to_owned()),
            table: table.map(str::to_owned),
            force: (name == "b").then(|| "1a2b3c4d".to_owned()),
            optional: name == "z",
            ublk: name == "b",
            attributes: attributes.iter().map(pair).collect(),
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let options = ServeArgs {
            nbd: vec!["127.0.0.1:10809".into(), "unix:/a b".into()],
            nbd_tls_certs: Some("/etc/tls".into()),
            http: Some("unix:/run/\\x".into()),
            metrics: Some("127.0.0.1:9099".into()),
            fuse: Some("/srv/pond".into()),
            ublk: true,
            vhost_user: Some("/run/vm disks".into()),
            vhost_memory: Some("16G".into()),
            allow_remote: true,
            cores: Some(2),
            busy_poll: Some("50us".into()),
            memory: Some("8G".into()),
            socket_mode: Some("0660".into()),
            socket_group: Some("kvm".into()),
            default_export: Some("b".into()),
            shutdown_timeout: Some("60s".into()),
        };
        let devices = [
            device("a \u{7}'\"\\", Some("0 8 linear /x\\ y 0\n8 8 zero"), &[]),
            device("b", Some("0 8 zero"), &[("queue/iostats", "1"), ("mapping", "clone")]),
            device("z", None, &[]),
            device("c", Some("0 8 linear /'''q 0\n8 8 zero"), &[]),
        ];
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pond.toml");
        std::fs::write(&file, text(&options, &devices, dir.path())).unwrap();
        let config = Config::read(&file).unwrap();
        assert_eq!(config.serve, options);
        let read: Vec<SavedDevice> = config
            .devices
            .into_iter()
            .map(|d| SavedDevice {
                name: d.name,
                uuid: d.uuid,
                table: d.table,
                force: d.force,
                optional: d.optional,
                ublk: d.ublk,
                attributes: d.attributes,
            })
            .collect();
        assert_eq!(read, devices);
    }

    #[test]
    fn relative_paths_are_made_absolute() {
        let text = text(
            &ServeArgs::default(),
            &[device("a", Some("0 8 linear ./x 0"), &[])],
            Path::new("/srv"),
        );
        assert_eq!(text, "\n[[device]]\nname = \"a\"\ntable = \"0 8 linear /srv/x 0\"\n");
    }
}
