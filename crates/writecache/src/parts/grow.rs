// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of a cache in parts: each part gets an area of the new space, and grows by itself.
//!
//! ```text
//!   can every part use its share? ─▶ superblock of part 0: what each got (WC-PA1)
//!     ─▶ their devices are longer ─▶ each part grows, as a cache in one part does
//! ```
//!
//! A crash or an error in between leaves parts that have grown beside others that have not. All are
//! sound, and the next growth goes on.
use std::rc::Rc;

use block::{Error, Sector, size_text};
use format::{ADDED_AREAS_MAX, Part, PartAreas};
use reactor::call;

use super::Parts;
use super::area::PartArea;
use super::division::Division;
use super::layout::area_of_each;
use crate::config::Config;
use crate::dm_target::WriteCache;
use crate::planted::Fault;

impl Division {
    /// What each part may get in an area of this length, beside what it has. Nothing, if the area
    /// was divided so before.
    fn more_of_each(&self, area: Sector) -> Option<Sector> {
        let latest = self.added.last().copied().unwrap_or(self.first.area_sectors);
        let before = self.end().0 - u64::from(self.first.of) * latest;
        let more = |end: u64| area_of_each(area.saturating_sub(Sector(end)), self.first.of);
        let is_divided = more(before) == Sector(latest);
        let may_have = Part::AREA_SECTORS_MAX - self.each().0;
        let more = more(self.end().0);
        (!is_divided && more > Sector::ZERO && more.0 <= may_have).then_some(more)
    }
}

impl Parts {
    /// Takes the space by which the cache device has grown, if it has. Returns the blocks before,
    /// and those now.
    ///
    /// # Errors
    /// As those of a cache in one part, and `EINVAL` if it has grown too often.
    pub(crate) async fn grow(&self, config: &Config) -> Result<[u64; 2], Error> {
        let place = format!("cache device {}", config.cache);
        if self.suspended.get() {
            return Err(Error::busy(format!("{place}: its cache is suspended")));
        }
        if self.is_growing.replace(true) {
            return Err(Error::busy(format!("{place}: its cache is growing")));
        }
        let before = self.blocks().await;
        let grown = self.grow_all(config, &place).await;
        self.is_growing.set(false);
        self.refresh().await;
        grown?;
        Ok([before, self.blocks().await])
    }

    async fn blocks(&self) -> u64 {
        let counts = self.ask(|part| async move { part.slot_count() }).await;
        counts.into_iter().map(u64::from).sum()
    }

    async fn grow_all(&self, config: &Config, place: &str) -> Result<(), Error> {
        let capacity = self.cache_flushes.device().limits().capacity;
        let area = capacity.saturating_sub(config.start_sector);
        let mut division = self.division.borrow().clone();
        if area < division.end() {
            return Err(Error::invalid(format!(
                "{place}: it has {}, its cache takes {}: a cache is made smaller before its device \
                 is, without a daemon, by `millpond shrink-cache`. Give the device its size back",
                size_text(area.bytes()),
                size_text(division.end().bytes())
            )));
        }
        let more = match division.more_of_each(area) {
            Some(more) if self.is_of_use(division.each() + more).await? => Some(more),
            Some(_) | None => None,
        };
        let Some(more) = more else { return self.grow_each(true).await };
        if division.added.len() == ADDED_AREAS_MAX {
            return Err(Error::invalid(format!(
                "{place}: a cache in parts grows {ADDED_AREAS_MAX} times, and it has. `millpond \
                 replace-cache` moves to a larger device; nothing was changed"
            )));
        }
        division.added.push(more.0);
        let added = division.added.clone();
        let is_early = config.planted.is(Fault::PartsGrownEarly);
        if !is_early {
            self.record(added.clone()).await?;
        }
        self.extend(config, capacity, &division).await;
        *self.division.borrow_mut() = division;
        if is_early {
            self.grow_each(false).await?;
            self.record(added).await?;
        }
        self.grow_each(true).await
    }

    /// Whether a part can use areas of this length in all.
    ///
    /// # Errors
    /// `EINVAL` if one has too little to move its metadata there.
    async fn is_of_use(&self, each: Sector) -> Result<bool, Error> {
        let mut is_of_use = false;
        for judged in self.ask(move |part| async move { part.may_grow_to(each.bytes()) }).await {
            is_of_use |= judged.map_err(|e| e.within(format!("each of {} parts", self.count())))?;
        }
        Ok(is_of_use)
    }

    /// Records what the parts have got, durably (WC-PA1).
    async fn record(&self, added: Vec<u64>) -> Result<(), Error> {
        let (first, areas) = (&self.handles[0], PartAreas { added, is_unmade: false });
        let local = first.local;
        let recorded = call(first.core, move || async move {
            let part = local.get::<WriteCache>().expect("kept as long as it is part");
            part.record_areas(areas).await
        });
        recorded.await
    }

    /// Makes the devices of the parts longer.
    async fn extend(&self, config: &Config, capacity: Sector, division: &Division) {
        for (nth, part) in (0..self.count()).zip(&self.handles) {
            let (area, areas) = (part.area, division.areas_of(config, nth, capacity));
            let extended = call(part.core, move || async move {
                area.get::<PartArea>().expect("kept as long as its part").set(areas);
            });
            extended.await;
        }
    }

    /// Each part grows, part 0 only `with_first`.
    async fn grow_each(&self, with_first: bool) -> Result<(), Error> {
        let grow = move |part: Rc<WriteCache>| async move {
            match with_first || !part.is_first_part() {
                true => part.grow_whole().await,
                false => Ok(()),
            }
        };
        self.run_all(grow).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_divided_once_is_not_divided_again() {
        let first = Part { nth: 0, of: 2, chunk_sectors: 8, area_sectors: 1024 };
        let more = |added: &[u64], area| {
            let division = Division::of_test(first, added.to_vec());
            division.more_of_each(Sector(area)).map(|more| more.0)
        };
        // As created: what is left is no area, or the area would have been larger.
        assert_eq!([more(&[], 2048), more(&[], 2063)], [None, None]);
        assert_eq!([more(&[], 2064), more(&[], 4096)], [Some(8), Some(1024)]);
        assert_eq!([more(&[1024], 4096), more(&[1024], 4111)], [None, None]);
        assert_eq!(more(&[1024], 6144), Some(1024));
        assert_eq!(more(&[Part::AREA_SECTORS_MAX - 1024], u64::MAX), None);
    }
}
