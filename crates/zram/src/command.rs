// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands: parses what is written to `writeback`, `recompress` and `idle`, for the whole device,
//! and selects the slots of one part.
//!
//! ```text
//!   "idle page_indexes=100-999"  ->  Writeback { kinds, pages: slots of the device }
//!                                        | of_part
//!                                    PageSelection { kinds, pages: slots of the part }
//! ```
//!
//! Invariants
//! - ZR-CM1 Every word counts: an unknown or contradictory one refuses the whole command, before
//!   anything is done.
//! - ZR-CM2 Ranges of pages are ascending, do not overlap and do not touch: each slot is visited
//!   once.
use std::ops::Range;

use block::value::{TimeUnit, number, time_in};
use block::{Error, ErrorKind};

use crate::codec::Algorithm;
use crate::codecs::{Algorithms, PRIORITIES};
use crate::layout::Layout;
use crate::slot::{Flags, Slot};

/// Selects slots by their flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Marked idle and not accessed since.
    Idle,
    /// Stored uncompressed.
    Huge,
    /// Both.
    HugeIdle,
    /// All algorithms have failed on them.
    Incompressible,
    /// Last accessed at or before this second of the device's clock. Not in the words
    /// of a command: the automatic policy uses it.
    Aged(u32),
    /// Both `Aged` and huge.
    HugeAged(u32),
}

impl Kind {
    fn parse(attribute: &str, word: &str) -> Result<Kind, Error> {
        match word {
            "idle" => Ok(Kind::Idle),
            "huge" => Ok(Kind::Huge),
            "huge_idle" => Ok(Kind::HugeIdle),
            "incompressible" => Ok(Kind::Incompressible),
            _ => Err(Error::invalid(format!(
                "{attribute}: `{word}`: idle, huge, huge_idle and incompressible are allowed"
            ))),
        }
    }

    /// Whether `slot` is of this kind.
    pub(crate) fn takes(self, slot: Slot) -> bool {
        match self {
            Kind::Idle => slot.has(Flags::IDLE),
            Kind::Huge => slot.has(Flags::HUGE),
            Kind::HugeIdle => slot.has(Flags::HUGE) && slot.has(Flags::IDLE),
            Kind::Incompressible => slot.has(Flags::INCOMPRESSIBLE),
            Kind::Aged(second) => slot.accessed <= second,
            Kind::HugeAged(second) => slot.has(Flags::HUGE) && slot.accessed <= second,
        }
    }
}

/// A write to `writeback`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writeback {
    pub(crate) kinds: Vec<Kind>,
    /// Slots of the device, whatever their kind (ZR-CM2).
    pub(crate) pages: Vec<Range<u64>>,
    /// Pages at most.
    pub(crate) max_pages: u64,
    /// Pages that may be moved on the backing device to make room for them.
    pub(crate) max_moved: u64,
}

impl Writeback {
    /// Slots of one kind, `max_pages` of them at most.
    pub(crate) fn of_kind(kind: Kind, max_pages: u64) -> Writeback {
        Writeback { kinds: vec![kind], pages: Vec::new(), max_pages, max_moved: u64::MAX }
    }

    /// Reads the words of a write to `writeback` of a device of `slots` pages.
    ///
    /// # Errors
    /// `EINVAL` names the word; `ERANGE` for a page beyond the end.
    pub(crate) fn parse(text: &str, slots: u64) -> Result<Writeback, Error> {
        let (mut kinds, mut pages) = (Vec::new(), Vec::new());
        for word in text.split_ascii_whitespace() {
            match word.split_once('=') {
                None | Some(("type", _)) => {
                    let name = word.strip_prefix("type=").unwrap_or(word);
                    let kind = Kind::parse("writeback", name)?;
                    if !kinds.contains(&kind) {
                        kinds.push(kind);
                    }
                }
                Some(("page_index", index)) => {
                    let index = page(word, index, slots)?;
                    pages.push(index..index + 1);
                }
                Some(("page_indexes", ends)) => {
                    let (low, high) = ends.split_once('-').ok_or_else(|| {
                        Error::invalid(format!("writeback: `{word}`: LOW-HIGH is allowed"))
                    })?;
                    let (low, high) = (digits(word, low)?, digits(word, high)?);
                    if low > high {
                        return Err(Error::new(
                            ErrorKind::Range,
                            format!("writeback: `{word}`: the lower page comes first"),
                        ));
                    }
                    within(word, high, slots)?;
                    pages.push(low..high + 1);
                }
                Some((key, _)) => {
                    return Err(Error::invalid(format!(
                        "writeback: `{word}`: unknown key `{key}`: type=, page_index= and \
                         page_indexes=LOW-HIGH are allowed"
                    )));
                }
            }
        }
        if kinds.is_empty() && pages.is_empty() {
            return Err(Error::invalid(
                "writeback: no pages named: idle, huge, huge_idle, incompressible, type=, \
                 page_index= and page_indexes=LOW-HIGH are allowed",
            ));
        }
        let pages = merged(pages);
        Ok(Writeback { kinds, pages, max_pages: u64::MAX, max_moved: u64::MAX })
    }

    /// The selection of one `part` of `parts`.
    pub(crate) fn of_part(&self, part: u32, parts: u32) -> PageSelection {
        // The slots of the part that come before slot `at` of the device.
        let local = |at| Layout { slots: at, parts }.slots_of(part);
        let pages = self.pages.iter().map(|r| local(r.start)..local(r.end));
        PageSelection {
            kinds: self.kinds.clone(),
            pages: merged(pages.filter(|r| !r.is_empty()).collect()),
            max_pages: share(self.max_pages, part, parts),
            max_moved: share(self.max_moved, part, parts),
        }
    }
}

fn digits(word: &str, text: &str) -> Result<u64, Error> {
    number(&format!("writeback: `{word}`"), text, 0..=u64::MAX)
}

fn within(word: &str, index: u64, slots: u64) -> Result<(), Error> {
    if index < slots {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Range,
        format!("writeback: `{word}`: beyond the end: the device's last page is {}", slots - 1),
    ))
}

fn page(word: &str, text: &str, slots: u64) -> Result<u64, Error> {
    let index = digits(word, text)?;
    within(word, index, slots)?;
    Ok(index)
}

/// The same slots, ascending, without overlap and without neighbours (ZR-CM2).
fn merged<T: Ord + Copy>(mut ranges: Vec<Range<T>>) -> Vec<Range<T>> {
    ranges.sort_unstable_by_key(|r| (r.start, r.end));
    let mut out: Vec<Range<T>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            Some(_) | None => out.push(range),
        }
    }
    out
}

/// The slots of one part that a writeback visits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageSelection {
    pub(crate) kinds: Vec<Kind>,
    /// Local slots, whatever their kind (ZR-CM2).
    pub(crate) pages: Vec<Range<u32>>,
    /// Pages at most.
    pub(crate) max_pages: u64,
    /// Pages that may be moved on the backing device to make room for them.
    pub(crate) max_moved: u64,
}

impl PageSelection {
    /// The runs of slots to visit, ascending, of a part that has `slots`: all of them only when
    /// they are selected by kind.
    pub(crate) fn runs(&self, slots: u32) -> Vec<Range<u32>> {
        if !self.kinds.is_empty() {
            return std::iter::once(0..slots).collect();
        }
        let cut = |r: &Range<u32>| r.start.min(slots)..r.end.min(slots);
        self.pages.iter().map(cut).filter(|r| !r.is_empty()).collect()
    }

    /// Whether `slot`, the `nth`, is selected; it need not have a page to write.
    pub(crate) fn takes(&self, nth: u32, slot: Slot) -> bool {
        let named = || {
            let after = self.pages.partition_point(|r| r.end <= nth);
            self.pages.get(after).is_some_and(|r| r.contains(&nth))
        };
        self.kinds.iter().any(|k| k.takes(slot)) || named()
    }
}

/// The share of `total` for one `part` of `parts`; `u64::MAX` is no bound.
pub(crate) fn share(total: u64, part: u32, parts: u32) -> u64 {
    if total == u64::MAX {
        return total;
    }
    let (part, parts) = (u64::from(part), u64::from(parts));
    total / parts + u64::from(part < total % parts)
}

/// A write to `recompress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recompress {
    /// Slots of this kind; all without.
    pub(crate) kind: Option<Kind>,
    /// Objects of at least so many bytes.
    pub(crate) threshold: u32,
    /// Pages tried at most.
    pub(crate) max_pages: u64,
    /// The algorithm, 1 to 3.
    pub(crate) priority: u8,
}

impl Recompress {
    /// Reads the words of a write to `recompress`. `algorithms` are the device's by priority;
    /// objects of `huge_bytes` and more count as not compressed.
    ///
    /// # Errors
    /// `EINVAL` names the word and what is allowed.
    pub(crate) fn parse(
        text: &str,
        algorithms: &Algorithms,
        huge_bytes: u32,
    ) -> Result<Recompress, Error> {
        let mut kind = None;
        let (mut threshold, mut max_pages) = (0, u64::MAX);
        let (mut priority, mut algo) = (None, None);
        for word in text.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "type" => {
                    let of = Kind::parse("recompress", value)?;
                    if of == Kind::Incompressible {
                        return Err(Error::invalid(format!(
                            "recompress: `{word}`: idle, huge and huge_idle are allowed"
                        )));
                    }
                    kind = Some(of);
                }
                "threshold" => {
                    let what = "recompress: threshold";
                    threshold = number(what, value, 1..=huge_bytes.saturating_sub(1))?;
                }
                "max_pages" => {
                    max_pages = number("recompress: max_pages", value, 1..=u64::MAX)?;
                }
                "algo" => algo = Some(Algorithm::parse(value)?),
                "priority" => priority = Some(secondary("recompress: priority", value)?),
                _ => {
                    return Err(Error::invalid(format!(
                        "recompress: unknown `{word}`: type=, threshold=, max_pages=, algo= and \
                         priority= are allowed"
                    )));
                }
            }
        }
        let priority = chosen(priority, algo, algorithms)?;
        Ok(Recompress { kind, threshold, max_pages, priority })
    }
}

/// The priority of an algorithm of recompression.
pub(crate) fn secondary(what: &str, text: &str) -> Result<u8, Error> {
    let priority = number(what, text, 1..=PRIORITIES as u64 - 1)?;
    Ok(u8::try_from(priority).expect("at most 3"))
}

/// The algorithm that the two words name; that of priority 1 when neither is given.
fn chosen(
    priority: Option<u8>,
    algo: Option<Algorithm>,
    algorithms: &Algorithms,
) -> Result<u8, Error> {
    let secondaries = || algorithms.iter().enumerate().skip(1);
    if secondaries().all(|(_, a)| a.is_none()) {
        return Err(Error::invalid(
            "recompress: the device has no algorithm to recompress with: recomp_algorithm sets \
             one before disksize",
        ));
    }
    let at = |p: u8| algorithms.get(usize::from(p))?.as_ref().map(|(a, _)| *a);
    let found = match (priority, algo) {
        (Some(p), Some(a)) if at(p) == Some(a) => Some(p),
        (Some(_), Some(_)) => None,
        (Some(p), None) => at(p).map(|_| p),
        (None, Some(a)) => secondaries()
            .find(|(_, have)| have.as_ref().is_some_and(|(have, _)| *have == a))
            .and_then(|(p, _)| u8::try_from(p).ok()),
        (None, None) => at(1).map(|_| 1),
    };
    found.ok_or_else(|| {
        let list = secondaries()
            .filter_map(|(p, a)| Some(format!("priority={p} {}", a.as_ref()?.0.name())));
        let wanted = match (priority, algo) {
            (Some(p), Some(a)) => format!("priority={p} algo={}", a.name()),
            (Some(p), None) => format!("priority={p}"),
            (None, Some(a)) => format!("algo={}", a.name()),
            (None, None) => "priority=1".to_owned(),
        };
        Error::invalid(format!(
            "recompress: {wanted}: no such algorithm of this device, which has {}",
            list.collect::<Vec<_>>().join(", ")
        ))
    })
}

/// A write to `idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Every page.
    All,
    /// Pages not accessed for so many seconds; all others become not idle.
    Age(u32),
}

impl Idle {
    /// Parses a write to `idle`.
    ///
    /// # Errors
    /// `EINVAL` for anything but `all` and a number.
    pub(crate) fn parse(text: &str) -> Result<Idle, Error> {
        if text.trim() == "all" {
            return Ok(Idle::All);
        }
        let age = time_in("idle", text.trim(), TimeUnit::Second, 0..=u32::MAX.into());
        let age = age.ok().and_then(|age| u32::try_from(age).ok()).ok_or_else(|| {
            block::value::refused("idle", text.trim(), "`all` or an age in seconds")
        })?;
        Ok(Idle::Age(age))
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
