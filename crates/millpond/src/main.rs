// SPDX-License-Identifier: Apache-2.0 OR MIT
//! millpond: the daemon and its command line, one program.
//!
//! ```text
//!   args ──┬▶ host   daemon, run
//!          └▶ cli    the verbs that control a daemon, dmsetup's, and those on images
//! ```
//!
//! Invariants
//! - ML-E1 Every way out of here has one of the exit codes of `control`, or the command's of `run`.

mod args;
#[cfg(test)]
mod help_tests;
#[cfg(test)]
mod man_pages;

use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use cli::{Client, dmsetup, runtime};
use control::{EXIT_DONE, EXIT_USAGE, Failure};
use host::{
    Config, RunDir, abort_on_panic, flush_log, ignore_file_size_signal, print, print_as_is,
    print_error, start_log,
};
use tracing::Level;

use crate::args::{Cli, CompletionsArgs, DaemonArgs, HelpArgs, Verb};

fn main() -> ExitCode {
    ignore_file_size_signal();
    let mut args = std::env::args_os();
    if dmsetup::is_meant(args.next().as_ref()) {
        return dmsetup::main(args).into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let Some(refusal) = gone_verb(&e) else { e.exit() };
            print_error(&format!("millpond: {refusal}"));
            return EXIT_USAGE.into();
        }
    };
    let ended = run(cli);
    let code = ended.unwrap_or_else(|failure| {
        print_error(&format!("millpond: {failure}"));
        failure.exit_code()
    });
    flush_log();
    code.into()
}

/// The refusal of a verb that earlier versions had.
fn gone_verb(e: &clap::Error) -> Option<Failure> {
    let ContextValue::String(verb) = e.get(ContextKind::InvalidSubcommand)? else { return None };
    cli::gone_verb(verb)
}

/// Runs a verb; returns the exit code.
fn run(cli: Cli) -> Result<u8, Failure> {
    let run_dir = cli.run_dir.as_deref();
    let log_level = match &cli.verb {
        Verb::Daemon(_) => Some(Level::INFO),
        Verb::Run(_) | Verb::Recover(_) | Verb::Mkvol(_) | Verb::Check(_) => Some(Level::WARN),
        Verb::Inspect(_)
        | Verb::Wipe(_)
        | Verb::Ublk(_)
        | Verb::Control(_)
        | Verb::Help(_)
        | Verb::Completions(_) => None,
    };
    // What runs devices that are written to logs, and ends at a panic as at a power cut.
    if let Some(level) = log_level {
        start_log(level);
        abort_on_panic();
    }
    match cli.verb {
        Verb::Daemon(args) => run_daemon(*args, run_dir),
        Verb::Run(args) => {
            let command = host::run_command(&args, run_dir);
            runtime()?.block_on(command).map_err(|f| f.within("run"))
        }
        Verb::Inspect(args) => cli::inspect(&args, run_dir),
        Verb::Recover(args) => cli::recover(args, run_dir),
        Verb::Wipe(args) => cli::wipe(&args, run_dir),
        Verb::Mkvol(args) => cli::mkvol(&args, run_dir),
        Verb::Check(args) => cli::check(&args, run_dir),
        Verb::Ublk(args) => cli::ublk(&args, run_dir),
        Verb::Help(HelpArgs { topic }) => help(topic.as_deref()),
        Verb::Completions(CompletionsArgs { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "millpond", &mut script);
            print_as_is(&String::from_utf8_lossy(&script)).map(|()| EXIT_DONE)
        }
        Verb::Control(verb) => {
            let runtime = runtime()?;
            let client = Client::new(&RunDir::choose(run_dir)?);
            runtime.block_on(cli::control_daemon(&client, verb)).map(|()| EXIT_DONE)
        }
    }
}

fn run_daemon(args: DaemonArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let DaemonArgs { config: file, check_config, serve } = args;
    let runtime = runtime()?;
    let config = match &file {
        Some(file) => Config::read(file)?,
        None => Config::default(),
    };
    let config = config.with_options(serve);
    let done = match file {
        Some(file) if check_config => runtime.block_on(host::check_config(config, &file)),
        _ => runtime.block_on(host::run_daemon(&RunDir::choose(run_dir)?, config)),
    };
    done.map_err(|f| f.within("daemon"))
}

/// Prints what a verb, a target type or an attribute is; without one, the target types. Returns the
/// exit code.
fn help(topic: Option<&str>) -> Result<u8, Failure> {
    let mut program = Cli::command();
    program.build();
    let verbs = program.get_subcommands().map(|verb| verb.get_name().to_owned());
    let verbs: Vec<_> = verbs.collect();
    let verb = topic.and_then(|name| program.find_subcommand_mut(name));
    let text = match verb {
        Some(verb) => verb.render_long_help().to_string(),
        None => cli::topic_help(topic, &verbs)?,
    };
    // `drain` is a verb and an attribute, `error` a target type and an attribute.
    let attribute = topic.and_then(cli::attribute_help).filter(|page| *page != text);
    let text = match attribute {
        Some(attribute) => format!("{text}\nThe attribute of this name:\n\n{attribute}"),
        None => text,
    };
    print(&text).map(|()| EXIT_DONE)
}
