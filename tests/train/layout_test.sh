#!/usr/bin/env bash
# Real runs in several layouts give the losses, evaluations and gradient norms of one rank, and the same text.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
export OMP_NUM_THREADS=1

# run RANKS FOLDER [OVERRIDE...]
run() {
    local n=$1 folder=$2
    shift 2
    ranks "$n" "$PERIGEE_BIN/perigee" train "$PERIGEE_SOURCE/configs/debug.yaml" output_dir="$folder" threads=1 "$@" ||
        complain "$n ranks $*"
}
text() { # RANKS FOLDER [OVERRIDE...]: the sample
    local n=$1 folder=$2
    shift 2
    ranks "$n" "$PERIGEE_BIN/perigee" generate "$PERIGEE_SOURCE/configs/debug.yaml" output_dir="$folder" threads=1 \
        generate.prompt=abcde generate.max_tokens=6 generate.temperature=0 "$@" || complain "text of $n ranks $*"
    cat "$scratch/printed"
}
# How far gradients reach and what MoBA finds, for the weights of one rank: counts, so the same to the last digit.
reach() { # RANKS [OVERRIDE...]
    ranks "$1" "$PERIGEE_BIN/perigee" eval "$PERIGEE_SOURCE/configs/debug.yaml" output_dir="$scratch/one" threads=1 \
        eval.reach=true data.mock.task=far_recall data.mock.loss=answers "${@:2}" || complain "eval of $*"
    grep -oE '"eval_(accuracy|reach_[01]|gate_recall_0|group_blocks_0)":[0-9.e-]+' "$scratch/printed"
}
values() { grep -oE "\"($2)\":[^,}]*" "$1/metrics.jsonl" | cut -d: -f2; }

# same FOLDER NAMES TOLERANCE: relative differences to the run of one rank
same() {
    paste <(values "$scratch/one" "$2") <(values "$1" "$2") | awk -v limit="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= limit * ($1 < 0 ? -$1 : $1))) { bad = 1; print NR, $0 } }
        END { exit bad || NR < 2 }' >"$scratch/log" || complain "$1: $2"
}

run 1 "$scratch/one"
[ "$(values "$scratch/one" loss | wc -l)" = 20 ] || complain "20 losses expected"
expected=$(text 1 "$scratch/one")
[[ $expected == abcde* ]] || complain "no text of one rank"
counts=$(reach 1)
[ "$(wc -l <<<"$counts")" = 5 ] || complain "five counts expected: $counts"
grep -qE 'gate_recall_0":0\.[0-9]' <<<"$counts" || complain "a gate that finds some: $counts"
[ "$(reach 2)" = "$counts" ] || complain "dp 2: other counts than $counts"
layouts=("4 parallel.tensor=2 parallel.context=2" "4 parallel.tensor=2 parallel.context=2 parallel.context_mode=allgather" \
    "2 parallel.context=2 parallel.context_mode=ulysses" "2 parallel.tensor=2" "4 parallel.tensor=2")
[ -z "${PERIGEE_BRIEF:-}" ] || layouts=("${layouts[@]:0:2}")
for layout in "${layouts[@]}"; do
    read -r -a arguments <<<"$layout"
    folder=$scratch/several
    rm -rf "$folder"
    run "${arguments[0]}" "$folder" "${arguments[@]:1}"
    same "$folder" "loss|eval_loss" 1e-6
    same "$folder" grad_norm 1e-5
    same "$folder" "loss_weight|tokens" 0
    [ "$(text "${arguments[0]}" "$folder" "${arguments[@]:1}")" = "$expected" ] || complain "$layout: other text"
    [ "$(reach "${arguments[@]}")" = "$counts" ] || complain "$layout: other counts than $counts"
done
verdict
