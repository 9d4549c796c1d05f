// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The grammar of the command line: the verbs of all rooms, and those of the daemon. Help texts and
//! man pages come from here; `tests/help` pins them.
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cli::{CheckArgs, ControlVerb, InspectArgs, MkvolArgs, RecoverArgs, UblkArgs, WipeArgs};
use host::{RunArgs, ServeArgs};

/// Block devices from tables, in user space
///
/// `millpond daemon` builds block devices out of device-mapper tables, keeps their data safe, and
/// serves them over NBD. The other verbs steer it; they are dmsetup's, with the same output.
/// `millpond help NAME` describes a verb, a target type or an attribute.
#[derive(Debug, Parser)]
#[command(
    name = "millpond",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  millpond daemon --run-dir ~/pond &
  export MILLPOND_RUN_DIR=~/pond
  millpond create wc --table '0 4194304 writecache s /srv/origin.img /srv/cache.img 4096 0'
  millpond show wc
  millpond flush wc

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 busy."
)]
pub(crate) struct Cli {
    /// Where the daemon's sockets are [default: $MILLPOND_RUN_DIR, else /run/millpond for root,
    /// else $XDG_RUNTIME_DIR/millpond; for `run` a temporary directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Daemon(Box<DaemonArgs>),
    Run(RunArgs),
    Inspect(InspectArgs),
    Recover(RecoverArgs),
    Wipe(WipeArgs),
    Mkvol(MkvolArgs),
    Check(CheckArgs),
    Ublk(UblkArgs),
    #[command(flatten)]
    Control(ControlVerb),
    Help(HelpArgs),
    Completions(CompletionsArgs),
}

/// Print a script that completes verbs and options in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond completions bash > /usr/share/bash-completion/completions/millpond
  millpond completions zsh > ~/.zfunc/_millpond
  millpond completions fish > ~/.config/fish/completions/millpond.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Describe a verb, a target type or an attribute, or list the target types
///
/// A verb's text is that of its --help. A target type's has the form of its table line, its options
/// with ranges and defaults, and its attributes. An attribute's has its values, its default, who
/// has it, and whether it can be set while the device is in use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond help
  millpond help create
  millpond help writecache
  millpond help high_watermark")]
pub(crate) struct HelpArgs {
    /// The verb, the target type or the attribute; all target types when left out
    #[arg(value_name = "VERB|TARGET|ATTRIBUTE")]
    pub(crate) topic: Option<String>,
}

/// Run the daemon: devices, NBD server and control socket
///
/// Stays in the foreground and logs to standard error. SIGTERM or SIGINT: stop accepting, finish
/// what is in flight, commit, exit 0. What has not ended after --shutdown-timeout is logged and
/// left as a power cut leaves it: whatever was flushed is safe; exit 1. A second SIGTERM or SIGINT
/// exits at once (143 or 130). SIGHUP: read the configuration file again, as `millpond reload`.
#[derive(Debug, Args)]
#[command(after_help = "\
RUN_DIR/control.sock takes HTTP (docs/api.md), RUN_DIR/nbd.sock takes NBD. RUN_DIR is made if it is
not there; one that is a symlink, another user's, or that others may write to, is refused.

Listening sockets that systemd passes (LISTEN_FDS) are served as well: FileDescriptorName= of their
unit is nbd, control or metrics. One at an address of the options takes the place of that one; its
path is not unlinked. With NOTIFY_SOCKET the daemon leaves its own listeners in systemd's store for
its next start (docs/service.md).

An NBD client that takes no replies for 30 seconds is cut off. When all 256 connections are taken,
the session that has been idle for longest, 5 minutes at least, makes room for a new one; 64 are
kept for local sockets (docs/nbd.md).

Examples:
  millpond daemon --run-dir ~/pond
  millpond daemon --config /etc/millpond.toml
  millpond daemon --config /etc/millpond.toml --check-config
  millpond daemon --nbd 127.0.0.1:10809 --default-export wc
  millpond daemon --fuse /srv/pond
  millpond daemon --vhost-user /run/millpond-vm --socket-group kvm
  millpond daemon --cores 4")]
pub(crate) struct DaemonArgs {
    /// Create these devices at start (TOML, docs/config.md); options given here win
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration file and exit: print each error with its line, or that there is
    /// none. No device is made and no file is changed or locked; a running daemon is not disturbed
    #[arg(long, requires = "config")]
    pub(crate) check_config: bool,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}
