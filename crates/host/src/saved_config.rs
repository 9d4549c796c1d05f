// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a configuration file: the inverse of `config`.
use std::path::Path;

use block::ErrorKind;
use control::{Failure, with_absolute_paths};
use toml::Spanned;

use crate::config::{Device, DeviceConfig, ServeArgs};

/// The text of a file with these options and devices; relative paths are relative to `base`.
///
/// # Errors
/// `Io` if it can't be written as TOML.
pub(crate) fn text(
    options: &ServeArgs,
    devices: Vec<DeviceConfig>,
    base: &Path,
) -> Result<String, Failure> {
    let device = devices.into_iter().map(|device| in_file(device, base)).collect();
    let mut file = ServeArgs { device, ..options.clone() };
    for dir in file.dirs() {
        *dir = dir.take().map(|dir| base.join(dir));
    }
    toml::to_string_pretty(&file).map_err(|e| Failure::new(ErrorKind::Io, e.to_string()))
}

fn in_file(device: DeviceConfig, base: &Path) -> Device {
    let DeviceConfig { place: _, name, uuid, table, force, optional, ublk, attributes } = device;
    let spanned = |text| Spanned::new(0..0, text);
    let text = |(name, value)| (name, toml::Value::String(value));
    Device {
        name: spanned(name),
        uuid,
        zram: table.is_none(),
        table: table.map(|table| spanned(with_absolute_paths(&table, base))),
        force,
        optional,
        ublk,
        readonly: None,
        doors: None,
        attributes: attributes.into_iter().map(text).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn device(name: &str, table: Option<&str>, attributes: &[(&str, &str)]) -> DeviceConfig {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        DeviceConfig {
            place: String::new(),
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
            device: Vec::new(),
        };
        let devices = [
            device("a \u{7}'\"\\", Some("0 8 linear /x\\ y 0\n8 8 zero"), &[]),
            device("b", Some("0 8 zero"), &[("queue/iostats", "1"), ("mapping", "clone")]),
            device("z", None, &[]),
            device("c", Some("0 8 linear /'''q 0\n8 8 zero"), &[]),
        ];
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pond.toml");
        let text = text(&options, devices.to_vec(), dir.path()).unwrap();
        std::fs::write(&file, text).unwrap();
        let config = Config::read(&file).unwrap();
        assert_eq!(config.serve, options);
        let unplaced = |device| DeviceConfig { place: String::new(), ..device };
        let read: Vec<DeviceConfig> = config.devices.into_iter().map(unplaced).collect();
        assert_eq!(read, devices);
    }

    #[test]
    fn relative_paths_are_made_absolute() {
        let text = text(
            &ServeArgs::default(),
            vec![device("a", Some("0 8 linear ./x 0"), &[])],
            Path::new("/srv"),
        );
        let wanted = "[[device]]\nname = \"a\"\ntable = \"0 8 linear /srv/x 0\"\n";
        assert_eq!(text.unwrap(), wanted);
    }
}
