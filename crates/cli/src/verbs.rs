// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs that control a daemon: each is a few requests, and prints their answers.
use std::collections::BTreeMap;

use block::ErrorKind;
use block::attr::Spec;
use control::text::Naming;
use control::{
    Failure, api, name_with_absolute_path, paths, plain, text, tree, value_with_absolute_paths,
};
use host::{Format, Listing, current_dir, manuals, print, print_error, read_table};
use tokio::time::{Duration, Instant, interval_at};

use crate::args::{
    ControlVerb, CreateArgs, DepsArgs, GetArgs, InfoArgs, LoadArgs, LsArgs, MessageArgs,
    ReloadArgs, RemoveAllArgs, RemoveArgs, RenameArgs, SetArgs, StatusArgs, StopArgs, SuspendArgs,
    TableListArgs, TargetsArgs, VersionArgs, WaitArgs,
};
use crate::client::Client;
use crate::clients::{ClientsArgs, disconnect, list as clients_of, table as client_table};
use crate::drain::drain;
use crate::process::Process;
use crate::progress::{LongOp, QUIET, show_while};
use crate::recache::{replace_cache, uncache};
use crate::requests::{self, Lines, Removal};
use crate::resize::resize;
use crate::save::save;
use crate::show::{ShowArgs, Summary, summaries, table as summary_table};
use crate::snapshot::{snapshot, snapshots};
use crate::top::run as top;
use crate::upgrade::{self, UpgradeArgs};

type Done = Result<(), Failure>;

const EMPTY: api::Empty = api::Empty {};

/// Runs a verb that controls a daemon.
pub async fn run(client: &Client, verb: ControlVerb) -> Done {
    match verb {
        ControlVerb::Create(a) => within(format!("create {}", a.name), create(client, &a).await),
        ControlVerb::Load(a) => within(format!("load {}", a.name), load(client, &a).await),
        ControlVerb::Clear(a) => {
            each("clear", &a.names, async |n| requests::change(client, n, "clear", &EMPTY).await)
                .await
        }
        ControlVerb::Suspend(a) => suspend(client, &a).await,
        ControlVerb::Resume(a) => {
            let body = api::Resume { force: a.force };
            each("resume", &a.names, async |n| requests::change(client, n, "resume", &body).await)
                .await
        }
        ControlVerb::Remove(a) => remove(client, &a).await,
        ControlVerb::RemoveAll(a) => remove_all(client, &a).await,
        ControlVerb::Rename(a) => within(format!("rename {}", a.name), rename(client, &a).await),
        ControlVerb::Message(a) => within(format!("message {}", a.name), message(client, &a).await),
        ControlVerb::Drain(a) => within(format!("drain {}", a.name), drain(client, &a).await),
        ControlVerb::Uncache(a) => within(format!("uncache {}", a.name), uncache(client, &a).await),
        ControlVerb::ReplaceCache(a) => {
            within(format!("replace-cache {}", a.name), replace_cache(client, &a).await)
        }
        ControlVerb::Resize(a) => within(format!("resize {}", a.name), resize(client, &a).await),
        ControlVerb::Snapshot(a) => {
            within(format!("snapshot {}", a.device), snapshot(client, &a).await)
        }
        ControlVerb::Snapshots(a) => {
            within(format!("snapshots {}", a.device), snapshots(client, &a).await)
        }
        ControlVerb::Status(a) => within(verb_of("status", &a.name), status(client, &a).await),
        ControlVerb::Table(a) => within(verb_of("table", &a.name), table(client, &a).await),
        ControlVerb::Info(a) => within(verb_of("info", &a.name), info(client, &a).await),
        ControlVerb::Ls(a) => within("ls", ls(client, &a).await),
        ControlVerb::Deps(a) => within(verb_of("deps", &a.name), deps(client, &a).await),
        ControlVerb::Targets(a) => within("targets", targets(client, &a).await),
        ControlVerb::Wait(a) => within(format!("wait {}", a.name), wait(client, &a).await),
        ControlVerb::Get(a) => within(format!("get {}", a.name), get(client, &a).await),
        ControlVerb::Set(a) => within(format!("set {}", a.name), set(client, &a).await),
        ControlVerb::Version(a) => within("version", version(client, &a).await),
        ControlVerb::Show(a) => within(verb_of("show", &a.name), show_devices(client, &a).await),
        ControlVerb::Clients(a) => within(verb_of("clients", &a.name), clients(client, &a).await),
        ControlVerb::Disconnect(a) => {
            let of = a.device.clone().unwrap_or_else(|| a.clients.join(" "));
            within(format!("disconnect {of}"), disconnect(client, &a).await)
        }
        ControlVerb::Top(a) => within("top", top(client, &a).await),
        ControlVerb::Flush(a) => {
            each("flush", &a.names, async |n| requests::flush(client, n).await).await
        }
        ControlVerb::Reload(a) => reload(client, a).await,
        ControlVerb::Save(a) => within("save", save(client, &a).await),
        ControlVerb::Upgrade(a) => within("upgrade", upgrade(client, &a).await),
        ControlVerb::Stop(a) => within("stop", stop(client, &a).await),
    }
}

/// Puts verb and device before a failure. The daemon's message may begin with the device's name: it
/// is named once.
fn within(what: impl std::fmt::Display, done: Done) -> Done {
    let what = what.to_string();
    done.map_err(|mut f| {
        let name = what.split_once(' ').map_or("", |(_, name)| name);
        if let Some(rest) = f.message.strip_prefix(name).and_then(|r| r.strip_prefix(": ")) {
            f.message = rest.into();
        }
        if f.message == "no such device" {
            f.message.push_str(": `millpond ls` lists those that there are");
        }
        f.within(what)
    })
}

fn verb_of(verb: &str, name: &Option<String>) -> String {
    name.as_ref().map_or_else(|| verb.into(), |n| format!("{verb} {n}"))
}

async fn each(verb: &str, names: &[String], one: impl AsyncFn(&str) -> Done) -> Done {
    for name in names {
        within(format!("{verb} {name}"), one(name).await)?;
    }
    Ok(())
}

async fn create(client: &Client, a: &CreateArgs) -> Done {
    let table = if a.notable || a.zram { None } else { Some(read_table(&a.table)?) };
    let (name, uuid) = (a.name.clone(), a.uuid.clone());
    let force = a.force.clone();
    let new = api::Create { name, uuid, minor: None, table, force, zram: a.zram, ublk: a.ublk };
    requests::create(client, &new).await
}

async fn load(client: &Client, a: &LoadArgs) -> Done {
    let body = api::Load { table: read_table(&a.table)?, force: a.force.clone() };
    requests::change(client, &a.name, "load", &body).await
}

async fn suspend(client: &Client, a: &SuspendArgs) -> Done {
    let body = api::Suspend { noflush: a.noflush };
    each("suspend", &a.names, async |n| requests::change(client, n, "suspend", &body).await).await
}

/// Fails when a word behind `--force` is a token: it needs `=`, and without it the removal would be
/// by force whatever the token stands for.
fn check_token_form(a: &RemoveArgs) -> Result<(), Failure> {
    let is_token = |word: &&String| {
        word.len() == format::token(b"").len()
            && word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let token = a.names.iter().find(is_token);
    let Some(token) = token.filter(|_| a.force.as_deref() == Some("") && a.names.len() > 1) else {
        return Ok(());
    };
    let text = format!(
        "`{token}` is the form of a token: `--force={token}` gives it, without a blank. A device \
         of this name is removed by a `remove --force` of its own; nothing was changed"
    );
    Err(Failure::new(ErrorKind::Invalid, text))
}

async fn remove(client: &Client, a: &RemoveArgs) -> Done {
    check_token_form(a)?;
    let removal = match a.drain {
        true => Removal::Drained,
        false => Removal::of(a.force.as_deref(), a.deferred),
    };
    each("remove", &a.names, async |n| requests::remove(client, n, removal).await).await
}

async fn remove_all(client: &Client, a: &RemoveAllArgs) -> Done {
    requests::remove_all(client, Removal::of(a.force.then_some(""), false)).await
}

async fn rename(client: &Client, a: &RenameArgs) -> Done {
    let body = api::Rename { name: a.new_name.clone(), uuid: a.setuuid.clone() };
    requests::change(client, &a.name, "rename", &body).await
}

async fn message(client: &Client, a: &MessageArgs) -> Done {
    print_reply(&requests::message(client, &a.name, a.sector, a.words.clone()).await?)
}

/// Prints the reply to a message, if there is any.
pub(crate) fn print_reply(reply: &str) -> Done {
    if reply.is_empty() { Ok(()) } else { print(&format!("{}\n", reply.trim_end())) }
}

/// The device that is named, or all.
async fn devices(client: &Client, name: Option<&str>) -> Result<Vec<api::Device>, Failure> {
    match name {
        Some(name) => Ok(vec![requests::device(client, name).await?]),
        None => requests::devices(client).await,
    }
}

async fn lines(
    client: &Client,
    name: Option<&str>,
    what: Lines,
    target: Option<&str>,
    listing: &Listing,
) -> Done {
    if let Some(name) = name {
        let lines = requests::lines(client, name, what, target).await?;
        return listing.print(&lines, || text::lines(None, &lines));
    }
    let mut all: Vec<(String, Vec<api::Line>)> = Vec::new();
    for device in requests::devices(client).await? {
        let lines = requests::lines_in_list(client, &device.name, what, target).await?;
        all.extend(lines.map(|lines| (device.name, lines)));
    }
    let map: BTreeMap<&str, &Vec<api::Line>> = all.iter().map(|(n, l)| (n.as_str(), l)).collect();
    listing.print(&map, || {
        if all.is_empty() {
            return tree::NO_DEVICES.into();
        }
        all.iter().map(|(n, l)| text::lines(Some(n), l)).collect()
    })
}

async fn status(client: &Client, a: &StatusArgs) -> Done {
    let what = Lines::Status { noflush: a.noflush };
    lines(client, a.name.as_deref(), what, a.target.as_deref(), &a.listing).await
}

async fn table(client: &Client, a: &TableListArgs) -> Done {
    let (name, target) = (a.name.as_deref(), a.target.as_deref());
    lines(client, name, Lines::LiveTable, target, &a.listing).await
}

async fn info(client: &Client, a: &InfoArgs) -> Done {
    let devices = devices(client, a.name.as_deref()).await?;
    let text = || if a.columns { text::info_columns(&devices) } else { text::info(&devices) };
    match &a.name {
        Some(_) => a.listing.print(&devices[0], text),
        None => a.listing.print(&devices, text),
    }
}

async fn ls(client: &Client, a: &LsArgs) -> Done {
    let devices = match &a.target {
        Some(target) => requests::devices_with(client, target).await?,
        None => requests::devices(client).await?,
    };
    if !a.tree {
        return a.listing.print(&devices, || text::ls(&devices, Naming::Devno));
    }
    let deps = requests::deps_of_all(client, &devices).await?;
    a.listing.print(&by_name(&devices, &deps), || text::tree(&devices, &deps))
}

fn by_name<'a, T>(devices: &'a [api::Device], values: &'a [T]) -> BTreeMap<&'a str, &'a T> {
    devices.iter().map(|d| d.name.as_str()).zip(values).collect()
}

async fn deps(client: &Client, a: &DepsArgs) -> Done {
    if let Some(name) = &a.name {
        let deps = requests::deps(client, name).await?;
        return a.listing.print(&deps, || text::deps(None, &deps, Naming::Devno));
    }
    let devices = requests::devices(client).await?;
    let deps = requests::deps_of_all(client, &devices).await?;
    a.listing.print(&by_name(&devices, &deps), || {
        if devices.is_empty() {
            return tree::NO_DEVICES.into();
        }
        let both = devices.iter().zip(&deps);
        both.map(|(d, deps)| text::deps(Some(&d.name), deps, Naming::Devno)).collect()
    })
}

async fn targets(client: &Client, a: &TargetsArgs) -> Done {
    let targets = requests::targets(client).await?;
    a.listing.print(&targets, || text::targets(&targets))
}

async fn wait(client: &Client, a: &WaitArgs) -> Done {
    let event = requests::wait(client, &a.name, a.event_nr).await?;
    // dmsetup prints nothing.
    a.listing.print(&event, String::new)
}

async fn get(client: &Client, a: &GetArgs) -> Done {
    let name = name_with_absolute_path(&a.name, &current_dir()?);
    if let Some(attr) = &a.attr {
        let attribute: api::Attribute = client.get(&paths::attribute(&name, attr)).await?;
        let text = || format!("{}\n", attribute.value.to_string().trim_end());
        return a.listing.print(&attribute, text);
    }
    let path = paths::of_device(&name, "attributes");
    let all: api::Attributes = client.get(&path).await?;
    a.listing.print(&all, || {
        let shown = |value: &api::Value| value.to_string().trim_end().replace('\n', "\n  ");
        all.iter().map(|(name, value)| format!("{name} {}\n", shown(value))).collect()
    })
}

async fn set(client: &Client, a: &SetArgs) -> Done {
    let here = current_dir()?;
    let value = value_with_absolute_paths(&a.attr, &a.value, &here);
    let body = api::Attribute { value: api::Value::Text(value) };
    let path = paths::attribute(&name_with_absolute_path(&a.name, &here), &a.attr);
    let answer = client.put::<_, api::Attribute>(&path, &body);
    match long_command(&a.attr) {
        Some(command) => show_while(client, LongOp::Command(command), &a.name, answer).await?,
        None => answer.await?,
    };
    Ok(())
}

/// The attribute, if writing it is a command that may take minutes.
fn long_command(name: &str) -> Option<&'static Spec> {
    let mut specs = manuals().into_iter().flat_map(|manual| (manual.specs)());
    specs.find(|spec| spec.name == name && spec.progress.is_some())
}

async fn version(client: &Client, a: &VersionArgs) -> Done {
    let daemon = match requests::version(client).await {
        Ok(daemon) => daemon,
        // No daemon is no failure here, unless a program wants to read its answer.
        Err(failure) if failure.kind().is_none() && a.listing.format == Format::Text => {
            print_error(&format!("millpond: {}", plain(&failure.to_string())));
            return print(&text::cli_version(env!("CARGO_PKG_VERSION")));
        }
        Err(failure) => return Err(failure),
    };
    a.listing.print(&daemon, || {
        let versions = text::version(env!("CARGO_PKG_VERSION"), &daemon);
        format!("{versions}Cores:             {}\n", daemon.cores)
    })
}

async fn show_devices(client: &Client, a: &ShowArgs) -> Done {
    let all = summaries(client, a.name.as_deref()).await?;
    match a.name {
        Some(_) => a.listing.print(&all.first(), || all.iter().map(Summary::text).collect()),
        None => a.listing.print(&all, || summary_table(&all)),
    }
}

async fn clients(client: &Client, a: &ClientsArgs) -> Done {
    let all = clients_of(client, a.name.as_deref()).await?;
    a.listing.print(&all, || client_table(&all))
}

async fn reload(client: &Client, a: ReloadArgs) -> Done {
    let ReloadArgs { name, table, force } = a;
    let Some(name) = name else {
        if !table.is_empty() {
            let text = "--table and --table-file are for `reload NAME`, which loads a table";
            return within("reload", Err(Failure::new(ErrorKind::Invalid, text)));
        }
        return within("reload", reload_config(client).await);
    };
    let load_args = LoadArgs { name: name.clone(), table, force };
    within(format!("reload {name}"), load(client, &load_args).await)
}

async fn reload_config(client: &Client) -> Done {
    let report = requests::reload(client).await?;
    for name in &report.created {
        print(&format!("{name}\n"))?;
    }
    let Some((last, others)) = report.failed.split_last() else { return Ok(()) };
    for failed in others {
        print_error(&format!("millpond: reload: {}", plain(failed)));
    }
    Err(Failure::new(ErrorKind::Io, last.clone()))
}

async fn upgrade(client: &Client, a: &UpgradeArgs) -> Done {
    let upgraded = upgrade::upgrade(client, a).await?;
    a.listing.print(&upgraded, || upgrade::text(&upgraded, a.if_changed))
}

/// Between two lines that `stop` waits.
const STOP_REPORT: Duration = Duration::from_secs(10);

async fn stop(client: &Client, a: &StopArgs) -> Done {
    let api::Version { pid, pid_namespace, .. } = requests::version(client).await?;
    // Taken before, so that it is this process and no later one of the same number.
    let process = Process::open(client, pid, pid_namespace.as_deref()).await?;
    let stopped = async {
        let answer = requests::stop(client, !a.no_wait).await;
        let is_lost = answer.as_ref().is_err_and(Failure::is_lost_connection);
        if (answer.is_ok() || is_lost) && !a.no_wait {
            process.ended().await;
        }
        let api::Stopping { in_memory_alone, unsettled } = match answer {
            Err(_) if is_lost && !a.no_wait => {
                let text = format!(
                    "the daemon (pid {pid}) has ended without saying that its devices are settled: \
                     its log says more"
                );
                return Err(Failure::new(ErrorKind::Io, text));
            }
            answer => answer?,
        };
        let all: Vec<_> =
            in_memory_alone.into_iter().chain(unsettled.unwrap_or_default()).collect();
        match all.is_empty() {
            true => Ok(()),
            false => {
                Err(Failure::new(ErrorKind::Io, format!("the daemon ends: {}", all.join("; "))))
            }
        }
    };
    tokio::pin!(stopped);
    let mut tick = interval_at(Instant::now() + QUIET, STOP_REPORT);
    loop {
        tokio::select! {
            outcome = &mut stopped => return outcome,
            _ = tick.tick() => {
                let what = "is settling its devices";
                print_error(&format!("millpond: stop: the daemon (pid {pid}) {what}"));
            }
        }
    }
}
