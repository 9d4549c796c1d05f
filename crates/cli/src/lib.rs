// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs of the command line.
//!
//! ```text
//!   args ─▶ verbs ───┐
//!           dmsetup ─┴─▶ requests ─▶ client ═══ control.sock ═══▶ the daemon
//!                            └ progress
//!   inspect, recover, wipe, mkvol, check ──▶ offline: a core of their own, on images; no daemon
//! ```
//!
//! Invariants
//! - CL-E1 Each verb ends with an exit code of `control`.

mod args;
mod check;
mod client;
mod clients;
mod columns;
pub mod dmsetup;
mod drain;
mod inspect;
mod inspect_guard;
mod inspect_journal;
mod inspect_volume;
mod mkvol;
mod offline;
mod process;
mod progress;
mod rates;
mod recache;
mod recover;
mod requests;
mod resize;
mod save;
mod show;
mod snapshot;
mod top;
mod ublk_verb;
mod upgrade;
mod verbs;
mod volume_origin;
mod wipe;

use std::path::{Path, PathBuf};

use block::ErrorKind;
use control::{EXIT_DONE, Failure, manual};

pub use args::ControlVerb;
pub use check::CheckArgs;
pub use client::{Client, runtime};
pub use inspect::InspectArgs;
pub use mkvol::MkvolArgs;
pub use recover::RecoverArgs;
pub use ublk_verb::UblkArgs;
pub use verbs::run as control_daemon;
pub use wipe::WipeArgs;

/// Runs a verb on images. Who has one of them open is named in the failure.
fn on_images(
    verb: &str,
    images: &[&Path],
    run_dir: Option<&Path>,
    work: impl FnOnce() -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    let done = offline::run(work).map_err(|f| offline::name_user(f, images, run_dir));
    done.map_err(|f| f.within(verb))
}

/// `millpond inspect`. Returns the exit code.
pub fn inspect(args: &InspectArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    on_images("inspect", &[&args.image], run_dir, || inspect::run(args, run_dir))
}

/// `millpond recover`. Returns the exit code.
pub fn recover(args: RecoverArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let images = [args.cache.clone(), args.origin.clone(), args.without_cache.clone()];
    let images: Vec<&Path> = images.iter().flatten().map(PathBuf::as_path).collect();
    on_images("recover", &images, run_dir, || recover::run(args, run_dir))
}

/// `millpond mkvol`. Returns the exit code.
pub fn mkvol(args: &MkvolArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    mkvol::run(args, run_dir).map(|()| EXIT_DONE).map_err(|f| f.within("mkvol"))
}

/// `millpond check`. Returns the exit code.
pub fn check(args: &CheckArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    check::run(args, run_dir).map_err(|f| f.within("check"))
}

/// `millpond ublk`. Returns the exit code.
pub fn ublk(args: &UblkArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    ublk_verb::run(args, run_dir).map(|()| EXIT_DONE).map_err(|f| f.within("ublk"))
}

/// Verbs that earlier versions had, and the ways that work.
const GONE_VERBS: [(&str, &str); 3] = [
    (
        "bench",
        "it is a program of its own, of the repository, with the same options: `cargo run \
         --release -p loadgen -- --raw mem:1G`. What a daemon serves, fio measures: `fio \
         --ioengine=nbd --uri='nbd+unix:///NAME?socket=RUN_DIR/nbd.sock' --name=NAME --rw=randread \
         --iodepth=16 --runtime=5 --time_based`, or with `--filename` its block device (ublk) or \
         its file (FUSE)",
    ),
    ("reproduce", "it is a program of its own, of the repository: `make reproduce ARGS=--sim`"),
    (
        "shrink-cache",
        "millpond 0.2 was the last version with this verb. In use, `millpond replace-cache NAME \
         CACHE` puts a smaller cache device in the place of one. Without a daemon, `millpond \
         recover` writes back what a cache holds, and `millpond wipe` makes its device blank; cut \
         it then, and the next table makes the cache anew in that size",
    ),
];

/// The refusal of a verb that earlier versions had.
pub fn gone_verb(name: &str) -> Option<Failure> {
    let (verb, ways) = GONE_VERBS.iter().find(|(verb, _)| *verb == name)?;
    Some(Failure::new(ErrorKind::NotFound, format!("{verb}: {ways}")))
}

/// What `millpond help` prints of a target type: arguments, options and attributes; or of an
/// attribute; without a name the list of all target types. The error for a name that is not there
/// has these `verbs` in its hint, too.
pub fn topic_help(topic: Option<&str>, verbs: &[String]) -> Result<String, Failure> {
    let manuals = host::manuals();
    let Some(name) = topic else { return Ok(manual::list(&manuals)) };
    if let Some(found) = manuals.iter().find(|manual| manual.name.eq_ignore_ascii_case(name)) {
        return Ok(manual::page(found));
    }
    if let Some(refusal) = gone_verb(name) {
        return Err(refusal);
    }
    let tables = host::attribute_tables();
    manual::attribute_page(name, &tables).ok_or_else(|| {
        let targets = manuals.iter().map(|manual| manual.name);
        let attributes = tables.iter().flat_map(|(_, specs)| specs).map(|spec| spec.name);
        let verbs = verbs.iter().map(String::as_str);
        let mut names: Vec<&str> = verbs.chain(targets).chain(attributes).collect();
        names.dedup();
        let hint = match block::name_hint(name, &names) {
            hint if hint.starts_with("did you mean") => hint,
            _ => "`millpond --help` lists the verbs, `millpond help` the target types, and \
                  `millpond help TARGET` its attributes"
                .to_owned(),
        };
        let message = format!("help: no verb, target type or attribute `{name}`: {hint}");
        Failure::new(ErrorKind::NotFound, message)
    })
}

/// What `millpond help` prints of an attribute, if there is one of this name.
pub fn attribute_help(name: &str) -> Option<String> {
    manual::attribute_page(name, &host::attribute_tables())
}

/// `millpond wipe`. Returns the exit code.
pub fn wipe(args: &WipeArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let work = || wipe::run(args, run_dir).map(|()| EXIT_DONE);
    on_images("wipe", &[&args.image], run_dir, work)
}
