// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Algorithms of a device and their parameters: the words of `comp_algorithm`, `recomp_algorithm`
//! and `algorithm_params`.
//!
//! ```text
//!   priority 0   comp_algorithm                  lz4 unless set otherwise
//!   priority 1   recomp_algorithm algo=zstd priority=1      algorithm_params priority=1 level=8
//!   priority 2   ...
//! ```
//!
//! Invariants
//! - ZR-AL1 Parameters belong to a priority, as in the kernel: they may be set before its algorithm
//!   is, each setting replaces the one before as a whole, and [`Choice::check`] has the last word.
use std::fmt::Write;
use std::sync::Arc;

use block::Error;
use block::value::{number, signed};

use crate::codec::{self, Algorithm, Params};
use crate::codecs::{Algorithms, PRIORITIES};
use crate::command::secondary;

/// Largest dictionary. More is never worth it for pages of 4 KiB: lz4 looks back 64 KiB only, and
/// zstd is trained to about 100 KiB.
pub const DICTIONARY_BYTES_MAX: usize = 1 << 20;

/// Files of the machine, by the program. Engines open none.
pub trait Files {
    /// The content of a regular file: a dictionary of `algorithm_params`. Files beyond
    /// [`DICTIONARY_BYTES_MAX`] are refused without being read.
    ///
    /// # Errors
    /// `ENXIO` when there is none of this name, `EINVAL` when it is no regular file or too long.
    fn read(&self, path: &str) -> Result<Vec<u8>, Error>;

    /// Whether `device` can be a backing device as far as can be seen without opening it: that a
    /// path names a block device or a regular file, and any other word a leaf or mapped device.
    ///
    /// # Errors
    /// `ENXIO` when there is none of this name, `EINVAL` when it is of another sort or empty,
    /// `EACCES` when it may not be written.
    fn backing(&self, device: &str) -> Result<(), Error>;
}

/// No files at all: every dictionary and every backing device is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        Err(Error::not_found(format!("{path}: no such file")))
    }

    fn backing(&self, device: &str) -> Result<(), Error> {
        Err(Error::not_found(format!("{device}: no such device or file")))
    }
}

/// Parameters of one priority.
#[derive(Clone, Debug, Default)]
struct Parameters {
    params: Params,
    /// Where the dictionary came from.
    dict: Option<String>,
}

/// Algorithms and parameters by priority.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    algorithms: [Option<Algorithm>; PRIORITIES],
    given: [Option<Parameters>; PRIORITIES],
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { algorithms: [Some(Algorithm::Lz4), None, None, None], given: Default::default() }
    }
}

/// `key=value` words, in a row.
fn pairs<'a>(
    what: &'a str,
    words: impl Iterator<Item = &'a str> + 'a,
    allowed: &'a str,
) -> impl Iterator<Item = Result<(&'a str, &'a str), Error>> + 'a {
    words.map(move |word| {
        word.split_once('=')
            .ok_or_else(|| Error::invalid(format!("{what}: `{word}`: {allowed} are allowed")))
    })
}

impl Choice {
    /// Sets the primary algorithm.
    pub(crate) fn set_primary(&mut self, name: &str) -> Result<(), Error> {
        self.algorithms[0] = Some(Algorithm::parse(name)?);
        Ok(())
    }

    /// Sets an algorithm of recompression: `algo=NAME` and perhaps `priority=1..3`.
    pub(crate) fn set_secondary<'a>(
        &mut self,
        words: impl Iterator<Item = &'a str> + 'a,
    ) -> Result<(), Error> {
        let what = "recomp_algorithm";
        let allowed = "algo=NAME and priority=1 to 3";
        let (mut algo, mut priority) = (None, 1);
        for pair in pairs(what, words, allowed) {
            match pair? {
                ("algo", name) => algo = Some(Algorithm::parse(name)?),
                ("priority", p) => priority = secondary("recomp_algorithm: priority", p)?,
                (key, _) => {
                    let e = format!("{what}: unknown key `{key}`: {allowed} are allowed");
                    return Err(Error::invalid(e));
                }
            }
        }
        let missing = || Error::invalid(format!("{what}: no algo=NAME: {allowed} are allowed"));
        self.algorithms[usize::from(priority)] = Some(algo.ok_or_else(missing)?);
        Ok(())
    }

    /// Sets the parameters of one priority: `priority=N` or `algo=NAME`, and what is wanted of
    /// `level=`, `dict=` and `deflate.winbits=`. Without either it is the primary algorithm's.
    pub(crate) fn set_params<'a>(
        &mut self,
        words: impl Iterator<Item = &'a str> + 'a,
        files: &dyn Files,
    ) -> Result<(), Error> {
        let what = "algorithm_params";
        let allowed = "priority= or algo=, level=, dict= and deflate.winbits=";
        let (mut priority, mut algo) = (None, None);
        let mut given = Parameters::default();
        for pair in pairs(what, words, allowed) {
            match pair? {
                ("priority", p) => {
                    let max = PRIORITIES as u64 - 1;
                    let p = number("algorithm_params: priority", p, 0..=max)?;
                    priority = Some(usize::try_from(p).expect("at most 3"));
                }
                ("algo", name) => algo = Some(Algorithm::parse(name)?),
                ("level", level) => {
                    given.params.level = Some(signed("algorithm_params: level", level)?);
                }
                ("dict", path) => given.dict = Some(path.to_owned()),
                ("deflate.winbits", bits) => {
                    let bits = signed("algorithm_params: deflate.winbits", bits)?;
                    given.params.winbits = Some(bits);
                }
                (key, _) => {
                    let e = format!("{what}: unknown key `{key}`: {allowed} are allowed");
                    return Err(Error::invalid(e));
                }
            }
        }
        let priority = self.priority(priority, algo)?;
        if let Some(path) = &given.dict {
            given.params.dict = Some(dictionary(path, files)?);
        }
        if let Some(algorithm) = self.algorithms[priority] {
            codec::check(algorithm, &given.params).map_err(|e| e.within(what))?;
        }
        self.given[priority] = Some(given);
        Ok(())
    }

    fn priority(&self, priority: Option<usize>, algo: Option<Algorithm>) -> Result<usize, Error> {
        let Some(algo) = algo else { return Ok(priority.unwrap_or(0)) };
        let mut all = (0..PRIORITIES).filter(|p| self.algorithms[*p] == Some(algo));
        let found = match priority {
            Some(p) => all.find(|a| *a == p),
            None => all.next(),
        };
        found.ok_or_else(|| {
            let at = priority.map(|p| format!("priority={p} ")).unwrap_or_default();
            Error::invalid(format!(
                "algorithm_params: {at}algo={}: the device does not use this algorithm there; \
                 it has {}",
                algo.name(),
                self.names()
            ))
        })
    }

    /// The algorithms in use, for messages.
    fn names(&self) -> String {
        let named = |(p, a): (usize, &Option<Algorithm>)| Some(format!("{p} {}", (*a)?.name()));
        let named: Vec<String> = self.algorithms.iter().enumerate().filter_map(named).collect();
        named.join(", ")
    }

    /// Whether every priority with parameters has an algorithm, which can use them (ZR-AL1).
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (priority, given) in self.given.iter().enumerate() {
            let Some(given) = given else { continue };
            let what = format!("algorithm_params: priority={priority}");
            let Some(algorithm) = self.algorithms[priority] else {
                return Err(Error::invalid(format!(
                    "{what}: there is no recomp_algorithm of this priority; the device has {}",
                    self.names()
                )));
            };
            codec::check(algorithm, &given.params).map_err(|e| e.within(what))?;
        }
        Ok(())
    }

    /// The algorithms with their parameters.
    pub(crate) fn algorithms(&self) -> Algorithms {
        std::array::from_fn(|priority| {
            let given = self.given[priority].as_ref();
            let params = given.map(|g| g.params.clone()).unwrap_or_default();
            Some((self.algorithms[priority]?, params))
        })
    }

    /// The primary algorithm.
    pub(crate) fn primary(&self) -> Algorithm {
        self.algorithms[0].expect("set when made, and only ever replaced")
    }

    /// The options of a table line for this choice, without the primary algorithm.
    pub(crate) fn options(&self, give: &mut impl FnMut(&str, String)) {
        for (priority, algorithm) in self.algorithms.iter().enumerate().skip(1) {
            if let Some(algorithm) = algorithm {
                let value = format!("algo={},priority={priority}", algorithm.name());
                give("recomp_algorithm", value);
            }
        }
        for (priority, given) in self.given.iter().enumerate() {
            let Some(Parameters { params, dict }) = given else { continue };
            let mut value = format!("priority={priority}");
            let known = [
                ("level", params.level.map(|n| n.to_string())),
                ("dict", dict.clone()),
                ("deflate.winbits", params.winbits.map(|n| n.to_string())),
            ];
            for (key, given) in known {
                if let Some(given) = given {
                    write!(value, ",{key}={given}").expect("a string takes everything");
                }
            }
            give("algorithm_params", value);
        }
    }

    /// What `comp_algorithm` shows: all that there are, the current one in brackets.
    pub(crate) fn show_primary(&self) -> String {
        list(self.primary())
    }

    /// What `recomp_algorithm` shows: a line for each priority that has one.
    pub(crate) fn show_secondaries(&self) -> String {
        let line = |(p, a): (usize, &Option<Algorithm>)| Some(format!("#{p}: {}", list((*a)?)));
        let lines: Vec<String> =
            self.algorithms.iter().enumerate().skip(1).filter_map(line).collect();
        lines.join("\n")
    }
}

fn list(current: Algorithm) -> String {
    let named = Algorithm::ALL.map(|a| match a == current {
        true => format!("[{}]", a.name()),
        false => a.name().to_owned(),
    });
    named.join(" ")
}

fn dictionary(path: &str, files: &dyn Files) -> Result<Arc<[u8]>, Error> {
    let what = format!("algorithm_params: dict={path}");
    // A table line separates parameters by commas.
    if path.is_empty() || path.contains(',') {
        return Err(Error::invalid(format!("{what}: a path without commas is allowed")));
    }
    let bytes = files.read(path).map_err(|e| e.within("algorithm_params: dict"))?;
    if bytes.is_empty() || bytes.len() > DICTIONARY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{what}: has {} bytes: 1 to {DICTIONARY_BYTES_MAX} are allowed",
            bytes.len()
        )));
    }
    Ok(bytes.into())
}
