// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose data lie where a device is about to write: a backing device of a zram that holds a cache's
//! dirty blocks is refused.
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, LocalFuture, OpenDevice};
use dm::Dm;
use writecache::{SignedArea, find_signed_areas, foreign_contents};

use crate::leaves::Leaves;

/// The check of a backing device that a zram writes to: on it, and on the leaves below it, lies
/// nothing of ours that would be lost. What others have there only gets a warning: the kernel's
/// zram takes it without a word. `force` is the token that the operator gave.
pub(crate) fn before_overwrite(
    dm: Weak<Dm>,
    leaves: Leaves,
    force: Option<String>,
) -> zram::BeforeOverwrite {
    Rc::new(move |device| {
        let (dm, leaves, force) = (dm.clone(), leaves.clone(), force.clone());
        let check: LocalFuture<Result<(), Error>> = Box::pin(async move {
            let mut found = Vec::new();
            found.extend(held_by(&device, &[(0, u64::MAX)]).await?);
            let below = dm.upgrade().map(|dm| dm.runs_at_the_bottom(&device)).unwrap_or_default();
            for (leaf, runs) in below {
                if !block::same_device(&leaf, &device) {
                    found.extend(held_by(&leaf, &runs).await?);
                }
            }
            match found.first() {
                Some((name, held)) => refuse(name, held, force.as_deref()),
                None => warn_of_foreign(&leaves, &device).await,
            }
        });
        check
    })
}

async fn warn_of_foreign(leaves: &Leaves, device: &Rc<dyn BlockDevice>) -> Result<(), Error> {
    if let Some(what) = foreign_contents(device).await? {
        let name = device.name();
        leaves.warn(format!(
            "{name}: it holds {what}, which the first writeback of this zram destroys. If that is \
             to be kept, remove the zram now"
        ));
    }
    Ok(())
}

fn refuse(name: &str, held: &SignedArea, force: Option<&str>) -> Result<(), Error> {
    let Some(loss) = &held.loss else {
        tracing::warn!(
            device = name,
            "it holds a write cache without dirty blocks: it is given up"
        );
        return Ok(());
    };
    if force == Some(&held.token) {
        return Ok(());
    }
    let at = match held.sectors.start {
        0 => String::new(),
        start => format!(" --start-sector {start}"),
    };
    let error = Error::busy(format!(
        "{name}: it {loss}. A zram would write over that; `millpond wipe {name}{at}` gives it up"
    ));
    Err(error.unless_forced(held.token.clone(), "writes over it"))
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
