// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The REST API's paths, and what each does. docs/api.md is its manual.
use std::rc::Rc;
use std::sync::Arc;

use block::{Error, ErrorKind};
use control::api::TableSlot;
use control::{Failure, api, paths};
use dm::Remove;
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::core_thread::Core;
use crate::engine::Engine;
use crate::metrics;

/// What requests need.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) version: api::Version,
    /// Turns true when the daemon shuts down.
    pub(crate) closing: watch::Receiver<bool>,
}

/// A request that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Devices,
    Create,
    Targets,
    Version,
    Metrics,
    Of(String, Verb),
}

/// What is asked of one device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Info,
    Remove(RemoveHow),
    Load,
    Clear,
    Suspend,
    Resume,
    Rename,
    Message,
    Status,
    Table(TableSlot),
    Deps,
    Wait(Option<u32>),
    Attributes,
    GetAttribute(String),
    SetAttribute(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoveHow {
    IfUnused,
    Deferred,
    Drained,
    /// With the token of an earlier refusal.
    Force(Option<String>),
}

/// An answer that is no failure.
#[derive(Debug)]
pub(crate) enum Answer {
    Json(Vec<u8>),
    Text(String),
}

impl Route {
    /// Reads method, path and query.
    pub(crate) fn parse(method: &Method, path: &str, query: &str) -> Result<Route, Failure> {
        let missing = || {
            let message = format!("{method} {path}: no such path; docs/api.md lists them");
            Failure::new(ErrorKind::NotFound, message)
        };
        let parts: Option<Vec<String>> = path.split('/').skip(1).map(paths::decode).collect();
        let parts = parts.ok_or_else(missing)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let get = method == Method::GET;
        match parts.as_slice() {
            ["metrics"] if get => Ok(Route::Metrics),
            ["v1", "version"] if get => Ok(Route::Version),
            ["v1", "targets"] if get => Ok(Route::Targets),
            ["v1", "devices"] if get => Ok(Route::Devices),
            ["v1", "devices"] if method == Method::POST => Ok(Route::Create),
            ["v1", "devices", name, rest @ ..] => {
                let verb = verb(method, rest, query)?.ok_or_else(missing)?;
                Ok(Route::Of((*name).into(), verb))
            }
            _ => Err(missing()),
        }
    }
}

fn verb(method: &Method, rest: &[&str], query: &str) -> Result<Option<Verb>, Failure> {
    Ok(Some(match (method.as_str(), rest) {
        ("GET", []) => Verb::Info,
        ("DELETE", []) => Verb::Remove(remove_how(query)?),
        ("POST", ["load"]) => Verb::Load,
        ("POST", ["clear"]) => Verb::Clear,
        ("POST", ["suspend"]) => Verb::Suspend,
        ("POST", ["resume"]) => Verb::Resume,
        ("POST", ["rename"]) => Verb::Rename,
        ("POST", ["message"]) => Verb::Message,
        ("GET", ["status"]) => Verb::Status,
        ("GET", ["table"]) => Verb::Table(slot(query)?),
        ("GET", ["deps"]) => Verb::Deps,
        ("GET", ["wait"]) => Verb::Wait(event(query)?),
        ("GET", ["attributes"]) => Verb::Attributes,
        ("GET", ["attributes", attr @ ..]) => Verb::GetAttribute(attr.join("/")),
        ("PUT", ["attributes", attr @ ..]) => Verb::SetAttribute(attr.join("/")),
        _ => return Ok(None),
    }))
}

fn remove_how(query: &str) -> Result<RemoveHow, Failure> {
    match query {
        "" => Ok(RemoveHow::IfUnused),
        "force=true" => Ok(RemoveHow::Force(None)),
        "deferred=true" => Ok(RemoveHow::Deferred),
        "drain=true" => Ok(RemoveHow::Drained),
        _ => match query.strip_prefix("force=").filter(|token| is_token(token)) {
            Some(token) => Ok(RemoveHow::Force(Some(token.to_owned()))),
            None => {
                let allowed = "force=true, force=TOKEN, deferred=true and drain=true";
                let message = format!("query `{query}`: allowed are {allowed}");
                Err(Failure::new(ErrorKind::Invalid, message))
            }
        },
    }
}

/// Whether it may be one: refusals print eight digits.
fn is_token(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn slot(query: &str) -> Result<TableSlot, Failure> {
    match query {
        "" => Ok(TableSlot::Live),
        "inactive=true" => Ok(TableSlot::Inactive),
        _ => {
            let message = format!("query `{query}`: allowed is inactive=true");
            Err(Failure::new(ErrorKind::Invalid, message))
        }
    }
}

fn event(query: &str) -> Result<Option<u32>, Failure> {
    if query.is_empty() {
        return Ok(None);
    }
    let number = query.strip_prefix("event=").and_then(|n| n.parse().ok());
    number.map(Some).ok_or_else(|| {
        let message = format!("query `{query}`: allowed is event=N, N below 2^32");
        Failure::new(ErrorKind::Invalid, message)
    })
}

/// Does what was asked.
pub(crate) async fn answer(state: &State, route: Route, body: &[u8]) -> Result<Answer, Failure> {
    let core = &state.core;
    match route {
        Route::Devices => json(&core.call(async |e| e.devices()).await?),
        Route::Create => {
            let new = parse::<api::Create>(body)?;
            let (_asking, is_wanted) = asking();
            let create = async move |e: Rc<Engine>| e.create(new, &is_wanted).await;
            json(&core.call(create).await??)
        }
        Route::Targets => json(&core.call(async |e| e.targets()).await?),
        Route::Version => json(&state.version),
        Route::Metrics => Ok(Answer::Text(core.call(async |e| metrics::text(&e).await).await?)),
        Route::Of(name, verb) => of_device(state, name, verb, body).await,
    }
}

async fn of_device(
    state: &State,
    name: String,
    verb: Verb,
    body: &[u8],
) -> Result<Answer, Failure> {
    let core = &state.core;
    match verb {
        Verb::Info => json(&core.call(async move |e| e.device(&name)).await??),
        Verb::Remove(how) => {
            let (how, force) = match how {
                RemoveHow::IfUnused => (Remove::IfUnused, None),
                RemoveHow::Deferred => (Remove::Deferred, None),
                RemoveHow::Drained => (Remove::Drained, None),
                RemoveHow::Force(token) => (Remove::Force, token),
            };
            let (_asking, is_wanted) = asking();
            let remove = async move |e: Rc<Engine>, name: String| {
                e.remove(&name, how, force.as_deref(), &is_wanted).await
            };
            if how == Remove::Force {
                // It waits for nothing that another has begun.
                return json(&core.call(async move |e| remove(e, name).await).await??);
            }
            json(&change(core, name, remove).await?)
        }
        Verb::Load => {
            let new = parse::<api::Load>(body)?;
            let (_asking, is_wanted) = asking();
            let load =
                async move |e: Rc<Engine>, name: String| e.load(&name, &new, &is_wanted).await;
            json(&change(core, name, load).await?)
        }
        Verb::Clear => json(&change(core, name, async |e, name| e.clear(&name).await).await?),
        Verb::Suspend => {
            parse::<api::Suspend>(body)?;
            json(&change(core, name, async |e, name| e.suspend(&name).await).await?)
        }
        Verb::Resume => {
            let how = parse::<api::Resume>(body)?;
            json(&change(core, name, async move |e, name| e.resume(&name, &how).await).await?)
        }
        Verb::Rename => {
            let to = parse::<api::Rename>(body)?;
            json(&core.call(async move |e| e.rename(&name, &to)).await??)
        }
        Verb::Message => {
            let message = parse::<api::Message>(body)?;
            json(&core.call(async move |e| e.message(&name, message).await).await??)
        }
        Verb::Status => json(&core.call(async move |e| e.status(&name).await).await??),
        Verb::Table(slot) => json(&core.call(async move |e| e.table(&name, slot)).await??),
        Verb::Deps => json(&core.call(async move |e| e.deps(&name)).await??),
        Verb::Wait(seen) => json(&wait(state, name, seen).await?),
        Verb::Attributes => json(&core.call(async move |e| e.attributes(&name).await).await??),
        Verb::GetAttribute(attr) => {
            json(&core.call(async move |e| e.attribute(&name, &attr).await).await??)
        }
        Verb::SetAttribute(attr) => {
            let value = parse::<api::Attribute>(body)?.value;
            let set = async move |e: Rc<Engine>| e.set_attribute(&name, &attr, &value).await;
            json(&core.call(set).await??)
        }
    }
}

/// Changes a device. Before that it waits for other changes of the device to end, but not when the
/// client has gone: then nothing is changed.
async fn change<T, F, Fut>(core: &Core, name: String, f: F) -> Result<T, Failure>
where
    T: Send + 'static,
    F: FnOnce(Rc<Engine>, String) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, Failure>> + 'static,
{
    let (_asking, is_wanted) = asking();
    let done = core.call(async move |e: Rc<Engine>| {
        e.turn(&name, &is_wanted).await?;
        f(e, name).await
    });
    done.await?
}

/// What a request holds as long as its client waits, and how the core sees whether it does: what
/// drops the request drops what it holds.
fn asking() -> (Arc<()>, impl Fn() -> bool + Send + 'static) {
    let asking = Arc::new(());
    let asked = Arc::downgrade(&asking);
    (asking, move || asked.strong_count() > 0)
}

/// Waits for an event, as long as the client does and the daemon is not told to end.
async fn wait(state: &State, name: String, seen: Option<u32>) -> Result<api::Event, Failure> {
    let (_asking, is_wanted) = asking();
    let wait = async move |e: Rc<Engine>| e.wait(&name, seen, &is_wanted).await;
    let mut closing = state.closing.clone();
    tokio::select! {
        event = state.core.call(wait) => event?,
        () = shutdown(&mut closing) => Err(Error::busy("the daemon is shutting down").into()),
    }
}

/// Ends when the daemon shuts down.
pub(crate) async fn shutdown(closing: &mut watch::Receiver<bool>) {
    // Without a sender there is no daemon any more.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Reads a body. An empty one is `{}`.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|e| Failure::new(ErrorKind::Invalid, format!("body of the request: {e}")))
}

fn json(value: &impl Serialize) -> Result<Answer, Failure> {
    serde_json::to_vec(value)
        .map(Answer::Json)
        .map_err(|e| Failure::new(ErrorKind::Io, format!("answer: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, path: &str, query: &str) -> Result<Route, Failure> {
        Route::parse(&method.parse().unwrap(), path, query)
    }

    fn of(name: &str, verb: Verb) -> Route {
        Route::Of(name.into(), verb)
    }

    fn remove(token: Option<&str>) -> Verb {
        Verb::Remove(RemoveHow::Force(token.map(str::to_owned)))
    }

    #[test]
    fn every_documented_path_is_understood() {
        for (method, path, query, want) in [
            ("GET", "/v1/devices", "", Route::Devices),
            ("POST", "/v1/devices", "", Route::Create),
            ("GET", "/v1/targets", "", Route::Targets),
            ("GET", "/v1/version", "", Route::Version),
            ("GET", "/metrics", "", Route::Metrics),
            ("GET", "/v1/devices/wc", "", of("wc", Verb::Info)),
            ("DELETE", "/v1/devices/wc", "", of("wc", Verb::Remove(RemoveHow::IfUnused))),
            ("DELETE", "/v1/devices/wc", "force=true", of("wc", remove(None))),
            ("DELETE", "/v1/devices/wc", "force=1a2b3c4d", of("wc", remove(Some("1a2b3c4d")))),
            ("DELETE", "/v1/devices/wc", "drain=true", of("wc", Verb::Remove(RemoveHow::Drained))),
            ("POST", "/v1/devices/a%20b/load", "", of("a b", Verb::Load)),
            ("POST", "/v1/devices/wc/clear", "", of("wc", Verb::Clear)),
            ("POST", "/v1/devices/wc/suspend", "", of("wc", Verb::Suspend)),
            ("POST", "/v1/devices/wc/resume", "", of("wc", Verb::Resume)),
            ("POST", "/v1/devices/wc/rename", "", of("wc", Verb::Rename)),
            ("POST", "/v1/devices/wc/message", "", of("wc", Verb::Message)),
            ("GET", "/v1/devices/wc/status", "", of("wc", Verb::Status)),
            ("GET", "/v1/devices/wc/table", "", of("wc", Verb::Table(TableSlot::Live))),
            (
                "GET",
                "/v1/devices/wc/table",
                "inactive=true",
                of("wc", Verb::Table(TableSlot::Inactive)),
            ),
            ("GET", "/v1/devices/wc/deps", "", of("wc", Verb::Deps)),
            ("GET", "/v1/devices/wc/wait", "event=3", of("wc", Verb::Wait(Some(3)))),
            ("GET", "/v1/devices/wc/wait", "", of("wc", Verb::Wait(None))),
            ("GET", "/v1/devices/wc/attributes", "", of("wc", Verb::Attributes)),
            (
                "PUT",
                "/v1/devices/wc/attributes/queue/wbt_lat_usec",
                "",
                of("wc", Verb::SetAttribute("queue/wbt_lat_usec".into())),
            ),
        ] {
            assert_eq!(route(method, path, query).unwrap(), want, "{method} {path}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for (method, path, query, kind) in [
            ("GET", "/", "", ErrorKind::NotFound),
            ("GET", "", "", ErrorKind::NotFound),
            ("PUT", "/v1/devices", "", ErrorKind::NotFound),
            ("GET", "/v1/devices/%zz", "", ErrorKind::NotFound),
            ("GET", "/v1/devices/wc/load", "", ErrorKind::NotFound),
            ("DELETE", "/v1/devices/wc", "forced=true", ErrorKind::Invalid),
            ("DELETE", "/v1/devices/wc", "force=1a2b", ErrorKind::Invalid),
            ("GET", "/v1/devices/wc/wait", "event=-1", ErrorKind::Invalid),
            ("GET", "/v1/devices/wc/table", "inactive", ErrorKind::Invalid),
        ] {
            assert_eq!(route(method, path, query).unwrap_err().kind(), Some(kind), "{path}");
        }
    }
}
