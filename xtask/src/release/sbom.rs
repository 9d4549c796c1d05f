// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The libraries in the program and what each of them needs, as a CycloneDX 1.5 document.
//!
//! `cargo tree` says which ones are in the program of the release, `cargo metadata` what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};
use spdx::Expression;

use super::context::{Release, output, read, write};
use crate::metadata;

/// Writes the document into the release.
pub(super) fn write_document(release: &Release) -> Result<(), String> {
    let mut tree = release.command("cargo");
    tree.args(["tree", "--locked", "-p", "millpond", "-e", "normal", "--prefix", "none"]);
    let linked = linked(&output(&mut tree, &release.root)?);
    let checksums = checksums(&read(&release.root.join("Cargo.lock"))?);
    let packages = metadata::json(&release.root)?;
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("@{}", release.epoch));
    let time = output(&mut date, &release.root)?;
    let document = document(&packages, &linked, &checksums, time.trim());
    if document["components"].as_array().is_none_or(|all| all.len() + 1 != linked.len()) {
        return Err("SBOM: cargo metadata does not know all libraries of cargo tree".to_owned());
    }
    let text = serde_json::to_string_pretty(&document).map_err(|e| e.to_string())?;
    write(&release.file(&format!("millpond-{}.cdx.json", release.version)), &format!("{text}\n"))
}

type Named = (String, String);

/// Names and versions in the output of `cargo tree --prefix none`.
fn linked(tree: &str) -> BTreeSet<Named> {
    let words = tree.lines().map(|line| line.split(' '));
    words
        .filter_map(|mut w| Some((w.next()?.to_owned(), w.next()?.strip_prefix('v')?.to_owned())))
        .collect()
}

/// The checksums of downloaded packages.
fn checksums(lock: &str) -> BTreeMap<Named, String> {
    let mut found = BTreeMap::new();
    for part in lock.split("\n[[package]]\n").skip(1) {
        let value = |key: &str| {
            let line = part.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|text| text.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name"), value("version"), value("checksum"))
        {
            found.insert((name, version), sum);
        }
    }
    found
}

fn document(
    metadata: &Value,
    linked: &BTreeSet<Named>,
    checksums: &BTreeMap<Named, String>,
    time: &str,
) -> Value {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let named = |package: &Value| (text(&package["name"]), text(&package["version"]));
    let all = metadata["packages"].as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<Named, &Value> =
        all.iter().map(|p| (named(p), p)).filter(|(name, _)| linked.contains(name)).collect();
    let ids: BTreeMap<String, &Named> =
        packages.iter().map(|(name, p)| (text(&p["id"]), name)).collect();
    let mut components = Vec::new();
    let mut program = Value::Null;
    for (name, package) in &packages {
        let component = component(name, package, checksums.get(name));
        if name.0 == "millpond" { program = component } else { components.push(component) }
    }
    let nodes = metadata["resolve"]["nodes"].as_array().cloned().unwrap_or_default();
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in &nodes {
        let Some(name) = ids.get(&text(&node["id"])) else { continue };
        let others = node["deps"].as_array().cloned().unwrap_or_default();
        let others = others.iter().filter(|d| is_linked(d)).map(|d| text(&d["pkg"]));
        let mut others: Vec<String> =
            others.filter_map(|id| ids.get(&id).map(|n| reference(n))).collect();
        others.sort();
        others.dedup();
        needs.insert(reference(name), others);
    }
    let needs: Vec<Value> =
        needs.iter().map(|(of, on)| json!({"ref": of, "dependsOn": on})).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time, "component": program},
        "components": components,
        "dependencies": needs,
    })
}

/// Whether a dependency is more than one of tests or of build scripts.
fn is_linked(dependency: &Value) -> bool {
    let kinds = dependency["dep_kinds"].as_array().cloned().unwrap_or_default();
    kinds.iter().any(|kind| kind["kind"].is_null())
}

fn reference((name, version): &Named) -> String {
    format!("{name}@{version}")
}

fn component(name: &Named, package: &Value, checksum: Option<&String>) -> Value {
    let mut component = json!({
        "type": if name.0 == "millpond" { "application" } else { "library" },
        "bom-ref": reference(name),
        "name": name.0,
        "version": name.1,
    });
    if let Some(license) = package["license"].as_str() {
        // Old packages write MIT/Apache-2.0.
        let canonical = Expression::canonicalize(license).ok().flatten();
        let license = canonical.unwrap_or_else(|| license.to_owned());
        component["licenses"] = json!([{"expression": license}]);
    }
    // Ours have no checksum, and are nowhere else than in this release.
    if let Some(sum) = checksum {
        component["purl"] = json!(format!("pkg:cargo/{}", reference(name).replace('+', "%2B")));
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, version: &str) -> Named {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn the_document_has_what_is_linked_and_its_edges() {
        let kinds = |kind: Value| json!([{"kind": kind}]);
        let metadata = json!({
            "packages": [
                {"id": "m", "name": "millpond", "version": "0.2.0", "license": "MIT"},
                {"id": "s", "name": "slab", "version": "0.4.1", "license": "MIT/Apache-2.0"},
                {"id": "t", "name": "proptest", "version": "1.0.0", "license": "MIT"},
            ],
            "resolve": {"nodes": [
                {"id": "m", "deps": [{"pkg": "s", "dep_kinds": kinds(Value::Null)},
                                     {"pkg": "t", "dep_kinds": kinds(json!("dev"))}]},
                {"id": "s", "deps": []},
            ]},
        });
        let tree = "millpond v0.2.0 (/x)\nslab v0.4.1\nslab v0.4.1 (*)\n";
        let sums = checksums(
            "version = 4\n\n[[package]]\nname = \"slab\"\nversion = \"0.4.1\"\nsource = \"r\"\n\
             checksum = \"ab\"\n\n[[package]]\nname = \"millpond\"\nversion = \"0.2.0\"\n",
        );
        let document = document(&metadata, &linked(tree), &sums, "2026-11-30T00:00:00Z");
        assert_eq!(document["metadata"]["component"]["type"], "application");
        assert_eq!(
            document["components"],
            json!([{
                "type": "library", "bom-ref": "slab@0.4.1", "name": "slab", "version": "0.4.1",
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "purl": "pkg:cargo/slab@0.4.1",
                "hashes": [{"alg": "SHA-256", "content": "ab"}],
            }])
        );
        assert_eq!(
            document["dependencies"],
            json!([{"ref": "millpond@0.2.0", "dependsOn": ["slab@0.4.1"]},
                   {"ref": "slab@0.4.1", "dependsOn": []}])
        );
    }

    #[test]
    fn names_and_versions_are_read_from_cargo_tree() {
        let tree = "zstd-sys v2.0.16+zstd.1.5.7 (*)\nserde_derive v1.0.1 (proc-macro)\n\n";
        let expected = [pair("serde_derive", "1.0.1"), pair("zstd-sys", "2.0.16+zstd.1.5.7")];
        assert_eq!(linked(tree), BTreeSet::from(expected));
    }
}
