// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bit for each page of a folio.
