// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `millpond help TARGET` prints of the built-in target types.
use block::attr::Manual;

const fn manual(
    name: &'static str,
    version: (u32, u32, u32),
    about: &'static str,
    arguments: &'static str,
) -> Manual {
    Manual { name, version, about, arguments, specs: Vec::new }
}

/// The built-in target types, by name, with the kernel's versions of them.
pub static MANUALS: [Manual; 6] = [
    manual(
        "delay",
        (1, 4, 0),
        "every request waits before it goes on",
        "<dev> <offset> <ms> [<write_dev> <offset> <ms> [<flush_dev> <offset> <ms>]]",
    ),
    manual("error", (1, 7, 0), "every request fails", ""),
    manual(
        "flakey",
        (1, 5, 0),
        "a device that fails for some seconds of each interval",
        "<dev> <offset> <up> <down> [<#features> <feature>...]",
    ),
    manual("linear", (1, 5, 0), "a range of sectors of another device", "<dev> <offset>"),
    manual(
        "striped",
        (1, 7, 0),
        "chunks of several devices in turn",
        "<n> <chunk_sectors> [<dev> <offset>]{n}",
    ),
    manual("zero", (1, 2, 0), "reads are zeroes, writes are dropped", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_type_has_its_manual() {
        let types = crate::targets::built_in();
        let types: Vec<_> = types.iter().map(|t| (t.name, t.version)).collect();
        assert_eq!(types, MANUALS.each_ref().map(|manual| (manual.name, manual.version)));
    }
}
