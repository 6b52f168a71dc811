#!/usr/bin/env bash
# launch/mpirun.sh --restarts: a job whose rank is killed goes on by itself to the same bits; one that always ends at the same
# step, or cannot go on, is given up; where GPUs are lost it goes on with fewer ranks.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
script=$PERIGEE_SOURCE/launch/mpirun.sh
restarts=$PERIGEE_SOURCE/launch/restarts.sh
perigee=$PERIGEE_BIN/perigee
expect_code() { [ "$code" = "$2" ] || complain "$1: exit code $code instead of $2"; }
said() { grep -qE "$1" "$scratch/log" || complain "it does not say '$1'"; }
supervised() {  # RESTARTS RANKS FOLDER [key=value...]
    code=0
    timeout -k 5 200 "$script" --restarts "$1" "$2" "${program:-$perigee}" train "$scratch/run.yaml" output_dir="$3" \
        "${@:4}" >"$scratch/log" 2>&1 || code=$?
}

# A program that dies once at its COUNT-th append to the metrics: the mark tells that it has.
cat >"$scratch/once" <<'SH'
#!/usr/bin/env bash
if [ "$1" = train ] && [ ! -e "$SCRATCH/mark" ]; then
    export PERIGEE_KILL=$SCRATCH_KILL PERIGEE_KILL_RANK=0 PERIGEE_KILL_MARK=$SCRATCH/mark
fi
exec "$PERIGEE_BIN/perigee_faulty" "$@"
SH
chmod +x "$scratch/once"
export SCRATCH=$scratch SCRATCH_KILL=barrier:1

whole=$scratch/whole folder=$scratch/run
run 2 "$whole" perigee
expect_code "the unbroken run" 0

# --- A rank is killed while step 20 is being saved: the next start goes on.
SCRATCH_KILL=rename:step_00000040:1 program=$scratch/once supervised 3 2 "$folder"
expect_code "killed once" 0
said 'it ended with code [0-9]+ after step [0-9]+: it starts again \(restart 1 of 3\)'
diff <(numbers "$whole") <(numbers "$folder") >/dev/null || complain "killed once: the numbers differ"
[ ! -e "$folder/restarts.txt" ] || complain "a finished run still counts restarts"

# --- It always dies at the same step: the second time is the last.
rm -rf "$folder"
export PERIGEE_KILL=rename:step_00000020:1
# Training waits for the save: beside it, it would come to ever other steps.
program=$PERIGEE_BIN/perigee_faulty supervised 9 2 "$folder" checkpoint.async=false
[ "$code" != 0 ] || complain "a run that always dies ended with 0"
said 'after step (19|20), and after step (19|20) the time before: it does not start again'
[ "$(grep -c 'it starts again' "$scratch/log")" = 1 ] || complain "it started again more than once"

# --- No restarts are left.
rm -rf "$folder"
program=$PERIGEE_BIN/perigee_faulty supervised 0 2 "$folder"
said 'has started again 0 times: that is enough'
unset PERIGEE_KILL

# --- What would happen again is not tried again.
rm -rf "$folder"
supervised 3 2 "$folder" train.global_batch_size=3
expect_code "a config that cannot run" 2
grep -q 'starts again' "$scratch/log" && complain "a config that cannot run is started again"

# --- The folder of a run is the one that the program takes, however it is written.
mkdir "$scratch/it's a #1"
echo '{"step":7,"loss":1}' >"$scratch/it's a #1/metrics.jsonl"
finds_folder() {  # CONFIG [ARGUMENT...]
    printf '%b' "$1" >"$scratch/folder.yaml"
    code=0
    (cd "$scratch" && timeout -k 5 60 "$restarts" 7 1 "$perigee" folder.yaml "${@:2}") >"$scratch/log" 2>&1 || code=$?
    expect_code "folder in '$*'" 0
    said 'it ended with code 7 after step 7: it starts again'
    rm -f "$scratch/it's a #1/restarts.txt"
}
for config in "output_dir: \"it's a #1\"\n" "output_dir: 'it''s a #1'\r\n" "{output_dir: \"it's a #1\"}\n" "output_dir:\n  \"it's a #1\"\n"; do
    finds_folder "$config"
done
finds_folder 'output_dir: other\n' --mock-data output_dir="\"it's a #1\""

# --- The reader of the log is gone: it goes on all the same.
rm -rf "$folder" "$scratch/mark"
{ SCRATCH_KILL=rename:step_00000040:1 "$script" --restarts 3 2 "$scratch/once" train "$scratch/run.yaml" output_dir="$folder" 2>&1 ||
    echo $? >"$scratch/code"; } | head -n 1 >"$scratch/log"
[ ! -e "$scratch/code" ] || complain "no reader of the log: exit code $(cat "$scratch/code")"
diff <(numbers "$whole") <(numbers "$folder") >/dev/null || complain "no reader of the log: the numbers differ"

# --- Numbers that are none.
refuses() {  # PATTERN COMMAND...
    code=0
    timeout -k 5 60 "${@:2}" >"$scratch/log" 2>&1 || code=$?
    expect_code "${*:2}" 2
    said "$1"
}
for number in 0 -1 2x 1.5 01 1000000 99999999999 ''; do
    refuses "^(perigee: RANKS must be a whole number from 1 to 999999, not '$number'|usage: .* RANKS )" "$script" "$number" true
done
for number in '' x -1 1.5 99999999999999999999; do
    refuses "CODE and MOST must be whole numbers, not '$number' and '3'" "$restarts" "$number" 3 "$perigee" "$scratch/run.yaml"
    refuses "CODE and MOST must be whole numbers, not '7' and '$number'" "$restarts" 7 "$number" "$perigee" "$scratch/run.yaml"
    [ -z "$number" ] || PERIGEE_RESTARTS=$number refuses "PERIGEE_RESTARTS must be a whole number, not '$number'" \
        "$PERIGEE_SOURCE/launch/slurm.sh" "$scratch/run.yaml"
done
refuses '^usage: ' "$script" --restarts 3x 2 "$perigee" train "$scratch/run.yaml"

# --- Told to stop: it saves and leaves.
rm -rf "$folder"
"$script" --restarts 3 2 "$perigee" train "$scratch/run.yaml" output_dir="$folder" train.steps=10000000 checkpoint.every=0 \
    >"$scratch/log" 2>&1 &
job=$!
eventually 100 steps_done "$folder" 3 || complain "it does not train"
kill -TERM "$job"
finish
expect_code "told to stop" 75
said 'told to stop: saved at step'
eventually 60 none_left "$folder" || complain "processes are left"

# --- Two of four GPUs are lost (invented ones: the ranks compute on the CPU).
rm -rf "$folder" "$scratch/mark"
mkdir "$scratch/bin"
cat >"$scratch/bin/nvidia-smi" <<'SH'
#!/usr/bin/env bash
seq 0 "$([ -e "$SCRATCH/mark" ] && echo 2 || echo 3)"
SH
chmod +x "$scratch/bin/nvidia-smi"
SCRATCH_KILL=rename:step_00000040:1 program=$scratch/once PATH=$scratch/bin:$PATH supervised 3 4 "$folder"
expect_code "a lost GPU" 0
said '3 of 4 GPUs are left: it goes on with 2 ranks instead of 4'
[ "$(grep -c '"loss"' "$folder/metrics.jsonl")" = 40 ] || complain "a lost GPU: steps are missing"
rm -rf "$folder" "$scratch/mark"
SCRATCH_KILL=rename:step_00000040:1 program=$scratch/once PATH=$scratch/bin:$PATH supervised 3 4 "$folder" parallel.data=4
[ "$code" != 0 ] || complain "a layout of four ranks ran on three"
said '3 of 4 GPUs are left, and the config runs on no fewer than 4 ranks'
verdict
