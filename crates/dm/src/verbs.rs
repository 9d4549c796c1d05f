// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's verbs on existing devices: clear, suspend, resume, remove, rename, message, and the
//! listings.
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use block::{BlockDevice, Class, Error, Nanos, Sector, UnsavedBlocks, same_device};

use crate::context::EventSource;
use crate::device::{MAJOR, MappedDevice};
use crate::dm::Dm;
use crate::live::Entry;
use crate::report::{Dependency, DeviceInfo, Remove, TargetLine, TargetVersion};

/// How long a removal by force waits for I/O in flight. Chosen: a target whose devices answer
/// settles in less, and an operator whose device hangs hardly notices it.
const FORCE_WAIT: Nanos = Nanos::from_secs(1);

impl Dm {
    /// Drops the inactive table.
    pub async fn clear(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let _guard = device.control().await?;
        device.set_inactive(None);
        Ok(())
    }

    /// Stops bios, waits until none is in flight below, and lets the targets settle their state.
    /// Suspending a suspended device does nothing.
    ///
    /// dmsetup's `--nolockfs` and `--noflush` change nothing here: there is no file system to
    /// freeze, and no target that can push a request back.
    pub async fn suspend(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        device.suspend(&guard).await
    }

    /// Pauses what the targets of a device do in the background, or lets it go on: see
    /// [`block::Target::pause_background`].
    pub async fn pause_background(&self, name: &str, is_paused: bool) -> Result<(), Error> {
        let Some(table) = self.get(name)?.live() else { return Ok(()) };
        // All at once: one that takes long must not pause the next when that is to go on again.
        let pause = |entry: &Entry| entry.target.clone().pause_background(is_paused);
        let mut pausing: Vec<_> = table.entries.iter().map(pause).collect();
        let ended = poll_fn(|cx| {
            pausing.retain_mut(|one| one.as_mut().poll(cx).is_pending());
            if pausing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        ended.await;
        Ok(())
    }

    /// Swaps the inactive table in, if there is one, and lets bios go on.
    pub async fn resume(&self, name: &str) -> Result<(), Error> {
        self.resume_forced(name, None).await
    }

    /// The same, with the token of an earlier refusal: then it may hide dirty blocks (DM-U1).
    pub async fn resume_forced(&self, name: &str, force: Option<&str>) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        device.resume(&guard, force).await
    }

    /// Removes a device. Returns what its caches hold and their origins do not, and which caches
    /// may have kept copies (DM-U3).
    pub async fn remove(&self, name: &str, how: Remove) -> Result<Vec<UnsavedBlocks>, Error> {
        self.remove_forced(name, how, None).await
    }

    /// The same, with the token of an earlier refusal: then blocks may be lost (DM-U2).
    pub async fn remove_forced(
        &self,
        name: &str,
        how: Remove,
        force: Option<&str>,
    ) -> Result<Vec<UnsavedBlocks>, Error> {
        let device = self.get(name)?;
        if how == Remove::Force {
            device.check_lost(force).await?;
            return self.remove_by_force(&device).await;
        }
        if how == Remove::Drained {
            self.write_back_unused(name).await?;
        }
        let guard = device.control().await?;
        device.check_lost(force).await?;
        let has_blocks = device.unsaved().iter().any(|unsaved| unsaved.blocks() > 0);
        if how == Remove::Drained && has_blocks {
            let e = format!("{}: was written to while it was written back", device.name());
            return Err(Error::busy(e));
        }
        if device.open_count() > 0 {
            if how == Remove::Deferred {
                device.remove_at_close().set(true);
                return Ok(Vec::new());
            }
            return Err(self.in_use(&device));
        }
        let result = device.retire(&guard).await;
        drop(guard);
        let unsaved = result?;
        self.forget(&device);
        self.report_unsaved(&device, &unsaved);
        Ok(unsaved)
    }

    /// What a removal by force, or with this token, would refuse because of what is lost (DM-U2).
    pub async fn check_lost(&self, name: &str, force: Option<&str>) -> Result<(), Error> {
        self.get(name)?.check_lost(force).await
    }

    /// Writes back what only the caches of a device hold. Fails with `EBUSY` while it is open.
    pub async fn write_back_unused(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        if device.open_count() > 0 {
            return Err(self.in_use(&device));
        }
        device.write_back().await
    }

    /// Writes back what only the caches of a device hold, while it is in use, and flushes it.
    /// Fails with `EBUSY` while it is suspended.
    pub async fn flush(&self, name: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        if device.is_suspended() {
            let text = format!("{name}: it is suspended: resume it first");
            return Err(Error::busy(text));
        }
        if device.live().is_none() {
            let text = format!("{name}: it has no live table: load one and resume it first");
            return Err(Error::invalid(text));
        }
        device.write_back().await?;
        let flushed = reactor::flush(&*device, Class::Foreground).await;
        flushed.map_err(|status| Error::io(format!("{name}: FLUSH: {status}")))
    }

    /// Calls `report` with each device that is removed and what stays in its cache; and with one
    /// whose table hides a cache that has kept copies.
    pub fn on_unsaved(&self, report: impl Fn(&str, &UnsavedBlocks) + 'static) {
        *self.on_unsaved.borrow_mut() = Some(Rc::new(report));
    }

    pub(crate) fn report_unsaved(&self, device: &MappedDevice, unsaved: &[UnsavedBlocks]) {
        let report = self.on_unsaved.borrow().clone();
        if let Some(report) = report {
            unsaved.iter().for_each(|unsaved| report(device.name(), unsaved));
        }
    }

    /// Removes all devices, from the top of each stack down. Goes on after an error and returns the
    /// first one; devices that are open stay.
    pub async fn remove_all(&self, how: Remove) -> Result<(), Error> {
        let mut result = Ok(());
        let mut tried = BTreeSet::new();
        loop {
            let left = self.devices().into_iter().filter(|d| !tried.contains(&d.minor()));
            let mut left: Vec<_> = left.collect();
            // By force the one on top loses its table even when it stays, so what is below is free.
            let unused = left.iter().position(|d| self.users(d).is_empty());
            let forced = (how == Remove::Force && !left.is_empty()).then_some(0);
            let next = unused.or(forced).map(|i| left.swap_remove(i));
            let Some(device) = next else { return result };
            tried.insert(device.minor());
            result = result.and(self.remove(device.name(), how).await.map(drop));
        }
    }

    pub(crate) fn in_use(&self, device: &Rc<MappedDevice>) -> Error {
        let users = self.users(device);
        let names: Vec<_> = users.iter().map(|d| d.name()).collect();
        let by = if names.is_empty() {
            String::new()
        } else {
            format!(", by the tables of {}", names.join(", "))
        };
        let (name, opens) = (device.name(), device.open_count());
        Error::busy(format!("{name}: device is in use: opened {opens} times{by}"))
    }

    /// All I/O fails from now on, whoever has the device open. Waits at most [`FORCE_WAIT`] for I/O
    /// in flight and for targets to settle; a task waits for the rest, after the device is gone.
    async fn remove_by_force(
        &self,
        device: &Rc<MappedDevice>,
    ) -> Result<Vec<UnsavedBlocks>, Error> {
        let len = device.limits().capacity;
        let unsaved = device.held_by_force();
        let errors = match len {
            Sector::ZERO => None,
            len => {
                let mut table = self.construct(device, &format!("0 {len} error")).await?;
                table.fails_flush = true;
                Some(Rc::new(table))
            }
        };
        device.replace_by_force(self, errors);
        device.settled_within(FORCE_WAIT).await;
        if device.open_count() > 0 {
            return Err(self.in_use(device));
        }
        device.finish_removal();
        self.forget(device);
        self.report_unsaved(device, &unsaved);
        Ok(unsaved)
    }

    fn forget(&self, device: &Rc<MappedDevice>) {
        let mut devices = self.devices.borrow_mut();
        if devices.get(device.name()).is_some_and(|d| Rc::ptr_eq(d, device)) {
            devices.remove(device.name());
        }
        self.count_change();
    }

    /// The last opener of a device with a deferred removal has gone.
    pub(crate) async fn remove_deferred(&self, device: &Rc<MappedDevice>) {
        let Ok(guard) = device.control().await else { return };
        let may_go = device.check_lost(None).await;
        // It may have been opened again meanwhile.
        if !device.remove_at_close().get() || device.open_count() > 0 {
            return;
        }
        let retired = match may_go {
            Ok(()) => device.retire(&guard).await,
            Err(e) => Err(e),
        };
        match retired {
            Ok(unsaved) => {
                self.forget(device);
                self.report_unsaved(device, &unsaved);
            }
            Err(e) => {
                // Nobody waits for the outcome.
                device.raise_event();
                let report = self.on_kept.borrow().clone();
                if let Some(report) = report {
                    report(device.name(), &e);
                }
            }
        }
    }

    /// Calls `report` with each device that stays although it was to be removed when it was closed,
    /// and why.
    pub fn on_kept(&self, report: impl Fn(&str, &Error) + 'static) {
        *self.on_kept.borrow_mut() = Some(Rc::new(report));
    }

    /// Takes a deferred removal back.
    pub fn cancel_deferred_remove(&self, name: &str) -> Result<(), Error> {
        self.get(name)?.remove_at_close().set(false);
        Ok(())
    }

    /// Gives a device another name. Raises an event.
    pub fn rename(&self, name: &str, new: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        device.check_not_removed()?;
        let new = self.free_name(new)?;
        let mut devices = self.devices.borrow_mut();
        let old = device.name().to_owned();
        device.identity.names.set(&new)?;
        devices.remove(&old);
        devices.insert(new, device.clone());
        drop(devices);
        device.raise_event();
        self.count_change();
        Ok(())
    }

    /// Gives a device without a UUID one; it can't change later.
    pub fn set_uuid(&self, name: &str, uuid: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let uuid = self.check_uuid(uuid)?;
        let mut old = device.identity.uuid.borrow_mut();
        if let Some(old) = &*old {
            let name = device.name();
            return Err(Error::invalid(format!("{name}: has the uuid `{old}` already")));
        }
        *old = Some(uuid);
        Ok(())
    }

    /// Sends a message to the target at `sector`; `@cancel_deferred_remove` is for the device.
    pub async fn message(
        &self,
        name: &str,
        sector: Sector,
        words: Vec<String>,
    ) -> Result<String, Error> {
        let device = self.get(name)?;
        let Some(first) = words.first() else {
            return Err(Error::invalid(format!("{}: Empty message", device.name())));
        };
        if let Some(word) = first.strip_prefix('@') {
            if word == "cancel_deferred_remove" && words.len() == 1 {
                self.cancel_deferred_remove(name)?;
                return Ok(String::new());
            }
            return Err(Error::invalid(format!(
                "{}: unsupported message `{}` to the device: known is @cancel_deferred_remove",
                device.name(),
                words.join(" ")
            )));
        }
        let to = device.message_to(sector, &words)?;
        let answer = to.target.clone().message(words).await;
        answer.map_err(|e| e.within(format!("{}: line {}", device.name(), to.line_no)))
    }

    /// The live table's status lines.
    pub fn status(&self, name: &str) -> Result<Vec<TargetLine>, Error> {
        Ok(self.get(name)?.status())
    }

    /// The live table's lines.
    pub fn table(&self, name: &str) -> Result<Vec<TargetLine>, Error> {
        Ok(self.get(name)?.table())
    }

    /// One device's record.
    pub fn info(&self, name: &str) -> Result<DeviceInfo, Error> {
        Ok(self.get(name)?.info())
    }

    /// The records of all devices, by name.
    pub fn list(&self) -> Vec<DeviceInfo> {
        self.devices.borrow().values().map(|d| d.info()).collect()
    }

    /// The devices that the live table stands on, or the inactive one's when none is live; as the
    /// kernel lists them, the one first that was opened last.
    pub fn deps(&self, name: &str) -> Result<Vec<Dependency>, Error> {
        let device = self.get(name)?;
        let Some(table) = device.live().or_else(|| device.inactive()) else {
            return Ok(Vec::new());
        };
        let dependency = |d: &Rc<dyn BlockDevice>| {
            let mapped = table.uses.mapped.iter().find(|o| same_device(o.device(), d));
            Dependency {
                name: d.name().to_owned(),
                number: mapped.map(|o| (MAJOR, o.device().minor())),
            }
        };
        Ok(table.uses.all.devices.iter().rev().map(dependency).collect())
    }

    /// The target types that tables may use.
    pub fn targets(&self) -> Vec<TargetVersion> {
        let types = self.types.borrow();
        let manuals = types.values().map(|kind| kind.manual);
        manuals.map(|m| TargetVersion { name: m.name, version: m.version }).collect()
    }

    /// Waits until the device's event number is not `seen` (by default the one now); returns it.
    /// A removal is an event.
    pub async fn wait(&self, name: &str, seen: Option<u32>) -> Result<u32, Error> {
        let device = self.get(name)?;
        let seen = seen.unwrap_or_else(|| device.event_nr());
        Ok(device.wait_event(seen).await)
    }
}
