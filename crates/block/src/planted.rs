// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults: known bugs that tests switch on, to prove that the tests find them.
//!
//! An engine lists its faults in an enum `Fault` in its `planted.rs`, and asks
//! `planted.is(Fault::SkipFlush)` where a fault changes what the code does. Without the cargo
//! feature `planted` a [`Planted`] has no size and `is` returns the constant `false`, so that a
//! release build has neither the question nor the faulty branch:
//!
//! ```toml
//! [features]
//! planted = ["block/planted"]
//!
//! [dev-dependencies]
//! writecache = { workspace = true, features = ["planted"] }   # the crate itself, for its tests
//! ```
//!
//! Invariants
//! - BL-P1 Without the feature no fault can be planted: `new` and `plant` do not exist.
use std::fmt;
#[cfg(not(feature = "planted"))]
use std::marker::PhantomData;

/// At most one fault of `F`, and none by default.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Planted<F> {
    #[cfg(feature = "planted")]
    fault: Option<F>,
    #[cfg(not(feature = "planted"))]
    fault: PhantomData<F>,
}

// BL-P1
#[cfg(not(feature = "planted"))]
const _: () = assert!(size_of::<Planted<u64>>() == 0);

impl<F> Planted<F> {
    /// No fault.
    #[cfg(feature = "planted")]
    pub const NONE: Planted<F> = Planted { fault: None };
    /// No fault.
    #[cfg(not(feature = "planted"))]
    pub const NONE: Planted<F> = Planted { fault: PhantomData };
}

impl<F: Copy + Eq> Planted<F> {
    /// Whether `fault` is planted.
    #[cfg(feature = "planted")]
    #[inline]
    pub fn is(&self, fault: F) -> bool {
        self.fault == Some(fault)
    }

    /// Whether `fault` is planted: never in this build.
    #[cfg(not(feature = "planted"))]
    #[inline(always)]
    pub fn is(&self, _fault: F) -> bool {
        false
    }
}

#[cfg(feature = "planted")]
impl<F: Copy + Eq> Planted<F> {
    /// With `fault`.
    pub const fn new(fault: F) -> Planted<F> {
        Planted { fault: Some(fault) }
    }

    /// Plants `fault` in place of the fault before.
    pub fn plant(&mut self, fault: F) {
        self.fault = Some(fault);
    }
}

#[cfg(feature = "planted")]
impl<F: Copy + Eq> From<Option<F>> for Planted<F> {
    fn from(fault: Option<F>) -> Planted<F> {
        Planted { fault }
    }
}

impl<F> Default for Planted<F> {
    fn default() -> Planted<F> {
        Planted::NONE
    }
}

impl<F: fmt::Debug> fmt::Debug for Planted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "planted")]
        if let Some(fault) = &self.fault {
            return write!(f, "Planted({fault:?})");
        }
        f.write_str("Planted(none)")
    }
}

#[cfg(all(test, feature = "planted"))]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        SkipFlush,
        TearHeader,
    }

    #[test]
    fn no_fault_is_planted_by_default() {
        let planted = Planted::default();
        assert!(!planted.is(Fault::SkipFlush) && !planted.is(Fault::TearHeader));
        assert_eq!(planted, Planted::from(None));
        assert_eq!(format!("{planted:?}"), "Planted(none)");
    }

    #[test]
    fn a_planted_fault_is_the_only_one() {
        let mut planted = Planted::new(Fault::SkipFlush);
        assert!(planted.is(Fault::SkipFlush) && !planted.is(Fault::TearHeader));
        planted.plant(Fault::TearHeader);
        assert!(!planted.is(Fault::SkipFlush) && planted.is(Fault::TearHeader));
        assert_eq!(format!("{planted:?}"), "Planted(TearHeader)");
    }
}
