// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users download: a tarball, a Debian package, an rpm and the recipe of an image, each made
//! of what `make install` installs; their checksums, and the signature of these.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::context::{Release, call, output, read, write};
use super::rpm;

/// Packs a program into the folder of a release.
pub(super) fn package(release: &Release, program: &Path) -> Result<(), String> {
    let program = std::path::absolute(program).map_err(|e| e.to_string())?;
    for folder in [&release.out, &release.work()] {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    tarball(release, &program)?;
    debian(release, &program)?;
    rpm::make(release, &program)?;
    let recipe = read(&release.root.join("packaging/Containerfile"))?;
    let recipe = recipe.replace("@TARBALL@", &format!("{}.tar.gz", release.name()));
    write(&release.file("Containerfile"), &recipe)
}

/// Installs a program and all licences below `root`, which is emptied before.
pub(super) fn install(
    release: &Release,
    program: &Path,
    root: &Path,
    prefix: &str,
) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(root);
    let mut make = release.command("make");
    make.args(["--silent", "--no-print-directory", "install"]);
    make.arg(format!("PROGRAM={}", program.display()));
    make.arg(format!("DESTDIR={}", root.display())).arg(format!("PREFIX={prefix}"));
    // This may run in a make of its own.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        make.env_remove(name);
    }
    call(&mut make)?;
    let doc = root.join(&prefix[1..]).join("share/doc/millpond");
    let libraries = output(&mut release.command("scripts/libraries.sh"), &release.root)?;
    write(&doc.join("libraries.txt"), &libraries)?;
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        write(&doc.join(name), &read(&release.root.join(name))?)?;
    }
    Ok(())
}

fn tarball(release: &Release, program: &Path) -> Result<(), String> {
    let root = release.work().join("tarball");
    install(release, program, &root, "/usr/local")?;
    let name = format!("millpond-{}", release.version);
    let (from, to) = (root.join("usr/local"), root.join(&name));
    std::fs::rename(&from, &to).map_err(|e| format!("{}: {e}", to.display()))?;
    let mut tar = release.command("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--mode=u=rwX,go=rX");
    tar.args(["--use-compress-program", "gzip -9 -n", "--create", "--directory"]).arg(&root);
    tar.arg("--file").arg(release.file(&format!("{}.tar.gz", release.name()))).arg(&name);
    call(&mut tar)
}

fn debian(release: &Release, program: &Path) -> Result<(), String> {
    let mut script = release.command("scripts/deb.sh");
    script.env("CARGO_TARGET_DIR", release.work()).stdout(std::process::Stdio::null());
    call(script.arg(program).arg(&release.version))?;
    let made = release.work().join("debian");
    let prefix = format!("millpond_{}_", release.version);
    for (name, _) in files(&made)? {
        if name.starts_with(&prefix) {
            return std::fs::rename(made.join(&name), release.file(&name))
                .map_err(|e| format!("{name}: {e}"));
        }
    }
    Err(format!("scripts/deb.sh made no {prefix}ARCH.deb in {}", made.display()))
}

/// The names and sizes of the files of a folder, sorted.
pub(super) fn files(folder: &Path) -> Result<Vec<(String, u64)>, String> {
    let problem = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let about = entry.metadata().map_err(problem)?;
        if about.is_file() {
            found.push((entry.file_name().to_string_lossy().into_owned(), about.len()));
        }
    }
    found.sort();
    Ok(found)
}

/// Writes SHA256SUMS of all files that are there.
pub(super) fn sums(release: &Release) -> Result<(), String> {
    let names: Vec<String> = files(&release.out)?.into_iter().map(|(name, _)| name).collect();
    let text = output(release.command("sha256sum").args(names), &release.out)?;
    write(&release.file("SHA256SUMS"), &text)
}

/// Signs SHA256SUMS by the key file in the variable KEY, where there is one.
pub(super) fn sign(release: &Release) -> Result<(), String> {
    let Some(key) = std::env::var_os("KEY").filter(|key| !key.is_empty()) else {
        println!("release: SHA256SUMS is not signed: KEY names no key");
        return Ok(());
    };
    let key = std::path::absolute(PathBuf::from(key)).map_err(|e| e.to_string())?;
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-Y", "sign", "-n", "millpond-release", "-f"]).arg(key);
    call(keygen.arg(release.file("SHA256SUMS")))
}
