// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clean-up that runs however a program ends: mounts, loop devices, folders.
//!
//! Invariants
//! - EE-U1 Each step is undone once, the last one first.
//! - EE-U2 `leave` returns when every step is undone, those under way on other threads included.
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Result;
use crate::process::kill_all;

type Step = Box<dyn FnOnce() + Send>;

/// What stands, by age.
static STANDING: Mutex<BTreeMap<u64, Step>> = Mutex::new(BTreeMap::new());
/// Whether a signal has come.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs its step when dropped, or earlier when the program has to leave.
#[must_use]
pub struct Undo(u64);

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Undo").field(&self.0).finish()
    }
}

fn standing() -> MutexGuard<'static, BTreeMap<u64, Step>> {
    STANDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Undo {
    /// To be called before what it undoes, so that no signal comes between: the step does no harm
    /// where there is nothing to undo.
    pub fn by(step: impl FnOnce() + Send + 'static) -> Undo {
        let mut standing = standing();
        let number = standing.last_key_value().map_or(0, |(number, _)| number + 1);
        standing.insert(number, Box::new(step));
        Undo(number)
    }

    /// Removes a folder and what is in it.
    pub fn folder(path: PathBuf) -> Undo {
        Undo::by(move || {
            let _ = std::fs::remove_dir_all(path); // nothing better to do about it
        })
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut standing = standing();
        if let Some(step) = standing.remove(&self.0) {
            step(); // EE-U2: while the list is held
        }
    }
}

/// Ends all children and undoes everything.
fn leave() {
    // First, because a file system that somebody uses can't be unmounted.
    kill_all();
    let mut standing = standing();
    while let Some((_, step)) = standing.pop_last() {
        step();
    }
}

/// From now on a signal that ends this process, and a panic, undo everything first.
pub fn leave_on_signals(name: &'static str) -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| format!("signals: {e}"))?;
    let wait = move || {
        let Some(signal) = signals.forever().next() else { return };
        INTERRUPTED.store(true, Ordering::SeqCst);
        leave();
        eprintln!("{name}: interrupted, everything is removed");
        std::process::exit(128 + signal);
    };
    #[expect(clippy::disallowed_methods, reason = "signals come at any time")]
    std::thread::spawn(wait);
    // In a release build a panic aborts, and nothing is dropped.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        leave();
    }));
    Ok(())
}

/// Returns when no signal has come: one that has ends the process, and what fails meanwhile is not
/// worth a word.
pub fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
