// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output of the verbs: as text or as JSON, to standard output.
use std::io::{ErrorKind as IoKind, Write};

use clap::{Args, ValueEnum};
use control::{Failure, plain};
use serde::Serialize;

use crate::io_failure::io_failure;

/// How a listing is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// As dmsetup prints it
    #[default]
    Text,
    /// The REST API's JSON
    Json,
}

#[derive(Clone, Debug, Args)]
pub struct Listing {
    /// How to print
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

impl Listing {
    /// Prints the value in JSON, or what `text` returns.
    pub fn print(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Text => print(&text()),
            Format::Json => {
                let json = serde_json::to_string_pretty(value).expect("as in the REST API");
                print(&format!("{json}\n"))
            }
        }
    }
}

/// Prints text, parts of which may be input from outside.
pub fn print(text: &str) -> Result<(), Failure> {
    print_as_is(&plain(text))
}

/// Prints text whose parts from outside are plain already.
pub fn print_as_is(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader of the pipe has closed it.
        Err(e) if e.kind() == IoKind::BrokenPipe => Ok(()),
        done => done.map_err(|e| io_failure(&e, "standard output")),
    }
}
