// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading the configuration file again while the daemon runs: by SIGHUP, or by `reload`.
//!
//! Invariant
//! - HO-RL1 A reload creates devices and changes none: what is there stays as it is, and what the
//!   file has differently is reported.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use block::{Error, ErrorKind};
use control::{Failure, api};
use dm::Length;
use tokio::sync::Mutex;

use crate::config::{Config, DeviceConfig, ServeArgs, Source};
use crate::core_thread::CoreHandle;
use crate::engine::Engine;
use crate::tls::{self, ServerCertificates};

/// How long a verb waits for the file to compare it: the change itself is done.
const READ_TIME: Duration = Duration::from_secs(5);

/// The configuration file of a daemon, and what was made of it.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    /// None when the daemon was started without one.
    path: Option<PathBuf>,
    applied: Mutex<Applied>,
    certificates: Certificates,
}

/// The certificates of the NBD server, which a reload reads again.
#[derive(Debug)]
pub(crate) struct Certificates {
    dir: Option<PathBuf>,
    verifies_clients: bool,
}

impl Certificates {
    /// `in_force` were read from `dir`.
    pub(crate) fn new(dir: Option<PathBuf>, in_force: Option<&ServerCertificates>) -> Certificates {
        Certificates { dir, verifies_clients: tls::protects(in_force) }
    }

    /// Reads them again, for connections that come from now on. After an error the old ones stay.
    async fn reload(&self, core: &CoreHandle) -> Result<(), Failure> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        let read = tokio::task::spawn_blocking(move || tls::server_option(&dir)).await;
        let read =
            read.map_err(|e| Failure::new(ErrorKind::Io, format!("certificates: {e}")))??;
        if self.verifies_clients && !read.verifies_clients {
            let text = "--nbd-tls-certs: ca-cert.pem is gone: clients without a certificate are \
                        allowed only from the next start on";
            return Err(Failure::new(ErrorKind::Denied, text));
        }
        core.call(async move |e: Rc<Engine>| e.set_certificates(&read)).await?;
        tracing::info!("certificates read again");
        Ok(())
    }
}

/// The devices of a configuration file at the start of the daemon.
#[derive(Debug, Default)]
pub(crate) struct ConfiguredDevices {
    pub(crate) created: Vec<DeviceConfig>,
    /// Optional ones that could not be created.
    pub(crate) left_out: Vec<DeviceConfig>,
}

/// What of the file is in force.
#[derive(Debug)]
struct Applied {
    /// Read at start only.
    options: ServeArgs,
    /// The devices that were created by it, by name.
    devices: BTreeMap<String, DeviceConfig>,
    /// Those that it has and could not be created, in its order.
    left_out: Vec<DeviceConfig>,
}

impl ConfigFile {
    /// The file that has these devices.
    pub(crate) fn new(
        file: Option<Source>,
        devices: ConfiguredDevices,
        certificates: Certificates,
    ) -> ConfigFile {
        let ConfiguredDevices { created, left_out } = devices;
        let devices = created.into_iter().map(|device| (device.name.clone(), device)).collect();
        let (path, options) = match file {
            Some(Source { path, options }) => (Some(path), options),
            None => (None, ServeArgs::default()),
        };
        let applied = Mutex::new(Applied { options, devices, left_out });
        ConfigFile { path, applied, certificates }
    }

    /// Reads the file and creates the devices that are new in it (HO-RL1).
    ///
    /// # Errors
    /// `EOPNOTSUPP` without a file; and what is wrong with the file: then nothing is created.
    pub(crate) async fn reload(&self, core: &CoreHandle) -> Result<api::Reloaded, Failure> {
        let mut report = api::Reloaded::default();
        let certificates = self.certificates.reload(core).await;
        report.failed.extend(certificates.err().map(|failure| failure.to_string()));
        let Some(path) = self.path.clone() else {
            if self.certificates.dir.is_some() {
                return Ok(report);
            }
            let text = "the daemon was started without --config: there is no file to read again";
            return Err(Error::new(ErrorKind::NotSupported, text).into());
        };
        // One reload at a time.
        let mut applied = self.applied.lock().await;
        let Config { serve, devices, .. } = read(path).await?;
        if serve != applied.options {
            let text = "the options of the file have changed: they take effect at the next start";
            report.warnings.push(text.into());
        }
        let listed = core.call(async |e: Rc<Engine>| e.devices()).await?;
        let present = |name: &str| listed.iter().any(|device| device.name == name);
        let named = |name: &str| devices.iter().any(|device| device.name == name);
        let left_over = applied.devices.keys().filter(|name| present(name) && !named(name));
        report.warnings.extend(left_over.map(|name| {
            format!("device {name}: it is not in the file any more: it stays until `remove {name}`")
        }));
        let mut left_out = Vec::new();
        for device in devices {
            let (place, name) = (device.place.clone(), device.name.clone());
            if present(&name) {
                let unchanged = |before: &DeviceConfig| before.is_same_device(&device);
                if applied.devices.get(&name).is_some_and(unchanged) {
                    continue;
                }
                if is_as_in_file(core, &device).await? {
                    // A verb has made it so, and the file was changed or saved since.
                    applied.devices.insert(name, device);
                } else {
                    report.warnings.push(format!(
                        "{place}: device {name}: it exists and differs from the file: \
                         `load {name}` and `resume {name}` change its table, `set {name}` its \
                         attributes"
                    ));
                }
                continue;
            }
            let new = device.clone();
            let created = core.call(async move |e: Rc<Engine>| e.create_configured(new).await);
            match created.await? {
                Ok(()) => {
                    applied.devices.insert(name.clone(), device);
                    report.created.push(name);
                }
                Err(failure) => {
                    let failure = failure.within(place);
                    match device.optional {
                        true => report.warnings.push(format!(
                            "{failure}: it is optional: the daemon goes on without it"
                        )),
                        false => report.failed.push(failure.to_string()),
                    }
                    left_out.push(device);
                }
            }
        }
        applied.left_out = left_out;
        Ok(report)
    }

    /// The warning that a restart would bring up another table of a device than the `live` one,
    /// which a verb has made.
    pub(crate) async fn stale_table(&self, name: &str, live: &[api::Line]) -> Option<String> {
        let path = self.path.as_ref()?;
        let in_file = match tokio::time::timeout(READ_TIME, read(path.clone())).await {
            Ok(Ok(config)) => config.devices.into_iter().find(|device| device.name == name)?.table,
            Ok(Err(_)) | Err(_) => self.applied.lock().await.devices.get(name)?.table.clone(),
        }?;
        let path = path.display();
        let text: String = live
            .iter()
            .map(|l| format!("{} {} {} {}\n", l.start, l.length, l.target, l.params))
            .collect();
        (!is_same_table(&in_file, &text)).then(|| {
            format!(
                "the configuration file {path} has another table of {name}, with which it comes up \
                 after a restart: `millpond save {path} --force` writes the devices as they are now"
            )
        })
    }

    /// Takes over what a device can't tell of itself and the file had: that it is optional; and,
    /// while it has the same table, the token that forces it. Adds the devices that the file has
    /// and could not be created, as it has them: their disks may come back.
    pub(crate) async fn keep_choices(&self, devices: &mut Vec<DeviceConfig>) {
        let applied = self.applied.lock().await;
        for device in devices.iter_mut() {
            let Some(before) = applied.devices.get(&device.name) else { continue };
            device.optional = before.optional;
            let table = before.table.as_deref().zip(device.table.as_deref());
            if table.is_some_and(|(before, now)| is_same_table(before, now)) {
                device.force.clone_from(&before.force);
            }
        }
        for left_out in &applied.left_out {
            if devices.iter().any(|device| device.name == left_out.name) {
                continue;
            }
            devices.push(left_out.clone());
        }
    }

    /// As [`ConfigFile::reload`]; the log gets the report.
    pub(crate) async fn reload_and_log(&self, core: &CoreHandle) {
        match self.reload(core).await {
            Ok(report) => {
                report.warnings.iter().for_each(|text| tracing::warn!("reload: {text}"));
                report.failed.iter().for_each(|text| tracing::error!("reload: {text}"));
                let (created, failed) = (report.created.len(), report.failed.len());
                tracing::info!(created, failed, "configuration file read again");
            }
            Err(failure) => tracing::error!("reload: {failure}: nothing was changed"),
        }
    }
}

/// The file as it is now. A file system that hangs delays no other request.
async fn read(path: PathBuf) -> Result<Config, Failure> {
    let read = tokio::task::spawn_blocking(move || Config::read(&path)).await;
    read.map_err(|e| Failure::new(ErrorKind::Io, format!("config: {e}")))?
}

/// Whether a start with the file would make the device as it is now.
async fn is_as_in_file(core: &CoreHandle, file: &DeviceConfig) -> Result<bool, Failure> {
    let saved = core.call(async |e: Rc<Engine>| e.saved_devices().await).await?;
    let mut saved = saved.map_or_else(|_| Vec::new(), |(saved, _)| saved).into_iter();
    let Some(now) = saved.find(|now| now.name == file.name) else { return Ok(false) };
    let is_same_table = match (&now.table, &file.table) {
        (Some(now), Some(file)) => is_same_table(now, file),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let made_of = (&now.uuid, now.ublk, &now.attributes);
    Ok(is_same_table && made_of == (&file.uuid, file.ublk, &file.attributes))
}

/// Whether both have the same words. A length `-` is any: it was that of the devices below.
fn is_same_table(one: &str, other: &str) -> bool {
    let lines = |text: &str| dm::parse(text).unwrap_or_default();
    let is_any = |line: &dm::Line| line.len == Length::Whole;
    let is_same = |(a, b): (&dm::Line, &dm::Line)| {
        let is_same_len = a.len == b.len || is_any(a) || is_any(b);
        is_same_len && (a.start, &a.kind, &a.args) == (b.start, &b.kind, &b.args)
    };
    let (one, other) = (lines(one), lines(other));
    one.len() == other.len() && one.iter().zip(&other).all(is_same)
}
