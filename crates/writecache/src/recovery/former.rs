// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies in the place of a cache and is none for this version: the mark of one that another has
//! replaced, or something that only earlier or later versions can open. It is never blank, and a
//! table that names it gets an error that says what it is.
use block::Error;
use format::{Gone, LaterFormat, ReplacedMark};

use crate::config::Config;

/// What lies in the place of a cache.
pub(crate) enum Former {
    /// Another cache has replaced it. It holds nothing.
    Replaced(ReplacedMark),
    /// Only earlier versions can open it.
    Gone(Gone),
    /// Only later versions can open it.
    Later(LaterFormat),
}

/// What the places of superblock copies have, of which no two make a superblock.
#[derive(Default)]
pub(crate) struct Remains {
    mark: Option<ReplacedMark>,
    begun_mark: Option<ReplacedMark>,
    gone: Option<Gone>,
}

impl Remains {
    /// Looks at the place of a copy.
    pub(crate) fn look(&mut self, unit: &[u8]) {
        self.mark = self.mark.take().or_else(|| ReplacedMark::decode(unit));
        self.begun_mark = self.begun_mark.take().or_else(|| ReplacedMark::find(unit));
        self.gone = self.gone.or_else(|| Gone::of(unit));
    }

    /// What they are of. A mark counts first: whoever wrote it had emptied the cache.
    pub(crate) fn former(self) -> Option<Former> {
        let mark = self.mark.or(self.begun_mark).map(Former::Replaced);
        mark.or(self.gone.map(Former::Gone))
    }
}

impl Former {
    /// What `unit`, the first of an area, is of.
    pub(crate) fn of(unit: &[u8]) -> Option<Former> {
        let mut remains = Remains::default();
        remains.look(unit);
        remains.former()
    }

    /// The error of a table that names it as its cache.
    pub(crate) fn refusal(&self, config: &Config) -> Error {
        let cache = &config.cache;
        let (place, option) = match config.start_sector.0 {
            0 => (cache.clone(), String::new()),
            start => {
                let place = format!("{cache} with start_sector {start}");
                (place, format!(" --start-sector {start}"))
            }
        };
        let wipe = format!("`millpond wipe {cache}{option}`");
        Error::invalid(match self {
            // The successor may be on the same device. What it holds would be hidden.
            Former::Replaced(ReplacedMark { successor }) => format!(
                "cache device {place}: `replace-cache` has put {successor} in its place, which may \
                 hold blocks that the origin does not have: name {successor} in the table. {place} \
                 holds nothing; {wipe} makes it blank; nothing was changed"
            ),
            Former::Gone(gone) => format!(
                "cache device {place}: it holds {gone}: {}. {wipe} gives up what it holds, after \
                 it has printed a token; nothing was changed",
                gone.way_out()
            ),
            Former::Later(later) => format!(
                "cache device {place}: {later}: {}. {wipe} gives up what it holds, after it has \
                 printed a token; nothing was changed",
                LaterFormat::WAY_OUT
            ),
        })
    }
}
