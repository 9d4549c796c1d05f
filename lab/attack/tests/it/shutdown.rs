// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An orderly end beside a disk that does not answer.

use attack::binary;
use attack::daemon::{Daemon, Ended, Place};
use attack::disk::Disk;
use attack::media::Lie;
use attack::rng::Rng;

/// What the manual says of an end in which not all has settled. It was 4 when the first that had
/// not was a disk's FLUSH; found by the adversary (`cache-errors`, seed 296347715).
#[test]
fn a_shutdown_that_a_hung_disk_delays_has_exit_code_1() {
    let program = binary::millpond().unwrap_or_else(|e| panic!("{e}"));
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("disk");
    let disk = Disk::serve(&socket, 1 << 20, Lie::None, Rng::new(1), || {});
    let disk = disk.unwrap_or_else(|e| panic!("{e}"));
    let word = disk.word("timeout=5s");
    let config = format!(
        "shutdown_timeout = '2s'\n[[device]]\nname = 'dev'\ntable = '0 2048 linear {word} 0'\n"
    );
    std::fs::write(dir.path().join("millpond.toml"), config).expect("a config");
    let place = Place { program, dir: dir.path().into() };
    let mut daemon = Daemon::start(&place).unwrap_or_else(|e| panic!("{e}"));
    daemon.wait_ready().unwrap_or_else(|e| panic!("{e}"));
    disk.hang(true);
    assert_eq!(daemon.terminate_within(15.0), Ended::Code(1), "{}", place.log_tail());
}
