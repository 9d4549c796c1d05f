// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's verbs: each a few requests to the daemon, and their answers in print.
use std::collections::BTreeMap;

use block::ErrorKind;
use control::text::Naming;
use control::{
    Failure, api, attr, name_with_absolute_path, paths, plain, text, value_with_absolute_paths,
};
use host::{Format, Listing, here, print, read_table};
use serde::Serialize;

use crate::args::{
    ControlVerb, CreateArgs, DepsArgs, GetArgs, InfoArgs, LoadArgs, LsArgs, MessageArgs,
    RemoveAllArgs, RemoveArgs, RenameArgs, SetArgs, StatusArgs, SuspendArgs, TableListArgs,
    TargetsArgs, VersionArgs, WaitArgs,
};
use crate::client::Client;
use crate::drain::drain;
use crate::progress::{Long, watch};

type Done = Result<(), Failure>;

const NOTHING: api::Nothing = api::Nothing {};

/// Runs a verb that controls a daemon.
pub async fn run(client: &Client, verb: ControlVerb) -> Done {
    match verb {
        ControlVerb::Create(a) => within(format!("create {}", a.name), create(client, &a).await),
        ControlVerb::Load(a) => within(format!("load {}", a.name), load(client, &a).await),
        ControlVerb::Clear(a) => {
            each("clear", &a.names, async |n| post(client, n, "clear", &NOTHING).await).await
        }
        ControlVerb::Suspend(a) => suspend(client, &a).await,
        ControlVerb::Resume(a) => {
            let how = api::Resume { force: a.force };
            each("resume", &a.names, async |n| post(client, n, "resume", &how).await).await
        }
        ControlVerb::Remove(a) => remove(client, &a).await,
        ControlVerb::RemoveAll(a) => remove_all(client, &a).await,
        ControlVerb::Rename(a) => within(format!("rename {}", a.name), rename(client, &a).await),
        ControlVerb::Message(a) => within(format!("message {}", a.name), message(client, &a).await),
        ControlVerb::Drain(a) => within(format!("drain {}", a.name), drain(client, &a).await),
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
    }
}

/// Names what failed by verb and device. The daemon's message begins with the device's name too,
/// where it is about one; it is said once.
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

pub(crate) async fn post(client: &Client, name: &str, what: &str, body: &impl Serialize) -> Done {
    let changed: api::Changed = client.post(&paths::of_device(name, what), body).await?;
    warn(&changed.warnings);
    Ok(())
}

pub(crate) fn warn(warnings: &[String]) {
    for w in warnings {
        eprintln!("millpond: warning: {}", plain(w));
    }
}

async fn create(client: &Client, a: &CreateArgs) -> Done {
    let table = if a.notable || a.zram { None } else { Some(read_table(&a.table)?) };
    let (name, uuid) = (a.name.clone(), a.uuid.clone());
    let body = api::Create { name, uuid, minor: None, table, force: a.force.clone(), zram: a.zram };
    let changed: api::Changed = client.post(paths::DEVICES, &body).await?;
    warn(&changed.warnings);
    Ok(())
}

async fn load(client: &Client, a: &LoadArgs) -> Done {
    let body = api::Load { table: read_table(&a.table)?, force: a.force.clone() };
    post(client, &a.name, "load", &body).await
}

async fn suspend(client: &Client, a: &SuspendArgs) -> Done {
    let body = api::Suspend { noflush: a.noflush };
    each("suspend", &a.names, async |n| post(client, n, "suspend", &body).await).await
}

async fn remove(client: &Client, a: &RemoveArgs) -> Done {
    let query = if a.drain {
        "?drain=true".to_owned()
    } else {
        remove_query(a.force.as_deref(), a.deferred)
    };
    let one = async |n: &str| match a.drain {
        true => watch(client, Long::Flush, n, delete(client, n, &query)).await,
        false => delete(client, n, &query).await,
    };
    each("remove", &a.names, one).await
}

/// `force` is empty, or the token of an earlier refusal.
pub(crate) fn remove_query(force: Option<&str>, deferred: bool) -> String {
    match (force, deferred) {
        (Some(""), _) => "?force=true".to_owned(),
        (Some(token), _) => format!("?force={}", paths::encode(token)),
        (None, true) => "?deferred=true".to_owned(),
        (None, false) => String::new(),
    }
}

pub(crate) async fn delete(client: &Client, name: &str, query: &str) -> Done {
    let removed: api::Removed = client.delete(&format!("{}{query}", paths::device(name))).await?;
    warn(&removed.warnings);
    Ok(())
}

/// Removes what nothing uses until a round removes nothing; then what is left is busy.
pub(crate) async fn remove_all(client: &Client, a: &RemoveAllArgs) -> Done {
    let query = remove_query(a.force.then_some(""), false);
    loop {
        let devices: Vec<api::Device> = client.get(paths::DEVICES).await?;
        let (mut removed, mut last) = (false, Ok(()));
        // What was made last stands on what was made before.
        for d in devices.iter().rev() {
            match delete(client, &d.name, &query).await {
                Ok(()) => removed = true,
                Err(f) if f.kind() == Some(ErrorKind::NotFound) => {}
                Err(f) => last = Err(f.within(format!("remove {}", d.name))),
            }
        }
        if last.is_ok() || !removed {
            return last;
        }
    }
}

async fn rename(client: &Client, a: &RenameArgs) -> Done {
    let body = api::Rename { name: a.new_name.clone(), uuid: a.setuuid.clone() };
    post(client, &a.name, "rename", &body).await
}

pub(crate) async fn message(client: &Client, a: &MessageArgs) -> Done {
    let path = paths::of_device(&a.name, "message");
    let body = api::Message { sector: a.sector, words: a.words.clone() };
    let answer = client.post::<_, api::Reply>(&path, &body);
    let reply = watch(client, Long::Flush, &a.name, answer).await;
    let reply = reply?.reply;
    if reply.is_empty() { Ok(()) } else { print(&format!("{}\n", reply.trim_end())) }
}

/// The devices asked for: one, or all.
async fn devices(client: &Client, name: &Option<String>) -> Result<Vec<api::Device>, Failure> {
    match name {
        Some(name) => Ok(vec![client.get(&paths::device(name)).await?]),
        None => client.get(paths::DEVICES).await,
    }
}

async fn status(client: &Client, a: &StatusArgs) -> Done {
    let what = if a.noflush { "status?noflush=true" } else { "status" };
    lines(client, &a.name, what, &a.target, &a.listing).await
}

async fn table(client: &Client, a: &TableListArgs) -> Done {
    lines(client, &a.name, "table", &a.target, &a.listing).await
}

pub(crate) async fn lines_of(
    client: &Client,
    name: &str,
    what: &str,
) -> Result<Vec<api::Line>, Failure> {
    client.get(&paths::of_device(name, what)).await
}

async fn lines(
    client: &Client,
    name: &Option<String>,
    what: &str,
    target: &Option<String>,
    listing: &Listing,
) -> Done {
    let wanted = |l: &api::Line| target.as_ref().is_none_or(|t| *t == l.target);
    if let Some(name) = name {
        let mut lines = lines_of(client, name, what).await?;
        lines.retain(wanted);
        return show(listing, &lines, || text::lines(None, &lines));
    }
    let mut all: Vec<(String, Vec<api::Line>)> = Vec::new();
    for d in devices(client, name).await? {
        let mut lines = match lines_of(client, &d.name, what).await {
            Err(f) if f.kind() == Some(ErrorKind::NotFound) => continue, // removed meanwhile
            lines => lines?,
        };
        let had_some = !lines.is_empty();
        lines.retain(wanted);
        if !lines.is_empty() || !had_some && target.is_none() {
            all.push((d.name, lines));
        }
    }
    let map: BTreeMap<&str, &Vec<api::Line>> = all.iter().map(|(n, l)| (n.as_str(), l)).collect();
    show(listing, &map, || {
        if all.is_empty() {
            return text::NO_DEVICES.into();
        }
        all.iter().map(|(n, l)| text::lines(Some(n), l)).collect()
    })
}

async fn info(client: &Client, a: &InfoArgs) -> Done {
    let devices = devices(client, &a.name).await?;
    let text = || if a.columns { text::info_columns(&devices) } else { text::info(&devices) };
    match &a.name {
        Some(_) => show(&a.listing, &devices[0], text),
        None => show(&a.listing, &devices, text),
    }
}

async fn ls(client: &Client, a: &LsArgs) -> Done {
    let mut devices: Vec<api::Device> = client.get(paths::DEVICES).await?;
    if let Some(target) = &a.target {
        let mut found = Vec::new();
        for d in devices {
            if lines_of(client, &d.name, "table").await?.iter().any(|l| l.target == *target) {
                found.push(d);
            }
        }
        devices = found;
    }
    if !a.tree {
        return show(&a.listing, &devices, || text::ls(&devices, Naming::Devno));
    }
    let mut deps = Vec::new();
    for d in &devices {
        deps.push(client.get::<Vec<api::Dependency>>(&paths::of_device(&d.name, "deps")).await?);
    }
    let map: BTreeMap<&str, &Vec<api::Dependency>> =
        devices.iter().map(|d| d.name.as_str()).zip(&deps).collect();
    show(&a.listing, &map, || text::tree(&devices, &deps))
}

async fn deps(client: &Client, a: &DepsArgs) -> Done {
    let devices = devices(client, &a.name).await?;
    let mut all = Vec::new();
    for d in &devices {
        all.push(client.get::<Vec<api::Dependency>>(&paths::of_device(&d.name, "deps")).await?);
    }
    if a.name.is_some() {
        return show(&a.listing, &all[0], || text::deps(None, &all[0], Naming::Devno));
    }
    let map: BTreeMap<&str, &Vec<api::Dependency>> =
        devices.iter().map(|d| d.name.as_str()).zip(&all).collect();
    show(&a.listing, &map, || {
        if devices.is_empty() {
            return text::NO_DEVICES.into();
        }
        devices
            .iter()
            .zip(&all)
            .map(|(d, deps)| text::deps(Some(&d.name), deps, Naming::Devno))
            .collect()
    })
}

async fn targets(client: &Client, a: &TargetsArgs) -> Done {
    let targets: Vec<api::TargetType> = client.get(paths::TARGETS).await?;
    show(&a.listing, &targets, || text::targets(&targets))
}

async fn wait(client: &Client, a: &WaitArgs) -> Done {
    let what = format!("wait?event={}", a.event_nr);
    let event: api::Event = client.get(&paths::of_device(&a.name, &what)).await?;
    // dmsetup prints nothing.
    show(&a.listing, &event, String::new)
}

async fn get(client: &Client, a: &GetArgs) -> Done {
    let name = name_with_absolute_path(&a.name, &here()?);
    if let Some(attr) = &a.attr {
        let attribute: api::Attribute = client.get(&paths::attribute(&name, attr)).await?;
        return show(&a.listing, &attribute, || format!("{}\n", attribute.value.trim_end()));
    }
    let path = paths::of_device(&name, "attributes");
    let all: api::Attributes = client.get(&path).await?;
    show(&a.listing, &all, || {
        let shown = |value: &String| value.trim_end().replace('\n', "\n  ");
        all.iter().map(|(name, value)| format!("{name} {}\n", shown(value))).collect()
    })
}

async fn set(client: &Client, a: &SetArgs) -> Done {
    let here = here()?;
    let body = api::Attribute { value: value_with_absolute_paths(&a.attr, &a.value, &here) };
    let path = paths::attribute(&name_with_absolute_path(&a.name, &here), &a.attr);
    let answer = client.put::<_, api::Attribute>(&path, &body);
    match attr::LONG_COMMANDS.into_iter().find(|command| *command == a.attr) {
        Some(command) => watch(client, Long::Command(command), &a.name, answer).await?,
        None => answer.await?,
    };
    Ok(())
}

async fn version(client: &Client, a: &VersionArgs) -> Done {
    let daemon: api::Version = client.get(paths::VERSION).await?;
    show(&a.listing, &daemon, || {
        let versions = text::version(env!("CARGO_PKG_VERSION"), &daemon);
        format!("{versions}Cores:             {}\n", daemon.cores)
    })
}

fn show(listing: &Listing, value: &impl Serialize, text: impl FnOnce() -> String) -> Done {
    match listing.format {
        Format::Text => print(&text()),
        Format::Json => {
            let json = serde_json::to_string_pretty(value).expect("as in the REST API");
            print(&format!("{json}\n"))
        }
    }
}
