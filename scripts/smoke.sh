#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a few tests by their whole names, and fails if one of them is not there any more.
#
#   scripts/smoke.sh "cargo test OPTIONS" PROGRAM:TEST...
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra cargo <<<"$1"
shift
programs=()
for name; do
    programs+=(--test "${name%%:*}")
done
# Built first: the time below is that of the tests. `program` is there for the program itself, which
# cargo builds beside its tests.
"${cargo[@]}" --no-run --test program "${programs[@]}"
began=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${cargo[@]}" --no-fail-fast "${programs[@]}" -- --show-output --exact "${@#*:}" 2>&1 | tee "$log"
passed=$(awk "/^test result: ok\. / { n += \$4 } END { print n + 0 }" "$log")
if grep -q '^skipped: ' "$log"; then
    echo "smoke: SKIPPED in part: $(grep '^skipped: ' "$log" | sort -u | paste -sd' ')"
fi
if [ "$passed" != $# ]; then
    echo "smoke: FAILED: $passed of $# tests passed: a name in the Makefile has no test" >&2
    exit 1
fi
echo "smoke: $passed tests passed in $((SECONDS - began)) s"
