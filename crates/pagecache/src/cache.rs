// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folios of a device: which there are, which are dirty, which are being written.
