#!/usr/bin/env bash
# Kills inside saves, in real processes: kill_loop_test.sh [COUNT] [SEED]. First at every point of the save protocol, then
# COUNT times one rank or all of them at a random operation on the disk, or a random time later. The next start must need no
# hand, take the newest whole checkpoint, and repeat the unbroken run bit for bit. Long: `ctest -L long`.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
count=${1:-${PERIGEE_KILLS:-100}}
seed=${2:-${PERIGEE_SEED:-$RANDOM}}
RANDOM=$seed
# Every fourth step saves. The operations of a rank until step 16: after any kill 20 losses and more are there to compare.
steps=40
options=(train.steps=$steps checkpoint.every=4 checkpoint.keep_last=2 log.every=1)
operations=180

run 2 "$scratch/whole" perigee_faulty "${options[@]}"
[ "$code" = 0 ] || complain "unbroken run"

newest_whole() {  # the newest folder of the final name: the protocol says it is whole
    ls "$1/checkpoints" 2>/dev/null | grep -E '^step_[0-9]{8}(\.old)?$' | sort | tail -1 | sed -E 's/step_0*([0-9]+).*/\1/'
}

kills=0 resumed=0 folder=$scratch/broken
# kill_at RANK POINT [MICROSECONDS]: false where the run is over before it dies
kill_at() {
    local what="rank $1 at $2 +${3:-0} us" before
    rm -rf "$folder"
    PERIGEE_KILL_RANK=$1 PERIGEE_KILL=$2 PERIGEE_KILL_DELAY=${3:-0} run 2 "$folder" perigee_faulty "${options[@]}"
    if [ "$code" = 0 ]; then return 1; fi
    kills=$((kills + 1))
    eventually 10 none_left "$folder" || complain "$what: processes are left"
    before=$(newest_whole "$folder") || true
    run 2 "$folder" perigee "${options[@]}"
    [ "$code" = 0 ] || complain "$what: the next start ended with $code"
    if [ -n "$before" ]; then
        grep -q "resumed at step $before from" "$scratch/log" || complain "$what: not resumed at $before"
        [ $((steps - before)) -ge 20 ] || complain "$what: fewer than 20 losses after step $before"
        resumed=$((resumed + 1))
    fi
    diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" ||
        complain "$what: losses differ: $(head -3 "$scratch/diff")"
    diff <(weights "$scratch/whole" step_000000$steps) <(weights "$folder" step_000000$steps) >"$scratch/diff" ||
        complain "$what: weights differ"
    leftovers=$(ls -A "$folder/checkpoints" | grep -vE '^step_[0-9]{8}$') || true
    [ -z "$leftovers" ] || complain "$what: $leftovers was left behind"
}

# The third save has an older checkpoint to remove. Rank, operation, path, which one of those.
third=step_00000012
for point in "1 create:$third.tmp/rank_0001:1" "1 write:$third.tmp/rank_0001:1" "1 write:$third.tmp/rank_0001:4" \
    "1 sync:$third.tmp/rank_0001:1" "0 make_directories:$third.tmp:1" "0 create:$third.tmp/rank_0000:1" \
    "0 write:$third.tmp/rank_0000:1" "0 write:$third.tmp/rank_0000:4" "0 sync:$third.tmp/rank_0000:1" \
    "0 create:$third.tmp/manifest:1" "0 write:$third.tmp/manifest:1" "0 sync:$third.tmp/manifest:1" \
    "0 sync_directory:$third.tmp:1" "0 rename:checkpoints/$third:1" "0 remove:.trash-step_00000004:1" \
    "0 rename:.trash-step_00000004:1" "0 remove:.trash-step_00000004:2"; do
    for moment in "" :after; do
        kill_at ${point}$moment || complain "no kill at ${point}$moment"
    done
done
# Syncs of the parent folder: after the rename of each of three checkpoints, and of the one removed.
for which in 2 4 6 7; do
    for moment in "" :after; do
        kill_at 0 "sync_directory:checkpoints:$which$moment" || complain "no kill at sync of the folder $which$moment"
    done
done
echo "$kills kills at points of the protocol, $resumed resumed from a checkpoint"

kills=0 resumed=0
echo "$count random kills, seed $seed"
while [ "$kills" -lt "$count" ]; do
    rank=$((RANDOM % 3))
    point=any:checkpoints/:$((30 + RANDOM % operations))
    if [ "$rank" = 2 ]; then rank=all; fi
    if [ $((RANDOM % 2)) = 0 ]; then point+=:after; fi
    delay=0
    if [ $((RANDOM % 2)) = 0 ]; then delay=$((1 + RANDOM % 5000)); fi
    kill_at "$rank" "$point" "$delay" || echo "none: rank $rank at $point +$delay us"
done
echo "$kills random kills, $resumed of them resumed from a checkpoint, the others had none yet"
[ "$resumed" -gt $((count / 2)) ] || complain "too few kills came after a first checkpoint"
verdict
