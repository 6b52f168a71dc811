#!/usr/bin/env bash
# Tokenizers against Hugging Face's and sentencepiece's own, on 30 MB of mixed text: `ctest --preset cpu -L hf`. Needs the
# package index of Python and Debian's, once. Some minutes; what it downloads and trains stays in the build folder.
set -euo pipefail
reference=$PERIGEE_SOURCE/tests/data/reference
bash "$reference/setup.sh"
"$PERIGEE_SOURCE/.venv/bin/python" "$reference/compare.py" "$PERIGEE_BIN/tokenizer_probe" "$PERIGEE_BIN/../tokenizer_reference"
