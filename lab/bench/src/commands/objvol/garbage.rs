// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What garbage collection writes: overwrites of a full volume.
use std::rc::Rc;

use bench::store_model::StoreModel;
use block::{Buf, Nanos, Sector, size_text};
use objvol::{Geometry, ObjectStore, OpenOptions, Volume};
use reproduce::report::{Goal, Requirement, Section};
use reproduce::table::{Table, fixed};
use sim::{Rng, Zipf};

use super::{Args, BLOCK, in_model, options, write};

/// Volumes of the garbage: blocks, and bytes of a segment. One of usual segments, which the goals
/// are of, and one with few blocks in a segment. Both have 256 times a segment.
const USUAL: (u64, u32) = (262_144, 4 << 20);
const SMALL: (u64, u32) = (8192, 128 << 10);
/// Segments that the garbage's client fills a second at most.
const SEGMENTS_PER_S: u64 = 5;

/// Draws blocks, all alike or by Zipf; then their order is mixed.
fn draw(blocks: u64, by_zipf: bool) -> impl FnMut(&mut Rng) -> u64 {
    let ranks = by_zipf.then(|| Zipf::new(blocks, 0.99));
    move |rng| match &ranks {
        Some(ranks) => ranks.draw(rng) * 1021 % blocks,
        None => rng.below(blocks),
    }
}

/// What overwrites of a full volume cost.
struct Overwritten {
    /// Bytes sent to the store for each byte of the client.
    sent: f64,
    /// Those of checkpoints among them.
    checkpoints: f64,
    /// Live data for each byte of segments that have some, the mean of all seconds.
    live: f64,
    /// Live data for each byte that is stored, the same.
    of_stored: f64,
}

/// Overwrites blocks of a full volume.
async fn overwrite(
    store: StoreModel,
    (blocks, segment_bytes): (u64, u32),
    gc_threshold: u32,
    overwrites: u64,
    by_zipf: bool,
) -> Result<Overwritten, String> {
    let sectors = Sector(blocks * BLOCK / 512);
    let geometry = Geometry { segment_bytes, ..Geometry::new(sectors) };
    let shared: Rc<dyn ObjectStore> = Rc::new(store.clone());
    let options =
        OpenOptions { gc_threshold, checkpoint_every: 16, grace: Nanos::from_secs(1), ..options() };
    objvol::create(shared.clone(), &geometry, &options).await.map_err(|e| e.chain())?;
    let volume = Volume::open(shared, options).await.map_err(|e| e.chain())?;
    let data = Buf::zeroed(usize::try_from(BLOCK).map_err(|e| e.to_string())?);
    for block in 0..blocks {
        write(&*volume, block, &data).await?;
    }
    let (mut rng, mut next, mut before, mut checkpoints) =
        (Rng::new(7), draw(blocks, by_zipf), 0, 0);
    let (mut live, mut with_live, mut stored) = (0, 0, 0);
    let of_segment = u64::from(segment_bytes) / BLOCK;
    for n in 0..overwrites {
        if n == overwrites / 2 {
            before = store.put_bytes(); // the first half is for a steady state
            checkpoints = store.checkpoint_bytes();
        }
        write(&*volume, next(&mut rng), &data).await?;
        if (n + 1).is_multiple_of(of_segment) {
            reactor::sleep(Nanos(1_000_000_000 / SEGMENTS_PER_S)).await;
        }
        if (n + 1).is_multiple_of(of_segment * SEGMENTS_PER_S) && n >= overwrites / 2 {
            let status = volume.status();
            live += status.live_bytes;
            with_live += status.collectable_bytes;
            stored += status.stored_bytes;
        }
    }
    let written = ((overwrites - overwrites / 2) * BLOCK) as f64;
    Ok(Overwritten {
        sent: (store.put_bytes() - before) as f64 / written,
        checkpoints: (store.checkpoint_bytes() - checkpoints) as f64 / written,
        live: live as f64 / with_live as f64,
        of_stored: live as f64 / stored as f64,
    })
}

/// What is sent, and the goals.
pub(super) fn garbage(args: &Args, section: &mut Section) -> Result<(), String> {
    let mut table = Table::new(
        "overwrites of 4 KiB in a full volume of 256 segments (virtual time)",
        &["overwrites", "segments"],
        &["gc_threshold", "sent", "checkpoints", "live %", "of stored %"],
    );
    let cases = [
        ("uniform", USUAL, 75, Some(2.4)),
        ("uniform", USUAL, 60, Some(1.5)),
        ("zipf 0.99", USUAL, 75, Some(1.5)),
        ("uniform", SMALL, 75, None),
        ("uniform", SMALL, 60, None),
        ("zipf 0.99", SMALL, 75, None),
    ];
    for (name, volume, threshold, goal) in cases {
        let segment_bytes = volume.1;
        let count = if volume == USUAL { args.usual_overwrites } else { args.overwrites };
        if count == 0 {
            continue;
        }
        let by_zipf = name != "uniform";
        let cost = in_model(move |store, _| overwrite(store, volume, threshold, count, by_zipf))?;
        let Overwritten { sent, checkpoints, live, of_stored } = cost;
        let shares = [live, of_stored].map(|share| fixed(100.0 * share, 1));
        let [live, of_stored] = shares;
        let (sent_cell, checkpoints_cell) = (fixed(sent, 2), fixed(checkpoints, 4));
        let cells = [threshold.to_string(), sent_cell, checkpoints_cell, live, of_stored];
        let size = size_text(u64::from(segment_bytes));
        table.row(&[name, &size], cells);
        let key = format!("{name}_{threshold}_{segment_bytes}_sent");
        section.put(key.replace([' ', '.'], "_"), sent);
        let Some(bound) = goal else { continue };
        section.goals.push(Goal {
            what: format!("{name}, {threshold} % live: bytes sent for each byte"),
            figure: sent,
            bound,
            is_at_most: true,
            requirement: Requirement::Required,
        });
    }
    table.note("sent: bytes of all PUTs, checkpoints among them, for each byte of the client");
    table
        .note("live: of the segments with live data; stored are also those that wait for deletion");
    table.note(format!(
        "{} overwrites with segments of 4 MiB, {} with those of 128 KiB",
        args.usual_overwrites, args.overwrites
    ));
    section.tables.push(table);
    Ok(())
}
