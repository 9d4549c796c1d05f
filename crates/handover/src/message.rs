// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages.
use serde::{Deserialize, Serialize};

/// The oldest version of the hand-over that this program understands.
pub const OLDEST: u32 = 1;
/// The newest one. No other follows: what comes has a name, and is used with those who know it.
pub const NEWEST: u32 = 2;
/// The names of what this program knows beyond version 1. Version 2 has brought this one.
const KNOWN: [&str; 1] = ["vhost"];
/// The first version in which front ends of vhost-user cross.
pub const WITH_VHOST: u32 = 2;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub enum Message {
    /// The first one, of each side.
    Greeting(Greeting),
    /// The lock of the run directory; with its descriptor.
    RunDirectory,
    /// A listening socket; with its descriptor.
    Listener(Listener),
    /// A file or block device below a table, with its lock or claim; with its descriptor.
    Leaf(Leaf),
    /// A device, in an order in which they can be created.
    Device(Device),
    /// A client of the NBD server; with its socket, and with the bytes that it has sent and that
    /// are no whole request.
    Session(Session),
    /// The next client of a device must hear that acknowledged writes may be lost.
    LostWrites {
        /// The device.
        device: String,
    },
    /// A front end of vhost-user; with its socket, and with messages of its protocol that set what
    /// it has set. The last one may be half: its rest comes on the socket. Since version 2.
    VhostSession(VhostSession),
    /// The next descriptor of these messages. Since version 2.
    VhostDescriptor,
    /// All has been sent: open the devices.
    Open,
    /// The devices are open.
    Opened,
    /// They could not be opened: the old daemon goes on.
    Failed {
        /// Why.
        cause: String,
    },
    /// The successor serves from now on.
    Commit,
}

/// Who speaks, and what it understands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The oldest version of the hand-over that it understands.
    pub oldest: u32,
    /// The newest one.
    pub newest: u32,
    /// The version of the program.
    pub program: String,
    /// Its process.
    pub pid: u32,
    /// Names of what it knows beyond its oldest version.
    #[serde(default)]
    pub knows: Vec<String>,
    /// Names of what the other side must know: else that refuses, and nothing has stopped.
    #[serde(default)]
    pub needs: Vec<String>,
}

impl Greeting {
    /// Of this program.
    pub fn new(program: &str) -> Greeting {
        Greeting {
            oldest: OLDEST,
            newest: NEWEST,
            program: program.to_owned(),
            pid: std::process::id(),
            knows: KNOWN.map(str::to_owned).to_vec(),
            needs: Vec::new(),
        }
    }

    /// The newest version that both understand.
    pub fn common_version(&self, other: &Greeting) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// What the other side needs and this one does not know, in words; `None` if there is nothing.
    pub fn missing(&self, other: &Greeting) -> Option<String> {
        let unknown = other.needs.iter().filter(|name| !self.knows.contains(name));
        let unknown: Vec<String> = unknown.map(|name| format!("`{name}`")).collect();
        (!unknown.is_empty()).then(|| unknown.join(", "))
    }
}

/// What is served at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerRole {
    /// NBD.
    Nbd,
    /// The control API.
    Control,
    /// Metrics.
    Metrics,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// What is served there.
    pub role: ListenerRole,
    /// Its name in the store of systemd, if it is kept there.
    #[serde(default)]
    pub stored: Option<String>,
    /// Whether a socket unit of systemd has opened it.
    #[serde(default)]
    pub of_unit: bool,
}

/// A file or block device below a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// As tables name it.
    pub name: String,
}

/// A mapped device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its UUID, if it has one.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Its minor number.
    pub minor: u32,
    /// Its live table; none of a compressed RAM disk that has no size yet.
    #[serde(default)]
    pub table: Option<String>,
    /// The token with which its table was loaded, if it was loaded with one.
    #[serde(default)]
    pub force: Option<String>,
    /// Attributes that are not in the table and differ from their defaults.
    #[serde(default)]
    pub attributes: Vec<(String, String)>,
    /// Whether it is a block device of the kernel, too.
    #[serde(default)]
    pub ublk: bool,
    /// Whether a guest (vhost-user) has used it, and what that was told is still there: such a
    /// guest may go on.
    #[serde(default)]
    pub used_by_guest: bool,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// On this machine.
    Local,
    /// Elsewhere.
    Network,
}

/// A WRITE that is refused, and whose data are still coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedWrite {
    /// Identifies it in its reply.
    pub cookie: u64,
    /// What it is answered with: an error of the protocol.
    pub error: u32,
    /// Bytes of its data that have not come.
    pub left: u32,
}

/// A client of NBD: what it and the server have agreed on, and what is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its number.
    pub id: u64,
    /// The device.
    pub device: String,
    /// Where the client is.
    pub peer: Peer,
    /// The flags of the export that the client has got.
    pub flags: u16,
    /// Whether replies are structured.
    #[serde(default)]
    pub structured: bool,
    /// Names of the contexts of block status that the client has chosen.
    #[serde(default)]
    pub contexts: Vec<String>,
    /// Size of the device that the client has got, sectors of 512 bytes.
    pub size_sectors: u64,
    /// Least size of a request that the client has got, bytes.
    pub block_bytes: u32,
    /// Size of the device now, sectors.
    pub present_size_sectors: u64,
    /// Whether writes are refused now.
    #[serde(default)]
    pub read_only: bool,
    /// A write whose data come before all else.
    #[serde(default)]
    pub refused: Option<RefusedWrite>,
    /// Whether acknowledged writes may be lost: the client's next FLUSH must fail.
    #[serde(default)]
    pub has_lost_writes: bool,
    /// Time since the client has connected, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
    /// Requests taken.
    #[serde(default)]
    pub requests: u64,
    /// Bytes sent to the client.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes received from it.
    #[serde(default)]
    pub write_bytes: u64,
    /// Requests answered with an error.
    #[serde(default)]
    pub errors: u64,
}

/// A front end of vhost-user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhostSession {
    /// Its number.
    pub id: u64,
    /// The device.
    pub device: String,
    /// Time since the front end has connected, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
    /// Requests answered.
    #[serde(default)]
    pub requests: u64,
    /// Bytes read.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes written.
    #[serde(default)]
    pub write_bytes: u64,
    /// Requests answered with an error.
    #[serde(default)]
    pub errors: u64,
}
