// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What keeps devices from crossing to a successor.
//!
//! | obstacle | comes | way out |
//! |---|---|---|
//! | suspended, a table that waits, a deferred removal | by a verb | `resume`, `clear`, a message |
//! | somebody else has the volume | by another daemon | `remove`, or `load` and `resume` |
//! | blocks in memory alone | when a cache device fails | its token |
//! | pages, `mem:` | with the first write | its name |
//!
//! Invariant
//! - HO-UP5 The list is read before anything is done, and again when all devices are held: what
//!   comes by no verb may come in between.
use std::rc::Rc;

use block::{BlockDevice, ErrorKind};
use control::Failure;
use control::api::UpgradeProblem;
use dm::{DeviceInfo, MappedDevice};

use super::Engine;
use super::removal::unsaved_warning;
use crate::claims::Claims;
use crate::leaf_word::{LeafWord, parse};

/// What the token of blocks in memory alone stands for.
const VERB: &str = "upgrade";

impl Engine {
    /// What does not cross to a successor, device by device.
    pub(crate) async fn upgrade_problems(&self) -> Result<Vec<UpgradeProblem>, Failure> {
        let mut found = Vec::new();
        for info in self.dm.list() {
            found.extend(of_verbs(&info));
            found.extend(self.losses(&info.name).await?);
        }
        Ok(found)
    }

    /// What would be lost, or taken from somebody else. The devices may be held.
    pub(crate) async fn upgrade_losses(&self) -> Result<Vec<UpgradeProblem>, Failure> {
        let mut found = Vec::new();
        for info in self.dm.list() {
            found.extend(self.losses(&info.name).await?);
        }
        Ok(found)
    }

    async fn losses(&self, name: &str) -> Result<Vec<UpgradeProblem>, Failure> {
        let mut found = Vec::new();
        let device = self.dm.get(name)?;
        if let Some(fence) = device.fenced_by() {
            let why = format!(
                "it is {fence}: a successor would take the volume back from there. `millpond \
                 remove {name}` gives it up here; `load` and `resume` with its table take it back"
            );
            found.push(UpgradeProblem::new(name, why, false));
        }
        if let Some((token, why)) = device.in_memory_alone(VERB).await {
            let token = Some(token);
            found.push(UpgradeProblem { token, ..UpgradeProblem::new(name, why, true) });
        }
        for dep in self.dm.deps(name)? {
            if let (None, Ok(LeafWord::Mem(_))) = (dep.number, parse(&dep.name)) {
                let why = format!("{} is in the memory of this process: its data end", dep.name);
                found.push(UpgradeProblem::new(name, why, true));
            }
        }
        let lines = self.dm.table(name)?;
        let pages = lines.iter().any(|line| line.kind == zram::MANUAL.name);
        if pages && self.has_pages(name).await? {
            let why = "its pages are in the memory of this process: they end".to_owned();
            found.push(UpgradeProblem::new(name, why, true));
        }
        Ok(found)
    }

    /// What becomes of blocks in memory alone when the daemon ends.
    pub(crate) async fn in_memory_alone(&self) -> Vec<String> {
        let mut all = Vec::new();
        for device in self.dm.devices() {
            all.extend(in_memory_alone(&self.claims, &device).await);
        }
        all
    }

    async fn has_pages(&self, name: &str) -> Result<bool, Failure> {
        let stat = self.dm.get_attribute(name, "mm_stat").await?.to_string();
        Ok(stat.split_whitespace().next().is_some_and(|bytes| bytes != "0"))
    }
}

/// What a verb has left behind.
fn of_verbs(info: &DeviceInfo) -> Vec<UpgradeProblem> {
    let name = &info.name;
    let mut found = Vec::new();
    let mut add = |why: String| found.push(UpgradeProblem::new(name, why, false));
    if info.suspended {
        add("it is suspended, and requests may wait for it: resume it first".to_owned());
    }
    if !info.live_table && !info.inactive_table && !info.has_setup {
        add(format!("it has no table: load one and resume it, or `remove {name}`"));
    }
    if info.inactive_table {
        add(format!(
            "a table waits for a resume: `resume {name}` makes it live, `clear {name}` drops it"
        ));
    }
    if info.deferred_remove {
        add(format!(
            "it is removed when it is closed: `message {name} 0 @cancel_deferred_remove` takes \
             that back"
        ));
    }
    found
}

/// Reports what an orderly end leaves in the caches of a device. Returns what is in memory alone.
pub(super) async fn leave_unsaved(claims: &Claims, device: &Rc<MappedDevice>) -> Vec<Failure> {
    for unsaved in device.unsaved().iter().filter(|unsaved| unsaved.in_memory == 0) {
        tracing::warn!(device = device.name(), "{}", unsaved_warning(unsaved));
    }
    let alone = in_memory_alone(claims, device).await.into_iter();
    alone.map(|text| Failure::new(ErrorKind::Io, format!("shutdown: {text}"))).collect()
}

/// What becomes of blocks of a device that are in memory alone when the daemon ends: the journals
/// stay, as after `kill -9`.
async fn in_memory_alone(claims: &Claims, device: &Rc<MappedDevice>) -> Vec<String> {
    let mut all = Vec::new();
    for unsaved in device.unsaved().iter().filter(|unsaved| unsaved.in_memory > 0) {
        let (name, cache) = (device.name(), &unsaved.cache);
        let fate = match claims.without_journal(device).await {
            Some(journal) => format!("they are lost, for the journal is {journal}"),
            None => format!(
                "they stay in the journal in {} until this machine boots: the next start with this \
                 run directory finds them, if {cache} is well again by then",
                reactor::shared_memory().map(|dir| dir.place_of("")).unwrap_or_default()
            ),
        };
        all.push(format!("{name}: {unsaved}: {fate}"));
    }
    all
}
