#!/usr/bin/env bash
# Parquet by pyarrow and zstd against plain text, files and speed: `ctest --preset cpu -L hf`. MEGABYTES=60 of text.
set -euo pipefail
reference=$PERIGEE_SOURCE/tests/data/reference
python=$PERIGEE_SOURCE/.venv/bin/python
bash "$reference/setup.sh"
"$python" -c 'import pyarrow' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check pyarrow
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$reference/tables.py" "$PERIGEE_BIN/perigee tokenize" "$work"
