#!/usr/bin/env bash
# Adds transformers to the .venv that tools/bench/setup_torch.sh makes, for the comparison in hf_check.py. Safe to run again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$root/tools/bench/setup_torch.sh"
"$root/.venv/bin/python" -c 'import transformers, safetensors, tokenizers; assert transformers.__version__ >= "5"' \
    2>/dev/null && exit 0
"$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check 'transformers>=5' safetensors tokenizers || {
    echo "setup_transformers: pip could not install transformers; see its message above" >&2
    exit 1
}
