// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the program that is installed is the one that runs.
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use block::ErrorKind;
use control::Failure;
use rustix::fs::OFlags;

use crate::io_failure::io_failure;

/// The file of this process, also where its name has another one by now.
const RUNNING: &str = "/proc/self/exe";
/// What is compared at once.
const PIECE: usize = 1 << 16;

/// Whether `program` differs from the program of this process, byte for byte.
pub(super) fn differs(program: &Path) -> Result<bool, Failure> {
    let failed = |e: &io::Error| io_failure(e, program.display());
    // The open of a FIFO would wait for a writer.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let installed = File::options().read(true).custom_flags(flags).open(program);
    let installed = installed.map_err(|e| failed(&e))?;
    if !installed.metadata().map_err(|e| failed(&e))?.is_file() {
        let text = format!("{}: no regular file, so no program", program.display());
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    let running = File::open(RUNNING).map_err(|e| io_failure(&e, RUNNING))?;
    have_different_bytes(installed, running).map_err(|e| io_failure(&e, program.display()))
}

fn have_different_bytes(one: File, other: File) -> io::Result<bool> {
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(true);
    }
    let (mut one, mut other) = (BufReader::new(one), BufReader::new(other));
    let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
    loop {
        let [ours, theirs] = &mut pieces;
        let got = one.read(ours)?;
        if got == 0 {
            return Ok(false);
        }
        other.read_exact(&mut theirs[..got])?;
        if ours[..got] != theirs[..got] {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn a_program_differs_by_its_length_or_any_byte() {
        let dir = tempfile::tempdir().unwrap();
        let running = std::fs::read(RUNNING).unwrap();
        let mut other = running.clone();
        *other.last_mut().unwrap() ^= 1;
        assert!(!differs(&std::env::current_exe().unwrap()).unwrap());
        assert!(!differs(&file(dir.path(), "copy", &running)).unwrap());
        assert!(differs(&file(dir.path(), "short", &running[1..])).unwrap());
        assert!(differs(&file(dir.path(), "other", &other)).unwrap());
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        for other in [&*fifo, dir.path(), Path::new("/dev/null")] {
            let refused = differs(other).unwrap_err();
            assert!(refused.message.contains("no regular file"), "{refused}");
        }
        let missing = differs(&dir.path().join("missing")).unwrap_err();
        assert!(missing.message.contains("missing"), "{missing}");
    }
}
