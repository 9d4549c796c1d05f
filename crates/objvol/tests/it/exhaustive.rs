// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All interleavings of the requests of three writers with few switches between them: one has the
//! volume and writes, two take it over. A writer that is left for others stands still, or has died
//! with a request under way that lands whenever the writer is returned to.
//!
//! ```text
//!   writers ── requests, parked ──▶ the explorer executes one ──▶ objects
//!              choice 0: the first of the writer at work          costs nothing
//!              any other: another request, or another writer      costs one switch
//! ```
//!
//! Small scope: what goes wrong with many writers goes wrong with three and a few switches
//! (context-bounded search: Musuvathi and Qadeer 2007).
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, Flags, LocalFuture, Nanos, Op, Sector};
use objvol::{
    Fault, Geometry, Listing, ObjectStore, OpenOptions, SnapshotDevice, StoreError, Volume, create,
    snapshots,
};
use reactor::WaitList;
use sim::{Machine, RunEnd, World, seeds};

use crate::judge::{self, BLOCK_BYTES, BLOCK_SECTORS, Change, WriterLog, fill, stamps};

const WRITERS: usize = 3;
const BLOCKS: u64 = 3;

/// What each writer does once it has read the volume.
#[derive(Clone, Copy, Debug)]
struct Script {
    /// The blocks that it writes, each flushed; the first beside the second.
    writes: &'static [u64],
    /// Whether it writes a checkpoint then, and deletes what that makes garbage.
    collects: bool,
    /// Whether it makes a snapshot before that.
    takes_snapshot: bool,
}

const FLUSHES: Script = Script { writes: &[0, 1, 2], collects: false, takes_snapshot: false };
const GARBAGE: Script = Script { writes: &[0, 0, 1], collects: true, takes_snapshot: false };
const SNAPSHOT: Script = Script { writes: &[0, 0], collects: true, takes_snapshot: true };

enum Request {
    Put { name: String, object: Rc<[u8]> },
    Get { name: String, range: Range<u64> },
    List { prefix: String, after: String },
    Delete { name: String },
}

/// What a request comes to; each kind has one of these.
#[derive(Clone)]
enum Answer {
    Done(Result<(), StoreError>),
    Bytes(Result<Rc<[u8]>, StoreError>),
    Page(Listing),
}

struct Parked {
    writer: usize,
    request: Request,
    answer: Rc<RefCell<Option<Answer>>>,
}

/// Objects, and the requests that wait for the explorer.
#[derive(Default)]
struct StepStore {
    objects: RefCell<BTreeMap<String, Rc<[u8]>>>,
    parked: RefCell<Vec<Parked>>,
    answered: WaitList,
    /// Requests are executed at once: for what comes before and after.
    is_open: Cell<bool>,
}

impl StepStore {
    fn execute(&self, request: Request) -> Answer {
        let mut objects = self.objects.borrow_mut();
        match request {
            Request::Put { name, object } => {
                if objects.contains_key(&name) {
                    return Answer::Done(Err(StoreError::Exists));
                }
                objects.insert(name, object);
                Answer::Done(Ok(()))
            }
            Request::Get { name, range } => {
                let bytes = objects.get(&name).and_then(|object| {
                    let end = usize::try_from(range.end.min(object.len() as u64)).unwrap();
                    object.get(usize::try_from(range.start).unwrap()..end)
                });
                let bytes = bytes.filter(|bytes| !bytes.is_empty());
                Answer::Bytes(bytes.map(Rc::from).ok_or(StoreError::NotFound))
            }
            Request::List { prefix, after } => {
                let all = objects.iter().filter(|(n, _)| n.starts_with(&prefix) && **n > after);
                let objects = all.map(|(name, object)| (name.clone(), object.len() as u64));
                Answer::Page(Listing { objects: objects.collect(), has_more: false })
            }
            Request::Delete { name } => {
                objects.remove(&name);
                Answer::Done(Ok(()))
            }
        }
    }

    async fn ask(&self, writer: usize, request: Request) -> Answer {
        if self.is_open.get() {
            return self.execute(request);
        }
        let answer = Rc::new(RefCell::new(None));
        self.parked.borrow_mut().push(Parked { writer, request, answer: answer.clone() });
        self.answered.wait_for(|| answer.borrow().is_some()).await;
        answer.take().expect("that ended the wait")
    }

    /// Indices of parked requests: those of `writer` first.
    fn candidates(&self, writer: usize) -> Vec<usize> {
        let parked = self.parked.borrow();
        let mut candidates: Vec<usize> =
            (0..parked.len()).filter(|&n| parked[n].writer == writer).collect();
        for other in (0..WRITERS).filter(|&other| other != writer) {
            candidates.extend(parked.iter().position(|parked| parked.writer == other));
        }
        candidates
    }
}

/// A writer's way to the store.
struct Connection {
    store: Rc<StepStore>,
    writer: usize,
}

impl Connection {
    fn ask(&self, request: Request) -> impl Future<Output = Answer> + 'static {
        let (store, writer) = (self.store.clone(), self.writer);
        async move { store.ask(writer, request).await }
    }

    fn change(&self, request: Request) -> LocalFuture<Result<(), StoreError>> {
        let answer = self.ask(request);
        Box::pin(async move {
            let Answer::Done(done) = answer.await else { unreachable!("a change was asked for") };
            done
        })
    }
}

impl ObjectStore for Connection {
    fn name(&self) -> &str {
        "sim://steps"
    }

    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>> {
        let object = object.read(|bytes| bytes.into());
        self.change(Request::Put { name: name.to_owned(), object })
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        let answer = self.ask(Request::Get { name: name.to_owned(), range });
        Box::pin(async move {
            let Answer::Bytes(bytes) = answer.await else { unreachable!("bytes were asked for") };
            Ok(Buf::copy_of(&bytes?))
        })
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        let answer = self.ask(Request::List { prefix, after });
        Box::pin(async move {
            let Answer::Page(page) = answer.await else { unreachable!("a page was asked for") };
            Ok(page)
        })
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        self.change(Request::Delete { name: name.to_owned() })
    }
}

/// What a writer did, and whether it has ended.
#[derive(Default)]
struct Progress {
    log: RefCell<WriterLog>,
    has_ended: Cell<bool>,
    failure: RefCell<Option<String>>,
    /// What its snapshot has, if that was acknowledged.
    snapshot: RefCell<Option<Vec<u64>>>,
}

fn options(writer: usize, fault: Option<Fault>) -> OpenOptions {
    OpenOptions {
        take_over: true,
        single_writer: true, // no steps for the probe
        grace: Nanos::ZERO,
        planted: fault.into(),
        ..OpenOptions::new(&format!("host{writer}"), 0)
    }
}

/// Opens the volume, reads it, and does what the script says.
async fn work(
    store: Rc<StepStore>,
    writer: usize,
    (script, fault): (Script, Option<Fault>),
    progress: Rc<Progress>,
) {
    let worked = try_work(store, writer, (script, fault), progress.clone()).await;
    if let Err(why) = worked {
        *progress.failure.borrow_mut() = why;
    }
    progress.has_ended.set(true);
}

/// An error without a text is the end of a fenced writer.
async fn try_work(
    store: Rc<StepStore>,
    writer: usize,
    (script, fault): (Script, Option<Fault>),
    progress: Rc<Progress>,
) -> Result<(), Option<String>> {
    let opened = Volume::open(Rc::new(Connection { store, writer }), options(writer, fault)).await;
    let volume = match opened {
        Ok(volume) => volume,
        Err(e) if e.kind() == block::ErrorKind::Busy => return Err(None),
        Err(e) => return Err(Some(e.chain())),
    };
    let device: Rc<dyn BlockDevice> = volume.clone();
    let buf = Buf::alloc(usize::try_from(BLOCKS).unwrap() * BLOCK_BYTES);
    let read = reactor::read(&*device, Class::Foreground, Sector(0), buf.all().into()).await;
    read.map_err(|_| None)?;
    {
        let mut log = progress.log.borrow_mut();
        log.epoch = volume.status().epoch;
        log.view = Some(buf.read(|data| stamps(data, 0)).map_err(Some)?);
    }
    for (nth, &block) in (0..).zip(script.writes) {
        let stamp = writer as u64 * 10 + nth + 1;
        let data = Buf::alloc(BLOCK_BYTES);
        data.write(|data| fill(data, block, stamp));
        let changes = {
            let mut log = progress.log.borrow_mut();
            log.changes.push(Change { blocks: block..block + 1, stamp });
            log.changes.len()
        };
        let range = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
        let bufs: Bufs = data.all().into();
        let written =
            reactor::io(&*device, Op::Write, Flags::empty(), Class::Normal, range, bufs).await;
        written.map_err(|_| None)?;
        let (device, progress) = (device.clone(), progress.clone());
        let flush = async move {
            let flushed = reactor::flush(&*device, Class::Foreground).await;
            if flushed.is_ok() {
                let mut log = progress.log.borrow_mut();
                log.flushed = log.flushed.max(changes);
            }
            flushed.map_err(|_| None)
        };
        if nth == 0 {
            // The second segment is sent beside the first.
            reactor::spawn(async move { drop(flush.await) });
        } else {
            flush.await?;
        }
    }
    if script.takes_snapshot {
        let contents = progress.log.borrow().contents();
        volume.create_snapshot(&snapshot_name(writer), 0).await.map_err(|_| None)?;
        *progress.snapshot.borrow_mut() = Some(contents);
    }
    if script.collects {
        volume.checkpoint().await.map_err(|_| None)?;
        // The housekeeping task deletes.
        reactor::sleep(Nanos::from_secs(2)).await;
    }
    Ok(())
}

fn snapshot_name(writer: usize) -> String {
    format!("of-{writer}")
}

/// Each snapshot that is listed can be read, and those that were acknowledged are.
async fn read_snapshots(
    store: Rc<StepStore>,
    acknowledged: Vec<Option<Vec<u64>>>,
) -> Result<(), String> {
    let store: Rc<dyn ObjectStore> = Rc::new(Connection { store, writer: WRITERS });
    let options = options(WRITERS, None);
    let listed = snapshots(store.clone(), &options).await.map_err(|e| e.chain())?;
    let names: Vec<String> = listed.into_iter().map(|snapshot| snapshot.name).collect();
    for (writer, contents) in acknowledged.into_iter().enumerate() {
        let name = snapshot_name(writer);
        if !names.contains(&name) {
            if contents.is_some() {
                return Err(format!("snapshot {name} has gone"));
            }
            continue;
        }
        let opened = SnapshotDevice::open(store.clone(), &name, &options).await;
        let snapshot = opened.map_err(|e| format!("{name}: {}", e.chain()))?;
        let buf = Buf::alloc(usize::try_from(BLOCKS).unwrap() * BLOCK_BYTES);
        let read = reactor::read(&*snapshot, Class::Normal, Sector(0), buf.all().into()).await;
        read.map_err(|status| format!("{name}: {status}"))?;
        let found = buf.read(|data| stamps(data, 0))?;
        if contents.as_ref().is_some_and(|contents| *contents != found) {
            return Err(format!("snapshot {name} has {found:?}, and was made of {contents:?}"));
        }
    }
    Ok(())
}

/// The steps of a run: how many choices there were, and which was taken.
type Trace = Vec<(usize, usize)>;

/// Runs with these choices, then with the first ones.
fn run(choices: &[usize], script: Script, fault: Option<Fault>) -> (Trace, Result<(), String>) {
    let world = World::calm(1);
    let machine = Machine::boot(&world, u16::try_from(WRITERS).unwrap() + 1);
    let store = Rc::new(StepStore::default());
    store.is_open.set(true);
    let geometry =
        Geometry { sectors: Sector(BLOCKS * BLOCK_SECTORS), segment_bytes: 4096, window: 2 };
    let maker = Connection { store: store.clone(), writer: 0 };
    let made =
        machine.block_on(async move { create(Rc::new(maker), &geometry, &options(9, None)).await });
    made.unwrap().unwrap();
    store.is_open.set(false);
    let all: Vec<Rc<Progress>> = (0..WRITERS).map(|_| Rc::default()).collect();
    for (writer, progress) in all.iter().enumerate() {
        let core = u16::try_from(writer).unwrap();
        machine.spawn(core, work(store.clone(), writer, (script, fault), progress.clone()));
    }
    let mut trace = Trace::new();
    let mut writer = 0;
    loop {
        let has_parked = |n: usize| store.parked.borrow().iter().any(|p| p.writer == n);
        let is_ready = || (0..WRITERS).all(|n| has_parked(n) || all[n].has_ended.get());
        let ended = machine.run(is_ready);
        assert_eq!(ended, RunEnd::Until, "the writers hang");
        if all[writer].has_ended.get() {
            let Some(next) = (0..WRITERS).find(|&n| !all[n].has_ended.get()) else { break };
            writer = next;
        }
        let candidates = store.candidates(writer);
        let choice = choices.get(trace.len()).copied().unwrap_or(0);
        trace.push((candidates.len(), choice));
        let parked = store.parked.borrow_mut().remove(candidates[choice]);
        writer = parked.writer;
        let answer = store.execute(parked.request);
        machine.on(u16::try_from(writer).unwrap(), || {
            *parked.answer.borrow_mut() = Some(answer);
            store.answered.wake_all();
        });
        assert!(trace.len() < 1000, "the writers go on for ever");
    }
    store.is_open.set(true);
    let reader = Rc::new(Progress::default());
    machine.spawn(3, work(store.clone(), WRITERS, (FLUSHES, None), reader.clone()));
    machine.run(|| reader.has_ended.get());
    let failure = |progress: &Rc<Progress>| progress.failure.borrow().clone();
    if let Some(why) = all.iter().chain([&reader]).find_map(failure) {
        return (trace, Err(why));
    }
    let acknowledged = all.iter().map(|progress| progress.snapshot.borrow().clone()).collect();
    let read = Rc::new(RefCell::new(None));
    let (of, set) = (store.clone(), read.clone());
    machine.spawn(3, async move {
        *set.borrow_mut() = Some(read_snapshots(of, acknowledged).await);
    });
    machine.run(|| read.borrow().is_some());
    if let Some(Err(why)) = read.take() {
        return (trace, Err(why));
    }
    let logs: Vec<WriterLog> =
        all.iter().chain([&reader]).map(|progress| progress.log.borrow().clone()).collect();
    (trace, judge::check(&logs))
}

/// All runs with at most so many switches; the number of runs, or the first that fails.
fn explore(switches_max: usize, script: Script, fault: Option<Fault>) -> Result<u64, String> {
    let mut runs = 0;
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new()];
    while let Some(choices) = waiting.pop() {
        runs += 1;
        let (trace, result) = run(&choices, script, fault);
        result.map_err(|why| format!("choices {choices:?}: {why}"))?;
        if choices.iter().filter(|&&choice| choice > 0).count() == switches_max {
            continue;
        }
        for at in choices.len()..trace.len() {
            for other in 1..trace[at].0 {
                let mut next: Vec<usize> = trace[..at].iter().map(|(_, choice)| *choice).collect();
                next.push(other);
                waiting.push(next);
            }
        }
    }
    Ok(runs)
}

/// With `MILLPOND_SEEDS` above 1000 one switch more, and with few of them one less.
#[test]
fn no_interleaving_of_three_writers_loses_what_was_flushed() {
    let (flushes, garbage, snapshot) = match seeds::count(100) {
        0..100 => (1, 1, 1),
        100..=1000 => (2, 2, 1),
        _ => (3, 2, 2),
    };
    for (script, switches) in [(FLUSHES, flushes), (GARBAGE, garbage), (SNAPSHOT, snapshot)] {
        let runs = explore(switches, script, None).unwrap();
        eprintln!("{script:?}: {runs} runs with {switches} switches");
        assert!(runs > 100, "{script:?}: {runs} runs");
    }
}

#[test]
fn few_switches_find_planted_faults() {
    let faults = [
        (FLUSHES, Fault::AckBeforeChain),
        (FLUSHES, Fault::BelieveExists),
        (FLUSHES, Fault::SkipSeal),
        (FLUSHES, Fault::SealNewestOnly),
        (FLUSHES, Fault::DeleteSeals),
        (GARBAGE, Fault::DeleteUnlooked),
        (GARBAGE, Fault::OpenUnlooked),
        (SNAPSHOT, Fault::CollectUnderSnapshots),
        (SNAPSHOT, Fault::AckSnapshotBeforeChain),
    ];
    for (script, fault) in faults {
        assert!(explore(2, script, Some(fault)).is_err(), "{fault:?} is not found");
    }
}
