#!/usr/bin/env bash
# Kills in real processes: kill_loop_test.sh [COUNT] [SEED]. First at every point of the save protocol, which
# PERIGEE_KILLS_AT_POINTS=no leaves out, then COUNT times at random: half of them one rank or all at an operation on the
# disk, or a short time later; half of them a rank, mpirun, the launch script or everything at any moment from the script's
# first line on. After every third of the random kills the newest of several checkpoints is damaged. The next start must
# need no hand, take the newest whole checkpoint, lose no step in the metrics and repeat the unbroken run bit for bit;
# nothing may be left behind. Long: `ctest -L long`.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
source "$PERIGEE_SOURCE/tests/support/signals.sh"
source "$PERIGEE_SOURCE/tests/support/kills.sh"
count=${1:-${PERIGEE_KILLS:-200}}
seed=${2:-$seed}
RANDOM=$seed
unbroken

# The third save has an older checkpoint to remove. Rank, operation, path, which one of those.
third=step_00000012
if [ "${PERIGEE_KILLS_AT_POINTS:-yes}" = yes ]; then
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
fi
echo "$kills kills at points of the protocol, $resumed resumed from a checkpoint"

kills=0 resumed=0
echo "$count random kills, seed $seed"
while [ "$kills" -lt "$count" ]; do random_kill; done
echo "$kills random kills, $damages newest checkpoints damaged; $resumed resumed from a checkpoint, the others had none yet"
[ "$resumed" -gt $((count / 3)) ] || complain "too few kills came after a first checkpoint"
verdict
