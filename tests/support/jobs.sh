# Sourced after mpi.sh by tests that start jobs through launch/mpirun.sh and disturb them from outside.
export OMP_NUM_THREADS=1

cat >"$scratch/run.yaml" <<'YAML'
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 40, global_batch_size: 4, micro_batch_size: 1}
schedule: {warmup_steps: 5}
checkpoint: {every: 20, keep_last: 0}
threads: 1
log: {progress: false}
YAML

# start RANKS FOLDER PROGRAM [key=value...]: in the background, as $job; $command is `train` where it is not set
start() {
    local n=$1 folder=$2 program=$3
    shift 3
    timeout -k 5 300 "$PERIGEE_SOURCE/launch/mpirun.sh" "$n" \
        "$PERIGEE_BIN/$program" "${command:-train}" "$scratch/run.yaml" output_dir="$folder" "$@" >"$scratch/log" 2>&1 &
    job=$!
}
finish() { code=0; wait "$job" || code=$?; }
run() { start "$@"; finish; }

seconds() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(seconds)" 'BEGIN { printf "%.1f", b - a }'; }
at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }
# eventually SECONDS COMMAND...: polls until the command succeeds
eventually() {
    local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
    shift
    until "$@"; do
        ((${EPOCHREALTIME/[.,]/} < end)) || return 1
        sleep 0.03
    done
}
steps_done() { [ -s "$1/metrics.jsonl" ] && [ "$(grep -c '"loss"' "$1/metrics.jsonl")" -ge "$2" ]; }

# Living ranks of a folder's job; the dead may stay as zombies where nobody collects them.
processes() {
    local pid
    for pid in $(pgrep -f "^$PERIGEE_BIN/perigee.* output_dir=$1( |\$)"); do
        case $(ps -o stat= -p "$pid") in '' | Z*) ;; *) echo "$pid" ;; esac
    done
}
none_left() { [ -z "$(processes "$1")" ]; }
rank_pid() {  # rank_pid FOLDER RANK
    local pid
    for pid in $(processes "$1"); do
        if grep -zqx "OMPI_COMM_WORLD_RANK=$2" "/proc/$pid/environ" 2>/dev/null; then echo "$pid"; fi
    done
}
stopped() {  # a process of the folder's job is stopped
    local pid
    for pid in $(processes "$1"); do
        case $(ps -o stat= -p "$pid") in T*) return 0 ;; esac
    done
    return 1
}

# For an evaluation that takes minutes: a held-out set of 6 MB as options, $long_evaluation. Mock data has 64 samples.
make_long_evaluation() {
    mkdir "$scratch/texts"
    seq 1 900000 | tee "$scratch/texts/1.txt" >"$scratch/texts/2.txt"
    "$PERIGEE_BIN/perigee" tokenize "$scratch/texts" --output "$scratch/texts/tokens" >/dev/null 2>&1
    long_evaluation="eval.samples=100000000 data.mock_data=false data.train.0.path=$scratch/texts/tokens \
        data.validation_fraction=0.5"
}

# Losses, norms and evaluations of all steps; times and memory are left out.
numbers() { sed -E 's/"seconds":[^}]*//' "$1/metrics.jsonl"; }
# The bytes of every tensor file of a checkpoint, through the hashes in its manifest; the first line's is of the manifest.
weights() { tail -n +2 "$1/checkpoints/$2/manifest.json" | grep -oE '"sha256": *"[0-9a-f]{64}"' | sort; }
