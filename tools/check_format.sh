#!/usr/bin/env bash
# Holds the tracked sources against .clang-format, 600 lines a file, and plain ASCII. A file that must be longer says why
# in a line that starts with "// Over 600 lines because".
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
failed=0

clang-format-14 --dry-run -Werror "${files[@]}" || failed=1
for file in "${files[@]}"; do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 600 ] && ! grep -q '^// Over 600 lines because' "$file"; then
        echo "$file: $lines lines, more than 600"
        failed=1
    fi
done
if LC_ALL=C grep -nP '[^\x00-\x7F]' "${files[@]}"; then
    echo "check_format: characters outside ASCII"
    failed=1
fi
exit $failed
