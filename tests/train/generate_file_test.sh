#!/usr/bin/env bash
# generate with a file of prompts: answers in order, whatever the batch, on one rank and on two; what is no prompt is
# refused with its line. Real processes.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
sed -i 's/num_key_value_heads: 1/num_key_value_heads: 2/' "$scratch/run.yaml"
run 2 "$folder" perigee
[ "$code" = 0 ] || complain "training"
cat >"$scratch/in.jsonl" <<'JSON'
{"prompt": "abc", "seed": 3}
{"prompt": "de", "id": {"mine": 7}, "max_tokens": 5, "temperature": 0}

{"prompt": "a longer prompt than the others, so that its blocks are several", "top_p": 0.5}
JSON
# answer RANKS OUTPUT [key=value...]
answer() {
    local n=$1 output=$2
    shift 2
    command=generate run "$n" "$folder" perigee generate.input="$scratch/in.jsonl" generate.output="$output" \
        generate.max_tokens=20 generate.logprobs=true "$@"
}
answer 1 "$scratch/out.jsonl"
[ "$code" = 0 ] || complain "generate: exit $code"
python3 - "$scratch/out.jsonl" <<'PY' || complain "the answers"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) == 3
assert lines[0]["seed"] == 3 and "id" not in lines[0]
assert lines[1]["id"] == {"mine": 7} and len(lines[1]["tokens"]) <= 5
for line in lines:
    assert line["finish_reason"] in ("stop", "length")
    assert len(line["logprobs"]) == len(line["tokens"]) and all(p <= 0 for p in line["logprobs"])
assert lines[2]["prompt_tokens"] > 40
PY
tokens() { python3 -c 'import json, sys; print([json.loads(line)["tokens"] for line in open(sys.argv[1])])' "$1"; }
for arguments in "1 generate.batch=1" "1 generate.batch=2" "2 parallel.tensor=2" "2 generate.batch=3"; do
    rm -f "$scratch/again.jsonl"
    answer ${arguments%% *} "$scratch/again.jsonl" ${arguments#* }
    [ "$code" = 0 ] || complain "generate $arguments: exit $code"
    [ "$(tokens "$scratch/again.jsonl")" = "$(tokens "$scratch/out.jsonl")" ] || complain "other answers with $arguments"
done

echo '{"prompt": "x", "temprature": 1}' >>"$scratch/in.jsonl"
rm "$scratch/out.jsonl"
answer 1 "$scratch/out.jsonl"
[ "$code" = 3 ] && grep -qF 'in.jsonl:5: unknown key "temprature"; known are' "$scratch/log" || complain "an unknown key: exit $code"
[ ! -e "$scratch/out.jsonl" ] || complain "answers to a file that was refused"

# refused LINE MESSAGE [key=value...]: a file whose second line is LINE is refused with MESSAGE before anything is written
refused() {
    printf '{"prompt": "abc"}\n%s\n' "$1" >"$scratch/in.jsonl"
    answer 1 "$scratch/out.jsonl" "${@:3}"
    [ "$code" = 3 ] && grep -qF "in.jsonl:2: $2" "$scratch/log" || complain "$2: exit $code"
    [ -z "$(ls "$scratch" | grep '^out')" ] || complain "an output although: $2"
}
refused '{"prompt": "x", "max_tokens": 1073741825}' \
    'max_tokens is 1073741825, not a whole number from 1 to 1073741824'
refused '{"prompt": "x", "system": "S"}' 'a system message needs a chat template'
refused '{"prompt": "x", "system": "S"}' 'the template has no role "system"' \
    'chat={template: custom, stop: "~", roles: [{role: user, prefix: "u", suffix: "~"}, {role: assistant, prefix: "a", suffix: "~"}]}'
refused '{"prompt": "x", "max_tokens": 9223372036854775807}' 'max_tokens is 9223372036854775807, not a whole number'
refused '{"prompt": ""}' 'prompt is empty: at least one token is needed'
refused "{\"prompt\": \"$(printf 'a%.0s' {1..8192})\"}" \
    'prompt has 8192 tokens; model.max_position_embeddings is 8192, so a prompt may have at most'

# An output that cannot be written is known before the prompts are read.
mkdir "$scratch/folder"
for output in "$scratch/missing/out.jsonl" "$scratch/folder"; do
    answer 1 "$output"
    [ "$code" = 3 ] && grep -qF "generate.output ($output) must be a file that can be written" "$scratch/log" ||
        complain "output $output: exit $code"
done

# No name or link of the output makes the answers replace the prompts.
printf '{"prompt": "abc"}\n' >"$scratch/in.jsonl"
cp "$scratch/in.jsonl" "$scratch/kept.jsonl"
ln -s in.jsonl "$scratch/link.jsonl"
ln "$scratch/in.jsonl" "$scratch/hard.jsonl"
ln -s . "$scratch/here"
ln -s ../in.jsonl "$scratch/folder/out.jsonl.tmp"
for output in "$scratch/in.jsonl" "$scratch/link.jsonl" "$scratch/hard.jsonl" "$scratch/here/../${scratch##*/}/in.jsonl"; do
    answer 1 "$output"
    [ "$code" = 2 ] && grep -q 'generate.output .*: writing it would replace ' "$scratch/log" || complain "prompts as output: exit $code"
    cmp -s "$scratch/in.jsonl" "$scratch/kept.jsonl" || complain "$output: the prompts are gone"
done
[ -L "$scratch/link.jsonl" ] || complain "a link is gone"
ln -s missing.jsonl "$scratch/dangling.jsonl"
for output in "$scratch/dangling.jsonl" "$scratch/folder/out.jsonl" "$scratch/kept.jsonl"; do
    answer 1 "$output"
    [ "$code" = 0 ] && grep -q '"text"' "$output" || complain "output $output: exit $code"
done
# Links are followed, and devices are written to.
ln -s kept.jsonl "$scratch/to_kept.jsonl"
ln -s /dev/null "$scratch/to_device"
for output in "$scratch/to_kept.jsonl" "$scratch/to_device"; do
    answer 1 "$output"
    [ "$code" = 0 ] && [ -L "$output" ] || complain "output $output: exit $code"
done
[ -c "$scratch/to_device" ] || complain "the device is gone"

# A single prompt needs room as well.
code=0
"$PERIGEE_BIN/perigee" generate "$scratch/run.yaml" output_dir="$folder" --prompt "$(printf 'a%.0s' {1..8192})" \
    >"$scratch/printed" 2>"$scratch/log" || code=$?
[ "$code" = 3 ] && grep -qF 'generate.prompt has 8192 tokens; model.max_position_embeddings is 8192' "$scratch/log" ||
    complain "a prompt without room: exit $code"

# Which weights are taken where checkpoint.resume names a folder, though the run has checkpoints of its own.
from=checkpoint.resume="$folder/checkpoints/step_00000040" own='the run has checkpoints of its own in'
run 1 "$scratch/next" perigee "$from" train.steps=41
command=generate run 1 "$scratch/next" perigee "$from" --prompt a
[ "$code" = 0 ] && grep -qF 'weights of step 40' "$scratch/log" && grep -qF "$own $scratch/next/checkpoints" "$scratch/log" ||
    complain "the checkpoint that a run began from: exit $code"
mkdir -p "$scratch/moved/checkpoints"
ln -s "$folder/checkpoints/step_00000040" "$scratch/moved/checkpoints/"
ln -s "$folder" "$scratch/same"
for options in "$folder $from/" "$scratch/next checkpoint.resume=auto" "$scratch/moved checkpoint.resume=auto" \
    "$scratch/same $from" "$scratch/no_run $from"; do
    command=generate run 1 ${options% *} perigee "${options#* }" --prompt a
    [ "$code" = 0 ] && ! grep -qF "$own" "$scratch/log" || complain "no other checkpoint, $options: exit $code"
done

command=generate run 1 "$folder" perigee generate.system=S --prompt a
[ "$code" = 2 ] && grep -qF 'a system message (generate.system) needs a chat template' "$scratch/log" ||
    complain "a system message without a template: exit $code"
command=generate run 1 "$scratch/next" perigee checkpoint.resume="$folder" --prompt a
[ "$code" != 0 ] && grep -qF "a run's checkpoints are folders of its checkpoints/" "$scratch/log" ||
    complain "a run's folder as a checkpoint: exit $code"
command=generate run 1 "$folder" perigee generate.input=x
[ "$code" = 2 ] && grep -qF 'must be given together' "$scratch/log" || complain "input without output: exit $code"
verdict
