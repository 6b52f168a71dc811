#!/usr/bin/env bash
# `perigee calibrate` writes rates that `perigee check --device` reads: small sizes, on the CPU.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
perigee=$PERIGEE_BIN/perigee
"$perigee" calibrate "$scratch/rates.yaml" --seconds 0.01 --shrink 256 >"$scratch/printed" 2>"$scratch/log" || complain "calibrate: $(cat "$scratch/log")"
diff "$scratch/printed" "$scratch/rates.yaml" >/dev/null || complain "another file than was printed"
[ "$(grep -c 'source: measured' "$scratch/rates.yaml")" = 16 ] || complain "not every rate of a GPU is measured: $(cat "$scratch/rates.yaml")"
[ "$(grep -c 'source: assumed' "$scratch/rates.yaml")" = 8 ] || complain "links and network count as measured"
grep -q '^hopper: false$' "$scratch/rates.yaml" || complain "a CPU with the kernels of Hopper"
grep -q 'these rates are there to try the command' "$scratch/log" || complain "smaller sizes are not told: $(cat "$scratch/log")"
CUDA_VISIBLE_DEVICES='' timeout 60 "$perigee" calibrate "$scratch/none.yaml" --seconds 0.01 >"$scratch/printed" 2>"$scratch/log"
[ $? = 2 ] && grep -q 'no GPU here: calibrate measures a GPU' "$scratch/log" && [ ! -e "$scratch/none.yaml" ] || complain "no GPU: $(cat "$scratch/log")"

cd "$PERIGEE_SOURCE" || exit 1
"$perigee" check configs/bench/llama_1b.yaml --device "$scratch/rates.yaml" >"$scratch/printed" 2>"$scratch/log" || complain "check: $(cat "$scratch/log")"
grep -q '^# time of a step on cpu' "$scratch/printed" || complain "check names another device"
grep -qE 'matrix products +[0-9.]+ ms  measured' "$scratch/printed" || complain "products are not measured"

# As a user meets --device and --fit.
"$perigee" check configs/bench/llama_1b.yaml --device h300 >"$scratch/printed" 2>"$scratch/log"
[ $? = 2 ] && grep -q "h300: neither h200, h100 or a100, nor a file of rates" "$scratch/log" || complain "an unknown device: $(cat "$scratch/log")"
"$perigee" check configs/bench/llama_8b.yaml --world-size 8 --fit train.global_batch_size=8 >"$scratch/fit.yaml" 2>"$scratch/log" || complain "--fit: $(cat "$scratch/log")"
[ "$(grep -c '^parallel:' "$scratch/fit.yaml")" = 5 ] || complain "not five layouts"
# A layout that was named is one to paste.
sed '/^# 2/,$d' "$scratch/fit.yaml" | cat configs/bench/llama_8b.yaml - | awk '/^train:/ && !seen++ {skip = 1; next} skip && /^  / {next} {skip = 0; print}' >"$scratch/pasted.yaml"
"$perigee" check "$scratch/pasted.yaml" --world-size 8 --device h200 >"$scratch/printed" 2>"$scratch/log" || complain "a pasted layout: $(cat "$scratch/log")"
grep -q 'left to libraries: fits' "$scratch/printed" || complain "a pasted layout does not fit"
verdict
