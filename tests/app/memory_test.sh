#!/usr/bin/env bash
# Memory that does not suffice is the user's, with its own words and its own exit code (8): a plan that cannot fit is
# refused before the first step, with both numbers and what to change, and whatever meets a limit later says so too.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
perigee=$PERIGEE_BIN/perigee
if [ "$(nm -C "$perigee" | grep -c __asan_init)" != 0 ]; then
    echo "sanitizers take more address space than any limit leaves"
    exit 77
fi

cat >"$scratch/run.yaml" <<YAML
output_dir: $scratch/run
model: {vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 2, global_batch_size: 2}
threads: 1
log: {progress: false}
YAML

# Address space that the program's libraries take before main, in KiB: a GPU's are large. With less the loader says so
# (127) or, at some sizes, crashes (139).
libraries=20000
until (ulimit -v $libraries && timeout 60 "$perigee" --version) >/dev/null 2>&1 || [[ ! $? =~ ^(127|139)$ ]]; do
    libraries=$((libraries + 20000))
done
# limited KIB COMMAND...: under a limit of the address space, besides the libraries
limited() { (ulimit -v $((libraries + $1)) && shift && exec timeout 60 "$@") >"$scratch/printed" 2>"$scratch/log" </dev/null; }
# expect PATTERN NAME: after a command that ran out of memory
expect() {
    local got=$?
    [ "$got" = 8 ] || complain "$2: exit $got, expected 8"
    grep -qE -- "$1" "$scratch/log" || complain "$2: no message matches $1"
    grep -q 'internal error' "$scratch/log" && complain "$2: an internal error"
}

# A batch that cannot fit, whatever the machine: 16M tokens through 4096 wide layers.
big=(data.sequence_length=16777216 model.max_position_embeddings=16777216 model.hidden_size=4096
    model.intermediate_size=16384 model.num_hidden_layers=64 attention.kind=full)
timeout 60 "$perigee" train "$scratch/run.yaml" "${big[@]}" >"$scratch/printed" 2>"$scratch/log"
expect '^perigee: memory error: .*step takes at least [0-9.]+TiB .*(machine|control group).* has [0-9.]+[GT]iB' "a batch that cannot fit"
grep -q 'try train.recompute=' "$scratch/log" || complain "a batch that cannot fit: nothing to try"
[ -e "$scratch/run/metrics.jsonl" ] && complain "a batch that cannot fit: training began"

# One that fits the machine but not the limit of the process.
limited 1420000 "$perigee" train "$scratch/run.yaml" data.sequence_length=65536 model.max_position_embeddings=65536 \
    model.hidden_size=256 model.intermediate_size=1024 model.num_hidden_layers=8
expect 'memory error: .*step takes at least .*ulimit -v.* has ' "a batch beyond the process's limit"

# Memory that runs out where nothing was planned: weights of `generate`, a document of `tokenize`.
"$perigee" train "$scratch/run.yaml" >/dev/null 2>"$scratch/log" || complain "train"
limited 1420000 "$perigee" generate "$scratch/run.yaml" generate.prompt=x model.hidden_size=16384 model.intermediate_size=65536
expect 'memory error: out of memory: [0-9]+ bytes of host memory' "weights of generate"
# OpenBLAS, which would try for ever to get its buffers.
for command in train eval "generate generate.prompt=x"; do
    limited 220000 "$perigee" ${command%% *} "$scratch/run.yaml" ${command#"${command%% *}"}
    expect 'memory error: .*OpenBLAS.*ulimit -v' "$command without room for OpenBLAS"
done
head -c 300000000 /dev/zero | tr '\0' 'a' >"$scratch/text"
limited 720000 "$PERIGEE_BIN/perigee" tokenize "$scratch/text" --output "$scratch/tokens"
expect 'perigee: memory error: .*no memory left.*ulimit -v' "a document of tokenize"
# A data file that cannot be mapped.
seq 1 4000 >"$scratch/small"
"$PERIGEE_BIN/perigee" tokenize "$scratch/small" --output "$scratch/data" >/dev/null
python3 - "$scratch/data" <<'PY'
import struct, sys
n = 1 << 30  # one sequence of 4 GiB in a sparse file
open(sys.argv[1] + ".bin", "wb").truncate(4 * n)
with open(sys.argv[1] + ".idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iqqq", n, 0, 0, 1))
PY
limited 1420000 "$perigee" train "$scratch/run.yaml" data.mock_data=false data.train.0.path="$scratch/data" \
    output_dir="$scratch/other"
expect 'memory error: cannot map .*data\.bin' "a data file that cannot be mapped"
verdict
