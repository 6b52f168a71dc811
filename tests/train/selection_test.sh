#!/usr/bin/env bash
# eval and generate with another rule of selection: the checkpoint's weights and the same budget of blocks, on one rank
# and on two. Real processes.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
sed -i 's/num_key_value_heads: 1/num_key_value_heads: 2/' "$scratch/run.yaml"
run 2 "$folder" perigee optimizer.lr=0.02
[ "$code" = 0 ] || complain "training"

# measure RANKS [key=value...]: sets $loss to that of eval. 64 tokens are 4 blocks of 16.
measure() {
    local n=$1
    shift
    code=0
    if [ "$n" = 1 ]; then
        "$PERIGEE_BIN/perigee" eval "$scratch/run.yaml" output_dir="$folder" eval.samples=4 "$@" \
            >"$scratch/printed" 2>"$scratch/log" || code=$?
    else
        command=eval run "$n" "$folder" perigee eval.samples=4 "$@"
    fi
    touch "$scratch/printed"
    loss=$(cat "$scratch/printed" "$scratch/log" | grep -oE '"eval_loss":[0-9.]+' | cut -d: -f2) || true
    rm -f "$scratch/printed"
    [ "$code" = 0 ] && [ -n "$loss" ] || complain "eval $*: exit $code"
}
close() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'; }
rules=(gate nearest sink_nearest random)
measure 1 attention.kind=full
full=$loss
for top_k in 1 2 3 4; do
    losses=() found="top_k $top_k: full $full"
    for rule in "${rules[@]}"; do
        if [ "$top_k $rule" = "1 sink_nearest" ]; then continue; fi  # refused, below
        measure 1 attention.top_k=$top_k attention.selection=$rule
        losses+=("$loss") found+=", $rule $loss"
    done
    case $top_k in
    1 | 4) [ "$(printf '%s\n' "${losses[@]}" | sort -u | wc -l)" = 1 ] || complain "nothing to select, but losses differ: $found" ;;
    *) [ "$(printf '%s\n' "${losses[@]}" "$full" | sort -u | wc -l)" = $((${#rules[@]} + 1)) ] || complain "$found" ;;
    esac
    if [ $top_k = 4 ]; then close "$loss" "$full" || complain "all blocks are not full attention: $found"; fi
done

sink="attention.selection=sink_nearest"
"$PERIGEE_BIN/perigee" check "$scratch/run.yaml" $sink >"$scratch/log" 2>&1 || complain "check with $sink"
for verb in check eval generate; do
    code=0
    "$PERIGEE_BIN/perigee" $verb "$scratch/run.yaml" output_dir="$folder" $sink attention.top_k=1 >"$scratch/log" 2>&1 || code=$?
    [ "$code" = 2 ] && grep -qF 'attention.top_k = 1, but attention.selection: sink_nearest needs at least 2' "$scratch/log" ||
        complain "$verb with no slot for the sink: exit $code"
done

measure 1 attention.selection=random
random=$loss
grep -qF '  attention.selection: "gate" -> "random"' "$scratch/log" || complain "the override is not said"
measure 1 attention.selection=random
[ "$loss" = "$random" ] || complain "random selects other blocks the next time"
for layout in context_mode=ulysses context_mode=allgather tensor=2; do
    case $layout in context*) cut="parallel.context=2" ;; *) cut="parallel.context=1" ;; esac
    measure 2 attention.selection=random "$cut" "parallel.$layout"
    close "$loss" "$random" || complain "random selects other blocks with $layout: $loss, on one rank $random"
done

generate() {
    "$PERIGEE_BIN/perigee" generate "$scratch/run.yaml" output_dir="$folder" --max-tokens 40 "$@" \
        --prompt "the quick brown fox jumps over the lazy dog and the quick brown fox jumps over" 2>"$scratch/log" |
        od -c
}
for rule in "${rules[@]}"; do
    generate attention.selection=$rule >"$scratch/$rule" || complain "generate by $rule"
    generate attention.selection=$rule | cmp -s - "$scratch/$rule" || complain "generate by $rule says another thing"
done
[ "$(cat "${rules[@]/#/$scratch/}" | wc -l)" -ge $((6 * ${#rules[@]})) ] || complain "generate writes too little"
for rule in "${rules[@]:1}"; do
    if cmp -s "$scratch/gate" "$scratch/$rule"; then complain "generate by $rule says what the gate's does"; fi
done

run 2 "$folder" perigee train.steps=44 attention.selection=nearest
[ "$code" = 2 ] && grep -qF '  attention.selection: "gate" -> "nearest"' "$scratch/log" ||
    complain "a run goes on with another selection: exit $code"
verdict
