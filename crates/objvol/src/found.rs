// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which checkpoint counts, and the map that it makes with its layers.
//!
//! ```text
//!   newest name ─ decoded? ─ no seal before it? ─ layers: there, and those? ─▶ map
//!        │            │ damage         │ (OV-H5)           │ damage
//!        ▼            ▼                ▼                   ▼
//!   the one before … a check and a repair take the newest one all of whose segments are there
//! ```
//!
//! The invariants are those of `history`.
use std::collections::BTreeMap;

use block::{Error, Reservation};
use format::objvol::{
    CHECKPOINTS, Checkpoint, Layer, LayeredMap, ObjectDamage, Place, SEAL_BYTES, SECTOR, SEGMENTS,
    SegmentObject, Snapshot, StoredCheckpoint, parse_place_name, place_name,
};

use crate::checkpoint_size::too_long;
use crate::history::{Interruption, Reader, Reading};
use crate::join::{Pending, join_all};
use crate::planted::Fault;
use crate::requests::Whole;

/// Layers that are read at once. Chosen: 64 of them take 8 round trips, and memory for 8.
const LAYERS_AT_ONCE: usize = 8;

/// A checkpoint that is believed, and what it is made of.
#[derive(Debug)]
pub(crate) struct FoundCheckpoint {
    pub(crate) checkpoint: Checkpoint,
    /// The oldest first; the last is the checkpoint itself.
    pub(crate) layers: Vec<Layer>,
    /// What all of them take until the map is made.
    _memory: Vec<Reservation>,
}

/// A checkpoint as it lies in the store.
struct Top {
    stored: StoredCheckpoint,
    layer: Layer,
    memory: Option<Reservation>,
}

fn checkpoint_name(place: Place) -> String {
    place_name(CHECKPOINTS, place)
}

/// The first layer has the whole map, and no other has.
fn add_layer(
    map: &mut Option<LayeredMap>,
    stored: StoredCheckpoint,
    layers: &[Layer],
) -> Result<(), ObjectDamage> {
    match (stored, map) {
        (StoredCheckpoint::Whole(whole), map @ None) => {
            *map = Some(LayeredMap::new(whole, layers)?);
            Ok(())
        }
        (StoredCheckpoint::Increment(increment), Some(map)) => map.add(increment),
        (StoredCheckpoint::Whole(_), Some(_)) | (StoredCheckpoint::Increment(_), None) => {
            Err(ObjectDamage::Field("layers"))
        }
    }
}

impl Reader<'_> {
    /// The snapshots that the newest checkpoint lists: its layers are not read.
    pub(crate) async fn find_snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let top = self.until_it_stays(async || self.newest_top().await).await?;
        Ok(top.map_or_else(Vec::new, |top| top.stored.snapshots().to_vec()))
    }

    async fn checkpoint_names(&self) -> Reading<Vec<String>> {
        let names = self.requests.list(CHECKPOINTS, "").await.map_err(|d| self.denied(&d))?;
        Ok(names.into_iter().rev().map(|(name, _)| name).collect())
    }

    /// The newest checkpoint that is believed, without its layers.
    async fn newest_top(&self) -> Reading<Option<Top>> {
        for name in self.checkpoint_names().await? {
            if let Some(top) = self.believed(&name).await? {
                return Ok(Some(top));
            }
        }
        Ok(None)
    }

    /// The newest checkpoint that is believed.
    pub(crate) async fn newest_checkpoint(&self) -> Reading<Option<FoundCheckpoint>> {
        let names = self.checkpoint_names().await?;
        let (mut is_damaged, mut incomplete) = (false, None);
        for name in &names {
            let findings = self.findings.borrow().len();
            if let Some(top) = self.believed(name).await?
                && let Some(found) = self.with_layers(name, top, &names).await?
            {
                // A layer of a damaged checkpoint outlives the segments that it needs.
                if !is_damaged || self.is_complete(&found.checkpoint).await? {
                    return Ok(Some(found));
                }
                incomplete.get_or_insert(found);
            }
            is_damaged |= self.findings.borrow().len() > findings;
        }
        Ok(incomplete)
    }

    /// The checkpoint of this name, unless it is damaged, or not believed.
    async fn believed(&self, name: &str) -> Reading<Option<Top>> {
        let Some(place) = parse_place_name(CHECKPOINTS, name) else {
            self.find(format!("{name} is not an object of a volume"))?;
            return Ok(None);
        };
        if place.epoch >= self.epoch {
            return Ok(None); // of a writer that has taken over since
        }
        let top = self.checkpoint_at(place).await?;
        let top = top.ok_or_else(|| Interruption::Gone(name.to_owned()))?;
        let top = match top {
            Ok(top) => top,
            Err(damage) => {
                self.find(damage)?;
                return Ok(None);
            }
        };
        if self.is_sealed_before(place).await? && !self.planted.is(Fault::BelieveBeyondSeal) {
            return Ok(None); // OV-H5
        }
        Ok(Some(top))
    }

    /// What lies under the name of a checkpoint, or what is wrong with it; `None`: nothing.
    async fn checkpoint_at(&self, place: Place) -> Reading<Option<Result<Top, String>>> {
        let name = checkpoint_name(place);
        let (uuid, sectors, most) = (self.uuid, self.volume_sectors, self.checkpoint_bytes_max);
        let decode = move |object: &[u8]| {
            let stored = StoredCheckpoint::decode(object, &uuid, place, sectors)?;
            Ok::<_, ObjectDamage>((stored, Layer::of(object, place)))
        };
        let found = self.requests.decoded(&name, most, decode).await;
        Ok(found.map_err(|d| self.denied(&d))?.map(|found| match found {
            Whole::Decoded(Ok((stored, layer)), memory) => Ok(Top { stored, layer, memory }),
            Whole::Decoded(Err(damage), _) => Err(format!("{name}: {damage}")),
            Whole::TooLong(bytes) => Err(format!("{name}: {}", too_long(bytes, most))),
        }))
    }

    /// The map of a checkpoint; `None` if a layer is damaged.
    async fn with_layers(
        &self,
        name: &str,
        top: Top,
        names: &[String],
    ) -> Reading<Option<FoundCheckpoint>> {
        let mut layers = top.stored.layers().to_vec();
        let newest = match top.stored {
            StoredCheckpoint::Whole(checkpoint) => {
                let (layers, memory) = (vec![top.layer], top.memory.into_iter().collect());
                return Ok(Some(FoundCheckpoint { checkpoint, layers, _memory: memory }));
            }
            StoredCheckpoint::Increment(increment) => increment,
        };
        let (mut map, mut memory) = (None, Vec::from_iter(top.memory));
        for some in layers.chunks(LAYERS_AT_ONCE) {
            let read =
                |layer: &Layer| -> Pending<'_, _> { Box::pin(self.checkpoint_at(layer.place)) };
            let read = join_all(some.iter().map(read).collect()).await;
            for (layer, stored) in some.iter().zip(read) {
                let added = self.as_layer(name, *layer, stored?).and_then(|found| {
                    memory.extend(found.memory);
                    add_layer(&mut map, found.stored, &layers).map_err(|damage| {
                        format!("{}, a layer of {name}: {damage}", checkpoint_name(layer.place))
                    })
                });
                if let Err(damage) = added {
                    return self.damaged_layer(names, damage).await;
                }
            }
        }
        let newest = StoredCheckpoint::Increment(newest);
        let whole = add_layer(&mut map, newest, &layers)
            .and_then(|()| map.ok_or(ObjectDamage::Field("layers"))?.finish(self.volume_sectors));
        match whole {
            Ok(checkpoint) => {
                layers.push(top.layer);
                Ok(Some(FoundCheckpoint { checkpoint, layers, _memory: memory }))
            }
            Err(damage) => {
                self.damaged_layer(names, format!("{name} and its layers: {damage}")).await
            }
        }
    }

    /// What lies at the place of a layer, if it is that one.
    fn as_layer(
        &self,
        name: &str,
        layer: Layer,
        found: Option<Result<Top, String>>,
    ) -> Result<Top, String> {
        let of = checkpoint_name(layer.place);
        match found {
            None => Err(format!("{of}, a layer of {name}, is missing")),
            Some(Err(damage)) => Err(format!("{damage}; it is a layer of {name}")),
            Some(Ok(top)) if top.layer == layer || self.planted.is(Fault::BelieveLayers) => Ok(top),
            Some(Ok(_)) => Err(format!("{of} is not the layer that {name} was made of")),
        }
    }

    /// Damage, unless there is a newer checkpoint by now: then it may have been garbage.
    async fn damaged_layer<T>(&self, names: &[String], damage: String) -> Reading<Option<T>> {
        if self.checkpoint_names().await?.first() != names.first() {
            return Err(Interruption::Gone(damage));
        }
        self.find(damage).map(|()| None)
    }

    /// Whether all segments of a map are there.
    async fn is_complete(&self, checkpoint: &Checkpoint) -> Reading<bool> {
        let names = self.requests.list(SEGMENTS, "").await.map_err(|d| self.denied(&d))?;
        let place = |(name, bytes)| Some((parse_place_name(SEGMENTS, name)?, bytes));
        let there: BTreeMap<Place, u64> =
            names.iter().filter_map(|(name, bytes)| place((name, *bytes))).collect();
        let bytes_of = |sectors: u32| u64::from(sectors) * SECTOR as u64;
        let mut live = checkpoint.segments.iter().filter(|segment| segment.live > 0);
        Ok(live.all(|s| there.get(&s.place) == Some(&bytes_of(s.sectors))))
    }

    /// Whether a seal lies at `place` or before it in its epoch.
    async fn is_sealed_before(&self, place: Place) -> Reading<bool> {
        let folder = place_name(SEGMENTS, Place::new(place.epoch, 0));
        let folder = &folder[..folder.len() - 16];
        let names = self.requests.list(folder, "").await.map_err(|d| self.denied(&d))?;
        for (name, bytes) in names {
            let Some(at) = parse_place_name(SEGMENTS, &name).filter(|at| *at <= place) else {
                continue;
            };
            if bytes == SEAL_BYTES as u64
                && let Some(Some(SegmentObject::Seal(_))) =
                    self.readable(self.object_at(at).await)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
