#!/usr/bin/env bash
# 20 steps of ranks that share one GPU, with a checkpoint at 10. Killed and resumed in the same layout they repeat bit for
# bit; resumed from that checkpoint in other layouts, by another backend, with other sharding, and on CPU ranks, every
# loss is within 1e-3. CUDA graphs change no bit. PERIGEE_CASES=N or FIRST-LAST: some of the cases.
set -euo pipefail
source "${PERIGEE_SOURCE:?}/tests/support/stacked_jobs.sh"
wanted=${PERIGEE_CASES:-1000}
[[ $wanted == *-* ]] || wanted=1-$wanted
cases=0
whole=$scratch/whole
begin_case() { cases=$((cases + 1)) begun=$(seconds) && [ "$cases" -ge "${wanted%-*}" ] && [ "$cases" -le "${wanted#*-}" ]; }

run 2 "$whole" perigee parallel.comm=$nccl
[ "$code" = 0 ] || complain "unbroken run: code $code"
[ "$(grep -c '"loss"' "$whole/metrics.jsonl")" = 20 ] || complain "unbroken run: 20 steps expected"

# --- The same layout, after a kill of either rank.
again() {  # again RANK POINT
    local folder=$scratch/again what="rank $1 killed at $2, same layout"
    begin_case || return 0
    rm -rf "$folder"
    # On a busy machine the kill may come while step 10 is still being written beside training.
    PERIGEE_KILL_RANK=$1 PERIGEE_KILL=$2 run 2 "$folder" perigee_faulty parallel.comm=$nccl checkpoint.async=false
    [ "$code" != 0 ] || complain "$what: it was not killed"
    run 2 "$folder" perigee parallel.comm=$nccl
    [ "$code" = 0 ] || complain "$what: the next start ended with $code"
    grep -q "resumed at step 10 from" "$scratch/log" || complain "$what: not resumed at step 10"
    diff <(numbers "$whole") <(numbers "$folder") >/dev/null || complain "$what: losses differ"
    diff <(weights "$whole" step_00000020) <(weights "$folder" step_00000020) >/dev/null || complain "$what: weights differ"
    echo "$what: $(numbers "$folder" | wc -l) lines of metrics compared bit for bit, $(since "$begun") s"
}
# Each step has 4 sums of units: the embedding's, those of two blocks, the head's.
again 1 collective:reduce_scatter:58
again 0 collective:all_gather:63

# --- Others, from the checkpoint of step 10. Loss by step; the largest difference, relative.
losses() { sed -nE 's/^\{"step":([0-9]+),"loss":([^,]+),.*/\1 \2/p' "$1/metrics.jsonl"; }
largest_difference() {
    join <(losses "$whole" | sort -k 1,1) <(losses "$1" | sort -k 1,1) |
        awk '{ d = ($3 - $2) / $2; if (d < 0) d = -d; if (!(d <= most)) most = d; n++ } END { print n + 0, most + 0 }'
}
other() {  # other RANKS NAME [key=value...]
    local n=$1 what=$2 folder=$scratch/other steps difference
    shift 2
    begin_case || return 0
    rm -rf "$folder"
    run "$n" "$folder" perigee checkpoint.resume="$whole/checkpoints/step_00000010" "$@"
    [ "$code" = 0 ] || complain "$what: code $code"
    read -r steps difference <<<"$(largest_difference "$folder")"
    [ "$steps" = 10 ] || complain "$what: $steps steps instead of 10"
    awk -v d="$difference" 'BEGIN { exit !(d <= 1e-3) }' || complain "$what: losses differ by $difference"
    echo "$what: $steps losses, largest difference $difference, $(since "$begun") s"
}
other 2 "the same layout, from the folder" parallel.comm=$nccl
other 2 "mpi" parallel.comm=mpi
other 2 "nothing sharded" parallel.comm=$nccl parallel.shard=none
other 2 "gradients sharded" parallel.comm=$nccl parallel.shard=gradients
other 2 "weights sharded" parallel.comm=$nccl parallel.shard=weights
other 2 "weights sharded, mpi" parallel.comm=mpi parallel.shard=weights
other 2 "tensor 2" parallel.comm=$nccl parallel.tensor=2
other 2 "context 2, ulysses" parallel.comm=$nccl parallel.context=2 parallel.context_mode=ulysses
other 2 "context 2, allgather, mpi" parallel.comm=mpi parallel.context=2 parallel.context_mode=allgather
other 4 "data 2, tensor 2, weights sharded" parallel.comm=$nccl parallel.tensor=2 parallel.shard=weights
other 4 "data 2, context 2" parallel.comm=$nccl parallel.context=2
other 1 "one rank"
other 2 "CPU ranks" device=cpu
other 4 "CPU ranks, data 2, tensor 2" device=cpu parallel.tensor=2

# --- Saved by the other backend, resumed by this one.
begin_case && {
    cases=$((cases - 1))  # other() counts it
    run 2 "$scratch/mpi" perigee parallel.comm=mpi
    [ "$code" = 0 ] || complain "unbroken run, mpi: code $code"
    whole=$scratch/mpi other 2 "saved under mpi" parallel.comm=$nccl
}
# --- Without CUDA graphs of what lies between collectives, the same bits.
graphs() {  # graphs NAME [key=value...]
    local what="without CUDA graphs, $1" setting
    shift
    begin_case || return 0
    for setting in true false; do
        run 2 "$scratch/graphs_$setting" perigee train.cuda_graphs=$setting checkpoint.every=0 "$@"
        [ "$code" = 0 ] || complain "$what: code $code"
    done
    diff <(numbers "$scratch/graphs_true") <(numbers "$scratch/graphs_false") >/dev/null || complain "$what: losses differ"
    echo "$what: $(numbers "$scratch/graphs_false" | wc -l) lines of metrics compared bit for bit, $(since "$begun") s"
    rm -rf "$scratch/graphs_true" "$scratch/graphs_false"
}
graphs "weights sharded" parallel.comm=$nccl parallel.shard=weights
graphs "tensor 2" parallel.comm=$nccl parallel.tensor=2
graphs "context 2, mpi" parallel.comm=mpi parallel.context=2

expect_memory_back
verdict
