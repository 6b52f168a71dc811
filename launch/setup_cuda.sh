#!/usr/bin/env bash
# Gets the header-only cudnn-frontend into .deps/ (ignored by git), from its wheel on PyPI. Without it the `cuda` preset
# builds as well, and runs full attention on its own, slower kernels.
set -euo pipefail
[ $# = 0 ] || { echo "usage: $0" >&2; exit 2; }
cd "$(dirname "$0")/.."
version=1.32.0
target=.deps/cudnn-frontend
[ -f "$target/include/cudnn_frontend.h" ] && exit 0

stop() {
    echo "setup_cuda: $1" >&2
    exit 1
}

python3 -m pip --version >/dev/null 2>&1 || launch/setup.sh python3-pip
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" \
    "nvidia-cudnn-frontend==$version" >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; stop "the wheel nvidia-cudnn-frontend $version cannot be downloaded"; }
python3 - "$work" <<'PYTHON'
import glob, sys, zipfile
work = sys.argv[1]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    wheel.extractall(work + "/wheel", [name for name in wheel.namelist() if name.startswith("include/")])
PYTHON
mkdir -p "$target"
mv "$work/wheel/include" "$target/"
echo "setup_cuda: cudnn-frontend $version in $target"
