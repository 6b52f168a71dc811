#!/usr/bin/env bash
# Random kills inside saves, in real processes: kill_loop_test.sh [COUNT] [SEED]. One rank or all of them are killed at a
# random operation on the disk, or at a random time while a save is in flight. The next start must need no hand, take the
# newest whole checkpoint, and repeat the unbroken run bit for bit. Long: `ctest -L long`.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
count=${1:-${PERIGEE_KILLS:-100}}
seed=${2:-${PERIGEE_SEED:-$RANDOM}}
RANDOM=$seed
echo "$count kills, seed $seed"
# Every fourth step saves, so that the 20 losses after any kill are all there to compare.
options=(train.steps=60 checkpoint.every=4 checkpoint.keep_last=3 log.every=1)

run 2 "$scratch/whole" perigee_faulty "${options[@]}"
[ "$code" = 0 ] || complain "unbroken run"
# Operations of one rank on checkpoints until step 40, so that 20 steps remain.
operations=${PERIGEE_OPERATIONS:-200}

newest_whole() {  # the newest folder of the final name: the protocol says it is whole
    ls "$1/checkpoints" 2>/dev/null | grep -E '^step_[0-9]{8}(\.old)?$' | sort | tail -1 | sed -E 's/step_0*([0-9]+).*/\1/'
}

kills=0 resumed=0
while [ "$kills" -lt "$count" ]; do
    folder=$scratch/broken
    rm -rf "$folder"
    rank=$((RANDOM % 2))
    if [ $((RANDOM % 2)) = 0 ]; then
        point=any:checkpoints/:$((RANDOM % operations + 1))
        [ $((RANDOM % 2)) = 0 ] && point+=:after
        what="rank $rank at $point"
        PERIGEE_KILL=$point PERIGEE_KILL_RANK=$rank run 2 "$folder" perigee_faulty "${options[@]}"
    else
        victims=$((RANDOM % 2))
        what="time, $([ "$victims" = 0 ] && echo "rank $rank" || echo all)"
        start 2 "$folder" perigee_faulty "${options[@]}"
        eventually 20 steps_done "$folder" $((4 + RANDOM % 36)) || true
        sleep "0.00$((RANDOM % 10))"
        if [ "$victims" = 0 ]; then pids=$(rank_pid "$folder" "$rank"); else pids=$(processes "$folder"); fi
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
        finish
    fi
    if [ "$code" = 0 ]; then continue; fi  # the run was over before its kill
    kills=$((kills + 1))
    eventually 10 none_left "$folder" || complain "kill $kills ($what): processes are left"
    before=$(newest_whole "$folder")
    run 2 "$folder" perigee "${options[@]}"
    [ "$code" = 0 ] || complain "kill $kills ($what): the next start ended with $code"
    if [ -n "$before" ]; then
        grep -q "resumed at step $before from" "$scratch/log" || complain "kill $kills ($what): not resumed at $before"
        resumed=$((resumed + 1))
    fi
    diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" ||
        complain "kill $kills ($what): losses differ: $(head -3 "$scratch/diff")"
    diff <(weights "$scratch/whole" step_00000060) <(weights "$folder" step_00000060) >"$scratch/diff" ||
        complain "kill $kills ($what): weights differ"
    leftovers=$(ls -A "$folder/checkpoints" | grep -vE '^step_[0-9]{8}$') || true
    [ -z "$leftovers" ] || complain "kill $kills ($what): $leftovers was left behind"
done
echo "$kills kills, $resumed of them resumed from a checkpoint, the others had none yet"
[ "$resumed" -gt $((count / 2)) ] || complain "too few kills came after a first checkpoint"
verdict
