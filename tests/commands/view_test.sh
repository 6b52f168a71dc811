#!/usr/bin/env bash
# `perigee view` as a person uses it: text and borders of documents and blocks, shares of loss, and how far gradients reach.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
export OMP_NUM_THREADS=1 LC_ALL=C.UTF-8

show() { timeout -k 5 120 "$PERIGEE_BIN/perigee" view "$@" >"$scratch/printed" 2>"$scratch/log"; }
check() {
    local what=$1
    shift
    "$@" || complain "$what"
}
prints() { grep -qE -- "$1" "$scratch/printed"; }
exits() {  # exits CODE COMMAND...
    local code=0
    "${@:2}" || code=$?
    [ "$code" = "$1" ]
}

cat >"$scratch/text.yaml" <<YAML
output_dir: $scratch/run
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2}
attention: {kind: moba, block_size: 8, top_k: 1, full_layers: {last: 1}}
data: {train: [{path: $scratch/text}], sequence_length: 32, shuffle: false}
train: {steps: 2, global_batch_size: 2}
threads: 1
log: {progress: false}
YAML
printf '{"text":"One <b>two</b> three."}\n{"text":"Caf\\u00e9\\nau lait, s'"'"'il vous pla\\u00eet. Merci bien, au revoir!"}\n' \
    >"$scratch/text.jsonl"
"$PERIGEE_BIN/perigee" tokenize "$scratch/text.jsonl" --output "$scratch/text" >"$scratch/log" 2>&1 || complain "tokenize"

check "shows text" show "$scratch/text.yaml"
check "a line per block" prints '^    0 \| O\[\[ne <b>t'
check "of the document it belongs to" prints '^    1 \| .*wo</b> t'
check "documents" prints '^-- document 2 of 2'
check "what is no character or would break the line, as bytes" prints 'f\\xC3\\xA9\\nau'
check "no colour codes outside a terminal" bash -c "! grep -q $'\x1b' '$scratch/printed'"
# All but the end of the first document, which predicts nothing and comes after every loss.
check "a full layer reaches every token before a loss" prints 'layer   1 \(full\) +63 tokens +98.44%'
check "fresh weights" prints 'gradient enters, with fresh weights'
check "one step, one sample" show "$scratch/text.yaml" --samples 1
check "shows one" [ "$(grep -c '^sample ' "$scratch/printed")" = 1 ]

# Three answers of 64 tokens, top_k 1: gradient stays in the blocks of the questions while every layer is MoBA.
recall=(data.train=[] data.mock_data=true data.mock.task=far_recall data.mock.loss=answers data.sequence_length=64
    model.vocab_size=80 attention.block_size=16 attention.full_layers.last=0)
check "far recall" show "$scratch/text.yaml" "${recall[@]}" --step 3 --samples 1
check "the step" prints '^step 3: 6 of 128 tokens with loss \(4.69%\), loss weight 6$'
check "its samples" prints '^sample 4: 3 of 64 tokens with loss'
check "answers are marked" [ "$(grep '|' "$scratch/printed" | grep -o '\[\[' | wc -l)" = 3 ]
# The last answer is the target of the last token, so of a block of 16 all are below it.
check "gradient in the last block" prints 'layer   1 \(moba\) +32 tokens +25.00%'
check "and no further down either" prints 'layer   0 \(moba\) +32 tokens +25.00%'
check "one more block for each head" show "$scratch/text.yaml" "${recall[@]}" attention.top_k=2
reached=$(grep -oE 'layer   1 \(moba\) +[0-9]+' "$scratch/printed" | grep -oE '[0-9]+$')
check "reaches further" [ "${reached:-0}" -gt 32 ]
check "reach left out" show "$scratch/text.yaml" "${recall[@]}" --weights none
check "is left out" bash -c "! grep -q 'layer ' '$scratch/printed'"

"$PERIGEE_BIN/perigee" train "$scratch/text.yaml" >"$scratch/log" 2>&1 || complain "train"
check "a page" show "$scratch/text.yaml" --html "$scratch/page.html"
check "says nothing else" [ ! -s "$scratch/printed" ]
check "is self-contained" bash -c "! grep -qE '(src|href)=' '$scratch/page.html'"
check "of the checkpoint and the step after it" grep -q 'with the weights of step 2:' "$scratch/page.html"
check "which is the third" grep -q '<title>step 3</title>' "$scratch/page.html"
check "with markup as text" grep -qF '>&lt;</span>' "$scratch/page.html"
check "loss marked" grep -qE '<span class="l"[^>]*title="id [0-9]+, loss weight 1, gradient in the lowest [12] of 2' \
    "$scratch/page.html"

for weights in auto none; do
    check "a step after two of other batches" show "$scratch/text.yaml" --weights $weights --step 3 train.global_batch_size=4
    check "begins with the first sample that is not read" prints 'sample 4'
done
check "a step before the checkpoint" show "$scratch/text.yaml" --step 1
check "begins where it did" prints 'sample 0'

says() { grep -qE -- "$1" "$scratch/log"; }
cp "$scratch/text.yaml" "$scratch/kept.yaml"
ln -s text.yaml "$scratch/link.html"
for page in text.yaml link.html; do
    check "a page over the config" exits 2 show "$scratch/text.yaml" --html "$scratch/$page"
    check "says so" says 'config error: --html .*: writing it would replace .*text.yaml'
    check "keeps the config" cmp "$scratch/text.yaml" "$scratch/kept.yaml"
done
check "a page over the data" exits 2 show "$scratch/text.yaml" --html "$scratch/text.bin"
for number in 0 -1 1000000000001 99999999999999999999; do
    check "step $number" exits 2 show "$scratch/text.yaml" --step "$number"
    check "says its range" says '^perigee: --step: .*1 (to|-) 1000000000000'
    check "samples" exits 2 show "$scratch/text.yaml" --samples "-1$number"
done
check "the last step" show "$scratch/text.yaml" --step 1000000000000
check "beyond the last sample" exits 2 show "$scratch/text.yaml" --step 1000000000000 train.global_batch_size=1073741824
check "says the most" says 'must be at most 1152921504606846976 samples'
check "a wrong key" exits 2 show "$scratch/text.yaml" modell.x=1
check "a missing file" exits 3 show "$scratch/text.yaml" data.train.0.path="$scratch/nowhere"
verdict
