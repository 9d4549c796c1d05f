// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Folio: a run of pages that are neighbours on the device and in memory.
