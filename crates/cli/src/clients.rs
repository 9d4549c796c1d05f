// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond clients` and `millpond disconnect`: who has which device open.
use block::{ErrorKind, size_text};
use clap::Args;
use control::{Failure, api, paths};
use host::{Listing, print};

use crate::client::Client;
use crate::columns::{self, duration};

/// List the clients: who has which device open, and what they do
///
/// A client is a connection to the NBD server, an open file of the FUSE export, a virtual machine,
/// or a block device of the kernel. Those of a file have no figures. A tool that makes several
/// connections has a row for each; all that use a block device are one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond clients
  millpond clients wc
  millpond clients -o json")]
pub struct ClientsArgs {
    /// Only clients of this device
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// End a client's connection after its requests in flight are answered
///
/// No more requests are taken from it. What the daemon has acknowledged stays as durable as it was.
/// Waits for the end, 35 seconds at most. A client may connect again; to keep it away, `suspend`
/// or `remove` the device. Clients of the FUSE export are refused: only the process that opened a
/// file can close it. So are block devices of the kernel: `remove` and the attribute `doors` take
/// them away.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond disconnect nbd7
  millpond disconnect --device wc")]
pub struct DisconnectArgs {
    /// The clients, as `millpond clients` prints them
    #[arg(required_unless_present = "device", conflicts_with = "device", value_name = "CLIENT")]
    pub(crate) clients: Vec<String>,
    /// All clients of this device
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
}

/// All clients, or those of one device.
pub(crate) async fn list(
    client: &Client,
    device: Option<&str>,
) -> Result<Vec<api::Client>, Failure> {
    let mut all: Vec<api::Client> = client.get(paths::CLIENTS).await?;
    if let Some(name) = device {
        let device: api::Device = client.get(&paths::device(name)).await?;
        all.retain(|client| client.device.as_ref() == Some(&device.name));
    }
    Ok(all)
}

/// A line for each client, under a head.
pub(crate) fn table(clients: &[api::Client]) -> String {
    let head = ["CLIENT", "DEVICE", "PEER", "CONNECTED", "IN FLIGHT", "READ", "WRITTEN", "ERRORS"];
    let number = |figure: Option<u64>| figure.map_or_else(|| "-".into(), |n| n.to_string());
    let size = |figure: Option<u64>| figure.map_or_else(|| "-".into(), size_text);
    let row = |client: &api::Client| {
        let ending = if client.is_ending { " (ending)" } else { "" };
        [
            client.id.clone(),
            client.device.clone().unwrap_or_else(|| "-".into()),
            client.peer.clone(),
            format!("{}{ending}", duration(client.connected_seconds)),
            number(client.requests_in_flight),
            size(client.read_bytes),
            size(client.written_bytes),
            number(client.errors),
        ]
    };
    columns::table(head, clients.iter().map(row), "No clients\n")
}

/// Disconnects what is named, and prints the ids.
pub(crate) async fn disconnect(client: &Client, a: &DisconnectArgs) -> Result<(), Failure> {
    let paths = match &a.device {
        Some(name) => vec![paths::clients_of(name)],
        None => a.clients.iter().map(|id| paths::client(id)).collect(),
    };
    for path in paths {
        let ended: api::Disconnected = client.delete(&path).await?;
        for id in &ended.clients {
            print(&format!("{id}\n"))?;
        }
        if let (Some(name), []) = (&a.device, ended.clients.as_slice()) {
            let text = format!("{name}: no client has it open");
            return Err(Failure::new(ErrorKind::NotFound, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_row_and_what_is_not_counted_a_dash() {
        let file = api::Client {
            id: "fuse1".into(),
            device: Some("wc".into()),
            peer: "pid 7 (uid 0)".into(),
            ..api::Client::default()
        };
        let connection = api::Client {
            id: "nbd2".into(),
            peer: "127.0.0.1:5".into(),
            connected_seconds: 65,
            is_ending: true,
            requests_in_flight: Some(3),
            read_bytes: Some(4096),
            written_bytes: Some(0),
            errors: Some(1),
            ..api::Client::default()
        };
        let want = "\
CLIENT  DEVICE  PEER           CONNECTED       IN FLIGHT  READ     WRITTEN  ERRORS
fuse1   wc      pid 7 (uid 0)  0s              -          -        -        -
nbd2    -       127.0.0.1:5    1m05s (ending)  3          4.0 KiB  0 bytes  1
";
        assert_eq!(table(&[file, connection]), want);
        assert_eq!(table(&[]), "No clients\n");
    }
}
