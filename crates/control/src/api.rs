// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies of requests and answers. Lengths and positions are sectors of 512 bytes unless the name
//! has another unit.
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Largest request body the daemon reads: a table of some ten thousand lines.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// `POST /v1/devices`: a new device. Without a table it is made suspended and empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The lowest free one without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// The token of an earlier refusal of this table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
    /// A compressed RAM disk that has no size yet, instead of a table.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zram: bool,
    /// Make it a block device of the kernel, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ublk: bool,
}

/// One of a device's two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableSlot {
    /// The table that serves requests.
    Live,
    /// The table that was loaded and waits for a resume.
    Inactive,
}

/// `POST .../load`: the table for the inactive slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub table: String,
    /// The token of an earlier refusal of this table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
}

/// `POST .../resume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resume {
    /// The token of an earlier refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
}

/// Answer to a removal: warnings for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Answer to `POST /v1/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// Blocks that are in memory alone, and what becomes of them: the daemon fails then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_memory_alone: Vec<String>,
    /// Only in an answer at the end (`wait=true`): what is not settled. None: the end is in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<Vec<String>>,
}

/// Answer to `POST /v1/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Names of the devices that were new in the file and were created.
    pub created: Vec<String>,
    /// What the file has differently, and was not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// New devices that could not be created: their place in the file, and the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// `POST /v1/upgrade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program of the successor: an absolute path. That of the daemon when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
    /// How long each step may take, as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Names of problems that are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub force: Vec<String>,
    /// Only report what would cross and what would not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Do nothing when the program is the one that runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_changed: bool,
}

/// What does not cross to a successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeProblem {
    /// The device or client.
    pub name: String,
    pub why: String,
    /// Whether `force` accepts that: with the token if there is one, else with the name.
    pub can_be_forced: bool,
    /// Stands for what would be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl UpgradeProblem {
    /// One that no token stands for.
    pub fn new(name: &str, why: String, can_be_forced: bool) -> UpgradeProblem {
        UpgradeProblem { name: name.to_owned(), why, can_be_forced, token: None }
    }

    /// Whether a word of `force` stands for it.
    pub fn is_named_by(&self, word: &str) -> bool {
        word == self.token.as_deref().unwrap_or(&self.name)
    }
}

/// Answer to `POST /v1/upgrade`: what has crossed to the successor, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Process and version of the daemon.
    pub pid: u32,
    pub version: String,
    /// The same of its successor; none of a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<Successor>,
    /// Whether the program of the successor differs from the one that runs.
    #[serde(default)]
    pub program_differs: bool,
    pub devices: u64,
    /// Clients of NBD and of vhost-user.
    pub sessions: u64,
    pub listeners: u64,
    /// What did not cross, or would not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<UpgradeProblem>,
}

/// The successor of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    pub pid: u32,
    pub version: String,
    /// How long no request was served.
    pub pause_ms: u64,
}

/// `POST .../replace-cache`: the cache device that takes the place of the old one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceCache {
    /// As a table names it.
    pub cache: String,
    /// Where the cache begins there.
    #[serde(default)]
    pub start_sector: u64,
}

/// Answer to `uncache` and `replace-cache`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recached {
    pub device: Device,
    /// The cache devices that are left: they hold nothing.
    pub freed: Vec<String>,
    /// The live table as it is now.
    pub table: Vec<Line>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `POST .../resize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// The size that the device gets; without, as much as the devices of its last line have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The token of an earlier refusal to shrink it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
    /// Its write caches take the space by which their cache devices have grown; the size of the
    /// device stays. Without the other fields.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cache: bool,
}

/// A write cache whose cache device may have grown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrownCache {
    /// The cache device.
    pub cache: String,
    /// Blocks that it has room for now.
    pub blocks: u64,
    /// The same before.
    pub blocks_before: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// Answer to `resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// As it is now.
    pub device: Device,
    /// Its size before.
    pub sectors_before: u64,
    /// The live table as it is now.
    pub table: Vec<Line>,
    /// With `cache`: its write caches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<GrownCache>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Answer to `GET /v1/config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedConfig {
    /// A configuration file with the devices as they are now.
    pub toml: String,
    /// What it can't have.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `POST .../suspend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Suspend {
    /// Accepted for compatibility with dmsetup: no target can return a request.
    pub noflush: bool,
}

/// `POST .../rename`: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// `POST .../message`: words for the target that holds `sector`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    #[serde(default)]
    pub sector: u64,
    pub words: Vec<String>,
}

/// Answer to a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub reply: String,
}

/// Answer to a change of a device: its state now, and warnings for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub device: Device,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Body without fields: `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A mapped device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    pub major: u32,
    pub minor: u32,
    pub size_sectors: u64,
    /// Whether its I/O waits.
    pub suspended: bool,
    pub read_only: bool,
    /// Whether it is removed when its last opener closes it.
    pub deferred_remove: bool,
    /// Whether there is a live table.
    pub live_table: bool,
    /// Whether a table waits for the next resume.
    pub inactive_table: bool,
    /// Exports and tables that have it open.
    pub open_count: u32,
    pub event_nr: u32,
    /// Lines of the live table.
    pub targets: usize,
    /// What keeps its engines from doing their work, each in one sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// What a FLUSH of its clients is worth, where something below it offers none. Not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<String>,
    /// The path of its block device of the kernel, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_device: Option<String>,
}

/// One line of a live table: with its arguments (`table`) or its state (`status`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub start: u64,
    pub length: u64,
    pub target: String,
    pub params: String,
}

/// A device below another device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// A mapped device's name, or the word that opens the leaf.
    pub name: String,
    /// Numbers of a mapped device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<(u32, u32)>,
}

/// A target type that tables may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetType {
    pub name: String,
    pub version: (u32, u32, u32),
}

/// A client that has a device open, or that is connecting: a connection of the NBD server, or an
/// open file of the FUSE export. What a door does not count is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// `nbd7`, `fuse3`, `vhost2`: no other client of the daemon has or had it. `ublk0`: the block
    /// device `/dev/ublkb0`.
    pub id: String,
    /// `nbd`, `fuse`, `ublk` or `vhost-user`.
    pub door: String,
    /// The device; absent during the handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `pid 4242 (uid 0)`, an address and a port, or the path of a block device.
    pub peer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Time since it connected.
    pub connected_seconds: u64,
    /// Whether it ends when its requests in flight are answered.
    #[serde(default)]
    pub is_ending: bool,
    /// The core that serves it; absent when several do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u16>,
    /// Of a virtual machine: the cores that serve its queues, each with how many.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queues_by_core: BTreeMap<u16, u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_in_flight: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// Requests that were answered with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<u64>,
}

/// Answer to `DELETE /v1/clients/ID` and `DELETE /v1/clients?device=NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disconnected {
    /// Ids of the clients that were disconnected.
    pub clients: Vec<String>,
}

/// `GET /v1/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
    pub pid: u32,
    /// Where that number is one: `pid:[4026531836]`. Another in a container than outside of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    pub cores: u32,
    /// Where NBD clients connect: `unix:PATH` or `HOST:PORT`.
    pub nbd: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_export: Option<String>,
}

/// The value of an attribute: a number where it is one, else text. A request may give either.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Number(u64),
    Signed(i64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(n) => n.fmt(f),
            Value::Signed(n) => n.fmt(f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

impl From<block::value::Value> for Value {
    fn from(value: block::value::Value) -> Value {
        match value {
            block::value::Value::Number(n) => Value::Number(n),
            block::value::Value::Signed(n) => Value::Signed(n),
            block::value::Value::Flag(on) => Value::Number(on.into()),
            block::value::Value::Text(text) => Value::Text(text),
        }
    }
}

/// One attribute: answer to `GET`, body of `PUT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    pub value: Value,
}

/// All attributes of a device.
pub type Attributes = BTreeMap<String, Value>;

/// `GET .../wait`: the event number that ended the waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub event_nr: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_numbers_and_are_taken_as_text_too() {
        let printed = |value: Value| serde_json::to_string(&Attribute { value }).unwrap();
        let flag = block::value::Value::Flag(true);
        assert_eq!(printed(flag.into()), r#"{"value":1}"#);
        assert_eq!(printed(Value::Number(u64::MAX)), format!("{{\"value\":{}}}", u64::MAX));
        assert_eq!(printed(Value::Text("1 2".into())), r#"{"value":"1 2"}"#);
        for (json, text) in [("7", "7"), ("-5", "-5"), ("\"70\"", "70"), ("\"\"", "")] {
            assert_eq!(serde_json::from_str::<Value>(json).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_misspelt_field_is_refused_and_the_allowed_ones_are_named() {
        let wrong = r#"{"name":"wc","tabel":"0 8 zero"}"#;
        let e = serde_json::from_str::<Create>(wrong).unwrap_err().to_string();
        assert!(e.contains("`tabel`") && e.contains("`table`"), "{e}");
    }
}
