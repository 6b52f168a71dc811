#!/usr/bin/env bash
# Makes .venv at the root of the repository with PyTorch, numpy and h5py, for the comparison against PyTorch
# (tools/bench/peer_torch.py) and the attention check (tests/tools/attention_torch_check.py). Safe to run again.
# PyPI's torch for x86-64 carries the CUDA libraries (5 GB installed) and runs on the CPU as well; where an index of
# CPU-only wheels can be reached, TORCH_INDEX=URL takes torch from there (1 GB). PYTHON=python3.12 picks the
# interpreter.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=$root/.venv
python=${PYTHON:-python3}

fail() {
    echo "setup_torch: $*" >&2
    exit 1
}

works() {
    [[ -x $venv/bin/python ]] && "$venv/bin/python" - <<'PY' 2>/dev/null
import h5py, numpy, torch
from torch.nn.functional import scaled_dot_product_attention
assert torch.tensor([1.0, 2.0]).numpy().sum() == 3.0
print(f"setup_torch: ready: torch {torch.__version__}, numpy {numpy.__version__}, h5py {h5py.__version__}")
PY
}

if works; then exit 0; fi

command -v "$python" > /dev/null || fail "no $python found; install Python 3.10 or newer, or set PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version) is too old for current PyTorch; install Python 3.10 or newer, or set PYTHON"
"$python" -c 'import ensurepip, venv' 2> /dev/null ||
    fail "$python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"

needed_gib=10
free_gib=$(($(df --output=avail -k "$root" | tail -1) >> 20))
if [[ -z ${TORCH_INDEX:-} ]] && ((free_gib < needed_gib)); then
    fail "torch needs about $needed_gib GiB free under $root, found $free_gib GiB; free some, or set TORCH_INDEX"
fi

"$python" -m venv "$venv" || fail "cannot make $venv; remove it and try again"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "pip could not install: $*; see its message above (is the package index reachable?)"
}
install numpy h5py
if [[ -n ${TORCH_INDEX:-} ]]; then
    install --index-url "$TORCH_INDEX" torch
else
    install torch
fi
works || fail "installed, but torch does not load; try: $venv/bin/python -c 'import torch, numpy, h5py'"
