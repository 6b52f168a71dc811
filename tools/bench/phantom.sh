#!/usr/bin/env bash
# Steps as one rank of several GPUs, on one GPU: a row for each layout, its first rank and its last. Appends one JSON
# object a run to the results as it ends, also where a run failed; a run that they have is not made again.
#   tools/bench/phantom.sh [--bin DIR] [--out FILE] [--seconds N] [--rank first|last] [--operations] [ROW ...]
#       [-- key=value ...]
# ROW: dp4_8k dp4_32k cp4_128k_dense cp4_128k_moba cp4_1m_moba cp8_1m_qwen_dense cp8_1m_qwen_moba; all without one.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$root/build/cuda/bin out=$root/phantom.jsonl seconds=540 ranks="0 1" operations="" rows=() more=()
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$2 && shift 2 ;;
        --out) out=$2 && shift 2 ;;
        --seconds) seconds=$2 && shift 2 ;;
        --rank) if [ "$2" = first ]; then ranks=0; else ranks=1; fi; shift 2 ;;
        --operations) operations=--operations && shift ;;
        --) shift && more=("$@") && break ;;
        *) rows+=("$1") && shift ;;
    esac
done
[ ${#rows[@]} -gt 0 ] || rows=(dp4_8k dp4_32k cp4_128k_dense cp4_128k_moba cp4_1m_moba cp8_1m_qwen_dense cp8_1m_qwen_moba)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0
# ROW RANK LAYOUT STEPS CONFIG key=value ...
run() {
    local row=$1 rank=$2 layout=$3 steps=$4 config=$5
    shift 5
    if grep -q "^{.*\"rank\":$rank,.*\"row\":\"$row\"" "$out" 2>/dev/null; then return; fi
    timeout "$seconds" "$bin/bench_train" "$root/configs/bench/$config.yaml" "$@" ${more[@]+"${more[@]}"} --of "$layout" \
        --as-rank "$rank" --steps "$steps" --rehearse --warmup $((steps > 1 ? 2 : 0)) --row "$row" --json ${operations} >"$log" 2>&1
    local code=$?
    cat "$log"
    if [ $code = 0 ]; then
        tail -n 1 "$log" >>"$out"
    else
        failures=$((failures + 1))
        printf '{"row":"%s","rank":%d,"of":"%s","exit":%d,"failed":"%s"}\n' "$row" "$rank" "$layout" $code \
            "$(tail -n 1 "$log" | tr -d '"\\\n' | cut -c 1-300)" >>"$out"
    fi
}

llama_128k=(data.sequence_length=131072 train.global_batch_size=1 train.recompute=auto)
in_60_gb=(parallel.shard=weights train.mlp_chunk=8192 train.offload=34)
for row in "${rows[@]}"; do
    for last in $ranks; do
        case $row in
            dp4_8k) run "$row" $((last * 3)) dp=4 5 llama_8b ;;
            dp4_32k) run "$row" $((last * 3)) dp=4 2 llama_8b data.sequence_length=32768 train.recompute=auto \
                train.offload=3 ;;
            cp4_128k_dense) run "$row" $((last * 3)) cp=4 2 llama_8b "${llama_128k[@]}" ;;
            cp4_128k_moba) run "$row" $((last * 3)) cp=4 2 llama_8b "${llama_128k[@]}" train.offload=6 attention.kind=moba ;;
            cp4_1m_moba) run "$row" $((last * 3)) cp=4 1 llama_8b data.sequence_length=1048576 \
                train.global_batch_size=1 train.recompute="block*29, attention*3" train.mlp_chunk=8192 \
                train.offload=auto attention.kind=moba ;;
            cp8_1m_qwen_dense) run "$row" $((last * 7)) cp=8 1 qwen3_8b "${in_60_gb[@]}" train.recompute=attention ;;
            cp8_1m_qwen_moba) run "$row" $((last * 7)) cp=8 1 qwen3_8b "${in_60_gb[@]}" attention.kind=moba \
                train.recompute="block*33, attention*3" optimizer.offload=true ;;
            *) echo "phantom.sh: no row $row: see its first lines" >&2 && exit 2 ;;
        esac
    done
done
exit $((failures > 0))
