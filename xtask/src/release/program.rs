// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program of a release: built against an old glibc, its debug information in another file.

use std::path::{Path, PathBuf};

use super::context::{Release, call, output, target, tools_path};

/// RL-P1: RHEL 8's, Debian 10's. zig has the symbols of every glibc.
const GLIBC: [u32; 2] = [2, 28];
/// RL-P1: chosen (issue 49).
const PROGRAM_BYTES_MAX: u64 = 18_000_000;

/// Where the checkout and cargo's folder are while it is built, in a mount namespace (RL-B1). zig
/// compiles a few sources of its own, and has no option to leave its paths and the folder that it
/// is called in out of debug information.
const PLACE: &str = "/mnt";
const CARGO_PLACE: &str = "/media";

/// Mounts the folders $0 and $1 there, and runs the rest.
const IN_PLACE: &str = "mount --bind \"$0\" /mnt && mount --bind \"$1\" /media && \
                        cd /mnt && shift && exec \"$@\"";

/// Builds the program; returns the stripped one. Its debug information is in the release.
pub(super) fn build(release: &Release) -> Result<PathBuf, String> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = release.command("unshare");
    cargo.arg("--mount");
    if output(release.command("id").arg("-u"), &release.root)?.trim() != "0" {
        // Whoever is not root is it there, in a namespace of users.
        cargo.arg("--map-root-user");
    }
    cargo.args(["sh", "-c", IN_PLACE]).arg(&release.root).arg(cargo_home());
    cargo.env("CARGO_HOME", CARGO_PLACE);
    cargo.args(["cargo", "zigbuild", "--release", "--locked", "-p", "millpond", "--target"]);
    cargo.arg(format!("{triple}.{}.{}", GLIBC[0], GLIBC[1]));
    // RL-B1: these would be in file names of panics and of debug information.
    let paths = [(PLACE, "/millpond"), (CARGO_PLACE, "/cargo")];
    let remaps = paths.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    let flags: Vec<String> = remaps.chain(["-Clink-arg=-Wl,--build-id=sha1".to_owned()]).collect();
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // The libraries in C. `cc` reads the variable of this name for the target.
    let remaps = paths.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
    let c_flags: Vec<String> = remaps.collect();
    cargo.env(format!("CFLAGS_{}", triple.replace('-', "_")), c_flags.join(" "));
    // What lies in the checkout, with its name from there. No cache of other builds is used.
    let in_place = |path: &Path| match path.strip_prefix(&release.root) {
        Ok(inside) => Path::new(PLACE).join(inside),
        Err(_) => path.to_path_buf(),
    };
    for name in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "CARGO_ZIGBUILD_CACHE_DIR"] {
        cargo.env(name, in_place(&release.work().join("caches").join(name)));
    }
    let path: Vec<PathBuf> = tools_path().iter().map(|folder| in_place(folder)).collect();
    cargo.env("PATH", std::env::join_paths(path).expect("its parts are those of PATH"));
    cargo.env("CARGO_TARGET_DIR", in_place(&target(&release.root)));
    // Settings of the developer's, as for fast builds of tests.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PROFILE_") {
            cargo.env_remove(name);
        }
    }
    // Nothing of a build before: what zig compiles has the folder of the first crate that it links.
    let folder = target(&release.root).join(&triple).join("release");
    let _ = std::fs::remove_dir_all(&folder); // it may not be there
    call(&mut cargo)?;
    let built = folder.join("millpond");
    let program = split(release, &built)?;
    check(release, &program, &[release.root.display().to_string(), cargo_home()])?;
    Ok(program)
}

fn cargo_home() -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"))
}

/// Moves debug information and names of functions into a file that debuggers find by its name and
/// by the build id.
fn split(release: &Release, built: &Path) -> Result<PathBuf, String> {
    let work = release.work();
    let (program, debug) = (work.join("millpond"), work.join("millpond.debug"));
    let mut objcopy = release.command("objcopy");
    call(objcopy.args(["--only-keep-debug", "--compress-debug-sections"]).args([built, &debug]))?;
    let mut objcopy = release.command("objcopy");
    objcopy.arg("--strip-all").arg(format!("--add-gnu-debuglink={}", debug.display()));
    call(objcopy.args([built, &program]))?;
    let mut gzip = release.command("gzip");
    call(gzip.args(["-9", "-n", "-f"]).arg(&debug))?;
    let from = work.join("millpond.debug.gz");
    let to = release.file(&format!("{}.debug.gz", release.name()));
    std::fs::rename(&from, &to).map_err(|e| format!("{}: {e}", to.display()))?;
    Ok(program)
}

fn check(release: &Release, program: &Path, paths: &[String]) -> Result<(), String> {
    let bytes = std::fs::read(program).map_err(|e| format!("{}: {e}", program.display()))?;
    let size = u64::try_from(bytes.len()).expect("a usize is no more than an u64");
    if size > PROGRAM_BYTES_MAX {
        return Err(format!("the program has {size} bytes, more than {PROGRAM_BYTES_MAX}"));
    }
    for path in paths.iter().filter(|path| !path.is_empty()) {
        if bytes.windows(path.len()).any(|part| part == path.as_bytes()) {
            return Err(format!("the program names a folder of its builder: {path}"));
        }
    }
    let newest = needed(release, program)?;
    let newer: Vec<String> = newest
        .into_iter()
        .filter(|(_, version)| glibc(version).is_some_and(|number| number > GLIBC))
        .map(|(library, version)| format!("{library} {version}"))
        .collect();
    if newer.is_empty() { Ok(()) } else { Err(format!("the program needs {}", newer.join(", "))) }
}

/// The libraries of the system that a program needs, with each version of their symbols.
pub(super) fn needed(release: &Release, program: &Path) -> Result<Vec<(String, String)>, String> {
    let mut objdump = release.command("objdump");
    let found = versions(&output(objdump.arg("-p").arg(program), &release.root)?);
    if found.is_empty() {
        return Err(format!("{}: objdump shows no versions of symbols", program.display()));
    }
    Ok(found)
}

/// Reads `Version References` of `objdump -p`.
fn versions(text: &str) -> Vec<(String, String)> {
    let mut library = "";
    let mut found = Vec::new();
    for line in text.lines().skip_while(|line| !line.starts_with("Version References:")) {
        if let Some(name) = line.trim().strip_prefix("required from ") {
            library = name.trim_end_matches(':');
        } else if let [_, _, _, version] = line.split_whitespace().collect::<Vec<_>>()[..] {
            found.push((library.to_owned(), version.to_owned()));
        }
    }
    found.sort();
    found
}

/// The two numbers of GLIBC_2.28; of GLIBC_2.2.5, the first two.
fn glibc(version: &str) -> Option<[u32; 2]> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_symbols_are_read_from_objdump() {
        let text = "Dynamic Section:\n  NEEDED               libc.so.6\n\nVersion References:\n  \
                    required from libm.so.6:\n    0x09691a75 0x00 09 GLIBC_2.2.5\n  \
                    required from libc.so.6:\n    0x06969188 0x00 02 GLIBC_2.28\n\n";
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let expected = [pair("libc.so.6", "GLIBC_2.28"), pair("libm.so.6", "GLIBC_2.2.5")];
        assert_eq!(versions(text), expected);
    }

    #[test]
    fn versions_of_glibc_are_compared_as_numbers() {
        assert!(glibc("GLIBC_2.4").unwrap() < GLIBC);
        assert!(glibc("GLIBC_2.28").unwrap() == GLIBC);
        assert!(glibc("GLIBC_2.34").unwrap() > GLIBC);
        assert_eq!(glibc("GCC_3.0"), None);
    }
}
