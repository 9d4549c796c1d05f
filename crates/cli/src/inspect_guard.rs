// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond inspect` of an origin that a write cache guards.
use control::{EXIT_DONE, EXIT_FAILED, Failure, plain};
use host::{Format, print};
use serde_json::json;
use writecache::OriginGuard;

use crate::inspect::{InspectArgs, hex};

/// Shows whose origin it is and what to do with it; returns what to exit with.
pub(crate) fn show(args: &InspectArgs, guard: &OriginGuard) -> Result<u8, Failure> {
    let uuid = hex(&guard.uuid);
    match args.listing.format {
        Format::Text => {
            let image = args.image.display();
            let list = |sectors: &[u64]| {
                let words: Vec<String> = sectors.iter().map(u64::to_string).collect();
                if words.is_empty() { "none".to_owned() } else { words.join(" ") }
            };
            print(&format!(
                "origin      {image}, {} sectors of it\n\
                 guarded     by the write cache {}, uuid {uuid}\n\
                 ranges      from sectors {}\n\
                 damaged     {}\n\
                 to use it   make the device of that cache: a part of the newest data may be there \
                 alone\n\
                 to free it  `millpond remove` or `uncache` of that device, or `millpond recover \
                 --cache ... --origin {image}`\n\
                 cache lost  `millpond recover --without-cache {image}` gives it back as it last \
                 was\n",
                guard.origin_sectors,
                plain(&guard.cache),
                list(&guard.ranges),
                list(&guard.damaged),
            ))?;
        }
        Format::Json => {
            let value = json!({
                "image": args.image.to_string_lossy(),
                "format": "guarded origin",
                "sound": guard.damaged.is_empty(),
                "uuid": uuid,
                "cache": guard.cache,
                "origin_sectors": guard.origin_sectors,
                "ranges": guard.ranges,
                "damaged": guard.damaged,
            });
            print(&format!("{value:#}\n"))?;
        }
    }
    Ok(if guard.damaged.is_empty() { EXIT_DONE } else { EXIT_FAILED })
}
