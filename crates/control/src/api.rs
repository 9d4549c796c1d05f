// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies of requests and answers. Lengths and positions are sectors of 512 bytes unless the name
//! says otherwise.
use std::collections::BTreeMap;

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

/// `POST .../load`: the table for the inactive slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub table: String,
}

/// `POST .../suspend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Suspend {
    /// Do not make the targets commit first.
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

/// Answer to what changes a device: how it stands now, and what the operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub device: Device,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Whether a device takes I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    Active,
    Suspended,
}

/// A mapped device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    pub state: State,
    /// Whether a live table is there.
    pub live: bool,
    /// Whether a table waits in the inactive slot.
    pub inactive: bool,
    pub open_count: u64,
    pub event_nr: u64,
    pub minor: u64,
    pub targets: u64,
    pub size_sectors: u64,
}

/// One line of a live table: with its arguments (`table`) or its state (`status`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub start: u64,
    pub length: u64,
    pub target: String,
    pub text: String,
}

/// What a device's live table is built on, by the names the table uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deps {
    pub devices: Vec<String>,
}

/// A target type that tables may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetType {
    pub name: String,
    pub version: [u32; 3],
}

/// `GET /v1/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
    pub pid: u32,
    pub cores: u32,
    /// Where NBD clients connect: `unix:PATH` or `HOST:PORT`.
    pub nbd: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_export: Option<String>,
}

/// One attribute: answer to `GET`, body of `PUT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    pub value: String,
}

/// All attributes of a device.
pub type Attributes = BTreeMap<String, String>;

/// `GET .../wait`: the event number that ended the waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub event_nr: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_field_is_refused_and_the_allowed_ones_are_named() {
        let wrong = r#"{"name":"wc","tabel":"0 8 zero"}"#;
        let e = serde_json::from_str::<Create>(wrong).unwrap_err().to_string();
        assert!(e.contains("`tabel`") && e.contains("`table`"), "{e}");
    }

    #[test]
    fn state_is_written_as_dmsetup_prints_it() {
        assert_eq!(serde_json::to_string(&State::Suspended).unwrap(), "\"SUSPENDED\"");
    }
}
