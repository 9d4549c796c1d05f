// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of a device as a file: threads that read, write and sync beside each other by one
//! descriptor, which is one opener.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use crate::client::{Ask, End, Load};
use crate::history::{Kind, Outcome};
use crate::judge::Judge;
use crate::lock;
use crate::pattern::{SECTOR, fill, identify};
use crate::rng::Rng;

/// An open file of a device. The kernel keeps nothing of it, with O_DIRECT or without.
pub struct FileClient {
    file: File,
    judge: Arc<Mutex<Judge>>,
    opener: u64,
}

/// Why a request has no outcome: the daemon is gone, and the mount with it.
fn is_gone(e: &io::Error) -> bool {
    let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::NOENT, Errno::NODEV, Errno::SHUTDOWN];
    Errno::from_io_error(e).is_some_and(|e| gone.contains(&e))
}

/// Whether it failed as a device may fail; anything else ends the client.
fn outcome(done: io::Result<()>) -> io::Result<Outcome> {
    match done {
        Ok(()) => Ok(Outcome::Done),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::IO) => Ok(Outcome::Failed),
        Err(e) => Err(e),
    }
}

impl FileClient {
    /// Opens the file of a device.
    pub fn open(path: &Path, judge: &Arc<Mutex<Judge>>) -> io::Result<FileClient> {
        let opener = lock(judge).open();
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(FileClient { file, judge: Arc::clone(judge), opener })
    }

    /// Sends requests, one after the other, until it is told to stop or the daemon goes.
    pub fn run(&self, load: &Load, mut rng: Rng, stop: &AtomicBool) -> End {
        while !stop.load(Ordering::SeqCst) {
            let (ask, sector, count) = load.draw(&mut rng);
            match self.request(ask, sector, count) {
                Ok(()) => {}
                Err(e) if is_gone(&e) => return End::Cut,
                Err(e) => return End::Fault(format!("{ask:?} of {count} at {sector}: {e}")),
            }
        }
        End::Stopped
    }

    fn request(&self, ask: Ask, sector: u64, count: u64) -> io::Result<()> {
        let mut data = vec![0; count as usize * SECTOR];
        let sent = lock(&self.judge).tick() + 1;
        match ask {
            Ask::Flush => {
                let begun = lock(&self.judge).flush_begins();
                let outcome = outcome(self.file.sync_data())?;
                lock(&self.judge).flush_ends(self.opener, begun, outcome);
            }
            Ask::Read => {
                let begun = lock(&self.judge).read_begins();
                match outcome(self.file.read_exact_at(&mut data, sector * 512))? {
                    Outcome::Failed => lock(&self.judge).read_fails(begun),
                    Outcome::Done => {
                        let sectors = data.chunks_exact(SECTOR).zip(sector..);
                        let contents: Vec<_> = sectors.map(|(d, at)| identify(at, d)).collect();
                        lock(&self.judge).read_ends(begun, sector, &contents);
                    }
                }
            }
            // Zeroes and discards go by NBD; here their share is of writes.
            Ask::Change(..) => {
                let begin =
                    |j: &mut Judge| j.write_begins(self.opener, sector, count, Kind::Data, false);
                let write = begin(&mut lock(&self.judge));
                fill(write, sector, &mut data);
                let outcome = outcome(self.file.write_all_at(&data, sector * 512))?;
                lock(&self.judge).write_ends(write, sector, count, outcome);
            }
        }
        lock(&self.judge).answered(self.opener, sent);
        Ok(())
    }
}
