#!/usr/bin/env bash
# Ranks that hang or die, in real processes: the whole job is gone within seconds, one line says who and why, a file says
# it to machines, nothing is left behind, and the next start works at once.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
source "$PERIGEE_SOURCE/tests/support/failures.sh"

limit=2
limits=(watchdog.setup_s=$limit watchdog.first_step_s=$limit watchdog.step_s=$limit watchdog.save_s=$limit
    watchdog.eval_s=$limit)
# Without saves, which would be a second section for a stop from outside to meet.
forever=(train.steps=10000000 log.every=1000000 checkpoint.every=0)

run 2 "$whole" perigee
[ "$code" = 0 ] || complain "unbroken run"

# --- A stopped rank. Each case: section, rank, where it stops (empty: anywhere, from outside), further options.
hang() {
    local section=$1 rank=$2 point=$3 what="rank $2 stopped in $1" begin pid=
    shift 3
    export PERIGEE_KILL=$point PERIGEE_KILL_RANK=$rank PERIGEE_KILL_BY=19
    start 2 "$folder" perigee_faulty "${limits[@]}" "$@"
    unset PERIGEE_KILL PERIGEE_KILL_RANK PERIGEE_KILL_BY
    if [ -z "$point" ]; then
        eventually 20 steps_done "$folder" 3 || complain "$what: does not train"
        sleep "0.$((RANDOM % 10))"
        kill -STOP "$(rank_pid "$folder" "$rank")"
    fi
    eventually 20 stopped "$folder" || complain "$what: it does not stop"
    begin=$(seconds)
    pid=$(rank_pid "$folder" "$rank")
    eventually 20 said "hang error" || complain "$what: not noticed"
    local noticed
    noticed=$(since "$begin")
    at_most "$noticed" $((limit + 2)) || complain "$what: noticed after $noticed s, limit $limit s"
    finish
    eventually 15 none_left "$folder" || complain "$what: processes are left"
    at_most "$(since "$begin")" 15 || complain "$what: gone after $(since "$begin") s"
    [ "$code" != 0 ] || complain "$what: exit code 0"
    # A stop from outside during evaluations may also meet the short step between two of them.
    one_line "$what" "perigee: hang error: rank $rank \(process $pid on host .*\) hangs in section ${section/eval/(eval|step)} .*#[0-9]+.*no sign of life"
    # Stopped between two collectives, as in any work on the disk, it is also known which one it has not reached.
    [ -z "$point" ] || one_line "$what" "it has not reached [a-z_ ]+ #[0-9]+, where others wait \(limit $limit s\)"
    report_says "$folder/failure_rank_$((1 - rank)).json" '"category": "hang"' || complain "$what: no failure file"
    echo "$what: noticed after $noticed s, gone after $(since "$begin") s"
}

hang step 0 "" "${forever[@]}"
rm -rf "$folder"
hang step 1 "" "${forever[@]}"
rm -rf "$folder"
# Nearly all of the time goes into evaluations.
hang eval $((RANDOM % 2)) "" "${forever[@]}" eval.every=1 eval.samples=2000 data.sequence_length=1024
rm -rf "$folder"
hang save 1 write:rank_0001.h5:1 checkpoint.async=false
resumes "stopped in save"
rm -rf "$folder"
hang save 0 sync:manifest.json:2
resumes "stopped in the last save"
run 2 "$folder" perigee train.steps=50
hang setup 1 open:rank_0001.h5:1 train.steps=60

# --- A rank that never joins its job: MPI_Init of the others does not return.
rm -rf "$scratch/absent"
begin=$(seconds)
PERIGEE_KILL=join PERIGEE_KILL_RANK=1 PERIGEE_KILL_BY=19 run 2 "$scratch/absent" perigee_faulty "${limits[@]}"
[ "$code" = 6 ] || complain "a rank that never joins: exit code $code"
one_line "a rank that never joins" "^perigee: hang error: process [0-9]+ on host .* waits in MPI_Init for ranks that .*\(limit $limit s\)"
eventually 15 none_left "$scratch/absent" || complain "a rank that never joins: processes are left"
at_most "$(since "$begin")" 15 || complain "a rank that never joins: gone after $(since "$begin") s"

# --- A rank that has done its part waits for the others, and still names one that hangs or dies. `check` has no other
# barrier after the job is joined (two) and before MPI ends.
part=barrier:3
PERIGEE_KILL=$part PERIGEE_KILL_BY=19 command=check run 2 "$folder" perigee_faulty "${limits[@]}"
one_line "stopped on its way out" "^perigee: hang error: rank 0 \(process [0-9]+ on host .*\) hangs in section setup .*inside barrier #[0-9]+, no sign of life .*\(limit $limit s\)"
[ "$code" = 6 ] || complain "stopped on its way out: exit code $code"
PERIGEE_KILL=$part PERIGEE_KILL_BY=9 command=check run 2 "$folder" perigee_faulty
one_line "killed on its way out" "^perigee: communication error: rank 0 \(process [0-9]+ on host .*\) died in section setup"
[ "$code" != 0 ] || complain "killed on its way out: exit code 0"
PERIGEE_KILL=$part PERIGEE_KILL_BY=10 command=check run 2 "$folder" perigee_faulty
[ "$code" = 0 ] || complain "told to stop when its result was complete: exit code $code"
eventually 15 none_left "$folder" || complain "on their way out: processes are left"

# --- mpirun does not end after its ranks, as when one dies while it joins.
rm -rf "$folder"
start 2 "$folder" perigee "${forever[@]}"
eventually 20 steps_done "$folder" 3 || complain "does not train"
mpirun_pid=$(pgrep -f "^mpirun .* output_dir=$folder ")
kill -STOP "$mpirun_pid"
kill -KILL $(processes "$folder")
begin=$(seconds)
finish
[ "$code" = 7 ] || complain "mpirun does not end: exit code $code"
one_line "mpirun does not end" "^perigee: mpirun did not end after the last rank, and was killed"
at_most "$(since "$begin")" 25 || complain "mpirun does not end: took $(since "$begin") s"
if kill -0 "$mpirun_pid" 2>/dev/null; then complain "mpirun does not end: it is left"; fi

# --- `eval` and `generate` have the limits of their sections, for each micro-batch and each token.
make_long_evaluation
declare -A options_of=([eval]="watchdog.eval_s=$limit $long_evaluation" [generate]="watchdog.step_s=$limit parallel.context=2 generate.prompt=a
    generate.temperature=0 generate.max_tokens=1000000 model.max_position_embeddings=1000000")
for what in eval generate; do
    command=$what start 2 "$whole" perigee ${options_of[$what]}
    eventually 20 said "weights of step 40" || complain "$what: does not begin"
    sleep $((limit + 1))
    kill -STOP "$(rank_pid "$whole" 1)" || complain "$what: ended while it went on"
    begin=$(seconds)
    finish
    one_line "$what" "perigee: hang error: rank 1 \(process [0-9]+ on host .*\) hangs in section (eval|step|first_step) .*no sign of life"
    [ "$code" = 6 ] || complain "$what: exit code $code"
    eventually 15 none_left "$whole" || complain "$what: processes are left"
    at_most "$(since "$begin")" 15 || complain "$what: gone after $(since "$begin") s"
    if ls "$whole"/failure_rank_* >/dev/null 2>&1; then complain "$what: it writes into the folder of a run"; fi
done

# --- MPI_Abort does not return: the process ends itself.
rm -rf "$folder"
begin=$(seconds)
PERIGEE_ABORT=hang PERIGEE_KILL=write:metrics.jsonl:5 PERIGEE_KILL_BY=throw run 2 "$folder" perigee_faulty
[ "$code" = 1 ] || complain "MPI_Abort does not return: exit code $code"
one_line "MPI_Abort does not return" "^perigee: internal error: thrown by the test"
eventually 15 none_left "$folder" || complain "MPI_Abort does not return: processes are left"
at_most "$(since "$begin")" 20 || complain "MPI_Abort does not return: took $(since "$begin") s"

# --- A job that is stopped as a whole and goes on is not a hang.
rm -rf "$folder"
start 2 "$folder" perigee "${limits[@]}" train.steps=500
eventually 20 steps_done "$folder" 3 || complain "does not train"
pids=$(processes "$folder")
kill -STOP $pids
sleep $((limit + 1))
kill -CONT $pids || complain "the job ended while it was stopped"
finish
[ "$code" = 0 ] || complain "a job that was stopped and went on ended with $code"

# --- A rank that dies.
dies() {  # dies WAY RANK POINT PATTERN
    local way=$1 rank=$2 point=$3 pattern=$4 what="rank $2 ended by $1 at $3" begin
    rm -rf "$folder"
    begin=$(seconds)
    PERIGEE_KILL=$point PERIGEE_KILL_RANK=$rank PERIGEE_KILL_BY=$way run 2 "$folder" perigee_faulty
    eventually 10 none_left "$folder" || complain "$what: processes are left"
    at_most "$(since "$begin")" 10 || complain "$what: took $(since "$begin") s"
    [ "$code" != 0 ] || complain "$what: exit code 0"
    one_line "$what" "$pattern"
    [ -s "$folder/failure_rank_$((1 - rank)).json" ] || [ -s "$folder/failure_rank_$rank.json" ] ||
        complain "$what: no failure file"
    resumes "$what"
}

dies 9 0 write:metrics.jsonl:10 "$(died 0 ": signal 9 \(Killed\)")"
dies 9 1 write:rank_0001.h5:3 "$(died 1 ": signal 9 \(Killed\)")"
dies 11 1 write:rank_0001.h5:1 "$(died 1 ": signal 11 \(Segmentation fault\)")"
dies exit 0 write:metrics.jsonl:30 "$(died 0 "")"
dies throw 0 write:metrics.jsonl:25 "^perigee: internal error: thrown by the test"
verdict
