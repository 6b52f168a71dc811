#!/usr/bin/env bash
# From nothing to a trained MoBA model in one command: packages, build, the Git manual as tokens, and `perigee quickstart`:
# training on two CPU ranks, held-out loss with MoBA and with full attention, a sample. Safe to run again; finished parts
# are not repeated.
# launch/quickstart.sh [key=value...]   overrides of configs/quickstart.yaml
set -euo pipefail
for argument; do
    if [[ $argument == -* ]]; then
        echo "usage: $0 [key=value...]   overrides of configs/quickstart.yaml" >&2
        exit 2
    fi
done
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

say "Packages"
launch/setup.sh
echo "all there"

preset=cpu
ranks=2
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && [ -x "$nvcc" ]; then
    preset=cuda
    export CUDACXX=$nvcc
    ranks=1  # of one GPU
    launch/setup_cuda.sh || echo "building without cuDNN"
fi
say "Build (preset $preset)"
cmake --preset "$preset" -DPERIGEE_TESTS=OFF >/dev/null
cmake --build --preset "$preset" --target perigee
bin=build/$preset/bin

say "Text"
# The Git manual: 3 MB of English in 292 documents, from the package git-doc.
text=data/git-doc
if [ ! -d "$text" ]; then
    mkdir -p data
    fetched=$(mktemp -d data/fetch.XXXXXX)
    trap 'rm -rf "$fetched"' EXIT
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    download() { (cd "$fetched" && apt-get download git-doc) >"$fetched/log" 2>&1; }
    download || { "${as_root[@]}" apt-get update >/dev/null && download; } ||
        { cat "$fetched/log" >&2; echo "quickstart: package git-doc cannot be downloaded" >&2; exit 1; }
    dpkg-deb --extract "$fetched"/git-doc_*.deb "$fetched/files"
    mv "$fetched/files" "$text"
fi
if [ ! -f data/quickstart.idx ]; then
    "$bin/perigee" tokenize "$text/usr/share/doc/git-doc" --suffix .txt --output data/quickstart
else
    echo "data/quickstart.bin and .idx are there"
fi

exec "$bin/perigee" quickstart --ranks "$ranks" "$@"
