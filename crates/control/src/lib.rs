// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control API, as daemon, command line and curl use it: the types of its requests and answers,
//! its paths, names of attributes, sizes, and dmsetup's texts.
//!
//! ```text
//!   millpond create ...          curl --unix-socket RUN_DIR/control.sock http://millpond/v1/...
//!        │ api::*                        │ the same JSON
//!        └──────────────┬────────────────┘
//!               control.sock (HTTP/1.1)
//!                       │
//!                 millpond daemon
//! ```
//!
//! Invariants
//! - CT-C1 No I/O, no state: pure types and functions, so that client and server can't drift apart.
//! - CT-C2 A field, once published, keeps its name and meaning; new fields are optional for
//!   readers.

pub mod api;
pub mod attr;
mod failure;
pub mod manual;
pub mod paths;
mod plain;
pub mod report;
mod size;
mod table;
pub mod text;
pub mod tree;

pub use failure::{EXIT_BUSY, EXIT_DONE, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, Failure};
pub use plain::plain;
pub use size::{SizeError, parse_size};
pub use table::{name_with_absolute_path, value_with_absolute_paths, with_absolute_paths};
