// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options and attributes: each engine has tables of [`Attr`], and everything that knows a name,
//! a range, a default or an access right reads them. [`attrs!`](crate::attrs) makes the tables.
//!
//! ```text
//!   table line ──▶ options ──┐                      ┌──▶ get: fn(&T) -> Value ──▶ `get`, JSON
//!                            ├──▶ Spec::parse ──▶ set
//!   `millpond set` ──────────┘       │
//!                                    └── name, range, default, help ──▶ `millpond help TARGET`
//! ```
//!
//! Invariants
//! - BL-A1 What is printed as the range of an attribute is what the parser goes by: both read
//!   [`Kind`].
//! - BL-A2 A name that is unknown gives ENXIO, one that can't be written or read EACCES, a value
//!   that is not allowed EINVAL, in every engine.
use std::fmt;

pub use crate::attrs::{
    FromValue, choice, command, counter, figure, flag, gauge, option, setting, text,
};
pub use crate::metric::{Metric, MetricKind};
use crate::value::{self, TimeUnit, Value};
use crate::{Access, Error, ErrorKind, Nanos};

/// What values an attribute takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of `unit` within a range; `u64::MAX` is no upper limit.
    Number {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
        /// What is counted: `blocks`, `percent`; empty for nothing in particular.
        unit: &'static str,
    },
    /// The same, or a word.
    NumberOr {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
        /// What is counted.
        unit: &'static str,
        /// The word that is taken too: `auto`.
        or: &'static str,
    },
    /// A time, as a whole number of `unit`.
    Time {
        /// In which unit it is printed, and taken when none is given.
        unit: TimeUnit,
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
        /// A word that is taken too: `none`.
        or: Option<&'static str>,
    },
    /// A size in bytes within a range.
    Size {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
        /// It is a multiple of this.
        unit: u64,
        /// A size that is taken too, which is out of the range: 0 for `as the default says`.
        or: Option<u64>,
    },
    /// On or off.
    Flag,
    /// A time that is printed as seconds with up to three decimals, and held in milliseconds.
    Seconds {
        /// The shortest, in milliseconds.
        min_ms: u64,
        /// The longest, in milliseconds.
        max_ms: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Words; what form they have.
    Text(&'static str),
}

impl Kind {
    /// Reads a value. Text is given back as it is: its form is for the setter to check.
    ///
    /// # Errors
    /// `EINVAL` names `what`, the word, and what is allowed.
    pub fn parse(&self, what: &str, text: &str) -> Result<Value, Error> {
        match *self {
            Kind::Number { min, max, .. } => {
                let number = value::number(what, text, min..=max);
                number.map(Value::Number).map_err(|_| self.refused(what, text))
            }
            Kind::NumberOr { or, .. } if or.eq_ignore_ascii_case(text) => Ok(Value::from(or)),
            Kind::NumberOr { min, max, .. } => {
                let number = value::number(what, text, min..=max);
                number.map(Value::Number).map_err(|_| self.refused(what, text))
            }
            Kind::Time { or: Some(word), .. } if word.eq_ignore_ascii_case(text) => {
                Ok(Value::from(word))
            }
            Kind::Time { unit, min, max, .. } => {
                let time = value::time_in(what, text, unit, min..=max);
                time.map(Value::Number).map_err(|_| self.refused(what, text))
            }
            Kind::Size { min, max, unit, or } => {
                let is_allowed = |size: &u64| {
                    or == Some(*size) || (min..=max).contains(size) && size.is_multiple_of(unit)
                };
                let size = value::size(text).filter(is_allowed);
                size.map(Value::Number).ok_or_else(|| self.refused(what, text))
            }
            Kind::Seconds { min_ms, max_ms } => {
                let ms = TimeUnit::Millisecond.one().0;
                let time = value::time(text, TimeUnit::Second.one());
                let whole = time.filter(|time| time.0.is_multiple_of(ms)).map(|time| time.0 / ms);
                let within = whole.filter(|ms| (min_ms..=max_ms).contains(ms));
                within.map(Value::Number).ok_or_else(|| self.refused(what, text))
            }
            Kind::Flag => value::boolean(what, text).map(Value::Flag),
            Kind::Choice(words) => value::choice(what, text, words).map(Value::from),
            Kind::Text(_) => Ok(Value::from(text)),
        }
    }

    fn refused(&self, what: &str, text: &str) -> Error {
        value::refused(what, text, &self.to_string())
    }
}

/// Bytes as people write them: `8M` where that is exact and short, else all digits.
fn bytes_text(bytes: u64) -> String {
    let short =
        [(40, "T"), (30, "G"), (20, "M"), (10, "K")].into_iter().find_map(|(shift, unit)| {
            let (count, rest) = (bytes >> shift, bytes % (1 << shift));
            (rest == 0 && (1..10_000).contains(&count)).then(|| format!("{count}{unit}"))
        });
    short.unwrap_or_else(|| bytes.to_string())
}

/// What is allowed, as an error and `help` say it.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::Number { min, max, unit } => {
                write!(f, "a number from {min}")?;
                if max < u64::MAX {
                    write!(f, " to {max}")?;
                }
                if unit.is_empty() { Ok(()) } else { write!(f, " {unit}") }
            }
            Kind::NumberOr { min, max, unit, or } => write!(f, "{or}, or {min} to {max} {unit}"),
            Kind::Time { unit, min, max, or } => {
                if let Some(word) = or {
                    write!(f, "{word}, or ")?;
                }
                write!(f, "{min} to {max} {}, or a time with us, ms, s, m or h,", unit.name())
            }
            Kind::Size { min, max, unit, or } => {
                if let Some(size) = or {
                    write!(f, "{size}, or ")?;
                }
                match max {
                    u64::MAX => write!(f, "{} and more", bytes_text(min))?,
                    _ => write!(f, "{} to {}", bytes_text(min), bytes_text(max))?,
                }
                if unit > 1 {
                    write!(f, " bytes, a multiple of {unit},")
                } else {
                    f.write_str(" bytes")
                }
            }
            Kind::Seconds { min_ms, max_ms } => {
                let text = |ms| value::seconds_text(Nanos::from_millis(ms));
                write!(f, "{} to {} seconds", text(min_ms), text(max_ms))
            }
            Kind::Flag => f.write_str("0 or 1 (also no or yes, off or on)"),
            Kind::Choice(words) => f.write_str(&words.join(" or ")),
            Kind::Text(form) => f.write_str(form),
        }
    }
}

/// The form of an option in a table line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionForm {
    /// No option: an attribute only.
    Never,
    /// The name alone.
    Name,
    /// The name and a value.
    Value,
}

/// What is known of an option or attribute without a device.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, in a table line and as an attribute.
    pub name: &'static str,
    /// What may be done with the attribute of a live device.
    pub access: Access,
    /// What values it takes; of one that is only read, what values it has.
    pub kind: Kind,
    /// Its form in a table line.
    pub form: OptionForm,
    /// What holds when nobody sets it; empty where nothing can be said.
    pub default: &'static str,
    /// What it is, in one sentence without a full stop.
    pub help: &'static str,
    /// It is a command that may take minutes; this attribute says how far it is, as `DONE TOTAL`.
    pub progress: Option<&'static str>,
    /// Whether and how it is exported as a metric.
    pub metric: Option<Metric>,
}

impl Spec {
    /// An attribute that can only be read.
    pub const fn new(name: &'static str, kind: Kind, help: &'static str) -> Spec {
        let (form, access) = (OptionForm::Never, Access::Read);
        Spec { name, access, kind, form, default: "", help, progress: None, metric: None }
    }

    /// The same, with other rights.
    #[must_use]
    pub const fn access(self, access: Access) -> Spec {
        Spec { access, ..self }
    }

    /// The same, as an option of table lines.
    #[must_use]
    pub const fn option(self, form: OptionForm) -> Spec {
        Spec { form, ..self }
    }

    /// The same, with a default.
    #[must_use]
    pub const fn default(self, default: &'static str) -> Spec {
        Spec { default, ..self }
    }

    /// The same, for a table line only: what it was made with stays.
    #[must_use]
    pub const fn fixed(self) -> Spec {
        self.access(Access::Read)
    }

    /// A command whose progress an attribute shows.
    #[must_use]
    pub const fn progress(self, attribute: &'static str) -> Spec {
        Spec { progress: Some(attribute), ..self }
    }

    /// The same, exported as a metric.
    #[must_use]
    pub const fn metric(self, metric: Metric) -> Spec {
        Spec { metric: Some(metric), ..self }
    }

    /// Reads a value for it.
    ///
    /// # Errors
    /// `EINVAL` names it, the value, and what is allowed.
    pub fn parse(&self, text: &str) -> Result<Value, Error> {
        self.kind.parse(self.name, text.trim())
    }
}

/// Sets a value that the attribute's [`Kind`] has let through.
pub type Set<T> = fn(&mut T, &Value);

/// The same, of a `T` that changes behind a shared reference.
pub type SetShared<T> = fn(&T, &Value);

/// An option or attribute of a `T`: what is known of it, and how it is read and set.
#[derive(Debug)]
pub struct Attr<T, S = Set<T>> {
    /// What is known of it without a device.
    pub spec: Spec,
    /// Reads it; not for commands, nor for what takes other cores.
    pub get: Option<fn(&T) -> Value>,
    /// Sets it; not for what can only be read, nor for commands.
    pub set: Option<S>,
}

/// The entry of this name.
pub fn find<T, S>(table: &'static [Attr<T, S>], name: &str) -> Option<&'static Attr<T, S>> {
    table.iter().find(|attr| attr.spec.name == name)
}

/// The value of the entry of this name, if it can be read.
pub fn get<T, S>(table: &'static [Attr<T, S>], name: &str, of: &T) -> Option<Value> {
    Some(find(table, name)?.get?(of))
}

/// The specifications of a table, in its order.
pub fn specs<T: 'static, S: 'static>(table: &'static [Attr<T, S>]) -> Vec<&'static Spec> {
    table.iter().map(|attr| &attr.spec).collect()
}

/// The specifications of a table's numbers that are exported as metrics.
pub fn metric_specs<T: 'static, S: 'static>(table: &'static [Attr<T, S>]) -> Vec<&'static Spec> {
    specs(table).into_iter().filter(|spec| spec.metric.is_some()).collect()
}

/// The numbers of a table that are exported as metrics.
pub fn metrics<T, S>(table: &'static [Attr<T, S>], of: &T) -> Vec<(&'static Spec, u64)> {
    let exported = table.iter().filter(|attr| attr.spec.metric.is_some());
    exported.filter_map(|attr| Some((&attr.spec, attr.get?(of).number()?))).collect()
}

/// Names of all entries of `specs`.
pub fn names(specs: &[&'static Spec]) -> Vec<&'static str> {
    specs.iter().map(|spec| spec.name).collect()
}

/// An option that earlier versions had. Tables with it are refused by its name for ever.
#[derive(Clone, Copy, Debug)]
pub struct GoneOption {
    /// Its word in a table line.
    pub name: &'static str,
    /// How to get at what a device with it holds.
    pub way_out: &'static str,
}

impl GoneOption {
    /// The error for `word`, if it is one of these options.
    pub fn refusal(gone: &[GoneOption], word: &str) -> Option<Error> {
        let GoneOption { name, way_out } =
            gone.iter().find(|gone| gone.name.eq_ignore_ascii_case(word))?;
        Some(Error::invalid(format!(
            "{name}: millpond 0.2 was the last version with this option. If a device was made with \
             it, {way_out}; for a new one, leave the option out"
        )))
    }
}

/// Goes through the option words of a table line, names in any case, and has `give` called with
/// each option and its value. Options that are `gone` are refused by name.
///
/// # Errors
/// `EINVAL` for a name that is no option, and for an option without its value; and what `give`
/// returns.
pub fn options<'w, T: 'static, S: 'static>(
    table: &'static [Attr<T, S>],
    gone: &[GoneOption],
    words: &[&'w str],
    mut give: impl FnMut(&'static Attr<T, S>, Option<&'w str>) -> Result<(), Error>,
) -> Result<(), Error> {
    let options = || table.iter().filter(|attr| attr.spec.form != OptionForm::Never);
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let known = options().find(|attr| attr.spec.name.eq_ignore_ascii_case(word));
        let attr = known.ok_or_else(|| {
            if let Some(refusal) = GoneOption::refusal(gone, word) {
                return refusal;
            }
            let names: Vec<&str> = options().map(|attr| attr.spec.name).collect();
            let hint = crate::name_hint(word, &names);
            Error::invalid(format!("unknown option `{word}`: {hint}"))
        })?;
        let value = match attr.spec.form {
            OptionForm::Value => Some(
                words
                    .next()
                    .ok_or_else(|| Error::invalid(format!("{} has no value", attr.spec.name)))?,
            ),
            OptionForm::Name | OptionForm::Never => None,
        };
        give(attr, value)?;
    }
    Ok(())
}

/// The arguments of a table line: `first`, and the options that are not as in `defaults`. A value
/// that an option does not take says that another option holds: it is left out.
pub fn arguments<T, S>(first: &str, table: &'static [Attr<T, S>], of: &T, defaults: &T) -> String {
    let mut words = Vec::new();
    for Attr { spec, get, .. } in table.iter().filter(|attr| attr.spec.form != OptionForm::Never) {
        let get = get.expect("each option has a value");
        let text = get(of).to_string();
        if get(of) != get(defaults) && spec.parse(&text).is_ok() {
            words.push(spec.name.to_owned());
            words.extend((spec.form == OptionForm::Value).then_some(text));
        }
    }
    match words.len() {
        0 => first.to_owned(),
        count => format!("{first} {count} {}", words.join(" ")),
    }
}

/// Checks the number of option words that a table line announces.
///
/// # Errors
/// `EINVAL` when it is no number up to `max`, or not that of the words that follow.
pub fn check_count(announced: &str, words: &[&str], max: usize) -> Result<(), Error> {
    let count: u64 = value::number("#opt_args", announced, 0..=max as u64)?;
    if count == words.len() as u64 {
        return Ok(());
    }
    let follow = words.len();
    Err(Error::invalid(format!("#opt_args: {count} words were announced and {follow} follow")))
}

/// The error for a name that is no attribute of `owner`.
pub fn unknown(owner: &str, name: &str, known: &[&str]) -> Error {
    let hint = crate::name_hint(name, known);
    Error::not_found(format!("{owner}: no attribute `{name}`: {hint}"))
}

/// The error for setting an attribute that can only be read.
pub fn read_only(name: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("attribute `{name}` is read-only"))
}

/// The error for setting on a live device what only a table line can set.
pub fn fixed(name: &str) -> Error {
    let text = format!("{name} can't be changed on a live device: load a new table");
    Error::new(ErrorKind::Denied, text)
}

/// The error for reading an attribute that can only be written.
pub fn write_only(name: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("attribute `{name}` is write-only"))
}

/// What `millpond help` prints of a target type.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// The word in a table line.
    pub name: &'static str,
    /// What `targets` prints.
    pub version: (u32, u32, u32),
    /// What it is, in one sentence without a full stop.
    pub about: &'static str,
    /// Its arguments in a table line: `DEVICE [<#opt_args> ...]`; empty when it takes none.
    pub arguments: &'static str,
    /// Its options and attributes.
    pub specs: fn() -> Vec<&'static Spec>,
    /// Its numbers in `/metrics`, which need not be attributes.
    pub metrics: fn() -> Vec<&'static Spec>,
}

impl Manual {
    /// Of a target type without options and attributes.
    pub const fn new(
        name: &'static str,
        version: (u32, u32, u32),
        about: &'static str,
        arguments: &'static str,
    ) -> Manual {
        Manual { name, version, about, arguments, specs: Vec::new, metrics: Vec::new }
    }
}

#[cfg(test)]
#[path = "attr_tests.rs"]
mod tests;
