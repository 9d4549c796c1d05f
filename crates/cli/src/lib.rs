// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs of the command line.
//!
//! ```text
//!   args ─▶ verbs ───┐
//!           dmsetup ─┴─▶ requests ─▶ client ═══ control.sock ═══▶ the daemon
//!                            └ progress
//!   inspect, recover, wipe ──▶ offline: a core of their own, on images; no daemon
//!   reproduce ──▶ the scenarios of the room `reproduce`, on a thread of their own
//! ```
//!
//! Invariants
//! - CL-E1 Each verb ends with an exit code of `control`.

mod args;
mod client;
mod clients;
mod columns;
pub mod dmsetup;
mod drain;
mod inspect;
mod offline;
mod process;
mod progress;
mod recache;
mod recover;
mod reproduce;
mod requests;
mod save;
mod show;
mod verbs;
mod wipe;

use std::path::Path;

use block::ErrorKind;
use control::{EXIT_DONE, Failure, manual};

pub use args::ControlVerb;
pub use client::{Client, runtime};
pub use inspect::InspectArgs;
pub use recover::RecoverArgs;
pub use reproduce::{ReproduceArgs, run as reproduce};
pub use verbs::run as control_daemon;
pub use wipe::WipeArgs;

/// `millpond inspect`. Returns the exit code.
pub fn inspect(args: &InspectArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let done = offline::run(|| inspect::run(args));
    let done = done.map_err(|f| offline::name_user(f, &[&args.image], run_dir));
    done.map_err(|f| f.within("inspect"))
}

/// `millpond recover`. Returns the exit code.
pub fn recover(args: RecoverArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let images = [args.cache.clone(), args.origin.clone()];
    let done = offline::run(|| recover::run(args));
    let done = done.map_err(|f| offline::name_user(f, &[&images[0], &images[1]], run_dir));
    done.map_err(|f| f.within("recover"))
}

/// What `millpond help` prints of a target type: arguments, options and attributes; without one,
/// the list of all. The error for one that is not there has these `verbs` in its hint, too.
pub fn target_help(target: Option<&str>, verbs: &[String]) -> Result<String, Failure> {
    let manuals = host::manuals();
    let Some(name) = target else { return Ok(manual::list(&manuals)) };
    let found = manuals.iter().find(|manual| manual.name.eq_ignore_ascii_case(name));
    let found = found.ok_or_else(|| {
        let targets = manuals.iter().map(|manual| manual.name);
        let names: Vec<&str> = targets.chain(verbs.iter().map(String::as_str)).collect();
        let hint = block::name_hint(name, &names);
        Failure::new(ErrorKind::NotFound, format!("help: no verb or target type `{name}`: {hint}"))
    })?;
    Ok(manual::page(found))
}

/// `millpond wipe`. Returns the exit code.
pub fn wipe(args: &WipeArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let done = offline::run(|| wipe::run(args)).map(|()| EXIT_DONE);
    let done = done.map_err(|f| offline::name_user(f, &[&args.image], run_dir));
    done.map_err(|f| f.within("wipe"))
}
