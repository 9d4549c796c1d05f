#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Prints the libraries in the program with the texts of their licences, and those of the C libraries
# in them.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

# The texts below a folder, not deeper than its subfolders.
texts() {
    local file
    find "$1" -maxdepth 2 -type f -iregex '.*/\(licen[cs]e\|copying\|copyright\|notice\)[^/]*' |
        sort | while IFS= read -r file; do
        printf '\n-- %s\n' "${file#"$1/"}"
        cat "$file"
    done
}

printf 'Libraries in millpond, and their licences\n'
printf '\n== the standard library of Rust: MIT OR Apache-2.0\n'
printf '\nIts texts are those of LICENSE-MIT, with "The Rust Project Contributors" as the\n'
printf 'owners of the copyright, and of LICENSE-APACHE.\n'
cargo tree --locked --offline -p millpond -e normal --prefix none -f '{p}|{l}' |
    sed 's/ (\*)$//; s/ (proc-macro)//' | grep -v ' (/' | sort -u |
    while IFS='|' read -r name license; do
        number=${name#* v}
        name=${name%% *}
        printf '\n== %s %s: %s\n' "$name" "$number" "$license"
        for folder in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-$number"; do
            texts "$folder"
            break
        done
    done
