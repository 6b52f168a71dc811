#!/usr/bin/env bash
# What docs/parallelism.md quotes of `perigee check` is what the command prints.
set -euo pipefail
cd "${PERIGEE_SOURCE:?}"
quoted=$(sed -n '/^\$ perigee check /,/^```$/p' docs/parallelism.md)
read -ra command < <(sed -n '1s/^\$ perigee //p' <<<"$quoted")
printed=$("${PERIGEE_BIN:?}/perigee" "${command[@]}" 2>/dev/null)
[ "$(grep -c '^#' <<<"$quoted")" -ge 30 ] || { echo "too few lines are quoted"; exit 1; }
diff <(grep '^#' <<<"$quoted") <(grep '^#' <<<"$printed") || { echo "the quoted lines are stale"; exit 1; }
