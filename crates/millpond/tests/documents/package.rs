// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where `make install` puts what, what `make uninstall` leaves, and what a Debian package holds.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{CommandOutput, MILLPOND, folder, sh};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a goal of the Makefile on the program of the tests, with `root` for the system.
fn make(goal: &str, root: &Path) {
    make_with(goal, root, "/usr");
}

fn make_with(goal: &str, root: &Path, prefix: &str) {
    let mut make = Command::new("make");
    make.args(["-s", goal]).arg(format!("PREFIX={prefix}")).current_dir(repository());
    make.arg(format!("PROGRAM={MILLPOND}")).arg(format!("DESTDIR={}", root.display()));
    // This test may run in a make of its own.
    make.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
    assert_eq!(CommandOutput::from(make.output().unwrap()).ok(), "");
}

/// The files below a folder: their modes and their paths, sorted.
fn files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
            let path = entry.path();
            files.push(format!("{mode:o} {}", path.strip_prefix(root).unwrap().display()));
        }
    }
    files.sort();
    files
}

/// The pages of `docs` that end in `extension`.
fn docs(dir: &str, extension: &str) -> Vec<String> {
    let entries = std::fs::read_dir(repository().join(dir)).unwrap().map(Result::unwrap);
    let names = entries.map(|e| e.file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(extension)).collect()
}

#[test]
fn install_puts_each_file_in_its_place() {
    let root = folder();
    make("install", root.path());
    let mut expected: Vec<String> = [
        "755 usr/bin/millpond",
        "755 usr/lib/udev/millpond-export",
        "644 usr/lib/udev/rules.d/70-millpond.rules",
        "644 usr/lib/systemd/system/millpond.service",
        "644 usr/lib/systemd/system/millpond.socket",
        "644 usr/lib/sysusers.d/millpond.conf",
        "644 usr/lib/tmpfiles.d/millpond.conf",
        "644 usr/share/bash-completion/completions/millpond",
        "644 usr/share/fish/vendor_completions.d/millpond.fish",
        "644 usr/share/zsh/site-functions/_millpond",
    ]
    .map(str::to_owned)
    .into();
    for section in ["1", "5", "7"] {
        let pages = docs("docs/man", &format!(".{section}"));
        expected.extend(pages.iter().map(|p| format!("644 usr/share/man/man{section}/{p}")));
    }
    let folders = ["docs", "docs/format", "docs/decisions"];
    let pages = folders.into_iter().flat_map(|folder| {
        docs(folder, ".md").into_iter().map(move |page| format!("{folder}/{page}"))
    });
    let pages = pages.chain(docs("", ".md"));
    let others = [
        "contrib/prometheus/alerts.yml",
        "millpond.toml",
        "disks.conf",
        "fuse.conf",
        "crates/writecache/writecache.md",
        "crates/zram/zram.md",
        "crates/pagecache/buffered.md",
        "crates/objvol/objvol.md",
    ];
    let pages = pages.chain(others.map(str::to_owned));
    expected.extend(pages.map(|page| format!("644 usr/share/doc/millpond/{page}")));
    expected.sort();
    assert_eq!(files(root.path()), expected);
}

#[test]
fn links_of_installed_pages_lead_to_installed_files() {
    let root = folder();
    make("install", root.path());
    let doc = root.path().join("usr/share/doc/millpond");
    let mut checked = 0;
    let installed = files(&doc).into_iter().map(|file| file.split_once(' ').unwrap().1.to_owned());
    for page in installed.filter(|name| name.ends_with(".md")) {
        let text = std::fs::read_to_string(doc.join(&page)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let to = link.0.split('#').next().unwrap();
            if to.is_empty() || to.contains(':') || to.contains(char::is_whitespace) {
                continue;
            }
            let file = doc.join(&page).parent().unwrap().join(to);
            assert!(file.exists(), "{page}: {to} is not installed");
            checked += 1;
        }
    }
    assert!(checked > 150, "{checked} links");
}

#[test]
fn the_installed_configuration_names_an_installed_page() {
    for prefix in ["/usr", "/usr/local"] {
        let root = folder();
        make_with("install", root.path(), prefix);
        let doc = root.path().join(&prefix[1..]).join("share/doc/millpond");
        let config = std::fs::read_to_string(doc.join("millpond.toml")).unwrap();
        let page = config.split_whitespace().find(|word| word.contains("/share/doc/")).unwrap();
        let page = root.path().join(page[1..].trim_end_matches(['.', ',']));
        assert!(page.exists(), "{}", page.display());
    }
}

#[test]
fn the_installed_program_has_no_debug_information() {
    let root = folder();
    make("install", root.path());
    let program = root.path().join("usr/bin/millpond");
    let sections = sh("objdump", &["-h", program.to_str().unwrap()]).ok();
    // A build with line numbers keeps the name of a script for debuggers, 34 bytes.
    let has = |name: &str| sections.contains(name);
    assert!(has(".text") && !has(".debug_info") && !has(".debug_line"), "{sections}");
    assert_eq!(sh(program.to_str().unwrap(), &["help"]).ok(), sh(MILLPOND, &["help"]).ok());
}

#[test]
fn installed_completions_are_those_of_the_program() {
    let root = folder();
    make("install", root.path());
    let installed = root.path().join("usr/share/bash-completion/completions/millpond");
    let script = sh(MILLPOND, &["completions", "bash"]).ok();
    assert_eq!(std::fs::read_to_string(installed).unwrap(), script);
}

#[test]
fn the_udev_rule_calls_the_helper_that_is_installed() {
    for prefix in ["/usr", "/usr/local"] {
        let root = folder();
        make_with("install", root.path(), prefix);
        let rule = root.path().join(&prefix[1..]).join("lib/udev/rules.d/70-millpond.rules");
        let rule = std::fs::read_to_string(rule).unwrap();
        let program = rule.split("PROGRAM=\"").nth(1).unwrap().split(' ').next().unwrap();
        let helper = root.path().join(&program[1..]);
        assert_eq!(std::fs::metadata(&helper).unwrap().permissions().mode() & 0o111, 0o111);
        // It adds a link and sets nothing else of a device, whosever that is.
        let lines = rule.lines().filter(|line| !line.starts_with('#'));
        let words = lines.flat_map(|line| line.trim_end_matches('\\').split(", ")).map(str::trim);
        let set = words.filter(|word| !word.contains("==") && !word.contains("!="));
        let set = set.filter(|word| !word.is_empty() && !word.starts_with("PROGRAM="));
        let set: Vec<&str> = set.collect();
        assert_eq!(set, ["SYMLINK+=\"millpond/$result\""], "{rule}");
    }
}

#[test]
fn the_helper_of_udev_names_devices_of_millpond_only() {
    let dir = folder();
    let table = dir.path().join("nbdtab");
    let lines = "# nbd9 /run/millpond/nbd.sock no unix\n\
                 nbd0 /run/millpond/nbd.sock\twc unix,persist\n \
                 nbd1  other.example  data\n\
                 nbd2 127.0.0.1 far port=10810,_millpond # by TCP\n\
                 nbd3 /run/other/nbd.sock wc unix\n\
                 nbd4 other.example wc x_millpond\n\
                 nbd5 /run/millpond/nbd.sock ../sda unix\n\
                 nbd6 /run/millpond/nbd.sock .. unix\n\
                 nbd7 /run/millpond/nbd.sock two unix\nnbd7 other.example lines\n\
                 nbd8 other.example lines\nnbd8 /run/millpond/nbd.sock two unix\n\
                 nbd11 /run/millpond/nbd.sock *? unix\n\
                 nbd12 /run/millpond/nbd.sock #wc unix\n\
                 nbd10 /run/millpond/nbd.sock vg-root.0:a=b@c+d_e unix";
    std::fs::write(&table, lines).unwrap();
    let helper = repository().join("packaging/udev/millpond-export");
    let names = (0..=13).map(|number| {
        let device = format!("nbd{number}");
        let args = [helper.to_str().unwrap(), &device, table.to_str().unwrap()];
        let output = sh("sh", &args);
        assert!(output.err.is_empty(), "{output:?}");
        assert_eq!(output.code, Some(i32::from(output.out.is_empty())), "{output:?}");
        output.out.trim_end().to_owned()
    });
    let named: Vec<(usize, String)> = names.enumerate().filter(|(_, n)| !n.is_empty()).collect();
    let expected = [(0, "wc"), (2, "far"), (10, "vg-root.0:a=b@c+d_e")];
    assert_eq!(named, expected.map(|(number, name)| (number, name.to_owned())));
    // A machine without nbd-client: no name, and no device is one of millpond's.
    let missing = dir.path().join("nothing");
    let args = [helper.to_str().unwrap(), "nbd0", missing.to_str().unwrap()];
    let output = sh("sh", &args);
    assert!(output.out.is_empty() && output.code != Some(0), "{output:?}");
}

#[test]
fn the_helper_of_udev_names_block_devices_of_the_kernel() {
    let dir = folder();
    for (name, to) in [
        ("wc", "ublkb0"),
        ("of", "sda"),
        ("a b", "ublkb2"),
        ("x", "ublkb11"),
        ("one", "ublkb4"),
        ("two", "ublkb4"),
    ] {
        std::os::unix::fs::symlink(format!("/dev/{to}"), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("file"), "/dev/ublkb3").unwrap();
    let helper = repository().join("packaging/udev/millpond-export");
    let named = |device: &str, links: &Path| {
        let output = sh("sh", &[helper.to_str().unwrap(), device, links.to_str().unwrap()]);
        assert!(output.err.is_empty(), "{output:?}");
        assert_eq!(output.code, Some(i32::from(output.out.is_empty())), "{output:?}");
        output.out.trim_end().to_owned()
    };
    for (device, name) in [("ublkb0", "wc"), ("ublkb11", "x")] {
        assert_eq!(named(device, dir.path()), name);
    }
    // Of another daemon, no name of a link, or two links: nobody knows which one is right.
    for device in ["ublkb1", "ublkb2", "ublkb3", "ublkb4"] {
        assert_eq!(named(device, dir.path()), "", "{device}");
    }
    assert_eq!(named("ublkb0", &dir.path().join("nothing")), "", "no daemon has run");
}

#[test]
fn uninstall_leaves_the_files_of_others_only() {
    let root = folder();
    make("install", root.path());
    let other = root.path().join("usr/share/man/man1/other.1");
    std::fs::write(&other, "").unwrap();
    std::fs::create_dir(root.path().join("etc")).unwrap();
    std::fs::write(root.path().join("etc/millpond.toml"), "").unwrap();
    make("uninstall", root.path());
    let left: Vec<String> =
        files(root.path()).iter().map(|f| f.split_once(' ').unwrap().1.to_owned()).collect();
    assert_eq!(left, ["etc/millpond.toml", "usr/share/man/man1/other.1"]);
    assert!(!root.path().join("usr/share/doc/millpond").exists());
}

#[test]
fn a_debian_package_has_all_files_and_its_scripts() {
    let target = folder();
    let mut script = Command::new(repository().join("scripts/deb.sh"));
    script.args([MILLPOND, "9.8.7"]).env("CARGO_TARGET_DIR", target.path());
    script.env_remove("MAKEFLAGS").env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let out = script.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let debian = target.path().join("debian");
    let mut found = std::fs::read_dir(&debian).unwrap().map(|e| e.unwrap().path());
    let package = found.find(|p| p.extension().is_some_and(|e| e == "deb")).unwrap();
    let package = package.to_str().unwrap();
    let field = |name: &str| sh("dpkg-deb", &["--field", package, name]).ok();
    assert_eq!((field("Package"), field("Version")), ("millpond\n".into(), "9.8.7\n".into()));
    assert!(field("Depends").contains("libc6 (>= "), "{}", field("Depends"));
    let list = sh("dpkg-deb", &["--contents", package]).ok();
    for path in [
        "-rwxr-xr-x root/root ./usr/bin/millpond",
        "-rw-r--r-- root/root ./etc/millpond.toml",
        "-rw-r--r-- root/root ./usr/lib/systemd/system/millpond.service",
        "-rwxr-xr-x root/root ./usr/lib/udev/millpond-export",
        "-rw-r--r-- root/root ./usr/lib/udev/rules.d/70-millpond.rules",
        "-rw-r--r-- root/root ./usr/lib/systemd/system/millpond.socket",
        "-rw-r--r-- root/root ./usr/share/man/man1/millpond-create.1.gz",
        "-rw-r--r-- root/root ./usr/share/doc/millpond/copyright",
        "-rw-r--r-- root/root ./usr/share/doc/millpond/changelog.gz",
        "-rw-r--r-- root/root ./usr/share/doc/millpond/libraries.txt.gz",
    ] {
        let (mode, name) = path.split_once(" ./").unwrap();
        let line = list.lines().find(|l| l.ends_with(&format!(" ./{name}")));
        assert!(line.is_some_and(|l| l.starts_with(mode)), "{path}: {line:?}\n{list}");
    }
    let control = folder();
    sh("dpkg-deb", &["--control", package, control.path().to_str().unwrap()]).ok();
    let scripts = ["conffiles", "control", "postinst", "postrm", "prerm"];
    let names: Vec<String> = files(control.path());
    assert_eq!(names.len(), scripts.len(), "{names:?}");
    for name in &scripts[2..] {
        assert!(names.contains(&format!("755 {name}")), "{names:?}");
        sh("sh", &["-n", control.path().join(name).to_str().unwrap()]).ok();
    }
    let libraries = debian.join("root/usr/share/doc/millpond/libraries.txt.gz");
    let libraries = sh("gzip", &["-cd", libraries.to_str().unwrap()]).ok();
    for (crate_name, license) in [("tokio", "MIT"), ("clap", "Apache"), ("zstd-sys", "BSD")] {
        let part = libraries.split("\n== ").find(|p| p.starts_with(&format!("{crate_name} ")));
        assert!(part.is_some_and(|p| p.len() > 500 && p.contains(license)), "{crate_name}");
    }
}

/// A removal deleted the journals of a daemon that was killed: what its clients had written and not
/// flushed was there alone.
#[test]
fn a_removal_keeps_the_journals_of_a_killed_daemon() {
    let root = folder();
    let (run, tools) = (root.path().join("run"), root.path().join("tools"));
    let script = repository().join("packaging/debian/postrm");
    let script = std::fs::read_to_string(script).unwrap();
    // Nothing of this machine's systemd and packages is touched.
    let script = script.replace("/run/systemd/system", "/nonexistent");
    let script = script.replace("/run/millpond", run.to_str().unwrap());
    std::fs::create_dir(&tools).unwrap();
    let rm = sh("sh", &["-c", "command -v rm"]).ok();
    std::os::unix::fs::symlink(rm.trim(), tools.join("rm")).unwrap();
    let remove = || {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script, "postrm", "remove"]).env("PATH", &tools);
        CommandOutput::from(shell.output().unwrap()).ok()
    };
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("lock"), "17\n").unwrap();
    std::fs::write(run.join("journal-1"), "x").unwrap();
    assert!(remove().contains("the daemon did not end in order"));
    assert!(run.join("journal-1").exists());
    std::fs::write(run.join("lock"), "").unwrap();
    assert_eq!(remove(), "");
    assert!(!run.exists());
    assert_eq!(remove(), "", "nothing is there");
}
