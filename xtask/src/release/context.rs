// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all steps of a release share: its names, the environment of its commands, files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What all steps of a release know.
pub(super) struct Release {
    pub(super) root: PathBuf,
    pub(super) version: String,
    /// Of its files.
    pub(super) out: PathBuf,
    /// Seconds since 1970: the time of the commit (RL-B1).
    pub(super) epoch: String,
}

impl Release {
    pub(super) fn of(root: &Path, version: &str, out: PathBuf) -> Result<Release, String> {
        let epoch = output(Command::new("git").args(["log", "-1", "--format=%ct"]), root)?;
        Ok(Release {
            root: root.to_path_buf(),
            version: version.to_owned(),
            out,
            epoch: epoch.trim().to_owned(),
        })
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// What is made on the way and is no part of the release.
    pub(super) fn work(&self) -> PathBuf {
        let mut path = self.out.clone().into_os_string();
        path.push("-work");
        path.into()
    }

    /// Beginning of the names of files for one kind of processor.
    pub(super) fn name(&self) -> String {
        format!("millpond-{}-{}-linux", self.version, std::env::consts::ARCH)
    }

    /// A command in the root of the checkout that sees the same on every machine (RL-B1).
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("SOURCE_DATE_EPOCH", &self.epoch);
        let path = std::env::join_paths(tools_path());
        let path = path.expect("RELEASE_TOOLS is a folder without a colon in its name");
        command.env("LC_ALL", "C").env("TZ", "UTC0").env("PATH", path);
        // The block size of xz, and with it the package, may depend on the number of threads.
        command.env("DPKG_DEB_THREADS_MAX", "1");
        command
    }
}

pub(super) fn target(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

pub(super) fn folder_of(root: &Path, version: &str) -> PathBuf {
    target(root).join(format!("release-{version}"))
}

/// The folders of programs: that of scripts/release-tools.sh before those of the system.
pub(super) fn tools_path() -> Vec<PathBuf> {
    let tools = std::env::var_os("RELEASE_TOOLS").map(|tools| Path::new(&tools).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    tools.into_iter().chain(std::env::split_paths(&path)).collect()
}

pub(super) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Standard output of a command that must succeed.
pub(super) fn output(command: &mut Command, folder: &Path) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.current_dir(folder).output().map_err(|e| format!("{name}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a command that must succeed and may print.
pub(super) fn call(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|e| format!("{name}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}
