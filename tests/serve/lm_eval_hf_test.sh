#!/usr/bin/env bash
# lm-eval's `local-completions`, unchanged, against `perigee serve`: its loglikelihoods are those of `perigee eval`, its
# generated answers those of `perigee generate`. Needs the package index of Python, once: `ctest -L hf`.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
python=$PERIGEE_SOURCE/.venv/bin/python
[ -x "$python" ] || python3 -m venv "$PERIGEE_SOURCE/.venv"
"$python" -c 'import lm_eval, transformers, tokenizers, aiohttp' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check 'lm-eval[api]>=0.4.9' 'transformers>=5' tokenizers
export scratch
export PYTHONPATH=$PERIGEE_SOURCE/tests/serve HF_HUB_OFFLINE=1 HF_DATASETS_CACHE=$scratch/cache TOKENIZERS_PARALLELISM=false
"$python" "$PERIGEE_SOURCE/tests/serve/lm_eval_check.py" make || complain "a tokenizer"
folder=$scratch/run
run 1 "$folder" perigee train.steps=20 data.tokenizer="$scratch/Base"
[ "$code" = 0 ] || complain "training"
timeout 1200 "$python" "$PERIGEE_SOURCE/tests/serve/lm_eval_check.py" compare "$folder" || complain "lm-eval"
verdict
