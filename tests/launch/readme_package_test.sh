#!/usr/bin/env bash
# Every command of the README, those in its text and tables too, as it stands there and in its order, in a fresh clone of
# the last commit. What the commands take as given (texts, conversations, a Hugging Face folder) is made here; runs are
# shortened. What is left out is named with the reason.
# PERIGEE_README_TORCH=1: the comparison against PyTorch too, which fetches 5 GB
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
git -C "$PERIGEE_SOURCE" rev-parse --is-inside-work-tree >"$scratch/log" 2>&1 || { echo "no repository to clone"; exit 77; }
git clone --quiet "$PERIGEE_SOURCE" "$scratch/perigee" 2>"$scratch/log" || complain "clone"
cd "$scratch/perigee"

# A line of a code block is a command, and so is `code` that begins with a program; comments are cut off.
mapfile -t commands < <(awk '
    /^```/ { code = !code; next }
    code { if ($0 !~ /^runs\//) print; next }
    { n = split($0, span, "`"); for (i = 2; i <= n; i += 2) print span[i] }' README.md | sed -E 's/ +# .*//' |
    grep -E '^((perigee|cmake|apt|source|export) |(launch|tests|tools)/[^ ]+\.sh|(build|\.venv)/[^ ]*bin/)' | sed 's/ COMMAND / train /')
[ "${#commands[@]}" -ge 30 ] || complain "only ${#commands[@]} commands"

mkdir texts
cp docs/*.md texts/
shorten() {  # shorten FILE KEY FROM TO
    grep -q "$2: $3\b" "$1" || complain "$1 has no $2: $3"
    sed -i -E "s/\b$2: $3\b/$2: $4/" "$1"
}
shorten configs/studies/sparse_sft.yaml steps 550 60
shorten configs/studies/sparse_sft.yaml train.steps 300 52
shorten configs/quickstart.yaml steps 320 12
shorten configs/quickstart.yaml warmup_steps 30 4
shorten configs/quickstart.yaml every 80 6
sed -i -E 's/^eval:$/&\n  suites: {depths: 3, items: 1}/; s/samples: 64/samples: 8/' configs/quickstart.yaml
shorten configs/sft.yaml steps 200 4
shorten configs/sft.yaml samples 64 8
shorten configs/sft.yaml every 20 2
shorten configs/sft.yaml warmup_steps 10 2
for i in $(seq 60); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Say $i\"}, {\"role\": \"assistant\", \"content\": \"$i, then.\"}]}"
done >chats.jsonl

# A byte-level tokenizer with ChatML's names and template, for the folder that the first half of the README trains.
make_base() {
    mv Mine Base
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
    cat >Base/tokenizer_config.json <<'JSON'
{"eos_token": "<|im_end|>",
 "chat_template": "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}
JSON
}

# serve_one COMMAND...: the server answers a request, and ends well when it is told to.
serve_one() {
    "$@" &
    local server=$!
    python3 - <<'PY' || { kill "$server"; return 1; }
import json, time, urllib.request
for attempt in range(600):
    try:
        request = urllib.request.Request("http://127.0.0.1:8643/v1/completions",
                                         json.dumps({"prompt": "Once", "max_tokens": 20}).encode(),
                                         {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        break
    except urllib.error.HTTPError:
        raise
    except OSError:
        time.sleep(0.1)
assert answer["usage"]["completion_tokens"] >= 1, answer
PY
    kill -TERM "$server"
    wait "$server"
}

gpu() { command -v nvidia-smi && nvidia-smi -L; } >/dev/null 2>&1
# Why a command is not run here.
left_out() {
    case $1 in
        tests/run.sh) echo "runs this test's siblings: run it by itself" ;;
        apt\ * | launch/package.sh | "perigee quickstart") echo "debian_package_test runs it" ;;
        launch/setup_cuda.sh | *"--preset cuda"*) gpu || echo "needs a GPU" ;;
        tools/bench/setup_torch.sh | .venv/*) [ -n "${PERIGEE_README_TORCH:-}" ] || echo "fetches 5 GB: PERIGEE_README_TORCH=1 runs it" ;;
    esac
}

shell=$scratch/commands.sh
{
    declare -f make_base serve_one
    echo 'set -eo pipefail; unset CUDA_VISIBLE_DEVICES'
    for command in "${commands[@]}"; do
        why=$(left_out "$command")
        if [ -n "$why" ]; then
            printf 'echo %q\n' "-- $command: left out: $why"
            continue
        fi
        if gpu; then command=${command/PATH=\$PWD\/build\/cpu/PATH=\$PWD\/build\/cuda}; fi  # what quickstart.sh built
        printf 'echo %q\nSECONDS=0\n' "== $command"
        case $command in
            "perigee serve "*) echo "serve_one $command" ;;
            *" --chat") echo "printf 'Say 1\\nSay 2\\n' | $command" ;;
            "perigee tokenize chats.jsonl "*) printf 'make_base\n%s\n' "$command" ;;
            *" && "*) echo "($command)" ;;  # so that `set -e` sees the first half
            *) echo "$command" ;;
        esac
        printf 'echo %q "$SECONDS s"\n' "== ended:"
    done
} >"$shell"
if ! bash "$shell" >"$scratch/log" 2>&1 </dev/null; then
    complain "the last of these commands did not end well"
    grep '^== ' "$scratch/log"
    verdict
fi
for made in runs/quickstart/loss.svg data/mine.idx runs/mine/config.yaml runs/mine/suites.jsonl runs/mine/report.html loss.svg \
    batch.html Base/model.safetensors runs/studies/sparse_sft/table.md runs/sft/metrics.jsonl Mine/model.safetensors; do
    [ -s "$made" ] || complain "no $made"
done
grep -E '^(== |-- .*: left out: )' "$scratch/log"
ended=$(grep -c '^== ended:' "$scratch/log") || true
echo "of ${#commands[@]} commands $ended ended well, $(grep -c ': left out: ' "$scratch/log" || true) were left out"
verdict
