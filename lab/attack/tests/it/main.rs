// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The adversary itself: a minute of it, and what it must find.

mod controls;
mod minute;
mod shutdown;
mod verbs;
