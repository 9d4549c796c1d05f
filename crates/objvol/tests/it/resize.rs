// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A volume grows by an opening: whatever dies at any moment, the next opening finds one of the two
//! sizes, the new one if it was acknowledged, and all data.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Flags, Nanos, Op, Sector, Status};
use objvol::{Fault, Geometry, OpenOptions, OtherSize, SnapshotDevice, Volume, create};
use sim::{Machine, Rng, RunEnd, World, seeds};

use crate::bucket::{Bucket, Connection, Lies};
use crate::fixture::{Fixture, SECTORS, options};

const LARGE: u64 = 2 * SECTORS;

/// Opens the volume as one of so many sectors.
fn sized(host: &str, sectors: u64, other_size: OtherSize, fault: Option<Fault>) -> OpenOptions {
    OpenOptions { sectors: Some(Sector(sectors)), other_size, ..options(host, fault) }
}

async fn write(volume: &Rc<Volume>, at: u64, byte: u8) -> Result<(), Status> {
    let (range, bufs) = ((Sector(at), Sector(8)), Buf::copy_of(&[byte; 4096]).all().into());
    reactor::io(&**volume, Op::Write, Flags::FUA, Class::Normal, range, bufs).await
}

async fn read(volume: &Rc<Volume>, at: u64) -> Result<u8, Status> {
    let buf = Buf::alloc(4096);
    reactor::read(&**volume, Class::Normal, Sector(at), buf.all().into()).await?;
    Ok(buf.read(|data| data[0]))
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    fixture.write(&volume, 0, 8, 1).unwrap();
    let taken = volume.clone();
    fixture.run(async move { taken.create_snapshot("small", 0).await }).unwrap();
    let refused = |e: Error| (e.kind(), e.to_string().contains("the volume has 1024 sectors"));
    let plain = sized("b", LARGE, OtherSize::Refused, None);
    assert_eq!(fixture.try_open(plain).map_err(refused).unwrap_err(), (ErrorKind::Invalid, true));
    let volume = fixture.try_open(sized("b", LARGE, OtherSize::Grows, None)).unwrap();
    assert_eq!(volume.limits().capacity, Sector(LARGE));
    fixture.write(&volume, LARGE - 8, 8, 2).unwrap();
    fixture.run(async move { volume.close().await }).unwrap();
    for (sectors, other_size, opens) in [
        (SECTORS, OtherSize::Refused, false),
        (SECTORS, OtherSize::Grows, false),
        (LARGE, OtherSize::MayBeLarger, true),
        (SECTORS, OtherSize::MayBeLarger, true),
        (LARGE, OtherSize::Grows, true),
        (LARGE, OtherSize::Refused, true),
        (2 * LARGE, OtherSize::MayBeLarger, false),
        (u64::MAX, OtherSize::Grows, false),
    ] {
        let opened = fixture.try_open(sized("c", sectors, other_size, None));
        assert_eq!(opened.is_ok(), opens, "{sectors} {other_size:?}");
        let Ok(volume) = opened else { continue };
        assert_eq!(volume.limits().capacity, Sector(LARGE));
        let found = [0, LARGE - 8].map(|at| fixture.read(&volume, at, 1).unwrap()[0]);
        assert_eq!(found, [1, 2]);
    }
    // A snapshot has the size that the volume had.
    let store = Rc::new(Connection::new(&fixture.bucket));
    let small = OpenOptions { sectors: Some(Sector(SECTORS)), ..options("r", None) };
    let opened = fixture.run(async move { SnapshotDevice::open(store, "small", &small).await });
    assert_eq!(opened.unwrap().limits().capacity, Sector(SECTORS));
}

/// One writer writes and closes, or is at work; another one makes the volume larger, and is killed
/// at some moment; two more look.
fn grow_and_die(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let world = World::calm(seed);
    let (bucket, mut machine) = (Bucket::new(&world), Machine::boot(&world, 3));
    let mut rng = Rng::new(seed);
    let lies = Lies::draw(&mut rng);
    let (closes, kill_after) = (rng.chance_per_mille(500), Nanos(rng.below(3_000_000_000)));
    let store = Rc::new(Connection::new(&bucket));
    let made = machine.block_on(async move {
        let geometry =
            Geometry { sectors: Sector(SECTORS), segment_bytes: 8192, ..Geometry::new(Sector(0)) };
        create(store.clone(), &geometry, &options("maker", None)).await?;
        let volume = Volume::open(store, sized("a", SECTORS, OtherSize::Refused, None)).await?;
        write(&volume, 0, 1).await.unwrap();
        if closes { volume.close().await } else { Ok(()) }
    });
    made.map_err(|end| format!("{end:?}"))?.map_err(|e: Error| e.chain())?;
    bucket.borrow_mut().set_lies(lies);
    let (has_grown, has_written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (store, opened, acked) =
        (Rc::new(Connection::new(&bucket)), has_grown.clone(), has_written.clone());
    machine.spawn(1, async move {
        let growing = sized("b", LARGE, OtherSize::Grows, fault);
        let Ok(volume) = Volume::open(store, growing).await else { return };
        opened.set(true);
        acked.set(write(&volume, LARGE - 8, 2).await.is_ok());
        drop(volume.checkpoint().await);
    });
    let until = world.borrow().now() + kill_after;
    if machine.run(|| world.borrow().now() >= until) != RunEnd::Until {
        return Err("the machine stands still".into());
    }
    machine.kill_process(1);
    for host in ["c", "d"] {
        let store = Rc::new(Connection::new(&bucket));
        let found = machine.block_on(async move {
            let volume = Volume::open(store, options(host, None)).await?;
            let size = volume.limits().capacity.0;
            let mut found = vec![read(&volume, 0).await.unwrap()];
            if size == LARGE {
                found.push(read(&volume, LARGE - 8).await.unwrap());
            }
            volume.close().await?;
            Ok((size, found))
        });
        let found: Result<_, Error> = found.map_err(|end| format!("{end:?}"))?;
        let (size, found) = found.map_err(|e| format!("{host}: {}", e.chain()))?;
        let is_right = match (size, &found[..]) {
            (SECTORS, [1]) => !has_grown.get(),
            (LARGE, [1, last]) => *last == 2 || *last == 0 && !has_written.get(),
            _ => false,
        };
        if !is_right {
            let grown = (has_grown.get(), has_written.get());
            return Err(format!("{host}: {size} sectors, {found:?}; grown, written: {grown:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_growth_that_dies_leaves_one_of_two_sizes() {
    seeds::run(200, |seed| grow_and_die(seed, None));
}

#[test]
fn a_size_that_is_not_in_the_manifest_is_caught() {
    let planted = |seed| grow_and_die(seed, Some(Fault::GrowInMemory));
    assert!(seeds::first_failure(0..200, planted).is_some());
}
