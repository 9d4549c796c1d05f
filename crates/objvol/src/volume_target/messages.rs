// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages to a volume.
use std::rc::Rc;

use block::Error;
use format::objvol::Snapshot;

use super::VolumeTarget;
use crate::volume::Volume;

/// Those that there are, for errors.
const ALLOWED: &str = "`checkpoint`, `snapshot NAME`, `delete_snapshot NAME` and `snapshots` are \
                       allowed";

/// One line of the reply to `snapshots`: `NAME CREATED_AT SECTORS`.
fn line(snapshot: &Snapshot) -> String {
    let Snapshot { name, created_at, volume_sectors, .. } = snapshot;
    format!("{name} {created_at} {volume_sectors}")
}

impl VolumeTarget {
    fn open_volume(&self) -> Result<Rc<Volume>, Error> {
        self.volume().ok_or_else(|| {
            let what = if self.config.snapshot.is_some() { "it is a snapshot" } else { "not open" };
            Error::busy(format!("{}: no volume takes the message: {what}", self.name))
        })
    }

    pub(super) async fn answer(self: Rc<Self>, words: Vec<String>) -> Result<String, Error> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["checkpoint"] => self.open_volume()?.checkpoint().await?,
            ["snapshot", name] => {
                let now = (self.environment.clock)();
                let made = self.open_volume()?.create_snapshot(name, now).await?;
                return Ok(line(&made));
            }
            ["delete_snapshot", name] => self.open_volume()?.delete_snapshot(name).await?,
            ["snapshots"] => {
                let lines: Vec<String> =
                    self.open_volume()?.snapshots()?.iter().map(line).collect();
                return Ok(lines.join("\n"));
            }
            _ => {
                let text = format!("unknown message `{}`: {ALLOWED}", words.join(" "));
                return Err(Error::invalid(text));
            }
        }
        Ok(String::new())
    }
}
