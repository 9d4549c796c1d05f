// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a table line, in a calm world: what it makes, refuses and says.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use block::{
    BlockDevice, Budget, Buf, CacheAbove, Class, Error, ErrorKind, Flags, LocalFuture, Nanos, Op,
    Sector, Status, Target,
};
use objvol::{Environment, TargetConfig, VolumeEvent, VolumeTarget};
use sim::{Machine, World, WorldRef};

use crate::bucket::{Bucket, BucketRef, Connection};

const LEN: Sector = Sector(1024);

/// World, bucket and machine, without a volume.
struct Stage {
    world: WorldRef,
    bucket: BucketRef,
    machine: Machine,
}

/// A target, and what an operator has heard.
#[derive(Clone)]
struct Subject {
    target: Rc<VolumeTarget>,
    heard: Rc<RefCell<Vec<VolumeEvent>>>,
}

impl Stage {
    fn new() -> Stage {
        let world = World::calm(1);
        let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
        Stage { world, bucket, machine }
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.machine.block_on(future).unwrap()
    }

    /// A target of `len` sectors of this host.
    fn target(&self, host: &str, options: &str, len: Sector) -> Subject {
        let words: Vec<&str> = options.split(' ').filter(|word| !word.is_empty()).collect();
        let words: Vec<&str> = std::iter::once("sim:").chain(words).collect();
        let config = TargetConfig::parse(&words).unwrap();
        let environment = Environment { host: host.into(), clock: || 1_700_000_000 };
        let store = Rc::new(Connection::new(&self.bucket));
        let target = VolumeTarget::new("vol", config, store, len, environment).unwrap();
        let heard = Rc::new(RefCell::new(Vec::new()));
        let hear = heard.clone();
        target.on_event(move |event| hear.borrow_mut().push(event.clone()));
        Subject { target, heard }
    }

    fn resume(&self, subject: &Subject) -> Result<(), Error> {
        self.run(subject.target.clone().resume())
    }

    fn suspend(&self, subject: &Subject) -> Result<(), Error> {
        self.run(subject.target.clone().suspend())
    }

    fn io(&self, subject: &Subject, op: Op, data: Option<Buf>) -> Result<(), Status> {
        let device: Rc<dyn BlockDevice> = subject.target.clone();
        let range =
            (Sector(8), data.as_ref().map_or(Sector::ZERO, |d| Sector(d.len() as u64 / 512)));
        let bufs = data.map(Into::into).unwrap_or_default();
        let class = Class::Normal;
        self.run(async move { reactor::io(&*device, op, Flags::empty(), class, range, bufs).await })
    }

    fn write(&self, subject: &Subject, byte: u8) -> Result<(), Status> {
        self.io(subject, Op::Write, Some(Buf::copy_of(&[byte; 4096])))
    }

    fn read(&self, subject: &Subject) -> Result<u8, Status> {
        let buf = Buf::alloc(4096);
        self.io(subject, Op::Read, Some(buf.clone()))?;
        Ok(buf.read(|data| data[4095]))
    }
}

fn status_word(subject: &Subject) -> String {
    subject.target.status().split(' ').next().unwrap().to_owned()
}

#[test]
fn nothing_is_asked_before_the_first_resume() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    assert_eq!(status_word(&subject), "closed");
    assert_eq!(stage.bucket.borrow().counts().lists, 0);
    assert_eq!(stage.write(&subject, 1), Err(Status::Stale));
}

#[test]
fn an_empty_prefix_gets_a_volume_and_the_operator_is_told() {
    let stage = Stage::new();
    let subject = stage.target("a", "2 segment_size 64K", LEN);
    stage.resume(&subject).unwrap();
    assert_eq!(*subject.heard.borrow(), [VolumeEvent::Made(LEN)]);
    stage.write(&subject, 7).unwrap();
    stage.suspend(&subject).unwrap();
    stage.resume(&subject).unwrap();
    assert_eq!(stage.read(&subject), Ok(7));
    assert_eq!(subject.heard.borrow().len(), 1, "made once");
    let get = |name: &str| stage.run(subject.target.clone().get_attribute(name.into())).unwrap();
    assert_eq!(get("stored_segment_size"), "65536");
    assert_eq!(get("epoch"), "3");
    stage.suspend(&subject).unwrap();
    // The volume keeps its own, whatever a line says.
    let other = stage.target("a", "2 segment_size 1M", LEN);
    stage.resume(&other).unwrap();
    assert_eq!(stage.read(&other), Ok(7));
    let get = |name: &str| stage.run(other.target.clone().get_attribute(name.into())).unwrap();
    assert_eq!(get("stored_segment_size"), "65536");
}

#[test]
fn a_foreign_prefix_is_refused_and_nothing_is_written() {
    let stage = Stage::new();
    stage.bucket.borrow_mut().force("photos/cat.jpg", Some(vec![1]));
    let subject = stage.target("a", "", LEN);
    let e = stage.resume(&subject).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
    assert!(e.to_string().contains("photos/cat.jpg"), "{e}");
    assert_eq!(stage.bucket.borrow().counts().puts, 0);
}

#[test]
fn another_length_than_the_volumes_is_refused() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    stage.resume(&subject).unwrap();
    stage.suspend(&subject).unwrap();
    let puts = stage.bucket.borrow().counts().puts;
    let other = stage.target("a", "", Sector(2048));
    let e = stage.resume(&other).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    assert!(e.to_string().contains("the volume has 1024 sectors, not 2048"), "{e}");
    // Only those of the probe, three rounds of nine: no epoch was taken.
    assert_eq!(stage.bucket.borrow().counts().puts, puts + 27);
}

#[test]
fn a_longer_line_in_the_place_of_the_same_one_grows_the_volume() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    stage.resume(&subject).unwrap();
    stage.write(&subject, 5).unwrap();
    stage.suspend(&subject).unwrap();
    let longer = stage.target("a", "", Sector(2048));
    longer.target.allow_growth();
    stage.resume(&longer).unwrap();
    assert_eq!(stage.read(&longer), Ok(5));
    stage.suspend(&longer).unwrap();
    // Had the growth failed late, the target of before would go on.
    stage.resume(&subject).unwrap();
    assert_eq!(stage.read(&subject), Ok(5));
    stage.suspend(&subject).unwrap();
    // A new one of the old length is a mistake.
    let e = stage.resume(&stage.target("a", "", LEN)).unwrap_err();
    assert!(e.to_string().contains("has 2048 sectors, not 1024: it may have been"), "{e}");
}

#[test]
fn a_store_without_conditional_writes_needs_single_writer() {
    let stage = Stage::new();
    stage.bucket.borrow_mut().set_overwrites();
    let e = stage.resume(&stage.target("a", "", LEN)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotSupported, "{e}");
    assert!(e.to_string().contains("single_writer"), "{e}");
    assert_eq!(stage.bucket.borrow_mut().names(), Vec::<String>::new());
    stage.resume(&stage.target("a", "1 single_writer", LEN)).unwrap();
}

#[test]
fn another_host_needs_take_over_and_the_loser_is_fenced() {
    let stage = Stage::new();
    let first = stage.target("one", "", LEN);
    stage.resume(&first).unwrap();
    stage.write(&first, 1).unwrap();
    stage.io(&first, Op::Flush, None).unwrap();
    stage.write(&first, 2).unwrap();
    let e = stage.resume(&stage.target("two", "", LEN)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert!(e.to_string().contains("host one has the volume open"), "{e}");
    let second = stage.target("two", "1 take_over", LEN);
    stage.resume(&second).unwrap();
    assert_eq!(stage.read(&second), Ok(1), "what was flushed");
    stage.write(&second, 3).unwrap();

    // The loser learns it at its next flush.
    assert_eq!(stage.io(&first, Op::Flush, None), Err(Status::Stale));
    stage.run(reactor::sleep(Nanos::from_secs(1)));
    assert_eq!(stage.read(&first), Err(Status::Stale));
    assert_eq!(stage.write(&first, 4), Err(Status::Stale));
    let status = first.target.status();
    assert!(status.starts_with("fenced ") && status.contains("host two"), "{status}");
    assert_eq!(first.target.problems().len(), 1);
    let fence = match &first.heard.borrow()[..] {
        [VolumeEvent::Made(_), VolumeEvent::Fenced(fence)] => fence.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((fence.host.as_str(), fence.epoch), ("two", 3));

    // It can be removed, and does not come back by a resume: clients that wait for it hear that.
    stage.suspend(&first).unwrap();
    assert_eq!(first.heard.borrow().last(), Some(&VolumeEvent::LeftFenced));
    stage.resume(&first).unwrap();
    assert_eq!(stage.read(&first), Err(Status::Stale));
    assert_eq!(stage.write(&first, 4), Err(Status::Stale));
    assert_eq!(first.target.fenced_by(), Some(fence.to_string()));
    assert_eq!(status_word(&first), "fenced");
    assert_eq!(stage.read(&second), Ok(3));
}

#[test]
fn an_opening_gives_up_on_a_store_that_is_away_a_volume_not() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    let minutes = |n: u64| stage.world.borrow().now() + Nanos::from_secs(60 * n);
    let until = minutes(10);
    stage.bucket.borrow_mut().set_outage(until);
    let e = stage.resume(&subject).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    assert!(e.to_string().contains("no answer for 6"), "{e}");
    assert!(stage.world.borrow().now() < until);
    stage.bucket.borrow_mut().set_outage(Nanos::ZERO);
    stage.resume(&subject).unwrap();
    stage.write(&subject, 9).unwrap();
    let until = minutes(10);
    stage.bucket.borrow_mut().set_outage(until);
    stage.io(&subject, Op::Flush, None).unwrap();
    assert!(stage.world.borrow().now() >= until);
    let repeated = stage.run(subject.target.clone().get_attribute("repeated_requests".into()));
    assert!(repeated.unwrap().number() > Some(10));
}

#[test]
fn the_map_is_in_the_budget_while_the_volume_is_open() {
    let stage = Stage::new();
    let budget = Arc::new(Budget::new(300 << 20, "a test"));
    let free = budget.clone();
    stage.run(async move { reactor::set_memory(budget) });
    let subject = stage.target("a", "2 map_memory 512M", LEN);
    let e = stage.resume(&subject).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoMemory, "{e}");
    assert!(e.to_string().contains("vol: the options map_memory and read_ahead"), "{e}");
    assert_eq!(stage.bucket.borrow().counts().puts, 0, "nothing is written");
    let subject = stage.target("a", "", LEN);
    stage.resume(&subject).unwrap();
    assert_eq!(free.free(), (300 - 256 - 16) << 20);
    stage.suspend(&subject).unwrap();
    assert_eq!(free.free(), 300 << 20);
}

#[test]
fn a_suspend_gives_up_on_a_store_that_is_away_and_loses_nothing() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    stage.resume(&subject).unwrap();
    stage.write(&subject, 9).unwrap();
    let began = stage.world.borrow().now();
    stage.bucket.borrow_mut().set_outage(began + Nanos::from_secs(600));
    let e = stage.suspend(&subject).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    assert!(e.to_string().contains("the store does not work, and 4.5 KiB are not in it"), "{e}");
    assert!(stage.world.borrow().now() < began + Nanos::from_secs(70));
    // A resume goes on with what is there; another suspend succeeds when the store is back.
    stage.resume(&subject).unwrap();
    assert_eq!(stage.read(&subject), Ok(9));
    stage.suspend(&subject).unwrap_err();
    stage.run(reactor::sleep(Nanos::from_secs(600)));
    stage.suspend(&subject).unwrap();
    assert_eq!(status_word(&subject), "closed");
    let again = stage.target("a", "", LEN);
    stage.resume(&again).unwrap();
    assert_eq!(stage.read(&again), Ok(9));
}

#[test]
fn a_close_ends_though_the_store_goes_away_meanwhile() {
    for after in (0..400).step_by(20) {
        let stage = Stage::new();
        let subject = stage.target("a", "", LEN);
        stage.resume(&subject).unwrap();
        stage.write(&subject, 9).unwrap();
        let (bucket, began) = (stage.bucket.clone(), stage.world.borrow().now());
        let stopping = subject.target.clone().suspend();
        stage.run(async move {
            reactor::spawn(async move {
                reactor::sleep(Nanos::from_millis(after)).await;
                bucket.borrow_mut().set_outage(Nanos(u64::MAX));
            });
            drop(stopping.await);
        });
        let took = stage.world.borrow().now().saturating_sub(began);
        assert!(took < Nanos::from_secs(150), "after {after} ms: {took:?}");
    }
}

#[test]
fn messages_and_attributes_name_what_is_allowed() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    let message = |word: &str| stage.run(subject.target.clone().message(vec![word.into()]));
    assert_eq!(message("checkpoint").unwrap_err().kind(), ErrorKind::Busy);
    stage.resume(&subject).unwrap();
    stage.write(&subject, 1).unwrap();
    let checkpoints = |stage: &Stage| {
        let names = stage.bucket.borrow_mut().names();
        names.into_iter().filter(|name| name.starts_with("checkpoint/")).count()
    };
    assert_eq!(checkpoints(&stage), 0);
    assert_eq!(message("checkpoint").unwrap(), "");
    assert_eq!(checkpoints(&stage), 1);
    let e = message("collect").unwrap_err().to_string();
    assert!(e.contains("unknown message `collect`: `checkpoint`, `snapshot NAME`"), "{e}");
    let set = |name: &str| {
        stage.run(subject.target.clone().set_attribute(name.into(), "1".into())).unwrap_err().kind()
    };
    assert_eq!([set("grace"), set("extents"), set("x")], {
        [ErrorKind::Denied, ErrorKind::Denied, ErrorKind::NotFound]
    });
    for spec in subject.target.attributes() {
        stage.run(subject.target.clone().get_attribute(spec.name.into())).unwrap();
    }
    let metrics = subject.target.metrics();
    assert!(metrics.iter().any(|(spec, value)| spec.name == "put_requests" && *value > 2));
}

#[test]
fn what_would_be_lost_with_the_machine_is_shown() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    stage.resume(&subject).unwrap();
    let get = |name: &str| stage.run(subject.target.clone().get_attribute(name.into())).unwrap();
    let behind =
        || (get("behind_bytes").number().unwrap(), get("behind_seconds").number().unwrap());
    assert_eq!(behind(), (0, 0));
    stage.write(&subject, 1).unwrap();
    stage.run(async { reactor::sleep(Nanos::from_millis(2500)).await });
    stage.write(&subject, 2).unwrap();
    assert_eq!(behind(), (4096, 3), "the last of two writes of the same sectors");
    stage.io(&subject, Op::Flush, None).unwrap();
    assert_eq!(behind(), (0, 0));
}

/// OV-TG6: through a suspend, another table, and another process meanwhile.
#[test]
fn a_cache_above_goes_on_with_the_same_lineage_only() {
    let stage = Stage::new();
    let first = stage.target("a", "", LEN);
    stage.resume(&first).unwrap();
    let record = first.target.clone().cache_record().unwrap();
    let origin = first.target.identity().unwrap();
    let cache = CacheAbove { uuid: [0xab; 16], device: "/dev/b".into(), origin };
    stage.run(record.clone().attach(cache)).unwrap();
    stage.write(&first, 1).unwrap();
    stage.suspend(&first).unwrap();
    stage.resume(&first).unwrap();
    stage.write(&first, 2).unwrap();
    stage.suspend(&first).unwrap();
    // With a new table.
    let second = stage.target("a", "2 grace 1", LEN);
    stage.resume(&second).unwrap();
    assert_eq!(
        (stage.write(&second, 3), &*status_word(&second)),
        (Err(Status::ReadOnly), "reserved")
    );
    assert!(second.target.problems()[0].contains("on a:/dev/b, attached at 1700000000"));
    stage.run(second.target.clone().take_over(first.target.clone()));
    assert_eq!((stage.write(&second, 3), &*status_word(&second)), (Ok(()), "open"));
    stage.suspend(&second).unwrap();
    // Another process gives the cache up.
    let other = stage.target("b", "2 without_cache abababababababababababababababab", LEN);
    stage.resume(&other).unwrap();
    assert!(matches!(other.heard.borrow()[..], [VolumeEvent::GaveUp(_)]));
    stage.write(&other, 4).unwrap();
    stage.suspend(&other).unwrap();
    let e = stage.resume(&second).unwrap_err().to_string();
    assert!(e.contains("its volume was opened without it, or repaired"), "{e}");
    let third = stage.target("a", "", LEN);
    stage.resume(&third).unwrap();
    stage.run(third.target.clone().take_over(second.target.clone()));
    assert_eq!((stage.write(&third, 5), stage.read(&third)), (Err(Status::ReadOnly), Ok(4)));
    assert!(matches!(third.heard.borrow()[..], [VolumeEvent::CacheRefused(_)]));
}

/// OV-A6
#[test]
fn a_change_of_the_record_gives_up_on_a_store_that_is_away() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    stage.resume(&subject).unwrap();
    let record = subject.target.clone().cache_record().unwrap();
    let origin = subject.target.identity().unwrap();
    let cache = CacheAbove { uuid: [0xab; 16], device: "/dev/b".into(), origin };
    let now = || stage.world.borrow().now();
    let gives_up = |change: LocalFuture<Result<(), Error>>, why: &str| {
        let began = now();
        stage.bucket.borrow_mut().set_outage(began + Nanos::from_secs(600));
        let e = stage.run(change).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io, "{}", e.chain());
        assert!(e.chain().contains(why), "{}", e.chain());
        let took = now().saturating_sub(began);
        assert!(took < Nanos::from_secs(75), "{took:?}");
        stage.bucket.borrow_mut().set_outage(Nanos::ZERO);
    };
    let uuid = cache.uuid;
    gives_up(record.clone().attach(cache.clone()), "is not recorded, and must not go on");
    stage.run(record.clone().attach(cache.clone())).unwrap();
    // Its record, and what it has written.
    gives_up(record.clone().release(uuid), "no answer for 6");
    stage.run(record.clone().attach(cache.clone())).unwrap();
    stage.write(&subject, 1).unwrap();
    gives_up(record.clone().release(uuid), "the write cache above stays recorded");
    stage.write(&subject, 2).unwrap();
    stage.run(record.release(uuid)).unwrap();
    stage.suspend(&subject).unwrap();
    let again = stage.target("a", "", LEN);
    stage.resume(&again).unwrap();
    assert_eq!((stage.read(&again), &*status_word(&again)), (Ok(2), "open"));
}

#[test]
fn a_closed_volume_records_no_cache() {
    let stage = Stage::new();
    let subject = stage.target("a", "", LEN);
    assert_eq!(subject.target.identity(), None);
    let record = subject.target.clone().cache_record().unwrap();
    let cache = CacheAbove { uuid: [1; 16], device: String::new(), origin: String::new() };
    let e = stage.run(record.clone().attach(cache)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy);
    assert_eq!(stage.run(record.release([1; 16])).unwrap_err().kind(), ErrorKind::Busy);
}
