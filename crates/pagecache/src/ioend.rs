// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One write below, of many pages.
