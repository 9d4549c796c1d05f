// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a table line.
