#!/usr/bin/env bash
# The rows of phantom ranks, with a small model on the CPU: a line of results for each run, also for one that fails.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
small=(device=cpu threads=1 model.vocab_size=256 model.hidden_size=64 model.intermediate_size=96
    model.num_hidden_layers=4 model.num_attention_heads=8 model.head_dim=8 attention.block_size=16 attention.top_k=2
    data.sequence_length=256 train.recompute=auto train.mlp_chunk=0)
phantom() { "$PERIGEE_SOURCE/tools/bench/phantom.sh" --bin "$PERIGEE_BIN" --out "$scratch/results" "$@" >"$scratch/log" 2>&1; }

phantom -- "${small[@]}" || complain "a row failed: $(cat "$scratch/log")"
[ "$(wc -l <"$scratch/results")" = 14 ] || complain "not two lines for each of seven rows"
for row in dp4_8k dp4_32k cp4_128k_dense cp4_128k_moba cp4_1m_moba cp8_1m_qwen_dense cp8_1m_qwen_moba; do
    [ "$(grep -c "\"row\":\"$row\"" "$scratch/results")" = 2 ] || complain "$row: not its first and its last rank"
done
grep -q '"exposed_ms":{.*"context":[0-9]' "$scratch/results" || complain "no exposed time of the context axis"
grep -q '"tokens_per_s_per_gpu":[1-9]' "$scratch/results" || complain "no speed"
grep -q '"mlp_chunk":0,.*"offload":0' "$scratch/results" || complain "no policy of memory"

rm "$scratch/results"
phantom dp4_8k -- "${small[@]}" model.head_dim=9 && complain "a run that fails: no exit code"
[ "$(grep -c '"row":"dp4_8k".*"failed":"bench_train: .*head_dim' "$scratch/results")" = 2 ] || complain "a run that fails: $(cat "$scratch/results")"
(cd "$scratch" && "$PERIGEE_SOURCE/tools/bench/phantom.sh" --bin "$PERIGEE_BIN" --out here dp4_8k -- "${small[@]}" >"$scratch/log" 2>&1)
[ "$(wc -l <"$scratch/here")" = 2 ] || complain "results of a caller elsewhere do not lie there"
phantom no_row
[ $? = 2 ] || complain "a row that does not exist: not exit 2"
bench() { "$PERIGEE_BIN/bench_train" "$PERIGEE_SOURCE/configs/bench/llama_8b.yaml" "${small[@]}" "$@" >"$scratch/log" 2>&1; }
bench --of dp=4 --as-rank 4 && complain "rank 4 of 4"
grep -q "rank 4 of a job of 4 ranks" "$scratch/log" || complain "rank 4 of 4: $(cat "$scratch/log")"
bench --of ep=4 && complain "an axis that does not exist"
grep -q "ep=4 is not dp=N, cp=N or tp=N" "$scratch/log" || complain "an axis that does not exist: $(cat "$scratch/log")"
bench --json train.offload=auto || complain "train.offload=auto: $(cat "$scratch/log")"
grep -q '"offload":0' "$scratch/log" || complain "train.offload=auto is not decided"
verdict
