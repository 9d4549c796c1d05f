// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a target says of itself: status line, attributes, metrics.
use block::Error;
use block::attr::{self, Attr, Manual, Spec, counter, figure, gauge, text};
use block::value::Value;
use format::objvol::RecordedCache;

use super::config::OPTIONS;
use super::{State, VolumeTarget};
use crate::owner::hex;
use crate::volume::VolumeStatus;

/// What `millpond help objvol` prints.
pub static MANUAL: Manual = Manual {
    name: "objvol",
    version: (1, 0, 0),
    about: "a log-structured volume on an object store",
    arguments: "<url>[@<snapshot>] [<#opt_args> [<option> [<value>]]...]",
    specs,
    metrics: || attr::metric_specs(&FIGURES),
};

/// A number of an open volume; 0 of one that is not.
fn of_volume(target: &VolumeTarget, get: fn(VolumeStatus) -> u64) -> u64 {
    target.volume_status().map_or(0, get)
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "none".to_owned())
}

block::attrs! {
    static FIGURES: [Attr<VolumeTarget>];

    state: text("words"),
        "open, closed, fenced, refused (by the store), waiting (for it), reserved or deleted",
        get |t| t.state_word();
    fence: text("words"), "who has taken the volume over",
        get |t| or_none(t.fence().map(|fence| fence.to_string()));
    cache: text("words"), "the write cache that is recorded: its UUID, where it is, since when",
        get |t| or_none(t.recorded_cache().map(|cache| {
            format!("{} on {} since {}", hex(&cache.uuid), cache.device, cache.attached_at)
        }));
    refusal: text("words"), "why the store refuses", get |t| or_none(t.store_state().0);
    epoch: figure(""), "number of this opening of the volume", get |t| of_volume(t, |s| s.epoch);
    stored_segment_size: figure(""), "bytes of a full object of the volume",
        get |t| t.volume().map_or(0, |volume| volume.geometry().segment_bytes);
    behind_bytes: gauge(""), "data that would be lost with this machine now",
        get |t| of_volume(t, |s| s.behind_bytes);
    behind_seconds: gauge(""),
        "how long ago the oldest of them was written; 0: there are none",
        get |t| of_volume(t, |s| s.behind.0.div_ceil(1_000_000_000));
    extents: gauge(""), "entries of the map", get |t| t.extents();
    stored_bytes: gauge(""), "segments in the store", get |t| of_volume(t, |s| s.stored_bytes);
    live_bytes: gauge(""), "data in them that can still be read",
        get |t| of_volume(t, |s| s.live_bytes);
    ahead_bytes: gauge(""), "data that were read ahead, in memory",
        get |t| of_volume(t, |s| s.ahead_bytes);
    snapshots: gauge(""), "states of the volume that have a name",
        get |t| of_volume(t, |s| s.snapshots);
    retained_bytes: gauge(""), "segments that only snapshots need",
        get |t| of_volume(t, |s| s.retained_bytes);
    unreadable_segments: gauge(""),
        "segments that garbage collection left alone because it could not read them",
        get |t| of_volume(t, |s| s.unreadable_segments);
    put_requests: counter(""), "objects that were sent", get |t| t.counts.puts.get();
    get_requests: counter(""), "reads of the store", get |t| t.counts.gets.get();
    list_requests: counter(""), "pages of listings", get |t| t.counts.lists.get();
    delete_requests: counter(""), "deletions of objects", get |t| t.counts.deletes.get();
    put_bytes: counter(""), "bytes that were sent", in counts;
    get_bytes: counter(""), "bytes that came", in counts;
    repeated_requests: counter(""), "requests among them that were repetitions",
        get |t| t.counts.repeated.get();
}

/// All attributes, in the order in which they are listed.
pub(super) fn specs() -> Vec<&'static Spec> {
    [attr::specs(&OPTIONS), attr::specs(&FIGURES)].concat()
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
        let figure = attr::get(&FIGURES, name, self);
        let value = figure.or_else(|| attr::get(&OPTIONS, name, &self.config));
        value.ok_or_else(|| unknown(name))
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
