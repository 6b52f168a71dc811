#!/usr/bin/env bash
# Ranks that share one GPU and die, stop, leave out a collective or run out of memory, with NCCL and with MPI: one line
# names the rank, the job ends within its limit and two seconds, the memory of the GPU comes back, and the next start
# repeats the unbroken run bit for bit. Then the same after kills of random moments. A line per case.
# PERIGEE_CASES=N or FIRST-LAST: some of the cases. PERIGEE_KILLS: random kills, 20 where it is not set; PERIGEE_SEED.
# PERIGEE_ALONE=no: other jobs share the GPU as well.
set -euo pipefail
source "${PERIGEE_SOURCE:?}/tests/support/stacked_jobs.sh"
source "$PERIGEE_SOURCE/tests/support/failures.sh"
wanted=${PERIGEE_CASES:-1000}
[[ $wanted == *-* ]] || wanted=1-$wanted
cases=0
mark=$scratch/mark  # made when the rank is disturbed

# Loading kernels and making communicators takes seconds where ranks take turns.
limit=4
[ "${PERIGEE_ALONE:-yes}" = yes ] || limit=8
limits=(watchdog.setup_s=60 watchdog.first_step_s=60 watchdog.step_s=$limit watchdog.save_s=$limit)

# Sets $options and $whole, whose run it makes where there is none yet.
with() {  # with COMM SHARD
    options=(parallel.comm="$1" parallel.shard="$2")
    whole=$scratch/whole_$1_$2
    [ -e "$whole" ] || run 2 "$whole" perigee "${options[@]}"
    steps_done "$whole" 20 || complain "unbroken run, $1, $2 sharded"
}
marked() { [ -e "$mark" ] || ! kill -0 "$job" 2>/dev/null; }
since_mark() { since "$(stat -c %.Y "$mark")"; }
is_wanted() { cases=$((cases + 1)) && [ "$cases" -ge "${wanted%-*}" ] && [ "$cases" -le "${wanted#*-}" ]; }

# breaks WHERE COMM SHARD RANK WAY POINT PATTERN: WAY as PERIGEE_KILL_BY, POINT as PERIGEE_KILL of bin/perigee_faulty;
# the log has one line of PATTERN.
breaks() {
    local what="$cases. $1, $2, $3 sharded: rank $4, $5" rank=$4 way=$5 point=$6 pattern=$7 noticed gone begun
    begun=$(seconds)
    with "$2" "$3"
    rm -rf "$folder" "$mark"
    export PERIGEE_KILL=$point PERIGEE_KILL_RANK=$rank PERIGEE_KILL_BY=$way PERIGEE_KILL_MARK=$mark
    start 2 "$folder" perigee_faulty "${options[@]}" "${limits[@]}"
    unset PERIGEE_KILL PERIGEE_KILL_RANK PERIGEE_KILL_BY PERIGEE_KILL_MARK
    eventually 100 marked || true
    if ! [ -e "$mark" ]; then
        complain "$what: it does not come to $point"
        finish
        return
    fi
    eventually 30 said "^perigee: " || complain "$what: nobody says so"
    noticed=$(since_mark)
    at_most "$noticed" $((limit + 2)) || complain "$what: noticed after $noticed s, limit $limit s"
    finish
    eventually 15 none_left "$folder" || complain "$what: processes are left"
    gone=$(since_mark)
    at_most "$gone" 15 || complain "$what: gone after $gone s"
    [ "$code" != 0 ] || complain "$what: exit code 0"
    one_line "$what" "$pattern"
    cp "$scratch/log" "$scratch/said"
    expect_memory_back
    resumes "$what"
    echo "$what: noticed after $noticed s, gone after $gone s, with the next start $(since "$begun") s in all"
    [ -z "${PERIGEE_SHOW:-}" ] || sed 's/^/    /' <(grep "^perigee: " "$scratch/said")
}
case_of() { ! is_wanted || breaks "$@"; }
signal_9() { died "$1" ": signal 9 \(Killed\)"; }
hangs() { echo "^perigee: hang error: .*rank $1 \(process [0-9]+ on host .*\).*${2:-}"; }
no_sign=".*no sign of life.*\(limit $limit s\)"

# Weights sharded: 4 gathers and 8 sums of units in a step, the gathers in its forward. Optimizer sharded: 4 sums, and 4
# gathers after the update, the first of them before step 1.
N=$nccl
case_of forward $N weights 1 9 collective:all_gather:50 "$(signal_9 1)"
case_of forward mpi weights 0 9 collective:all_gather:50 "$(signal_9 0)"
case_of backward $N weights 0 9 collective:reduce_scatter:101 "$(signal_9 0)"
case_of backward $N optimizer 1 9 collective:reduce_scatter:54 "$(signal_9 1)"
case_of backward mpi optimizer 0 11 collective:reduce_scatter:54 "$(died 0 ": signal 11 \(Segmentation fault\)")"
case_of update $N optimizer 0 9 collective:all_gather:54 "$(signal_9 0)"
case_of update mpi optimizer 1 9 collective:all_gather:54 "$(signal_9 1)"
case_of save $N optimizer 1 9 write:rank_0001.h5:3 "$(signal_9 1)"
case_of save $N optimizer 0 9 sync:manifest.json:1 "$(signal_9 0)"
case_of start-up $N optimizer 1 9 join "^perigee: .*rank 1 .*signal 9 \(Killed\)"
case_of start-up $N optimizer 0 9 collective:all_gather:2 "$(signal_9 0)"
case_of start-up mpi optimizer 1 9 collective:all_gather:2 "$(signal_9 1)"
case_of backward $N weights 1 19 collective:reduce_scatter:101 "$(hangs 1 "$no_sign")"
case_of update $N optimizer 0 19 collective:all_gather:54 "$(hangs 0 "$no_sign")"
case_of save $N optimizer 1 19 write:rank_0001.h5:3 "$(hangs 1 "$no_sign")"
case_of backward $N optimizer 1 skip collective:reduce_scatter:52 "$(hangs 1)"
case_of forward $N weights 0 skip collective:all_gather:52 "$(hangs 0)"
case_of backward mpi optimizer 1 skip collective:reduce_scatter:52 "$(hangs 1)"
case_of forward $N weights 1 allocate collective:all_gather:50 "^perigee: memory error: "
case_of backward $N optimizer 0 allocate collective:reduce_scatter:54 "^perigee: memory error: "
echo "$cases cases, of which $wanted ran"

# --- Kills of random moments.
count=${PERIGEE_KILLS:-20}
if [ "$count" -gt 0 ]; then
    source "$PERIGEE_SOURCE/tests/support/signals.sh"
    source "$PERIGEE_SOURCE/tests/support/kills.sh"
    options+=(parallel.comm=$nccl)
    earliest=0.6  # what comes before is the same at every start
    echo "$count random kills, seed $seed"
    unbroken
    while [ "$kills" -lt "$count" ]; do
        begun=$(seconds)
        random_kill
        echo "$kills kills, $resumed resumed from a checkpoint, the last in $(since "$begun") s"
    done
    expect_memory_back
    [ "$resumed" -gt $((count / 3)) ] || complain "too few kills came after a first checkpoint"
fi
verdict
