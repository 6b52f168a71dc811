#!/usr/bin/env bash
# Holds the tracked sources against .clang-format and plain ASCII.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
failed=0

clang-format-14 --dry-run -Werror "${files[@]}" || failed=1
if LC_ALL=C grep -nP '[^\x00-\x7F]' "${files[@]}"; then
    echo "check_format: characters outside ASCII"
    failed=1
fi
exit $failed
