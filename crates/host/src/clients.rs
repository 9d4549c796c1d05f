// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients of the doors: who has which device open, and how an operator disconnects one.
//!
//! Invariants
//! - HO-C1 A disconnected client loses no acknowledged data: its requests in flight are answered
//!   before its connection ends.
use std::collections::BTreeMap;

use block::{Error, ErrorKind, Nanos};
use control::{Failure, api};
use nbd::Connection;
use reactor::{now, sleep};
use uring::RemoteEnd;

use crate::engine::Engine;
use crate::fuse_host::{FileClient, file_clients};
use crate::ublk_door::DiskClient;
use crate::vhost_user::{self, VhostClient};

/// How long a request for a disconnection waits for its end: nbd's own bound for clients that do
/// not receive their replies, and a little.
const END_TIME: Nanos = Nanos::from_secs(35);
/// How often it looks.
const END_POLL: Nanos = Nanos::from_millis(5);

/// Prefix of the ids of NBD connections.
const NBD: &str = "nbd";
/// Prefix of the ids of open files.
const FUSE: &str = "fuse";

/// Prefix of the ids of block devices of the kernel, before the N of `/dev/ublkbN`.
const UBLK: &str = "ublk";

/// Prefix of the ids of virtual machines.
const VHOST_USER: &str = "vhost";
/// Name of their door.
const VHOST_USER_DOOR: &str = "vhost-user";

/// Whose connections are to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientChoice {
    Id(String),
    Device(String),
}

fn seconds(age: Nanos) -> u64 {
    age.0 / Nanos::from_secs(1).0
}

fn process(pid: u32, uid: u32) -> String {
    format!("pid {pid} (uid {uid})")
}

fn of_file(file: FileClient) -> api::Client {
    api::Client {
        id: format!("{FUSE}{}", file.number),
        door: FUSE.into(),
        device: Some(file.device),
        peer: process(file.by.pid, file.by.uid),
        pid: Some(file.by.pid),
        uid: Some(file.by.uid),
        connected_seconds: seconds(file.age),
        ..api::Client::default()
    }
}

fn of_disk(disk: DiskClient) -> api::Client {
    api::Client {
        id: format!("{UBLK}{}", disk.number),
        door: UBLK.into(),
        device: Some(disk.device),
        peer: ublk::disk_path(disk.number).display().to_string(),
        connected_seconds: seconds(disk.age),
        core: disk.core.map(|core| core.0),
        requests_in_flight: Some(disk.in_flight),
        requests: Some(disk.stats.requests),
        read_bytes: Some(disk.stats.read_bytes),
        written_bytes: Some(disk.stats.write_bytes),
        errors: Some(disk.stats.errors),
        ..api::Client::default()
    }
}

fn of_virtual_machine(client: &VhostClient) -> api::Client {
    let stats = client.stats();
    let queues_by_core = client.queues_by_core();
    let core = queues_by_core.keys().next().copied().filter(|_| queues_by_core.len() == 1);
    api::Client {
        id: format!("{VHOST_USER}{}", client.number),
        door: VHOST_USER_DOOR.into(),
        device: Some(client.device()),
        peer: client.by.map_or_else(|| "gone".to_owned(), |(pid, uid)| process(pid, uid)),
        pid: client.by.map(|(pid, _)| pid),
        uid: client.by.map(|(_, uid)| uid),
        connected_seconds: seconds(client.age()),
        is_ending: client.is_ending(),
        core,
        queues_by_core,
        requests_in_flight: Some(client.in_flight()),
        requests: Some(stats.requests),
        read_bytes: Some(stats.read_bytes),
        written_bytes: Some(stats.write_bytes),
        errors: Some(stats.errors),
    }
}

impl Engine {
    /// The clients of all doors, in the order in which they connected to each.
    pub(crate) fn clients(&self) -> Vec<api::Client> {
        let connections = self.server.connections().into_iter().map(|c| self.of_connection(c));
        let files = file_clients().into_iter().map(of_file);
        let machines = vhost_user::clients();
        let machines = machines.iter().map(|client| of_virtual_machine(client));
        let disks = self.disk_clients().into_iter().map(of_disk);
        connections.chain(files).chain(disks).chain(machines).collect()
    }

    fn of_connection(&self, connection: Connection) -> api::Client {
        let (peer, pid, uid) = match self.remote_end(connection.file) {
            Some(RemoteEnd::Process { pid, uid }) => {
                let pid = pid.cast_unsigned();
                (process(pid, uid), Some(pid), Some(uid))
            }
            Some(RemoteEnd::Address(address)) => (address.to_string(), None, None),
            None => ("gone".to_owned(), None, None),
        };
        api::Client {
            id: format!("{NBD}{}", connection.id),
            door: NBD.into(),
            device: connection.export,
            peer,
            pid,
            uid,
            connected_seconds: seconds(connection.age),
            is_ending: connection.is_ending,
            core: Some(connection.core.0),
            queues_by_core: BTreeMap::new(),
            requests_in_flight: Some(connection.in_flight),
            requests: Some(connection.requests),
            read_bytes: Some(connection.read_bytes),
            written_bytes: Some(connection.write_bytes),
            errors: Some(connection.errors),
        }
    }

    /// Disconnects clients (HO-C1). Returns when the connections have ended, and fails with
    /// `EBUSY` when one has not in time; it ends later, when its last request is answered. The
    /// client may connect again.
    pub(crate) async fn disconnect(
        &self,
        choice: &ClientChoice,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Disconnected, Failure> {
        let mut chosen = self.clients();
        match choice {
            ClientChoice::Id(id) => chosen.retain(|client| client.id == *id),
            ClientChoice::Device(name) => {
                let name = self.dm.get(name)?.info().name;
                chosen.retain(|client| client.device.as_deref() == Some(&name));
            }
        }
        if let (ClientChoice::Id(id), []) = (choice, chosen.as_slice()) {
            let text =
                format!("{id}: no such client: `millpond clients` lists those that there are");
            return Err(Error::not_found(text).into());
        }
        if let Some(file) = chosen.iter().find(|client| client.door == FUSE) {
            let (id, peer) = (&file.id, &file.peer);
            let text = format!(
                "{id}: it is a file that {peer} has open, and only that process can close it; \
                 nothing was disconnected"
            );
            return Err(Failure::new(ErrorKind::NotSupported, text));
        }
        if let Some(disk) = chosen.iter().find(|client| client.door == UBLK) {
            let (id, peer, device) = (&disk.id, &disk.peer, disk.device.as_deref().unwrap_or(""));
            let text = format!(
                "{id}: it is the block device {peer}: `millpond remove {device}`, or its attribute \
                 `doors`, takes it away when nobody has it open; nothing was disconnected"
            );
            return Err(Failure::new(ErrorKind::NotSupported, text));
        }
        for client in &chosen {
            match (number_of(client, NBD), number_of(client, VHOST_USER), vhost_user::door()) {
                (Some(number), ..) => _ = self.server.disconnect(number),
                (None, Some(number), Some(door)) => _ = door.disconnect(number),
                (None, ..) => {}
            }
            tracing::info!(client = client.id, peer = client.peer, "client is disconnected");
        }
        let end = now() + END_TIME;
        for client in &chosen {
            while let Some(left) = self.clients().into_iter().find(|left| left.id == client.id) {
                if now() >= end || !is_wanted() {
                    let (id, requests) = (&client.id, left.requests_in_flight.unwrap_or(0));
                    return Err(Failure::new(
                        ErrorKind::Busy,
                        format!(
                            "{id}: {requests} requests in flight have not ended in time; it takes \
                             no more, and its connection ends after them"
                        ),
                    ));
                }
                sleep(END_POLL).await;
            }
        }
        Ok(api::Disconnected { clients: chosen.into_iter().map(|client| client.id).collect() })
    }
}

/// The number of a client of the door whose ids begin with `prefix`.
fn number_of(client: &api::Client, prefix: &str) -> Option<u64> {
    client.id.strip_prefix(prefix)?.parse().ok()
}
