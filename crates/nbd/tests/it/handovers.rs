// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients with requests of all kinds in flight, whose server pauses again and again: it goes on,
//! or another server adopts their sessions. The oracle judges the data, and a client that gets an
//! answer twice, or none, or a wrong one, connects again, which none may. And the proof that the
//! judge is awake: planted faults are found.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, CoreId, Error, LocalFuture, Nanos, Sector};
use nbd::client::{self, Client, Connect};
use nbd::{
    Export, Exports, Options, Paused, PausedSession, Peer, Place, PlacedExport, Server, ServerFault,
};
use reactor::{FileId, read, sleep, spawn};
use sim::{DiskSpec, Machine, Mix, Oracle, Swarm, Workload, World, WorldRef, seeds};

const CLIENTS: usize = 3;
const BLOCKS: u64 = 64;
const BLOCK_BYTES: usize = 4096;
/// More than anything takes.
const LONG: Nanos = Nanos::from_secs(10_000);
/// A run that takes longer hangs.
const RUN_TIME: Nanos = Nanos::from_secs(2_000);

/// The disk of all processes.
#[derive(Clone)]
struct Shelf {
    world: WorldRef,
    disk: FileId,
    cores: u16,
    /// All sessions are served by core 1.
    is_elsewhere: bool,
}

struct OpenDisk {
    shelf: Shelf,
}

impl Exports for Shelf {
    fn list(&self) -> Vec<String> {
        vec!["disk".into()]
    }
    fn open(&self, _name: &str) -> Result<Box<dyn Export>, Error> {
        Ok(Box::new(OpenDisk { shelf: self.clone() }))
    }
}

/// The export of a session on another core.
struct ElsewhereDisk(sim::Disk);

impl Export for ElsewhereDisk {
    fn device(&self) -> Rc<dyn BlockDevice> {
        Rc::new(self.0.clone())
    }
    fn name(&self) -> String {
        "disk".into()
    }
}

impl Export for OpenDisk {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.shelf.world.borrow().leaf(self.shelf.disk)
    }
    fn name(&self) -> String {
        "disk".into()
    }
    fn place(&self, socket: FileId) -> Option<Place> {
        let mut world = self.shelf.world.borrow_mut();
        let draw = world.rng.below(u64::from(self.shelf.cores));
        let core = if self.shelf.is_elsewhere { 1 } else { draw };
        if core == 0 {
            return None;
        }
        let (disk, socket) = (world.leaf(self.shelf.disk), world.copy_stream(socket));
        let disk = (*disk).clone();
        let begin = move || PlacedExport { socket, export: Box::new(ElsewhereDisk(disk)) };
        Some(Place { core: CoreId(u16::try_from(core).unwrap()), begin: Box::new(begin) })
    }
}

/// The processes, one after the other.
struct Hub {
    world: WorldRef,
    shelf: Shelf,
    fault: Option<ServerFault>,
    server: RefCell<Server>,
    listener: Cell<FileId>,
    connections: Cell<usize>,
}

struct Connector {
    hub: Rc<Hub>,
    /// It comes and goes: its connections are not counted.
    is_visitor: bool,
}

impl Connect for Connector {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let hub = &self.hub;
        if !self.is_visitor {
            hub.connections.set(hub.connections.get() + 1);
        }
        let file = hub.world.borrow_mut().connect(hub.listener.get());
        Box::pin(async move { file.ok_or_else(|| Error::io("connection refused")) })
    }
    fn peer(&self) -> String {
        "hub".into()
    }
}

impl Hub {
    fn new(shelf: Shelf, fault: Option<ServerFault>) -> Rc<Hub> {
        let (world, connections) = (shelf.world.clone(), Cell::new(0));
        let server = Server::new_planted(Rc::new(shelf.clone()), Options::default(), fault);
        let listener = world.borrow_mut().listen();
        server.serve(listener, Peer::Local);
        let (server, listener) = (RefCell::new(server), Cell::new(listener));
        Rc::new(Hub { world, shelf, fault, server, listener, connections })
    }

    /// A client; on a bad day a handshake takes too long, and then another one.
    async fn open(self: Rc<Hub>, is_visitor: bool) -> Client {
        let options = client::Options { timeout: LONG, silence: LONG, fence: None };
        loop {
            let door = Rc::new(Connector { hub: self.clone(), is_visitor });
            if let Ok(client) = Client::open("nbd", "disk", door, options, |_| {}).await {
                return client;
            }
        }
    }

    fn process(&self) -> Server {
        Server::new_planted(Rc::new(self.shelf.clone()), Options::default(), self.fault)
    }

    /// Another process goes on with the sessions.
    async fn hand_over(&self, paused: Paused) -> Result<(), String> {
        let next = self.process();
        let old = self.server.replace(next.clone());
        for session in paused.sessions {
            let id = session.id;
            let socket = self.world.borrow_mut().copy_stream(session.socket);
            let export = self.shelf.open(&session.export).map_err(|e| e.chain())?;
            let session = PausedSession { socket, ..session };
            let adopted = next.adopt(session, export).map_err(|e| e.chain())?;
            if adopted != id {
                return Err(format!("connection {id} became {adopted}"));
            }
        }
        let listener = self.world.borrow_mut().copy_stream(paused.listeners[0].socket);
        next.serve(listener, Peer::Local);
        self.listener.set(listener);
        let beside = self.world.borrow_mut().rng.below(100_000);
        sleep(Nanos(beside)).await;
        old.abandon().await;
        Ok(())
    }

    /// Connects, reads, and goes, again and again. What has connected must not be lost.
    async fn visit(self: Rc<Hub>, stop: Rc<Cell<bool>>) -> Result<(), String> {
        while !stop.get() {
            let pause = self.world.borrow_mut().rng.below(1_000_000);
            sleep(Nanos(pause)).await;
            let client = self.clone().open(true).await;
            let buf = Buf::alloc(512);
            let back = read(&client, Class::Normal, Sector(0), buf.all().into()).await;
            back.map_err(|status| format!("a visitor: {status}"))?;
            client.close().await;
        }
        Ok(())
    }

    /// Pauses until told to stop.
    async fn pause_often(
        self: Rc<Hub>,
        stop: Rc<Cell<bool>>,
        done: Rc<Cell<bool>>,
    ) -> Result<(), String> {
        let mean = self.world.borrow_mut().rng.pick(&[20_000, 300_000, 3_000_000]);
        while !stop.get() {
            let (time, dice) = {
                let rng = &mut self.world.borrow_mut().rng;
                // Some pauses come while sessions that were adopted just now begin.
                (rng.below(mean) * rng.below(2), rng.below(8))
            };
            sleep(Nanos(time)).await;
            let server = self.server.borrow().clone();
            let paused = server.pause(LONG).await.map_err(|e| e.chain())?;
            if paused.sessions.len() < CLIENTS {
                return Err(format!("{} sessions are there", paused.sessions.len()));
            }
            let in_pause = self.world.borrow_mut().rng.below(mean);
            sleep(Nanos(in_pause)).await;
            match dice {
                0..4 => self.hand_over(paused).await?,
                4 => {
                    // At once: nobody has read anything meanwhile.
                    server.resume();
                    let again = server.pause(LONG).await.map_err(|e| e.chain())?;
                    let pairs = again.sessions.iter().zip(&paused.sessions);
                    // The other core may have read between the two.
                    let exact = self.shelf.cores == 1;
                    if exact && pairs.into_iter().any(|(a, b)| a.unread != b.unread) {
                        return Err("a second pause at once has other bytes".into());
                    }
                    server.resume();
                }
                _ => server.resume(),
            }
        }
        done.set(true);
        Ok(())
    }
}

fn run(seed: u64, fault: Option<ServerFault>, cores: u16) -> Result<(), String> {
    let world = World::new(seed);
    let disk = world.borrow_mut().add_swarm_disk("disk", Sector(BLOCKS * 8));
    if cores > 1 && seed.is_multiple_of(2) {
        // Messages of other cores come before tasks that could run.
        let swarm = world.borrow().swarm();
        world.borrow_mut().set_swarm(Swarm { preempt_per_mille: 400, ..swarm });
    }
    let machine = Machine::boot(&world, cores);
    let shelf = Shelf { world: world.clone(), disk, cores, is_elsewhere: false };
    let hub = machine.on(0, || Hub::new(shelf, fault));
    let oracle = Rc::new(RefCell::new(Oracle::new(BLOCKS, BLOCK_BYTES, seed)));
    let mut mix = Mix::default();
    {
        let rng = &mut world.borrow_mut().rng;
        mix.blocks_max = rng.pick(&[2, 16, 40]);
        mix.fua_per_mille = rng.pick(&[0, 50, 500]);
        mix.think_ns_max = rng.pick(&[0, 20_000, 500_000]);
    }
    let load = Workload::new(&world, &oracle, mix);
    // Where tasks are preempted the clock goes on to the next timer, which must not be a far one.
    for nth in 0..48 {
        machine.spawn(0, async move {
            loop {
                sleep(Nanos::from_millis(100 + nth)).await;
            }
        });
    }
    let hangs = || world.borrow().now() > RUN_TIME;
    let mut devices: Vec<Rc<dyn BlockDevice>> = Vec::new();
    for _ in 0..CLIENTS {
        devices.push(Rc::new(machine.block_on(hub.clone().open(false)).unwrap()));
    }
    // Connections whose handshake took too long end.
    machine.block_on(sleep(Nanos::from_secs(60))).unwrap();
    let before = hub.connections.get();
    let ids = || -> Vec<u64> {
        machine.on(0, || hub.server.borrow().connections().iter().map(|c| c.id).collect())
    };
    let first_ids = ids();
    let (stop, stopped) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let beside: [LocalFuture<Result<(), String>>; 2] = [
        Box::pin(hub.clone().pause_often(stop.clone(), stopped.clone())),
        Box::pin(hub.clone().visit(stop.clone())),
    ];
    for work in beside {
        let verdict = load.verdict.clone();
        machine.spawn(0, async move {
            if let Err(why) = work.await {
                verdict.fail(why);
            }
        });
    }
    let workers = 2 * CLIENTS as u64;
    for nth in 0..2 * CLIENTS {
        machine.spawn(0, load.client(devices[nth % CLIENTS].clone(), 30));
    }
    machine.run(|| load.verdict.is_settled(workers) || hangs());
    if hangs() {
        let connections = machine.on(0, || hub.server.borrow().connections());
        return Err(format!("clients wait for ever: {connections:?}"));
    }
    load.verdict.result()?;
    stop.set(true);
    machine.run(|| stopped.get() || load.verdict.result().is_err() || hangs());
    if hangs() {
        return Err("a pause does not end".into());
    }
    load.verdict.result()?;
    machine.block_on(load.read_all(devices[0].clone())).unwrap()?;
    let again = hub.connections.get() - before;
    if again > 0 {
        return Err(format!("{again} connections were lost"));
    }
    if !ids().starts_with(&first_ids) {
        return Err(format!("connections {:?}, and they were {first_ids:?}", ids()));
    }
    machine.on(0, nbd::end_sessions_of_this_core);
    Ok(())
}

#[test]
fn no_request_is_lost_or_done_twice_over_pauses() {
    seeds::run(100, |seed| run(seed, None, 1));
}

#[test]
fn sessions_of_other_cores_take_part_in_pauses() {
    seeds::run(100, |seed| run(seed, None, 2));
}

/// A suspended device, whose bios wait on the core that serves the session.
#[test]
fn a_device_that_hangs_on_another_core_fails_the_pause() {
    const HANG_NS: u64 = 5_000_000_000;
    let world = World::calm(1);
    let slow = Box::new(sim::model::Uniform::new(1, HANG_NS, HANG_NS + 1));
    let disk = world.borrow_mut().add_disk(DiskSpec::new("disk", Sector(BLOCKS * 8), slow));
    let machine = Machine::boot(&world, 2);
    let shelf = Shelf { world: world.clone(), disk, cores: 2, is_elsewhere: true };
    let hub = machine.on(0, || Hub::new(shelf, None));
    let work = async move {
        let client = Rc::new(hub.clone().open(false).await);
        let read_block = || {
            let (client, done) = (client.clone(), Rc::new(Cell::new(None)));
            let set = done.clone();
            spawn(async move {
                let buf = Buf::alloc(512);
                set.set(Some(read(&*client, Class::Normal, Sector(0), buf.all().into()).await));
            });
            done
        };
        let first = read_block();
        sleep(Nanos::from_millis(1)).await;
        let server = hub.server.borrow().clone();
        let error = server.pause(Nanos::from_secs(1)).await.unwrap_err();
        let text = "requests of NBD clients have not ended within 1 s: disk: 1 of client 1";
        assert_eq!(error.to_string(), text);
        let second = read_block();
        sleep(Nanos(HANG_NS + 1_000_000_000)).await;
        assert_eq!((first.get(), second.get()), (Some(Ok(())), Some(Ok(()))));
        let paused = server.pause(Nanos(HANG_NS * 10)).await.unwrap();
        assert_eq!((paused.sessions.len(), paused.sessions[0].requests), (1, 2));
        hub.hand_over(paused).await.unwrap();
        let third = read_block();
        sleep(Nanos(HANG_NS + 1_000_000_000)).await;
        assert_eq!((third.get(), hub.connections.get()), (Some(Ok(())), 1));
        nbd::end_sessions_of_this_core();
    };
    machine.block_on(work).unwrap();
}

fn is_found(fault: ServerFault) {
    let found = seeds::first_failure(0..300, |seed| run(seed, Some(fault), 1));
    let found = found.unwrap_or_else(|| panic!("{fault:?} passes"));
    eprintln!("{fault:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_dropped_part_of_a_request_is_found() {
    is_found(ServerFault::DropPart);
}

#[test]
fn a_request_that_is_answered_twice_is_found() {
    is_found(ServerFault::RepeatLast);
}

#[test]
fn a_receive_during_a_pause_is_found() {
    is_found(ServerFault::ReceiveInPause);
}

#[test]
fn a_pause_that_does_not_wait_for_replies_is_found() {
    is_found(ServerFault::ParkEarly);
}
