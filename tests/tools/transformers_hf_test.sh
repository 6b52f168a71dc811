#!/usr/bin/env bash
# Models against transformers: logits, gradients, conversion. Sets up .venv at the root of the repository first.
set -euo pipefail
"$PERIGEE_SOURCE/tests/tools/setup_transformers.sh"
exec "$PERIGEE_SOURCE/.venv/bin/python" "$PERIGEE_SOURCE/tests/tools/hf_check.py" "$PERIGEE_BIN" "$@"
