// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of a device that work beside each other until they are told to stop or are cut off.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::client::{Client, End};
use crate::daemon::Place;
use crate::file_client::FileClient;
use crate::judge::Judge;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::{Result, lock, spawn};

/// Connections of a crowd, and as many threads with one open file.
pub const CLIENTS: usize = 3;

/// The connection that a client has at the moment.
type Line = Arc<Mutex<Option<UnixStream>>>;

/// See the module.
pub struct Crowd {
    stop: Arc<AtomicBool>,
    lines: Vec<Line>,
    clients: Vec<JoinHandle<End>>,
}

impl Crowd {
    /// Clients of `dev` begin to work.
    pub fn begin(
        place: &Place,
        judge: &Arc<Mutex<Judge>>,
        scenario: &Scenario,
        rng: &mut Rng,
    ) -> Result<Crowd> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut crowd = Crowd { stop: Arc::clone(&stop), lines: Vec::new(), clients: Vec::new() };
        let load = scenario.load;
        for _ in 0..CLIENTS {
            let (mut rng, stop) = (rng.fork(), Arc::clone(&stop));
            let (socket, judge) = (place.socket(), Arc::clone(judge));
            let depth = *rng.pick(&[1, 4, 8]);
            let line = Line::default();
            crowd.lines.push(Arc::clone(&line));
            let connect = move || {
                let client = Client::connect(&socket, "dev", &judge)?;
                *lock(&line) = Some(client.line()?);
                Ok::<_, std::io::Error>(client)
            };
            let mut client = connect().map_err(|e| format!("connecting: {e}"))?;
            crowd.clients.push(spawn(move || {
                loop {
                    let end = client.run(&load, depth, &mut rng, &stop);
                    if end != End::Left || stop.load(Ordering::SeqCst) {
                        return end;
                    }
                    match connect() {
                        Ok(next) => client = next,
                        Err(_) => return End::Cut,
                    }
                }
            }));
        }
        if scenario.files {
            let path = place.mount().join("dev/mapper/dev");
            let file = FileClient::open(&path, judge);
            let file = Arc::new(file.map_err(|e| format!("{}: {e}", path.display()))?);
            for _ in 0..CLIENTS {
                let (rng, stop, file) = (rng.fork(), Arc::clone(&stop), Arc::clone(&file));
                crowd.clients.push(spawn(move || file.run(&load, rng, &stop)));
            }
        }
        Ok(crowd)
    }

    /// Tells them to stop once all is answered. What went wrong with any: a connection may end
    /// only if `cut` says so.
    pub fn stop(self, cut: bool) -> Result<Vec<String>> {
        self.stop.store(true, Ordering::SeqCst);
        let mut faults = Vec::new();
        for client in self.clients {
            match client.join().map_err(|_| "a client has panicked")? {
                End::Stopped | End::Left => {}
                End::Cut if cut => {}
                End::Cut => faults.push("the server closed a connection".to_owned()),
                End::Fault(what) => faults.push(what),
            }
        }
        Ok(faults)
    }

    /// Ends their connections with all that is in flight.
    pub fn cut_off(self) -> Result<Vec<String>> {
        self.stop.store(true, Ordering::SeqCst);
        for line in &self.lines {
            if let Some(stream) = lock(line).as_ref() {
                let _ = stream.shutdown(Shutdown::Both); // it may have ended before
            }
        }
        self.stop(true)
    }
}
