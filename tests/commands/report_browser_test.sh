#!/usr/bin/env bash
# The report in headless Chromium (Debian: chromium): drawn points and tooltips against metrics.jsonl, no console errors,
# zoom, legends, 400 pixels. `ctest -L browser`; REPORT_SCREENSHOTS=FOLDER keeps pictures to look at.
set -euo pipefail
command -v chromium >/dev/null && command -v python3 >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$PERIGEE_SOURCE/tests/commands/report_browser_check.py" "$PERIGEE_BIN/perigee" "$work" ${REPORT_SCREENSHOTS:+"$REPORT_SCREENSHOTS"}
