// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as files through FUSE, ours and qemu-storage-daemon's, under fio.
use std::fs::{File, create_dir_all};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use reproduce::clock;

/// Size of every device.
pub const BYTES: u64 = 1 << 30;
/// How long a server may take until its files are there.
const START_SECONDS: f64 = 10.0;

/// A server of files; it ends, and its mount goes, with this value.
#[derive(Debug)]
pub struct Files {
    server: Child,
    /// What is mounted.
    mount: PathBuf,
    dir: PathBuf,
}

fn pause() {
    #[expect(clippy::disallowed_methods, reason = "waits for another process")]
    std::thread::sleep(Duration::from_millis(20));
}

/// Tells whether there is a file of the device's size, and not the empty one below a mount.
fn there(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|m| m.len() == BYTES)
}

impl Files {
    fn start(command: &mut Command, dir: &Path, mount: &Path) -> Result<Files, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn().map_err(|e| format!("{program}: {e}"))?;
        Ok(Files { server, mount: mount.into(), dir: dir.into() })
    }

    /// The server's process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    fn wait(&mut self, file: &Path) -> Result<(), String> {
        let give_up = clock() + START_SECONDS;
        while !there(file) {
            if let Ok(Some(status)) = self.server.try_wait() {
                return Err(format!("server of {}: {status}", file.display()));
            }
            if clock() > give_up {
                return Err(format!("{}: not there after {START_SECONDS} s", file.display()));
            }
            pause();
        }
        Ok(())
    }

    /// Our daemon with `linear` over memory. Returns the files of the memory and of the mapping.
    ///
    /// # Errors
    /// Why there are none.
    pub fn ours(ours: &Path, dir: &Path) -> Result<(Files, PathBuf, PathBuf), String> {
        let (run_dir, mount) = (dir.join("run"), dir.join("mnt"));
        create_dir_all(&mount).map_err(|e| format!("{}: {e}", mount.display()))?;
        let config = dir.join("daemon.toml");
        let table = format!("0 {} linear mem:1G 0", BYTES / 512);
        let text = format!("[[device]]\nname = 'linear'\ntable = '{table}'\n");
        std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
        let mut command = Command::new(ours);
        command.arg("daemon").arg("--run-dir").arg(run_dir).arg("--config").arg(&config);
        command.arg("--fuse").arg(&mount);
        let mut files = Files::start(&mut command, dir, &mount)?;
        let (raw, linear) = (mount.join("dev/mem:1G"), mount.join("dev/mapper/linear"));
        files.wait(&linear)?;
        files.wait(&raw)?;
        Ok((files, raw, linear))
    }

    /// qemu-storage-daemon's export of a device that keeps nothing: less work than ours has.
    ///
    /// # Errors
    /// Why there is none.
    pub fn qsd(dir: &Path) -> Result<(Files, PathBuf), String> {
        create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let file = dir.join("qsd");
        File::create(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let disk = format!("driver=null-co,size={BYTES},read-zeroes=on,node-name=disk");
        let export = format!("type=fuse,id=export,node-name=disk,mountpoint={}", file.display());
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &disk, "--export", &format!("{export},writable=on")]);
        let mut files = Files::start(&mut command, dir, &file)?;
        files.wait(&file)?;
        Ok((files, file))
    }

    /// nbdfuse over nbdkit's device that keeps nothing.
    ///
    /// # Errors
    /// Why there is none.
    pub fn nbdfuse(dir: &Path) -> Result<(Files, PathBuf), String> {
        create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let file = dir.join("nbdfuse");
        File::create(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut command = Command::new("nbdfuse");
        command.arg(&file).args(["--command", "nbdkit", "-s", "null", &BYTES.to_string()]);
        let mut files = Files::start(&mut command, dir, &file)?;
        files.wait(&file)?;
        Ok((files, file))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Requirement to end, it unmounts; it serves throw-away data.
        let id = rustix::process::Pid::from_child(&self.server);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let give_up = clock() + START_SECONDS;
        while matches!(self.server.try_wait(), Ok(None)) && clock() < give_up {
            pause();
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
        if there(&self.mount) || self.mount.join("dev").exists() {
            let _ = Command::new("fusermount3").arg("-uz").arg(&self.mount).status();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The job that was published: 512 B reads by twelve processes.
pub const PUBLISHED: &[&str] = &["--ioengine=psync", "--rw=read", "--bs=512", "--numjobs=12"];
/// 4 KiB at random, as targets have it for peers.
pub const RANDREAD: &[&str] =
    &["--ioengine=io_uring", "--direct=1", "--rw=randread", "--bs=4k", "--iodepth=32"];
pub const RANDWRITE: &[&str] =
    &["--ioengine=io_uring", "--direct=1", "--rw=randwrite", "--bs=4k", "--iodepth=32"];

/// Runs fio on a file for `seconds`; returns reads and writes a second.
///
/// # Errors
/// What fio said.
pub fn fio(file: &Path, job: &[&str], seconds: f64) -> Result<f64, String> {
    let output = Command::new("fio")
        .args(["--name=bench", "--group_reporting", "--time_based", "--output-format=json"])
        .args(["--size=1g", "--allow_file_create=0"])
        .args(job)
        .arg(format!("--runtime={}ms", (seconds * 1e3) as u64))
        // fio splits names at colons.
        .arg(format!("--filename={}", file.display().to_string().replace(':', "\\:")))
        .output()
        .map_err(|e| format!("fio: {e}"))?;
    let begin = output.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    let parsed: Value = serde_json::from_slice(&output.stdout[begin..]).unwrap_or_default();
    let side = |name: &str| parsed["jobs"][0][name]["iops"].as_f64();
    match (side("read"), side("write")) {
        (Some(read), Some(write)) if output.status.success() => Ok(read + write),
        _ => {
            let err = String::from_utf8_lossy(&output.stderr);
            Err(format!("fio: {}: {}", file.display(), err.lines().next().unwrap_or("no result")))
        }
    }
}
