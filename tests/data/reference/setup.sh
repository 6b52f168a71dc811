#!/usr/bin/env bash
# Adds what the tokenizers are compared with to the .venv at the root of the repository, which it makes where there is none.
# Safe to run again; goes together with tools/bench/setup_torch.sh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
python=$root/.venv/bin/python
stop() {
    echo "setup: $*" >&2
    exit 1
}
"$python" -c 'import numpy, sentencepiece, tokenizers' 2>/dev/null && exit 0
[ -x "$python" ] || python3 -m venv "$root/.venv" ||
    stop "cannot make $root/.venv; on Debian and Ubuntu: apt-get install python3-venv"
"$python" -m pip install --quiet --disable-pip-version-check -r "$(dirname "${BASH_SOURCE[0]}")/requirements.txt" ||
    stop "pip could not install the references; see its message above"
