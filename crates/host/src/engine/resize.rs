// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives a device in use another size, or lets its caches follow their cache devices, which have
//! grown.
//!
//! Another size: The table is swapped as `uncache` does it: the caches of the
//! device hold nothing at that moment, so a cache adopts the new size whenever the daemon dies.
use block::{Error, Sector, size_text};
use control::{Failure, api};
use dm::ResizedTable;

use super::Engine;
use crate::leaf_word::{LeafWord, parse};

impl Engine {
    /// Drains the caches of a device, and puts the table of another size in place. A device that
    /// has that size already stays as it is.
    pub(crate) async fn resize(
        &self,
        name: &str,
        how: &api::Resize,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Resized, Failure> {
        if how.cache {
            return self.grow_caches(name, how).await;
        }
        let resized = self.resized_table(name, how).await?;
        let ResizedTable { before, after, .. } = resized;
        if after != before {
            self.drain_for_swap(name, is_wanted).await?;
            let from = self.dm.live_table(name)?;
            let ResizedTable { text, after, .. } = self.resized_table(name, how).await?;
            let mark = self.files.closes_begun();
            let swapped = async { Ok(self.dm.replace_table(name, &from, &text).await?) };
            let swapped = self.while_written_back(name, is_wanted, swapped).await;
            self.files.closed_since(mark).await;
            swapped?;
            let (from, to) = (size_text(before.bytes()), size_text(after.bytes()));
            tracing::info!(device = name, before = from, after = to, "device resized");
            self.warn_if_shorter(name, before);
            if let Err(failure) = self.update_disk(name).await {
                self.leaves.warn(failure.message);
            }
        }
        if after == before && how.size_bytes.is_none() {
            for below in self.dm.deps(name)? {
                if let Some(why) = fixed_size(&below.name) {
                    self.leaves.warn(format!("{name}: {why}"));
                }
            }
        }
        self.resized_answer(name, before.0, Vec::new())
    }

    pub(super) fn sectors_of(&self, name: &str) -> Sector {
        self.dm.info(name).map_or(Sector::ZERO, |info| Sector(info.size_sectors))
    }

    /// Clients that have a device open which has become shorter may not know it.
    pub(super) fn warn_if_shorter(&self, name: &str, before: Sector) {
        let after = self.sectors_of(name);
        let opens = self.dm.info(name).map_or(0, |info| info.open_count);
        if after >= before || opens == 0 {
            return;
        }
        let (from, to) = (size_text(before.bytes()), size_text(after.bytes()));
        self.leaves.warn(format!(
            "{name}: is shorter now ({to}, was {from}) and opened {opens} times: a client of NBD \
             knows the old size until it connects again, qemu with reconnect-delay even then; \
             `millpond clients` shows who must be started again"
        ));
    }

    fn resized_answer(
        &self,
        name: &str,
        sectors_before: u64,
        caches: Vec<api::GrownCache>,
    ) -> Result<api::Resized, Failure> {
        let (device, table) = (self.device(name)?, self.table(name, api::TableSlot::Live)?);
        let warnings = self.leaves.take_warnings();
        Ok(api::Resized { device, sectors_before, table, caches, warnings })
    }

    /// Lets the write caches of a device take the space by which their cache devices have grown.
    async fn grow_caches(&self, name: &str, how: &api::Resize) -> Result<api::Resized, Failure> {
        if how.size_bytes.is_some() || how.force.is_some() {
            let text = "with `cache` the size is that of the cache device, and nothing is forced";
            return Err(Error::invalid(format!("{name}: {text}")).into());
        }
        self.dm.read_sizes(name).await?;
        let device = self.dm.get(name)?;
        let lines = device.table().into_iter().filter(|l| l.kind == writecache::MANUAL.name);
        let mut caches = Vec::new();
        for (line, cache) in lines.zip(device.cache_devices()) {
            let answer = self.dm.message(name, Sector(line.start), vec!["grow".into()]).await?;
            let numbers: Vec<u64> = answer.split(' ').filter_map(|n| n.parse().ok()).collect();
            let &[blocks_before, blocks, block_bytes] = &numbers[..] else {
                unreachable!("the target answers so: {answer}")
            };
            let size = |blocks: u64| size_text(blocks * block_bytes);
            if blocks == blocks_before {
                let why = fixed_size(&cache).map(|why| format!("{name}: {why}"));
                why.into_iter().for_each(|why| self.leaves.warn(why));
            } else {
                let (before, after) = (size(blocks_before), size(blocks));
                tracing::info!(device = name, cache, before, after, "cache has grown");
            }
            caches.push(api::GrownCache { cache, blocks, blocks_before, block_bytes });
        }
        if caches.is_empty() {
            return Err(Error::invalid(format!("{name}: its table has no write cache")).into());
        }
        self.resized_answer(name, self.device(name)?.size_sectors, caches)
    }

    async fn resized_table(&self, name: &str, how: &api::Resize) -> Result<ResizedTable, Failure> {
        let size = how.size_bytes.map(|bytes| whole_sectors(name, bytes)).transpose()?;
        let resized = self.dm.resized_table(name, size).await?;
        self.dm.check_resize(name, &resized, how.force.as_deref())?;
        Ok(resized)
    }
}

/// Why the size of a leaf that is open does not change.
fn fixed_size(word: &str) -> Option<String> {
    let again = "`remove` the device and `create` it again to read it";
    match parse(word).ok()? {
        LeafWord::Path(_) => None,
        LeafWord::Nbd(_) => {
            let e = "an NBD server tells the size of its export when a connection begins";
            Some(format!("{word}: {e}: {again}"))
        }
        LeafWord::Pmem(_) => Some(format!("{word}: its size is that of its mapping: {again}")),
        LeafWord::Mem(_) | LeafWord::Null(_) => Some(format!("{word}: its name has its size")),
    }
}

fn whole_sectors(name: &str, bytes: u64) -> Result<Sector, Error> {
    let sectors = Sector::from_bytes(bytes);
    if sectors.bytes() == bytes {
        return Ok(sectors);
    }
    Err(Error::invalid(format!("{name}: size {bytes}: must be a multiple of 512 bytes")))
}
