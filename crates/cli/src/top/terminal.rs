// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal while `top` has it: a screen of its own, keys without an enter, no echo.
//!
//! ```text
//!   take ──▶ another screen, no cursor, no echo ──▶ drop: all as before (CL-T1)
//! ```
use std::io::{Error as IoError, Write, stdin, stdout};
use std::time::Duration;

use control::Failure;
use host::io_failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc;

/// How often the thread of the keys looks whether it is needed.
const KEY_POLL: Duration = Duration::from_millis(100);
/// What is shown to a terminal that does not report its size.
const SIZE: (usize, usize) = (24, 80);
/// A disabled key.
const NO_KEY: u8 = 0;

/// A key that does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    Escape,
}

impl Key {
    /// The keys in what a terminal has sent. A lone escape is the key; with more it is a sequence.
    pub(super) fn all(bytes: &[u8]) -> Vec<Key> {
        match bytes {
            [0x1b] => return vec![Key::Escape],
            [0x1b, b'[' | b'O', b'A'] => return vec![Key::Up],
            [0x1b, b'[' | b'O', b'B'] => return vec![Key::Down],
            [0x1b, ..] => return Vec::new(),
            _ => {}
        }
        bytes
            .iter()
            .filter(|b| b.is_ascii_graphic() || **b == b' ')
            .map(|b| Key::Char((*b).into()))
            .collect()
    }
}

/// A terminal that is given back as it was when this is dropped.
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    pub(super) fn take() -> Result<Terminal, Failure> {
        let failed = |e: rustix::io::Errno| io_failure(&IoError::from(e), "the terminal");
        let before = tcgetattr(stdin()).map_err(failed)?;
        let mut now = before.clone();
        // Control-C still interrupts; control-Z would stop it with the other screen.
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VSUSP] = NO_KEY;
        tcsetattr(stdin(), OptionalActions::Now, &now).map_err(failed)?;
        let terminal = Terminal { before };
        terminal.write("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(terminal)
    }

    /// Rows and columns.
    pub(super) fn size() -> (usize, usize) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or(SIZE, |size| (size.ws_row.into(), size.ws_col.into()))
    }

    pub(super) fn write(&self, text: &str) -> Result<(), Failure> {
        let mut out = stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|e| io_failure(&e, "the terminal"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // CL-T1. A terminal that is gone needs neither.
        let _ = self.write("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// The keys, read by a thread of its own until the receiver is dropped.
pub(super) fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::task::spawn_blocking(move || {
        let time = Timespec::try_from(KEY_POLL).expect("a tenth of a second fits");
        while !sender.is_closed() {
            let input = stdin();
            let mut ready = [PollFd::new(&input, PollFlags::IN)];
            match poll(&mut ready, Some(&time)) {
                Ok(0) => continue,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            let mut bytes = [0; 64];
            let Ok(len @ 1..) = rustix::io::read(&input, &mut bytes) else { return };
            for key in Key::all(&bytes[..len]) {
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_arrows_and_escape_are_keys() {
        assert_eq!(Key::all(b"q+"), [Key::Char('q'), Key::Char('+')]);
        assert_eq!(Key::all(b"\x1b"), [Key::Escape]);
        assert_eq!(Key::all(b"\x1b[A"), [Key::Up]);
        assert_eq!(Key::all(b"\x1bOB"), [Key::Down]);
        assert_eq!(Key::all(b"\x1b[5~"), []);
        assert_eq!(Key::all(b"\n\x00"), []);
    }
}
