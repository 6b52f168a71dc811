#!/usr/bin/env bash
# 40 steps unbroken equal 20 + kill + 20: every loss and the final checkpoint, bit for bit, with 1 and with 2 ranks, the
# kill placed before, inside (at every kind of operation of the save protocol) and after a save. Real processes, SIGKILL.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
evaluated=(eval.every=10 eval.samples=4)
export OMPI_MCA_odls_base_sigkill_timeout=0  # after a kill mpirun ends the other ranks at once

train() {  # train RANKS FOLDER PROGRAM [key=value...]: non-zero where the job dies
    local n=$1 folder=$2 program=$3
    shift 3
    ranks "$n" "$PERIGEE_BIN/$program" train "$scratch/run.yaml" output_dir="$folder" "${evaluated[@]}" "$@"
}

last=step_00000040
for n in 1 2; do
    whole=$scratch/whole_$n
    train "$n" "$whole" perigee || complain "unbroken run, $n ranks"
    [ "$(numbers "$whole" | wc -l)" = 44 ] || complain "$n ranks: 40 steps and 4 evaluations expected in metrics.jsonl"
    [ "$(weights "$whole" $last | wc -l)" -ge "$n" ] || complain "$n ranks: no hashes in the manifest"

    [ "$n" = 2 ] || [ -z "${PERIGEE_BRIEF:-}" ] || continue

    # operation : part of the path : which one : the step it must resume from
    points=(
        write:metrics.jsonl:15:0 write:metrics.jsonl:27:20
        make_directories:step_00000020.tmp:1:0 create:rank_0000:1:0 write:rank_0000:2:0 sync:rank_0000:1:0
        create:manifest.json:1:0 write:manifest.json:1:0 sync:manifest.json:1:0
        sync_directory:step_00000020.tmp:1:0 rename:step_00000020:1:0 sync_directory:checkpoints:2:20
        create:step_00000040:1:20 write:step_00000040:4:20 rename:step_00000040:1:20)
    for ((i = 0; i < ${#points[@]}; i += 1 + ${PERIGEE_BRIEF:-0})); do
        point=${points[i]}
        IFS=: read -r operation path count step <<<"$point"
        folder=$scratch/broken_$n
        rm -rf "$folder"
        # A line of metrics says nothing about a save beside training, so there training waits for it.
        how=()
        [ "$path" != metrics.jsonl ] || how=(checkpoint.async=false)
        if PERIGEE_KILL=$operation:$path:$count train "$n" "$folder" perigee_faulty "${how[@]}"; then
            complain "$n ranks, $point: the kill did not happen"
            continue
        fi
        train "$n" "$folder" perigee || complain "$n ranks, $point: resume failed"
        if [ "$step" != 0 ]; then
            grep -q "resumed at step $step" "$scratch/log" || complain "$n ranks, $point: resumed elsewhere"
        fi
        diff <(numbers "$whole") <(numbers "$folder") >"$scratch/log" || complain "$n ranks, $point: losses differ"
        diff <(weights "$whole" $last) <(weights "$folder" $last) >"$scratch/log" || complain "$n ranks, $point: weights differ"
    done
done

# Told to stop: a complete checkpoint, exit 75 (alone; mpirun may turn it into another non-zero code), exact resume.
# The signal comes with the seventh step's line of metrics.
for signal in TERM USR1; do
    folder=$scratch/stopped_$signal
    code=0
    PERIGEE_KILL=write:metrics.jsonl:7 PERIGEE_KILL_BY=$(kill -l "$signal") "$PERIGEE_BIN/perigee_faulty" train \
        "$scratch/run.yaml" output_dir="$folder" "${evaluated[@]}" >"$scratch/log" 2>&1 || code=$?
    if [ "$code" != 75 ]; then complain "SIG$signal: exit $code instead of 75"; continue; fi
    train 1 "$folder" perigee || complain "SIG$signal: resume"
    grep -q "resumed at step 7 " "$scratch/log" || complain "SIG$signal: resumed elsewhere"
    diff <(numbers "$scratch/whole_1") <(numbers "$folder") >"$scratch/log" || complain "SIG$signal: losses differ"
done
verdict
