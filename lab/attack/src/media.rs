// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of a lossy disk: the durable version of every sector, and each unflushed one.
//!
//! ```text
//!   sector 7   durable ── version (replied) ── version (replied) ── version (reply yet to come)
//!                            └── a FLUSH that arrives now must make this durable ┘   not this
//!   power cut: any of them becomes the durable one, sector by sector
//!   failed FLUSH: any of the replied ones may be lost
//! ```
//!
//! Invariants
//! - AT-MD1 A write that a FLUSH covers, and a FUA write with a reply, survive every power cut, and
//!   no older version of their sectors returns.
//! - AT-MD2 A FLUSH that fails loses only writes replied to before its own reply, and every FLUSH
//!   under way at that moment fails too. Otherwise the disk would break its own contract.
//! - AT-MD3 A power cut tears a request between sectors of 512 bytes, never inside one.

use std::collections::{BTreeMap, VecDeque};

use crate::pattern::SECTOR;
use crate::rng::Rng;

/// A fault that no disk may have, planted to test the judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// A correct disk.
    #[default]
    None,
    /// A FLUSH succeeds and does nothing.
    Flush,
    /// A power cut mixes old and new bytes inside sectors that were durable.
    Tear,
    /// A read that should fail succeeds, with zeroes.
    Read,
    /// Requests of a lost connection are executed later, beside those of the next one.
    Late,
    /// Changes that it holds are answered at once.
    Again,
    /// It keeps its connections when it is restarted and loses what was not flushed.
    Silent,
}

/// So many durable sectors are remembered with what they replaced, for [`Lie::Tear`].
const RECENT_MAX: usize = 256;

#[derive(Debug)]
struct Unflushed {
    data: Box<[u8]>,
    ticket: u64,
    replied: Option<u64>,
}

/// Counts of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// FLUSHes that succeeded.
    pub flushes: u64,
    /// FLUSHes that failed.
    pub flushes_failed: u64,
    /// Writes that failed.
    pub writes_failed: u64,
    /// Reads that failed.
    pub reads_failed: u64,
    /// Times that it lost its connections.
    pub disconnected: u64,
    /// Connections that the program ended without NBD_CMD_DISC: it was killed, or has given up a
    /// disk that did not answer, as on a machine under load.
    pub dropped: u64,
    /// Sectors that had an unflushed version at a power cut.
    pub at_risk: u64,
    /// Of these, those that did not get their newest version.
    pub lost: u64,
}

impl Figures {
    /// Times that it did not do what it was asked for.
    pub fn failures(&self) -> u64 {
        self.flushes_failed + self.writes_failed + self.reads_failed + self.disconnected
    }
}

/// See the module.
#[derive(Debug)]
pub struct Media {
    image: Vec<u8>,
    unflushed: BTreeMap<u64, Vec<Unflushed>>,
    clock: u64,
    failed: u64,
    recent: VecDeque<(u64, Box<[u8]>)>,
    rng: Rng,
    lie: Lie,
    /// What happened to it.
    pub figures: Figures,
}

fn place(sector: u64) -> std::ops::Range<usize> {
    let start = sector as usize * SECTOR;
    start..start + SECTOR
}

impl Media {
    /// A blank disk.
    pub fn new(bytes: u64, lie: Lie, rng: Rng) -> Media {
        Media {
            image: vec![0; bytes as usize],
            unflushed: BTreeMap::new(),
            clock: 1,
            failed: 0,
            recent: VecDeque::new(),
            rng,
            lie,
            figures: Figures::default(),
        }
    }

    /// Blank again.
    pub fn blank(&mut self) {
        self.image.fill(0);
        self.unflushed.clear();
        self.recent.clear();
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.image.len() as u64
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.image.is_empty()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Reads whole sectors as they are now.
    pub fn read(&self, sector: u64, data: &mut [u8]) {
        for (bytes, at) in data.chunks_exact_mut(SECTOR).zip(sector..) {
            match self.unflushed.get(&at).and_then(|v| v.last()) {
                Some(version) => bytes.copy_from_slice(&version.data),
                None => bytes.copy_from_slice(&self.image[place(at)]),
            }
        }
    }

    fn persist(&mut self, sector: u64, data: &[u8]) {
        let old = self.image[place(sector)].to_vec().into_boxed_slice();
        self.image[place(sector)].copy_from_slice(data);
        if self.lie == Lie::Tear {
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back((sector, old));
        }
    }

    /// Takes a write; it is done when [`Media::replied`] is told its ticket.
    pub fn write(&mut self, sector: u64, data: &[u8]) -> u64 {
        let ticket = self.tick();
        for (bytes, at) in data.chunks_exact(SECTOR).zip(sector..) {
            let version = Unflushed { data: bytes.into(), ticket, replied: None };
            self.unflushed.entry(at).or_default().push(version);
        }
        ticket
    }

    /// Takes a write that is durable at once.
    pub fn write_durable(&mut self, sector: u64, data: &[u8]) {
        for (bytes, at) in data.chunks_exact(SECTOR).zip(sector..) {
            self.unflushed.remove(&at); // AT-MD1
            self.persist(at, bytes);
        }
    }

    /// A write that fails: any of its sectors have changed.
    pub fn write_failing(&mut self, sector: u64, data: &[u8]) {
        self.figures.writes_failed += 1;
        for (bytes, at) in data.chunks_exact(SECTOR).zip(sector..) {
            if self.rng.chance(0.5) {
                let ticket = self.write(at, bytes);
                self.replied(ticket, at, 1);
            }
        }
    }

    /// Whether it lies so.
    pub fn lies(&self, lie: Lie) -> bool {
        self.lie == lie
    }

    /// The reply to a write is about to be sent.
    pub fn replied(&mut self, ticket: u64, sector: u64, sectors: u64) {
        let now = self.tick();
        for (_, versions) in self.unflushed.range_mut(sector..sector + sectors) {
            for version in versions.iter_mut().filter(|v| v.ticket == ticket) {
                version.replied = Some(now);
            }
        }
    }

    /// A FLUSH has come: what it must cover is what was replied to before this number.
    pub fn flush_came(&mut self) -> u64 {
        self.tick()
    }

    /// Does a FLUSH that came at `came`; false if one that failed meanwhile took it along.
    pub fn flush(&mut self, came: u64) -> bool {
        if self.failed > came {
            self.figures.flushes_failed += 1;
            return false; // AT-MD2
        }
        self.figures.flushes += 1;
        if self.lie == Lie::Flush {
            return true;
        }
        let all = std::mem::take(&mut self.unflushed);
        for (sector, mut versions) in all {
            let covered = |v: &Unflushed| v.replied.is_some_and(|at| at < came);
            if let Some(newest) = versions.iter().rposition(covered) {
                let data = versions.drain(..=newest).next_back().expect("it was found").data;
                self.persist(sector, &data);
            }
            if !versions.is_empty() {
                self.unflushed.insert(sector, versions);
            }
        }
        true
    }

    /// Fails a FLUSH: of each sector the versions that were replied to are lost or not.
    pub fn flush_failing(&mut self) {
        self.failed = self.tick(); // AT-MD2
        self.figures.flushes_failed += 1;
        let all = std::mem::take(&mut self.unflushed);
        for (sector, mut versions) in all {
            if self.rng.chance(0.6) {
                versions.retain(|v| v.replied.is_none());
            }
            if !versions.is_empty() {
                self.unflushed.insert(sector, versions);
            }
        }
    }

    /// The power goes and comes back. Returns how many sectors had unflushed versions.
    pub fn power_cut(&mut self) -> u64 {
        let all = std::mem::take(&mut self.unflushed);
        let at_risk = all.len() as u64;
        self.figures.at_risk += at_risk;
        // How much gets lost differs from cut to cut: nearly all, nearly nothing, or half.
        let kept = *self.rng.pick(&[0.05, 0.5, 0.5, 0.95]);
        for (sector, versions) in all {
            let chosen =
                if self.rng.chance(kept) { self.rng.below(versions.len() as u64 + 1) } else { 0 };
            self.figures.lost += u64::from(chosen < versions.len() as u64);
            if chosen > 0 {
                let data = &versions[chosen as usize - 1].data;
                self.image[place(sector)].copy_from_slice(data); // AT-MD3
            }
        }
        for (sector, old) in std::mem::take(&mut self.recent) {
            if self.rng.chance(0.2) {
                let half = place(sector).start + SECTOR / 2;
                self.image[half..half + SECTOR / 2].copy_from_slice(&old[SECTOR / 2..]);
            }
        }
        at_risk
    }

    /// What some sectors might hold after a power cut now, which does not happen.
    pub fn after_a_cut(&mut self, sector: u64, sectors: u64) -> Vec<u8> {
        let mut image = self.durable(sector, sectors).to_vec();
        let kept = *self.rng.pick(&[0.0, 0.05, 0.5, 0.95, 1.0]);
        for (at, versions) in self.unflushed.range(sector..sector + sectors) {
            if self.rng.chance(kept) {
                let version = self.rng.pick(versions);
                image[place(at - sector)].copy_from_slice(&version.data);
            }
        }
        image
    }

    /// What is durable of some sectors, without what a power cut might take.
    pub fn durable(&self, sector: u64, sectors: u64) -> &[u8] {
        &self.image[sector as usize * SECTOR..(sector + sectors) as usize * SECTOR]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(lie: Lie) -> Media {
        Media::new(64 * SECTOR as u64, lie, Rng::new(1))
    }

    fn one(byte: u8) -> [u8; SECTOR] {
        [byte; SECTOR]
    }

    fn write(media: &mut Media, sector: u64, byte: u8) {
        let ticket = media.write(sector, &one(byte));
        media.replied(ticket, sector, 1);
    }

    fn byte(media: &Media, sector: u64) -> u8 {
        let mut data = one(0);
        media.read(sector, &mut data);
        data[0]
    }

    #[test]
    fn flushed_data_survive_and_no_older_version_returns() {
        let mut media = media(Lie::None);
        for sector in 0..64 {
            write(&mut media, sector, 1);
            write(&mut media, sector, 2);
        }
        let came = media.flush_came();
        assert!(media.flush(came));
        media.power_cut();
        assert!((0..64).all(|s| byte(&media, s) == 2));
    }

    #[test]
    fn a_flush_covers_only_what_was_replied_to_before_it_came() {
        let mut media = media(Lie::None);
        for sector in 0..64 {
            write(&mut media, sector, 1);
        }
        let came = media.flush_came();
        for sector in 0..64 {
            write(&mut media, sector, 2);
        }
        assert!(media.flush(came));
        assert_eq!(media.power_cut(), 64);
        let bytes: Vec<u8> = (0..64).map(|s| byte(&media, s)).collect();
        assert!(bytes.iter().all(|b| [1, 2].contains(b)), "{bytes:?}");
        assert!(bytes.contains(&1), "{bytes:?}");
    }

    #[test]
    fn a_failed_flush_takes_those_under_way_along() {
        let mut media = media(Lie::None);
        for sector in 0..64 {
            write(&mut media, sector, 1);
        }
        let late = media.write(3, &one(7));
        let came = media.flush_came();
        media.flush_failing();
        assert!(!media.flush(came));
        assert!((0..64).filter(|s| byte(&media, *s) == 0).count() > 8);
        assert_eq!(byte(&media, 3), 7, "its reply has not been sent");
        media.replied(late, 3, 1);
        let came = media.flush_came();
        assert!(media.flush(came));
        media.power_cut();
        assert_eq!(byte(&media, 3), 7);
    }

    #[test]
    fn lies_do_what_they_are_for() {
        let mut liar = media(Lie::Flush);
        let mut tearing = media(Lie::Tear);
        for media in [&mut liar, &mut tearing] {
            (0..64).for_each(|sector| write(media, sector, 1));
            let came = media.flush_came();
            assert!(media.flush(came));
            media.power_cut();
        }
        assert!((0..64).any(|s| byte(&liar, s) == 0));
        let torn = |s| tearing.durable(s, 1)[0] == 1 && tearing.durable(s, 1)[511] == 0;
        assert!((0..64).any(torn));
    }
}
