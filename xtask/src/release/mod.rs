// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A release: `xtask release check | build | compare VERSION`, in this order by `make release`.
//!
//! ```text
//! target/release-VERSION/
//!   millpond-VERSION-ARCH-linux.tar.gz      what `make install` installs, with all licences
//!   millpond-VERSION-ARCH-linux.debug.gz    debug information of the program in it
//!   millpond_VERSION_ARCH.deb
//!   millpond-VERSION-1.ARCH.rpm
//!   Containerfile                           of an image with the program of the tarball
//!   millpond-VERSION.cdx.json               libraries in the program: a CycloneDX SBOM
//!   NOTES.md                                the version's part of CHANGELOG.md
//!   SHA256SUMS                              of all of these
//!   SHA256SUMS.sig                          its signature by ssh-keygen, where KEY is set
//! ```
//!
//! Invariants
//! - RL-B1 The same commit gives the same bytes, in whatever folder and at whatever time. Times are
//!   those of the commit, paths of the builder are replaced, files are sorted, owners are root.
//! - RL-P1 The program runs with glibc 2.28, and has at most 18 MB.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod check;
mod compare;
mod context;
mod package;
mod program;
mod rpm;
mod sbom;

use check::findings;
use context::{Release, folder_of, read, write};

pub(crate) const USAGE: &str = "\
       xtask release check VERSION          whether this commit can be released as VERSION
       xtask release build VERSION          makes target/release-VERSION (KEY=FILE signs it)
       xtask release compare VERSION        builds a clone elsewhere: are its bytes the same?
       xtask release package VERSION FOLDER PROGRAM   packs a program that is built already";

/// Runs one command of a release.
pub(crate) fn run(root: &Path, words: &[&str]) -> ExitCode {
    let done = match words {
        ["check", version] => check_all(root, version),
        ["build", version] => build(root, version),
        ["compare", version] => compare::compare(root, version),
        ["package", version, folder, program] => {
            let folder = PathBuf::from(folder);
            Release::of(root, version, folder).and_then(|r| package::package(&r, program.as_ref()))
        }
        _ => {
            eprintln!("usage: {}", USAGE.trim_start());
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("release: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn check_all(root: &Path, version: &str) -> Result<(), String> {
    let found = findings(root, version)?;
    for finding in &found {
        eprintln!("release: {finding}");
    }
    match found.len() {
        0 => Ok(()),
        number => Err(format!("{number} things to mend before {version} can be made")),
    }
}

fn build(root: &Path, version: &str) -> Result<(), String> {
    check_all(root, version)?;
    let release = Release::of(root, version, folder_of(root, version))?;
    for folder in [&release.out, &release.work()] {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let program = program::build(&release)?;
    package::package(&release, &program)?;
    sbom::write_document(&release)?;
    let notes = check::notes(&read(&root.join("CHANGELOG.md"))?, version)?;
    write(&release.file("NOTES.md"), &notes)?;
    package::sums(&release)?;
    package::sign(&release)?;
    for (name, bytes) in package::files(&release.out)? {
        println!("{bytes:>12}  {name}");
    }
    println!("release: {}", release.out.display());
    Ok(())
}
