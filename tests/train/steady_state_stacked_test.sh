#!/usr/bin/env bash
# A long run on one GPU: documents of ever other lengths, saves and evaluations. Memory of the device and the host stays
# what it was, and the speed of the last tenth of the steps is that of the first within 1%.
# PERIGEE_STEPS (10000), PERIGEE_MODEL=124m|small|tiny (small), and PERIGEE_STACKED_DEVICE=cpu to look at the test itself.
set -euo pipefail
source "${PERIGEE_SOURCE:?}/tests/support/stacked_jobs.sh"
steps=${PERIGEE_STEPS:-10000}
tenth=$((steps / 10))
case ${PERIGEE_MODEL:-small} in
    124m) shape="hidden_size: 768, intermediate_size: 2048, num_hidden_layers: 12, num_attention_heads: 12,
        num_key_value_heads: 12, head_dim: 64, max_position_embeddings: 4096" tokens=4096 ;;
    tiny) shape="hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
        num_key_value_heads: 1" tokens=128 ;;
    *) shape="hidden_size: 256, intermediate_size: 512, num_hidden_layers: 4, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 64" tokens=1024 ;;
esac
# Text whose documents are 1 to 4,000 bytes long.
mkdir "$scratch/text"
awk 'BEGIN { srand(7); for (d = 0; d < 3000; ++d) { n = int(4000 ^ rand()); s = ""
    for (i = 0; i < n / 5 + 1; ++i) s = s sprintf("%c%c%c%c ", 97 + rand() * 26, 97 + i % 26, 97 + rand() * 26, 97 + d % 26)
    printf "{\"text\": \"%s\"}\n", s } }' >"$scratch/text/documents.jsonl"
"$PERIGEE_BIN/perigee" tokenize "$scratch/text" --output "$scratch/tokens" >"$scratch/log" 2>&1 || complain tokenize
cat >"$scratch/run.yaml" <<YAML
model: {$shape}
attention: {kind: moba, block_size: 64, top_k: 3, full_layers: {last: 1}}
data: {train: [{path: $scratch/tokens}], validation_fraction: 0.05, sequence_length: $tokens}
train: {steps: $steps, global_batch_size: 2, micro_batch_size: 1}
optimizer: {lr: 1e-4}
checkpoint: {every: $((steps / 8)), keep_last: 1}
eval: {every: $((steps / 16)), samples: 8}
device: $stacked_device
threads: ${PERIGEE_THREADS:-1}
log: {progress: false, seconds: 60}
YAML
"$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$scratch/run" >"$scratch/log" 2>&1 &
job=$!
while kill -0 "$job" 2>/dev/null; do  # KiB of the host, with the steps done
    echo "$(grep -c loss "$scratch/run/metrics.jsonl" 2>/dev/null || true) $(awk '/^VmRSS/ { print $2 }' "/proc/$job/status" \
        2>/dev/null)" >>"$scratch/host"
    sleep 1
done
wait "$job" || complain "the run ended with $?"

grep '"loss"' "$scratch/run/metrics.jsonl" >"$scratch/steps"
[ "$(wc -l <"$scratch/steps")" = "$steps" ] || complain "$steps steps expected"
value() { sed -E "s/.*\"$1\":([^,}]*).*/\1/"; }
median() { sort -n | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
# The first steps lay out memory; the first save and evaluation take theirs within the first eighth.
first=$(sed -n "$((tenth + 1)),$((2 * tenth))p" "$scratch/steps" | value tokens_per_s | median)
last=$(tail -n "$tenth" "$scratch/steps" | value tokens_per_s | median)
awk -v a="$first" -v b="$last" 'BEGIN { printf "tokens/s: %.0f, then %.0f (%+.2f%%)\n", a, b, 100 * (b / a - 1)
    exit !(b >= 0.99 * a) }' || complain "the last steps are slower than the first"
if [ "$stacked_device" != cpu ]; then
    tail -n "+$((2 * tenth))" "$scratch/steps" | value memory_bytes | sort -un >"$scratch/device"
    echo "bytes of the device from step $((2 * tenth)) on: $(tr '\n' ' ' <"$scratch/device")"
    [ "$(wc -l <"$scratch/device")" = 1 ] || complain "bytes of the device change: $(sed -E 's/.*"step":([0-9]+),.*"memory_bytes":([0-9]+).*/\1 \2/' \
        "$scratch/steps" | awk '$2 != last { printf "%s from step %s, ", $2, $1; last = $2 }')"
fi
# Pages come and go by the allocator's ways: the middle of each tenth counts, within 1%.
host() { awk -v a="$1" -v b="$2" '$1 > a && $1 <= b && $2 != "" { print $2 }' "$scratch/host" | median; }
early=$(host $((2 * tenth)) $((4 * tenth))) late=$(host $((steps - 2 * tenth)) "$steps")
awk -v a="$early" -v b="$late" 'BEGIN { printf "KiB of the host: %d, then %d (%+.2f%%)\n", a, b, 100 * (b / a - 1)
    exit !(b <= 1.01 * a) }' || complain "memory of the host grows"
verdict
