#!/usr/bin/env bash
# From nothing to a trained MoBA model in one command: packages, build, text, tokens, training on two CPU ranks,
# held-out loss with MoBA and with full attention, a sample. Safe to run again; finished parts are not repeated.
# launch/quickstart.sh [key=value...]   overrides of configs/quickstart.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
config=configs/quickstart.yaml
run=runs/quickstart

say() { printf '\n== %s\n' "$*"; }

say "Packages"
launch/setup.sh
echo "all there"

preset=cpu
ranks=2
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && command -v nvcc >/dev/null; then
    preset=cuda
    ranks=1  # of one GPU
    launch/setup_cuda.sh || echo "building without cuDNN"
fi
say "Build (preset $preset)"
cmake --preset "$preset" -DPERIGEE_TESTS=OFF >/dev/null
cmake --build --preset "$preset" --target perigee tokenize plot
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
    "$bin/tokenize" "$text/usr/share/doc/git-doc" --suffix .txt --output data/quickstart
else
    echo "data/quickstart.bin and .idx are there"
fi

say "Training on $ranks rank(s): $config"
launch/mpirun.sh "$ranks" "$bin/perigee" train "$config" "$@"

field() { sed -nE "s/.*\"$1\":([^,}]*).*/\1/p"; }
held_out() { launch/mpirun.sh "$ranks" "$bin/perigee" eval "$config" "$@" 2>/dev/null | field eval_loss; }
say "Held-out loss of the same weights"
moba=$(held_out "$@")
full=$(held_out "$@" attention.kind=full)
printf 'MoBA, last layer full   %.4f nats per byte\nfull attention          %.4f nats per byte\n' "$moba" "$full"

say "Loss"
"$bin/plot" "$run" --output "$run/loss.svg" --terminal --width 72 --height 14

say "A sample"
"$bin/perigee" generate "$config" "$@" 2>/dev/null

say "Where everything is"
cat <<EOF
$run/config.yaml     the resolved configuration
$run/metrics.jsonl   every step
$run/loss.svg        the loss as a picture
$run/checkpoints/    the latest checkpoints; the same command resumes from them

Three things to try next:
  $bin/perigee generate $config --prompt "To undo a commit, "
  launch/mpirun.sh $ranks $bin/perigee train $config train.steps=600
  $bin/perigee check $config model.hidden_size=1024 data.sequence_length=8192 --world-size 8
EOF
