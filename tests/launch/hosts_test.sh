#!/usr/bin/env bash
# launch/mpirun.sh on several hosts: what it asks of mpirun, seen by a stub, and a real job of Open MPI on two invented hosts,
# which an agent in place of ssh starts on this one with an empty environment.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
script=$PERIGEE_SOURCE/launch/mpirun.sh
printf 'node1 slots=2\nnode2 slots=2\n' >"$scratch/hosts"

# --- What mpirun is asked for.
mkdir "$scratch/bin"
cat >"$scratch/bin/mpirun" <<'STUB'
#!/usr/bin/env bash
echo "mpirun $*" >"$STUB/asked"
echo "btl ${OMPI_MCA_btl:-default}" >>"$STUB/asked"
[ -e "$STUB/wait" ] || exit 0
trap 'touch "$STUB/signalled"; [ ! -e "$STUB/unhandled" ] || { trap - USR1; kill -USR1 $$; }; exit 75' USR1
touch "$STUB/waits"
while sleep 0.05; do :; done
STUB
chmod +x "$scratch/bin/mpirun"
ln -s mpirun "$scratch/bin/program"
# stubbed [VARIABLE=VALUE...] -- ARGUMENT...: becomes the script under the stub, with these variables and few others
stubbed() {
    local variables=()
    while [ "$1" != -- ]; do variables+=("$1"); shift; done
    exec env -i PATH="$scratch/bin:$PATH" TMPDIR="$scratch" STUB="$scratch" "${variables[@]}" bash "$script" "${@:2}" \
        >"$scratch/printed" 2>"$scratch/log"
}
launch() { code=0; (stubbed "$@") || code=$?; }
asked() { cat "$scratch/asked"; }

launch NCCL_DEBUG=INFO -- 3 program train "a b"
[ "$code" = 0 ] || complain "one host: code $code"
grep -qx "mpirun --bind-to none --oversubscribe -n 3 program train a b" "$scratch/asked" || complain "one host: $(asked)"
grep -qx "btl default" "$scratch/asked" || complain "one host: $(asked)"

launch NCCL_DEBUG=INFO UCX_TLS=rc CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=3 HOME=/ SECRET=1 -- \
    --hostfile "$scratch/hosts" 4 program train
[ "$code" = 0 ] || complain "hostfile: code $code"
for part in "--bind-to none" "--hostfile $scratch/hosts --map-by slot" "-n 4 program train" "-x NCCL_DEBUG" "-x UCX_TLS" \
    "-x CUDA_VISIBLE_DEVICES" "-x OMP_NUM_THREADS"; do
    grep -qE -- " $part( |\$)" "$scratch/asked" || complain "hostfile: no \`$part\` in $(asked)"
done
for part in oversubscribe HOME SECRET PERIGEE_LAUNCHER PATH; do
    ! grep -q -- "$part" "$scratch/asked" || complain "hostfile: \`$part\` in $(asked)"
done
grep -qxF "btl ^openib" "$scratch/asked" || complain "hostfile: $(asked)"
launch OMPI_MCA_btl=tcp,self -- --hostfile "$scratch/hosts" 4 program train
grep -qxF "btl tcp,self" "$scratch/asked" || complain "hostfile with a choice of transports: $(asked)"

rm "$scratch/asked"
launch -- --hostfile "$scratch/absent" 4 program train
[ "$code" = 2 ] && grep -q "no hostfile $scratch/absent" "$scratch/log" || complain "absent hostfile: code $code"
launch -- --hosts "$scratch/hosts" 4 program train
[ "$code" = 2 ] && grep -q "usage: " "$scratch/log" || complain "unknown option: code $code"
launch -- --hostfile "$scratch/hosts"
[ "$code" = 2 ] || complain "no ranks: code $code"
[ ! -e "$scratch/asked" ] || complain "mpirun was started: $(asked)"

# --- A request to stop goes to mpirun, which passes it on; ranks that did not handle it yet had nothing to save.
for handled in yes no; do
    rm -f "$scratch/waits" "$scratch/signalled"
    touch "$scratch/wait"
    if [ $handled = no ]; then touch "$scratch/unhandled"; fi
    stubbed -- --hostfile "$scratch/hosts" 4 program train &
    job=$!
    eventually 60 test -e "$scratch/waits" || complain "stop: the stub does not run"
    kill -USR1 "$job"
    eventually 60 test -e "$scratch/signalled" || complain "stop: mpirun gets no signal"
    finish
    [ "$code" = 75 ] || complain "stop (handled: $handled): code $code"
done
rm "$scratch/wait"

# --- Two hosts of two slots. The agent takes the place of ssh: `agent HOST COMMAND...`.
cat >"$scratch/agent" <<'STUB'
#!/usr/bin/env bash
shift
TMPDIR=$(mktemp -d "${0%/*}/host.XXXX")  # two hosts do not share files of shared memory
exec env -i PATH="/usr/bin:/bin" HOME=/ TMPDIR="$TMPDIR" OMPI_MCA_btl_vader_backing_directory="$TMPDIR" \
    ASAN_OPTIONS="${ASAN_OPTIONS:-}" bash -c "$*"
STUB
chmod +x "$scratch/agent"
export OMPI_MCA_plm_rsh_agent=$scratch/agent OMPI_MCA_mpi_yield_when_idle=1  # four ranks, few cores
start_on_hosts() {  # start_on_hosts RANKS PROGRAM [ARGUMENT...]
    timeout -k 5 120 "$script" --hostfile "$scratch/hosts" "$@" >"$scratch/printed" 2>"$scratch/log" &
    job=$!
}
on_hosts() { start_on_hosts "$@"; finish; }
NCCL_DEBUG=WARN on_hosts 4 bash -c 'echo "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK $NCCL_DEBUG $PERIGEE_LAUNCHER"'
[ "$(sort "$scratch/printed")" = "$(printf '%s WARN \n' "0 0" "1 1" "2 0" "3 1")" ] ||
    complain "ranks of two hosts"
on_hosts 5 true
[ "$code" != 0 ] && grep -q "not enough slots available" "$scratch/log" || complain "more ranks than slots: code $code"
on_hosts 4 "$scratch/nowhere"
[ "$code" != 0 ] && grep -q "$scratch/nowhere" "$scratch/log" || complain "no such program: code $code"

start_training() { start_on_hosts 4 "$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$scratch/run" "$@"; }
train() { start_training train.steps=2 schedule.warmup_steps=1 "$@"; finish; }
for layout in "2 1" "2 2"; do
    rm -rf "$scratch/run"
    train parallel.tensor="${layout% *}" parallel.context="${layout#* }" model.num_key_value_heads=2
    [ "$code" = 0 ] || complain "train on two hosts: code $code"
    case $layout in
        "2 1") expected="parallel: tensor 2 within a host; data 2 over 2 hosts" ;;
        "2 2") expected="parallel: tensor 2 within a host; context 2 over 2 hosts" ;;
    esac
    for line in "4 ranks on 2 hosts" ": ranks 0-1 on the CPU, cores [0-9]+" ": ranks 2-3 on the CPU, cores [0-9]+" "$expected"; do
        grep -qE "$line\$" "$scratch/log" || complain "layout $layout: no line \`$line\`"
        grep -qE "  .*$line\$" "$scratch/run/log.txt" || complain "layout $layout: no line \`$line\` in log.txt"
    done
    ! grep -q "cross hosts" "$scratch/log" || complain "layout $layout: a warning"
done
rm -rf "$scratch/run"
train parallel.tensor=4 model.num_attention_heads=4 model.num_key_value_heads=4
grep -q "warning: 1 of 1 tensor-parallel groups cross hosts.*parallel.tensor 2 would stay within hosts" "$scratch/log" ||
    complain "tensor parallelism over hosts: no warning"

# Told to stop, ranks of other hosts save as well.
rm -rf "$scratch/run"
start_training train.steps=10000000 log.every=1000000 checkpoint.every=0
eventually 100 steps_done "$scratch/run" 3 || complain "does not train on two hosts"
pkill -TERM -P "$job"  # the script alone; `timeout` would send it twice
finish
[ "$code" = 75 ] || complain "stopped on two hosts: code $code"
grep -q "told to stop: saved at step" "$scratch/run/log.txt" || complain "stopped on two hosts: nothing saved"
eventually 60 none_left "$scratch/run" || complain "stopped on two hosts: processes are left"
verdict
