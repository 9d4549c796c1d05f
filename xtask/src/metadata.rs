// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What cargo knows about the workspace, read once from `cargo metadata`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// One package: ours if `outside` is false.
#[derive(Debug, Clone, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) outside: bool,
    /// Its Cargo.toml.
    pub(crate) manifest: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a package's dependency tables.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Only tests and benches of the package see it.
    pub(crate) dev: bool,
}

/// All packages of the workspace and what they need on Linux, as locked in Cargo.lock.
pub(crate) fn read(root: &Path) -> Result<Vec<Package>, String> {
    json(root).map(|json| packages(&json))
}

/// The answer of `cargo metadata` itself.
pub(crate) fn json(root: &Path) -> Result<Value, String> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1"])
        // Others' platforms would only bring packages that we never build.
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// The packages in the answer of `cargo metadata`.
fn packages(json: &Value) -> Vec<Package> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    // With --filter-platform only the resolved graph leaves out other platforms' packages.
    let needed: Vec<String> =
        list(&json["resolve"]["nodes"]).iter().map(|n| text(&n["id"])).collect();
    list(&json["packages"])
        .iter()
        .filter(|p| needed.is_empty() || needed.contains(&text(&p["id"])))
        .map(|p| Package {
            name: text(&p["name"]),
            version: text(&p["version"]),
            license: p["license"].as_str().map(str::to_owned),
            outside: !p["source"].is_null(),
            manifest: text(&p["manifest_path"]).into(),
            dependencies: list(&p["dependencies"])
                .iter()
                .map(|d| Dependency { name: text(&d["name"]), dev: d["kind"] == "dev" })
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_outside_the_resolved_graph_are_left_out() {
        let json = serde_json::json!({
            "packages": [
                {"id": "a", "name": "block", "version": "1.0.0", "license": "MIT", "source": null,
                 "dependencies": [{"name": "slab", "kind": null}, {"name": "sim", "kind": "dev"}]},
                {"id": "w", "name": "windows-sys", "version": "1.0.0", "license": "MIT",
                 "source": "registry", "dependencies": []},
            ],
            "resolve": {"nodes": [{"id": "a"}]},
        });
        let found = packages(&json);
        assert_eq!(found.len(), 1);
        assert!(!found[0].outside);
        let dev: Vec<bool> = found[0].dependencies.iter().map(|d| d.dev).collect();
        assert_eq!(dev, [false, true]);
    }

    #[test]
    fn this_workspace_can_be_read() {
        let packages = read(&crate::root()).unwrap();
        assert!(packages.iter().any(|p| p.name == "xtask" && !p.outside));
        assert!(packages.iter().any(|p| p.name == "serde_json" && p.outside));
    }
}
