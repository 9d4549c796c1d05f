// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options that give a table: on the command line, in a file or on standard input.
use std::io::Read;
use std::path::PathBuf;

use block::ErrorKind;
use clap::Args;
use control::{Failure, api, with_absolute_paths};

use crate::io_failure::io_failure;

/// Where a table comes from. Each verb documents what it does when neither is given.
#[derive(Clone, Debug, Args)]
pub struct TableArgs {
    /// The table: lines `START LENGTH TARGET ARGS...`, in sectors of 512 bytes or with a suffix
    /// (1000M); LENGTH of the last line may be `-`, the whole device
    #[arg(long, value_name = "TABLE", conflicts_with = "table_file", allow_hyphen_values = true)]
    pub table: Option<String>,
    /// Read the table from this file
    #[arg(long, value_name = "FILE")]
    pub table_file: Option<PathBuf>,
}

impl TableArgs {
    /// Whether neither option is given.
    pub fn is_empty(&self) -> bool {
        self.table.is_none() && self.table_file.is_none()
    }
}

/// All of standard input. Input that is too long for the daemon is refused, never cut: a part of a
/// table may be another table.
pub fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(api::BODY_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|e| io_failure(&e, "standard input"))?;
    if text.len() > api::BODY_BYTES_MAX {
        let message = format!("standard input: at most {} bytes are taken", api::BODY_BYTES_MAX);
        return Err(Failure::new(ErrorKind::Invalid, message));
    }
    Ok(text)
}

/// The table that the arguments name, its relative paths made absolute.
pub fn read_table(args: &TableArgs) -> Result<String, Failure> {
    let text = match (&args.table, &args.table_file) {
        (Some(table), _) => table.clone(),
        (None, Some(file)) => {
            std::fs::read_to_string(file).map_err(|e| io_failure(&e, file.display()))?
        }
        (None, None) => read_stdin()?,
    };
    Ok(with_absolute_paths(&text, &current_dir()?))
}

/// What relative paths are relative to.
pub fn current_dir() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|e| io_failure(&e, "current directory"))
}
