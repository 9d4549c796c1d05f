// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes `tests/previous` from the program of a release: see `e2e::previous`. `make previous` calls
//! it.
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use e2e::Result;
use e2e::previous::{self, After, DEVICE, FEATURES, Feature, folder};
use e2e::process::output;
use rustix::process::{Pid, Signal, kill_process};

/// The page of the folder: then what differs from release to release.
const HEAD: &str = "\
# The release before this tree

`millpond.zst` is its program, the very bytes that were released; `images` are media that it has
left after `kill -9`. The tests of `doors::previous` open them, and upgrade that program to this
tree's. They are in the repository and are not built from the tag where they are needed: a build
takes longer than all the tests that need it, and a copy of the repository may lack the tag. The
program can be made again from its tag, byte for byte, with `make release-build VERSION=...`.
`make previous VERSION=...` makes this folder anew from such a release; do it with each release,
and never by hand. An archive of a feature that the release does not have any more is what the last
one with it had left: it stays.
";

/// Kills of the image with all features together.
const POINTS: u64 = 20;

/// Keep a released program, and media that it leaves, for the tests of later versions
#[derive(Debug, Parser)]
#[command(name = "previous", max_term_width = 100)]
struct Args {
    /// The program, as it was released for this machine
    program: PathBuf,
}

/// Media after a kill with requests in flight, at the `writes`th answer.
fn make(feature: &Feature, program: &Path, writes: u64, archive: &Path) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let dir = dir.path();
    feature.make_files(dir)?;
    let daemon = feature.start(program, dir, false)?;
    let mut stamps = Feature::stamps(writes);
    stamps.lay(&mut daemon.connect(DEVICE)?).map_err(|e| e.to_string())?;
    let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
    feature.write(&daemon, dir, &mut stamps, writes, || {
        kill_process(pid, Signal::KILL).map_err(|e| e.to_string())?;
        Ok(After::Killed)
    })?;
    drop(daemon);
    feature.pack(dir, &stamps, archive)?;
    let bytes = std::fs::metadata(archive).map_err(|e| e.to_string())?.len();
    println!("{bytes:>8} bytes  {}", archive.display());
    Ok(())
}

fn keep(program: &Path) -> Result<()> {
    let version = previous::version(program)?;
    let tag = format!("v{version}");
    let commit = output("git", &["rev-list", "-n", "1", &tag])?;
    let images = folder().join("images");
    // What only an earlier release could make stays as that one left it.
    for archive in FEATURES.iter().filter(|feature| feature.gone.is_none()).map(previous::archives)
    {
        for path in archive.unwrap_or_default() {
            std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    std::fs::create_dir_all(&images).map_err(|e| format!("{}: {e}", images.display()))?;
    let packed = folder().join("millpond.zst");
    let densest = *zstd::compression_level_range().end();
    let pack = || {
        let bytes = zstd::bulk::compress(&std::fs::read(program)?, densest)?;
        std::fs::write(&packed, &bytes)?;
        Ok(bytes.len())
    };
    let bytes = pack().map_err(|e: std::io::Error| format!("{}: {e}", program.display()))?;
    println!("{bytes:>8} bytes  {}", packed.display());
    let (together, alone) = FEATURES.split_last().ok_or("no features")?;
    for feature in alone.iter().filter(|feature| feature.gone.is_none()) {
        make(feature, program, 150, &images.join(format!("{}.tar.gz", feature.name)))?;
    }
    for point in 1..=POINTS {
        let archive = images.join(format!("{}-{point:02}.tar.gz", together.name));
        make(together, program, point * 8, &archive)?;
    }
    let page = format!(
        "{HEAD}\n| | |\n|---|---|\n| version | {version} |\n| tag | {tag} |\n| commit | {} |\n\
         | machine | {} |\n| SHA-256 of the program | {} |\n",
        commit.trim(),
        std::env::consts::ARCH,
        previous::sum(program)?,
    );
    let path = folder().join("README.md");
    std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))
}

fn main() -> ExitCode {
    match keep(&Args::parse().program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("previous: {e}");
            ExitCode::FAILURE
        }
    }
}
