#!/usr/bin/env bash
# tools/bench/fit.sh with a small model on the CPU: a row for each layout that `check --fit` prints, and its verdict.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
small=(threads=1 model.vocab_size=256 model.hidden_size=64 model.intermediate_size=96 model.num_hidden_layers=4
    model.num_attention_heads=8 model.head_dim=8 data.sequence_length=256)
fit() {
    "$PERIGEE_SOURCE/tools/bench/fit.sh" --bin "$PERIGEE_BIN" --out "$scratch/results" --tolerance "$1" \
        "$PERIGEE_SOURCE/configs/bench/llama_8b.yaml" 4 "${small[@]}" device=cpu >"$scratch/log" 2>&1
}
fit 1 || complain "any order will do: $(cat "$scratch/log")"
[ "$(wc -l <"$scratch/results")" = 5 ] || complain "not five layouts: $(cat "$scratch/results")"
for place in 1 2 3 4 5; do
    [ "$(grep -c "\"place\": $place" "$scratch/results")" = 1 ] || complain "no place $place"
done
[ "$(grep -o '"of": "[^"]*"' "$scratch/results" | sort -u | wc -l)" -gt 1 ] || complain "only one layout"
fit -1 && complain "no order will do, and none is refused"
grep -q "in another order" "$scratch/log" || complain "no verdict: $(cat "$scratch/log")"
verdict
