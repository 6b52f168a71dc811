#!/usr/bin/env bash
# tools/bench/links.sh, the measurements of several GPUs, with small models and CPU ranks: results of every section, also of
# one that fails or has no time.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
small=(threads=1 model.vocab_size=256 model.hidden_size=64 model.intermediate_size=96 model.num_hidden_layers=4
    model.num_attention_heads=8 model.head_dim=8 attention.block_size=16 attention.top_k=2 data.sequence_length=256
    train.recompute=auto)
results=$scratch/results
links() { "$PERIGEE_SOURCE/tools/bench/links.sh" --cpu --ranks 2 --seconds 2000 --bin "${bin:-$PERIGEE_BIN}" --out "$results" "$@" >"$scratch/log" 2>&1; }
holds() { grep -q "$1" "$results" || complain "no result like $1 in $(cut -c 1-300 "$results")"; }
count() { [ "$(grep -c "$1" "$results")" = "$2" ] || complain "$(grep -c "$1" "$results") results like $1, not $2"; }

all="topology links dp_8k dp_32k cp_128k_dense cp_128k_moba collectives losses failures beside matrix cp_1m_moba"
links --dry || complain "dry run"
[ "$(sed -n 's/^== \([a-z0-9_]*\),.*/\1/p' "$scratch/log" | tr '\n' ' ')" = "$all " ] || complain "dry run: not all sections in order"
[ "$(grep -c ' mpirun .* -n 2 ' "$scratch/log")" = 16 ] || complain "dry run: other jobs"
[ ! -e "$results" ] || complain "a dry run has results"

for row in dp_32k:data.sequence_length=32768 cp_128k_dense:data.sequence_length=131072; do
    grep -q "bench_train .*${row#*:} .*--row ${row%:*} " "$scratch/log" || complain "dry run: not $row"
done
links topology links dp_8k cp_128k_moba cp_1m_moba beside -- "${small[@]}" || complain "some section failed"
holds '"section":"topology".*"what":"lscpu","text":"[^"]*\\nCPU(s): '
count '"section":"links","ranks":2,.*"gb_s":[0-9]' 15
count '"section":"beside","ranks":2,.*"slower":-\?[0-9]' 30
for row in dp_8k cp_128k_moba cp_1m_moba; do
    count "\"section\":\"$row\",\"ranks\":2,.*\"row\":\"$row\",.*\"tokens_per_s_per_gpu\":[1-9]" 1
    count "\"section\":\"$row\",\"ranks\":2,\"took_s\":" 1
done
holds '"section":"cp_128k_moba",.*"exposed_ms":{.*"context":[0-9].*"data x context":[0-9].*"exposed_ms_of_links":{.*"context":[0-9].*"exposed_ms_of_slowest":{.*"predicted_exposed_ms":{'
holds '"row":"cp_1m_moba",.*"steps":1,'
python3 - "$results" <<'PY' || complain "waits for links alone"
import json, sys
rows = [row for row in map(json.loads, open(sys.argv[1])) if "exposed_ms_of_links" in row]
assert len(rows) == 3, len(rows)
for row in rows:
    links, mean = row["exposed_ms_of_links"], row["exposed_ms"]
    assert links.keys() == mean.keys() and all(0 < links[axis] <= mean[axis] for axis in mean), row
PY

[ -z "${PERIGEE_BRIEF:-}" ] || verdict  # the programs have run; what follows tests the script
links collectives losses failures || complain "collectives, losses or failures"
count '"section":"collectives",.*"ranks_that_passed":2' 1
count '"section":"losses",.*"numbers":20,"equal":20,"largest_difference":0,"passed":true' 3
holds '"what":"SIGKILL to rank 1",.*"named":"perigee: communication error: rank 1 .*signal 9 (Killed)","named_after_s":[0-9]'
holds '"what":"SIGSTOP to rank 1",.*"named":"perigee: hang error: rank 1 .*"exit":6,'

# Of the layouts' program, which takes minutes on the CPU, only what it prints.
bin=$scratch/bin
mkdir "$bin" && ln -s "$PERIGEE_BIN"/* "$bin" && rm "$bin/stacked_layouts"
cat >"$bin/stacked_layouts" <<'SH'
#!/usr/bin/env bash
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exit 0
echo "first ok"
echo '{"cell":"first","loss":6.5,"digest":"00aa"}'
echo '{"cell":"second","loss":'"${SECOND:-4}$CUDA_VISIBLE_DEVICES"',"digest":"00b'"$CUDA_VISIBLE_DEVICES"'"}'
SH
chmod +x "$bin/stacked_layouts"
rm "$results"
SECOND=4. links matrix || complain "matrix"
count '"where":"own GPUs","cell":' 2
count '"where":"one GPU","cell":' 2
holds '"layout":"losses of a step of every layout","numbers":2,"equal":2,"largest_difference":0,"passed":true'
holds '"layouts":2,"equal_bits":1,"sha256":"[0-9a-f]\{16\}"'
SECOND=4 links matrix && complain "matrix of other losses: no exit code"
holds '"numbers":2,"equal":1,"largest_difference":0.9,"passed":false'

rm "$results"
links dp_8k -- "${small[@]}" model.head_dim=9 && complain "a row that fails: no exit code"
holds '"section":"dp_8k","ranks":2,"failed":"dp_8k: exit code 2: .*head_dim'
links --seconds 4 links && complain "no time: no exit code"
holds '"section":"links","ranks":2,"failed":"no time is left for it"'
links no_section
[ $? = 2 ] || complain "a section that does not exist: not exit 2"
verdict
