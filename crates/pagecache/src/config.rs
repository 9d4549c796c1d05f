// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of a table line.
