#!/usr/bin/env bash
# Compares logits and gradients with PEFT: adapters from `perigee train` loaded by PEFT, the same merged, and adapters
# from PEFT loaded by Perigee. Sets up .venv at the root of the repository first.
set -euo pipefail
"$PERIGEE_SOURCE/tests/tools/setup_transformers.sh"
python=$PERIGEE_SOURCE/.venv/bin/python check=$PERIGEE_SOURCE/tests/tools/peft_check.py
"$python" -c 'import peft' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check peft
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PATH=$PERIGEE_BIN:$PATH OMP_NUM_THREADS=2

cat >lora.yaml <<'YAML'
output_dir: run
attention: {kind: full}
lora: {rank: 8, alpha: 12}
data: {mock_data: true, sequence_length: 64, tokenizer: bytes}
train: {steps: 20, global_batch_size: 4}
optimizer: {lr: 0.02, weight_decay: 0}
eval: {samples: 4}
device: cpu
threads: 2
watchdog: {enabled: false}
log: {progress: false}
YAML
for architecture in qwen3 llama; do
    rm -rf Base run Ours Merged Theirs TheirsMerged
    "$python" "$check" make $architecture Base
    perigee train lora.yaml model.init_from=Base >log 2>&1 || { cat log; exit 1; }
    perigee convert run Ours
    perigee convert run Merged --merge
    "$python" "$check" compare "$PERIGEE_BIN" Base Ours Merged
    # Adapters made by PEFT, loaded by Perigee.
    "$python" "$check" adapt Base Theirs
    "$python" "$check" compare "$PERIGEE_BIN" Base Theirs
    perigee eval lora.yaml model.init_from=Base lora.init_from=Theirs lora.alpha=32 lora.rank=4 \
        'lora.targets=[q_proj, v_proj, down_proj]' output_dir=none >out
    grep -q '"eval_loss"' out || { cat out; exit 1; }
done
echo "peft: all as PEFT"
