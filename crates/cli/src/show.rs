// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond show`: devices in words and units that people read.
//!
//! ```text
//!   info, table, deps, attributes ─▶ Summary ─┬▶ a line a device, or a paragraph of one
//!                                             └▶ JSON: sizes in bytes
//! ```
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use block::size_text;
use clap::Args;
use control::{Failure, api, paths};
use host::Listing;
use serde::Serialize;
use tokio::time::Instant;

use crate::client::Client;
use crate::clients;
use crate::columns::{self, counted, duration};
use crate::rates::{ClientRates, Rates, client_rates};
use crate::requests::{self, Lines, unless_missing};

/// Show devices: size, state, what is dirty, errors
///
/// Without NAME a line for each device. With it also the rates of its NBD clients, if there are
/// some, over half a second. `-o json` gives the same with sizes in bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond show
  millpond show wc
  millpond show wc -o json")]
pub struct ShowArgs {
    /// The device
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// For so long the clients of a device are watched. Chosen: nobody minds, and a client that works
/// sends requests meanwhile.
const RATES_TIME: Duration = Duration::from_millis(500);

/// A device as people ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    name: String,
    size_bytes: u64,
    /// `active`, `suspended`, or `no table`.
    state: &'static str,
    /// Clients and tables that have it open.
    open_count: u32,
    /// Clients of the doors among them.
    clients: usize,
    /// Rates of clients that count, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<ClientRates>,
    /// Target types of its table, each once.
    targets: Vec<String>,
    /// The devices below its table.
    devices: Vec<String>,
    /// Figures of its targets; which there are depends on the targets.
    figures: BTreeMap<&'static str, u64>,
    /// The last error, as the target reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Whether clients may not write.
    read_only: bool,
    /// What a FLUSH is worth, where something below offers none.
    #[serde(skip_serializing_if = "Option::is_none")]
    flush: Option<String>,
    /// What keeps its engines from doing their work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// The devices that are asked for.
pub(crate) async fn summaries(
    client: &Client,
    name: Option<&str>,
) -> Result<Vec<Summary>, Failure> {
    let devices = match name {
        Some(name) => vec![requests::device(client, name).await?],
        None => requests::devices(client).await?,
    };
    let connected = clients::list(client, None).await?;
    let mut all = Vec::new();
    for device in devices {
        let examined = examine(client, &device, &connected).await;
        all.extend(unless_missing(&device.name, examined)?);
    }
    if let (Some(name), Some(one)) = (name, all.first_mut()) {
        one.rates = rates(client, name).await?;
    }
    Ok(all)
}

/// The rates of the clients of a device; `None` if none of them counts.
async fn rates(client: &Client, name: &str) -> Result<Option<ClientRates>, Failure> {
    let before = clients::list(client, Some(name)).await?;
    if before.iter().all(|client| client.requests.is_none()) {
        return Ok(None);
    }
    let begun = Instant::now();
    tokio::time::sleep(RATES_TIME).await;
    let now = clients::list(client, Some(name)).await?;
    let rates = client_rates(&before, &now, begun.elapsed());
    Ok(Some(rates.into_values().sum::<Rates>().into()))
}

async fn examine(
    client: &Client,
    device: &api::Device,
    connected: &[api::Client],
) -> Result<Summary, Failure> {
    let path = paths::of_device(&device.name, "attributes");
    let attributes: api::Attributes = client.get(&path).await?;
    summary(client, device, connected, &attributes).await
}

/// A device with these attributes; `connected` are all clients.
pub(crate) async fn summary(
    client: &Client,
    device: &api::Device,
    connected: &[api::Client],
    attributes: &api::Attributes,
) -> Result<Summary, Failure> {
    let name = &device.name;
    let mut targets = Vec::new();
    for line in requests::lines(client, name, Lines::LiveTable, None).await? {
        if !targets.contains(&line.target) {
            targets.push(line.target);
        }
    }
    let deps = requests::deps(client, name).await?;
    let mut figures = BTreeMap::new();
    for target in &targets {
        match target.as_str() {
            "writecache" => figures.extend(of_write_cache(attributes)),
            "zram" => figures.extend(of_zram(attributes)),
            "objvol" => figures.extend(of_volume(attributes)),
            "buffered" => {
                for list in ["cache_stat", "errors"] {
                    let path = paths::attribute(name, list);
                    let text: api::Attribute = client.get(&path).await?;
                    figures.extend(of_page_cache(&text.value.to_string()));
                }
            }
            _ => {}
        }
    }
    let state = match (device.live_table, device.suspended) {
        (false, _) => "no table",
        (true, true) => "suspended",
        (true, false) => ACTIVE,
    };
    Ok(Summary {
        name: name.clone(),
        size_bytes: device.size_sectors * 512,
        state,
        open_count: device.open_count,
        rates: None,
        clients: connected.iter().filter(|c| c.device.as_ref() == Some(name)).count(),
        targets,
        // In the order of the table, the origin first.
        devices: deps.into_iter().rev().map(|dep| dep.name).collect(),
        figures,
        last_error: last_error(attributes),
        read_only: device.read_only,
        flush: device.flush.clone(),
        problems: device.problems.clone(),
    })
}

fn number(attributes: &api::Attributes, name: &str) -> Option<u64> {
    match attributes.get(name)? {
        api::Value::Number(number) => Some(*number),
        api::Value::Signed(_) | api::Value::Text(_) => None,
    }
}

fn last_error(attributes: &api::Attributes) -> Option<String> {
    let texts = ["writeback_error", "last_error"].map(|name| attributes.get(name));
    let mut texts = texts.into_iter().flatten().map(ToString::to_string);
    texts.find(|text| !text.is_empty() && text != "none")
}

fn of_write_cache(attributes: &api::Attributes) -> Vec<(&'static str, u64)> {
    let of = |name| number(attributes, name);
    let Some(block) = of("block_size") else { return Vec::new() };
    let blocks = |name| of(name).map(|blocks| blocks * block);
    let dirty = blocks("dirty_blocks").map(|dirty| dirty + blocks("zero_blocks").unwrap_or(0));
    let pairs = [
        ("cache_bytes", blocks("total_blocks")),
        ("dirty_bytes", dirty),
        ("clean_bytes", blocks("clean_blocks")),
        ("oldest_dirty_seconds", of("oldest_dirty_seconds")),
        ("unreadable_bytes", blocks("bad_blocks")),
        ("failing_bytes", blocks("failing_blocks")),
        ("written_back_bytes", of("origin_write_bytes")),
        ("writers_slowed_us", of("throttled_us")),
        ("origin_errors", of("writeback_errors")),
        ("cache_errors", of("cache_read_errors")),
        ("checksum_errors", of("checksum_errors")),
        ("admitted_bytes", blocks("read_admitted")),
    ];
    let pairs = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    pairs.chain(HITS_AND_CAUSES.into_iter().filter_map(|name| Some((name, of(name)?)))).collect()
}

/// Figures that have the name of their attribute.
const HITS_AND_CAUSES: [&str; 12] = [
    "reads",
    "read_hits",
    "writes",
    "write_hits",
    "read_hit_percent",
    "write_hit_percent",
    "read_refused_once",
    "read_refused_sequential",
    "read_refused_budget",
    "data_write_bytes",
    "admitted_write_bytes",
    "metadata_write_bytes",
];

fn of_volume(attributes: &api::Attributes) -> Vec<(&'static str, u64)> {
    let names = ["behind_bytes", "behind_seconds", "stored_bytes", "live_bytes"];
    names.into_iter().filter_map(|name| Some((name, number(attributes, name)?))).collect()
}

fn of_zram(attributes: &api::Attributes) -> Vec<(&'static str, u64)> {
    let field = |name: &str, nth: usize| -> Option<u64> {
        let text = attributes.get(name)?.to_string();
        text.split_ascii_whitespace().nth(nth)?.parse().ok()
    };
    let pairs = [
        ("data_bytes", field("mm_stat", 0)),
        ("compressed_bytes", field("mm_stat", 1)),
        ("memory_bytes", field("mm_stat", 2)),
        ("written_back_bytes", field("bd_stat", 0).map(|pages| pages * 4096)),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Of lines `name value`.
fn of_page_cache(lines: &str) -> Vec<(&'static str, u64)> {
    const FIGURES: [(&str, &str); 8] = [
        ("memory_limit_bytes", "memory_limit_bytes"),
        ("memory_used_bytes", "memory_used_bytes"),
        ("cached_bytes", "cached_bytes"),
        ("dirty_bytes", "dirty_bytes"),
        ("writeback_bytes", "writeback_bytes"),
        ("errors", "device_errors"),
        ("flush_errors", "flush_errors"),
        ("failing_bytes", "failing_bytes"),
    ];
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        let (_, figure) = FIGURES.into_iter().find(|(known, _)| *known == name)?;
        Some((figure, value.trim().parse().ok()?))
    };
    lines.lines().filter_map(pair).collect()
}

/// The state of a device that serves requests.
const ACTIVE: &str = "active";

/// A line for each device, under a head.
pub(crate) fn table(summaries: &[Summary]) -> String {
    let row = |s: &Summary| {
        let dirty = s.figures.get("dirty_bytes").map_or_else(|| "-".into(), |_| s.dirty());
        let targets = if s.targets.is_empty() { "-".into() } else { s.targets.join(" ") };
        let (size, open) = (size_text(s.size_bytes), s.open_count.to_string());
        [s.name.clone(), size, s.state().into(), open, targets, dirty]
    };
    let head = ["NAME", "SIZE", "STATE", "OPEN", "TARGET", "DIRTY"];
    columns::table(head, summaries.iter().map(row), control::tree::NO_DEVICES)
}

impl Summary {
    /// A figure by its name, if the device has it.
    pub(crate) fn figure(&self, name: &str) -> Option<u64> {
        self.figures.get(name).copied()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    /// For lists, which have no room for the problems: a device that has some is not merely
    /// active.
    pub(crate) fn state(&self) -> &'static str {
        match self.state {
            ACTIVE if !self.problems.is_empty() => "failing",
            state => state,
        }
    }
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    /// The dirty share of the cache, or of the memory that a page cache may use.
    pub(crate) fn dirty_percent(&self) -> Option<u64> {
        let dirty = self.figure("dirty_bytes")?;
        let whole = self.figure("cache_bytes").or_else(|| self.figure("memory_limit_bytes"))?;
        (whole > 0).then(|| percent(dirty, whole))
    }

    /// `12.0 MiB (18 %)`.
    fn dirty(&self) -> String {
        let dirty = size_text(self.figure("dirty_bytes").unwrap_or(0));
        match self.dirty_percent() {
            Some(part) => format!("{dirty} ({part} %)"),
            None => dirty,
        }
    }

    /// A write cache, as `top` sees it.
    #[cfg(test)]
    pub(crate) fn with_figures(mut self, figures: &[(&'static str, u64)]) -> Summary {
        self.figures.extend(figures.iter().copied());
        self
    }

    /// One without targets.
    #[cfg(test)]
    pub(crate) fn for_tests(name: &str, size_bytes: u64, clients: usize) -> Summary {
        let name = name.to_owned();
        Summary { name, size_bytes, state: ACTIVE, clients, ..Summary::default() }
    }

    /// `2 clients, 1 table`.
    fn opened_by(&self) -> String {
        let others = (self.open_count as usize).saturating_sub(self.clients);
        let counts = [(self.clients, "client"), (others, "table")];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, noun)| counted(count, noun)).collect();
        if counts.is_empty() { "nothing".into() } else { counts.join(", ") }
    }

    /// What a write cache had, took from reads, and was written. Empty for other devices.
    fn hits_and_causes(&self) -> Vec<(&'static str, String)> {
        let each = |figures: &[(&str, &str)], text: fn(u64) -> String| -> Option<String> {
            let one = |&(label, name): &(&str, &str)| {
                Some(format!("{label} {}", text(self.figure(name)?)))
            };
            Some(figures.iter().map(one).collect::<Option<Vec<_>>>()?.join(", "))
        };
        let hits = [("reads", "read_hit_percent"), ("writes", "write_hit_percent")];
        let admitted = [("admitted", "admitted_bytes")];
        let refused = [
            ("once", "read_refused_once"),
            ("sequential", "read_refused_sequential"),
            ("budget", "read_refused_budget"),
        ];
        let written = [
            ("data", "data_write_bytes"),
            ("admitted", "admitted_write_bytes"),
            ("metadata", "metadata_write_bytes"),
        ];
        let blocks_read =
            each(&admitted, size_text).zip(each(&refused, |blocks| blocks.to_string()));
        let rows = [
            ("hits", each(&hits, |percent| format!("{percent} %"))),
            ("blocks read", blocks_read.map(|(to, not)| format!("{to}; refused: {not}"))),
            ("cache written", each(&written, size_text)),
        ];
        rows.into_iter().filter_map(|(label, text)| Some((label, text?))).collect()
    }

    /// A paragraph.
    pub(crate) fn text(&self) -> String {
        let targets = if self.targets.is_empty() { "none".into() } else { self.targets.join(" ") };
        let mut rows = vec![
            ("size", size_text(self.size_bytes)),
            ("state", format!("{}{}", self.state, if self.read_only { ", read-only" } else { "" })),
            ("opened by", self.opened_by()),
            ("target", targets),
        ];
        rows.extend(self.rates.map(|rates| ("clients", rates.text())));
        if !self.devices.is_empty() {
            rows.push(("devices", self.devices.join(", ")));
        }
        rows.extend(self.flush.clone().map(|worth| ("FLUSH", worth)));
        let sizes = [
            ("cache", "cache_bytes"),
            ("clean", "clean_bytes"),
            ("memory used", "memory_used_bytes"),
            ("cached", "cached_bytes"),
            ("data", "data_bytes"),
            ("compressed to", "compressed_bytes"),
            ("memory", "memory_bytes"),
            ("written back", "written_back_bytes"),
            ("unreadable", "unreadable_bytes"),
            ("can't be written", "failing_bytes"),
            ("stored", "stored_bytes"),
            ("live", "live_bytes"),
        ];
        if let Some(bytes) = self.figure("behind_bytes") {
            let seconds = self.figure("behind_seconds").unwrap_or(0);
            let since =
                if bytes > 0 { format!(", for {}", duration(seconds)) } else { String::new() };
            rows.push(("not stored", format!("{}{since}", size_text(bytes))));
        }
        if self.figure("dirty_bytes").is_some() {
            rows.push(("dirty", self.dirty()));
        }
        let shown = |(label, name)| self.figure(name).map(|bytes| (label, size_text(bytes)));
        if let Some(seconds @ 1..) = self.figure("oldest_dirty_seconds") {
            rows.push(("dirty for", format!("{} at least", duration(seconds))));
        }
        rows.extend(sizes.into_iter().filter_map(shown));
        if let Some(us) = self.figure("writers_slowed_us") {
            rows.push(("writers slowed", format!("{}.{:03} s", us / 1_000_000, us / 1000 % 1000)));
        }
        rows.extend(self.hits_and_causes());
        let errors = [
            ("origin", "origin_errors"),
            ("cache", "cache_errors"),
            ("checksums", "checksum_errors"),
            ("device", "device_errors"),
            ("flushes", "flush_errors"),
        ];
        let errors: Vec<String> = errors
            .into_iter()
            .filter_map(|(label, name)| Some(format!("{label} {}", self.figure(name)?)))
            .collect();
        if !errors.is_empty() {
            rows.push(("errors", errors.join(", ")));
        }
        rows.extend(self.problems.iter().map(|problem| ("problem", problem.clone())));
        rows.extend(self.last_error.clone().map(|error| ("last error", error)));
        let mut out = format!("{}\n", self.name);
        for (label, value) in rows {
            let _ = writeln!(out, "  {label:<22}{value}");
        }
        out
    }
}

/// Rounded up, so that nothing dirty is 0 %.
fn percent(part: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(part) * 100).div_ceil(u128::from(whole.max(1)))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_cache() -> Summary {
        let attributes = [
            ("block_size", 4096),
            ("total_blocks", 1000),
            ("dirty_blocks", 255),
            ("zero_blocks", 1),
            ("clean_blocks", 10),
            ("bad_blocks", 0),
            ("failing_blocks", 2),
            ("origin_write_bytes", 1 << 20),
            ("throttled_us", 1_234_567),
            ("writeback_errors", 3),
            ("cache_read_errors", 0),
            ("checksum_errors", 0),
            ("reads", 200),
            ("read_hits", 114),
            ("writes", 50),
            ("write_hits", 4),
            ("read_hit_percent", 57),
            ("write_hit_percent", 8),
            ("read_admitted", 10),
            ("read_refused_once", 70),
            ("read_refused_sequential", 6),
            ("read_refused_budget", 0),
            ("data_write_bytes", 1 << 20),
            ("admitted_write_bytes", 40_960),
            ("metadata_write_bytes", 8192),
        ];
        let attributes: api::Attributes = attributes
            .into_iter()
            .map(|(name, value)| (name.to_owned(), api::Value::Number(value)))
            .collect();
        Summary {
            read_only: false,
            flush: Some("it is worth little".into()),
            problems: Vec::new(),
            name: "wc".into(),
            size_bytes: 64 << 20,
            state: ACTIVE,
            open_count: 3,
            clients: 2,
            rates: Some(Rates { read: 0.0, written: 4096.0, requests: 1.0 }.into()),
            targets: vec!["writecache".into()],
            devices: vec!["/o.img".into(), "/c.img".into()],
            figures: of_write_cache(&attributes).into_iter().collect(),
            last_error: Some("EIO".into()),
        }
    }

    #[test]
    fn a_write_cache_is_a_paragraph_with_units() {
        let want = "\
wc
  size                  64.0 MiB
  state                 active
  opened by             2 clients, 1 table
  target                writecache
  clients               read 0 bytes/s, written 4.0 KiB/s, 1 requests/s
  devices               /o.img, /c.img
  FLUSH                 it is worth little
  dirty                 1.0 MiB (26 %)
  cache                 3.9 MiB
  clean                 40.0 KiB
  written back          1.0 MiB
  unreadable            0 bytes
  can't be written      8.0 KiB
  writers slowed        1.234 s
  hits                  reads 57 %, writes 8 %
  blocks read           admitted 40.0 KiB; refused: once 70, sequential 6, budget 0
  cache written         data 1.0 MiB, admitted 40.0 KiB, metadata 8.0 KiB
  errors                origin 3, cache 0, checksums 0
  last error            EIO
";
        assert_eq!(write_cache().text(), want);
    }

    #[test]
    fn a_volume_shows_what_is_not_in_the_store() {
        let attributes = |bytes, seconds| -> api::Attributes {
            let pairs = [("behind_bytes", bytes), ("behind_seconds", seconds), ("live_bytes", 512)];
            let pair = |(name, n): (&str, u64)| (name.to_owned(), api::Value::Number(n));
            pairs.into_iter().map(pair).collect()
        };
        let shown = |bytes, seconds| {
            let figures = of_volume(&attributes(bytes, seconds)).into_iter().collect();
            Summary { figures, ..Summary::default() }.text()
        };
        assert!(
            shown(5 << 20, 70).contains("not stored            5.0 MiB, for "),
            "{}",
            shown(5 << 20, 70)
        );
        assert!(shown(0, 0).contains("not stored            0 bytes\n"));
        assert!(shown(0, 0).contains("live                  512 bytes"));
    }

    #[test]
    fn devices_are_lines_under_a_head() {
        let empty = Summary { name: "longer".into(), state: "no table", ..Summary::default() };
        let want = "\
NAME    SIZE      STATE     OPEN  TARGET      DIRTY
wc      64.0 MiB  active    3     writecache  1.0 MiB (26 %)
longer  0 bytes   no table  0     -           -
";
        assert_eq!(table(&[write_cache(), empty]), want);
        assert_eq!(table(&[]), "No devices found\n");
    }

    #[test]
    fn anything_dirty_is_more_than_no_percent() {
        assert_eq!((percent(0, 7), percent(1, 1 << 50), percent(7, 7)), (0, 1, 100));
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
    }

    #[test]
    fn lists_of_a_page_cache_and_a_ram_disk_give_their_figures() {
        let lines = "memory_limit_bytes 4096\nfolios 7\ndirty_bytes 12\nerrors 1\n";
        let figures = [("memory_limit_bytes", 4096), ("dirty_bytes", 12), ("device_errors", 1)];
        assert_eq!(of_page_cache(lines), figures);
        let attributes = [("mm_stat", "8192 100 4096 0 0 0 0 0 0"), ("bd_stat", "2 0 2")];
        let attributes: api::Attributes = attributes
            .into_iter()
            .map(|(name, value)| (name.to_owned(), api::Value::Text(value.to_owned())))
            .collect();
        let figures = of_zram(&attributes);
        let want = [
            ("data_bytes", 8192),
            ("compressed_bytes", 100),
            ("memory_bytes", 4096),
            ("written_back_bytes", 8192),
        ];
        assert_eq!(figures, want);
    }
}
