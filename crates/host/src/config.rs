// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's configuration file: devices to create at start, in order, and its options.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use block::ErrorKind;
use clap::Args;
use control::{Failure, with_absolute_paths};
use dm::Doors;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::io_failure::io_failure;

/// Options of the daemon: a configuration file has the same, and the devices.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeArgs {
    /// Serve NBD here too: `unix:PATH` or `HOST:PORT`; may be given several times
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) nbd: Vec<String>,
    /// Directory of certificates for NBD over TLS (server-cert.pem, server-key.pem), which all TCP
    /// clients must use then. With a ca-cert.pem they need a certificate that it has signed
    #[arg(long, value_name = "DIR")]
    pub(crate) nbd_tls_certs: Option<PathBuf>,
    /// Serve the control API here too: `unix:PATH` or `HOST:PORT`. Any program that can connect to
    /// a TCP port controls the daemon
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Show metrics (`/metrics`, for Prometheus) and whether all is well (`/healthz`) here:
    /// `unix:PATH` or `HOST:PORT`. Nothing can be changed there
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// Show the devices as files below DIR, an empty directory: `DIR/dev/mapper/NAME`, and their
    /// attributes below `DIR/sys/block/NAME`. Only the daemon's user may use them
    #[arg(long, value_name = "DIR")]
    pub(crate) fuse: Option<PathBuf>,
    /// Make each device a block device of the kernel, `/dev/ublkbN`: RUN_DIR/dev/NAME leads there,
    /// and root's /dev/millpond/NAME. Needs root, and Linux 6.5 with the module ublk_drv
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub(crate) ublk: bool,
    /// Serve the devices as disks of virtual machines (vhost-user-blk), each at a socket
    /// `DIR/NAME.sock`. DIR is made if it is not there. Who may connect: --socket-mode
    #[arg(long, value_name = "DIR")]
    pub(crate) vhost_user: Option<PathBuf>,
    /// Memory of virtual machines that their front ends may have the daemon map, all together: at
    /// least twice that of all guests, as a front end may give its memory anew while the old one is
    /// in use. One front end may have half of it. By default twice the machine's memory
    #[arg(long, value_name = "SIZE")]
    pub(crate) vhost_memory: Option<String>,
    /// Let TCP addresses be other than loopback. There is no password, and encryption only with
    /// --nbd-tls-certs. Not needed for NBD where clients must have a certificate
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub(crate) allow_remote: bool,
    /// Cores that devices may use, 1 to 16: compressed RAM disks (zram) divide their pages among
    /// all of them; all other devices are on the first. NBD connections and queues of virtual
    /// machines to these, and to mappings of files and disks, are spread over all. By default 1
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<u32>,
    /// How long a core looks for requests before it sleeps, 0 to 1ms: a client that sends one
    /// request at a time then does not wait until the thread is awake, which takes 5 to 50 us. It
    /// costs processor time, and only while requests follow each other within that time. By
    /// default `auto`: three times what a sleep costs on this machine, which is measured, and at
    /// most 50us: as much processor time as sleeping. 0: not at all
    #[arg(long, value_name = "TIME")]
    pub(crate) busy_poll: Option<String>,
    /// Memory that all devices together may use: the maps of write caches (32 bytes a block, more
    /// while they are opened), the tables of compressed RAM disks, page caches (their option
    /// `memory`) and `mem:SIZE` (its whole size). A device that would exceed it is refused. By
    /// default half of the machine's memory, or of the control group's limit
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Permissions of the NBD and vhost-user sockets, octal: 0600 to 0666 with read and write only.
    /// By default 0600: the daemon's user. The control socket is always the daemon's user's. When
    /// others may connect, RUN_DIR gets the search permission for all
    #[arg(long, value_name = "MODE")]
    pub(crate) socket_mode: Option<String>,
    /// Group of these sockets, a name or a number; mode 0660 unless --socket-mode says otherwise
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// The device that is the export with the empty name
    #[arg(long, value_name = "NAME")]
    pub(crate) default_export: Option<String>,
    /// How long an orderly end may take: 1s to 1h. By default 60s
    #[arg(long, value_name = "TIME")]
    pub(crate) shutdown_timeout: Option<String>,
    /// Devices of the file: they go to [`Config::devices`] when it is read.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) device: Vec<Device>,
}

fn is_off(flag: &bool) -> bool {
    !flag
}

/// A device as the file has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) name: Spanned<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) table: Option<Spanned<String>>,
    pub(crate) force: Option<String>,
    #[serde(default, skip_serializing_if = "is_off")]
    pub(crate) zram: bool,
    #[serde(default, skip_serializing_if = "is_off")]
    pub(crate) optional: bool,
    #[serde(default, skip_serializing_if = "is_off")]
    pub(crate) ublk: bool,
    pub(crate) readonly: Option<bool>,
    pub(crate) doors: Option<Vec<String>>,
    /// In the order of the file.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub(crate) attributes: toml::Table,
}

/// A configuration that has been read and checked.
#[derive(Debug, Default)]
pub struct Config {
    /// The file that it was read from, if it was.
    pub(crate) file: Option<Source>,
    pub(crate) serve: ServeArgs,
    pub(crate) devices: Vec<DeviceConfig>,
}

/// Where a configuration was read from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The file's options, without those of the command line.
    pub(crate) options: ServeArgs,
}

/// A device to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceConfig {
    /// `FILE: line N`: where messages about it point. Empty for one that is only written.
    pub(crate) place: String,
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    /// With paths made absolute. Without, it is a compressed RAM disk that has no size yet.
    pub(crate) table: Option<String>,
    /// The token of an earlier refusal of the table.
    pub(crate) force: Option<String>,
    /// Whether the daemon starts without it when it can't be created.
    pub(crate) optional: bool,
    /// Whether it is a block device of the kernel, too.
    pub(crate) ublk: bool,
    /// Attributes to set once it is created, with their values, in this order.
    pub(crate) attributes: Vec<(String, String)>,
}

impl ServeArgs {
    /// The options that are folders.
    pub(crate) fn dirs(&mut self) -> [&mut Option<PathBuf>; 3] {
        [&mut self.nbd_tls_certs, &mut self.fuse, &mut self.vhost_user]
    }
}

impl Config {
    /// Reads and checks `file`.
    pub fn read(file: &Path) -> Result<Config, Failure> {
        let shown = file.display();
        let text =
            std::fs::read_to_string(file).map_err(|e| io_failure(&e, format!("config {shown}")))?;
        let path =
            std::path::absolute(file).map_err(|e| io_failure(&e, format!("config {shown}")))?;
        let base = path.parent().map(PathBuf::from).unwrap_or_default();
        let config = parse(&text, &shown.to_string(), &base)?;
        let file = Some(Source { path, options: config.serve.clone() });
        Ok(Config { file, ..config })
    }

    /// Lays options of the command line over those of the file.
    #[must_use]
    pub fn with_options(mut self, given: ServeArgs) -> Config {
        let file = self.serve;
        self.serve = ServeArgs {
            nbd: if given.nbd.is_empty() { file.nbd } else { given.nbd },
            nbd_tls_certs: given.nbd_tls_certs.or(file.nbd_tls_certs),
            http: given.http.or(file.http),
            metrics: given.metrics.or(file.metrics),
            fuse: given.fuse.or(file.fuse),
            ublk: given.ublk || file.ublk,
            vhost_user: given.vhost_user.or(file.vhost_user),
            vhost_memory: given.vhost_memory.or(file.vhost_memory),
            allow_remote: given.allow_remote || file.allow_remote,
            cores: given.cores.or(file.cores),
            busy_poll: given.busy_poll.or(file.busy_poll),
            memory: given.memory.or(file.memory),
            socket_mode: given.socket_mode.or(file.socket_mode),
            socket_group: given.socket_group.or(file.socket_group),
            default_export: given.default_export.or(file.default_export),
            shutdown_timeout: given.shutdown_timeout.or(file.shutdown_timeout),
            device: file.device,
        };
        self
    }
}

/// Where the lines of a text begin: a file may have tens of thousands of devices.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn new(text: &str) -> LineStarts {
        let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        LineStarts(std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect())
    }

    /// The line of a byte, from 1.
    fn line_of(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at)
    }
}

fn parse(text: &str, shown: &str, base: &Path) -> Result<Config, Failure> {
    let lines = LineStarts::new(text);
    let line_of = |at: usize| lines.line_of(at);
    let invalid = |message| Failure::new(ErrorKind::Invalid, message);
    let mut serve: ServeArgs = toml::from_str(text).map_err(|e| {
        let place = e.span().map(|s| format!(": line {}", line_of(s.start))).unwrap_or_default();
        let said = e.message().replace('\n', ", ");
        invalid(format!("config {shown}{place}: {said}"))
    })?;
    let mut devices: Vec<DeviceConfig> = Vec::new();
    let mut places: BTreeMap<String, String> = BTreeMap::new();
    for d in std::mem::take(&mut serve.device) {
        let place = format!("config {shown}: line {}", line_of(d.name.span().start));
        let name = d.name.into_inner();
        if let Some(first) = places.insert(name.clone(), place.clone()) {
            let message = format!("{place}: device {name}: the name is taken ({first})");
            return Err(invalid(message));
        }
        let table = match (d.table, d.zram) {
            (Some(table), false) => Some(with_absolute_paths(table.get_ref().trim_end(), base)),
            (None, true) => None,
            (Some(_), true) | (None, false) => {
                let wanted = "either `table` or `zram = true` is needed";
                return Err(invalid(format!("{place}: device {name}: {wanted}")));
            }
        };
        let attributes = d.attributes.into_iter().map(|(attribute, value)| {
            let text = attribute_text(&value).ok_or_else(|| {
                let allowed = "a string, a whole number, true or false is allowed";
                invalid(format!("{place}: device {name}: attribute {attribute}: {allowed}"))
            });
            text.map(|text| (attribute, text))
        });
        let mut attributes = attributes.collect::<Result<Vec<_>, Failure>>()?;
        // Before the others: no client may write, or see the device, while those are set.
        if let Some(names) = d.doors {
            let doors = doors_word(&names).ok_or_else(|| {
                let allowed = "a list of \"nbd\", \"fuse\", \"vhost-user\" and \"ublk\" is \
                               allowed, empty for none";
                invalid(format!("{place}: device {name}: doors: {allowed}"))
            })?;
            attributes.insert(0, ("doors".into(), doors.to_string()));
        }
        if let Some(readonly) = d.readonly {
            attributes.insert(0, ("ro".into(), u8::from(readonly).to_string()));
        }
        let (uuid, force, optional, ublk) = (d.uuid, d.force, d.optional, d.ublk);
        devices.push(DeviceConfig { place, name, uuid, table, force, optional, ublk, attributes });
    }
    // As paths in tables: relative to the file.
    for dir in serve.dirs() {
        *dir = dir.take().map(|dir| base.join(dir));
    }
    Ok(Config { file: None, serve, devices })
}

impl DeviceConfig {
    /// Whether both make the same device, at any place in the file.
    pub(crate) fn is_same_device(&self, other: &DeviceConfig) -> bool {
        let made_of =
            |d: &DeviceConfig| (d.uuid.clone(), d.table.clone(), d.ublk, d.attributes.clone());
        made_of(self) == made_of(other)
    }
}

/// `failure` with the device's name before it, once.
pub(crate) fn of_device(name: &str, mut failure: Failure) -> Failure {
    if let Some(rest) = failure.message.strip_prefix(&format!("{name}: ")) {
        failure.message = rest.into();
    }
    failure.within(format!("device {name}"))
}

/// What a list of doors means as the attribute `doors`. None for one that no daemon has.
fn doors_word(names: &[String]) -> Option<Doors> {
    let has = |door: &str| names.iter().any(|name| name == door);
    let is_known = |name: &String| matches!(&**name, "nbd" | "fuse" | "vhost-user" | "ublk");
    let known = names.iter().all(is_known);
    known.then(|| Doors::of(has("nbd"), has("fuse"), has("vhost-user"), has("ublk")))
}

/// The value as `millpond set` takes it. None for what no attribute has.
fn attribute_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(u8::from(*flag).to_string()),
        toml::Value::Float(_)
        | toml::Value::Datetime(_)
        | toml::Value::Array(_)
        | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, Failure> {
        parse(text, "pond.toml", Path::new("/etc"))
    }

    #[test]
    fn lines_are_those_that_counting_finds() {
        for text in ["", "a", "\n", "a\nbc\n\nd", "\n\n", "ä\nö"] {
            let lines = LineStarts::new(text);
            for at in 0..=text.len() {
                let counted = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
                assert_eq!(lines.line_of(at), counted, "{text:?} at {at}");
            }
        }
    }

    #[test]
    fn devices_keep_the_order_of_the_file_and_their_lines() {
        let config = read(
            "nbd = ['127.0.0.1:10809']\n\n[[device]]\nname = 'b'\ntable = '0 8 zero'\n\n\
             [[device]]\nname = 'a'\nuuid = 'u'\n\
             table = '''\n0 8 linear b 0\n8 8 linear ./x 0\n'''",
        )
        .unwrap();
        assert_eq!(config.serve.nbd, ["127.0.0.1:10809"]);
        let names: Vec<&str> = config.devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(config.devices[1].place, "config pond.toml: line 8");
        let table = config.devices[1].table.as_deref();
        assert_eq!(table, Some("0 8 linear b 0\n8 8 linear /etc/x 0"));
        let config = read("[[device]]\nname = 'z'\nzram = true").unwrap();
        assert_eq!(config.devices[0].table, None);
    }

    #[test]
    fn attributes_keep_the_order_of_the_file() {
        let config = read(
            "[[device]]\nname = 'z'\nzram = true\noptional = true\n[device.attributes]\n\
             comp_algorithm = 'zstd'\nmem_limit = 4096\nuse_dedup = true\ndisksize = '1G'\n\
             [[device]]\nname = 'a'\ntable = '0 8 zero'",
        )
        .unwrap();
        let pairs = [
            ("comp_algorithm", "zstd"),
            ("mem_limit", "4096"),
            ("use_dedup", "1"),
            ("disksize", "1G"),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(config.devices[0].attributes, pairs);
        assert!(config.devices[0].optional);
        assert!(!config.devices[1].optional && config.devices[1].attributes.is_empty());
    }

    #[test]
    fn clients_rights_are_set_before_other_attributes() {
        for (keys, wanted) in [
            ("readonly = true", &[("ro", "1")][..]),
            ("doors = []\nattributes = { x = 1 }", &[("doors", "none"), ("x", "1")]),
            ("doors = ['nbd']\nreadonly = false", &[("ro", "0"), ("doors", "nbd")]),
            ("doors = ['fuse', 'nbd']", &[("doors", "nbd,fuse")]),
            ("doors = ['vhost-user', 'fuse', 'nbd']", &[("doors", "nbd,fuse,vhost-user")]),
            ("doors = ['ublk', 'vhost-user', 'fuse', 'nbd']", &[("doors", "all")]),
        ] {
            let text = format!("[[device]]\nname = 'a'\ntable = '0 8 zero'\n{keys}");
            let config = read(&text).unwrap();
            let attributes = config.devices[0].attributes.iter();
            let found: Vec<_> = attributes.map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!(found, wanted, "{keys}");
        }
    }

    #[test]
    fn errors_name_file_line_and_what_is_allowed() {
        for (text, parts) in [
            (
                "[[device]]\nname = 'a'\ntable = ''\nattributes = { x = 1.5 }",
                ["line 2: device a: attribute x: ", "a string, a whole number"],
            ),
            ("nbd = [", ["pond.toml: line 1", ""]),
            ("\ncolour = 1", ["line 2: unknown field `colour`", "default_export"]),
            ("[[device]]\nname = 'a'", ["line 2: device a: ", "`table` or `zram = true`"]),
            ("[[device]]\nname = 'a'\ntable = ''\nzram = true", ["line 2: ", "either `table` or"]),
            (
                "[[device]]\nname = 'a'\ntable = ''\ndoors = ['nfs']",
                ["line 2: device a: doors: ", "\"vhost-user\" and \"ublk\""],
            ),
            ("[[device]]\nname = 'a'\ntable = 7", ["line 3", "expected a string"]),
            (
                "[[device]]\nname='a'\ntable=''\n[[device]]\nname='a'\ntable=''",
                ["line 5: device a: the name is taken", "line 2"],
            ),
        ] {
            let e = read(text).unwrap_err();
            assert!(parts.iter().all(|p| e.message.contains(p)), "{text:?}: {e}");
            assert_eq!(e.kind(), Some(ErrorKind::Invalid));
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let given = ServeArgs { http: Some("unix:/a".into()), ..ServeArgs::default() };
        let file = "nbd = ['unix:/n']\nhttp = 'unix:/b'\nfuse = 'pond'";
        let config = read(file).unwrap().with_options(given);
        assert_eq!(config.serve.http.as_deref(), Some("unix:/a"));
        assert_eq!(config.serve.fuse.as_deref(), Some(Path::new("/etc/pond")));
        assert_eq!(config.serve.nbd, ["unix:/n"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let e = Config::read(Path::new("/nonexistent/pond.toml")).unwrap_err();
        assert_eq!(e.kind(), Some(ErrorKind::NoFile));
        assert!(e.message.starts_with("config /nonexistent/pond.toml: "), "{e}");
    }
}
