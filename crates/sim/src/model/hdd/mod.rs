// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A rotating disk: seek, rotation, transfer, its command queue and its write cache.
//!
//! ```text
//!            link, one after the other        acknowledged here when there is a cache
//! writes ──► fifo ──► command + bytes ──► write cache ──► elevator ──► medium
//! reads  ──► fifo ──► queue (NCQ) ─────────────────────► nearest ───►
//! ```
//! - Geometry: tracks follow each other by LBA, each turned by the skew against the one before, so
//!   that a sequential transfer runs at the stated rate with no lost turn. One zone.
//! - Seek: `settle + k * sqrt(tracks)`; the next track costs the skew.
//! - Order: an ascending sweep (C-SCAN) over what waits, and among the next few of the sweep the
//!   one that the head can reach first (rotational position ordering). What the sweep leaves behind
//!   waits for the next one. Without a write cache what waits is the queue; with one it is the
//!   cache's content, which is far more.
//! - Between two separate pieces the electronics need `media_command_ns`; a piece that begins where
//!   the last one ended follows without any gap.
//! - A cached write of just the place of one that still waits replaces it. The piece that has
//!   waited longest gets a turn now and then.
//! - Reads go first, but a full cache or a flush lets writes through in batches. A sequential
//!   reader is served from read-ahead.
//! - A flush is done when everything acknowledged before it came is on the medium. Until then the
//!   head writes nothing that came after it; new writes still come into the cache, and reads go on.
//!   FLUSH CACHE of SATA keeps both out: this flatters foreground latency.
//!
//! The parameters of the presets and where each comes from: `docs/hdd-model.md`.
//!
//! Invariants
//! - SI-D1 The medium works on one piece at a time and only forward in time.
//! - SI-D2 `cache_used_bytes` is the sum of what has room in the cache and is not on the medium.
//! - SI-D3 While flushes wait, `writes` has just the pieces that came before the first of them, and
//!   `writes_later` the others; `writes_later` is empty when none waits.

mod params;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use params::HddParams;

use super::{Cmd, Kind, Model, transfer_ns};

/// Writes that go to the medium between two reads when the cache presses.
const DESTAGE_BATCH: u32 = 8;
/// Choices by distance alone, at least, before the piece that has waited longest gets its turn (as
/// many as there are pieces, when there are more: that costs next to nothing). Chosen.
const NEAREST_IN_A_ROW_MAX: usize = 128;
/// The drive reads on after a read, this far at most. Chosen; of the order of a drive's segment.
const READ_AHEAD_BYTES: u64 = 2 << 20;
/// Seek times up to this distance are looked up.
const SEEK_TABLE_TRACKS: usize = 4096;

/// A command that waits for the head.
#[derive(Clone, Copy, Debug)]
struct Piece {
    id: u64,
    len_bytes: u64,
    track: u64,
    angle_ns: u64,
    /// Order of acknowledgement, for flushes.
    seq: u64,
    /// Acknowledged when it is on the medium (no cache, or FUA).
    ack_late: bool,
}

#[derive(Clone, Copy, Debug)]
enum HddEvent {
    /// A write has come over the link.
    Accepted { id: u64, cmd: Cmd },
    /// The head is done with the piece at hand.
    Media { id: u64, kind: Kind, len_bytes: u64, seq: u64, ack_late: bool },
    /// A command that needs no medium is done.
    Done { id: u64 },
}

/// A rotating disk, see the module.
#[derive(Debug)]
pub struct Hdd {
    params: HddParams,
    rev_ns: u64,
    track_bytes: u64,
    seek_table_ns: Vec<u64>,
    events: BTreeMap<(u64, u64), HddEvent>,
    event_seq: u64,

    writes_waiting: VecDeque<(u64, Cmd)>,
    reads_waiting: VecDeque<(u64, Cmd)>,
    link_busy: bool,
    cache_used_bytes: u64,
    /// Without a cache: writes that have a queue slot.
    late_writes: usize,

    /// What the head may take, by place on the medium, then by arrival.
    writes: BTreeMap<(u64, u64), Piece>,
    /// What came after the flush that is under way (SI-D3).
    writes_later: BTreeMap<(u64, u64), Piece>,
    reads: BTreeMap<(u64, u64), Piece>,
    /// Where the elevator stands: the beginning of the track it last wrote to.
    sweep: u64,
    piece_seq: u64,
    unflushed: BTreeSet<u64>,
    /// Id, and the newest piece that it covers.
    flushes: VecDeque<(u64, u64)>,

    media_busy: bool,
    /// Where the head's last transfer ended, when, and whether it was a read.
    head_bytes: u64,
    head_ns: u64,
    head_reads: bool,
    batch_left: u32,
    reads_since_oldest: usize,
    writes_since_oldest: usize,
}

impl Hdd {
    /// An idle disk with its head on the first track.
    pub fn new(params: HddParams) -> Hdd {
        let rev_ns = 60_000_000_000 / params.rpm;
        let mut hdd = Hdd {
            params,
            rev_ns,
            // A track passes in one turn and one skew, and so the rate is kept.
            track_bytes: scale(rev_ns + params.skew_ns, params.bytes_per_s, 1_000_000_000),
            seek_table_ns: Vec::new(),
            events: BTreeMap::new(),
            event_seq: 0,
            writes_waiting: VecDeque::new(),
            reads_waiting: VecDeque::new(),
            link_busy: false,
            cache_used_bytes: 0,
            late_writes: 0,
            writes: BTreeMap::new(),
            writes_later: BTreeMap::new(),
            reads: BTreeMap::new(),
            sweep: 0,
            piece_seq: 0,
            unflushed: BTreeSet::new(),
            flushes: VecDeque::new(),
            media_busy: false,
            head_bytes: 0,
            head_ns: 0,
            head_reads: false,
            batch_left: 0,
            reads_since_oldest: 0,
            writes_since_oldest: 0,
        };
        hdd.seek_table_ns = (0..SEEK_TABLE_TRACKS as u64).map(|d| hdd.seek_curve_ns(d)).collect();
        hdd
    }

    fn seek_curve_ns(&self, tracks: u64) -> u64 {
        match tracks {
            0 => 0,
            1 => self.params.skew_ns,
            // Ten binary digits of the root's fraction.
            d => {
                self.params.seek_settle_ns + ((self.params.seek_sqrt_ns * (d << 20).isqrt()) >> 10)
            }
        }
    }

    fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let tracks = from.abs_diff(to);
        let near = usize::try_from(tracks).ok().and_then(|d| self.seek_table_ns.get(d));
        near.copied().unwrap_or_else(|| self.seek_curve_ns(tracks))
    }

    fn angle_ns(&self, offset_bytes: u64) -> u64 {
        let (track, within) = (offset_bytes / self.track_bytes, offset_bytes % self.track_bytes);
        (scale(within, self.rev_ns, self.track_bytes) + track * self.params.skew_ns) % self.rev_ns
    }

    fn media_ns(&self, offset_bytes: u64, len_bytes: u64) -> u64 {
        let first = offset_bytes / self.track_bytes;
        let last = (offset_bytes + len_bytes.max(1) - 1) / self.track_bytes;
        scale(len_bytes, self.rev_ns, self.track_bytes) + (last - first) * self.params.skew_ns
    }

    /// Seek and rotation until the head, free at `at`, is over `piece`.
    fn positioning_ns(&self, at: u64, piece: &Piece) -> u64 {
        let seek = self.seek_ns(self.head_bytes / self.track_bytes, piece.track);
        let angle = (at + seek) % self.rev_ns;
        let wait = piece.angle_ns + self.rev_ns - angle;
        seek + if wait >= self.rev_ns { wait - self.rev_ns } else { wait }
    }

    fn at(&mut self, time: u64, what: HddEvent) {
        self.event_seq += 1;
        self.events.insert((time, self.event_seq), what);
    }

    fn piece(&mut self, id: u64, cmd: Cmd, ack_late: bool) -> ((u64, u64), Piece) {
        self.piece_seq += 1;
        let piece = Piece {
            id,
            len_bytes: cmd.len_bytes,
            track: cmd.offset_bytes / self.track_bytes,
            angle_ns: self.angle_ns(cmd.offset_bytes),
            seq: self.piece_seq,
            ack_late,
        };
        ((cmd.offset_bytes, self.piece_seq), piece)
    }

    fn has_cache(&self) -> bool {
        self.params.cache_bytes > 0
    }

    /// Room for one more write: in the cache, or in the queue when there is none.
    fn room_for(&self, cmd: &Cmd) -> bool {
        if self.has_cache() {
            let full = self.cache_used_bytes + cmd.len_bytes > self.params.cache_bytes;
            !full || self.cache_used_bytes == 0
        } else {
            self.late_writes < self.params.queue_depth
        }
    }

    /// Moves whatever can move at `now`.
    fn pump(&mut self, now: u64) {
        while self.reads.len() < self.params.queue_depth
            && let Some((id, cmd)) = self.reads_waiting.pop_front()
        {
            let (key, piece) = self.piece(id, cmd, true);
            self.reads.insert(key, piece);
        }
        if !self.link_busy
            && self.writes_waiting.front().is_some_and(|(_, cmd)| self.room_for(cmd))
            && let Some((id, cmd)) = self.writes_waiting.pop_front()
        {
            self.cache_used_bytes += cmd.len_bytes;
            self.late_writes += 1;
            self.link_busy = true;
            let bytes_ns = transfer_ns(cmd.len_bytes, self.params.link_bytes_per_s);
            let time = now + self.params.link_command_ns + bytes_ns;
            self.at(time, HddEvent::Accepted { id, cmd });
        }
        if !self.media_busy {
            self.start_piece(now);
        }
    }

    /// Whether the head should take a write although reads wait.
    fn writes_press(&self) -> bool {
        !self.writes.is_empty()
            && (!self.has_cache()
                || !self.flushes.is_empty()
                || self.cache_used_bytes > self.params.cache_bytes / 4 * 3)
    }

    fn start_piece(&mut self, now: u64) {
        if self.batch_left == 0 && self.writes_press() && !self.reads.is_empty() {
            // One read, then a batch of writes.
            self.batch_left = DESTAGE_BATCH + 1;
        }
        let write_turn = (1..=DESTAGE_BATCH).contains(&self.batch_left) && self.writes_press();
        self.batch_left = self.batch_left.saturating_sub(1);
        if !self.reads.is_empty() && !write_turn {
            self.start_read(now);
        } else if !self.writes.is_empty() {
            self.start_write(now);
        }
    }

    /// The piece that the head takes next: the one it stands before, else the nearest in time
    /// among the next few of the sweep.
    fn choose(&mut self, now: u64, kind: Kind) -> (u64, u64) {
        let (pieces, since_oldest) = if kind == Kind::Read {
            (&self.reads, &mut self.reads_since_oldest)
        } else {
            (&self.writes, &mut self.writes_since_oldest)
        };
        *since_oldest += 1;
        if *since_oldest > pieces.len().max(NEAREST_IN_A_ROW_MAX) {
            // Nobody waits for ever behind a stream or a hot track.
            *since_oldest = 0;
            let oldest = pieces.keys().min_by_key(|key| key.1);
            return *oldest.expect("the caller saw a piece");
        }
        let streams = now == self.head_ns || (self.head_reads && kind == Kind::Read);
        if streams
            && let Some((key, _)) = pieces.range((self.head_bytes, 0)..).next()
            && key.0 == self.head_bytes
        {
            return *key;
        }
        let start = now + self.params.media_command_ns;
        let ahead = pieces.range((self.sweep, 0)..);
        let behind = pieces.range(..(self.sweep, 0));
        let next_few = ahead.chain(behind).take(self.params.nearest_of);
        let nearest = next_few.min_by_key(|(_, piece)| self.positioning_ns(start, piece));
        *nearest.expect("the caller saw a piece").0
    }

    fn start_write(&mut self, now: u64) {
        let key = self.choose(now, Kind::Write);
        let piece = self.writes.remove(&key).expect("chosen from it");
        self.sweep = key.0 - key.0 % self.track_bytes;
        let contiguous = now == self.head_ns && key.0 == self.head_bytes;
        let begin = if contiguous { now } else { self.reach(now, &piece) };
        let end = begin + self.media_ns(key.0, piece.len_bytes);
        self.finish_at(end, end, key.0, &piece, Kind::Write);
    }

    fn start_read(&mut self, now: u64) {
        let key = self.choose(now, Kind::Read);
        let piece = self.reads.remove(&key).expect("chosen from it");
        let transfer = self.media_ns(key.0, piece.len_bytes);
        if key.0 == self.head_bytes && (now == self.head_ns || self.head_reads) {
            // The head went on reading; it stopped when the read-ahead was full.
            let ahead = self.media_ns(key.0, READ_AHEAD_BYTES);
            let streamed = self.head_ns.max(now.saturating_sub(ahead)) + transfer;
            let end = streamed.max(now + self.params.link_command_ns);
            self.finish_at(end, streamed, key.0, &piece, Kind::Read);
        } else {
            let end = self.reach(now, &piece) + transfer;
            self.finish_at(end, end, key.0, &piece, Kind::Read);
        }
    }

    fn reach(&self, now: u64, piece: &Piece) -> u64 {
        let start = now + self.params.media_command_ns;
        start + self.positioning_ns(start, piece)
    }

    fn finish_at(&mut self, end: u64, head_ns: u64, offset: u64, piece: &Piece, kind: Kind) {
        self.media_busy = true;
        self.head_bytes = offset + piece.len_bytes;
        self.head_ns = head_ns;
        self.head_reads = kind == Kind::Read;
        let &Piece { id, len_bytes, seq, ack_late, .. } = piece;
        self.at(end, HddEvent::Media { id, kind, len_bytes, seq, ack_late });
    }

    fn happen(&mut self, what: HddEvent, done: &mut Vec<u64>) {
        match what {
            HddEvent::Accepted { id, cmd } => {
                self.link_busy = false;
                let ack_late = cmd.fua || !self.has_cache();
                if !ack_late && self.rewrites_waiting(&cmd) {
                    self.cache_used_bytes -= cmd.len_bytes;
                    self.late_writes -= 1;
                    done.push(id);
                    return;
                }
                let (key, piece) = self.piece(id, cmd, ack_late);
                let later = !self.flushes.is_empty(); // SI-D3
                if later { &mut self.writes_later } else { &mut self.writes }.insert(key, piece);
                if !ack_late {
                    self.unflushed.insert(piece.seq);
                    done.push(id);
                }
            }
            HddEvent::Media { id, kind, len_bytes, seq, ack_late } => {
                self.media_busy = false;
                if kind == Kind::Write {
                    self.cache_used_bytes -= len_bytes;
                    self.late_writes -= 1;
                    self.unflushed.remove(&seq);
                    self.finish_flushes(done);
                }
                if ack_late {
                    done.push(id);
                }
            }
            HddEvent::Done { id } => done.push(id),
        }
    }

    /// Whether the cache still holds an older write of just this place: it takes the new data, and
    /// whichever flush waits for the old one waits for both.
    fn rewrites_waiting(&self, cmd: &Cmd) -> bool {
        let at = cmd.offset_bytes;
        let there = |pieces: &BTreeMap<(u64, u64), Piece>| {
            let mut there = pieces.range((at, 0)..=(at, u64::MAX));
            there.any(|(_, piece)| !piece.ack_late && piece.len_bytes == cmd.len_bytes)
        };
        there(&self.writes) || there(&self.writes_later)
    }

    fn finish_flushes(&mut self, done: &mut Vec<u64>) {
        let oldest = self.unflushed.first().copied().unwrap_or(u64::MAX);
        while let Some(&(id, covers)) = self.flushes.front()
            && covers < oldest
        {
            self.flushes.pop_front();
            done.push(id);
            // SI-D3. A FUA write that the flush did not wait for may be left in `writes`.
            self.writes.append(&mut self.writes_later);
            if let Some(&(_, covers)) = self.flushes.front() {
                let all = std::mem::take(&mut self.writes).into_iter();
                (self.writes, self.writes_later) = all.partition(|(key, _)| key.1 <= covers);
            }
        }
    }
}

impl Model for Hdd {
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd) {
        match cmd.kind {
            Kind::Read => self.reads_waiting.push_back((id, cmd)),
            Kind::Write => self.writes_waiting.push_back((id, cmd)),
            Kind::Flush if self.unflushed.is_empty() => {
                self.at(now_ns + self.params.link_command_ns, HddEvent::Done { id });
            }
            Kind::Flush => self.flushes.push_back((id, self.piece_seq)),
            Kind::Discard => self.at(now_ns + self.params.link_command_ns, HddEvent::Done { id }),
        }
        self.pump(now_ns);
    }

    fn next_event(&self) -> Option<u64> {
        self.events.keys().next().map(|k| k.0)
    }

    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(entry) = self.events.first_entry().filter(|e| e.key().0 <= now_ns) {
            let ((time, _), what) = entry.remove_entry();
            self.happen(what, done);
            self.pump(time);
        }
    }

    fn power_cut(&mut self) {
        *self = Hdd::new(self.params);
    }
}

/// `value * mul / div` without overflow.
fn scale(value: u64, mul: u64, div: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(mul) / u128::from(div)).expect("fits: mul ~ div")
}

#[cfg(test)]
mod tests;
