// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives a device in use another size. The table is swapped as `uncache` does it: the caches of the
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
        let resized = self.resized_table(name, how).await?;
        let ResizedTable { before, after, .. } = resized;
        if after != before {
            self.drain_for_swap(name, is_wanted).await?;
            let from = self.dm.live_table(name)?;
            let ResizedTable { text, after, .. } = self.resized_table(name, how).await?;
            let mark = self.files.closes_begun();
            let swapped = self.dm.replace_table(name, &from, &text).await;
            self.files.closed_since(mark).await;
            swapped?;
            let (from, to) = (size_text(before.bytes()), size_text(after.bytes()));
            tracing::info!(device = name, before = from, after = to, "device resized");
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
        Ok(api::Resized {
            device: self.device(name)?,
            sectors_before: before.0,
            table: self.table(name, api::TableSlot::Live)?,
            warnings: self.leaves.take_warnings(),
        })
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
