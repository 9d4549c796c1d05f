// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes the write cache of a device in use away, or puts another one in its place. The states that
//! a device passes are in `dm::device::replace`.
use block::{BlockDevice, Error};
use control::{Failure, api};
use dm::{LiveTable, MappedDevice};

use super::{Engine, check_wanted};
use crate::log::long_work;

/// Drains before the swap: each leaves what clients have written meanwhile. Chosen: clients that
/// write faster than the origin must not keep the verb from its end.
const DRAINS_MAX: usize = 8;
/// So few dirty blocks are written back while requests wait. Chosen: a second of a slow disk.
const DIRTY_AT_SWAP: u64 = 256;
/// The place of the cache device among the words of a `writecache` line, and of its options.
const CACHE_WORD: usize = 2;
const OPTIONS: usize = 5;
/// The attribute with the ranges that are guarded, and the options that say whether any are.
const GUARDED_RANGES: &str = "guarded_ranges";
const GUARD_WORDS: [&str; 2] = ["guard_origin", "no_guard"];

impl Engine {
    /// Drains the caches of a device, and maps their origins in their place.
    pub(crate) async fn uncache(
        &self,
        name: &str,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Recached, Failure> {
        let device = self.dm.get(name)?;
        let instead = "its origin instead of the cache";
        check_caches_present(&device, ("uncache", instead)).await?;
        device.table_without_caches()?;
        let drained = self.drain_for_swap(name, is_wanted);
        long_work(name, "writeback before the cache is removed", drained).await?;
        let from = self.dm.live_table(name)?;
        let table = device.table_without_caches()?;
        let swapped = self.swap(name, (&from, &table), "uncached");
        self.while_written_back(name, is_wanted, swapped).await
    }

    /// Drains the cache of a device, and puts another one in its place.
    pub(crate) async fn replace_cache(
        &self,
        name: &str,
        new: &api::ReplaceCache,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Recached, Failure> {
        let instead = format!("the cache {}", new.cache);
        check_caches_present(&*self.dm.get(name)?, ("replace-cache", &instead)).await?;
        let table = self.table_with_cache(name, new).await?;
        // Before the drain, which may take long, and leaves the cache empty for nothing.
        let mark = self.files.closes_begun();
        let checked = self.dm.check_new_caches(name, &table).await;
        self.files.closed_since(mark).await;
        checked.map_err(unforced)?;
        let drained = self.drain_for_swap(name, is_wanted);
        long_work(name, "writeback before the cache is replaced", drained).await?;
        let from = self.dm.live_table(name)?;
        let table = self.table_with_cache(name, new).await?;
        let swapped = self.swap(name, (&from, &table), "cache replaced");
        self.while_written_back(name, is_wanted, swapped).await
    }

    /// Writes back what is dirty while clients work, until little is left.
    pub(super) async fn drain_for_swap(
        &self,
        name: &str,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let device = self.dm.get(name)?;
        device.check_replaceable().map_err(|e| e.within(name))?;
        for _ in 0..DRAINS_MAX {
            let drained = async { Ok(self.dm.drain(name, "").await?) };
            self.while_written_back(name, is_wanted, drained).await?;
            check_wanted(name, is_wanted)?;
            let dirty: u64 = device.unsaved().iter().map(|unsaved| unsaved.blocks()).sum();
            if dirty <= DIRTY_AT_SWAP {
                break;
            }
        }
        Ok(())
    }

    async fn swap(
        &self,
        name: &str,
        (from, table): (&LiveTable, &str),
        event: &str,
    ) -> Result<api::Recached, Failure> {
        let device = self.dm.get(name)?;
        let before = device.cache_areas();
        let mark = self.files.closes_begun();
        let swapped = self.dm.replace_table(name, from, table).await;
        self.files.closed_since(mark).await;
        swapped?;
        let after = device.cache_areas();
        let freed: Vec<String> = before.into_iter().filter(|old| !after.contains(old)).collect();
        tracing::info!(device = name, freed = freed.join(" "), "{event}");
        let (device, warnings) = (self.device(name)?, self.leaves.take_warnings());
        Ok(api::Recached {
            device,
            freed,
            table: self.table(name, api::TableSlot::Live)?,
            warnings,
        })
    }

    /// The live table with another cache device, which guards the origin if the present one does.
    async fn table_with_cache(&self, name: &str, new: &api::ReplaceCache) -> Result<String, Error> {
        let device = self.dm.get(name)?;
        let ranges = self.dm.get_attribute(name, GUARDED_RANGES).await.ok();
        let is_guarded = ranges.and_then(|ranges| ranges.number()).is_some_and(|n| n > 0);
        let mut caches = 0;
        let mut text = String::new();
        for line in device.table() {
            let mut params = line.params.clone();
            if line.kind == writecache::MANUAL.name {
                caches += 1;
                params = with_cache(&line.params, new, is_guarded)?;
            }
            text.push_str(&format!("{} {} {} {params}\n", line.start, line.len, line.kind));
        }
        match caches {
            1 => Ok(text),
            0 => device.table_without_caches(), // its error
            _ => Err(Error::invalid(format!(
                "{name}: {caches} lines of its table are write caches: `load` and `resume` replace \
                 one of them, `uncache` takes all away"
            ))),
        }
    }
}

/// The error without the offer to make the device of its origin alone: `replace-cache` does not.
fn unforced(e: Error) -> Error {
    if e.token().is_none() {
        return e;
    }
    let text = e.chain();
    let why = text.split("; nothing was changed. `--force=").next().unwrap_or_default();
    Error::new(e.kind(), format!("{why}; nothing was changed"))
}

/// Fails when a cache device is missing: nothing can be written back from it, so neither verb can
/// keep what it holds. `wanted` is the verb, and what a table without the missing device has.
async fn check_caches_present(device: &MappedDevice, wanted: (&str, &str)) -> Result<(), Error> {
    let unsaved = device.unsaved();
    let Some(missing) = unsaved.iter().find(|unsaved| unsaved.is_missing) else { return Ok(()) };
    let (name, cache, (verb, instead)) = (device.name(), &missing.cache, wanted);
    Err(Error::invalid(format!(
        "{name}: its cache device {cache} is missing: what it holds can't be written back. Bring \
         it back, then `millpond load {name}` with the same table, `millpond resume {name}` and \
         `{verb}` again. If it is lost for good, `millpond load {name}` with a table that has \
         {instead}, and `millpond resume {name}` with the token of the refusal"
    )))
}

/// The arguments of a `writecache` line with another cache device. What the old line says of the
/// old device alone is left out.
fn with_cache(params: &str, new: &api::ReplaceCache, is_guarded: bool) -> Result<String, Error> {
    let line = format!("0 1 {} {params}", writecache::MANUAL.name);
    let mut words = dm::parse(&line)?.pop().map(|line| line.args).unwrap_or_default();
    if words.len() < OPTIONS {
        return Err(Error::invalid(format!("its line `{params}` has too few words")));
    }
    let mut options: Vec<String> = Vec::new();
    let mut old = words.split_off(OPTIONS).into_iter();
    while let Some(word) = old.next() {
        match word.as_str() {
            "start_sector" => drop(old.next()),
            "adopt_origin" => {}
            _ => options.push(word),
        }
    }
    let says_guard = |word: &String| word == GUARD_WORDS[0] || word == GUARD_WORDS[1];
    if is_guarded && !options.iter().any(says_guard) {
        options.push(GUARD_WORDS[0].to_owned());
    }
    if new.start_sector > 0 {
        options.extend(["start_sector".to_owned(), new.start_sector.to_string()]);
    }
    words[CACHE_WORD].clone_from(&new.cache);
    words[OPTIONS - 1] = options.len().to_string();
    let words: Vec<String> = words.iter().chain(&options).map(|word| block::quote(word)).collect();
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_old_cache_device_is_left_out() {
        let new = |start_sector| api::ReplaceCache { cache: "/srv/n w".into(), start_sector };
        let old = "s /srv/o /srv/c 4096 6 high_watermark 60 start_sector 8 ordered adopt_origin";
        assert_eq!(
            with_cache(old, &new(0), false).unwrap(),
            "s /srv/o /srv/n\\ w 4096 3 high_watermark 60 ordered"
        );
        assert_eq!(
            with_cache("p o c 512 0", &new(16), false).unwrap(),
            "p o /srv/n\\ w 512 2 start_sector 16"
        );
        assert_eq!(
            with_cache("s o c 4096 0", &new(0), true).unwrap(),
            "s o /srv/n\\ w 4096 1 guard_origin"
        );
        let says = "s o c 4096 1 no_guard";
        assert_eq!(with_cache(says, &new(0), true).unwrap(), says.replace(" c ", " /srv/n\\ w "));
    }
}
