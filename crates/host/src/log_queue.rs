// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue between those who log and standard error, which a thread of its own writes: a core
//! never waits for a terminal, a pipe or a journal that nobody reads.
//!
//! ```text
//!   core 0 ─┐ push                    thread `log`
//!   core 1 ─┼──────▶ lines, 1 MiB ──▶ write ──▶ standard error
//!   control ┘          └ full: counted, and told when there is room
//! ```
//!
//! Invariants
//! - HO-LQ1 [`push`] waits for nothing but the lock, under which nobody writes.
//! - HO-LQ2 Lines leave in the order in which they were pushed, and what was left out is told where
//!   it is missing.
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait; the next ones are left out.
const BYTES_MAX: usize = 1 << 20;

/// The lines of this process.
static QUEUE: LogQueue = LogQueue::new();

struct LogQueue {
    state: Mutex<State>,
    /// Lines came, or were written.
    changed: Condvar,
}

struct State {
    /// Text that waits.
    text: Vec<u8>,
    /// Lines that were left out behind it.
    left_out: u64,
    /// The thread is writing what it took.
    writing: bool,
    has_thread: bool,
}

impl LogQueue {
    const fn new() -> LogQueue {
        let state = State { text: Vec::new(), left_out: 0, writing: false, has_thread: false };
        LogQueue { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic under the lock leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.left_out > 0 || state.text.len() + line.len() > BYTES_MAX {
            state.left_out += 1;
        } else {
            state.text.extend_from_slice(line);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Writes what comes, for ever. Where nobody listens any more there is nobody to tell.
    fn write_all(&self, mut out: impl Write) -> ! {
        loop {
            let mut state = self.state();
            while state.text.is_empty() && state.left_out == 0 {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let mut text = std::mem::take(&mut state.text);
            if state.left_out > 0 {
                text.extend_from_slice(complaint(state.left_out).as_bytes());
                state.left_out = 0;
            }
            state.writing = true;
            drop(state);
            let _ = out.write_all(&text).and_then(|()| out.flush());
            self.state().writing = false;
            self.changed.notify_all();
        }
    }

    /// Waits until all has been written, at most for `time`. Returns whether it has.
    fn flush(&self, time: Duration) -> bool {
        let is_busy = |state: &mut State| {
            state.has_thread && (state.writing || !state.text.is_empty() || state.left_out > 0)
        };
        let waited = self.changed.wait_timeout_while(self.state(), time, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

fn complaint(left_out: u64) -> String {
    format!(
        " WARN {left_out} lines of the log are missing here: {} KiB of it waited, and standard \
         error was not read\n",
        BYTES_MAX >> 10
    )
}

/// Starts the thread. Without one, lines are written at once.
pub(crate) fn start() {
    let mut state = QUEUE.state();
    if !state.has_thread {
        let thread = std::thread::Builder::new().name("log".into());
        let started = thread.spawn(|| QUEUE.write_all(io::stderr()));
        state.has_thread = started.is_ok();
    }
}

/// Writes a line to standard error, behind those of the log.
pub fn print_error(line: &str) {
    push(format!("{line}\n").as_bytes());
}

/// Waits until the log has been written, at most for a second. For the end of a process, and for
/// lines that somebody waits for.
pub fn flush_log() {
    QUEUE.flush(Duration::from_secs(1));
}

fn push(line: &[u8]) {
    if QUEUE.state().has_thread {
        QUEUE.push(line);
    } else {
        let _ = io::stderr().write_all(line); // nobody to tell
    }
}

/// For the layer that formats events.
pub(crate) struct QueueWriter;

impl Write for QueueWriter {
    /// One event, whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for QueueWriter {
    type Writer = QueueWriter;

    fn make_writer(&self) -> QueueWriter {
        QueueWriter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::net::UnixStream;

    use std::io::Read;

    /// A pipe that nobody reads takes 64 KiB: then core 0 stood still, and with it every device.
    #[test]
    fn a_line_is_pushed_though_nobody_reads() {
        static QUEUE: LogQueue = LogQueue::new();
        let (out, mut reader) = UnixStream::pair().unwrap();
        QUEUE.state().has_thread = true;
        let thread = std::thread::Builder::new();
        thread.spawn(|| QUEUE.write_all(out)).unwrap();
        let line = [b'x'; 1023];
        let push = |count: usize| {
            for _ in 0..count {
                QUEUE.push(&line);
                QUEUE.push(b"\n");
            }
        };
        // The thread stands still before anything is lost: so the loss is at the end of the text.
        let (first, rest) = (BYTES_MAX / 2 / 1024, 8 * BYTES_MAX / 1024);
        let count = first + rest;
        push(first);
        assert!(!QUEUE.flush(Duration::from_millis(200)), "nobody reads");
        push(rest);
        assert!(!QUEUE.flush(Duration::from_millis(50)), "nobody reads");
        assert!(QUEUE.state().text.len() <= BYTES_MAX);
        // Once somebody reads, what waited comes, and how many lines are missing.
        let (mut text, mut buf) = (Vec::new(), vec![0; 65536]);
        while !text.ends_with(b"was not read\n") {
            let n = reader.read(&mut buf).unwrap();
            text.extend_from_slice(&buf[..n]);
        }
        assert!(QUEUE.flush(Duration::from_secs(60)));
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().filter(|line| line.starts_with('x')).count();
        assert!(lines >= BYTES_MAX / 1024 - 1 && lines < count, "{lines} of {count}");
        let last = text.lines().last().unwrap();
        assert!(last.contains("lines of the log are missing here"), "{last}");
        QUEUE.push(b"next\n");
        let n = reader.read(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"next\n");
    }
}
