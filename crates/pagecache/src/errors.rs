// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What writeback could not write, and who has heard of it.
