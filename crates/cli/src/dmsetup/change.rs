// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands that change devices.
use std::path::PathBuf;
use std::time::Duration;

use block::ErrorKind;
use control::{api, text, with_absolute_paths};
use host::{TableArgs, io_failure, print_error, read_stdin, read_table};

use crate::client::Client;
use crate::dmsetup::command_error::{CommandError, print};
use crate::dmsetup::options::{Opt, Options};
use crate::dmsetup::words::split_words;
use crate::dmsetup::{concise, naming};
use crate::requests::{self, Removal, unless_missing};
use crate::verbs::print_reply;

/// How often `--retry` tries, and how long it waits between two tries; dmsetup's numbers.
const TRIES: u32 = 25;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// Major number of all mapped devices.
const MAJOR: u32 = dm::MAJOR;

type Done = Result<(), CommandError>;

pub(crate) async fn create(client: &Client, options: &Options, words: &[String]) -> Done {
    refuse_readonly(options)?;
    if options.has(Opt::Concise) {
        return create_concise(client, options, words).await;
    }
    let Some((name, file)) = words.split_first() else {
        return Err(CommandError::failed("Please provide a name for the new device."));
    };
    let table = if options.has(Opt::NoTable) { None } else { Some(table(options, file)?) };
    let minor = match naming::numbers(options)? {
        Some((MAJOR, minor)) => Some(minor),
        Some((major, _)) => {
            let message = format!("major number {major}: that of all devices is {MAJOR}");
            return Err(CommandError::failed(format!("millpond: {message}")));
        }
        None => None,
    };
    let uuid = options.get(Opt::Uuid).map(str::to_owned);
    create_one(client, options, name, uuid, minor, table).await?;
    show(client, options, name).await
}

async fn create_concise(client: &Client, options: &Options, words: &[String]) -> Done {
    let list = match words {
        [] => read_stdin()?,
        [list] => list.clone(),
        _ => {
            return Err(CommandError::failed(
                "dmsetup create --concise takes at most one argument",
            ));
        }
    };
    let here = std::env::current_dir();
    let here = here.map_err(|e| CommandError::from(io_failure(&e, "current directory")))?;
    for spec in concise::parse(&list)? {
        let table = with_absolute_paths(&spec.table, &here);
        create_one(client, options, &spec.name, spec.uuid, spec.minor, Some(table)).await?;
    }
    Ok(())
}

async fn create_one(
    client: &Client,
    options: &Options,
    name: &str,
    uuid: Option<String>,
    minor: Option<u32>,
    table: Option<String>,
) -> Done {
    check_name(name)?;
    // A table without a line loads nothing: dmsetup leaves the device without one.
    let table = table.filter(|t| t.lines().any(|l| !l.trim().is_empty() && !l.starts_with('#')));
    let (name, force) = (name.to_owned(), options.token());
    let new = api::Create { name, uuid, minor, table, force, zram: false, ublk: false };
    requests::create(client, &new).await.map_err(|f| {
        // The daemon makes it with its table, or not at all; dmsetup names the step that failed.
        if f.message.contains(": line ") {
            return CommandError::ioctl("reload", &new.name, &f);
        }
        let uuid = new.uuid.as_deref().unwrap_or_default();
        CommandError::ioctl_with_uuid("create", &new.name, uuid, &f)
    })
}

fn check_name(name: &str) -> Done {
    if name.contains('/') {
        return Err(CommandError::failed(format!("Name \"{name}\" invalid. It contains \"/\".")));
    }
    naming::check_length(name)
}

fn refuse_readonly(options: &Options) -> Done {
    if options.has(Opt::ReadOnly) {
        let instead = "`millpond set NAME ro 1` makes the device read-only for clients";
        return Err(CommandError::not_supported("--readonly", instead));
    }
    Ok(())
}

/// The table that the options, a file or standard input give.
fn table(options: &Options, file: &[String]) -> Result<String, CommandError> {
    let file = options.get(Opt::TableFile).or(file.first().map(String::as_str));
    let args = TableArgs {
        table: options.get(Opt::Table).map(str::to_owned),
        table_file: file.map(PathBuf::from),
    };
    let text = read_table(&args).map_err(|f| match (&args.table, file) {
        (None, Some(file)) => {
            CommandError::failed(format!("Couldn't open '{file}' for reading.\nmillpond: {f}"))
        }
        _ => CommandError::from(f),
    })?;
    let source = if args.table.is_some() { "" } else { file.unwrap_or("on stdin") };
    check_format(&text, source)?;
    Ok(text)
}

/// dmsetup reads a table before it asks for anything.
fn check_format(table: &str, source: &str) -> Done {
    for (nth, line) in table.lines().enumerate() {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        dm::check_format(text).map_err(|e| {
            let nth = nth + 1;
            CommandError::failed(format!(
                "Invalid format on line {nth} of table {source}.\nmillpond: line {nth}: {e}"
            ))
        })?;
    }
    Ok(())
}

pub(crate) async fn load(client: &Client, options: &Options, words: &[String]) -> Done {
    refuse_readonly(options)?;
    if options.has(Opt::NoTable) {
        return Err(CommandError::failed("--notable only available when creating new device."));
    }
    if words.is_empty() && !options.has(Opt::Uuid) && !options.has(Opt::Major) {
        return Err(CommandError::failed("Please specify device."));
    }
    let (name, file) = naming::of_first(client, options, words).await?;
    let body = api::Load { table: table(options, file)?, force: options.token() };
    post(client, "reload", &name, "load", &body).await?;
    show(client, options, &name).await
}

async fn post(
    client: &Client,
    ioctl: &str,
    name: &str,
    what: &str,
    body: &impl serde::Serialize,
) -> Done {
    let changed = requests::change(client, name, what, body).await;
    changed.map_err(|f| CommandError::ioctl(ioctl, name, &f))
}

/// The devices that a command must have.
async fn some(
    client: &Client,
    options: &Options,
    words: &[String],
) -> Result<Vec<String>, CommandError> {
    let named = naming::of_all(client, options, words).await?;
    named.ok_or_else(|| CommandError::failed("No device specified."))
}

/// `suspend`, `resume` and `clear`. Their names are the daemon's too.
pub(crate) async fn simple(
    client: &Client,
    options: &Options,
    verb: &str,
    words: &[String],
) -> Done {
    for name in some(client, options, words).await? {
        if verb == "suspend" {
            let body = api::Suspend { noflush: options.has(Opt::NoFlush) };
            post(client, verb, &name, verb, &body).await?;
        } else if verb == "resume" {
            let body = api::Resume { force: options.token() };
            post(client, verb, &name, verb, &body).await?;
        } else {
            post(client, verb, &name, verb, &api::Empty {}).await?;
        }
        show(client, options, &name).await?;
    }
    Ok(())
}

pub(crate) async fn remove(client: &Client, options: &Options, words: &[String]) -> Done {
    let removal = Removal::of(options.get(Opt::Force), options.has(Opt::Deferred));
    let tries = if options.has(Opt::Retry) { TRIES } else { 1 };
    for name in some(client, options, words).await? {
        let mut tried = 1;
        loop {
            match requests::remove(client, &name, removal).await {
                Err(f) if f.kind() == Some(ErrorKind::Busy) && tried < tries => {
                    tried += 1;
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
                done => break done.map_err(|f| CommandError::ioctl("remove", &name, &f))?,
            }
        }
    }
    Ok(())
}

/// Devices that are open stay, which is no failure; with `--force` its table is replaced by one
/// that fails all I/O.
pub(crate) async fn remove_all(client: &Client, options: &Options) -> Done {
    for force in [false, true] {
        match requests::remove_all(client, Removal::of(force.then_some(""), false)).await {
            Ok(()) => return Ok(()),
            Err(f) if f.kind() != Some(ErrorKind::Busy) => return Err(f.into()),
            Err(f) => {
                let left = requests::devices(client).await?;
                let left = left.len();
                print_error(&format!("Unable to remove {left} device(s).\nmillpond: {f}"));
            }
        }
        if !options.has(Opt::Force) {
            break;
        }
    }
    Ok(())
}

/// A table of the same size that fails all I/O. What the old one's targets hold, they settle.
pub(crate) async fn wipe_table(client: &Client, options: &Options, words: &[String]) -> Done {
    for name in some(client, options, words).await? {
        let device = requests::device(client, &name).await;
        let sectors = device.map_err(|f| CommandError::ioctl("table", &name, &f))?.size_sectors;
        let table = format!("0 {sectors} error");
        post(client, "reload", &name, "load", &api::Load { table, force: None }).await?;
        let how = api::Resume { force: options.token() };
        if let Err(refused) = post(client, "resume", &name, "resume", &how).await {
            // What was refused leaves the device as it was.
            post(client, "clear", &name, "clear", &api::Empty {}).await?;
            return Err(refused);
        }
        show(client, options, &name).await?;
    }
    Ok(())
}

pub(crate) async fn rename(client: &Client, options: &Options, words: &[String]) -> Done {
    // With --setuuid, `-u` would still name the device.
    let (name, rest) = naming::of_first(client, options, words).await?;
    let new = match rest {
        [new] if !new.is_empty() => new.clone(),
        [_] => return Err(CommandError::failed("Non empty new name is required.")),
        [] => return Err(CommandError::failed("No new name or UUID specified.")),
        _ => return Err(CommandError::usage("Incorrect number of arguments.")),
    };
    let body = if options.has(Opt::SetUuid) {
        api::Rename { name: None, uuid: Some(new) }
    } else {
        check_name(&new)?;
        api::Rename { name: Some(new), uuid: None }
    };
    post(client, "rename", &name, "rename", &body).await
}

pub(crate) async fn message(client: &Client, options: &Options, words: &[String]) -> Done {
    let by_option = options.has(Opt::Uuid) || options.has(Opt::Major);
    if words.len() + usize::from(by_option) < 2 {
        return Err(CommandError::usage("Incorrect number of arguments."));
    }
    let (name, rest) = naming::of_first(client, options, words).await?;
    let [sector, message @ ..] = rest else {
        return Err(CommandError::usage("Incorrect number of arguments."));
    };
    let Ok(sector) = sector.parse::<u64>() else {
        return Err(CommandError::failed("Invalid sector."));
    };
    let words = split_words(&message.join(" "));
    if words.is_empty() {
        print_error("No message supplied."); // and the kernel, which is asked all the same, says no
    }
    let reply = requests::message(client, &name, sector, words).await;
    let printed = reply.and_then(|reply| print_reply(&reply));
    printed.map_err(|f| CommandError::ioctl("message", &name, &f))
}

/// Waits until the event number is another one than that given; than 0, without.
pub(crate) async fn wait(client: &Client, options: &Options, words: &[String]) -> Done {
    let (name, rest) = naming::of_first(client, options, words).await?;
    let seen = match rest {
        [] => 0,
        [seen] => seen.parse::<u32>().map_err(|_| {
            CommandError::failed(format!(
                "millpond: event number `{seen}`: must be decimal, below 2^32"
            ))
        })?,
        _ => return Err(CommandError::usage("Incorrect number of arguments.")),
    };
    let event = requests::wait(client, &name, seen.into()).await;
    event.map_err(|f| CommandError::ioctl("waitevent", &name, &f))?;
    show(client, options, &name).await
}

/// `mknodes` and `setgeometry`: no device has a node or a geometry.
pub(crate) async fn nothing(
    client: &Client,
    options: &Options,
    verb: &str,
    words: &[String],
) -> Done {
    if verb == "setgeometry" {
        let (name, numbers) = naming::of_first(client, options, words).await?;
        if numbers.len() != 4 {
            return Err(CommandError::usage("Incorrect number of arguments."));
        }
        if let Some(wrong) = numbers.iter().find(|n| n.parse::<u64>().is_err()) {
            let message = format!("millpond: geometry `{wrong}`: must be a decimal number");
            return Err(CommandError::failed(message));
        }
        let device = requests::device(client, &name).await;
        device.map_err(|f| CommandError::ioctl(verb, &name, &f))?;
    }
    if options.has(Opt::Verbose) {
        let text = "nothing to do: devices have no nodes and no geometry";
        print_error(&format!("millpond: {verb}: {text}"));
    }
    Ok(())
}

/// Shows a device that was changed, with `-v`. It may have been removed meanwhile.
async fn show(client: &Client, options: &Options, name: &str) -> Done {
    if !options.has(Opt::Verbose) {
        return Ok(());
    }
    match unless_missing(name, requests::device(client, name).await)? {
        Some(device) => print(&text::info(&[device])),
        None => Ok(()),
    }
}
