// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a path leads into a mount, found without access to the mounted file system.
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Links that one path may hold, as in the kernel.
const LINKS_MAX: usize = 40;

/// Whether the absolute `path` leads to what is mounted at `dir` (absolute, without links), or
/// below it. No file there is accessed.
pub(crate) fn leads_into(path: &Path, dir: &Path) -> bool {
    let own = fuse::places(dir);
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|c| c.as_os_str().to_owned()).collect()
    };
    let mut left = names(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => at = "/".into(),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => at.push(name),
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
        if own.contains(&at) {
            return true;
        }
        if let Ok(to) = std::fs::read_link(&at) {
            links += 1;
            if links > LINKS_MAX {
                return false; // it can't be opened
            }
            at.pop();
            left.extend(names(&to));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_into_our_own_mount_is_found_without_a_look_there() {
        let tmp = tempfile::tempdir().unwrap();
        let base = tmp.path().canonicalize().unwrap();
        let dir = base.join("pond");
        symlink("pond/dev", base.join("relative")).unwrap();
        symlink(dir.join("dev/wc"), base.join("absolute")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        for (path, inside) in [
            ("pond/dev/wc", true),
            ("pond", true),
            ("other/../pond/x", true),
            ("relative/wc", true),
            ("absolute", true),
            ("pond2/dev/wc", false),
            ("wc.img", false),
            ("loop", false),
        ] {
            assert_eq!(leads_into(&base.join(path), &dir), inside, "{path}");
        }
        assert!(!leads_into(Path::new("/"), &dir));
    }
}
