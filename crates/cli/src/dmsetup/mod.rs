// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Called as `dmsetup`, the program takes dmsetup's command lines and prints its formats.
//!
//! ```text
//!   dmsetup ... ──▶ options ──▶ naming ──▶ change ─┐
//!                                    └───▶ list ───┴──▶ requests ══▶ the daemon
//!             command_error ──▶ standard error, exit code 1
//! ```
//!
//! docs/dmsetup.md lists what is accepted, ignored and refused.
//!
//! Invariants
//! - CL-S1 A command that succeeds prints dmsetup's bytes and nothing else on standard output.
//! - CL-S2 A command that fails exits with 1, and prints dmsetup's line and our cause on standard
//!   error.
//! - CL-S3 An option that would change what happens to data is accepted or refused, never ignored.

mod change;
mod command_error;
mod concise;
mod list;
mod naming;
mod options;
mod udev;
mod usage;
mod words;

use std::ffi::OsString;
use std::path::Path;

use control::{EXIT_DONE, EXIT_FAILED, plain};
use host::{RunDir, print_error};

use crate::client::{Client, runtime};
use crate::dmsetup::command_error::{CommandError, print};
use crate::dmsetup::options::{Opt, Options};
use crate::dmsetup::usage::USAGE;

/// Whether the program was called by the name of dmsetup.
pub fn is_meant(program: Option<&OsString>) -> bool {
    program.is_some_and(|p| Path::new(p).file_name().is_some_and(|name| name == "dmsetup"))
}

/// Runs the command that follows the program's name; returns the exit code.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    match run(args) {
        Ok(()) => EXIT_DONE,
        Err(trouble) => {
            print_error(plain(&trouble.text()).trim_end_matches('\n'));
            EXIT_FAILED
        }
    }
}

fn run(args: impl Iterator<Item = OsString>) -> Result<(), CommandError> {
    let options = Options::parse(args)?;
    runtime()?.block_on(command(&options))
}

/// How many words a command takes; those that take devices take any number.
fn arity(verb: &str) -> Option<std::ops::RangeInclusive<usize>> {
    Some(match verb {
        "help" | "version" | "targets" | "ls" | "remove_all" | "udevcreatecookie"
        | "udevcookies" => 0..=0,
        "udevreleasecookie" | "udevcomplete_all" => 0..=1,
        "udevflags" | "udevcomplete" => 1..=1,
        "create" | "load" | "reload" | "rename" | "wait" => 0..=2,
        "splitname" => 1..=2,
        "setgeometry" => 4..=5,
        "message" => 1..=usize::MAX,
        "target-version" => 1..=usize::MAX,
        "remove" | "suspend" | "resume" | "clear" | "wipe_table" | "status" | "table" | "info"
        | "deps" | "mknodes" | "mangle" | "measure" | "stats" => 0..=usize::MAX,
        _ => return None,
    })
}

async fn command(options: &Options) -> Result<(), CommandError> {
    if options.has(Opt::Help) {
        return print(USAGE);
    }
    let version = [String::from("version")];
    let words = if options.has(Opt::Version) { &version } else { options.words.as_slice() };
    let Some((verb, words)) = words.split_first() else {
        return Err(CommandError::usage("dmsetup: no command"));
    };
    let Some(arity) = arity(verb) else {
        return Err(CommandError::usage("Unknown command."));
    };
    if !arity.contains(&words.len()) {
        return Err(CommandError::usage("Incorrect number of arguments."));
    }
    match verb.as_str() {
        "help" => return print(USAGE),
        "splitname" => return list::splitname(options, words),
        "measure" | "stats" => {
            let instead = "`millpond get NAME` and the daemon's /metrics have counters";
            return Err(CommandError::not_supported(verb, instead));
        }
        v if v.starts_with("udev") => return udev::run(v, words),
        _ => {}
    }
    let client = Client::new(&RunDir::choose(None)?);
    match verb.as_str() {
        "create" => change::create(&client, options, words).await,
        "load" | "reload" => change::load(&client, options, words).await,
        "remove" => change::remove(&client, options, words).await,
        "remove_all" => change::remove_all(&client, options).await,
        "suspend" | "resume" | "clear" => change::simple(&client, options, verb, words).await,
        "wipe_table" => change::wipe_table(&client, options, words).await,
        "rename" => change::rename(&client, options, words).await,
        "message" => change::message(&client, options, words).await,
        "wait" => change::wait(&client, options, words).await,
        "mknodes" | "setgeometry" => change::nothing(&client, options, verb, words).await,
        "status" => list::lines(&client, options, words, "status").await,
        "table" => list::lines(&client, options, words, "table").await,
        "info" => list::info(&client, options, words).await,
        "deps" => list::deps(&client, options, words).await,
        "mangle" => list::mangle(&client, options, words).await,
        "ls" => list::ls(&client, options).await,
        "targets" => list::targets(&client).await,
        "target-version" => list::target_versions(&client, words).await,
        _ => list::version(&client).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_dmsetup_means_dmsetup() {
        for (program, meant) in [
            ("dmsetup", true),
            ("/usr/local/sbin/dmsetup", true),
            ("./dmsetup", true),
            ("millpond", false),
            ("/dmsetup/millpond", false),
            ("dmsetup.static", false),
            ("", false),
        ] {
            assert_eq!(is_meant(Some(&program.into())), meant, "{program}");
        }
        assert!(!is_meant(None));
    }
}
