// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The helper threads of a process when file systems do not answer: how many there are, and what
//! goes on beside them. A process of its own: they are the same for all of its tests.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and has a thread of its own that waits"
)]

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::common::{Folder, on_core};
use block::{Error, Nanos};
use reactor::{now, sleep, spawn};
use uring::OpenOptions;

/// As `helpers` has it.
const THREADS_MAX: usize = 32;
const MS: Nanos = Nanos::from_millis(1);

/// A file system that does not answer before `answer` is called.
#[derive(Default)]
struct StuckFileSystem {
    answers: Mutex<bool>,
    changed: Condvar,
    asked: AtomicUsize,
}

impl StuckFileSystem {
    fn ask(&self) -> Result<(), Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        drop(self.changed.wait_while(self.answers.lock().unwrap(), |answers| !*answers).unwrap());
        Ok(())
    }

    fn answer(&self) {
        *self.answers.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// One test: the threads are shared.
#[test]
fn stuck_threads_are_bounded_and_hold_up_only_what_needs_one() {
    let folder = Folder::in_memory();
    on_core(async move |files| {
        // Two calls, one of which hangs, while one thread has nothing to do: both begin.
        for nth in 0..20 {
            files.away("/warm", || Ok(())).await.unwrap();
            let hang = Arc::new(StuckFileSystem::default());
            let (asked, beside) = (hang.clone(), files.clone());
            let (hung, quick) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
            let tell = hung.clone();
            spawn(async move {
                let path = format!("/hung/{nth}");
                beside.away(&path, move || asked.ask()).await.unwrap();
                tell.set(true);
            });
            let (tell, beside) = (quick.clone(), files.clone());
            spawn(async move {
                beside.away("/quick", || Ok(())).await.unwrap();
                tell.set(true);
            });
            let begin = now();
            while !quick.get() {
                sleep(MS).await;
                assert!(now() - begin < Nanos::from_secs(5), "it waits for the one that hangs");
            }
            hang.answer();
            while !hung.get() {
                sleep(MS).await;
            }
        }

        let file = files.open_path(
            &folder.path("disk"),
            OpenOptions { create_size: Some(4096), ..OpenOptions::default() },
        );
        let hang = Arc::new(StuckFileSystem::default());
        let ended = Rc::new(Cell::new(0));
        let all = THREADS_MAX + 8;
        for nth in 0..all {
            let (asked, beside, ended) = (hang.clone(), files.clone(), ended.clone());
            spawn(async move {
                let path = format!("/stuck/{nth}");
                beside.away(&path, move || asked.ask()).await.unwrap();
                ended.set(ended.get() + 1);
            });
        }
        while hang.asked.load(Ordering::Relaxed) < THREADS_MAX {
            sleep(MS).await;
        }
        sleep(Nanos::from_millis(100)).await;
        assert_eq!(hang.asked.load(Ordering::Relaxed), THREADS_MAX, "H3");
        // A call that has no thread yet, and whose asker goes, is not made.
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let mut gone = Box::pin(files.away("/gone", move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        assert!(poll_fn(|cx| Poll::Ready(gone.as_mut().poll(cx))).await.is_pending());
        drop(gone);
        // A close has no thread: it is not refused; it waits.
        let mark = files.closes_begun();
        files.close(file.unwrap().file);
        let closed = Rc::new(Cell::new(false));
        let (tell, beside) = (closed.clone(), files.clone());
        spawn(async move {
            beside.closed_since(mark).await;
            tell.set(true);
        });
        sleep(Nanos::from_millis(100)).await;
        assert!(!closed.get(), "H4: it is not closed yet");
        let soon = hang.clone();
        let answering = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            soon.answer();
        });
        let begin = now();
        uring::wait_for_closes(Duration::from_secs(9));
        assert!(now() - begin < Nanos::from_secs(5), "nobody said that it is closed");
        answering.join().unwrap();
        while ended.get() < all || !closed.get() || Arc::strong_count(&made) > 1 {
            sleep(MS).await;
        }
        assert_eq!(made.load(Ordering::Relaxed), 0, "a call of one that has gone");
    });
}
