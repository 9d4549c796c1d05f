// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings: a device that has no size yet, as a hot-added one of the kernel. Attributes are set
//! one by one, in any order; the one that makes it a device is `disksize`.
//!
//! ```text
//!   backing_dev /img   comp_algorithm zstd   ...      disksize 6G
//!        └──────────────────┴── Settings ──────────────┘ └──▶ Start: a table line
//! ```
//!
//! Invariants
//! - ZR-SE1 A refused value changes nothing.
//! - ZR-SE2 A [`Start`] is a table line that parses, as long as its dictionary is still there.
use block::attr::{self, Spec};
use block::value::{Value, number, page_bytes};
use block::{Error, Sector};
use policy::IdleTotals;

use crate::algorithms::Files;
use crate::attributes::{self, ATTRIBUTES};
use crate::command::Idle;
use crate::config::Config;
use crate::shared::Totals;
use crate::stats;

/// An unconfigured device.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    config: Config,
}

/// The table line that makes a device of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its length.
    pub len: Sector,
    /// The arguments after the target's name.
    pub args: Vec<String>,
}

impl Settings {
    /// As a device that was just added.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// The attributes: those of a live device.
    pub fn attributes(&self) -> Vec<&'static Spec> {
        attributes::specs()
    }

    /// Reads an attribute: settings, and a device in which nothing is.
    ///
    /// # Errors
    /// `EACCES` for one that can only be written, `ENXIO` for one that is not there.
    pub fn get(&self, name: &str) -> Result<Value, Error> {
        let totals = Totals { mem_limit_pages: self.config.mem_limit_pages(), ..Totals::default() };
        let text = match name {
            "initstate" => return Ok(false.into()),
            "block_state" | "last_error" => String::new(),
            _ => match stats::text(name, &totals, &IdleTotals::default()) {
                Some(text) => text,
                None => return attributes::of_config(name, &self.config),
            },
        };
        Ok(text.into())
    }

    /// Sets an attribute. When that makes it a device, returns its table line; these settings stay
    /// as they are until [`Settings::reset`].
    ///
    /// # Errors
    /// `EINVAL` for a value that is wrong, or that nothing can be done with before `disksize`;
    /// `EACCES` for an attribute that can only be read, `ENXIO` for one that is not there; and
    /// what looking at a backing device or reading a dictionary gives.
    pub fn set(
        &mut self,
        name: &str,
        value: &str,
        files: &dyn Files,
    ) -> Result<Option<Start>, Error> {
        let value = value.trim();
        match name {
            "disksize" => return self.start(value).map(Some),
            "comp_algorithm" => self.config.choice.set_primary(value)?,
            "recomp_algorithm" => {
                self.config.choice.set_secondary(value.split_ascii_whitespace())?;
            }
            "algorithm_params" => {
                self.config.choice.set_params(value.split_ascii_whitespace(), files)?;
            }
            "backing_dev" => {
                if value != "none" {
                    let wrong = |e: Error| e.within(name);
                    named(value).and_then(|()| files.backing(value)).map_err(wrong)?;
                }
                self.config.set(name, value)?;
            }
            "reset" => {
                number(name, value, 1..=u64::from(u16::MAX))?;
                self.reset();
            }
            "mem_used_max" => {
                number(name, value, 0..=0u64)?;
            }
            "idle" => match Idle::parse(value)? {
                Idle::All => return Err(not_initialised(name)),
                Idle::Age(_) => {} // as in the kernel: no page is as old
            },
            "compact" | "writeback" | "recompress" => return Err(not_initialised(name)),
            _ => {
                let settable = attr::find(&ATTRIBUTES, name).is_some_and(|a| a.set.is_some());
                if !settable {
                    return Err(attributes::not_settable(name));
                }
                self.config.set(name, value)?;
            }
        }
        Ok(None)
    }

    /// Everything is as in a device that was just added.
    pub fn reset(&mut self) {
        *self = Settings::new();
    }

    fn start(&self, size: &str) -> Result<Start, Error> {
        let bytes = page_bytes("disksize", size)?;
        if bytes == 0 {
            return Err(Error::invalid(format!("disksize: `{size}`: at least 1 is allowed")));
        }
        let config = Config { len: Sector::from_bytes(bytes), ..self.config.clone() };
        config.check().map_err(|e| e.within("disksize"))?;
        Ok(Start { len: config.len, args: config.words() })
    }
}

/// ZR-SE2: a line feed ends a table line, whatever quotes it.
fn named(device: &str) -> Result<(), Error> {
    if device.contains('\n') {
        return Err(Error::invalid(format!("`{device}`: a name without line feeds is allowed")));
    }
    if device.is_empty() {
        return Err(Error::invalid("a block device, a regular file, a leaf, or `none` is allowed"));
    }
    Ok(())
}

fn not_initialised(name: &str) -> Error {
    Error::invalid(format!("{name}: the device has no size yet: set disksize first"))
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
