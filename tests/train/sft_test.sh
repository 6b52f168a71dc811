#!/usr/bin/env bash
# Conversations from a file to an answer: tokenized, trained on, and asked. One question has one answer here, so a model
# that learnt it gives exactly that answer and then ends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

for _ in $(seq 100); do
    echo '{"prompt": "ping", "completion": "pong"}'
    echo '{"messages": [{"role": "system", "content": "Shout"}, {"role": "user", "content": "ping"}, {"role": "assistant", "content": "PONG"}]}'
done >chats.jsonl
config=(
    "$PERIGEE_SOURCE/configs/sft.yaml" chat.template=chatml data.train.0.path=chats output_dir=run data.sequence_length=256 threads=1
    model.num_hidden_layers=2 model.hidden_size=128 model.intermediate_size=256 attention.block_size=32
    'attention.full_layers={last: 1}' train.steps=60 train.global_batch_size=2 train.micro_batch_size=2
    optimizer.lr=4e-3 eval.samples=4 log.progress=false watchdog.enabled=false
)
"$PERIGEE_BIN/perigee" tokenize chats.jsonl --chat "$PERIGEE_SOURCE/configs/sft.yaml" --set chat.template=chatml --set data.sequence_length=256 -o chats
"$PERIGEE_BIN/perigee" train "${config[@]}" >train.log 2>&1 || fail "training: $(tail -5 train.log)"
ask() { "$PERIGEE_BIN/perigee" generate "${config[@]}" checkpoint.resume=best "$@" 2>/dev/null; }
[ "$(ask --prompt ping generate.temperature=0)" = pong ] || fail "answer: $(ask --prompt ping generate.temperature=0)"
[ "$(ask --prompt ping --system Shout generate.temperature=0)" = PONG ] ||
    fail "answer under a system message: $(ask --prompt ping --system Shout generate.temperature=0)"
[ "$(ask --prompt ping generate.temperature=3 seed=5 --max-tokens 9)" = "$(ask --prompt ping generate.temperature=3 seed=5 --max-tokens 9)" ] ||
    fail "one seed gave two answers"
# The template that training rendered goes with the model, as Jinja, and another one is told.
"$PERIGEE_BIN/perigee" convert run Mine >/dev/null 2>convert.log || fail "convert: $(cat convert.log)"
grep -q '<|im_start|>' Mine/chat_template.jinja || fail "no template in the folder: $(ls Mine)"
jinja=(chat.template=auto chat.jinja.file=Mine/chat_template.jinja generate.temperature=0)
[ "$(ask --prompt ping --system Shout "${jinja[@]}")" = PONG ] || fail "by its Jinja template: $(ask --prompt ping --system Shout "${jinja[@]}")"
told() {  # how often
    "$PERIGEE_BIN/perigee" generate "${config[@]}" --prompt ping --max-tokens 1 "$@" >/dev/null 2>generate.log || { echo "crashed"; return; }
    grep -c 'trained with another chat template' generate.log
}
[ "$(told chat.template=llama3)" = 1 ] || fail "another template is not told: $(cat generate.log)"
[ "$(told "${jinja[@]}")" = 0 ] || fail "the same template is told to be another one: $(cat generate.log)"
echo "sft: asked and answered"
