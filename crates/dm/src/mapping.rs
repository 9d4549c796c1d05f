// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How bios go through linear and striped; and the copies of flat mappings on other cores.
use std::fmt;
use std::str::FromStr;

use block::{Error, Limits, LocalFuture, MakeDevice};

use crate::flat::Flat;

/// How bios go through pure mappings (linear, striped): the attribute `mapping`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// Remapped in place, through one flat mapping for the whole stack.
    #[default]
    InPlace,
    /// As a naive device mapper does it: every layer allocates a request, copies the bio into it
    /// and sends the copy down. A user's choice, to measure what flat mappings gain.
    Clone,
}

impl Mapping {
    /// Words that mean one, in the order in which the attribute shows them.
    const WORDS: [(&'static str, Mapping); 2] =
        [("in-place", Mapping::InPlace), ("clone", Mapping::Clone)];

    /// The words alone.
    pub(crate) const NAMES: [&'static str; 2] = [Mapping::WORDS[0].0, Mapping::WORDS[1].0];

    /// All words, the one in force in brackets, as sysfs shows a choice.
    pub(crate) fn choice(self) -> String {
        let word = |(word, m): (&str, Mapping)| {
            if m == self { format!("[{word}]") } else { word.to_owned() }
        };
        Mapping::WORDS.map(word).join(" ")
    }
}

impl FromStr for Mapping {
    type Err = Error;

    fn from_str(word: &str) -> Result<Mapping, Error> {
        let word = block::value::choice("mapping", word.trim(), &Mapping::NAMES)?;
        let found = Mapping::WORDS.iter().find(|(w, _)| *w == word);
        Ok(found.expect("one of these words").1)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Mapping::WORDS.iter().find(|(_, m)| m == self);
        f.write_str(word.expect("every mapping has its word").0)
    }
}

/// Copies the devices' flat mappings, and the ways to the parts of engines, to other cores. Given
/// by the program.
pub trait Replicas {
    /// Resolves when no other core uses the mapping of device `minor` and everything that was sent
    /// through it has ended. Other cores then send requests of the device to this core.
    fn withdraw(&self, minor: u32) -> LocalFuture<()>;

    /// Other cores may use this mapping of device `minor`, until it is withdrawn.
    fn publish(&self, minor: u32, flat: &Flat);

    /// The same of a device that is one engine, divided among cores: `make` makes the way to its
    /// parts.
    fn publish_parts(&self, _minor: u32, _make: MakeDevice, _limits: &Limits) {}

    /// Other cores have no mapping of device `minor`, and it has these limits now.
    fn set_limits(&self, _minor: u32, _limits: &Limits) {}
}

/// There are no other cores.
#[derive(Debug)]
pub(crate) struct NoReplicas;

impl Replicas for NoReplicas {
    fn withdraw(&self, _minor: u32) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn publish(&self, _minor: u32, _flat: &Flat) {}
}
