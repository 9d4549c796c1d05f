// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose data lie where a device is about to write: a backing device of a zram that holds a cache's
//! dirty blocks is refused, a mapping past a cache is named in the log.
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, LocalFuture, Nanos, OpenDevice, Role, Target};
use dm::{Context, Dm};
use writecache::{SignedArea, find_signed_areas};

use crate::claims::Claims;
use crate::leaves::Leaves;

/// After so long the devices above a mapping have been made, by a configuration file or a command.
/// Chosen: longer than either takes, short enough for who looks at the log.
const SETTLED: Nanos = Nanos::from_secs(3);

/// The check of a backing device that a zram writes to: on it, and on the leaves below it, lies
/// nothing that would be lost. `force` is the token that the operator gave.
pub(crate) fn before_overwrite(
    dm: Weak<Dm>,
    force: Option<String>,
    persists: bool,
) -> zram::BeforeOverwrite {
    Rc::new(move |device| {
        let (dm, force) = (dm.clone(), force.clone());
        let check: LocalFuture<Result<(), Error>> = Box::pin(async move {
            let mut found = Vec::new();
            found.extend(held_by(&device, &[(0, u64::MAX)]).await?);
            let below = dm.upgrade().map(|dm| dm.runs_at_the_bottom(&device)).unwrap_or_default();
            for (leaf, runs) in below {
                if !block::same_device(&leaf, &device) {
                    found.extend(held_by(&leaf, &runs).await?);
                }
            }
            // The zram itself knows what is its own.
            found.retain(|(_, held)| held.signature != format::Signature::Zram);
            match found.first() {
                Some((name, held)) => refuse(name, held, force.as_deref(), persists),
                None => Ok(()),
            }
        });
        check
    })
}

fn refuse(name: &str, held: &SignedArea, force: Option<&str>, persists: bool) -> Result<(), Error> {
    let Some(loss) = &held.loss else {
        tracing::warn!(
            device = name,
            "it holds a write cache without dirty blocks: it is given up"
        );
        return Ok(());
    };
    if force == Some(&held.token) && !persists {
        return Ok(());
    }
    let at = match held.sectors.start {
        0 => String::new(),
        start => format!(" --start-sector {start}"),
    };
    let error = Error::busy(format!(
        "{name}: it {loss}. A zram would write over that; `millpond wipe {name}{at}` gives it up"
    ));
    Err(match persists {
        true => error,
        false => error.unless_forced(held.token.clone(), "writes over it"),
    })
}

/// What would be lost in these sectors of a device.
async fn held_by(
    device: &Rc<dyn BlockDevice>,
    runs: &[(u64, u64)],
) -> Result<Vec<(String, SignedArea)>, Error> {
    let is_touched = |held: &SignedArea| {
        runs.iter().any(|(from, to)| *from < held.sectors.end && held.sectors.start < *to)
    };
    // An opener of its own: who reads here is not who is told of lost writes later.
    let opened: Rc<dyn BlockDevice> =
        Rc::new(OpenDevice::new(device.clone(), reactor::new_opener()));
    let found = find_signed_areas(&opened).await?.into_iter().filter(is_touched);
    Ok(found.map(|held| (device.name().to_owned(), held)).collect())
}

/// A task: names in the log what `target` would write over, if what that belongs to is not there
/// soon. A cache may be made above a mapping of its device.
pub(crate) fn warn_of_signed_areas(
    (dm, claims, leaves): (Weak<Dm>, Rc<Claims>, Leaves),
    ctx: &Context,
    target: &Rc<dyn Target>,
) {
    let device = ctx.device().to_owned();
    let opened = leaves.opened();
    // A mapped device may be suspended, and is looked at by its own table.
    let below: Vec<_> = target.components();
    let is_written = |role| matches!(role, Role::Mapped | Role::Origin);
    let below = below.into_iter().filter(|below| is_written(below.role));
    let below = below.filter(|below| opened.iter().any(|l| block::same_device(l, &below.device)));
    let below: Vec<_> = below
        .map(|b| (Rc::downgrade(&b.device), (b.start.0, (b.start + b.len).0), b.role))
        .collect();
    if below.is_empty() {
        return;
    }
    reactor::spawn(async move {
        reactor::sleep(SETTLED).await;
        for (leaf, run, role) in below {
            let Some(leaf) = leaf.upgrade() else { continue };
            let Ok(found) = held_by(&leaf, &[run]).await else { continue };
            let Some(dm) = dm.upgrade() else { return };
            if role == Role::Mapped && is_claimed(&dm, &claims, &leaf) {
                continue;
            }
            // An origin may have the guard of its cache.
            let found = found.into_iter().filter(|(_, held)| {
                role == Role::Mapped || held.signature != format::Signature::Guard
            });
            for (name, held) in found {
                let Some(loss) = held.loss else { continue };
                tracing::warn!(
                    device,
                    "{name}: it {loss}: what is written to {device} destroys it"
                );
            }
        }
    });
}

/// Whether an engine has the leaf as its cache device, its origin or its backing device.
fn is_claimed(dm: &Dm, claims: &Claims, leaf: &Rc<dyn BlockDevice>) -> bool {
    claims.all().iter().any(|(_, engine)| {
        engine.components().iter().filter(|below| below.role != Role::Mapped).any(|below| {
            dm.at_the_bottom(&below.device).iter().any(|bottom| block::same_device(bottom, leaf))
        })
    })
}
