// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The probe: whether a store keeps two writers apart (OV-O6).
//!
//! A store may ignore the condition of a write. Others look first and write then: they refuse a
//! second creation, and let several at the same moment succeed. The probe finds most of these, not
//! all: that of a store which seldom lets two succeed is a matter of luck.
use block::{Error, ErrorKind};
use format::objvol::probe_name;

use crate::config::OpenOptions;
use crate::join::{Pending, join_all};
use crate::requests::{Creation, Requests, denied, put_whole};

/// How often, and how many at once. Chosen: of three stores that look first, three rounds found one
/// in all openings that were tried, one in nine of ten, and one hardly ever.
const ROUNDS: u32 = 3;
const AT_ONCE: u8 = 8;

/// Creates objects that are there, and the same object several times at once.
pub(crate) async fn probe(requests: &Requests, options: &OpenOptions) -> Result<(), Error> {
    if options.single_writer {
        return Ok(());
    }
    for _ in 0..ROUNDS {
        let name = &probe_name(reactor::random());
        let create = |nth: u8| -> Pending<'_, _> {
            Box::pin(async move { put_whole(requests, name, &[nth]).await })
        };
        let mut created = join_all((0..AT_ONCE).map(create).collect()).await;
        created.push(create(AT_ONCE).await);
        requests.delete(name).await.map_err(|d| denied(requests, &d))?;
        let mut own = 0;
        for outcome in created {
            own += u32::from(matches!(outcome.map_err(|d| denied(requests, &d))?, Creation::Own));
        }
        if own != 1 {
            let text = format!(
                "{}: the store has no conditional writes (If-None-Match: *), by which a volume \
                 keeps two writers apart: {own} of {} requests made one object; `single_writer` \
                 takes it where there is only one",
                requests.store_name(),
                AT_ONCE + 1
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
    }
    Ok(())
}
