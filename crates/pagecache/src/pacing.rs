// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slows writers to the rate of writeback.
