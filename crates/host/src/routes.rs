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
use tokio::sync::{Notify, watch};

use crate::changes::Changes;
use crate::clients::ClientChoice;
use crate::config::ServeArgs;
use crate::core_thread::CoreHandle;
use crate::engine::Engine;
use crate::io_failure::io_failure;
use crate::observe;
use crate::reload::ConfigFile;
use crate::route_effects::only_waits;
use crate::saved_config;
use crate::stop::{self, Unsettled, When};
use crate::upgrade::{HandoverSource, upgrade};

/// State that all requests use.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: CoreHandle,
    pub(crate) version: api::Version,
    pub(crate) config: ConfigFile,
    /// The options with which it was started, with those of the command line.
    pub(crate) options: ServeArgs,
    /// Notified when a client asks the daemon to stop.
    pub(crate) stop: Notify,
    /// True when the daemon shuts down.
    pub(crate) closing: watch::Receiver<bool>,
    /// How the daemon has ended: what is not settled. Sent at the end.
    pub(crate) unsettled: watch::Sender<Unsettled>,
    /// True while listeners take no connection: a successor is about to have them.
    pub(crate) pause: watch::Sender<bool>,
    /// Who may change something (HO-UP4).
    pub(crate) changes: Arc<Changes>,
    /// What a successor gets that is no device; none where no other process can take over.
    pub(crate) source: Option<HandoverSource>,
    /// Notified when a successor has everything.
    pub(crate) handed_over: Notify,
}

impl State {
    /// Has listeners take connections, or not.
    pub(crate) fn pause_listeners(&self, pause: bool) {
        self.pause.send_replace(pause);
    }
}

/// A request that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Devices,
    Create,
    Targets,
    Version,
    Metrics,
    Reload,
    Config,
    Upgrade,
    Stop(When),
    Clients,
    Disconnect(ClientChoice),
    Device(String, DeviceVerb),
}

/// A request about one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceVerb {
    Info,
    Remove(RemoveMode),
    Load,
    Clear,
    Suspend,
    Resume,
    Rename,
    Message,
    Flush,
    Uncache,
    ReplaceCache,
    Resize,
    Status,
    Table(TableSlot),
    Deps,
    Wait(Option<u32>),
    Attributes,
    GetAttribute(String),
    SetAttribute(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoveMode {
    IfUnused,
    Deferred,
    Drained,
    /// With the token of an earlier refusal.
    Force(Option<String>),
}

/// An answer that is no failure.
#[derive(Debug)]
pub(crate) enum ResponseBody {
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
            ["v1", "config"] if get => Ok(Route::Config),
            ["v1", "clients"] if get => Ok(Route::Clients),
            ["v1", "clients"] if method == Method::DELETE => clients_of(query),
            ["v1", "clients", id] if method == Method::DELETE => {
                Ok(Route::Disconnect(ClientChoice::Id((*id).into())))
            }
            ["v1", "reload"] if method == Method::POST => Ok(Route::Reload),
            ["v1", "upgrade"] if method == Method::POST => Ok(Route::Upgrade),
            ["v1", "stop"] if method == Method::POST => stop::when(query).map(Route::Stop),
            ["v1", "devices"] if get => Ok(Route::Devices),
            ["v1", "devices"] if method == Method::POST => Ok(Route::Create),
            ["v1", "devices", name, rest @ ..] => {
                let verb = verb(method, rest, query)?.ok_or_else(missing)?;
                Ok(Route::Device((*name).into(), verb))
            }
            _ => Err(missing()),
        }
    }
}

fn verb(method: &Method, rest: &[&str], query: &str) -> Result<Option<DeviceVerb>, Failure> {
    Ok(Some(match (method.as_str(), rest) {
        ("GET", []) => DeviceVerb::Info,
        ("DELETE", []) => DeviceVerb::Remove(remove_mode(query)?),
        ("POST", ["load"]) => DeviceVerb::Load,
        ("POST", ["clear"]) => DeviceVerb::Clear,
        ("POST", ["suspend"]) => DeviceVerb::Suspend,
        ("POST", ["resume"]) => DeviceVerb::Resume,
        ("POST", ["rename"]) => DeviceVerb::Rename,
        ("POST", ["message"]) => DeviceVerb::Message,
        ("POST", ["flush"]) => DeviceVerb::Flush,
        ("POST", ["uncache"]) => DeviceVerb::Uncache,
        ("POST", ["replace-cache"]) => DeviceVerb::ReplaceCache,
        ("POST", ["resize"]) => DeviceVerb::Resize,
        ("GET", ["status"]) => DeviceVerb::Status,
        ("GET", ["table"]) => DeviceVerb::Table(slot(query)?),
        ("GET", ["deps"]) => DeviceVerb::Deps,
        ("GET", ["wait"]) => DeviceVerb::Wait(event(query)?),
        ("GET", ["attributes"]) => DeviceVerb::Attributes,
        ("GET", ["attributes", attr @ ..]) => DeviceVerb::GetAttribute(attr.join("/")),
        ("PUT", ["attributes", attr @ ..]) => DeviceVerb::SetAttribute(attr.join("/")),
        _ => return Ok(None),
    }))
}

fn remove_mode(query: &str) -> Result<RemoveMode, Failure> {
    match query {
        "" => Ok(RemoveMode::IfUnused),
        "force=true" => Ok(RemoveMode::Force(None)),
        "deferred=true" => Ok(RemoveMode::Deferred),
        "drain=true" => Ok(RemoveMode::Drained),
        _ => match query.strip_prefix("force=").filter(|token| is_token(token)) {
            Some(token) => Ok(RemoveMode::Force(Some(token.to_owned()))),
            None => {
                let allowed = "force=true, force=TOKEN, deferred=true and drain=true";
                let message = format!("query `{query}`: allowed are {allowed}");
                Err(Failure::new(ErrorKind::Invalid, message))
            }
        },
    }
}

/// All clients of a device: those of all devices must be named one by one.
fn clients_of(query: &str) -> Result<Route, Failure> {
    let name = query.strip_prefix("device=").filter(|name| !name.is_empty());
    let name = name.and_then(paths::decode).ok_or_else(|| {
        let message = format!("query `{query}`: device=NAME is needed, or the path of a client");
        Failure::new(ErrorKind::Invalid, message)
    })?;
    Ok(Route::Disconnect(ClientChoice::Device(name)))
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

/// Serves a request, of root or of somebody else.
pub(crate) async fn answer(
    state: &Arc<State>,
    route: Route,
    body: &[u8],
    is_root: bool,
) -> Result<ResponseBody, Failure> {
    let work = || perform(state, route.clone(), body, is_root);
    if only_waits(&route, body) {
        return state.changes.waiting(work).await;
    }
    let _change = match route.changes_something() {
        true => Some(state.changes.begin()?),
        false => None,
    };
    work().await
}

async fn perform(
    state: &Arc<State>,
    route: Route,
    body: &[u8],
    is_root: bool,
) -> Result<ResponseBody, Failure> {
    let core = &state.core;
    match route {
        Route::Devices => json(&core.call(async |e| e.devices()).await?),
        Route::Create => {
            let new = parse::<api::Create>(body)?;
            let (_client, is_wanted) = client();
            let create = async move |e: Rc<Engine>| e.create(new, &is_wanted).await;
            json(&core.call(create).await??)
        }
        Route::Targets => json(&core.call(async |e| e.targets()).await?),
        Route::Version => json(&state.version),
        Route::Metrics => {
            let snapshot = core.call(async |e: Rc<Engine>| observe::snapshot(&e).await).await?;
            Ok(ResponseBody::Text(observe::text(&snapshot)))
        }
        Route::Reload => {
            parse::<api::Empty>(body)?;
            json(&state.config.reload(core).await?)
        }
        Route::Config => json(&config(state).await?),
        Route::Upgrade => {
            let request = parse::<api::Upgrade>(body)?;
            if request.binary.is_some() && !is_root {
                let text = "--binary: only root may name a program, at the control socket";
                return Err(Failure::new(ErrorKind::Denied, text));
            }
            let state = state.clone();
            // A task of its own: it goes on though the client disconnects.
            let upgraded = tokio::spawn(async move {
                let upgraded = upgrade(&state, request).await?;
                if upgraded.successor.is_some() {
                    state.handed_over.notify_one();
                }
                Ok::<_, Failure>(upgraded)
            });
            let upgraded = upgraded.await;
            json(&upgraded.map_err(|e| io_failure(&std::io::Error::other(e), "upgrade"))??)
        }
        Route::Stop(when) => {
            parse::<api::Empty>(body)?;
            json(&stop::perform(core, &state.stop, &state.unsettled, when).await)
        }
        Route::Clients => json(&core.call(async |e| e.clients()).await?),
        Route::Disconnect(choice) => {
            let (_client, is_wanted) = client();
            let disconnect = async move |e: Rc<Engine>| e.disconnect(&choice, &is_wanted).await;
            json(&core.call(disconnect).await??)
        }
        Route::Device(name, verb) => of_device(state, name, verb, body).await,
    }
}

/// The configuration file that brings up what is there now.
async fn config(state: &State) -> Result<api::SavedConfig, Failure> {
    let (mut devices, left_out) =
        state.core.call(async |e: Rc<Engine>| e.saved_devices().await).await??;
    state.config.keep_choices(&mut devices).await;
    let here = std::env::current_dir().map_err(|e| io_failure(&e, "current directory"))?;
    let toml = saved_config::text(&state.options, devices, &here)?;
    let warnings = left_out.iter().map(|what| format!("not saved: {what}")).collect();
    Ok(api::SavedConfig { toml, warnings })
}

async fn of_device(
    state: &State,
    name: String,
    verb: DeviceVerb,
    body: &[u8],
) -> Result<ResponseBody, Failure> {
    let core = &state.core;
    match verb {
        DeviceVerb::Info => json(&core.call(async move |e| e.device(&name)).await??),
        DeviceVerb::Remove(how) => {
            let (how, force) = match how {
                RemoveMode::IfUnused => (Remove::IfUnused, None),
                RemoveMode::Deferred => (Remove::Deferred, None),
                RemoveMode::Drained => (Remove::Drained, None),
                RemoveMode::Force(token) => (Remove::Force, token),
            };
            let (_client, is_wanted) = client();
            let remove = async move |e: Rc<Engine>, name: String| {
                e.remove(&name, how, force.as_deref(), &is_wanted).await
            };
            if how == Remove::Force {
                // It does not wait for other changes.
                return json(&core.call(async move |e| remove(e, name).await).await??);
            }
            json(&change(core, name, remove).await?)
        }
        DeviceVerb::Load => {
            let new = parse::<api::Load>(body)?;
            let (_client, is_wanted) = client();
            let load =
                async move |e: Rc<Engine>, name: String| e.load(&name, &new, &is_wanted).await;
            json(&change(core, name, load).await?)
        }
        DeviceVerb::Clear => json(&change(core, name, async |e, name| e.clear(&name).await).await?),
        DeviceVerb::Suspend => {
            parse::<api::Suspend>(body)?;
            json(&change(core, name, async |e, name| e.suspend(&name).await).await?)
        }
        DeviceVerb::Resume => {
            let how = parse::<api::Resume>(body)?;
            json(&change(core, name, async move |e, name| e.resume(&name, &how).await).await?)
        }
        DeviceVerb::Rename => {
            let to = parse::<api::Rename>(body)?;
            json(&core.call(async move |e| e.rename(&name, &to)).await??)
        }
        DeviceVerb::Message => {
            let message = parse::<api::Message>(body)?;
            json(&core.call(async move |e| e.message(&name, message).await).await??)
        }
        DeviceVerb::Flush => {
            parse::<api::Empty>(body)?;
            json(&core.call(async move |e| e.flush(&name).await).await??)
        }
        DeviceVerb::Uncache => {
            parse::<api::Empty>(body)?;
            let (_client, is_wanted) = client();
            let uncache =
                async move |e: Rc<Engine>, name: String| e.uncache(&name, &is_wanted).await;
            recached(state, change(core, name, uncache).await?).await
        }
        DeviceVerb::ReplaceCache => {
            let new = parse::<api::ReplaceCache>(body)?;
            let (_client, is_wanted) = client();
            let replace = async move |e: Rc<Engine>, name: String| {
                e.replace_cache(&name, &new, &is_wanted).await
            };
            recached(state, change(core, name, replace).await?).await
        }
        DeviceVerb::Resize => {
            let how = parse::<api::Resize>(body)?;
            let (_client, is_wanted) = client();
            let resize =
                async move |e: Rc<Engine>, name: String| e.resize(&name, &how, &is_wanted).await;
            let mut answer = change(core, name, resize).await?;
            let stale = state.config.stale_table(&answer.device.name, &answer.table).await;
            answer.warnings.extend(stale);
            json(&answer)
        }
        DeviceVerb::Status => json(&core.call(async move |e| e.status(&name).await).await??),
        DeviceVerb::Table(slot) => json(&core.call(async move |e| e.table(&name, slot)).await??),
        DeviceVerb::Deps => json(&core.call(async move |e| e.deps(&name)).await??),
        DeviceVerb::Wait(seen) => json(&wait(state, name, seen).await?),
        DeviceVerb::Attributes => {
            json(&core.call(async move |e| e.attributes(&name).await).await??)
        }
        DeviceVerb::GetAttribute(attr) => {
            json(&core.call(async move |e| e.attribute(&name, &attr).await).await??)
        }
        DeviceVerb::SetAttribute(attr) => {
            let value = parse::<api::Attribute>(body)?.value.to_string();
            let set = async move |e: Rc<Engine>| e.set_attribute(&name, &attr, &value).await;
            json(&core.call(set).await??)
        }
    }
}

/// Adds the warning that the configuration file has another table.
async fn recached(state: &State, mut answer: api::Recached) -> Result<ResponseBody, Failure> {
    let stale = state.config.stale_table(&answer.device.name, &answer.table).await;
    answer.warnings.extend(stale);
    json(&answer)
}

/// Changes a device, after other changes of it have ended. If the client disconnects before that,
/// nothing is changed.
async fn change<T, F, Fut>(core: &CoreHandle, name: String, f: F) -> Result<T, Failure>
where
    T: Send + 'static,
    F: FnOnce(Rc<Engine>, String) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, Failure>> + 'static,
{
    let (_client, is_wanted) = client();
    let done = core.call(async move |e: Rc<Engine>| {
        e.wait_for_changes(&name, &is_wanted).await?;
        f(e, name).await
    });
    done.await?
}

/// A guard that a request holds as long as its client is connected, and the test by which core 0
/// sees whether it does: dropping the request drops the guard.
fn client() -> (Arc<()>, impl Fn() -> bool + Send + 'static) {
    let client = Arc::new(());
    let asked = Arc::downgrade(&client);
    (client, move || asked.strong_count() > 0)
}

/// Waits for an event, until the client disconnects or the daemon shuts down.
async fn wait(state: &State, name: String, seen: Option<u32>) -> Result<api::Event, Failure> {
    let (_client, is_wanted) = client();
    let wait = async move |e: Rc<Engine>| e.wait(&name, seen, &is_wanted).await;
    let mut closing = state.closing.clone();
    tokio::select! {
        biased;
        event = state.core.call(wait) => event?,
        () = state.changes.handed_over() => Err(Failure::handed_over()),
        () = shutdown(&mut closing) => Err(Error::busy("the daemon is shutting down").into()),
    }
}

/// Completes when the daemon shuts down.
pub(crate) async fn shutdown(closing: &mut watch::Receiver<bool>) {
    // An error means that the daemon has ended.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Reads a body. An empty one is `{}`.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|e| Failure::new(ErrorKind::Invalid, format!("body of the request: {e}")))
}

fn json(value: &impl Serialize) -> Result<ResponseBody, Failure> {
    serde_json::to_vec(value)
        .map(ResponseBody::Json)
        .map_err(|e| Failure::new(ErrorKind::Io, format!("answer: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, path: &str, query: &str) -> Result<Route, Failure> {
        Route::parse(&method.parse().unwrap(), path, query)
    }

    fn of(name: &str, verb: DeviceVerb) -> Route {
        Route::Device(name.into(), verb)
    }

    fn remove(token: Option<&str>) -> DeviceVerb {
        DeviceVerb::Remove(RemoveMode::Force(token.map(str::to_owned)))
    }

    #[test]
    fn every_documented_path_is_understood() {
        for (method, path, query, want) in [
            ("GET", "/v1/devices", "", Route::Devices),
            ("POST", "/v1/devices", "", Route::Create),
            ("GET", "/v1/targets", "", Route::Targets),
            ("GET", "/v1/version", "", Route::Version),
            ("GET", "/metrics", "", Route::Metrics),
            ("GET", "/v1/clients", "", Route::Clients),
            ("DELETE", "/v1/clients/nbd7", "", Route::Disconnect(ClientChoice::Id("nbd7".into()))),
            (
                "DELETE",
                "/v1/clients",
                "device=a%20b",
                Route::Disconnect(ClientChoice::Device("a b".into())),
            ),
            ("POST", "/v1/reload", "", Route::Reload),
            ("GET", "/v1/config", "", Route::Config),
            ("POST", "/v1/stop", "", Route::Stop(When::Soon)),
            ("POST", "/v1/stop", "wait=true", Route::Stop(When::AtTheEnd)),
            ("GET", "/v1/devices/wc", "", of("wc", DeviceVerb::Info)),
            ("DELETE", "/v1/devices/wc", "", of("wc", DeviceVerb::Remove(RemoveMode::IfUnused))),
            ("DELETE", "/v1/devices/wc", "force=true", of("wc", remove(None))),
            ("DELETE", "/v1/devices/wc", "force=1a2b3c4d", of("wc", remove(Some("1a2b3c4d")))),
            (
                "DELETE",
                "/v1/devices/wc",
                "drain=true",
                of("wc", DeviceVerb::Remove(RemoveMode::Drained)),
            ),
            ("POST", "/v1/devices/a%20b/load", "", of("a b", DeviceVerb::Load)),
            ("POST", "/v1/devices/wc/clear", "", of("wc", DeviceVerb::Clear)),
            ("POST", "/v1/devices/wc/suspend", "", of("wc", DeviceVerb::Suspend)),
            ("POST", "/v1/devices/wc/resume", "", of("wc", DeviceVerb::Resume)),
            ("POST", "/v1/devices/wc/rename", "", of("wc", DeviceVerb::Rename)),
            ("POST", "/v1/devices/wc/message", "", of("wc", DeviceVerb::Message)),
            ("POST", "/v1/devices/wc/flush", "", of("wc", DeviceVerb::Flush)),
            ("POST", "/v1/devices/wc/uncache", "", of("wc", DeviceVerb::Uncache)),
            ("POST", "/v1/devices/wc/replace-cache", "", of("wc", DeviceVerb::ReplaceCache)),
            ("POST", "/v1/devices/wc/resize", "", of("wc", DeviceVerb::Resize)),
            ("GET", "/v1/devices/wc/status", "", of("wc", DeviceVerb::Status)),
            ("GET", "/v1/devices/wc/table", "", of("wc", DeviceVerb::Table(TableSlot::Live))),
            (
                "GET",
                "/v1/devices/wc/table",
                "inactive=true",
                of("wc", DeviceVerb::Table(TableSlot::Inactive)),
            ),
            ("GET", "/v1/devices/wc/deps", "", of("wc", DeviceVerb::Deps)),
            ("GET", "/v1/devices/wc/wait", "event=3", of("wc", DeviceVerb::Wait(Some(3)))),
            ("GET", "/v1/devices/wc/wait", "", of("wc", DeviceVerb::Wait(None))),
            ("GET", "/v1/devices/wc/attributes", "", of("wc", DeviceVerb::Attributes)),
            (
                "PUT",
                "/v1/devices/wc/attributes/queue/wbt_lat_usec",
                "",
                of("wc", DeviceVerb::SetAttribute("queue/wbt_lat_usec".into())),
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
            ("GET", "/v1/stop", "", ErrorKind::NotFound),
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
