// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `top` shows: rows of devices and clients, made of two samples; and what keys change.
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use block::size_text;
use clap::ValueEnum;
use control::api;

use super::INTERVALS;
use super::sample::{DeviceSample, Sample};
use super::terminal::Key;
use crate::columns::{counted, duration, table};
use crate::rates::{Rates, client_rates, growth};

/// The column that devices are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    Name,
    Read,
    Write,
    Requests,
    Dirty,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Name => Sort::Read,
            Sort::Read => Sort::Write,
            Sort::Write => Sort::Requests,
            Sort::Requests => Sort::Dirty,
            Sort::Dirty => Sort::Name,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Read => "read",
            Sort::Write => "write",
            Sort::Requests => "requests",
            Sort::Dirty => "dirty",
        }
    }
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DeviceRow {
    pub(super) name: String,
    pub(super) size: String,
    pub(super) state: String,
    /// None before the second sample.
    pub(super) rates: Option<Rates>,
    /// Mean time of a request, in milliseconds.
    pub(super) latency_ms: Option<f64>,
    pub(super) dirty_percent: Option<u64>,
    pub(super) clients: usize,
}

/// What a write cache had, took from reads and wrote to its cache device since the sample before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CacheRow {
    pub(super) name: String,
    /// Shares of what clients have read and written.
    pub(super) read_hit_percent: Option<u64>,
    pub(super) write_hit_percent: Option<u64>,
    /// Blocks that were read and did not enter, a second, by reason: [`REFUSED`].
    pub(super) refused: [Option<f64>; 3],
    /// Bytes written to the cache device, a second, by cause: [`WRITTEN`].
    pub(super) written: [Option<f64>; 3],
}

const REFUSED: [&str; 3] = ["read_refused_once", "read_refused_sequential", "read_refused_budget"];
const WRITTEN: [&str; 3] = ["data_write_bytes", "admitted_write_bytes", "metadata_write_bytes"];

/// A client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClientRow {
    pub(super) id: String,
    pub(super) device: String,
    pub(super) peer: String,
    pub(super) connected: String,
    pub(super) in_flight: Option<u64>,
    pub(super) rates: Option<Rates>,
}

/// Titles of the columns of devices.
pub(super) const DEVICE_HEAD: [&str; 9] =
    ["DEVICE", "SIZE", "STATE", "READ/s", "WRITE/s", "REQ/s", "LATENCY", "DIRTY", "CLI"];
/// Titles of the columns of write caches.
pub(super) const CACHE_HEAD: [&str; 9] =
    ["CACHE", "R HIT", "W HIT", "ONCE/s", "SEQ/s", "BUDGET/s", "DATA/s", "ADMIT/s", "META/s"];
/// Titles of the columns of clients.
pub(super) const CLIENT_HEAD: [&str; 7] =
    ["CLIENT", "DEVICE", "PEER", "SINCE", "FLIGHT", "READ/s", "WRITE/s"];

/// The state of the program.
#[derive(Debug)]
pub(super) struct View {
    sort: Sort,
    is_reversed: bool,
    is_paused: bool,
    interval: Duration,
    /// Devices above the first one that is shown.
    scrolled: usize,
    last: Option<Sample>,
    devices: Vec<DeviceRow>,
    caches: Vec<CacheRow>,
    clients: Vec<ClientRow>,
}

impl View {
    pub(super) fn new(sort: Sort, interval: Duration) -> View {
        View {
            sort,
            is_reversed: false,
            is_paused: false,
            interval,
            scrolled: 0,
            last: None,
            devices: Vec::new(),
            caches: Vec::new(),
            clients: Vec::new(),
        }
    }

    /// The view after another sample.
    pub(super) fn updated(self, sample: Sample) -> View {
        let last = self.last.as_ref();
        let rates = rates_of(last, &sample);
        let device = |device: &DeviceSample| device_row(device, last, &sample, &rates);
        let devices = sample.devices.iter().map(device).collect();
        let caches = sample.devices.iter().filter_map(|d| cache_row(d, last, &sample)).collect();
        let client = |client: &api::Client| client_row(client, rates.get(&client.id).copied());
        let clients = sample.clients.iter().map(client).collect();
        let mut view = View { devices, caches, clients, last: Some(sample), ..self };
        view.sort_rows();
        view
    }

    fn sort_rows(&mut self) {
        let most_first = |of: fn(&Rates) -> f64, a: &DeviceRow, b: &DeviceRow| {
            let rate = |row: &DeviceRow| row.rates.as_ref().map_or(0.0, of);
            rate(b).total_cmp(&rate(a))
        };
        let sort = self.sort;
        let order = |a: &DeviceRow, b: &DeviceRow| -> Ordering {
            let first = match sort {
                Sort::Name => Ordering::Equal,
                Sort::Read => most_first(|r| r.read, a, b),
                Sort::Write => most_first(|r| r.written, a, b),
                Sort::Requests => most_first(|r| r.requests, a, b),
                Sort::Dirty => b.dirty_percent.cmp(&a.dirty_percent),
            };
            first.then_with(|| a.name.cmp(&b.name))
        };
        self.devices.sort_by(order);
        if self.is_reversed {
            self.devices.reverse();
        }
    }

    /// Does what a key stands for; other keys do nothing.
    pub(super) fn press(&mut self, key: Key) {
        let (least, most) = INTERVALS;
        match key {
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('+') => self.interval = (self.interval * 2).min(most),
            Key::Char('-') => self.interval = (self.interval / 2).max(least),
            Key::Down => self.scrolled = self.scrolled.saturating_add(1),
            Key::Up => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Char(_) | Key::Escape => {}
        }
        self.scrolled = self.scrolled.min(self.devices.len().saturating_sub(1));
        self.sort_rows();
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }
    /// By name.
    pub(super) fn caches(&self) -> &[CacheRow] {
        &self.caches
    }
    pub(super) fn clients(&self) -> &[ClientRow] {
        &self.clients
    }

    /// The devices from the first one on that is to be shown.
    pub(super) fn devices(&self) -> &[DeviceRow] {
        &self.devices[self.scrolled.min(self.devices.len())..]
    }

    /// The first line: which daemon, what it has, and what keys have changed.
    pub(super) fn title(&self) -> String {
        let Some(sample) = &self.last else { return "millpond".into() };
        let (devices, clients) = (sample.devices.len(), sample.clients.len());
        let order = if self.is_reversed { ", reversed" } else { "" };
        let paused = if self.is_paused { "  PAUSED" } else { "" };
        format!(
            "millpond {} pid {}: {}, {}; every {:?}, by {}{order}{paused}",
            sample.daemon.version,
            sample.daemon.pid,
            counted(devices, "device"),
            counted(clients, "client"),
            self.interval,
            self.sort.name()
        )
    }

    /// The frame as text.
    pub(super) fn text(&self) -> String {
        let devices = table(DEVICE_HEAD, self.devices.iter().map(DeviceRow::cells), "");
        let mut text = format!("{}\n\n{devices}\n", self.title());
        if !self.caches.is_empty() {
            text += &table(CACHE_HEAD, self.caches.iter().map(CacheRow::cells), "");
            text.push('\n');
        }
        text + &table(CLIENT_HEAD, self.clients.iter().map(ClientRow::cells), "")
    }
}

impl DeviceRow {
    pub(super) fn cells(&self) -> [String; 9] {
        let latency = self.latency_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}ms"));
        let dirty = self.dirty_percent.map_or_else(|| "-".to_owned(), |part| format!("{part} %"));
        [
            self.name.clone(),
            self.size.clone(),
            self.state.clone(),
            rate(self.rates, |r| r.read),
            rate(self.rates, |r| r.written),
            self.rates.map_or_else(|| "-".to_owned(), |r| format!("{:.0}", r.requests)),
            latency,
            dirty,
            self.clients.to_string(),
        ]
    }
}

impl CacheRow {
    pub(super) fn cells(&self) -> [String; 9] {
        let text = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
        let percent = |share: Option<u64>| text(share.map(|share| format!("{share} %")));
        let [once, sequential, budget] =
            self.refused.map(|rate| text(rate.map(|rate| format!("{rate:.0}"))));
        let [data, admitted, metadata] =
            self.written.map(|rate| text(rate.map(|rate| size_text(rate.round() as u64))));
        [
            self.name.clone(),
            percent(self.read_hit_percent),
            percent(self.write_hit_percent),
            once,
            sequential,
            budget,
            data,
            admitted,
            metadata,
        ]
    }
}

impl ClientRow {
    pub(super) fn cells(&self) -> [String; 7] {
        [
            self.id.clone(),
            self.device.clone(),
            self.peer.clone(),
            self.connected.clone(),
            self.in_flight.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            rate(self.rates, |r| r.read),
            rate(self.rates, |r| r.written),
        ]
    }
}

fn rate(rates: Option<Rates>, of: fn(&Rates) -> f64) -> String {
    // Rates are no more than what memory can move: they fit.
    rates.map_or_else(|| "-".to_owned(), |rates| size_text(of(&rates).round() as u64))
}

/// The rates of clients that count, by id.
fn rates_of(last: Option<&Sample>, sample: &Sample) -> BTreeMap<String, Rates> {
    let Some(last) = last else { return BTreeMap::new() };
    client_rates(&last.clients, &sample.clients, sample.at.duration_since(last.at))
}

fn device_row(
    device: &DeviceSample,
    last: Option<&Sample>,
    sample: &Sample,
    of_clients: &BTreeMap<String, Rates>,
) -> DeviceRow {
    let summary = &device.summary;
    let mut row = DeviceRow {
        name: summary.name().to_owned(),
        size: size_text(summary.size_bytes()),
        state: state(summary.state(), device.drain_state.as_deref()),
        dirty_percent: summary.dirty_percent(),
        clients: summary.clients(),
        ..DeviceRow::default()
    };
    let Some(last) = last else { return row };
    let is_its = |client: &&api::Client| client.device.as_deref() == Some(summary.name());
    let its = sample.clients.iter().filter(is_its);
    let sum = its.filter_map(|c| of_clients.get(&c.id)).copied().sum();
    row.rates = Some(sum);
    let before = last.devices.iter().find(|other| other.summary.name() == summary.name());
    if let (Some(before), Some(now)) = (before.and_then(|before| before.stat), device.stat) {
        let time = sample.at.duration_since(last.at);
        row.rates = Some(Rates {
            read: growth(before.read_bytes, now.read_bytes, time),
            written: growth(before.written_bytes, now.written_bytes, time),
            requests: growth(before.requests, now.requests, time),
        });
        let requests = now.requests.saturating_sub(before.requests);
        let busy_ms = now.busy_ms.saturating_sub(before.busy_ms);
        row.latency_ms = (requests > 0).then(|| busy_ms as f64 / requests as f64);
    }
    row
}

/// None for a device that is no write cache.
fn cache_row(device: &DeviceSample, last: Option<&Sample>, sample: &Sample) -> Option<CacheRow> {
    let now = &device.summary;
    now.figure("read_hits")?;
    let mut row = CacheRow { name: now.name().to_owned(), ..CacheRow::default() };
    let before = |last: &Sample| last.devices.iter().position(|d| d.summary.name() == now.name());
    let Some((last, nth)) = last.and_then(|last| Some((last, before(last)?))) else {
        return Some(row);
    };
    let before = &last.devices[nth].summary;
    let time = sample.at.duration_since(last.at);
    let grown = |name| Some((before.figure(name)?, now.figure(name)?));
    let share = |hits, of| {
        let ((hits, hits_now), (of, of_now)) = (grown(hits)?, grown(of)?);
        (hits_now.saturating_sub(hits) * 100).checked_div(of_now.saturating_sub(of))
    };
    let rate = |name| grown(name).map(|(before, now)| growth(before, now, time));
    row.read_hit_percent = share("read_hits", "reads");
    row.write_hit_percent = share("write_hits", "writes");
    row.refused = REFUSED.map(rate);
    row.written = WRITTEN.map(rate);
    Some(row)
}

/// `drain 45 %` while one runs.
fn state(of_device: &str, drain: Option<&str>) -> String {
    let words = drain.and_then(|drain| drain.strip_prefix("running "));
    let Some(words) = words else { return of_device.to_owned() };
    let number = |key: &str| -> Option<u64> {
        words.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
    };
    match (number("done"), number("total")) {
        (Some(done), Some(total @ 1..)) => format!("drain {} %", done * 100 / total),
        _ => "drain".to_owned(),
    }
}

fn client_row(client: &api::Client, rates: Option<Rates>) -> ClientRow {
    let ending = if client.is_ending { " ending" } else { "" };
    ClientRow {
        id: client.id.clone(),
        device: client.device.clone().unwrap_or_else(|| "-".into()),
        peer: client.peer.clone(),
        connected: format!("{}{ending}", duration(client.connected_seconds)),
        in_flight: client.requests_in_flight,
        rates,
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
pub(super) mod tests;
