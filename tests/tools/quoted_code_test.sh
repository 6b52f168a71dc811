#!/usr/bin/env bash
# Code that docs/training_step.md quotes is in the file that the text above it names last.
set -euo pipefail
cd "${PERIGEE_SOURCE:?}"
file= inside=0 lines=0 failed=0
while IFS= read -r line; do
    if [[ $line == '```cpp' ]]; then
        inside=1
    elif [[ $line == '```'* ]]; then
        inside=0
    elif ((inside)); then
        [[ -z $line || $line == ... ]] && continue
        lines=$((lines + 1))
        grep -qxF -- "$line" "$file" || { echo "not in $file: $line"; failed=1; }
    elif [[ $line =~ .*\`(src/[a-z_/]+\.(cc|h))\`: ]]; then
        file=${BASH_REMATCH[1]}
    fi
done <docs/training_step.md
((lines >= 10)) || { echo "only $lines lines are quoted"; failed=1; }
exit $failed
