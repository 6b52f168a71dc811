#!/usr/bin/env bash
# The README's commands of fine-tuning, as they stand there, from the folders that transformers and tokenizers write
# for a Qwen and a Llama; their result against transformers. Sets up .venv at the root of the repository first.
set -euo pipefail
"$PERIGEE_SOURCE/tests/tools/setup_transformers.sh"
python=$PERIGEE_SOURCE/.venv/bin/python check=$PERIGEE_SOURCE/tests/tools/fine_tune_check.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

commands=$(awk '/^## /{ inside = /^## Fine-tune/ } inside && /^```/{ code = !code; next } inside && code' "$PERIGEE_SOURCE/README.md")
[ "$(wc -l <<<"$commands")" -ge 4 ] || fail "the README has fewer than four commands there: $commands"

export PATH=$PERIGEE_BIN:$PATH
for architecture in qwen3 llama; do
    mkdir -p "$work/$architecture/build/cpu"
    cd "$work/$architecture"
    ln -s "$PERIGEE_BIN" build/cpu/bin
    ln -s "$PERIGEE_SOURCE/launch" launch
    cp -r "$PERIGEE_SOURCE/configs" configs
    "$python" "$check" make $architecture
    while read -r command; do
        echo "== $architecture: $command"
        bash -c "$command" </dev/null >out 2>err || fail "$command: $(tail -20 out err)"
        [ -s out ] && tail -n 3 out
    done <<<"$commands"
    grep -q '"kind": "moba"' Mine/config.json || fail "no MoBA in $(cat Mine/config.json)"
    "$python" "$check" tokens data/chats
    "$python" "$check" result build/cpu/bin Mine
    losses=$(sed -n 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/p' runs/sft/metrics.jsonl)
    echo "$architecture: validation loss $(echo $losses)"
    awk -v first="$(head -1 <<<"$losses")" -v last="$(tail -1 <<<"$losses")" 'BEGIN { exit !(last < first) }' ||
        fail "validation loss did not fall: $losses"
    best=$(find runs/sft/checkpoints -maxdepth 1 -name 'step_*' | sort | head -1)
    perigee convert "$best" Best >/dev/null
    perigee checkpoint verify "$best" >/dev/null
done
echo "fine_tune: all as transformers"
