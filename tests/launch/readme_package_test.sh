#!/usr/bin/env bash
# Every command of the README, as it stands there and in its order, in a fresh clone. What the commands take as given (texts,
# conversations, a Hugging Face folder) is made here; runs are shortened. `tests/run.sh`, which would run this
# test, is left out.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
git -C "$PERIGEE_SOURCE" rev-parse --is-inside-work-tree >"$scratch/log" 2>&1 || { echo "no repository to clone"; exit 77; }
git clone --quiet "$PERIGEE_SOURCE" "$scratch/perigee" 2>"$scratch/log" || complain "clone"
cd "$scratch/perigee"

mapfile -t commands < <(awk '/^```/{ code = !code; next } code && !/^runs\// && !/^tests\/run.sh/' README.md)
[ "${#commands[@]}" -ge 15 ] || complain "only ${#commands[@]} commands"
mkdir texts
cp docs/*.md texts/
sed -i 's/steps: 550/steps: 60/; s/steps: 300/steps: 52/' configs/studies/sparse_sft.yaml
sed -i 's/steps: 320/steps: 40/; s/warmup_steps: 30/warmup_steps: 4/; s/every: 80/every: 20/' configs/quickstart.yaml
for i in $(seq 60); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Say $i\"}, {\"role\": \"assistant\", \"content\": \"$i, then.\"}]}"
done >chats.jsonl
# A byte-level tokenizer with ChatML's names, for the folder that the first half of the README trains.
make_base() {
    cp -r Mine Base
    python3 - >Base/tokenizer.json <<'PY'
import json
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {b: chr(b) for b in plain}
letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in plain)}
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
added = [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": True} for i, name in enumerate(special)]
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
print(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                  "pre_tokenizer": level, "post_processor": None, "decoder": level,
                  "model": {"type": "BPE", "vocab": {letters[b]: b for b in range(256)}, "merges": []}}))
PY
    printf '{"eos_token": "<|im_end|>"}\n' >Base/tokenizer_config.json
}

shell=$scratch/commands.sh
{
    declare -f make_base
    echo 'set -e'
    for command in "${commands[@]}"; do
        case $command in *--chat*) echo "make_base; rm -rf Mine" ;; esac
        printf 'echo "\n== %s"\n%s\n' "$(sed 's/[\"$`]/\\&/g' <<<"$command")" "$command"
    done
} >"$shell"
bash "$shell" >"$scratch/log" 2>&1 </dev/null || complain "a command ended with $?"
for made in runs/quickstart/loss.svg data/mine.idx runs/mine/config.yaml loss.svg batch.html Mine/model.safetensors \
    runs/studies/sparse_sft/table.md runs/sft/metrics.jsonl; do
    [ -s "$made" ] || complain "no $made"
done
grep '^== ' "$scratch/log"
verdict
