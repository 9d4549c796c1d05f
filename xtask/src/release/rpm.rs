// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rpm of a release, by cargo-generate-rpm: it needs no rpmbuild, and rpm's own tools check it
//! (scripts/try-release.sh).

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::context::{self, Release, call};
use super::package::{files, install};
use super::program;

const CONFIG: &str = "/etc/millpond.toml";

/// Packs a program as rpm.
pub(super) fn make(release: &Release, program: &Path) -> Result<(), String> {
    let root = release.work().join("rpm");
    install(release, program, &root, "/usr")?;
    let config = root.join(&CONFIG[1..]);
    let made = std::fs::create_dir_all(root.join("etc")).and_then(|()| {
        std::fs::copy(release.root.join("packaging/millpond.toml"), &config).map(|_| ())
    });
    made.map_err(|e| format!("{}: {e}", config.display()))?;
    let man = root.join("usr/share/man");
    let mut gzip = release.command("gzip");
    call(gzip.args(["-9", "-n", "-r"]).arg(&man))?;
    let needed = program::needed(release, program)?;
    let paths = paths(&root)?;
    for path in &paths {
        set_time(release, &root.join(path))?;
    }
    let described = describe(release, &root, &paths, &needed);
    let metadata = release.work().join("rpm.toml");
    context::write(&metadata, &described)?;
    let name = format!("millpond-{}-1.{}.rpm", release.version, std::env::consts::ARCH);
    let mut cargo = release.command("cargo");
    cargo.args(["generate-rpm", "-p", "crates/millpond", "--source-date", &release.epoch]);
    // Every rpm reads gzip. zstd takes half a minute more, for a quarter less.
    cargo.args(["--payload-compress", "gzip"]);
    cargo.arg("--metadata-overwrite").arg(&metadata).arg("-o").arg(release.file(&name));
    call(&mut cargo)
}

/// RL-B1: an rpm has the times of its files.
fn set_time(release: &Release, path: &Path) -> Result<(), String> {
    let seconds = release.epoch.parse().map_err(|_| format!("no time: {}", release.epoch))?;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let file = std::fs::File::options().append(true).open(path);
    file.and_then(|f| f.set_modified(time)).map_err(|e| format!("{}: {e}", path.display()))
}

/// All files below a folder, sorted, relative to it.
fn paths(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        found.extend(files(&folder)?.into_iter().map(|(name, _)| folder.join(name)));
        for entry in std::fs::read_dir(&folder).map_err(|e| e.to_string())? {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    let below = |path: &PathBuf| path.strip_prefix(root).map(Path::to_path_buf);
    found.iter().map(below).collect::<Result<_, _>>().map_err(|e| e.to_string())
}

/// The table that cargo-generate-rpm reads.
fn describe(
    release: &Release,
    root: &Path,
    paths: &[PathBuf],
    needed: &[(String, String)],
) -> String {
    let mut text = format!("version = {:?}\n", release.version);
    for (key, file) in [
        ("post_install_script", "post"),
        ("pre_uninstall_script", "preun"),
        ("post_uninstall_script", "postun"),
    ] {
        let script = release.root.join("packaging/rpm").join(file);
        let _ = writeln!(text, "{key} = {:?}", script.display().to_string());
    }
    text.push_str("assets = [\n");
    for path in paths {
        let to = format!("/{}", path.display());
        let kind = match &*to {
            CONFIG => ", config = \"noreplace\"",
            _ if to.starts_with("/usr/share/doc/") => ", doc = true",
            _ => "",
        };
        let mode = if is_program(&to) { "755" } else { "644" };
        let from = root.join(path).display().to_string();
        let _ = writeln!(
            text,
            "  {{ source = {from:?}, dest = {to:?}, mode = \"{mode}\", user = \"root\", \
             group = \"root\"{kind} }},"
        );
    }
    text.push_str("]\n[requires]\n");
    for (library, version) in needed {
        let _ = writeln!(text, "\"{library}({version})(64bit)\" = \"*\"");
    }
    text
}

fn is_program(path: &str) -> bool {
    path.starts_with("/usr/bin/") || path == "/usr/lib/udev/millpond-export"
}
