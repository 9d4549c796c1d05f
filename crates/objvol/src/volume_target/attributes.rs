// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a target says of itself: status line, attributes, metrics.
use block::Error;
use block::attr::{self, Attr, Kind, Manual, Metric, Spec};
use block::value::Value;
use format::objvol::RecordedCache;

use super::config::OPTIONS;
use super::{State, VolumeTarget};
use crate::owner::hex;
use crate::volume::VolumeStatus;

type Figure = Attr<VolumeTarget>;

/// What `millpond help objvol` prints.
pub static MANUAL: Manual = Manual {
    name: "objvol",
    version: (1, 0, 0),
    about: "a log-structured volume on an object store",
    arguments: "<url>[@<snapshot>] [<#opt_args> [<option> [<value>]]...]",
    specs,
    metrics: || attr::metric_specs(&FIGURES),
};

const fn figure(name: &'static str, help: &'static str, get: fn(&VolumeTarget) -> Value) -> Figure {
    Attr::read(Spec::new(name, Kind::Number { min: 0, max: u64::MAX, unit: "" }, help), get)
}

const fn gauge(name: &'static str, help: &'static str, get: fn(&VolumeTarget) -> Value) -> Figure {
    let figure = figure(name, help, get);
    Attr { spec: figure.spec.metric(Metric::GAUGE), ..figure }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    get: fn(&VolumeTarget) -> Value,
) -> Figure {
    let figure = figure(name, help, get);
    Attr { spec: figure.spec.metric(Metric::COUNTER), ..figure }
}

const fn text(name: &'static str, help: &'static str, get: fn(&VolumeTarget) -> Value) -> Figure {
    Attr::read(Spec::new(name, Kind::Text("words"), help), get)
}

/// A number of an open volume; 0 of one that is not.
fn of_volume(target: &VolumeTarget, get: fn(VolumeStatus) -> u64) -> Value {
    target.volume_status().map_or(0, get).into()
}

fn or_none(text: Option<String>) -> Value {
    text.unwrap_or_else(|| "none".to_owned()).into()
}

static FIGURES: [Figure; 22] = [
    text(
        "state",
        "open, closed, fenced, refused (by the store), waiting (for it), reserved or deleted",
        |t| t.state_word().into(),
    ),
    text("fence", "who has taken the volume over", |t| {
        or_none(t.fence().map(|fence| fence.to_string()))
    }),
    text("cache", "the write cache that is recorded: its UUID, where it is, since when", |t| {
        or_none(t.recorded_cache().map(|cache| {
            format!("{} on {} since {}", hex(&cache.uuid), cache.device, cache.attached_at)
        }))
    }),
    text("refusal", "why the store refuses", |t| or_none(t.store_state().0)),
    figure("epoch", "number of this opening of the volume", |t| of_volume(t, |s| s.epoch)),
    figure("stored_segment_size", "bytes of a full object of the volume", |t| {
        t.volume().map_or(0, |volume| u64::from(volume.geometry().segment_bytes)).into()
    }),
    gauge("behind_bytes", "data that would be lost with this machine now", |t| {
        of_volume(t, |s| s.behind_bytes)
    }),
    gauge(
        "behind_seconds",
        "how long ago the oldest of them was written; 0: there are none",
        |t| of_volume(t, |s| s.behind.0.div_ceil(1_000_000_000)),
    ),
    gauge("extents", "entries of the map", |t| t.extents().into()),
    gauge("stored_bytes", "segments in the store", |t| of_volume(t, |s| s.stored_bytes)),
    gauge("live_bytes", "data in them that can still be read", |t| of_volume(t, |s| s.live_bytes)),
    gauge("ahead_bytes", "data that were read ahead, in memory", |t| {
        of_volume(t, |s| s.ahead_bytes)
    }),
    gauge("snapshots", "states of the volume that have a name", |t| of_volume(t, |s| s.snapshots)),
    gauge("retained_bytes", "segments that only snapshots need", |t| {
        of_volume(t, |s| s.retained_bytes)
    }),
    gauge(
        "unreadable_segments",
        "segments that garbage collection left alone because it could not read them",
        |t| of_volume(t, |s| s.unreadable_segments),
    ),
    counter("put_requests", "objects that were sent", |t| t.counts.puts.get().into()),
    counter("get_requests", "reads of the store", |t| t.counts.gets.get().into()),
    counter("list_requests", "pages of listings", |t| t.counts.lists.get().into()),
    counter("delete_requests", "deletions of objects", |t| t.counts.deletes.get().into()),
    counter("put_bytes", "bytes that were sent", |t| t.counts.put_bytes.get().into()),
    counter("get_bytes", "bytes that came", |t| t.counts.get_bytes.get().into()),
    counter("repeated_requests", "requests among them that were repetitions", |t| {
        t.counts.repeated.get().into()
    }),
];

/// All attributes, in the order in which they are listed.
pub(super) fn specs() -> Vec<&'static Spec> {
    attr::specs(&OPTIONS).into_iter().chain(attr::specs(&FIGURES)).collect()
}

impl VolumeTarget {
    fn state_word(&self) -> &'static str {
        if self.fence().is_some() {
            return "fenced";
        }
        match &*self.state.borrow() {
            State::Closed | State::Fenced(_) => "closed",
            State::Snapshot(snapshot) if snapshot.is_deleted() => "deleted",
            State::Open(_) | State::Snapshot(_) => match self.store_state() {
                (Some(_), _) => "refused",
                (None, Some(_)) => "waiting",
                (None, None) if self.reservation().is_some() => "reserved",
                (None, None) => "open",
            },
        }
    }

    fn recorded_cache(&self) -> Option<RecordedCache> {
        self.volume_status()?.cache
    }

    /// Why changes are refused.
    fn reservation(&self) -> Option<String> {
        self.volume_status()?.reservation
    }

    /// Why the store refuses, and why it does not answer.
    fn store_state(&self) -> (Option<String>, Option<String>) {
        match &*self.state.borrow() {
            State::Closed | State::Fenced(_) => (None, None),
            State::Snapshot(snapshot) => (snapshot.denial(), snapshot.last_failure()),
            State::Open(volume) => {
                let VolumeStatus { denial, last_failure, .. } = volume.status();
                (denial, last_failure)
            }
        }
    }

    fn extents(&self) -> u64 {
        match &*self.state.borrow() {
            State::Closed | State::Fenced(_) => 0,
            State::Snapshot(snapshot) => snapshot.extents(),
            State::Open(volume) => volume.status().extents,
        }
    }

    /// What an operator should look at.
    pub(super) fn problem(&self) -> Option<String> {
        if let Some(fence) = self.fence() {
            return Some(fence.to_string());
        }
        match (self.state_word(), self.store_state()) {
            ("deleted", _) => Some("the snapshot was deleted: every read fails".to_owned()),
            (_, (Some(denial), _)) => Some(format!("the store refuses: {denial}")),
            (_, (None, Some(failure))) => Some(format!("the store does not answer: {failure}")),
            (_, (None, None)) => {
                self.reservation().or_else(|| self.volume_status().and_then(unreadable))
            }
        }
    }

    /// `STATE EPOCH EXTENTS BEHIND STORED LIVE PUTS GETS LISTS DELETES`, then words: who has taken
    /// the volume over, or what is wrong with the store; `-` when nothing is.
    pub(super) fn status_line(&self) -> String {
        let status = self.volume_status();
        let [epoch, behind, stored, live] =
            status.map_or([0; 4], |s| [s.epoch, s.behind_bytes, s.stored_bytes, s.live_bytes]);
        let numbers = [epoch, self.extents(), behind, stored, live];
        let counts = &self.counts;
        let counts = [&counts.puts, &counts.gets, &counts.lists, &counts.deletes];
        let mut line = self.state_word().to_owned();
        for number in numbers.into_iter().chain(counts.map(std::cell::Cell::get)) {
            line.push_str(&format!(" {number}"));
        }
        let fence = self.fence().map(|fence| fence.to_string());
        let (denial, failure) = self.store_state();
        let words = fence.or(denial).or(failure).unwrap_or_else(|| "-".to_owned());
        format!("{line} {words}")
    }

    pub(super) fn attribute(&self, name: &str) -> Result<Value, Error> {
        if let Some(figure) = attr::find(&FIGURES, name) {
            return Ok(figure.get.expect("every figure can be read")(self));
        }
        let option = attr::find(&OPTIONS, name).ok_or_else(|| unknown(name))?;
        Ok(option.get.expect("each option has a value")(&self.config))
    }

    pub(super) fn refuse_to_set(&self, name: &str) -> Result<(), Error> {
        if attr::find(&OPTIONS, name).is_some() {
            return Err(attr::fixed(name));
        }
        Err(attr::find(&FIGURES, name).map_or_else(|| unknown(name), |_| attr::read_only(name)))
    }

    pub(super) fn figures(&self) -> Vec<(&'static Spec, u64)> {
        attr::metrics(&FIGURES, self)
    }
}

/// What garbage collection could not read.
fn unreadable(status: VolumeStatus) -> Option<String> {
    let (count, newest) = (status.unreadable_segments, status.unreadable?);
    Some(format!("garbage collection can't read {count} segments, the newest {newest}"))
}

fn unknown(name: &str) -> Error {
    attr::unknown(MANUAL.name, name, &attr::names(&specs()))
}
