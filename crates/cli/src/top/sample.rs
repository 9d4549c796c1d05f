// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the API returns about all devices and clients at one time.
use control::attr::DRAIN_STATE;
use control::{Failure, api, paths};
use tokio::time::Instant;

use crate::client::Client;
use crate::clients;
use crate::requests::{self, unless_missing};
use crate::show::{self, Summary};

/// All figures of one time.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) daemon: api::Version,
    pub(super) devices: Vec<DeviceSample>,
    pub(super) clients: Vec<api::Client>,
}

/// Figures of a device.
#[derive(Debug, Default)]
pub(super) struct DeviceSample {
    pub(super) summary: Summary,
    /// `running done=BLOCKS total=BLOCKS ...`, or `idle`.
    pub(super) drain_state: Option<String>,
    /// Present while the device counts its requests.
    pub(super) stat: Option<Stat>,
}

/// What a device counts, reads and writes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// Time that requests took, in milliseconds.
    pub(super) busy_ms: u64,
}

impl Stat {
    /// Of the 17 numbers of sysfs.
    pub(super) fn parse(text: &str) -> Option<Stat> {
        let numbers: Vec<u64> =
            text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, ..] =
            numbers.as_slice()
        else {
            return None;
        };
        Some(Stat {
            requests: reads + writes,
            read_bytes: read_sectors * 512,
            written_bytes: written_sectors * 512,
            busy_ms: read_ms + write_ms,
        })
    }
}

impl Sample {
    /// Asks the daemon.
    pub(super) async fn take(client: &Client) -> Result<Sample, Failure> {
        let daemon = requests::version(client).await?;
        let clients = clients::list(client, None).await?;
        let mut devices = Vec::new();
        for device in requests::devices(client).await? {
            let name = &device.name;
            let taken = of_device(client, &device, &clients).await;
            devices.extend(unless_missing(name, taken)?);
        }
        Ok(Sample { at: Instant::now(), daemon, devices, clients })
    }
}

async fn of_device(
    client: &Client,
    device: &api::Device,
    clients: &[api::Client],
) -> Result<DeviceSample, Failure> {
    let path = paths::of_device(&device.name, "attributes");
    let attributes: api::Attributes = client.get(&path).await?;
    let text = |name: &str| attributes.get(name).map(ToString::to_string);
    let counts = text("queue/iostats").as_deref() == Some("1");
    let stat = text("stat").filter(|_| counts).and_then(|text| Stat::parse(&text));
    let drain_state = text(DRAIN_STATE);
    let summary = show::summary(client, device, clients, &attributes).await?;
    Ok(DeviceSample { summary, drain_state, stat })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_the_sum_of_reads_and_writes() {
        let stat = Stat::parse("   10 0 16 5 20 0 8 15 0 20 20 0 0 0 0 2 1").unwrap();
        let want = Stat { requests: 30, read_bytes: 8192, written_bytes: 4096, busy_ms: 20 };
        assert_eq!(stat, want);
        assert_eq!(Stat::parse("1 2 3"), None);
    }
}
