#!/usr/bin/env bash
# A job and its launcher: every command stops with code 75 from the launcher's first line on; ranks whose launch script was
# killed, or hung up, save and leave; those whose mpirun was killed end; the next start removes what was left behind.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
source "$PERIGEE_SOURCE/tests/support/signals.sh"
script="$PERIGEE_SOURCE/launch/mpirun.sh" perigee=$PERIGEE_BIN/perigee
folder=$scratch/run
arguments=("$scratch/run.yaml" output_dir="$folder")
forever=(train.steps=10000000 log.every=1000000 checkpoint.every=0)
expect_code() { [ "$code" = "$2" ] || complain "$1: exit code $code instead of $2"; }

# --- Without room for mpirun's files it does not begin.
(ulimit -f 4096 && exec "$script" 2 "$perigee" train "${arguments[@]}") >"$scratch/log" 2>&1 && code=0 || code=$?
expect_code "no room" 1
grep -qF "perigee: mpirun needs 8 MiB in $TMPDIR" "$scratch/log" || complain "no room: it does not say so"

# --- While it starts.
for delay in 0 0.02 0.1 0.3; do
    for command in "$script 2 $perigee" "$perigee"; do
        [ "$command" != "$perigee" ] || [ "$delay" = 0 ] || continue
        rm -rf "$folder"
        begin $command train "${arguments[@]}" "${forever[@]}"
        pause "$delay"
        kill -USR1 "$job"
        finish
        expect_code "stopped after $delay s: $command" 75
        eventually 60 job_ended "$folder" || complain "stopped after $delay s: processes are left"
        [ -e "$folder/metrics.jsonl" ] || grep -q "told to stop.* nothing to save" "$scratch/log" ||
            complain "stopped after $delay s: it does not say that there was nothing to save"
    done
done
clean || complain "left behind: $(left_behind)"

# --- The script, mpirun or both are killed, or the terminal hangs up.
mpirun_pid() { pgrep -f "^mpirun .* output_dir=$folder( |\$)"; }
saved_all() {  # saved_all WHAT: a checkpoint of the last step
    eventually 60 grep -q "told to stop: saved at step $(grep -c '"loss"' "$folder/metrics.jsonl")" "$folder/log.txt" ||
        complain "$1: not saved at the last step"
}
for victim in script mpirun both terminal; do
    rm -rf "$folder"
    if [ $victim = terminal ]; then
        setsid script --quiet --command "$script 2 $perigee train ${arguments[*]} ${forever[*]}; echo code \$? >$scratch/code" \
            /dev/null >"$scratch/log" 2>&1 </dev/null &
        job=$!
    else
        begin "$script" 2 "$perigee" train "${arguments[@]}" "${forever[@]}"
    fi
    eventually 120 steps_done "$folder" 3 || complain "$victim: does not train"
    case $victim in
        script | terminal) kill -KILL "$job" ;;
        mpirun) kill -KILL "$(mpirun_pid)" ;;
        both) kill -KILL "$job" "$(mpirun_pid)" ;;
    esac
    finish
    eventually 60 job_ended "$folder" || complain "$victim killed: processes are left: $(processes "$folder")"
    case $victim in script | terminal) saved_all "$victim killed" ;; esac
    "$perigee" check "${arguments[@]}" >/dev/null 2>&1 || complain "$victim killed: the next start fails"
    clean || complain "$victim killed: left behind: $(left_behind)"
done

# --- Shared memory of a rank that was killed while it joined.
stale="/dev/shm/osc_sm.$(hostname).$$.0.3"
echo stale >"$stale"
"$perigee" check "${arguments[@]}" >/dev/null 2>&1
[ ! -e "$stale" ] || complain "left behind: $stale"
rm -f "$stale"

# --- A job that lives keeps what is its own, whoever starts beside it.
rm -rf "$folder"
begin "$script" 2 "$perigee" train "${arguments[@]}" "${forever[@]}"
eventually 120 steps_done "$folder" 3 || complain "does not train"
in_use() {
    find "$TMPDIR" -name 'perigee-*' -o -name 'pid.*' | sort
    grep -ho '/dev/shm/[^ ]*' $(processes "$folder" | sed 's|.*|/proc/&/maps|') | sort -u
}
before=$(in_use)
"$perigee" check "${arguments[@]}" >/dev/null 2>&1
[ "$before" = "$(in_use)" ] ||
    complain "a start beside a job removes what the job uses"
kill -INT "$job"
finish
expect_code "a job with another beside it" 75

# --- Commands that save nothing.
make_long_evaluation
for command in "eval $long_evaluation" "generate generate.prompt=a generate.temperature=0 generate.max_tokens=100000000 \
    model.max_position_embeddings=100000000"; do
    begin "$perigee" ${command%% *} "${arguments[@]}" ${command#* }
    eventually 120 grep -q "weights of step" "$scratch/log" || complain "$command: does not begin"
    kill -INT "$job"
    since_signal=$(seconds)
    finish
    expect_code "${command%% *}" 75
    at_most "$(since "$since_signal")" 60 || complain "${command%% *}: took $(since "$since_signal") s to end"
done

# --- What mpirun fails to say while it ends a job says nothing about the job.
mkdir "$scratch/bin"
cat >"$scratch/bin/mpirun" <<'STUB'
#!/bin/sh
echo "[host:1] [[2,0],0] ORTE_ERROR_LOG: Out of resource in file ../../../orte/util/show_help.c at line 501" >&2
echo "perigee: config error: no such data" >&2
exit 2
STUB
chmod +x "$scratch/bin/mpirun"
PATH="$scratch/bin:$PATH" begin "$script" 2 "$perigee" train "${arguments[@]}"
finish
expect_code "a job that ends while mpirun fails to say so" 2
eventually 60 grep -qx "perigee: config error: no such data" "$scratch/log" || complain "what ranks say is not shown"
grep -q ORTE_ERROR_LOG "$scratch/log" && complain "mpirun's own failures are shown"

# --- What a launch needs.
mkdir "$scratch/few"
ln -s "$(command -v bash)" "$scratch/few/bash"
code=0
PATH=$scratch/few "$script" 2 "$perigee" train "${arguments[@]}" >"$scratch/log" 2>&1 || code=$?
expect_code "no mpirun" 2
grep -q "no mpirun in PATH: install Open MPI" "$scratch/log" || complain "no mpirun: it does not say so"
code=0
"$script" 2 "$perigee.not" train "${arguments[@]}" >"$scratch/log" 2>&1 || code=$?
expect_code "no program" 2
grep -q "there is no program $perigee.not" "$scratch/log" || complain "no program: it does not say so"
ln -s "$(type -P true)" "$scratch/nothing"
code=0
(cd "$scratch" && "$script" 2 nothing train) >"$scratch/log" 2>&1 || code=$?
expect_code "a program of this folder" 0
if [ "$(id -u)" = 0 ] && setpriv --reuid 54321 --regid 54321 --clear-groups true 2>/dev/null; then
    code=0
    chmod 711 "$scratch"
    mkdir -m 1777 "$scratch/anyone"
    (cd / && env -u HOME TMPDIR="$scratch/anyone" setpriv --reuid 54321 --regid 54321 --clear-groups bash -s 1 true) \
        <"$script" >"$scratch/log" 2>&1 || code=$?
    expect_code "a user without name and HOME" 0
fi

# --- A signal right after main's first line.
for command in train eval generate check; do
    PERIGEE_KILL=join PERIGEE_KILL_BY=sleep begin "$PERIGEE_BIN/perigee_faulty" $command "${arguments[@]}"
    eventually 20 grep -q "waiting for a signal" "$scratch/log" || complain "$command: does not wait"
    kill -TERM "$job"
    finish
    expect_code "$command, at its first line" 75
    [ "$(grep -c '^step:\|^{\|parameters' "$scratch/log")" = 0 ] || complain "$command, at its first line: it went on"
done
verdict
