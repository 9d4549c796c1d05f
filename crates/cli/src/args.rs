// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The grammar of the verbs that control a daemon: dmsetup's, and ours. Help texts and man pages
//! come from here.
use clap::{Args, Subcommand};
use host::{Listing, TableArgs};

use crate::clients::{ClientsArgs, DisconnectArgs};
use crate::drain::DrainArgs;
use crate::recache::{ReplaceCacheArgs, UncacheArgs};
use crate::resize::ResizeArgs;
use crate::save::SaveArgs;
use crate::show::ShowArgs;
use crate::snapshot::{SnapshotArgs, SnapshotsArgs};
use crate::top::TopArgs;
use crate::upgrade::UpgradeArgs;

/// The verbs that control a daemon.
#[derive(Debug, Subcommand)]
pub enum ControlVerb {
    Create(CreateArgs),
    Load(LoadArgs),
    Clear(ClearArgs),
    Suspend(SuspendArgs),
    Resume(ResumeArgs),
    Remove(RemoveArgs),
    #[command(name = "remove_all")]
    RemoveAll(RemoveAllArgs),
    Rename(RenameArgs),
    Message(MessageArgs),
    Drain(DrainArgs),
    Uncache(UncacheArgs),
    ReplaceCache(ReplaceCacheArgs),
    Resize(ResizeArgs),
    Snapshot(SnapshotArgs),
    Snapshots(SnapshotsArgs),
    Status(StatusArgs),
    Table(TableListArgs),
    Info(InfoArgs),
    Ls(LsArgs),
    Deps(DepsArgs),
    Targets(TargetsArgs),
    Wait(WaitArgs),
    Get(GetArgs),
    Set(SetArgs),
    Version(VersionArgs),
    Show(ShowArgs),
    Clients(ClientsArgs),
    Disconnect(DisconnectArgs),
    Top(TopArgs),
    Flush(FlushArgs),
    Reload(ReloadArgs),
    Save(SaveArgs),
    Upgrade(UpgradeArgs),
    Stop(StopArgs),
}

/// Make a mapped device
///
/// Without --table and --table-file the table is read from standard input. Relative paths in a
/// table hold a slash (`./disk.img`); a word without one is a mapped device's name.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond create scratch --table '0 131072 linear mem:64M 0'
  millpond create wc --table '0 4194304 writecache s /srv/origin.img /srv/cache.img 4096 0'
  millpond create both --table-file both.table --uuid 5c1e
  echo '0 2048 zero' | millpond create z
  millpond create later --notable
  millpond create ram --table '0 8388608 zram zstd 2 backing_dev /srv/cold.img'
  millpond create buf --table '0 4194304 buffered /srv/disk.img 2 memory 512M'
  millpond create zram0 --zram && millpond set zram0 disksize 4G")]
pub struct CreateArgs {
    /// Name of the device and of its export
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Make it without a table, suspended
    #[arg(long, conflicts_with_all = ["table", "table_file"])]
    pub(crate) notable: bool,
    /// Make a compressed RAM disk without a size: set its attributes, `disksize` last, as those of
    /// /sys/block/zram0
    #[arg(long, conflicts_with_all = ["table", "table_file", "notable"])]
    pub(crate) zram: bool,
    /// Make it a block device of the kernel, too, though the daemon runs without --ublk
    #[arg(long)]
    pub(crate) ublk: bool,
    /// A second, unchangeable name
    #[arg(short, long)]
    pub(crate) uuid: Option<String>,
    /// Do it although it was refused: the token of the refusal
    #[arg(long, value_name = "TOKEN")]
    pub(crate) force: Option<String>,
}

/// Load a table into a device's inactive slot
///
/// It becomes live at the next resume. Without --table and --table-file it is read from standard
/// input.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond load wc --table '0 131072 linear mem:64M 0'
  millpond load wc --table-file new.table && millpond resume wc")]
pub struct LoadArgs {
    /// The device
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Do it although it was refused: the token of the refusal
    #[arg(long, value_name = "TOKEN")]
    pub(crate) force: Option<String>,
}

/// Drop the table in a device's inactive slot
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond clear wc")]
pub struct ClearArgs {
    /// The devices
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Resume a device's I/O
///
/// A table that was loaded before becomes live first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond resume wc")]
pub struct ResumeArgs {
    /// The devices
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Do it although it was refused: the token of the refusal
    #[arg(long, value_name = "TOKEN")]
    pub(crate) force: Option<String>,
}

/// Suspend a device's I/O and settle it
///
/// I/O in flight ends and the targets commit; later I/O waits until resume.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond suspend wc")]
pub struct SuspendArgs {
    /// The devices
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Accepted for compatibility with dmsetup: the targets settle in any case
    #[arg(long)]
    pub(crate) noflush: bool,
    /// Accepted for compatibility with dmsetup: no file system is ever frozen
    #[arg(long)]
    pub(crate) nolockfs: bool,
}

/// Remove a device
///
/// A device that clients or other devices use is refused (exit code 4). Dirty blocks of a write
/// cache stay on its cache device, with a warning; a cache with blocks that can't be written back
/// or read is refused with a token, and `--force=TOKEN` removes it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond remove wc
  millpond remove --drain wc
  millpond remove --deferred wc
  millpond remove --force wc")]
pub struct RemoveArgs {
    /// The devices
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Replace the table by one that fails all I/O first; data that the targets still hold are
    /// lost. A removal that was refused needs the token of the refusal, too
    #[arg(
        short,
        long,
        value_name = "TOKEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with_all = ["deferred", "drain"]
    )]
    pub(crate) force: Option<String>,
    /// If it is in use, remove it when its last opener closes it
    #[arg(long, conflicts_with = "drain")]
    pub(crate) deferred: bool,
    /// Write back the dirty blocks of the device's cache first
    #[arg(long)]
    pub(crate) drain: bool,
}

/// Remove every device that nothing uses
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond remove_all
  millpond remove_all --force")]
pub struct RemoveAllArgs {
    /// Replace their tables by ones that fail all I/O first; data that the targets still hold are
    /// lost
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Give a device another name, or a UUID if it has none
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond rename wc cache0
  millpond rename wc --setuuid 5c1e")]
pub struct RenameArgs {
    /// The device
    pub(crate) name: String,
    /// Its new name
    #[arg(required_unless_present = "setuuid", conflicts_with = "setuuid")]
    pub(crate) new_name: Option<String>,
    /// Its UUID
    #[arg(long, value_name = "UUID")]
    pub(crate) setuuid: Option<String>,
}

/// Send words to the target that holds a sector
///
/// A reply, if any, is printed. `flush` to a write cache shows its progress on standard error when
/// it takes longer than two seconds.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond message wc 0 flush
  millpond message wc 0 clear_stats")]
pub struct MessageArgs {
    /// The device
    pub(crate) name: String,
    /// A sector that the target holds; 0 for a table of one line
    #[arg(value_parser = sector)]
    pub(crate) sector: u64,
    /// The message
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

fn sector(text: &str) -> Result<u64, String> {
    block::value::digits(text).ok_or_else(|| {
        "a sector number is needed between device and message: 0 for a table of one line".to_owned()
    })
}

/// Show the state of each line of the live tables
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond status
  millpond status wc
  millpond status --target writecache -o json")]
pub struct StatusArgs {
    /// The device; all when left out
    pub(crate) name: Option<String>,
    /// Only lines of this target type
    #[arg(long, value_name = "TYPE")]
    pub(crate) target: Option<String>,
    /// Accepted for compatibility with dmsetup: showing the state never makes a target commit
    #[arg(long)]
    pub(crate) noflush: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Show the live tables
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond table
  millpond table wc
  millpond table wc -o json")]
pub struct TableListArgs {
    /// The device; all when left out
    pub(crate) name: Option<String>,
    /// Only lines of this target type
    #[arg(long, value_name = "TYPE")]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Show state, tables, open count and event number
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond info wc
  millpond info -c
  millpond info -o json")]
pub struct InfoArgs {
    /// The device; all when left out
    pub(crate) name: Option<String>,
    /// One row a device
    #[arg(short = 'c', long, visible_short_alias = 'C')]
    pub(crate) columns: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// List the devices
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond ls
  millpond ls --tree
  millpond ls --target linear -o json")]
pub struct LsArgs {
    /// Only devices with a line of this target type
    #[arg(long, value_name = "TYPE")]
    pub(crate) target: Option<String>,
    /// Show which devices are built on which
    #[arg(long)]
    pub(crate) tree: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Show what devices are built on
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond deps wc
  millpond deps -o json")]
pub struct DepsArgs {
    /// The device; all when left out
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// List the target types that tables may name
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond targets
  millpond targets -o json")]
pub struct TargetsArgs {
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Wait until a device's event number differs from EVENT_NR
///
/// `info` shows the number. Without it, 0: the first event ends the wait.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond wait wc
  millpond wait wc 3")]
pub struct WaitArgs {
    /// The device
    pub(crate) name: String,
    /// The last event number seen
    #[arg(default_value_t = 0)]
    pub(crate) event_nr: u64,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Show a device's attributes, or the value of one
///
/// A file or disk below has attributes, too, while a table has it open: those of its queue, with
/// the throttle of writeback.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond get wc
  millpond get wc flush_total_blocks
  millpond get zram0 block_state
  millpond get buf ioend_stats
  millpond get ./disk.img queue/wbt_stats
  millpond get wc -o json")]
pub struct GetArgs {
    /// The device: a mapped one, or the path of a leaf (with a slash)
    pub(crate) name: String,
    /// The attribute; all when left out
    pub(crate) attr: Option<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Change an attribute of a device
///
/// `get` lists a device's attributes; many are read-only, and setting one of those is refused. Some
/// are commands: setting one returns when the command has ended, and they can't be read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond get DEVICE
  millpond set DEVICE ATTRIBUTE VALUE
  millpond set zram0 disksize 4G
  millpond set buf dirty_seconds 1.5
  millpond set /srv/disk.img queue/wbt_lat_usec 2000
  millpond set zram0 writeback 'type=huge page_indexes=0-1023'")]
pub struct SetArgs {
    /// The device: a mapped one, or the path of a leaf (with a slash)
    pub(crate) name: String,
    /// The attribute
    pub(crate) attr: String,
    /// Its new value
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,
}

/// Show the versions of command line and daemon
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond version
  millpond version -o json")]
pub struct VersionArgs {
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Write back what a device's caches hold, and flush it
///
/// Afterwards all writes that were complete when it began are durable on the devices below, and an
/// origin alone is up to date with them. Shows its progress after 2 seconds. Caches of devices
/// below are not written back; what they have acknowledged is durable. `drain` does it within
/// limits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond flush wc")]
pub struct FlushArgs {
    /// The devices
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Read the configuration file again, and create the devices that are new in it
///
/// Prints their names. Devices that are there already stay as they are; what the file has
/// differently is a warning. SIGHUP does the same, and logs what is printed here. With NAME, as
/// dmsetup's reload: the same as `load`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond reload
  millpond reload wc --table-file new.table && millpond resume wc")]
pub struct ReloadArgs {
    /// The device of which a table is loaded
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Do it although it was refused: the token of the refusal
    #[arg(long, value_name = "TOKEN", requires = "name")]
    pub(crate) force: Option<String>,
}

/// End the daemon in order, and wait until it has ended
///
/// As SIGTERM: requests in flight end, caches commit. What has not ended after the daemon's
/// --shutdown-timeout is left as a power cut leaves it; its log names it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond stop
  millpond stop --no-wait")]
pub struct StopArgs {
    /// Do not wait until the daemon has ended
    #[arg(long)]
    pub(crate) no_wait: bool,
}
