#!/usr/bin/env bash
# launch/slurm.sh under programs that behave like Slurm's as far as it relies on them: sbatch runs a copy of the script from
# another folder, srun starts the tasks, signals reach the tasks but not the script, scontrol puts the job back into the
# queue. What the stubs claim of Slurm was seen with Slurm 22.05.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
mkdir "$scratch/bin" "$scratch/spool"
export STUB=$scratch PATH=$scratch/bin:$PATH

# sbatch [--OPTION=VALUE...] SCRIPT [ARGUMENT...]: runs the job, as often as it is put back into the queue. Options are also
# taken from the script.
cat >"$scratch/bin/sbatch" <<'STUB'
#!/usr/bin/env bash
set -u
options=()
while [[ $1 == --* ]]; do options+=("$1"); shift; done
script=$1
shift
value() { { sed -nE "s/^#SBATCH --$1=//p" "$script"; printf '%s\n' "${options[@]}" | sed -nE "s/^--$1=//p"; } | tail -1; }
if ! grep -q '^#SBATCH --requeue$' "$script" || [[ $(value signal) == B:* ]]; then exit 1; fi
export SLURM_JOB_ID=17 SLURM_SUBMIT_DIR=$PWD SLURM_NTASKS=$(value ntasks-per-node) SLURM_CPUS_PER_TASK=$(value cpus-per-task)
cp "$script" "$STUB/spool/slurm_script"
cd "$STUB/spool"
for ((start = 0; start < 5; ++start)); do
    rm -f "$STUB/queued"
    bash ./slurm_script "$@" >>"$STUB/log" 2>&1
    code=$?
    [ -e "$STUB/queued" ] || break
done
exit "$code"
STUB

# srun: the tasks, as one MPI job. With --kill-on-bad-exit=1 the first task that ends with a code other than 0 takes the
# others with it: SIGTERM, and SIGKILL later. So does MPI_Abort (older releases: SIGKILL at once). The highest code
# of a task counts, which is that of a signal (137) for one that was killed.
cat >"$scratch/bin/srun" <<'STUB'
#!/usr/bin/env bash
set -u
pmi=none kill_others=0
echo "$*" >"$STUB/srun_asked"
while [[ $1 == -* ]]; do
    case $1 in
        --mpi=*) pmi=${1#*=} ;;
        --kill-on-bad-exit=*) kill_others=${1#*=} ;;
        --wait=* | --distribution=block | --cpus-per-task=8 | --gpu-bind=none | --cpu-bind=none) ;;
        *) exit 1 ;;
    esac
    shift
done
[ "$pmi" = pmix ] || exit 1
rm -f "$STUB"/code.*
mpirun -q --oversubscribe --mca orte_abort_on_non_zero_status "$kill_others" -n "$SLURM_NTASKS" "$STUB/bin/task" "$@" &
tasks=$!
folder=$(printf '%s\n' "$@" | sed -n 's/^output_dir=//p' | tail -n 1)
trap 'kill -USR1 $(pgrep -f "^$1 train .* output_dir=$folder( |\$)")' USR1  # signals go on to the tasks
while wait "$tasks"; kill -0 "$tasks" 2>/dev/null; do :; done
highest=0
for ((task = 0; task < SLURM_NTASKS; ++task)); do
    code=$(cat "$STUB/code.$task" 2>/dev/null || echo 137)
    if [ "$code" -gt "$highest" ]; then highest=$code; fi
done
exit "$highest"
STUB

# Tasks do not end at the same moment.
cat >"$scratch/bin/task" <<'STUB'
#!/usr/bin/env bash
trap : TERM  # meant for the program
"$@"
code=$?
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || sleep 1
echo "$code" >"$STUB/code.$OMPI_COMM_WORLD_RANK"
exit "$code"
STUB

cat >"$scratch/bin/scontrol" <<'STUB'
#!/usr/bin/env bash
echo "$*" >>"$STUB/asked"
[ "$*" = "requeue 17" ] && touch "$STUB/queued"
STUB
chmod +x "$scratch"/bin/*

# submit PROGRAM FOLDER [key=value...]: as $job, with a path that starts where the job was submitted
submit() {
    rm -f "$scratch/log" "$scratch/asked"
    (cd "$scratch" && PERIGEE=$PERIGEE_BIN/$1 exec sbatch --ntasks-per-node=2 "$PERIGEE_SOURCE/launch/slurm.sh" run.yaml \
        train.steps=12 output_dir="$2" "${@:3}") &
    job=$!
}
submit_installed() {  # found in PATH
    rm -f "$scratch/log" "$scratch/asked"
    (cd "$scratch" && PERIGEE=perigee_faulty exec sbatch --ntasks-per-node=2 "$PERIGEE_SOURCE/launch/slurm.sh" run.yaml \
        train.steps=12 output_dir="$scratch/installed" checkpoint.every=4 checkpoint.async=false) &
    job=$!
}
asked() { cat "$scratch/asked" 2>/dev/null || true; }

submit perigee "$scratch/whole"
finish
[ "$code" = 0 ] || complain "undisturbed job: exit code $code"
[ "$(asked)" = "" ] || complain "a job that was done asked for: $(asked)"
for part in --distribution=block --cpus-per-task=8; do  # srun does not take the latter from sbatch
    grep -q -- " $part " "$scratch/srun_asked" || complain "srun is not asked for $part"
done
! grep -q -- "-bind=" "$scratch/srun_asked" || complain "without GPUs, srun is asked for: $(cat "$scratch/srun_asked")"

# With GPUs, tasks see all of their node, and bind themselves.
PERIGEE_BIN=/bin SLURM_GPUS_ON_NODE=2 submit true "$scratch/none"
finish
[ "$code" = 0 ] || complain "a job with GPUs: exit code $code"
for part in --gpu-bind=none --cpu-bind=none; do
    grep -q -- " $part " "$scratch/srun_asked" || complain "with GPUs, srun is not asked for $part"
done

# The folder it was submitted from is gone: it does not run in another one.
code=0
rm "$scratch/srun_asked"
SLURM_NTASKS=1 SLURM_SUBMIT_DIR=$scratch/gone PERIGEE=/bin/true bash "$PERIGEE_SOURCE/launch/slurm.sh" run.yaml 2>"$scratch/log" || code=$?
[ "$code" = 2 ] && [ ! -e "$scratch/srun_asked" ] || complain "without its folder: exit code $code"

# Of two builds, jobs with GPUs take the one for them.
for build in cpu cuda; do
    mkdir -p "$scratch/build/$build/bin" && ln -s /bin/true "$scratch/build/$build/bin/perigee"
done
submit_build() { (cd "$scratch" && PERIGEE='' exec sbatch --ntasks-per-node=1 "$PERIGEE_SOURCE/launch/slurm.sh" run.yaml) & job=$!; }
for gpus in 0 2; do
    SLURM_GPUS_ON_NODE=$gpus submit_build
    finish
    program=build/$([ $gpus = 0 ] && echo cpu || echo cuda)/bin/perigee
    [ "$code" = 0 ] && grep -q -- " $program train run.yaml" "$scratch/srun_asked" ||
        complain "with $gpus GPUs, code $code: $(cat "$scratch/srun_asked")"
done

# USR1 comes ahead of the time limit, TERM on preemption. The job saves, goes back into the queue and repeats the
# undisturbed run.
for signal in USR1 TERM; do
    folder=$scratch/stopped_$signal
    PERIGEE_KILL=write:metrics.jsonl:8 PERIGEE_KILL_BY=wait submit perigee_faulty "$folder"
    eventually 120 grep -qs "waiting for a signal" "$scratch/log" || complain "SIG$signal: does not train"
    kill -s "$signal" $(processes "$folder")
    finish
    [ "$code" = 0 ] || complain "SIG$signal: exit code $code"
    [ "$(asked)" = "requeue 17" ] || complain "SIG$signal: asked for: $(asked)"
    grep -q "told to stop: saved at step 8" "$scratch/log" || complain "SIG$signal: not saved"
    grep -q "resumed at step 8 " "$scratch/log" || complain "SIG$signal: not resumed"
    diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" || complain "SIG$signal: losses differ"
done

# --- Preempted while it starts: before srun began, and in ranks that have no handler yet.
cat >"$scratch/preempt" <<'STUB'
# Sourced by the batch script's shell: SIGTERM comes just before its `cd`, the first time.
trap '[[ $BASH_COMMAND == cd\ * && ! -e $STUB/preempted ]] && touch "$STUB/preempted" && kill -TERM $$' DEBUG
STUB
folder=$scratch/early
sed -i "s|bash ./slurm_script|BASH_ENV=\${PREEMPT:-} bash ./slurm_script|" "$scratch/bin/sbatch"
PREEMPT=$scratch/preempt submit perigee "$folder"
finish
[ -e "$scratch/preempted" ] || complain "preempted before srun: no signal was sent"
[ "$code" = 0 ] || complain "preempted before srun: exit code $code"
[ "$(asked)" = "requeue 17" ] || complain "preempted before srun: asked for: $(asked)"
diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" || complain "preempted before srun: losses differ"

folder=$scratch/unhandled
cat >"$scratch/first" <<'STUB'
if mkdir "$STUB/unhandled.$OMPI_COMM_WORLD_RANK" 2>/dev/null; then set -- bash -c 'kill -USR1 $$'; fi
STUB
sed -i "1r $scratch/first" "$scratch/bin/task"
submit perigee "$folder"
finish
[ "$code" = 0 ] || complain "preempted in ranks without a handler: exit code $code"
[ "$(asked)" = "requeue 17" ] || complain "preempted in ranks without a handler: asked for: $(asked)"

# --- Told while srun runs, the batch script passes it on.
folder=$scratch/batch
PERIGEE_KILL=write:metrics.jsonl:8 PERIGEE_KILL_BY=wait submit perigee_faulty "$folder"
eventually 120 grep -qs "waiting for a signal" "$scratch/log" || complain "signal to the batch script: does not train"
kill -TERM "$(pgrep -f "^bash ./slurm_script run.yaml .* output_dir=$folder")"
finish
[ "$code" = 0 ] || complain "signal to the batch script: exit code $code"
[ "$(asked)" = "requeue 17" ] || complain "signal to the batch script: asked for: $(asked)"
grep -q "resumed at step 8 " "$scratch/log" || complain "signal to the batch script: not resumed at step 8"

ln -s "$PERIGEE_SOURCE/launch" "$scratch/launch"
# --- A rank is killed: the job goes back into the queue where that was asked for, but not when it happens again.
PERIGEE_RESTARTS=3 PERIGEE_KILL=rename:step_00000004:1 submit perigee_faulty "$scratch/crashed" \
    checkpoint.every=4 checkpoint.async=false
finish
[ "$code" != 0 ] || complain "a job that always crashes: exit code 0"
[ "$(asked)" = "requeue 17" ] || complain "a job that crashed asked for: $(asked)"
grep -q "the time before: it does not start again" "$scratch/log" || complain "a job that always crashes does not say so"

# --- The same with an installed program, submitted from any folder; its folder of launch scripts is not the one submitted from.
rm "$scratch/launch"
mkdir -p "$scratch/usr/bin" "$scratch/usr/share/perigee"
ln -s "$PERIGEE_BIN/perigee_faulty" "$scratch/usr/bin/perigee_faulty"
ln -s "$PERIGEE_SOURCE/launch" "$scratch/usr/share/perigee/launch"
PATH=$scratch/usr/bin:$PATH PERIGEE_RESTARTS=3 PERIGEE_KILL=rename:step_00000004:1 submit_installed
finish
[ "$(asked)" = "requeue 17" ] || complain "a job of an installed program that crashed asked for: $(asked)"

submit perigee "$scratch/bad" optimizer.lr=fast
finish
[ "$code" != 0 ] || complain "a job that failed: exit code 0"
[ "$(asked)" = "" ] || complain "a job that failed asked for: $(asked)"
verdict
