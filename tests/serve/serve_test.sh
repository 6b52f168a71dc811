#!/usr/bin/env bash
# `perigee serve`: every endpoint, on one rank and on two. Greedy answers are those of `generate --input`, log-probabilities
# of prompts those of one forward. Real processes.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
sed -i 's/num_key_value_heads: 1/num_key_value_heads: 2/; s/^schedule:.*/schedule: {warmup_steps: 5}\nchat: {template: chatml}/' "$scratch/run.yaml"
run 1 "$folder" perigee train.steps=20
[ "$code" = 0 ] || complain "training"
cat >"$scratch/in.jsonl" <<'JSON'
{"prompt": "abc", "max_tokens": 12}
{"prompt": "a longer prompt than the others, so that its blocks are several", "max_tokens": 30}
{"prompt": "x", "max_tokens": 5}
JSON
command=generate run 1 "$folder" perigee generate.input="$scratch/in.jsonl" generate.output="$scratch/out.jsonl" \
    generate.temperature=0 generate.logprobs=true chat.template=none
[ "$code" = 0 ] || complain "generate: exit $code"
command=generate run 1 "$folder" perigee generate.input="$scratch/in.jsonl" generate.output="$scratch/chat.jsonl" \
    generate.temperature=0 generate.logprobs=true
[ "$code" = 0 ] || complain "generate with a template: exit $code"
# What `eval` says of one document: bytes, and the token that ends it.
mkdir "$scratch/texts"
printf 'the cat sat on the mat, and the mat was warm' >"$scratch/texts/a.txt"
"$PERIGEE_BIN/perigee" tokenize "$scratch/texts" --output "$scratch/document" >"$scratch/log" 2>&1 || complain "tokenize"
for part in "$scratch"/document.*; do cp "$part" "$scratch/other.${part##*.}"; done  # to train on another is a rule
command=eval run 1 "$folder" perigee data.mock_data=false data.train.0.path="$scratch/other" \
    data.validation.0.path="$scratch/document" data.sequence_length=44
[ "$code" = 0 ] || complain "eval: exit $code"
grep -ao '{.*"eval_loss".*}' "$scratch/log" >"$scratch/eval.json" || complain "eval prints no loss"
for ranks in 1 2; do
    scratch=$scratch PYTHONPATH=$PERIGEE_SOURCE/tests/serve timeout 300 python3 \
        "$PERIGEE_SOURCE/tests/serve/endpoints.py" "$folder$([ "$ranks" = 1 ] || echo /)" "$ranks" || complain "endpoints, on $ranks ranks"
done
code=0
"$PERIGEE_BIN/perigee" serve "$scratch/run.yaml" output_dir="$folder" serve.host=256.1.1.1 >"$scratch/printed" 2>"$scratch/log" || code=$?
[ "$code" = 2 ] && grep -qF 'cannot be had' "$scratch/log" || complain "an address that is none: exit $code"
verdict
