#!/usr/bin/env bash
# What several GPUs of one host do: links, work beside their traffic, training steps of an 8B model, the same losses as
# ranks that share one GPU, and what is said of a rank that dies or stops. Appends a JSON object for each result as it
# comes, so that what is cut off keeps what it has.
#   tools/bench/links.sh [--ranks N] [--bin DIR] [--out FILE] [--seconds N] [--cpu] [--dry] [SECTION ...]
#       [-- key=value ...]
# SECTION, in the order in which they run, each within a limit of its own; all without one:
#   topology         the host, its GPUs, and what joins them
#   links            rates of every collective, by size and by the multiprocessors that NCCL takes (CTAs)
#   dp_8k dp_32k cp_128k_dense cp_128k_moba   steps of the 8B model: speed, memory, exposed communication
#   collectives      tests of collectives, each rank on a GPU of its own
#   losses           20 steps, and the same by ranks that share one GPU
#   failures         a rank that is killed, and one that stops
#   beside           matrix products and attention beside each collective, by CTAs
#   matrix           a step of every layout, and the same by ranks that share one GPU
#   cp_1m_moba       one step of 256K tokens a GPU, 1M at most, after one that is not timed
# --seconds: of all sections together, 580 where not said. --cpu: CPU ranks, to try this. --dry: only what would run.
# What follows -- goes to the steps of the 8B model. Its keys of parallel also go to losses and failures, for ranks with
# GPUs of their own.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$root/build/cuda/bin out=$root/links.jsonl seconds=580 ranks=0 device=cuda dry=0 sections=() more=()
while [ $# -gt 0 ]; do
    case $1 in
        --ranks) ranks=$2 && shift 2 ;;
        --bin) bin=$2 && shift 2 ;;
        --out) out=$2 && shift 2 ;;
        --seconds) seconds=$2 && shift 2 ;;
        --cpu) device=cpu && shift ;;
        --dry) dry=1 && shift ;;
        --) shift && more=("$@") && break ;;
        -*) echo "links.sh: no option $1: see its first lines" >&2 && exit 2 ;;
        *) sections+=("$1") && shift ;;
    esac
done
own=()
for key in ${more[@]+"${more[@]}"}; do [[ $key != parallel.* ]] || own+=("$key"); done
all=(topology links dp_8k dp_32k cp_128k_dense cp_128k_moba collectives losses failures beside matrix cp_1m_moba)
[ ${#sections[@]} -gt 0 ] || sections=("${all[@]}")
for section in "${sections[@]}"; do
    [[ " ${all[*]} " == *" $section "* ]] || { echo "links.sh: no section $section: see its first lines" >&2; exit 2; }
done
if [ "$ranks" = 0 ]; then
    ranks=2
    [ "$device" = cpu ] || ranks=$(nvidia-smi -L | grep -c '^GPU')
fi
[ "$ranks" -ge 2 ] || { echo "links.sh: $ranks GPU: it takes two, or --ranks N --cpu" >&2; exit 2; }
case $out in /*) ;; *) out=$PWD/$out ;; esac

export PERIGEE_SOURCE=$root PERIGEE_BIN=$bin
source "$root/tests/support/mpi.sh"
source "$root/tests/support/jobs.sh"
set +e
unset OMP_NUM_THREADS
# Multicast through NVLink can leave the switches of a shared machine in a bad state.
export NCCL_NVLS_ENABLE=0

# --- Results.
note() {  # note [MEMBERS]: of its input, which it passes on, the objects become results; each is a line
    local line
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ $line != {* ]] || printf '{"section":"%s","ranks":%d,%s%s\n' "$section" "$ranks" "${1:-}" "${line:1}" >>"$out"
    done
}
say() { printf "$@" | note >/dev/null; }
# As a string of JSON
quoted() { tr -d '\000-\010\013-\032\034-\037' | sed 's/\x1b\[[0-9;]*m//g; s/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }'; }
complain() {
    echo "FAILED: $section: $1"
    say '{"failed":"%s"}\n' "$(quoted <<<"$1")"
    failures=$((failures + 1))
}

# --- Jobs, none of which outlives its section.
left() { echo $((until - SECONDS)); }
within() {  # within COMMAND...
    local code
    if [ $dry = 1 ]; then echo "    $(printf '%q ' "$@")" && return; fi
    : >"$scratch/log"
    [ "$(left)" -gt 0 ] || return 124
    timeout -k 5 "$(left)" "$@" 2>"$scratch/log"
    code=$?
    cat "$scratch/log" >&2
    return $code
}
job() { within mpirun -q --bind-to none --oversubscribe -n "$ranks" "$@"; }
stacked() {  # as job, by ranks that share one GPU
    job env CUDA_VISIBLE_DEVICES=0 CUDA_MODULE_LOADING=EAGER NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=2 "$@"
}
ended() {  # ended CODE WHAT: complains where it is not 0, with what was said last
    [ "$1" = 0 ] || complain "$2: exit code $1: $(grep . "$scratch/log" | tail -n 1 | cut -c 1-400)"
}

topology() {
    local what
    for what in "nvidia-smi --query-gpu=index,name,pci.bus_id,driver_version,memory.total,memory.used,power.limit --format=csv" \
        "nvidia-smi topo -m" "nvidia-smi topo -p2p r" "nvidia-smi nvlink -s" lscpu "free -g" "mpirun --version"; do
        [ $dry = 1 ] && echo "    $what" && continue
        command -v "${what%% *}" >/dev/null || continue
        say '{"what":"%s","text":"%s"}\n' "$what" "$(timeout 10 $what 2>&1 | head -n 200 | quoted)"
    done
}

# Of all counts of CTAs; empty: as NCCL chooses. The ones in use first.
by_ctas() {  # by_ctas PART [ARGUMENT...]
    local ctas counts=("" 8 16 4 2 32 1)
    [ "$device" = cuda ] || counts=("")
    for ctas in "${counts[@]}"; do
        job ${ctas:+env NCCL_MAX_CTAS="$ctas" NCCL_MIN_CTAS="$ctas"} "$bin/bench_links" "$@" device="$device" |
            note
        ended "${PIPESTATUS[0]}" "CTAs ${ctas:-of NCCL}"
    done
}
links() { if [ "$device" = cpu ]; then by_ctas rates --largest 4 --seconds 0.01; else by_ctas rates; fi; }
beside() {
    if [ "$device" = cpu ]; then by_ctas beside --largest 1 --shrink 256 --seconds 0.002; else by_ctas beside; fi
}

# steps NAME STEPS WARMUP key=value... Two steps of warm-up: the first of a process is slower.
steps() {
    local name=$1 count=$2 warmup=$3
    shift 3
    job "$bin/bench_train" "$root/configs/bench/llama_8b.yaml" device="$device" "$@" ${more[@]+"${more[@]}"} \
        --steps "$count" --warmup "$warmup" --row "$name" --json | note
    ended "${PIPESTATUS[0]}" "$name"
}
whole_context() { echo parallel.context="$ranks" train.global_batch_size=1 train.recompute=auto data.sequence_length="$1"; }
dp_8k() { steps dp_8k 6 2 train.global_batch_size="$ranks"; }
dp_32k() { steps dp_32k 3 2 train.global_batch_size="$ranks" train.recompute=auto train.offload=3 data.sequence_length=32768; }
cp_128k_dense() { steps cp_128k_dense 2 2 $(whole_context 131072); }
cp_128k_moba() { steps cp_128k_moba 3 2 $(whole_context 131072) train.offload=6 attention.kind=moba; }
cp_1m_moba() {
    local length=$((ranks * 262144))
    [ $length -le 1048576 ] || length=1048576
    steps cp_1m_moba 1 1 $(whole_context $length) train.recompute="block*29,attention*3" attention.kind=moba \
        train.offload=auto train.mlp_chunk=8192
}

# --- The same on GPUs of their own and on one that is shared.
width=512 head=64 layers=4 length=1024 batch=8 silence=4  # seconds that a step may take
[ "$device" = cuda ] || width=64 head=8 layers=2 length=128 batch=$ranks silence=20
cat >"$scratch/run.yaml" <<YAML
model: {vocab_size: 512, hidden_size: $width, intermediate_size: $((2 * width)), num_hidden_layers: $layers,
        num_attention_heads: 16, num_key_value_heads: 8, head_dim: $head}
attention: {kind: moba, block_size: $((length / 16)), top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: $length}
train: {steps: 20, global_batch_size: $batch, micro_batch_size: 1}
schedule: {warmup_steps: 5}
checkpoint: {every: 0, keep_last: 0}
device: $device
deterministic: true
log: {progress: false}
YAML
digits() { grep -o "\"$2\":[^,}]*" "$1" | sed 's/.*://'; }
# compare WHAT FILE FILE: numbers, one a line
compare() {
    paste "$2" "$3" | awk -v what="$1" '
        { lines++; equal += $1 == $2; d = $1 - $2; d = (d < 0 ? -d : d) / ($2 != 0 ? ($2 < 0 ? -$2 : $2) : 1); if (d > most) most = d }
        NF != 2 { uneven = 1 }
        END {
            printf "{\"layout\":\"%s\",\"numbers\":%d,\"equal\":%d,\"largest_difference\":%.3g,\"passed\":%s}\n", what, lines, equal, most, (lines > 0 && !uneven && most <= 1e-3) ? "true" : "false"
        }' >"$scratch/compared"
    note <"$scratch/compared"
    grep -q '"passed":true' "$scratch/compared" || complain "$1: differs from ranks that share a GPU"
}
collectives() {
    local own=--gpus
    [ "$device" = cuda ] || own=
    job "$bin/collectives" $own --gtest_brief=1 | tee "$scratch/tests.txt"
    ended "${PIPESTATUS[0]}" "tests of collectives"
    [ $dry = 1 ] || say '{"ranks_that_passed":%d}\n' "$(grep -c 'PASSED' "$scratch/tests.txt")"
}
losses() {
    local layout comm
    for layout in "parallel.shard=weights" "parallel.context=$ranks" "parallel.tensor=$ranks" "parallel.comm=mpi"; do
        [ "$layout $device" != "parallel.comm=mpi cpu" ] || continue
        rm -rf "$scratch/own" "$scratch/shared"
        job "$bin/perigee" train "$scratch/run.yaml" "$layout" output_dir="$scratch/own" ${own[@]+"${own[@]}"}
        ended $? "$layout"
        stacked "$bin/perigee" train "$scratch/run.yaml" "$layout" output_dir="$scratch/shared" parallel.share_gpu=true
        ended $? "$layout, GPU shared"
        [ $dry = 0 ] || continue
        digits "$scratch/own/metrics.jsonl" loss >"$scratch/own.txt"
        digits "$scratch/shared/metrics.jsonl" loss >"$scratch/shared.txt"
        compare "$layout" "$scratch/own.txt" "$scratch/shared.txt"
    done
}
matrix() {
    local cpu=
    [ "$device" = cuda ] || cpu=--cpu
    job env OMP_NUM_THREADS=8 "$bin/stacked_layouts" --json $cpu | tee "$scratch/own.txt" | note '"where":"own GPUs",'
    ended "${PIPESTATUS[0]}" "own GPUs"
    stacked env OMP_NUM_THREADS=8 "$bin/stacked_layouts" --json $cpu | tee "$scratch/shared.txt" | note '"where":"one GPU",'
    ended "${PIPESTATUS[0]}" "one GPU"
    [ $dry = 0 ] || return
    for where in own shared; do
        grep '^{' "$scratch/$where.txt" >"$scratch/$where.cells"
        digits "$scratch/$where.cells" loss >"$scratch/$where.losses"
        digits "$scratch/$where.cells" digest >"$scratch/$where.digests"
    done
    compare "losses of a step of every layout" "$scratch/own.losses" "$scratch/shared.losses"
    say '{"layouts":%d,"equal_bits":%d,"sha256":"%s"}\n' "$(wc -l <"$scratch/own.digests")" \
        "$(paste "$scratch/own.digests" "$scratch/shared.digests" | awk '$1 == $2' | wc -l)" \
        "$(sha256sum <"$scratch/own.digests" | cut -c 1-16)"
}

# --- A rank that a signal meets in the middle of training.
gpu_memory() { [ "$device" = cpu ] && echo 0 || nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ s += $1 } END { print s }'; }
named() { grep -qE '^perigee: (communication|hang) error' "$scratch/log"; }
meets() {  # meets SIGNAL RANK
    local what="SIG$1 to rank $2" folder=$scratch/run_$1 before after_named after_gone sent pid
    if [ $dry = 1 ]; then echo "    $what of $ranks while it trains" && return; fi
    before=$(gpu_memory)
    start "$ranks" "$folder" perigee train.steps=1000000 parallel.shard=weights watchdog.step_s=$silence \
        ${own[@]+"${own[@]}"}
    eventually 60 steps_done "$folder" 10 || complain "$what: training does not begin"
    pid=$(rank_pid "$folder" "$2")
    kill -"$1" $pid || complain "$what: no such process"
    sent=$(seconds)
    eventually $((30 + silence)) named || complain "$what: nobody is named"
    after_named=$(since "$sent")
    eventually 30 none_left "$folder" || complain "$what: processes are left"
    after_gone=$(since "$sent")
    pkill -KILL -f "^$bin/perigee train .*output_dir=$folder( |\$)"
    finish
    grep '^perigee: ' "$scratch/log"
    sleep 1
    say '{"what":"%s","limit_s":'$silence',"named":"%s","named_after_s":%s,"gone_after_s":%s,"exit":%d,"gpu_mib_before":%s,"gpu_mib_after":%s}\n' \
        "$what" "$(grep '^perigee: ' "$scratch/log" | quoted)" "$after_named" "$after_gone" "$code" "$before" "$(gpu_memory)"
}
failures() {
    meets KILL $((ranks - 1))
    meets STOP 1
}

limit_of() {
    case $1 in
        topology) echo 30 ;;
        links | matrix) echo 120 ;;
        beside | dp_32k) echo 150 ;;  # dp_32k pins host memory: slow where nothing has touched it yet
        losses) echo 240 ;;      # ranks that share a GPU take up to 40 s a layout
        cp_1m_moba) echo 240 ;;  # two steps; the first pins host memory
        failures | cp_128k_dense) echo 120 ;;
        *) echo 75 ;;
    esac
}
for section in "${sections[@]}"; do
    limit=$(limit_of "$section")
    [ "$device" = cuda ] || limit=$((4 * limit))
    [ "$limit" -le $((seconds - SECONDS)) ] || limit=$((seconds - SECONDS))
    if [ "$limit" -lt 5 ]; then
        complain "no time is left for it"
        continue
    fi
    echo "== $section, $limit s at most"
    begun=$SECONDS until=$((SECONDS + limit))
    "$section"
    [ $dry = 1 ] || say '{"took_s":%d}\n' $((SECONDS - begun))
done
exit $((failures > 0))
