// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of a live device: reads, writes and commands.
//!
//! Invariants
//! - ZR-CT1 The error of a command reports what the command did before it failed.
use std::fmt::Write;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::attr;
use block::value::{Value, number, page_bytes};
use block::{BlockDevice, Error, ErrorKind};
use reactor::yield_now;

use crate::attributes::{self, ATTRIBUTES};
use crate::command::{Idle, Recompress, Writeback};
use crate::config::Config;
use crate::device::Zram;
use crate::idle::PageState;
use crate::recompress::Recompressed;
use crate::shared::{Shared, Totals};
use crate::stats;
use crate::store::OBJECT_BYTES_MAX;
use crate::writeback::Outcome;

/// Bytes of a line of `block_state`, about.
const STATE_BYTES: usize = 40;
/// Lines that are written in one go.
const LINES_AT_ONCE: usize = 2048;

/// Applies the settings that can change at any time.
pub(crate) fn apply(config: &Config, shared: &Shared) {
    shared.memory.set_limit(config.mem_limit_pages());
    shared.batch_pages.store(config.writeback_batch_size, Relaxed);
    shared.inflight.store(config.writeback_inflight, Relaxed);
    shared.budget.set_on(config.writeback_limit_enable);
}

impl Zram {
    /// Reads an attribute (ZR-Z6).
    pub(crate) async fn get(self: &Rc<Self>, name: &str) -> Result<Value, Error> {
        let text = match name {
            "disksize" => return Ok(self.limits().capacity.bytes().into()),
            "initstate" => return Ok(true.into()),
            "writeback_limit" => return Ok(self.shared.budget.left().into()),
            "last_error" => self.last_error().await.unwrap_or_default(),
            "block_state" => self.block_state().await,
            _ => match stats::text(name, &self.totals(), &self.auto.totals()) {
                Some(text) => text,
                None => return attributes::of_config(name, &self.config.borrow()),
            },
        };
        Ok(text.into())
    }

    async fn block_state(self: &Rc<Self>) -> String {
        let Some(parts) = self.parts() else { return String::new() };
        let of_parts = parts.ask(|part| part.states()).await;
        let pages: usize = of_parts.iter().map(Vec::len).sum();
        let mut text = String::with_capacity(pages * STATE_BYTES);
        // Each is in order: the next page is the first one of some part.
        let mut lists: Vec<_> = of_parts.into_iter().map(Vec::into_iter).collect();
        for nth in 1..=pages {
            let first = |list: &std::vec::IntoIter<PageState>| match list.as_slice() {
                [(slot, ..), ..] => *slot,
                [] => u64::MAX,
            };
            let next = lists.iter_mut().min_by_key(|list| first(list));
            let Some((slot, accessed, letters)) = next.and_then(Iterator::next) else { break };
            let letters = letters.map(char::from).iter().collect::<String>();
            let _ = writeln!(text, "{slot:12} {accessed:12}.000000 {letters}");
            if nth % LINES_AT_ONCE == 0 {
                yield_now().await;
            }
        }
        text
    }

    /// Sets an attribute, or runs the command that it stands for.
    pub(crate) async fn set(self: &Rc<Self>, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "writeback" => self.writeback(value).await,
            "recompress" => self.recompress(value).await,
            "idle" => self.idle(Idle::parse(value)?).await,
            "compact" => self.compact().await,
            "reset" => self.reset(value).await,
            "mem_used_max" => {
                number(name, value.trim(), 0..=0u64)?;
                self.shared.memory.reset_max_used();
                Ok(())
            }
            "writeback_limit" => {
                self.config.borrow_mut().set(name, value.trim())?;
                self.shared.budget.set_left(self.config.borrow().writeback_limit);
                Ok(())
            }
            "disksize" => {
                page_bytes(name, value.trim())?;
                Err(self.initialised(name))
            }
            _ if attributes::is_fixed(name) => Err(self.initialised(name)),
            _ => {
                let settable = attr::find(&ATTRIBUTES, name).is_some_and(|a| a.set.is_some());
                if !settable {
                    return Err(attributes::not_settable(name));
                }
                let mut config = self.config.borrow().clone();
                config.set(name, value.trim())?;
                config.check()?;
                self.config.replace(config);
                apply(&self.config.borrow(), &self.shared);
                crate::auto_writeback::start(self);
                Ok(())
            }
        }
    }

    fn initialised(&self, name: &str) -> Error {
        Error::busy(format!("{}: {name} can't be set while the device has a size", self.name))
    }

    async fn idle(self: &Rc<Self>, which: Idle) -> Result<(), Error> {
        let parts = self.running()?;
        parts.ask(move |part| part.mark_idle(which)).await;
        Ok(())
    }

    async fn compact(self: &Rc<Self>) -> Result<(), Error> {
        let _lock = self.lock_commands().await?;
        self.running()?.ask(|part| part.compact()).await;
        self.not_cancelled("compact", "what was moved stays")
    }

    async fn reset(self: &Rc<Self>, value: &str) -> Result<(), Error> {
        number("reset", value.trim(), 1..=u64::MAX)?;
        match self.on_reset() {
            Some(reset) => reset().await,
            None => Err(Error::busy(format!("{}: it can't be reset here", self.name))),
        }
    }

    async fn recompress(self: &Rc<Self>, text: &str) -> Result<(), Error> {
        self.running()?;
        let algorithms = self.config.borrow().algorithms();
        let huge = u32::try_from(OBJECT_BYTES_MAX).expect("less than a page") + 1;
        let how = Recompress::parse(text, &algorithms, huge)?;
        let _lock = self.lock_commands().await?;
        let done = self.running()?.ask(move |part| part.recompress(how.clone())).await;
        let done = done.into_iter().fold(Recompressed::default(), Recompressed::and);
        let so_far = format!("{} pages tried, {} shrunk", done.tried, done.shrunk);
        if let Some(slot) = done.damaged {
            return Err(Error::io(format!("recompress: slot {slot} can't be read; {so_far}")));
        }
        if done.no_memory {
            let e = format!("recompress: mem_limit leaves no room to work; {so_far}");
            return Err(Error::new(ErrorKind::NoSpace, e));
        }
        self.not_cancelled("recompress", &so_far)
    }

    fn not_cancelled(&self, command: &str, so_far: &str) -> Result<(), Error> {
        if self.shared.cancel.load(Relaxed) {
            return Err(Error::busy(format!("{command}: ended by a suspend; {so_far}")));
        }
        Ok(())
    }

    async fn writeback(self: &Rc<Self>, text: &str) -> Result<(), Error> {
        self.running()?;
        if !self.has_backing() {
            let e = format!("{}: writeback needs a backing_dev", self.name);
            return Err(Error::new(ErrorKind::NoDevice, e));
        }
        let which = Writeback::parse(text, self.layout.slots)?;
        let outcome = self.write_back(which).await?;
        check(&outcome)?;
        let so_far = format!("{} pages written", outcome.pages);
        self.not_cancelled("writeback", &so_far)
    }

    /// Writes pages back; for the automatic policy, too.
    pub(crate) async fn write_back(self: &Rc<Self>, which: Writeback) -> Result<Outcome, Error> {
        let _lock = self.lock_commands().await?;
        let parts = self.running()?;
        let count = parts.layout().parts;
        let done = parts
            .ask(move |part| {
                let which = which.of_part(part.plan.nth, count);
                async move { part.freeing(part.writeback(&which)).await }
            })
            .await;
        Ok(done.into_iter().fold(Outcome::default(), Outcome::and))
    }

    /// The last error of each part that had one.
    async fn last_error(self: &Rc<Self>) -> Option<String> {
        let errors = self.parts()?.ask(|part| async move { part.last_error() }).await;
        let errors: Vec<String> = errors.into_iter().flatten().collect();
        Some(errors.join("; ")).filter(|text| !text.is_empty())
    }

    /// Everything that attributes and status show.
    pub(crate) fn totals(&self) -> Totals {
        self.shared.totals()
    }
}

/// The error of a writeback that could not write all selected pages (ZR-CT1).
fn check(outcome: &Outcome) -> Result<(), Error> {
    let so_far = format!("{} pages written of {}", outcome.pages, outcome.candidates);
    if let Some((slot, status)) = &outcome.error {
        return Err(Error::io(format!(
            "writeback: slot {slot}: the backing device failed: {status}; {so_far}"
        )));
    }
    if outcome.limit_reached {
        let e = format!("writeback: writeback_limit reached; {so_far}");
        return Err(Error::new(ErrorKind::Limit, e));
    }
    if outcome.no_space {
        let e = format!("writeback: the backing device has no free block; {so_far}");
        return Err(Error::new(ErrorKind::NoSpace, e));
    }
    Ok(())
}
