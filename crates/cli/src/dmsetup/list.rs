// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands that show devices.
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use control::report::{FIELDS, Field, INFO, Layout, SPLITNAME, Subject, fields, report};
use control::report::{mangle as mangled_name, sort_by_key, split_name};
use control::text::Naming;
use control::tree::{self, Style, TreeGlyphs};
use control::{Failure, api, plain, text};
use host::print_error;

use crate::client::Client;
use crate::dmsetup::command_error::{CommandError, print, print_as_is};
use crate::dmsetup::naming;
use crate::dmsetup::options::{Opt, Options};
use crate::dmsetup::words::split_words;
use crate::requests::{self, Lines, unless_missing};

type Done = Result<(), CommandError>;

/// The devices that the words or options name, one by one; without any, all devices.
struct Selection {
    devices: Vec<api::Device>,
    /// The first that does not exist.
    missing: Option<String>,
    /// One was named, and no list asked for.
    single: bool,
}

impl Selection {
    async fn of(
        client: &Client,
        options: &Options,
        words: &[String],
    ) -> Result<Selection, CommandError> {
        let Some(names) = naming::of_all(client, options, words).await? else {
            let devices = requests::devices(client).await?;
            return Ok(Selection { devices, missing: None, single: false });
        };
        let single = names.len() == 1;
        let mut selected = Selection { devices: Vec::new(), missing: None, single };
        for name in names {
            match unless_missing(&name, requests::device(client, &name).await)? {
                Some(device) => selected.devices.push(device),
                None => {
                    selected.missing = Some(name);
                    break;
                }
            }
        }
        Ok(selected)
    }

    /// Whether no device was named and none exists.
    fn nothing(&self) -> bool {
        self.devices.is_empty() && self.missing.is_none()
    }

    /// Ends a command: it fails if a device that was named does not exist.
    fn end(self, missing: impl FnOnce(&str) -> CommandError) -> Done {
        self.missing.map_or(Ok(()), |name| Err(missing(&name)))
    }
}

/// dmsetup's error about a missing device, for commands that do not check for it first.
fn no_ioctl(ioctl: &str) -> impl FnOnce(&str) -> CommandError + '_ {
    move |name| {
        let f = Failure::new(block::ErrorKind::NotFound, format!("{name}: no such device"));
        CommandError::ioctl(ioctl, name, &f)
    }
}

/// `status` and `table`.
pub(crate) async fn lines(
    client: &Client,
    options: &Options,
    words: &[String],
    verb: &str,
) -> Done {
    let what = match (verb, options.has(Opt::Inactive)) {
        ("table", true) => Lines::InactiveTable,
        ("table", false) => Lines::LiveTable,
        (_, false) => Lines::Status { noflush: options.has(Opt::NoFlush) },
        (_, true) => return Err(no_inactive(verb)),
    };
    let selected = Selection::of(client, options, words).await?;
    if selected.nothing() {
        return print(tree::NO_DEVICES);
    }
    let concise = verb == "table" && options.has(Opt::Concise);
    let mut entries = Vec::new();
    for d in &selected.devices {
        let lines =
            requests::lines_in_list(client, &d.name, what, options.get(Opt::Target)).await?;
        let Some(lines) = lines else { continue };
        if concise {
            entries.push(text::concise(d, &lines));
            continue;
        }
        let name = (!selected.single).then_some(d.name.as_str());
        let head = if options.has(Opt::Verbose) {
            text::info(std::slice::from_ref(d))
        } else {
            String::new()
        };
        print(&format!("{head}{}", text::lines(name, &lines)))?;
    }
    if !entries.is_empty() {
        print(&format!("{}\n", entries.join(";")))?;
    }
    if verb == "table" {
        selected.end(no_ioctl(verb))
    } else {
        selected.end(CommandError::does_not_exist)
    }
}

fn no_inactive(verb: &str) -> CommandError {
    CommandError::not_supported(
        &format!("{verb} --inactive"),
        "`table --inactive` shows what is loaded",
    )
}

pub(crate) async fn info(client: &Client, options: &Options, words: &[String]) -> Done {
    if options.has(Opt::Inactive) {
        return Err(no_inactive("info"));
    }
    if !options.has(Opt::Columns) {
        if let Some(list) = options.get(Opt::Fields) {
            return Err(CommandError::command_line(format!("Option not recognised: {list}.")));
        }
        let selected = Selection::of(client, options, words).await?;
        if !selected.devices.is_empty() || selected.nothing() {
            print(&text::info(&selected.devices))?;
        }
        return selected.end(CommandError::does_not_exist);
    }
    if options.has(Opt::Select) {
        let instead = "name the devices, or select in what `-c` prints";
        return Err(CommandError::not_supported("--select", instead));
    }
    let Some(columns) = columns(options, INFO)? else { return Ok(()) };
    let keys = sort_keys(options.get(Opt::Sort).unwrap_or_default())?;
    let selected = Selection::of(client, options, words).await?;
    if selected.nothing() {
        return print(tree::NO_DEVICES);
    }
    if selected.missing.is_some() {
        return selected.end(CommandError::does_not_exist);
    }
    let wanted = columns.iter().copied().chain(keys.iter().map(|k| k.0));
    let around = wanted.into_iter().any(|f| f.group == "deps_all");
    let everybody = if around { requests::devices(client).await? } else { Vec::new() };
    let deps = all_deps(client, &everybody).await?;
    let mut subjects: Vec<Subject<'_>> =
        selected.devices.iter().map(|d| subject(d, &everybody, &deps)).collect();
    for (key, descending) in keys.iter().rev() {
        sort_by_key(&mut subjects, key, *descending, |s| s.value(key));
    }
    let values: Vec<Vec<String>> =
        subjects.iter().map(|s| columns.iter().map(|f| s.value(f)).collect()).collect();
    print_as_is(&report(&columns, &values, &layout(options)))
}

fn subject<'a>(
    device: &'a api::Device,
    everybody: &'a [api::Device],
    deps: &'a [Vec<api::Dependency>],
) -> Subject<'a> {
    let at = everybody.iter().position(|d| d.minor == device.minor);
    let number = Some((device.major, device.minor));
    let stands_on =
        |deps: &[api::Dependency]| deps.iter().any(|d| d.number == number && d.name == device.name);
    let users = everybody.iter().zip(deps).filter(|(_, deps)| stands_on(deps)).map(|(d, _)| d);
    Subject {
        device,
        deps: at.and_then(|at| deps.get(at)).map_or(&[], Vec::as_slice),
        users: users.collect(),
    }
}

/// The fields of `-o`; `+` before them adds to the usual ones. None when only help was asked for.
fn columns(options: &Options, usual: &str) -> Result<Option<Vec<&'static Field>>, CommandError> {
    let list = match options.get(Opt::Fields) {
        None => usual.to_owned(),
        Some("help" | "?") => {
            return print(&field_help()).map(|()| None);
        }
        Some(list) => match list.strip_prefix('+') {
            Some(more) => format!("{usual},{more}"),
            None => list.to_owned(),
        },
    };
    fields(&list).map(Some).map_err(|word| unknown_field(&word))
}

fn unknown_field(word: &str) -> CommandError {
    CommandError::failed(format!("{}Unrecognised field: {word}", field_help()))
}

fn field_help() -> String {
    let mut group = "";
    FIELDS.iter().fold(String::new(), |mut out, f| {
        if f.group != group {
            group = f.group;
            out.push_str(&format!("  {group}\n"));
        }
        out.push_str(&format!("    {:<20}{}\n", f.id, f.heading));
        out
    })
}

/// `-O`: fields with `+` or `-` before them.
fn sort_keys(list: &str) -> Result<Vec<(&'static Field, bool)>, CommandError> {
    let mut keys = Vec::new();
    for word in list.split(',').filter(|w| !w.is_empty()) {
        let descending = word.starts_with('-');
        let found = fields(word.trim_start_matches(['+', '-']));
        let found = found.map_err(|word| unknown_field(&word))?;
        for field in found {
            keys.push((field, descending));
        }
    }
    Ok(keys)
}

fn layout(options: &Options) -> Layout {
    let headings = !options.has(Opt::NoHeadings);
    let (rows, prefixes) = (options.has(Opt::Rows), options.has(Opt::NamePrefixes));
    let separator = options.get(Opt::Separator);
    Layout {
        aligned: headings && !rows && !prefixes && separator.is_none(),
        headings,
        separator: separator.unwrap_or(if headings { " " } else { ":" }).to_owned(),
        rows,
        prefixes,
        quoted: !options.has(Opt::Unquoted),
    }
}

/// Needs no daemon: it is about a name only.
pub(crate) fn splitname(options: &Options, words: &[String]) -> Done {
    let (name, subsystem) = match words {
        [name, subsystem] => (name, subsystem.as_str()),
        [name, ..] => (name, "LVM"),
        [] => return Err(CommandError::usage("Incorrect number of arguments.")),
    };
    let Some(columns) = columns(options, SPLITNAME)? else { return Ok(()) };
    if let Some(other) = columns.iter().find(|f| f.group != "splitname_all") {
        return Err(unknown_field(other.id));
    }
    let value = |f: &&Field| match f.id {
        "subsystem" => subsystem.to_owned(),
        part => split_name(name, subsystem, part),
    };
    let row = columns.iter().map(value).collect();
    print_as_is(&report(&columns, &[row], &layout(options)))
}

/// What each device is built on, by index.
async fn all_deps(
    client: &Client,
    devices: &[api::Device],
) -> Result<Vec<Vec<api::Dependency>>, CommandError> {
    let all = requests::deps_of_all(client, devices).await?;
    Ok(all.into_iter().map(|deps| deps.into_iter().map(numbered).collect()).collect())
}

/// A leaf that is a block device of the kernel has its numbers and its kernel name, as with
/// dmsetup; a file or memory has none.
fn numbered(dep: api::Dependency) -> api::Dependency {
    if dep.number.is_some() || !dep.name.starts_with('/') {
        return dep;
    }
    let Ok(real) = Path::new(&dep.name).canonicalize() else { return dep };
    let Ok(meta) = real.metadata() else { return dep };
    let (Some(name), true) = (real.file_name(), meta.file_type().is_block_device()) else {
        return dep;
    };
    let number = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    api::Dependency { name: name.to_string_lossy().into_owned(), number: Some(number) }
}

pub(crate) async fn deps(client: &Client, options: &Options, words: &[String]) -> Done {
    if options.has(Opt::Inactive) {
        return Err(no_inactive("deps"));
    }
    let naming = device_naming(options)?;
    let selected = Selection::of(client, options, words).await?;
    if selected.nothing() {
        return print(tree::NO_DEVICES);
    }
    for d in &selected.devices {
        let deps = unless_missing(&d.name, requests::deps(client, &d.name).await)?;
        let Some(deps) = deps else { continue };
        let deps: Vec<api::Dependency> = deps.into_iter().map(numbered).collect();
        let name = (!selected.single).then_some(d.name.as_str());
        let head = if options.has(Opt::Verbose) {
            text::info(std::slice::from_ref(d))
        } else {
            String::new()
        };
        print(&format!("{head}{}", text::deps(name, &deps, naming)))?;
    }
    selected.end(no_ioctl("deps"))
}

fn device_naming(options: &Options) -> Result<Naming, CommandError> {
    match options.get(Opt::Fields) {
        None | Some("devno") => Ok(Naming::Devno),
        Some("devname") => Ok(Naming::Devname),
        Some("blkdevname") => Ok(Naming::Blkdevname),
        Some(other) => Err(CommandError::command_line(format!("Option not recognised: {other}."))),
    }
}

pub(crate) async fn ls(client: &Client, options: &Options) -> Done {
    // With a target, dmsetup draws no tree and takes no `-o`.
    let Some(target) = options.get(Opt::Target) else {
        if options.has(Opt::Tree) {
            let style = style(options.get(Opt::Fields).unwrap_or_default())?;
            let devices = requests::devices(client).await?;
            let deps = all_deps(client, &devices).await?;
            return print_as_is(&tree::drawn(&devices, &deps, &style));
        }
        let naming = device_naming(options)?;
        let devices = requests::devices(client).await?;
        return match options.get(Opt::Exec) {
            Some(command) if !devices.is_empty() => exec(command, &devices),
            _ => print(&text::ls(&devices, naming)),
        };
    };
    if requests::devices(client).await?.is_empty() {
        return print(tree::NO_DEVICES);
    }
    let found = requests::devices_with(client, target).await?;
    match options.get(Opt::Exec) {
        Some(command) => exec(command, &found),
        None => print(&text::ls_of_target(&found)),
    }
}

/// Runs a command for each device, with the device's path behind its words. How it ends does not
/// matter, as with dmsetup.
fn exec(command: &str, devices: &[api::Device]) -> Done {
    let words = split_words(command);
    let Some((program, args)) = words.split_first() else {
        return Err(CommandError::failed("millpond: --exec: the command is empty"));
    };
    let dev = std::env::var_os("DM_DEV_DIR").filter(|d| !d.is_empty());
    let dev = dev.map_or_else(|| PathBuf::from("/dev"), PathBuf::from);
    for d in devices {
        let path = dev.join("mapper").join(mangled_name(&d.name));
        if let Err(e) = Command::new(program).args(args).arg(path).status() {
            print_error(&format!("millpond: --exec: {}: {e}", plain(program)));
        }
    }
    Ok(())
}

/// The options of a tree.
fn style(list: &str) -> Result<Style, CommandError> {
    let glyphs = if is_utf8_locale() { TreeGlyphs::Utf } else { TreeGlyphs::Ascii };
    let mut style = Style { glyphs, ..Style::default() };
    for word in list.split(',').filter(|w| !w.is_empty()) {
        match word {
            "ascii" => style.glyphs = TreeGlyphs::Ascii,
            "utf" => style.glyphs = TreeGlyphs::Utf,
            "vt100" => style.glyphs = TreeGlyphs::Vt100,
            "device" => style.device = true,
            "nodevice" => style.device = false,
            "blkdevname" => style.blkdevname = true,
            "active" => style.active = true,
            "rw" => style.rw = true,
            "open" => style.open = true,
            "uuid" => style.uuid = true,
            "inverted" => style.inverted = true,
            // Lines are never cut.
            "notrunc" => {}
            "compact" => {
                let instead = "a tree has a line for each device";
                return Err(CommandError::not_supported("ls --tree -o compact", instead));
            }
            _ => {
                let message = format!("Tree options not recognised: {list}.");
                return Err(CommandError::command_line(message));
            }
        }
    }
    Ok(style)
}

/// As the C library decides it: the first of these that is set.
fn is_utf8_locale() -> bool {
    let set = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.ends_with("utf-8") || locale.ends_with("utf8")
}

pub(crate) async fn mangle(client: &Client, options: &Options, words: &[String]) -> Done {
    let selected = Selection::of(client, options, words).await?;
    if selected.nothing() {
        return print(tree::NO_DEVICES);
    }
    print(&selected.devices.iter().map(text::mangled).collect::<String>())?;
    selected.end(|name| CommandError::failed(format!("Device {name} not found")))
}

pub(crate) async fn targets(client: &Client) -> Done {
    let targets = requests::targets(client).await?;
    print(&text::targets(&targets))
}

pub(crate) async fn target_versions(client: &Client, words: &[String]) -> Done {
    let targets = requests::targets(client).await?;
    for word in words {
        let found = targets.iter().find(|t| t.name == *word).ok_or_else(|| {
            let known: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
            let message = format!("{word}: unknown target type: known are {}", known.join(", "));
            let f = Failure::new(block::ErrorKind::Invalid, message);
            CommandError::ioctl("target-version", word, &f)
        })?;
        print(&text::targets(std::slice::from_ref(found)))?;
    }
    Ok(())
}

/// The command line is the library, the daemon the driver.
pub(crate) async fn version(client: &Client) -> Done {
    let daemon = requests::version(client).await?;
    print(&text::version(env!("CARGO_PKG_VERSION"), &daemon))
}
