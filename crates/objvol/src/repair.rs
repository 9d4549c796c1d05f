// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repair of a volume that does not open: what damage has cut off is given up.
//!
//! ```text
//!   own epoch ─▶ seals behind everything ─▶ history up to the damage ─▶ own segment, checkpoint
//! ```
//!
//! What lies behind the damage can't be used: a later write may depend on one that is missing.
//! Nothing is deleted by the repair: what is given up is garbage that the checkpoint does not name.
//!
//! Invariants
//! - OV-RP1 A repair is an opening in all but one: history may end at damage (OV-H8). It takes an
//!   epoch and seals all before it, and is refused where an opening is.
//! - OV-RP2 Its checkpoint lies in its own epoch, and has the whole map. Once it is durable, no
//!   opening reads what lies before it; until then a repair that was cut off may be done again.
use std::rc::Rc;

use block::Error;

use crate::config::OpenOptions;
use crate::history::Purpose;
use crate::open;
use crate::store::ObjectStore;
use crate::volume::Volume;

/// Repairs the volume in `store`, and closes it. Afterwards it opens, with what a check before it
/// had found readable.
///
/// # Errors
/// As [`Volume::open`], but for damage.
pub async fn repair(store: Rc<dyn ObjectStore>, options: OpenOptions) -> Result<(), Error> {
    let shared = open::open(store, options, Purpose::Repair).await?;
    // OV-RP2: a segment of its own, for the checkpoint's place.
    shared.log.borrow_mut().gather_nothing();
    Volume::of(shared).close().await
}
