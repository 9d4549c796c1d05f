// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Developer commands that are longer than one line of the Makefile.
fn main() {}
