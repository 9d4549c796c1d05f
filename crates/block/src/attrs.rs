// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How tables of options, attributes and figures are written: [`attrs!`](crate::attrs), and the
//! words of its rows.
use std::ops::RangeInclusive;

use crate::Access;
use crate::attr::{Kind, Metric, OptionForm, Spec};
use crate::value::{TimeUnit, Value};

/// A table of [`Attr`](crate::attr::Attr)s, one row for each:
///
/// ```text
/// NAME: SPEC, "HELP", ACCESS;
/// ```
///
/// - `NAME` is a word, or a string where it has other signs than those of words.
/// - `SPEC` is an expression: [`option`], [`flag`], [`choice`], [`setting`], [`command`], [`text`],
///   [`figure`], [`gauge`] or [`counter`], and what the methods of [`Spec`] change in it.
/// - `ACCESS` says how the value of a `T` is read and set. Without one it is neither. Otherwise it
///   is one of these:
///
/// | access | read | set |
/// |---|---|---|
/// | `get \|t\| t.len` | anything that a [`Value`] can be made of | |
/// | `get \|t\| t.len, set \|t, v\| t.len = v` | the same | `v` has the type that is wanted |
/// | `set \|t, v: bool\| t.on = !v` | | the type is said where it can't be seen |
/// | `field rules.jobs` | `t.rules.jobs` | the same |
/// | `words rules.order { "up" => Order::Up }` | the word of `t.rules.order` | the same |
/// | `in stats` | `t.stats.NAME.get()` | |
///
/// What `v` may be is [`FromValue`]. The words are also those that the attribute takes.
///
/// ```
/// use block::attr::{self, Attr, Kind, counter, flag, option};
///
/// #[derive(Default)]
/// struct Engine {
///     jobs: u32,
///     eager: bool,
///     writes: std::cell::Cell<u64>,
/// }
///
/// block::attrs! {
///     /// All of an engine.
///     static TABLE: [Attr<Engine>];
///
///     jobs: option(Kind::number(1..=9, "writes"), "1"), "writes at once", field jobs;
///     lazy: flag(), "nothing is done",
///         get |engine| !engine.eager, set |engine, v: bool| engine.eager = !v;
///     writes: counter(""), "writes so far", get |engine| engine.writes.get();
/// }
///
/// let mut engine = Engine::default();
/// let jobs = attr::find(&TABLE, "jobs").unwrap();
/// jobs.set.unwrap()(&mut engine, &jobs.spec.parse("7").unwrap());
/// assert_eq!((engine.jobs, jobs.get.unwrap()(&engine)), (7, 7_u32.into()));
/// ```
#[macro_export]
macro_rules! attrs {
    (@name $name:ident) => { ::std::stringify!($name) };
    (@name $name:literal) => { $name };
    (
        $(#[$doc:meta])*
        $vis:vis static $table:ident: [$row:ty];
        $($name:tt: $spec:expr, $help:literal
            $(, field $($field:ident).+)?
            $(, words $($choice:ident).+ { $($word:literal => $meant:path),+ })?
            $(, in $($counters:ident).+)?
            $(, get |$of:ident| $get:expr)?
            $(, set |$to:ident, $given:ident $(: $type:ty)?| $set:expr)?;
        )+
    ) => {
        $(#[$doc])*
        $vis static $table: [$row; [$(::std::stringify!($name)),+].len()] = [$({
            let mut attr: $row = $crate::attr::Attr { spec: $spec, get: None, set: None };
            attr.spec.name = $crate::attrs!(@name $name);
            attr.spec.help = $help;
            $(
                attr.get = Some(|of| of.$($field).+.into());
                attr.set = Some(|to, value| {
                    to.$($field).+ = $crate::attr::FromValue::from_value(value);
                });
            )?
            $(
                attr.spec.kind = $crate::attr::Kind::Choice(&[$($word),+]);
                attr.get = Some(|of| match of.$($choice).+ { $($meant => $word.into()),+ });
                attr.set = Some(|to, value| {
                    let found = [$(($word, $meant)),+].into_iter().find(|(word, _)| value == word);
                    to.$($choice).+ = found.expect("checked by the attribute's kind").1;
                });
            )?
            $(attr.get = Some(|of| of.$($counters).+.$name.get().into());)?
            $(attr.get = Some(|$of| $crate::value::Value::from($get));)?
            $(attr.set = Some(|$to, value| {
                let $given $(: $type)? = $crate::attr::FromValue::from_value(value);
                $set;
            });)?
            attr
        }),+];
    };
}

/// What the setter of a row makes of a value that the attribute's [`Kind`] has let through. Of a
/// number or a word an `Option` is the number.
pub trait FromValue {
    /// Panics for what the kind should not have let through.
    fn from_value(value: &Value) -> Self;
}

macro_rules! from_value_of_numbers {
    ($($number:ty)+) => {
        $(impl FromValue for $number {
            fn from_value(value: &Value) -> $number {
                let number = value.number().and_then(|number| number.try_into().ok());
                number.expect("checked by the attribute's kind")
            }
        })+
    };
}
from_value_of_numbers!(u8 u32 u64);

impl FromValue for bool {
    fn from_value(value: &Value) -> bool {
        *value == Value::Flag(true)
    }
}
impl FromValue for String {
    fn from_value(value: &Value) -> String {
        value.to_string()
    }
}
impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<T> {
        value.number().map(|_| T::from_value(value))
    }
}

impl Kind {
    /// A number of `unit`; a range up to `u64::MAX` has no upper limit.
    pub const fn number(range: RangeInclusive<u64>, unit: &'static str) -> Kind {
        Kind::Number { min: *range.start(), max: *range.end(), unit }
    }

    /// A size in bytes.
    pub const fn size(range: RangeInclusive<u64>) -> Kind {
        Kind::Size { min: *range.start(), max: *range.end(), unit: 1, or: None }
    }

    /// A time, as a whole number of `unit`.
    pub const fn time(unit: TimeUnit, range: RangeInclusive<u64>) -> Kind {
        Kind::Time { unit, min: *range.start(), max: *range.end(), or: None }
    }
}

/// What its row gives a name and a help.
const fn of_kind(kind: Kind) -> Spec {
    Spec::new("", kind, "")
}

/// An option with a value, which can be changed on a live device.
pub const fn option(kind: Kind, default: &'static str) -> Spec {
    setting(kind, default).option(OptionForm::Value)
}

/// An option without a value, off by default, which can be changed on a live device.
pub const fn flag() -> Spec {
    setting(Kind::Flag, "0").option(OptionForm::Name)
}

/// An option that has one of the `words` of its row, and can be changed on a live device.
pub const fn choice(default: &'static str) -> Spec {
    option(Kind::Choice(&[]), default)
}

/// An attribute that can be read and set, and is no option of a table line.
pub const fn setting(kind: Kind, default: &'static str) -> Spec {
    of_kind(kind).access(Access::ReadWrite).default(default)
}

/// Something to do: an attribute that can only be written.
pub const fn command(kind: Kind) -> Spec {
    of_kind(kind).access(Access::Write)
}

/// Words that can only be read, of this form.
pub const fn text(form: &'static str) -> Spec {
    of_kind(Kind::Text(form))
}

/// A number of `unit` that can only be read.
pub const fn figure(unit: &'static str) -> Spec {
    of_kind(Kind::number(0..=u64::MAX, unit))
}

/// The same, exported as a metric: how much it is now.
pub const fn gauge(unit: &'static str) -> Spec {
    figure(unit).metric(Metric::GAUGE)
}

/// The same, exported as a metric: how much it has been so far.
pub const fn counter(unit: &'static str) -> Spec {
    figure(unit).metric(Metric::COUNTER)
}
