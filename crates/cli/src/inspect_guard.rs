// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond inspect` of an origin that a write cache guards.
use control::{EXIT_DONE, EXIT_FAILED, Failure, plain};
use serde_json::json;
use writecache::OriginGuard;

use crate::inspect::{InspectArgs, hex};

/// Shows whose origin it is and what to do with it; returns what to exit with.
pub(crate) fn show(args: &InspectArgs, guard: &OriginGuard) -> Result<u8, Failure> {
    let uuid = hex(&guard.uuid);
    let value = json!({
        "image": args.image.to_string_lossy(),
        "format": "guarded origin",
        "sound": guard.damaged.is_empty(),
        "uuid": uuid,
        "cache": guard.cache,
        "origin_sectors": guard.origin_sectors,
        "ranges": guard.ranges,
        "damaged": guard.damaged,
        "restorable": guard.restorable,
    });
    args.listing.print(&value, || text(args, guard, &uuid))?;
    Ok(if guard.damaged.is_empty() { EXIT_DONE } else { EXIT_FAILED })
}

fn text(args: &InspectArgs, guard: &OriginGuard, uuid: &str) -> String {
    let image = args.image.display();
    let list = |sectors: &[u64]| {
        let words: Vec<String> = sectors.iter().map(u64::to_string).collect();
        match words.is_empty() {
            true => "none".to_owned(),
            false => format!("from sectors {}", words.join(" ")),
        }
    };
    let (option, asks) = match guard.damaged.is_empty() {
        true => ("", ""),
        false => (
            " with the option adopt_origin, which takes what was written over the guard",
            ", with a token: what was written over the guard counts, or what was there",
        ),
    };
    // A damaged guard has no whole slot that names them.
    let cache = match guard.cache.is_empty() {
        true => "of an unknown name".to_owned(),
        false => plain(&guard.cache).into_owned(),
    };
    format!(
        "origin      {image}, {} sectors of it\n\
         guarded     by the write cache {}, uuid {uuid}\n\
         ranges      {}\n\
         damaged     {}\n\
         to use it   make the device of that cache{option}: a part of the newest data may \
         be there alone\n\
         to free it  `millpond remove` or `uncache` of that device, or `millpond recover \
         --cache ... --origin {image}`\n\
         cache lost  `millpond recover --without-cache {image}` gives it back as it last \
         was{asks}\n",
        guard.origin_sectors,
        cache,
        list(&guard.ranges),
        list(&guard.damaged),
    )
}
