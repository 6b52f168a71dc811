#!/usr/bin/env bash
# launch/mpirun.sh on a terminal: a progress bar and colours, in the order of the lines. In a pipe: neither.
. "$(dirname "$0")/../support/mpi.sh"
. "$(dirname "$0")/../support/jobs.sh"
command -v script >/dev/null || exit 77
: >"$scratch/log"

# on_terminal NAME [VARIABLE=value...]: what a job of two ranks shows there
on_terminal() {
    local name=$1
    shift
    local job="stty cols 80; '$PERIGEE_SOURCE/launch/mpirun.sh' 2 '$PERIGEE_BIN/perigee' train '$scratch/run.yaml' \
        output_dir='$scratch/$name' log.every=10 log.progress=true"
    env TERM=xterm "$@" timeout 120 script -qfec "$job" /dev/null </dev/null >"$scratch/$name.shown" ||
        complain "$name: exit $?"
}
has() { LC_ALL=C grep -qaP "$2" "$scratch/$1.shown" || complain "$1: $3"; }
has_not() { ! LC_ALL=C grep -qaP "$2" "$scratch/$1.shown" || complain "$1: $3"; }

on_terminal shown
has shown '\r\x1b\[K\[#+\.+\]  50% eta [0-9:]{8} step 20/40 loss' "no bar at half of the run"
has shown '\r\x1b\[K {5}20\x1b\[1m' "the line of step 20 does not take the bar's place"
has shown '\x1b\[2m   step     loss' "no dim header"
has shown '\r\x1b\[Kfinished at step 40' "no end"
# The last bar is gone: after the last carriage return nothing is left but what clears the line.
[ "$(tail -c 4 "$scratch/shown.shown" | od -An -c | tr -d ' ')" = '\r033[K' ] || complain "shown: a bar stays behind"

on_terminal plain NO_COLOR=1
has plain '\[#+\.+\]  50% eta' "NO_COLOR took the bar"
has_not plain '\x1b\[[0-9;]*m' "colours in spite of NO_COLOR"

on_terminal dumb TERM=dumb
has dumb '^     20   ' "no line of step 20"
has_not dumb '\[#+\.+\]' "a bar on a terminal that cannot move its cursor"
has_not dumb '\x1b\[[0-9;]*m' "colours on a dumb terminal"

"$PERIGEE_SOURCE/launch/mpirun.sh" 2 "$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$scratch/piped" \
    log.every=10 log.progress=true 2>&1 | cat >"$scratch/piped.shown"
has piped '^     20   ' "no line of step 20"
has_not piped '\x1b|\r' "escapes or carriage returns in a pipe"

verdict
