// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small volume in a calm world, for tests of a few steps in the right order.
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, Error, Flags, Nanos, Op, Sector, Status};
use objvol::{Depth, Fault, Geometry, OpenOptions, Volume, VolumeReport, check, create};
use sim::{Machine, World, WorldRef};

use crate::bucket::{Bucket, BucketRef, Connection};

pub(crate) const SECTORS: u64 = 1024;
const GEOMETRY: Geometry = Geometry { sectors: Sector(SECTORS), segment_bytes: 8192, window: 4 };

/// World, bucket with an empty volume, and machine.
pub(crate) struct Fixture {
    pub(crate) world: WorldRef,
    pub(crate) bucket: BucketRef,
    pub(crate) machine: Machine,
}

/// Options that checkpoint and collect only when they are asked to.
pub(crate) fn options(host: &str, fault: Option<Fault>) -> OpenOptions {
    OpenOptions {
        checkpoint_every: 1_000_000,
        checkpoint_worth: 0,
        gc_threshold: 0,
        grace: Nanos::ZERO,
        take_over: true,
        single_writer: fault == Some(Fault::BelieveExists),
        planted: fault.into(),
        ..OpenOptions::new(host, 1_700_000_000)
    }
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::of_seed(1)
    }

    pub(crate) fn of_seed(seed: u64) -> Fixture {
        let world = World::calm(seed);
        let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
        let fixture = Fixture { world, bucket, machine };
        fixture.create(&GEOMETRY).unwrap();
        fixture
    }

    pub(crate) fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.machine.block_on(future).unwrap()
    }

    pub(crate) fn sleep(&self, time: Nanos) {
        self.run(async move { reactor::sleep(time).await });
    }

    pub(crate) fn create(&self, geometry: &Geometry) -> Result<(), Error> {
        let (store, geometry) = (Connection::new(&self.bucket), geometry.clone());
        self.run(async move { create(Rc::new(store), &geometry, &options("maker", None)).await })
    }

    pub(crate) fn try_open(&self, options: OpenOptions) -> Result<Rc<Volume>, Error> {
        let store = Connection::new(&self.bucket);
        self.run(async move { Volume::open(Rc::new(store), options).await })
    }

    pub(crate) fn open(&self, host: &str, fault: Option<Fault>) -> Rc<Volume> {
        self.try_open(options(host, fault)).unwrap()
    }

    /// What a check finds; it changes nothing.
    pub(crate) fn check(&self, depth: Depth) -> VolumeReport {
        let before = self.names("");
        let store = Rc::new(Connection::new(&self.bucket));
        let report = self
            .run(async move { check(store, &options("inspector", None), depth, &|_, _| ()).await });
        assert_eq!(self.names(""), before, "a check changes nothing");
        report.unwrap()
    }

    fn io(&self, volume: &Rc<Volume>, op: Op, at: u64, len: u64, bufs: Bufs) -> Result<(), Status> {
        let device: Rc<dyn BlockDevice> = volume.clone();
        let range = (Sector(at), Sector(len));
        self.run(async move {
            reactor::io(&*device, op, Flags::empty(), Class::Normal, range, bufs).await
        })
    }

    /// Writes `len` sectors of this byte.
    pub(crate) fn write(
        &self,
        volume: &Rc<Volume>,
        at: u64,
        len: u64,
        byte: u8,
    ) -> Result<(), Status> {
        let data = vec![byte; usize::try_from(len).unwrap() * 512];
        self.io(volume, Op::Write, at, len, Buf::copy_of(&data).all().into())
    }

    pub(crate) fn discard(&self, volume: &Rc<Volume>, at: u64, len: u64) -> Result<(), Status> {
        self.io(volume, Op::Discard, at, len, Bufs::new())
    }

    pub(crate) fn flush(&self, volume: &Rc<Volume>) -> Result<(), Status> {
        self.io(volume, Op::Flush, 0, 0, Bufs::new())
    }

    /// The first byte of each sector.
    pub(crate) fn read(&self, volume: &Rc<Volume>, at: u64, len: u64) -> Result<Vec<u8>, Status> {
        let buf = Buf::alloc(usize::try_from(len).unwrap() * 512);
        self.io(volume, Op::Read, at, len, buf.all().into())?;
        Ok(buf.read(|data| data.chunks(512).map(|sector| sector[0]).collect()))
    }

    /// Names of a folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let all = self.bucket.borrow_mut().names();
        all.into_iter().filter(|name| name.starts_with(folder)).collect()
    }
}
