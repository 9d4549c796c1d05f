// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How types show themselves whose fields would be too much, or can't.

/// Implements `Debug` for a type as one line of text, with the type's value under a name:
///
/// ```text
/// block::debug_as!(WaitList, s => "WaitList({} waiting)", s.waiters.borrow().len());
/// block::debug_as!(<T> TaskPool<T>, s => "TaskPool({} of {})", s.tasks.get(), s.max);
/// ```
#[macro_export]
macro_rules! debug_as {
    (<$t:ident $(: $bound:path)?> $type:ty, $s:ident => $($text:tt)+) => {
        impl<$t $(: $bound)?> ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $s = self;
                ::std::write!(f, $($text)+)
            }
        }
    };
    ($type:ty, $s:ident => $($text:tt)+) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $s = self;
                ::std::write!(f, $($text)+)
            }
        }
    };
}
