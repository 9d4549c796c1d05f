// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue against a kernel of our own: what it fetches, commits and copies, and what a kill in
//! the midst of it does to clients.

mod bounds;
mod buffers;
mod clients;
mod kernel;
mod recovery;
mod stop;
